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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from batchline.errors import BatchlineError

Server = Literal["torchserve", "triton"]
Arrivals = Literal["poisson", "constant"]
Interval = tuple[float, float]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

SERVERS: tuple[Server, ...] = ("torchserve", "triton")
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant")
CONFIDENCE = 0.95
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
QUEUE_LIMIT = 100  # TorchServe's job_queue_size
UNLIMITED = 1 << 20  # waiting requests of a queue without a limit; one that is longer never comes back
LEAST_REQUESTS = 100
MOST_REQUESTS = 10**9
MOST_WORKERS, MOST_BATCH, MOST_JOBS = 10_000, 100_000, 1_000_000
SHORTEST_MS, LONGEST_MS = 1e-4, 1e8  # of a batch; finer and coarser than the histogram of latencies holds
SLOWEST_PER_S, FASTEST_PER_S = 1e-6, 1e9
LONGEST_WARM_UP = 10.0  # times what is counted
GROWN, GROWN_T = 0.2, 5.0  # from a run's first third to its last: so much, and by so many standard errors, is no noise


class SimulateError(BatchlineError):
    """A queue that cannot be simulated."""


@dataclass(frozen=True)
class Service:
    """What a batch costs on one machine.

    Attributes:
        batch_ms: T(1), T(2), .. T(b_max): milliseconds of a batch on the only busy worker.
        slowdown: how many times as long a batch takes while n = 1, 2, .. workers are busy. Beyond its end it grows in proportion: with n
            workers last·n/len. Empty: workers do not disturb each other.
        noise: measured T(B) / median, one of which is drawn for every batch. Their mean counts as it is. Empty: none.
        front_end_ms: what a request takes outside queue and worker (network, reading, answering), added to its latency; or a sample of
            it, one of which is drawn for every request.
    """

    batch_ms: tuple[float, ...]
    slowdown: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()
    front_end_ms: float | tuple[float, ...] = 0.0

    @classmethod
    def line(
        cls,
        c_ms: float,
        m_ms: float,
        most: int,
        slowdown: Sequence[float] = (),
        noise: Sequence[float] = (),
        front_end_ms: float | tuple[float, ...] = 0.0,
    ) -> Service:
        """T(B) = c + B·m for B = 1 .. most.

        Raises:
            SimulateError: a negative or infinite c or m, or no batch size.
        """
        if not (0 <= c_ms < LONGEST_MS and 0 <= m_ms < LONGEST_MS and c_ms + m_ms > 0):
            raise SimulateError(f"c and m must be milliseconds from 0 up, not both 0; here are {c_ms:g} and {m_ms:g}.")
        _check_count("batch size", most, MOST_BATCH)
        return cls(tuple(c_ms + m_ms * size for size in range(1, most + 1)), tuple(slowdown), tuple(noise), front_end_ms)

    def slow(self, busy: int) -> float:
        """How many times as long a batch takes while so many workers are busy, 1 or more of them."""
        if not self.slowdown:
            return 1.0
        known = len(self.slowdown)
        return self.slowdown[busy - 1] if busy <= known else self.slowdown[-1] * busy / known

    def check(self) -> None:
        """Raises SimulateError where a value cannot be."""
        for ms in self.batch_ms:
            if not SHORTEST_MS <= ms <= LONGEST_MS:
                raise SimulateError(f"a batch takes {SHORTEST_MS:g} to {LONGEST_MS:g} ms, not {ms:g}.")
        for what, values in (("slowdown", self.slowdown), ("noise", self.noise)):
            if not all(0 < value < 1e6 for value in values):
                raise SimulateError(f"every {what} must be a positive factor; here is {next(v for v in values if not 0 < v < 1e6):g}.")
        front = self.front_end_ms if isinstance(self.front_end_ms, tuple) else (self.front_end_ms,)
        if not front or not all(0 <= ms < LONGEST_MS for ms in front):
            raise SimulateError(f"the front end's time is milliseconds from 0 up, not {self.front_end_ms!r}.")


