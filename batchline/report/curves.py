"""What the simulator says where figures need many points: latency along a range of rates, p99 over a map of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchline.errors import BatchlineError
from batchline.measured import Measured
from batchline.queueing import Service, Setting
from batchline.service import model_of
from batchline.simulate import simulate, simulate_times

ARRIVALS = 30_000
WARM_UP = 0.2  # of the arrivals: a queue near capacity takes long to take its length
SEED = 1
CELL_REQUESTS = 20_000


@dataclass(frozen=True)
class CurvePoint:
    """One setting at one rate. Milliseconds, of answered requests; refused_share is of all."""

    rate_per_s: float
    p50_ms: float
    p99_ms: float
    wait_ms: float
    refused_share: float


def along(service: Service, setting: Setting, rates_per_s: Sequence[float], arrivals: int = ARRIVALS, seed: int = SEED) -> list[CurvePoint]:
    """Latency at each rate, past capacity too: there the queue is full, and what it does not hold is refused.

    All rates see the same arrivals, only closer together, so that the curve is as smooth as what it shows.
    """
    chance = np.random.default_rng(seed)
    ticks = np.cumsum(chance.exponential(1.0, arrivals))
    front = np.atleast_1d(np.asarray(service.front_end_ms, dtype=float))
    front_ms = chance.choice(front, arrivals)
    return [_point(service, setting, rate, ticks, front_ms, seed) for rate in rates_per_s]


def _point(service: Service, setting: Setting, rate_per_s: float, ticks: np.ndarray, front_ms: np.ndarray, seed: int) -> CurvePoint:  # type: ignore[type-arg]
    trace = simulate_times(service, setting, ticks / rate_per_s, seed=seed)
    counted = slice(int(WARM_UP * len(ticks)), None)
    latency_ms = (trace.done_ms - trace.arrival_ms + trace.more_ms + front_ms)[counted]
    wait_ms = (trace.dispatch_ms - trace.arrival_ms)[counted]
    answered = trace.batch[counted] >= 0
    p50, p99 = np.percentile(latency_ms[answered], (50, 99))
    return CurvePoint(rate_per_s, float(p50), float(p99), float(wait_ms[answered].mean()), float(1 - answered.mean()))


@dataclass(frozen=True)
class Cell:
    """A setting on the map; None where it is not stable at the rate."""

    batch_size: int
    max_batch_delay_ms: int
    p99_ms: float | None


def over(
    service: Service, workers: int, rate_per_s: float, batch_sizes: Sequence[int], delays_ms: Sequence[int], requests: int = CELL_REQUESTS
) -> list[Cell]:
    """p99 of every batch size with every delay, at one rate; the same arrivals for all."""
    cells = []
    for size in batch_sizes:
        for delay_ms in delays_ms:
            found = simulate(service, Setting(size, delay_ms, workers), rate_per_s, requests=requests, seed=SEED, replications=5)
            cells.append(Cell(size, delay_ms, found.latency_ms.p99 if found.stable else None))
    return cells


def service_of(measured: Measured | None) -> Service | None:
    """What a batch costs; None where the measurement does not say."""
    try:
        return model_of(measured).services[1] if measured else None
    except BatchlineError:
        return None
