"""A run of load as a person reads it: a bar while it runs, a table when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from batchline.load import Progress as Report
from batchline.load import RequestRecord
from batchline.summary import LoadSummary

RECENT = 2000  # records that the live p99 is of


@contextmanager
def show_progress(console: Console, duration_s: float) -> Iterator[Report]:
    """Seconds, rate and p99 while requests go out."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=duration_s)

        def report(records: Sequence[RequestRecord], seconds: float) -> None:
            recent = [record.latency_ms for record in records[-RECENT:]]
            p99 = f"{np.percentile(recent, 99):.1f}" if recent else "-"
            bars.update(task, completed=min(seconds, duration_s), description=f"{len(records) / seconds:.1f} answers/s, p99 {p99} ms")

        yield report


def show_summary(console: Console, summary: LoadSummary) -> None:
    """The table, then VALID or INVALID with the reasons."""
    table = Table(show_header=False, show_edge=False, pad_edge=False)
    for name, value in _rows(summary):
        table.add_row(name, value)
    console.print(table)
    if not summary.invalid:
        console.print("VALID: the generator kept its schedule", style="#009E73", highlight=False)
    for reason in summary.invalid:
        console.print(f"INVALID: {reason}", style="bold #D55E00", highlight=False, soft_wrap=True)


def _rows(summary: LoadSummary) -> Iterator[tuple[str, str]]:
    offered = "" if summary.offered_per_s is None else f"{summary.offered_per_s:.1f} offered, "
    yield "requests/s", f"{offered}{summary.achieved_per_s:.1f} achieved, {summary.requests} in all"
    for name, value in summary.latency_ms.items():
        interval = summary.p99_interval_ms if name == "p99" else None
        within = f"  (95%: {interval[0]:.1f} to {interval[1]:.1f})" if interval else ""
        yield f"{name} ms", f"{value:.1f}{within}"
    yield "statuses", ", ".join(f"{status or 'no answer'}: {count}" for status, count in summary.statuses.items())
    if summary.stages_ms:
        yield "stages, mean ms", ", ".join(f"{name} {value:.2f}" for name, value in summary.stages_ms.items())
    if summary.mean_batch_size:
        yield "mean batch", f"{summary.mean_batch_size:.2f} requests"
    yield "connections", f"{summary.reconnects} opened"
    yield "send lag p99 ms", f"{summary.lag_p99_ms:.2f}"
