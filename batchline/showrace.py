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

from batchline.race import F32, REDUCED_TOLERANCE, REFERENCE, SCORE_TOLERANCE, Form, Lane, Race
from batchline.race import Progress as Report

BAR = 6  # with its table it fits into 80 columns
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
    judged = found.lanes[0].accuracy is not None
    for heading in ("form", "thr.", *(f"T({size}) ms" for size in sizes), "off by", *(["right"] if judged else [])):
        table.add_column(heading, justify="left" if heading == "form" else "right", no_wrap=True)
    table.add_column("ms a request", no_wrap=True)
    longest = max(lane.request_ms for lane in found.lanes)
    for lane in found.lanes:
        table.add_row(*_cells(lane, found.winner), _bar(lane, longest))
    console.print(table)
    for runtime, reason in found.absent.items():
        console.print(f"{runtime} did not run: {reason}", highlight=False, soft_wrap=True)
    console.print(f"winner with one thread a worker: {found.winner}", highlight=False)
    if any(not lane.same_answers for lane in found.lanes):
        allowed = f"{SCORE_TOLERANCE:g} from eager float32 (bf16 and int8: {REDUCED_TOLERANCE:g})"
        console.print(f"a form that is off by more than {allowed} cannot win", highlight=False)
    if found.winner.precision != F32:
        console.print(_cost(found), highlight=False, soft_wrap=True)
    if written:
        console.print(f"written to {written}; `make archive` packs it", highlight=False, soft_wrap=True)


def _cells(lane: Lane, winner: Form) -> list[str]:
    name = f"{lane.form} *" if lane.form == winner and lane.threads == 1 else str(lane.form)
    off = f"{lane.difference:.0e}" if lane.same_answers else "no match"
    right = [] if lane.accuracy is None else [f"{lane.accuracy:.2%}"]
    return [name, str(lane.threads), *(f"{ms:.2f}" for ms in lane.batch_ms.values()), off, *right]


def _cost(found: Race) -> str:
    """What the winner's precision costs, in a sentence."""
    lanes = {lane.form: lane for lane in found.lanes if lane.threads == 1}
    won, exact = lanes[found.winner], lanes[REFERENCE]
    said = f"{found.winner.precision} moves the samples' numbers by up to {won.difference:.4f}"
    if won.accuracy is None or exact.accuracy is None:
        return f"{said}; files in labelled/LABEL/ of the model's folder would tell its accuracy"
    return f"{said}; of the labelled requests it answers {won.accuracy:.2%} rightly, float32 {exact.accuracy:.2%}"


def _bar(lane: Lane, longest_ms: float) -> Text:
    filled = max(1, round(BAR * lane.request_ms / longest_ms))
    return Text.assemble(("█" * filled, GOOD if lane.same_answers else BAD), f" {lane.request_ms:.2f}")
