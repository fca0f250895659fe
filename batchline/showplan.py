"""A plan as a person reads it: the choice, what it promises, what binds it and why, the next best, and what config.properties gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from batchline.search import Progress as Report
from batchline.shared import Together
from batchline.targets import Choice, Plan, Predicted

GOOD, BAD, WAIT, WORK = "#009E73", "#D55E00", "#E69F00", "#0072B2"
BAR = 30
FIGURES = (  # name, heading, unit, format
    ("p50_ms", "p50", "ms", ".1f"),
    ("p95_ms", "p95", "ms", ".1f"),
    ("p99_ms", "p99", "ms", ".1f"),
    ("throughput_per_s", "throughput", "/s", ".1f"),
    ("utilisation", "utilisation", "", ".0%"),
    ("mean_batch_size", "mean batch", "", ".2f"),
)


@contextmanager
def show_progress(console: Console) -> Iterator[Report]:
    """Settings tried; gone when the plan is there."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("begins", total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=what)


def show_plan(console: Console, plan: Plan) -> None:
    """One model."""
    target = plan.target
    rate = f"{target.rate_per_s:g} requests/s" if target.rate_per_s else "the largest rate"
    console.print(f"{plan.model} {plan.model_version}: p99 within {target.p99_ms:g} ms at {rate}", style="bold", highlight=False)
    console.print(_verdict(plan))
    console.print(_choices(plan))
    if plan.predicted:
        console.print(_predicted(plan.predicted, target.p99_ms))
    _say(console, [f"binding: {plan.binding}. {plan.reason}"])
    for remedy in plan.remedies:
        _say(console, [f"what would change it — {remedy}"])
    _say(console, [*_machines(plan), *_memory(plan), *plan.needs])
    for warning in plan.warnings:
        console.print(f"careful: {warning}", style=f"bold {BAD}", highlight=False, soft_wrap=True)


def show_together(console: Console, found: Together) -> None:
    """Every model, then the machine as a whole."""
    for plan in found.plans:
        show_plan(console, plan)
        console.print()
    factor = f"all rates together can be {found.rates_factor:.2f} times these" if found.rates_factor else "no part of these rates is kept"
    all_of = f"{found.workers} workers in all, {found.busy_workers:.2f} busy in the mean, {found.memory_mib / 1024:.1f} GiB"
    _say(console, [f"{all_of}; with these settings {factor}"])


def show_difference(console: Console, path: Path, lines: Sequence[str]) -> None:
    """What config.properties gets."""
    if not lines:
        _say(console, [f"{path} says all of this already; nothing to write"])
    for line in lines:
        style = GOOD if line.startswith("+") else BAD if line.startswith("-") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def show_written(console: Console, path: Path) -> None:
    """Where it is now, and how it takes effect."""
    _say(console, [f"written to {path}; `make stop serve` starts the server with it"])


def _verdict(plan: Plan) -> Text:
    if plan.feasible:
        return Text(f"kept, by the simulation; up to {plan.max_rate_per_s:.4g} requests/s with this setting", style=GOOD)
    if not plan.predicted or plan.target.rate_per_s is None or plan.predicted.rate_per_s == plan.target.rate_per_s:
        return Text("out of reach on this machine; the best that can be had:", style=f"bold {BAD}")
    at = f"{plan.predicted.rate_per_s:.4g} requests/s"
    return Text(f"out of reach on this machine; the best that can be had, at {at}:", style=f"bold {BAD}")


def _choices(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("", "batchSize", "maxBatchDelay ms", "workers", "threads", "p99 ms"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, choice in (("choice", Choice(plan.setting, plan.predicted)), ("runner-up", plan.runner_up)):
        if choice:
            s, p99 = choice.setting, f"{choice.predicted.p99_ms:.1f}" if choice.predicted else "-"
            if choice.predicted and plan.target.goal == "max-rate":
                p99 += f" at {choice.predicted.rate_per_s:.4g}/s"
            table.add_row(name, str(s.batch_size), f"{s.max_batch_delay_ms:g}", str(s.workers), str(s.threads), p99)
    return table


def _predicted(found: Predicted, p99_ms: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("predicted")
    table.add_column("", justify="right")
    table.add_column("95%", justify="right")
    table.add_column(f"█ of the target's {p99_ms:g} ms")
    for name, heading, unit, form in FIGURES:
        value, (low, high) = getattr(found, name), found.intervals[name]
        bar = _bar(value, p99_ms) if unit == "ms" else Text("")
        table.add_row(heading, f"{value:{form}} {unit}".rstrip(), f"{low:{form}} .. {high:{form}}", bar)
    return table


def _bar(value_ms: float, target_ms: float) -> Text:
    filled = round(BAR * min(value_ms / target_ms, 1.0))
    return Text.assemble(("█" * filled, WORK if value_ms <= target_ms else BAD), ("·" * (BAR - filled), "#999999"))


def _machines(plan: Plan) -> list[str]:
    count = plan.replicas
    if not count:
        return []
    one = f"{count.machines} machine{'s' * (count.machines > 1)} like this"
    return [
        f"machines: {one}, each {count.utilisation:.0%} of its {count.capacity_per_s:.4g} requests/s "
        f"(at least {count.headroom:.0%} free); {count.with_one_spare} if one may fail. "
        f"Concurrency target of one: {count.concurrency_target:.3g} requests (Little's law)"
    ]


def _memory(plan: Plan) -> list[str]:
    how = "measured" if plan.worker_mib_measured else "an estimate: torch, Python and the unpacked archive"
    total = plan.worker_mib * plan.setting.workers / 1024
    return [f"memory: {plan.setting.workers} x {plan.worker_mib:.0f} MiB = {total:.1f} GiB ({how})"]


def _say(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
