"""What a plan is asked for, what it may use, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from batchline.errors import MeasureError
from batchline.queueing import Server, Setting

Goal = Literal["p99", "max-rate", "cheapest"]
Binding = Literal["latency", "cores", "memory", "none"]
Interval = tuple[float, float]
QUEUE_LIMIT = 100  # TorchServe's job_queue_size
LONGEST_MS = 3_600_000.0
HIGHEST_PER_S = 1e9


class PlanError(MeasureError):
    """A target or limits that no plan can be made for."""


@dataclass(frozen=True)
class Target:
    """What one model must keep.

    Attributes:
        p99_ms: 99 of 100 answers come within it.
        rate_per_s: Poisson arrivals; None where the largest that keeps p99_ms is wanted.
        goal: of the settings that keep it: the one with the lowest p99, with the largest rate, or with the fewest workers.
    """

    p99_ms: float
    rate_per_s: float | None = None
    goal: Goal = "p99"

    def __post_init__(self) -> None:
        _must_be("--p99-ms", self.p99_ms, LONGEST_MS, "milliseconds")
        if self.rate_per_s is not None:
            _must_be("--rate-per-s", self.rate_per_s, HIGHEST_PER_S, "requests a second")
        if (self.rate_per_s is None) != (self.goal == "max-rate"):
            raise PlanError("a plan needs --rate-per-s, or --max-rate to find the largest that keeps p99; one of the two.")


@dataclass(frozen=True)
class Limits:
    """What a plan may use.

    Attributes:
        memory_mib: for all workers together.
        gpus: 0: workers run on the cores; else workers are dealt evenly over so many GPUs.
        other_workers: workers of models that the same TorchServe also has: the handlers share the cores' threads with them.
        queue_limit: job_queue_size; one more waiting request is answered 503.
        headroom: part of a machine's capacity that is kept free when machines are counted, 0 to below 1.
        server: torchserve, or triton with its own batching rule.
    """

    memory_mib: float = math.inf
    gpus: int = 0
    other_workers: int = 0
    queue_limit: int = QUEUE_LIMIT
    headroom: float = 0.2
    server: Server = "torchserve"

    def __post_init__(self) -> None:
        if not self.memory_mib > 0:
            raise PlanError(f"--memory-gib must be above 0, not {self.memory_mib / 1024:g}.")
        if not 0 <= self.gpus <= 1024:
            raise PlanError(f"--gpus must be 0 to 1024, not {self.gpus}.")
        if not 0 <= self.headroom < 1:
            raise PlanError(f"--headroom is the part of a machine that stays free, 0 to below 1, not {self.headroom:g}.")


@dataclass(frozen=True)
class Predicted:
    """What the simulation says of a setting at a rate. Milliseconds are from a request's send to its last byte.

    Attributes:
        utilisation: busy time of the workers, 0 to 1.
        rejected: part of the requests answered 503.
        intervals: name of a figure -> its 95% interval.
    """

    rate_per_s: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    throughput_per_s: float
    utilisation: float
    mean_batch_size: float
    queue_wait_p50_ms: float
    queue_wait_p99_ms: float
    rejected: float
    intervals: dict[str, Interval]


@dataclass(frozen=True)
class Choice:
    """A setting and what it is predicted to do; None where it is not stable at the rate."""

    setting: Setting
    predicted: Predicted | None


@dataclass(frozen=True)
class Replicas:
    """Machines like the measured one for a rate.

    Attributes:
        machines: with `utilisation` of each one's capacity at most in use.
        with_one_spare: one more, so that the rest carry the rate when one fails.
        capacity_per_s: of one machine within the target, as simulated.
        utilisation: of that capacity, each machine, with `machines`.
        headroom: that was asked for.
        rate_each_per_s: requests a second, each.
        concurrency_target: requests in a machine at once at that rate, Little's law: what autoscalers ask for.
    """

    machines: int
    with_one_spare: int
    capacity_per_s: float
    utilisation: float
    headroom: float
    rate_each_per_s: float
    concurrency_target: float


@dataclass(frozen=True)
class Plan:
    """The settings of one model, and what they promise.

    Attributes:
        setting: batch_size, max_batch_delay_ms, workers (on GPUs: of all of them), threads, queue_limit.
        predicted: at the target's rate, or at the largest that keeps p99; None where no setting is stable.
        feasible: the upper end of p99's interval is within the target, and no more than one in a thousand is rejected.
        max_rate_per_s: the largest rate at which this setting keeps p99; 0 where there is none.
        binding: what stands between this and more: latency, cores, memory, or none where there is room.
        reason: why this setting, in plain words.
        runner_up: the next best.
        remedies: what would have to change, each a sentence; empty where feasible.
        needs: what config.properties cannot say and must be done beside it.
        replicas: where a rate is given and one machine can keep p99 at all.
        worker_mib, worker_mib_measured: as the model's.
        simulated: settings that were simulated.
    """

    model: str
    model_version: str
    target: Target
    setting: Setting
    predicted: Predicted | None
    feasible: bool
    max_rate_per_s: float
    binding: Binding
    reason: str
    runner_up: Choice | None = None
    remedies: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    replicas: Replicas | None = None
    worker_mib: float = 0.0
    worker_mib_measured: bool = False
    simulated: int = 0
    warnings: tuple[str, ...] = field(default=())


def _must_be(option: str, value: float, most: float, what: str) -> None:
    if not 0 < value <= most:
        raise PlanError(f"{option} must be {what}, above 0 and at most {most:g}, not {value:g}.")
