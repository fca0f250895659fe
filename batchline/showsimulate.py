"""A simulation as a person reads it: latency and wait with their intervals, and where a request's time goes."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchline.queueing import Server, Service, Setting
from batchline.simulated import Simulated, Spread

BAR = 60  # with its words it fits into 80 columns
WORKER, COMPANY, BATCH, FRONT = ("#0072B2", "░"), ("#56B4E9", "▒"), ("#E69F00", "█"), ("#999999", "·")  # told apart without colour too
FIGURES = ("mean", "p50", "p90", "p95", "p99")
NAMES: dict[Server, str] = {"torchserve": "TorchServe", "triton": "Triton"}


def show_simulated(
    console: Console, found: Simulated, service: Service, setting: Setting, rate_per_s: float, server: Server, seed: int
) -> None:
    """Latency and wait, the mean request's time as a bar, and what the server is doing."""
    workers = f"{setting.workers} worker{'s' * (setting.workers > 1)}"
    given = f"{workers}, batch size {setting.batch_size}, delay {setting.max_batch_delay_ms:g} ms on {NAMES[server]}"
    _say(console, f"{given}; {rate_per_s:g} requests/s are {rate_per_s / found.capacity_per_s:.0%} of its {found.capacity_per_s:.4g}/s")
    console.print(_table(found))
    _bar(console, found)
    refused = f"; {found.rejected:,} of {found.requests:,} answered 503" if found.rejected else ""
    busy = f"workers {found.utilisation:.0%} busy, {found.mean_in_system:.3g} requests in the server{refused}"
    _say(console, f"mean batch {found.mean_batch_size:.2f}, {found.throughput_per_s:.4g} answers/s, {busy}")
    runs = f"{found.requests:,} requests in {found.replications} runs, {found.warm_up:,} before each not counted, seed {seed}"
    _say(console, f"{runs}; ± is half of the 95% interval")
    if found.note:
        console.print(f"careful: {found.note}", style="bold #D55E00", highlight=False, soft_wrap=True)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def _table(found: Simulated) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("ms")
    for figure in FIGURES:
        table.add_column(figure, justify="right")
    for title, name, spread in (("latency", "latency_ms", found.latency_ms), ("queue wait", "queue_wait_ms", found.queue_wait_ms)):
        table.add_row(title, *(_cell(found, name, figure, spread) for figure in FIGURES))
    return table


def _cell(found: Simulated, name: str, figure: str, spread: Spread) -> str:
    low, high = found.intervals[f"{name}.{figure}"]
    value = float(getattr(spread, figure))
    places = 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{places}f} ±{(high - low) / 2:.{places}f}"


def _bar(console: Console, found: Simulated) -> None:
    """The mean request's time: for a worker, for company, in its batch, in front of the queue."""
    waits, whole = found.queue_wait_ms.mean, found.latency_ms.mean
    parts = (
        (WORKER, "for a worker", waits - found.gathering_ms),
        (COMPANY, "for company", found.gathering_ms),
        (BATCH, "its batch", whole - waits - found.front_end_ms),
        (FRONT, "front end", found.front_end_ms),
    )
    bar, ends = Text(), 0.0
    for (colour, sign), _, ms in parts:
        begins, ends = ends, ends + max(0.0, ms)
        bar.append(sign * (round(BAR * ends / whole) - round(BAR * begins / whole)), colour)
    console.print(bar)
    said = (f"{sign} {what} {ms:.2f}" for (_, sign), what, ms in parts if ms > 0.005)
    _say(console, "ms of a mean request: " + ", ".join(said))
