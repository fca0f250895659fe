"""A promise held against a server, and a tuning, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from batchline.stopping import CONFIDENCE
from batchline.tune import Telling, Tuned
from batchline.verify import Progress as Report
from batchline.verify import State, Verified

GOOD, BAD = "#009E73", "bold #D55E00"
WORDS = {"kept": "KEPT", "broken": "BROKEN", "undecided": "NOT KEPT (undecided)", "invalid": "INVALID"}


@contextmanager
def show_progress(console: Console) -> Iterator[Report]:
    """Requests counted of those that are wanted so far, and how many were over the limit.

    It is drawn only when there is news: a thread that draws ten times a second makes one send in ten late.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bars:
        task = bars.add_task("warming up", total=1)

        def report(state: State) -> None:
            over = f"{state.over} over the limit"
            bars.update(task, total=state.wanted, completed=state.requests, description=over, refresh=True)

        yield report


def show_verified(console: Console, found: Verified) -> None:
    """The table of promised and kept, then the verdict and how it was reached."""
    console.print(_table(found))
    console.print(
        f"{WORDS[found.outcome]}: {verdict(found)}", style=GOOD if found.outcome == "kept" else BAD, highlight=False, soft_wrap=True
    )
    for reason in found.invalid:
        console.print(f"INVALID: {reason}", style=BAD, highlight=False, soft_wrap=True)
    if found.bounded:
        console.print(found.bounded, highlight=False, soft_wrap=True)


def verdict(found: Verified) -> str:
    """One sentence: n, the number over the limit, and what that shows."""
    judged = found.judgement
    said = f"{judged.over} of {judged.requests} requests over {found.limit_ms:g} ms at {found.rate_per_s:g} requests/s"
    if found.outcome == "invalid":
        return f"{said}, and none of it is the server's"
    shown = {
        "kept": f"99% are within it, with {CONFIDENCE:.0%} confidence; {judged.needed} requests were needed",
        "broken": f"more than 1% are over it, with {CONFIDENCE:.0%} confidence",
        "undecided": f"too few to say whether 99% are within it, where {judged.needed} would be needed",
    }[found.outcome]
    return f"{said}: {shown} (requests that share batches count as 1 in {judged.dependence:.2g})"


def _table(found: Verified) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(found.model)
    headings = ("promised", "measured", "off") if found.promised else ("measured",)
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("")
    for name, promised, measured, more in _rows(found):
        numbers = (_shown(promised), _shown(measured), _off(promised, measured)) if found.promised else (_shown(measured),)
        table.add_row(name, *numbers, more)
    return table


def _rows(found: Verified) -> Iterator[tuple[str, float | None, float | None, str]]:
    """Name, promised, measured, and what else is to say."""
    seen = found.seen
    around = seen.p99_interval_ms
    more = {"requests/s": _statuses(found), "p99 ms": f"95%: {around[0]:.1f} to {around[1]:.1f}" if around else ""}
    rows = {
        "requests/s": ("throughput_per_s", seen.throughput_per_s),
        **{f"{name} ms": (f"{name}_ms", seen.latency_ms.get(name)) for name in ("mean", "p50", "p95", "p99")},
        "mean batch": ("mean_batch_size", seen.mean_batch_size),
        "queue wait, mean ms": ("queue_wait_ms", seen.queue_wait_ms),
    }
    for name, (field, measured) in rows.items():
        yield name, getattr(found.promised, field, None), measured, more.get(name, "")


def _statuses(found: Verified) -> str:
    """Only where not all were answered well."""
    if set(found.seen.statuses) == {200}:
        return ""
    return ", ".join(f"{status or 'no answer'}: {count}" for status, count in found.seen.statuses.items())


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _off(promised: float | None, measured: float | None) -> str:
    return "-" if not promised or measured is None else f"{measured / promised - 1:+.1%}"


@contextmanager
def show_tuning(console: Console) -> Iterator[Telling]:
    """One bar for whatever is under way, drawn when there is news, and a line above it for each step that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bars:
        task = bars.add_task("planning", total=None)

        def plan(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total, description=f"planning: {what}", refresh=True)

        def verify(state: State) -> None:
            bars.update(
                task, completed=state.requests, total=state.wanted, description=f"verifying: {state.over} over the limit", refresh=True
            )

        def say(words: str) -> None:
            bars.console.print(words, highlight=False, soft_wrap=True)
            bars.update(task, completed=0, total=None, description=words.partition(";")[0], refresh=True)

        yield Telling(say, plan, verify)


def show_tuned(console: Console, found: Tuned, config: Path) -> None:
    """The last attempt's table; what must be done beside the file; where the promise was not kept, why."""
    if found.attempts:
        show_verified(console, found.attempts[-1].verified)
    if not found.kept:
        console.print(f"NOT TUNED: {found.why}", style=BAD, highlight=False, soft_wrap=True)
        show_untouched(console, config)
        return
    for need in found.attempts[-1].plan.needs:
        console.print(f"careful: {need}", style=BAD, highlight=False, soft_wrap=True)


def show_untouched(console: Console, config: Path) -> None:
    """That nothing was written."""
    console.print(f"{config} is as it was", highlight=False, soft_wrap=True)
