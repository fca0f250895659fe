"""A server's queue on paper: what latency, wait, batches and throughput a setting gives at a rate, before any server runs it.

Requests arrive, wait in one queue in the order of their arrival, leave it in batches, and a batch of B occupies a worker for T(B).
Every event is simulated by TorchServe's rule, read in its source (Model.pollBatch of 0.12.0), or by Triton's; kernel.py holds both.
docs/simulate.md says what is in the model and what is not.

Time is simulated, so a run depends on its seed alone. A simulation is several independent replications, each with a warm-up that is
cut off; every figure has a 95% interval, Student's t over the replications (Law, Simulation Modeling and Analysis, 9.5). Two settings
simulated with one seed get the same arrivals (common random numbers; Law, 11.2), so that they differ by what they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from batchline.errors import SimulateError
from batchline.queueing import (
    UNLIMITED,
    Arrivals,
    Server,
    Service,
    Setting,
    capacity_per_s,
    check_both,
    check_count,
    known_arrivals,
    known_server,
)
from batchline.simulated import ENDLESS, Floats, Interval, Ints, Simulated, Spread, Trace

CONFIDENCE = 0.95
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
LEAST_REQUESTS = 100
MOST_REQUESTS = 10**9
SLOWEST_PER_S, FASTEST_PER_S = 1e-6, 1e9
LONGEST_WARM_UP = 10.0  # times what is counted
GROWN, GROWN_T = 0.2, 5.0  # from a run's first third to its last: so much, and by so many standard errors, is no noise


def simulate(
    service: Service,
    setting: Setting,
    rate_per_s: float,
    *,
    requests: int = 200_000,
    seed: int = 1,
    arrivals: Arrivals = "poisson",
    server: Server = "torchserve",
    replications: int = 10,
    clock_ms: float = 1.0,
) -> Simulated:
    """Latency, wait, batches, throughput and utilisation of a setting at a rate.

    Memory does not grow with `requests`: latencies go into histograms with 1024 bins an octave, so a quantile is right to 0.1%.

    Args:
        service: what a batch costs.
        setting: how the model is served.
        rate_per_s: requests a second.
        requests: that are counted, over all replications.
        seed: the same gives the same figures, and the same arrivals to every setting.
        arrivals: poisson, or constant: equal gaps, the first request somewhere in the first gap.
        server: whose batching rule.
        replications: independent runs that share the requests; the intervals come from them.
        clock_ms: grain of the clock by which TorchServe takes time off the batch delay (currentTimeMillis); 0 is an ideal clock.

    Raises:
        SimulateError: values that cannot be.
    """
    check_both(service, setting)
    _check_run(rate_per_s, requests, arrivals, server, replications, seed, clock_ms)
    most_per_s, each = capacity_per_s(service, setting), math.ceil(requests / replications)
    run = _Run(service, setting, rate_per_s, each, 0, arrivals, server, clock_ms)
    if rate_per_s >= most_per_s:
        return _overloaded(run, most_per_s, replications)
    run = run._replace(warm_up=_warm_up(service, setting, rate_per_s / most_per_s, server))
    if run.warm_up > LONGEST_WARM_UP * each:
        return _unsettled(run, most_per_s, replications)
    runs = [_replicate(run, chance) for chance in np.random.SeedSequence(seed).spawn(replications)]
    if any(found.overflowed for found in runs) or _grew(runs):
        return _unsettled(run, most_per_s, replications)
    return _summary(run, runs, most_per_s)


def simulate_times(
    service: Service,
    setting: Setting,
    times_s: Sequence[float] | Floats,
    *,
    seed: int = 1,
    server: Server = "torchserve",
    clock_ms: float = 1.0,
) -> Trace:
    """Every request of given arrivals, from an empty queue until the last is done. It may take more than can be done.

    Args:
        service: what a batch costs.
        setting: how the model is served.
        times_s: arrivals in seconds, ascending from 0.
        seed: of T's noise.
        server: whose batching rule.
        clock_ms: as in simulate().

    Raises:
        SimulateError: values that cannot be, or times that do not ascend.
    """
    check_both(service, setting)
    _check_run(1.0, LEAST_REQUESTS, "poisson", server, 2, seed, clock_ms)
    times_ms = np.asarray(times_s, dtype=np.float64) * 1e3
    if times_ms.ndim != 1 or not np.all(np.isfinite(times_ms)) or np.any(times_ms < 0) or np.any(np.diff(times_ms) < 0):
        raise SimulateError("arrival times must be seconds from 0 up, in ascending order.")
    run = _Run(service, setting, 1.0, len(times_ms), 0, "poisson", server, clock_ms)
    return _follow(run, times_ms, np.random.SeedSequence(seed))


class _Run(NamedTuple):
    """What all replications share; `requests` and `warm_up` are of each."""

    service: Service
    setting: Setting
    rate_per_s: float
    requests: int
    warm_up: int
    arrivals: Arrivals
    server: Server
    clock_ms: float


class _Replication(NamedTuple):
    """One run: its histograms, and its figures in the order of the fields of Simulated that they become."""

    latency: Ints
    wait: Ints
    latency_ms: float
    wait_ms: float
    gathering_ms: float
    rested_ms: float
    mean_batch_size: float
    throughput_per_s: float
    utilisation: float
    rejected: int
    mean_in_system: float
    growth: float
    overflowed: bool


def _warm_up(service: Service, setting: Setting, load: float, server: str) -> int:
    """Requests until the empty start is forgotten: three relaxation times of the queue's length as a Brownian motion.

    Its variance is 1 an arrival and what the noise of T adds, its drift 1/ρ - 1, so one is 2ρ²/(1 - ρ)² arrivals; between an empty queue
    and a limit of L it is 2L²/π² at most (Gardiner, Handbook of Stochastic Methods).
    """
    variance = 1 + (float(np.var(service.noise)) if service.noise else 0.0)
    room = setting.workers * setting.batch_size
    times = [2 * variance * (load / (1 - load)) ** 2]
    if setting.queue_limit and server == "torchserve":
        times.append(2 * (setting.queue_limit + room) ** 2 / math.pi**2)
    return math.ceil(max(100, 4 * room, 3 * min(times)))


def _rules(run: _Run, times_ms: Floats) -> Any:
    from batchline import kernel

    setting, service, triton = run.setting, run.service, run.server == "triton"
    front = service.front_end_ms if isinstance(service.front_end_ms, tuple) else (service.front_end_ms,)
    return kernel.Rules(
        batch_ms=np.array(service.batch_ms[: setting.batch_size], dtype=np.float64),
        pace=np.array([1.0, *(1 / service.slow(busy, setting.batch_size) for busy in range(1, setting.workers + 1))], dtype=np.float64),
        noise=np.array(service.noise or (1.0,), dtype=np.float64),
        front_end_ms=np.array(front, dtype=np.float64),
        rested=np.array(((0.0, 0.0, 0.0), *service.rested), dtype=np.float64),
        times_ms=times_ms,
        batch_size=setting.batch_size,
        workers=setting.workers,
        delay_ms=float(setting.max_batch_delay_ms),
        clock_ms=float(run.clock_ms),
        queue_limit=0 if triton else setting.queue_limit or 0,
        triton=triton,
        poisson=run.arrivals == "poisson",
        gap_ms=1e3 / run.rate_per_s,
        first=run.warm_up,
        last=run.warm_up + run.requests,
    )


def _space(run: _Run, rules: Any, recorded: int) -> Any:
    from batchline import kernel

    workers, size = run.setting.workers, run.setting.batch_size
    longest = (rules.queue_limit + size if rules.queue_limit else recorded or UNLIMITED) + 1
    ring = 1 << longest.bit_length()
    return kernel.Space(
        queue_ms=np.empty(ring),
        queue_id=np.empty(ring, dtype=np.int64),
        jobs_ms=np.empty((workers, size)),
        jobs_id=np.empty((workers, size), dtype=np.int64),
        sizes=np.zeros(workers, dtype=np.int64),
        ends_v=np.empty(workers),
        ends_of=np.empty(workers, dtype=np.int64),
        idle=np.empty(workers, dtype=np.int64),
        since=np.zeros(workers),
        more_ms=np.zeros(workers),
        latency=np.zeros(kernel.BINS, dtype=np.int64),
        wait=np.zeros(kernel.BINS, dtype=np.int64),
        third_ms=np.zeros(3),
        thirds=np.zeros(3, dtype=np.int64),
        request_ms=np.full((recorded, 4), np.nan),
        request_of=np.full((recorded, 2), -1, dtype=np.int64),
    )


def _events(run: _Run, times_ms: Floats, seed: np.random.SeedSequence) -> tuple[Any, Any]:
    """Runs the event loop once; its sums and its space."""
    from batchline import kernel  # numba takes half a second to import, and a Service is of use without it

    rules = _rules(run, times_ms)
    space = _space(run, rules, len(times_ms))
    now = np.zeros(1, dtype=kernel.NOW)[0]
    kernel.run(now, rules, space, kernel.Chances(*(np.random.Generator(np.random.PCG64(stream)) for stream in seed.spawn(2))))
    return now, space


def _replicate(run: _Run, seed: np.random.SeedSequence) -> _Replication:
    now, space = _events(run, np.empty(0), seed)
    answered = max(1, int(space.thirds.sum()))
    left = answered + (run.requests - int(now["rejected"]) - answered)
    window_ms = float(now["closed"] - now["opened"])
    first, last = (space.third_ms / np.maximum(space.thirds, 1))[[0, 2]]
    return _Replication(
        latency=space.latency,
        wait=space.wait,
        latency_ms=float(space.third_ms.sum()) / answered,
        wait_ms=float(now["wait_ms"]) / left,
        gathering_ms=float(now["gathering_ms"]) / left,
        rested_ms=float(now["rested_ms"]) / answered,
        mean_batch_size=int(now["dispatched"]) / max(1, int(now["dispatched_batches"])),
        throughput_per_s=int(now["answered"]) / window_ms * 1e3,
        utilisation=float(now["busy_ms"]) / window_ms / run.setting.workers,
        rejected=int(now["rejected"]),
        mean_in_system=float(now["inside_ms"]) / window_ms,
        growth=float(last / first - 1) if first else 0.0,
        overflowed=bool(now["overflowed"]),
    )


def _follow(run: _Run, times_ms: Floats, seed: np.random.SeedSequence) -> Trace:
    if not len(times_ms):
        raise SimulateError("there is no arrival time to simulate.")
    now, space = _events(run, times_ms, seed)
    picked, dispatched, done, more = (np.ascontiguousarray(column) for column in space.request_ms.T)
    batch, worker = (np.ascontiguousarray(column) for column in space.request_of.T)
    return Trace(times_ms, picked, dispatched, done, more, batch, worker, float(now["inside_ms"]), float(now["busy_ms"]))


def _grew(runs: Sequence[_Replication]) -> bool:
    """Whether latency rose from the first third to the last in all replications alike, by more than chance does."""
    growth = np.array([found.growth for found in runs])
    error = float(growth.std(ddof=1)) / math.sqrt(len(growth))
    return bool(growth.mean() > GROWN and growth.mean() > GROWN_T * error)


def _overloaded(run: _Run, most_per_s: float, replications: int) -> Simulated:
    setting = run.setting
    note = (
        f"{run.rate_per_s:g} requests/s are more than {_counted(setting.workers, 'worker')} of batch size {setting.batch_size} can do, "
        f"{most_per_s:.4g}/s: "
    )
    refused = 0.0
    if setting.queue_limit and run.server == "torchserve":
        refused = 1 - most_per_s / run.rate_per_s
        note += f"the queue would be full at {setting.queue_limit} and TorchServe answer 503 to {refused:.1%} of the requests."
    else:
        note += "the queue would grow without end."
    return _without_numbers(run, most_per_s, replications, round(refused * run.requests * replications), note)


def _unsettled(run: _Run, most_per_s: float, replications: int) -> Simulated:
    note = (
        f"{run.rate_per_s:g} requests/s are {run.rate_per_s / most_per_s:.4%} of the capacity of {most_per_s:.4g}/s: the queue still "
        f"grows when {_counted(run.requests * replications, 'request')} are done; simulate more, or a lower rate."
    )
    return _without_numbers(run, most_per_s, replications, 0, note)


def _without_numbers(run: _Run, most_per_s: float, replications: int, rejected: int, note: str) -> Simulated:
    return Simulated(
        stable=False,
        capacity_per_s=most_per_s,
        latency_ms=ENDLESS,
        queue_wait_ms=ENDLESS,
        gathering_ms=0.0,
        front_end_ms=float(np.mean(run.service.front_end_ms)),
        mean_batch_size=float(run.setting.batch_size),
        throughput_per_s=most_per_s,
        utilisation=1.0,
        rejected=rejected,
        mean_in_system=math.inf,
        requests=run.requests * replications,
        replications=replications,
        warm_up=run.warm_up,
        note=note,
    )


def _summary(run: _Run, runs: Sequence[_Replication], most_per_s: float) -> Simulated:
    rejected = sum(found.rejected for found in runs)
    counted = run.requests * len(runs)
    latency, latency_intervals = _spread("latency_ms", [found.latency for found in runs], [found.latency_ms for found in runs])
    wait, wait_intervals = _spread("queue_wait_ms", [found.wait for found in runs], [found.wait_ms for found in runs])
    names = ("gathering_ms", "mean_batch_size", "throughput_per_s", "utilisation", "mean_in_system")
    each = {name: [float(getattr(found, name)) for found in runs] for name in names}
    intervals = {name: _around(float(np.mean(values)), values) for name, values in each.items()}
    refused = _around(rejected, [float(found.rejected) * len(runs) for found in runs])
    return Simulated(
        stable=True,
        capacity_per_s=most_per_s,
        latency_ms=latency,
        queue_wait_ms=wait,
        front_end_ms=float(np.mean(run.service.front_end_ms)) + float(np.mean([found.rested_ms for found in runs])),
        rejected=rejected,
        requests=counted,
        replications=len(runs),
        warm_up=run.warm_up,
        intervals={**latency_intervals, **wait_intervals, **intervals, "rejected": refused},
        note=f"{rejected / counted:.2%} of the requests found the queue full and were answered 503." if rejected else "",
        **{name: float(np.mean(values)) for name, values in each.items()},
    )


def _spread(name: str, bins: Sequence[Ints], means: Sequence[float]) -> tuple[Spread, dict[str, Interval]]:
    """Mean and quantiles of all replications together, and their intervals from each by itself."""
    whole = np.sum(bins, axis=0)
    used = np.flatnonzero(whole)
    begin, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)  # few of all bins: looking at the rest would take longest
    each = np.array([_quantiles(counts[begin:end], begin) for counts in bins])
    centers = {"mean": float(np.mean(means)), **dict(zip(QUANTILES, map(float, _quantiles(whole[begin:end], begin)), strict=True))}
    values = {"mean": means, **dict(zip(QUANTILES, each.T, strict=True))}
    return Spread(**centers), {f"{name}.{figure}": _around(center, values[figure]) for figure, center in centers.items()}


def _quantiles(counts: Ints, first: int) -> Floats:
    """QUANTILES in milliseconds of a histogram that begins at bin `first`: on a straight line within a bin."""
    from batchline import kernel

    below = np.concatenate(([0], np.cumsum(counts)))
    wanted = np.array(tuple(QUANTILES.values())) * below[-1]
    place = (np.searchsorted(below, wanted, side="left") - 1).clip(0, len(counts) - 1)
    begin, end = kernel.edges_ms(first + place), kernel.edges_ms(first + place + 1)
    within = (wanted - below[place]) / np.maximum(counts[place], 1)
    return np.where(first + place > 0, begin + within * (end - begin), 0.0)


def _around(center: float, values: Sequence[float] | Floats) -> Interval:
    """Student's t over the replications, not below 0."""
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * spread
    return max(0.0, center - reach), center + reach


def _check_run(rate_per_s: float, requests: int, arrivals: str, server: str, replications: int, seed: int, clock_ms: float) -> None:
    if not SLOWEST_PER_S <= rate_per_s <= FASTEST_PER_S:
        raise SimulateError(f"a rate is {SLOWEST_PER_S:g} to {FASTEST_PER_S:g} requests a second, not {rate_per_s:g}.")
    check_count("replications", replications, 1000, least=2)
    check_count("requests", requests, MOST_REQUESTS, least=max(LEAST_REQUESTS, 10 * replications))
    known_arrivals(arrivals)
    known_server(server)
    if seed < 0:
        raise SimulateError(f"a seed is a whole number from 0 up, not {seed}.")
    if not 0 <= clock_ms <= 1000:
        raise SimulateError(f"the clock's grain is milliseconds from 0 to 1000, not {clock_ms:g}.")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
