"""A request's stages as a person reads them: one bar, a line a stage, what to do about the largest."""

from __future__ import annotations

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchline.show import OTHER, REST, STAGES
from batchline.stages import Journey

# As in `predict`'s bar; yellow and vermilion are Okabe and Ito's too.
PALETTE = {
    "network": ("#F0E442", "n"),
    "wait": (STAGES["queue"][0], "w"),
    "worker": ("#0072B2", "k"),
    "front end": (OTHER[0], "f"),
    **STAGES,
}
UNEXPLAINED = (REST[0], "?")
NAMES = {"wait": "wait for the batch", "worker": "worker and handler"}


def show_journey(console: Console, journey: Journey) -> None:
    """The bar, the table, the advice, and whether the parts add up."""
    how = "one at a time" if journey.lone else "under load"
    batch = "" if journey.mean_batch_size is None else f", in batches of {journey.mean_batch_size:.2f}"
    console.print(f"{journey.model}: the mean of {journey.requests} requests, {how}{batch}", markup=False, highlight=False)
    console.print(_bar(console, journey), no_wrap=True, overflow="crop")
    console.print(_table(console, journey))
    name = NAMES.get(journey.dominant, journey.dominant)
    half = f"Half of {name} would save {journey.halving_saves_ms:.2f} ms, {journey.halving_saves_share:.1%} of the total."
    console.print(Text(half, style="bold"))
    console.print(Text(journey.advice))
    if not journey.reports_stages:
        console.print(
            Text(f"The handler of {journey.model} does not report its stages (no Server-Timing): they are in one with the worker.")
        )
    if not journey.doubts:
        console.print(Text(f"ADDS UP: the parts, each measured by itself, are {journey.covered:.1%} of the total", style="#009E73"))
    for doubt in journey.doubts:
        console.print(Text(f"DOUBTFUL: {doubt}", style="bold #D55E00"))


def _bar(console: Console, journey: Journey) -> Text:
    """As wide as the terminal, in proportion; what is less than nothing has no width."""
    drawn = [(PALETTE[part.name], max(part.ms, 0.0)) for part in journey.parts]
    drawn.append((UNEXPLAINED, max(journey.unexplained_ms, 0.0)))
    ends = np.cumsum([ms for _, ms in drawn])
    cells = np.diff(np.rint(max(console.width - 1, 1) * ends / ends[-1]).astype(int), prepend=0)
    bar = Text()
    for ((colour, letter), _), count in zip(drawn, cells.tolist(), strict=True):
        bar.append((letter if _plain(console) else "█") * count, style=colour)
    return bar


def _table(console: Console, journey: Journey) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for justify in ("left", "left", "right", "right", "left"):
        table.add_column(justify=justify, overflow="fold")  # type: ignore[arg-type]
    for part in journey.parts:
        note = f"HTTP {journey.http_ms:.2f}, to the worker and back {journey.handover_ms:.2f}" if _halved(journey, part.name) else ""
        largest = part.name == journey.dominant
        cells = _row(NAMES.get(part.name, part.name), part.symbol, part.ms, part.share)
        table.add_row(_mark(console, PALETTE[part.name]).append(cells[0]), *cells[1:], "<- largest" if largest and not note else note)
        if largest:
            table.rows[-1].style = "bold"
    rest = _row("unexplained", "", journey.unexplained_ms, journey.unexplained_ms / journey.total_ms)
    table.add_row(_mark(console, UNEXPLAINED).append(rest[0]), *rest[1:], "")
    table.add_row(*_row("  total", "T_total", journey.total_ms, 1.0), "")
    return table


def _halved(journey: Journey, name: str) -> bool:
    return name == "front end" and journey.reports_stages


def _row(name: str, symbol: str, ms: float, share: float) -> tuple[str, str, str, str]:
    return name, symbol, f"{ms:.2f} ms", f"{share:.1%}"


def _mark(console: Console, look: tuple[str, str]) -> Text:
    colour, letter = look
    return Text().append(f"{letter if _plain(console) else '■'} ", style=colour)


def _plain(console: Console) -> bool:
    return console.options.ascii_only or console.color_system is None
