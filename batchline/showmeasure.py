"""A measurement as a person reads it: the plan before it begins, a bar while it runs, and what a request costs by batch size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from batchline.cost import CostLine
from batchline.fit import Fit
from batchline.measure import Progress as Report
from batchline.measured import Plan
from batchline.scaling import Scaling
from batchline.turns import expected_s

FIXED, EACH = ("#E69F00", "█"), ("#0072B2", "▒")  # c and m: told apart without colour too
BAR = 30  # with its table it fits into 80 columns
REGIMES = {
    "overhead-bound": "overhead-bound: nearly all of a lone request is the fixed overhead, batching pays several times over",
    "balanced": "balanced: batching pays, within the ceiling",
    "compute-bound": "compute-bound: a request costs its own compute, batching wins little",
}


def show_plan(console: Console, plan: Plan) -> None:
    """What will be measured and about how long it takes."""
    sizes = ", ".join(map(str, plan.batch_sizes))
    settings = ", ".join(f"{workers}x{threads}" for workers, threads in plan.settings)
    shortest_ms, longest_ms = plan.pause_ms
    said = (
        f"batches of {sizes}: on a TorchServe of their own and through the handler alone, "
        f"{plan.rounds} rounds in random order, {plan.slot_s:g} s or {plan.least_batches} batches a turn",
        f"{plan.pauses} single requests a round, {shortest_ms:g} to {longest_ms:g} ms after the last answer",
        f"requests/s of workers x threads {settings}, batch size {plan.setting_batch_size}: {plan.setting_visits} x {plan.setting_s:g} s",
        f"expected: about {_duration(expected_s(plan))}, more where a batch takes longer than {plan.slot_s / plan.least_batches:.1f} s",
    )
    for line in said:
        console.print(line, highlight=False)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


@contextmanager
def show_progress(console: Console) -> Iterator[Report]:
    """Turns done, what is under way, and how long it will take."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=what)


def show_fit(console: Console, found: Fit) -> None:
    """The line, its table and bars, TorchServe's share, and the workers."""
    machine = found.machine
    console.print(f"{found.model} {found.model_version} on {machine.cores} cores of {machine.cpu}", highlight=False)
    console.print(_table(found.server))
    _say(console, _line(found.server))
    if found.handler:
        _say(console, _own(found))
    if found.scaling:
        console.print()
        console.print(_workers(found.scaling))
        _say(console, [found.scaling.peak.note, *_notes(found.scaling)])
    for warning in found.warnings:
        console.print(f"careful: {warning}", style="bold #D55E00", highlight=False, soft_wrap=True)


def _say(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _table(line: CostLine) -> Table:
    """What each request of a batch costs, as bars of c/B and m."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("B", "T(B) ms", "S(B)", "line"):
        table.add_column(heading, justify="right")
    table.add_column(f"ms a request ({FIXED[1]} c/B, {EACH[1]} m)" if line.linear else "ms a request")
    longest = max(row.batch_ms / row.batch_size for row in line.table)
    for row in line.table:
        predicted = "-" if row.speedup_predicted is None else f"{row.speedup_predicted:.2f}"
        bar = _bar(line, row.batch_size, row.batch_ms / row.batch_size, longest)
        table.add_row(str(row.batch_size), f"{row.batch_ms:.2f}", f"{row.speedup:.2f}", predicted, bar)
    return table


def _bar(line: CostLine, size: int, each_ms: float, longest_ms: float) -> Text:
    whole = max(1, round(BAR * each_ms / longest_ms))
    fixed = round(whole * line.c_ms / size / (line.c_ms / size + line.m_ms)) if line.linear else 0
    return Text.assemble((FIXED[1] * fixed, FIXED[0]), (EACH[1] * (whole - fixed), EACH[0]), f" {each_ms:.2f}")


def _line(line: CostLine) -> list[str]:
    if not line.linear:
        return [f"no line: the measured table is what counts. {REGIMES[line.regime]}."]
    assert line.ceiling and line.ceiling_interval
    c, m, top = line.c_ms_interval, line.m_ms_interval, line.ceiling_interval
    return [
        f"c = {line.c_ms:.2f} ms a batch (95%: {c[0]:.2f} to {c[1]:.2f}), m = {line.m_ms:.3f} ms a request ({m[0]:.3f} to {m[1]:.3f})",
        f"ceiling 1 + c/m = {line.ceiling:.2f} times ({top[0]:.2f} to {top[1]:.2f}); "
        f"80% of the limit 1/m from B = {line.size_for(0.8)}, 90% from B = {line.size_for(0.9)}",
        f"{REGIMES[line.regime]}.",
    ]


def _own(found: Fit) -> list[str]:
    alone = found.handler
    assert alone
    if not alone.linear:
        return ["the handler alone is no line."]
    said = [f"the handler alone: c = {alone.c_ms:.2f} ms, m = {alone.m_ms:.3f} ms"]
    if overhead := found.overhead_ms:
        said[0] += f"; TorchServe adds {overhead[0]:.2f} ms a batch and {overhead[1]:.3f} ms a request"
    if found.request_ms:
        said.append(f"a request that is alone takes {found.request_ms:.2f} ms, from its send to its last byte")
    return said


def _several(scaling: Scaling) -> bool:
    """Whether there is more than one batch size to name."""
    return len({curve.batch_size for curve in scaling.curves}) > 1


def _notes(scaling: Scaling) -> Iterator[str]:
    for curve in scaling.curves:
        at = f", batches of {curve.batch_size}" if _several(scaling) else ""
        yield f"{curve.threads}-thread workers{at}: {curve.note}"


def _workers(scaling: Scaling) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    batch = ("batch",) if _several(scaling) else ()
    for heading in ("workers", "threads", *batch, "req/s", "least .. most", "ideal"):
        table.add_column(heading, justify="right")
    table.add_column("measured █, ideal ·")
    highest = max(row.ideal_per_s for curve in scaling.curves for row in curve.rows)
    for row in (row for curve in scaling.curves for row in curve.rows):
        reached, ideal = round(BAR * row.per_s / highest), round(BAR * row.ideal_per_s / highest)
        bar = Text.assemble(("█" * reached, EACH[0]), ("·" * max(0, ideal - reached), "#999999"))
        size = (str(row.batch_size),) if batch else ()
        figures = (f"{row.per_s:.1f}", f"{row.per_s_least:.0f} .. {row.per_s_most:.0f}", f"{row.efficiency:.0%}")
        table.add_row(str(row.workers), str(row.threads), *size, *figures, bar)
    return table


def show_where(console: Console, path: Path) -> None:
    """Where the raw values are, and how to read them again."""
    console.print(f"every value is in {path}; `batchline fit {path}` shows this again", highlight=False, soft_wrap=True)


def show_interrupted(console: Console, path: Path) -> None:
    """What an interrupted measurement leaves."""
    kept = f"what was measured is in {path}; the same command with --resume goes on" if path.exists() else "nothing was measured yet"
    console.print(f"interrupted: {kept}", highlight=False, soft_wrap=True)