@dataclass(frozen=True)
class Setting:
    """How a model is served.

    Attributes:
        batch_size: the most requests in a batch.
        max_batch_delay_ms: how long a batch may be waited for. 0 means here "take what is waiting", without a clock; TorchServe itself
            caps batches at 2 with 0, and comes near to this with 1.
        workers: of the model.
        threads: of a worker; the Service is one for so many, nothing else reads it here.
        queue_limit: requests that may wait (job_queue_size); one more is answered 503. None or 0: no limit. Triton has none.
    """

    batch_size: int
    max_batch_delay_ms: float
    workers: int
    threads: int = 1
    queue_limit: int | None = QUEUE_LIMIT

    def check(self) -> None:
        """Raises SimulateError where a value cannot be."""
        _check_count("batch size", self.batch_size, MOST_BATCH)
        _check_count("workers", self.workers, MOST_WORKERS)
        if self.batch_size * self.workers > MOST_JOBS:
            raise SimulateError(f"{self.workers} workers of batch size {self.batch_size} are more than {MOST_JOBS} requests at once.")
        if not 0 <= self.max_batch_delay_ms <= LONGEST_MS:
            raise SimulateError(f"the batch delay is milliseconds from 0 to {LONGEST_MS:g}, not {self.max_batch_delay_ms:g}.")
        if self.queue_limit:
            _check_count("queue limit", self.queue_limit, UNLIMITED // 2)


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
    batch: Ints
    worker: Ints
    in_system_ms: float
    busy_ms: float

    @property
    def rejected(self) -> int:
        """Requests answered 503."""
        return int(np.sum(self.batch < 0))


def capacity_per_s(service: Service, setting: Setting) -> float:
    """N·b / T(b) with every worker busy and T's noise at its mean: what is answered a second when the queue never runs empty.

    Raises:
        SimulateError: values that cannot be.
    """
    _check(service, setting)
    noise = float(np.mean(service.noise)) if service.noise else 1.0
    batch_ms = service.batch_ms[setting.batch_size - 1] * service.slow(setting.workers) * noise
    return setting.workers * setting.batch_size / batch_ms * 1e3


def on_cores(service: Service, cores: int) -> Service:
    """The same service by workers of one thread that share so many cores: beyond them each gets a part; 0 for a core to each.

    Raises:
        SimulateError: a number of cores that cannot be.
    """
    _check_count("cores", cores, MOST_WORKERS, least=0)
    return replace(service, slowdown=(1.0,) * cores)


def known_server(name: str) -> Server:
    """The server of this name, or SimulateError."""
    for server in SERVERS:
        if name == server:
            return server
    raise SimulateError(f"a server is torchserve or triton, not {name!r}.")


def known_arrivals(name: str) -> Arrivals:
    """The arrivals of this name, or SimulateError."""
    for arrivals in ARRIVALS:
        if name == arrivals:
            return arrivals
    raise SimulateError(f"arrivals are poisson or constant, not {name!r}.")


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
    _check(service, setting)
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
    _check(service, setting)
    _check_run(1.0, LEAST_REQUESTS, "poisson", server, 2, seed, clock_ms)
    times_ms = np.asarray(times_s, dtype=np.float64) * 1e3
    if times_ms.ndim != 1 or not np.all(np.isfinite(times_ms)) or np.any(times_ms < 0) or np.any(np.diff(times_ms) < 0):
        raise SimulateError("arrival times must be seconds from 0 up, in ascending order.")
    run = _Run(service, setting, 1.0, len(times_ms), 0, "poisson", server, clock_ms)
    return _follow(run, times_ms, np.random.SeedSequence(seed))


def as_json(found: Simulated) -> dict[str, Any]:
    """For programs; without latencies where there are none."""
    if not found.stable:
        return {"stable": False, "capacity_per_s": found.capacity_per_s, "rejected": found.rejected, "note": found.note}
    whole = asdict(found)
    whole["intervals"] = {name: list(interval) for name, interval in found.intervals.items()}
    return whole


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
        pace=np.array([1.0, *(1 / service.slow(busy) for busy in range(1, setting.workers + 1))], dtype=np.float64),
        noise=np.array(service.noise or (1.0,), dtype=np.float64),
        front_end_ms=np.array(front, dtype=np.float64),
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
        latency=np.zeros(kernel.BINS, dtype=np.int64),
        wait=np.zeros(kernel.BINS, dtype=np.int64),
        third_ms=np.zeros(3),
        thirds=np.zeros(3, dtype=np.int64),
        request_ms=np.full((recorded, 3), np.nan),
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
    picked, dispatched, done = (np.ascontiguousarray(column) for column in space.request_ms.T)
    batch, worker = (np.ascontiguousarray(column) for column in space.request_of.T)
    return Trace(times_ms, picked, dispatched, done, batch, worker, float(now["inside_ms"]), float(now["busy_ms"]))


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
        front_end_ms=float(np.mean(run.service.front_end_ms)),
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


def _check(service: Service, setting: Setting) -> None:
    setting.check()
    if len(service.batch_ms) < setting.batch_size:
        raise SimulateError(f"batches are known up to {len(service.batch_ms)}, and batch size {setting.batch_size} was to be simulated.")
    service.check()


def _check_run(rate_per_s: float, requests: int, arrivals: str, server: str, replications: int, seed: int, clock_ms: float) -> None:
    if not SLOWEST_PER_S <= rate_per_s <= FASTEST_PER_S:
        raise SimulateError(f"a rate is {SLOWEST_PER_S:g} to {FASTEST_PER_S:g} requests a second, not {rate_per_s:g}.")
    _check_count("replications", replications, 1000, least=2)
    _check_count("requests", requests, MOST_REQUESTS, least=max(LEAST_REQUESTS, 10 * replications))
    known_arrivals(arrivals)
    known_server(server)
    if seed < 0:
        raise SimulateError(f"a seed is a whole number from 0 up, not {seed}.")
    if not 0 <= clock_ms <= 1000:
        raise SimulateError(f"the clock's grain is milliseconds from 0 to 1000, not {clock_ms:g}.")


def _check_count(what: str, value: int, most: int, least: int = 1) -> None:
    if not least <= value <= most:
        raise SimulateError(f"{what} must be a whole number from {least:,} to {most:,}, not {value:,}.")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
