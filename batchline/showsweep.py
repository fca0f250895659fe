"""A sweep as a person reads it: latency at each rate, a column a setting, and how much each carries within the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from batchline.sweep import Progress
from batchline.swept import Point, Sweep, largest_kept, points


@contextmanager
def show_progress(console: Console) -> Iterator[Progress]:
    """Steps done, and what is under way."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=1)
        yield lambda done, total, words: bars.update(task, completed=done, total=total, description=words)


def show_sweep(console: Console, sweep: Sweep) -> None:
    """The table, then what each setting carries."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("requests/s", justify="right")
    named = {candidate.name: {point.rate_per_s: point for point in points(sweep, candidate.name)} for candidate in sweep.plan.candidates}
    for name in named:
        table.add_column(f"{name}: p50, p99 ms", justify="right")
    for rate in sorted({rate for found in named.values() for rate in found}):
        table.add_row(f"{rate:g}", *(_cell(found.get(rate)) for found in named.values()))
    console.print(table)
    for candidate in sweep.plan.candidates:
        settings = f"batchSize {candidate.batch_size}, maxBatchDelay {candidate.max_batch_delay_ms} ms, {candidate.workers} workers"
        console.print(Text(f"{candidate.name}: {settings}; {_carries(sweep, candidate.name)}"))
    for reason in dict.fromkeys(reason for step in sweep.steps for reason in step.invalid):
        console.print(Text(f"INVALID steps among them: {reason}", style="bold #D55E00"))


def _cell(point: Point | None) -> str:
    if point is None:
        return ""
    refused = f" ({point.refused_share:.0%} refused)" if point.refused_share > 0.005 else ""
    return f"{point.p50_ms:.1f}  {point.p99_ms:.1f}{refused}"


def _carries(sweep: Sweep, name: str) -> str:
    capacity, target = sweep.capacity_per_s[name], sweep.plan.target_p99_ms
    if target is None:
        return f"{capacity:.4g} requests/s at most"
    kept = largest_kept(sweep, name, target)
    said = f"p99 within {target:g} ms up to {kept.rate_per_s:g} requests/s" if kept else f"p99 never within {target:g} ms"
    return f"{said}; {capacity:.4g} requests/s at most"
