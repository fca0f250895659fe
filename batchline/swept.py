"""The file of a sweep: a model under several settings at one rate after another, every latency in it; and what it says.

Latencies are of requests that came after the settling time of their step, in the order they were due. A request that was refused
(503) has none: where more than 1% were, the 99th percentile of all requests is beyond any bound, whatever the answered ones say.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from batchline.measured import STRICT, Amount, Count
from batchline.runfile import Machine, machine, put, versions
from batchline.summary import quantile_interval
from batchline.typed import read_typed

FORMAT = "batchline-sweep/1"
Whole = Annotated[int, Field(ge=0, le=10**9)]
Milliseconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class Candidate:
    """A setting with a name, such as "default" or "tuned"."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Annotated[str, Field(pattern=r"[A-Za-z0-9_]{1,32}")]
    batch_size: Count
    max_batch_delay_ms: Count
    workers: Count


@dataclass(frozen=True)
class SweepPlan:
    """What is offered, fixed before the first request is counted.

    Attributes:
        candidates: the settings that take turns.
        loads: (candidate's name, requests a second), each visited `visits` times.
        visits: how often; each visit has its own random order of the rates and its own arrivals, the same for all candidates.
        step_s: seconds of a step that count; longer at low rates, so that `least_requests` come.
        settle_s: seconds before them that do not: the queue takes its length.
        threads: of every worker.
        queue_limit: requests that may wait; one more is answered 503.
        target_p99_ms: what is to be kept; None where nothing is.
        seed: of arrivals and order.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    candidates: tuple[Candidate, ...]
    loads: tuple[tuple[str, Amount], ...]
    visits: Count
    step_s: Amount
    least_requests: Count
    settle_s: Milliseconds
    threads: Count
    queue_limit: Count
    target_p99_ms: Amount | None
    seed: int

    def seconds(self, rate_per_s: float) -> float:
        """How long one step counts; no more than four times `step_s`."""
        return min(max(self.step_s, self.least_requests / rate_per_s), 4 * self.step_s)


@dataclass(frozen=True)
class Step:
    """One candidate at one rate once.

    Attributes:
        candidate: its name.
        rate_per_s: Poisson arrivals a second.
        latency_ms: of those answered with 2xx, from when they were due to their last byte.
        refused: answered 503.
        failed: answered otherwise, or not at all.
        mean_batch_size: over answered requests; None where the handler does not say.
        stages_ms: mean of each stage that the answers told.
        invalid: why the generator is to blame; empty for a good step.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    candidate: str
    rate_per_s: Amount
    visit: Whole
    latency_ms: list[Milliseconds]
    refused: Whole
    failed: Whole
    mean_batch_size: float | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    invalid: list[str] = field(default_factory=list)


@dataclass
class Sweep:
    """One file; it grows while it is measured.

    Attributes:
        capacity_per_s: by candidate, requests answered a second when there were always enough.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: str
    model_version: str
    archive_sha256: str
    plan: SweepPlan
    machine: Machine = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    complete: bool = False
    capacity_per_s: dict[str, Amount] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """One candidate at one rate, all visits together. Latencies are milliseconds, of answered requests.

    Attributes:
        requests: that came, refused ones too.
        p50_interval_ms, p99_interval_ms: 95%, from order statistics (summary.quantile_interval); None where there were too few.
        visits_p99_ms: of each visit by itself: neighbours in a queue are alike, so visits differ by more than the interval.
        refused_share: of all requests, those without a good answer.
        invalid: what the generator has to say against itself.
    """

    candidate: str
    rate_per_s: float
    requests: int
    p50_ms: float
    p99_ms: float
    p50_interval_ms: tuple[float, float] | None
    p99_interval_ms: tuple[float, float] | None
    visits_p99_ms: tuple[float, ...]
    refused_share: float
    mean_batch_size: float | None
    invalid: tuple[str, ...]

    def keeps(self, target_p99_ms: float) -> bool:
        """Whether at most 1% of all requests, refused ones counted in, took longer."""
        return self.refused_share <= 0.01 and self.p99_ms <= target_p99_ms


SWEEP = TypeAdapter(Sweep)


def points(sweep: Sweep, candidate: str) -> list[Point]:
    """What the steps of a candidate say, lowest rate first; a rate at which nothing was answered is left out."""
    rates: dict[float, list[Step]] = {}
    for step in sweep.steps:
        if step.candidate == candidate:
            rates.setdefault(step.rate_per_s, []).append(step)
    return [_point(rates[rate]) for rate in sorted(rates) if any(step.latency_ms for step in rates[rate])]


def _point(steps: list[Step]) -> Point:
    latencies = np.concatenate([step.latency_ms for step in steps])
    lost = sum(step.refused + step.failed for step in steps)
    told = [(step.mean_batch_size, len(step.latency_ms)) for step in steps if step.mean_batch_size and step.latency_ms]
    return Point(
        candidate=steps[0].candidate,
        rate_per_s=steps[0].rate_per_s,
        requests=len(latencies) + lost,
        p50_ms=float(np.percentile(latencies, 50)),
        p99_ms=float(np.percentile(latencies, 99)),
        p50_interval_ms=quantile_interval(latencies, 0.5),
        p99_interval_ms=quantile_interval(latencies, 0.99),
        visits_p99_ms=tuple(float(np.percentile(step.latency_ms, 99)) for step in steps if step.latency_ms),
        refused_share=lost / (len(latencies) + lost),
        mean_batch_size=sum(size * count for size, count in told) / sum(count for _, count in told) if told else None,
        invalid=tuple(dict.fromkeys(reason for step in steps for reason in step.invalid)),
    )


def largest_kept(sweep: Sweep, candidate: str, target_p99_ms: float) -> Point | None:
    """The highest rate up to which every lower one kept the target too; None where the lowest did not."""
    kept = None
    outran = [step.rate_per_s for step in sweep.steps if step.candidate == candidate and not step.latency_ms]
    for point in points(sweep, candidate):
        if not point.keeps(target_p99_ms) or point.rate_per_s >= min(outran, default=math.inf):
            break
        kept = point
    return kept


def write_sweep(path: Path, sweep: Sweep) -> None:
    """Writes the file, whole or not at all."""
    put(path, {"format": FORMAT, "written_unix_s": time.time(), **asdict(sweep)})


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep's file.

    Raises:
        MeasureError: no such file, cut, of another format or version, or with values that no sweep writes.
    """
    return read_typed(path, FORMAT, SWEEP, "batchline sweep MODEL")
