"""What a simulation gives: figures with their intervals, or every request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

Interval = tuple[float, float]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Spread:
    """Milliseconds of the requests that were answered."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


ENDLESS = Spread(math.inf, math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Simulated:
    """What a setting gives at a rate.

    Attributes:
        stable: False where more arrives than can be done, or so nearly as much that the queue is still growing when all requests are
            done. Then both spreads are infinite, `note` says why, and throughput, utilisation and mean batch are those of a server that
            is always full.
        capacity_per_s: N·b / T(b), all workers busy, noise counted; requests a second.
        latency_ms: from a request's arrival to its answer, the front end's time in it.
        queue_wait_ms: from its arrival to the moment its batch leaves the queue: waiting for a worker and for company.
        gathering_ms: of the mean wait the part in which a worker was free and waited for company.
        front_end_ms: of the mean latency the front end's part.
        mean_batch_size: over batches.
        throughput_per_s: requests answered a second.
        utilisation: mean part of the workers that is busy.
        rejected: requests answered 503, of `requests`.
        mean_in_system: requests waiting or in a batch, over time: L = λ·W (Little).
        requests: that were counted, warm-ups left out.
        replications: independent runs.
        warm_up: requests at the start of each that were not counted.
        intervals: 95%, by the name of the figure: "latency_ms.p99", "queue_wait_ms.mean", "mean_batch_size", "throughput_per_s",
            "utilisation", "rejected" and so on; empty where not stable.
        note: in words, what a reader should know; "" where nothing.
    """

    stable: bool
    capacity_per_s: float
    latency_ms: Spread
    queue_wait_ms: Spread
    gathering_ms: float
    front_end_ms: float
    mean_batch_size: float
    throughput_per_s: float
    utilisation: float
    rejected: int
    mean_in_system: float
    requests: int
    replications: int
    warm_up: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Trace:
    """Every request of a list of arrivals, in their order; arrays of one length.

    Attributes:
        arrival_ms, dispatch_ms, done_ms: when it came, when its batch left the queue, when its batch was done; the front end's time
            is in none of them. NaN after the arrival for one that was answered 503.
        more_ms: what the front end took more for it because its worker had rested.
        picked_ms: when its batch began to be gathered: a worker was free, and its first request was there.
        batch: which batch, numbered from 0 in the order they left; -1 for one that was answered 503.
        worker: which worker ran it, from 0; -1 likewise.
        in_system_ms: time that all requests together spent in the system, summed up event by event and not request by request.
        busy_ms: time that all workers together were busy.
    """

    arrival_ms: Floats
    picked_ms: Floats
    dispatch_ms: Floats
    done_ms: Floats
    more_ms: Floats
    batch: Ints
    worker: Ints
    in_system_ms: float
    busy_ms: float

    @property
    def rejected(self) -> int:
        """Requests answered 503."""
        return int(np.sum(self.batch < 0))


def as_json(found: Simulated) -> dict[str, Any]:
    """For programs; without latencies where there are none."""
    if not found.stable:
        return {"stable": False, "capacity_per_s": found.capacity_per_s, "rejected": found.rejected, "note": found.note}
    whole = asdict(found)
    whole["intervals"] = {name: list(interval) for name, interval in found.intervals.items()}
    return whole
