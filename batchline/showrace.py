"""A race as a person reads it: a row a form, its milliseconds a request as a bar, and what did not run and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from batchline.race import SCORE_TOLERANCE, Lane, Race
from batchline.race import Progress as Report

BAR = 12  # with its table it fits into 80 columns
GOOD, BAD = "#0072B2", "#999999"


@contextmanager
def show_progress(console: Console) -> Iterator[Report]:
    """The turn under way and what is left; the forms are made and loaded before the first."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("making and loading the forms", total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=what)


def show_race(console: Console, found: Race, written: Path | None) -> None:
    """Fastest first, for each thread count."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    sizes = list(found.lanes[0].batch_ms)
    for heading in ("form", "threads", *(f"T({size}) ms" for size in sizes), "off by"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    table.add_column("ms a request")
    longest = max(lane.request_ms for lane in found.lanes)
    for lane in found.lanes:
        table.add_row(*_cells(lane, found.winner), _bar(lane, longest))
    console.print(table)
    for runtime, reason in found.absent.items():
        console.print(f"{runtime} did not run: {reason}", highlight=False, soft_wrap=True)
    console.print(f"winner with one thread a worker: {found.winner}", highlight=False)
    if any(not lane.same_answers for lane in found.lanes):
        console.print(f"a form that is off by more than {SCORE_TOLERANCE:g} from eager float32 cannot win", highlight=False)
    if written:
        console.print(f"written to {written}; `make archive` packs it", highlight=False, soft_wrap=True)


def _cells(lane: Lane, winner: str) -> list[str]:
    name = f"{lane.runtime} *" if lane.runtime == winner and lane.threads == 1 else lane.runtime
    off = f"{lane.difference:.0e}" if lane.same_answers else "no match"
    return [name, str(lane.threads), *(f"{ms:.2f}" for ms in lane.batch_ms.values()), off]


def _bar(lane: Lane, longest_ms: float) -> Text:
    filled = max(1, round(BAR * lane.request_ms / longest_ms))
    return Text.assemble(("█" * filled, GOOD if lane.same_answers else BAD), f" {lane.request_ms:.2f}")
