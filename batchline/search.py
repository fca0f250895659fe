"""Which settings there are, which of them can keep a target at all, and which does best: the simulation is asked, as little as it takes.

Bounds that cannot be wrong (capacity N·b/T(b), a lone request's time, memory) sort out most settings without a simulation. The rest
race: each is simulated on few requests first, the better ones on more (successive halving; Jamieson and Talwalkar,
arXiv:1502.07943), every one on the same arrivals (common random numbers), so that differences are the settings' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from batchline.queueing import Service, Setting, slowed
from batchline.queueing import capacity_per_s as capacity
from batchline.service import Model
from batchline.simulate import simulate
from batchline.simulated import Simulated
from batchline.targets import Limits, PlanError, Predicted

FEW, MORE, MANY = 6_000, 40_000, 200_000  # requests: to sort out, to compare, to promise
RUNS = {FEW: 4, MORE: 5, MANY: 10}  # replications
KEPT_PAIRS, KEPT_FEW, KEPT_MORE = 8, 10, 4  # pairs of batch size and workers whose delays are tried; settings that go on
FULL = 0.995  # of capacity: beyond it p99 is a matter of how long one looks
REJECTED = 1e-3  # of the requests; more is no promise kept
CLOSE = 0.01  # of a rate or of p99: less is no difference
RATE_STEP = 0.004  # the largest rate is known this well
NEAR = 0.9  # of the largest rate without a delay: what comes near it may pass it with one
SLACK = 1.3  # a p99 from few requests may be off by this
DELAYS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # parts of T(b)
MOST_COUNTS = 8  # worker counts, on many cores
INTERVALS = {
    "mean_ms": "latency_ms.mean",
    "p50_ms": "latency_ms.p50",
    "p95_ms": "latency_ms.p95",
    "p99_ms": "latency_ms.p99",
    "throughput_per_s": "throughput_per_s",
    "utilisation": "utilisation",
    "mean_batch_size": "mean_batch_size",
}
Progress = Callable[[int, int, str], None]
Point = tuple[Setting, Predicted]


@dataclass
class Trials:
    """Simulates settings of one model, each question once.

    Attributes:
        model, limits, seed: of all of them.
        asked: every answer, by setting, rate and requests.
        capacities: every capacity.
    """

    model: Model
    limits: Limits
    seed: int = 1
    asked: dict[tuple[Setting, float, int], Predicted | None] = field(default_factory=dict)
    capacities: dict[Setting, float] = field(default_factory=dict)

    @property
    def simulated(self) -> int:
        """How many settings were simulated."""
        return len({setting for setting, _, _ in self.asked})

    def service(self, setting: Setting) -> Service:
        """The service of its thread count; on several GPUs a worker is slowed by those on its own only."""
        return on_gpus(self.model.services[setting.threads], self.limits.gpus)

    def capacity_per_s(self, setting: Setting) -> float:
        """N·b / T(b), with N busy workers and the mean of the noise; requests a second."""
        if setting not in self.capacities:
            self.capacities[setting] = capacity(self.service(setting), setting)
        return self.capacities[setting]

    def at(self, setting: Setting, rate_per_s: float, requests: int = MORE) -> Predicted | None:
        """What the setting does at this rate; None where it is not stable."""
        key = (setting, rate_per_s, requests)
        if key not in self.asked:
            found = None
            if rate_per_s < FULL * self.capacity_per_s(setting):
                found = predicted(ask(self.service(setting), setting, rate_per_s, requests, self.seed, self.limits), rate_per_s)
            self.asked[key] = found
        return self.asked[key]

    def keeps(self, setting: Setting, rate_per_s: float, p99_ms: float, requests: int = MORE) -> bool:
        """Whether p99 is within the target at this rate, the upper end of its interval too."""
        return keeps(self.at(setting, rate_per_s, requests), p99_ms)

    def most_per_s(self, setting: Setting, p99_ms: float, least_per_s: float = 0.0, requests: int = MORE) -> float:
        """The largest rate that keeps p99, to 0.4%; 0 where none does, or none from least_per_s up."""
        full = FULL * self.capacity_per_s(setting)
        if lone_ms(self.service(setting)) > p99_ms:
            return 0.0
        if least_per_s >= full or (least_per_s and not self.keeps(setting, least_per_s, p99_ms, requests)):
            return 0.0
        low, high = self._bracket(setting, p99_ms, least_per_s, full, requests)
        while low and high > low * (1 + RATE_STEP):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.keeps(setting, middle, p99_ms, requests) else (low, middle)
        return low

    def _bracket(self, setting: Setting, p99_ms: float, least_per_s: float, full: float, requests: int) -> tuple[float, float]:
        high = full
        for share in (0.97, 0.92, 0.85, 0.75, 0.6, 0.45, 0.3, 0.15, 0.05, 0.01):
            if full * share <= least_per_s:
                return least_per_s, high
            if self.keeps(setting, full * share, p99_ms, requests):
                return full * share, high
            high = full * share
        return least_per_s, high


def lowest_p99(
    trials: Trials, among: Sequence[Setting], rate_per_s: float, progress: Progress | None = None, last: int = MANY
) -> list[Point]:
    """Settings that are stable at a rate, lowest p99 first; the first few on many requests, by successive halving.

    Delays above 1 ms are tried only for those numbers of workers and batch sizes that do best without.

    Args:
        trials: of the model.
        among: settings.
        rate_per_s: that they are to carry.
        progress: told what is under way.
        last: requests of the last round.
    """
    hasty, patient = _by_delay(among)
    points = _compared(trials, hasty, rate_per_s, FEW, progress)
    pairs = {_pair(setting) for setting, _ in points[:KEPT_PAIRS]}
    left = [*(setting for setting, _ in points), *(setting for setting in patient if _pair(setting) in pairs)]
    for requests, kept in ((FEW, KEPT_FEW), (MORE, KEPT_MORE), (MANY, KEPT_MORE)):
        if requests > last:
            break
        points = _compared(trials, left, rate_per_s, requests, progress)
        left = [setting for setting, _ in points[:kept]]
    return points


def _by_delay(among: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Those that hardly wait for a batch, and those that do."""
    hasty = [setting for setting in among if setting.max_batch_delay_ms <= 1]
    return hasty, [setting for setting in among if setting.max_batch_delay_ms > 1]


def _pair(setting: Setting) -> tuple[int, int, int]:
    return setting.workers, setting.threads, setting.batch_size


def _compared(trials: Trials, among: Sequence[Setting], rate_per_s: float, requests: int, progress: Progress | None = None) -> list[Point]:
    """Those that are stable, lowest p99 first, those that reject too many last."""
    points, order = list[Point](), simplest(trials.model, trials.limits)
    for number, setting in enumerate(among):
        tell(progress, number, len(among), f"{words(setting)}, {requests} requests")
        if found := trials.at(setting, rate_per_s, requests):
            points.append((setting, found))
    return sorted(points, key=lambda point: (point[1].rejected > REJECTED, point[1].p99_ms, order(point[0])))


def largest_rate(trials: Trials, among: Sequence[Setting], p99_ms: float, progress: Progress | None = None) -> list[tuple[Setting, float]]:
    """Settings by the largest rate that keeps p99, largest first; only those that led at some time were followed to their end."""
    service, led = trials.service, dict[Setting, float]()
    hasty, patient = _by_delay(among)
    hasty.sort(key=lambda s: (not at_most_one_waits(service(s), s, p99_ms), -trials.capacity_per_s(s)))
    _race(trials, hasty, p99_ms, led, progress)
    near_per_s = NEAR * max(led.values(), default=0.0)
    pairs = {_pair(s): s for s in hasty if not led or may_beat(trials, s, near_per_s, p99_ms)}
    _race(trials, [s for s in patient if _pair(s) in pairs], p99_ms, led, progress)
    return sorted(led.items(), key=lambda found: -found[1])


def _race(trials: Trials, among: Sequence[Setting], p99_ms: float, led: dict[Setting, float], progress: Progress | None) -> None:
    for number, setting in enumerate(among):
        tell(progress, number, len(among), words(setting))
        best = max(led.values(), default=0.0)
        if best and not may_beat(trials, setting, best * (1 + RATE_STEP), p99_ms):
            continue
        if rate := trials.most_per_s(setting, p99_ms, best * (1 + RATE_STEP) if best else 0.0):
            led[setting] = rate


def may_beat(trials: Trials, setting: Setting, rate_per_s: float, p99_ms: float) -> bool:
    """Whether a few requests at this rate leave hope."""
    found = trials.at(setting, rate_per_s, FEW)
    return found is not None and found.p99_ms <= SLACK * p99_ms


def at_most_one_waits(service: Service, setting: Setting, p99_ms: float) -> bool:
    """The quick bound T(b)·(1 + 1/N) + D + what lies outside (queueing.md 3.8): who passes it is tried first."""
    batch_ms = service.batch_ms[setting.batch_size - 1] * service.slow(setting.workers, setting.batch_size)
    waits = setting.max_batch_delay_ms if setting.batch_size > 1 else 0.0
    return batch_ms * (1 + 1 / setting.workers) + waits + float(np.mean(service.front_end_ms)) <= p99_ms


def tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    """Progress, where somebody looks."""
    if progress:
        progress(done, total, what)


def words(setting: Setting) -> str:
    """A setting in a few words."""
    threads = f" x {setting.threads} threads" if setting.threads > 1 else ""
    workers = f"{setting.workers} worker{'s' * (setting.workers > 1)}{threads}"
    return f"{workers}, batch {setting.batch_size}, delay {setting.max_batch_delay_ms:g} ms"


def ask(service: Service, setting: Setting, rate_per_s: float, requests: int, seed: int, limits: Limits) -> Simulated:
    """One question to the simulator."""
    runs = RUNS[requests]
    return simulate(service, setting, rate_per_s, requests=requests, seed=seed, server=limits.server, replications=runs)


def predicted(found: Simulated, rate_per_s: float) -> Predicted | None:
    """The simulator's answer in a plan's words; None where the setting is not stable."""
    if not found.stable:
        return None
    arrived = found.requests or 1
    return Predicted(
        rate_per_s=float(rate_per_s),
        mean_ms=float(found.latency_ms.mean),
        p50_ms=float(found.latency_ms.p50),
        p95_ms=float(found.latency_ms.p95),
        p99_ms=float(found.latency_ms.p99),
        throughput_per_s=float(found.throughput_per_s),
        utilisation=float(found.utilisation),
        mean_batch_size=float(found.mean_batch_size),
        queue_wait_p50_ms=float(found.queue_wait_ms.p50),
        queue_wait_p99_ms=float(found.queue_wait_ms.p99),
        rejected=found.rejected / arrived,
        intervals={name: _ends(found.intervals[key]) for name, key in INTERVALS.items()},
    )


def _ends(interval: tuple[float, float]) -> tuple[float, float]:
    return float(interval[0]), float(interval[1])


def keeps(found: Predicted | None, p99_ms: float) -> bool:
    """The margin: the upper end of p99's interval is within the target."""
    return found is not None and found.intervals["p99_ms"][1] <= p99_ms and found.rejected <= REJECTED


def lone_ms(service: Service) -> float:
    """The least that any request takes, in the median."""
    return service.batch_ms[0] + float(np.mean(service.front_end_ms))


def on_gpus(service: Service, gpus: int) -> Service:
    """Workers dealt evenly over GPUs: n busy ones are ceil(n / gpus) on one."""
    if gpus <= 1:
        return service
    return service.reslowed(lambda slow: tuple(slowed(slow, math.ceil(n / gpus)) for n in range(1, gpus * len(slow) + 1)))


def settings(model: Model, limits: Limits, longest_ms: float) -> list[Setting]:
    """Every setting worth a thought: batch sizes, delays, workers and threads that fit machine and memory.

    Raises:
        PlanError: not one worker fits into memory.
    """
    found = []
    for workers, threads in worker_counts(model, limits):
        for size in batch_sizes(model.largest):
            for delay_ms in delays_ms(model, size, workers, longest_ms):
                found.append(Setting(size, delay_ms, workers, threads, limits.queue_limit))
    if not found:
        raise PlanError(
            f"one worker of {model.name} takes {model.worker_mib:.0f} MiB and there are {limits.memory_mib:.0f}: "
            f"give more with --memory-gib, or make the model smaller."
        )
    return found


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, .. up to the largest measured, which is one of them."""
    doubled = [2**i for i in range(largest.bit_length())]
    return sorted({*doubled, *(3 * size // 2 for size in doubled if size > 1 and 3 * size // 2 <= largest), largest})


def delays_ms(model: Model, batch_size: int, workers: int, longest_ms: float) -> list[int]:
    """1 alone where waiting cannot pay: batch size 1, or one worker, which batches while it is busy (queueing.md 3.8)."""
    if batch_size == 1 or workers == 1:
        return [1]
    times = model.services[1].batch_ms
    wanted = {max(1, round(times[batch_size - 1] * part)) for part in DELAYS}
    return sorted({1, *(delay for delay in wanted if delay < longest_ms - times[0])})


def worker_counts(model: Model, limits: Limits) -> list[tuple[int, int]]:
    """(workers, threads a worker), fewest first. On GPUs workers are counted on all of them together."""
    if limits.gpus:
        counts = [(each * limits.gpus, 1) for each in range(1, model.measured_workers + 1)]
    else:
        counts = [(workers, 1) for workers in spread(model.cores + 1)]
        counts += [(n, t) for t in model.services if t > 1 for n in spread(model.cores // t)]
    return sorted((n, t) for n, t in counts if n * model.worker_mib <= limits.memory_mib)


def spread(most: int) -> list[int]:
    """1 .. most, thinned out where there are many."""
    if most <= MOST_COUNTS:
        return list(range(1, most + 1))
    return sorted({1, most - 1, most, *(round(1 + i * (most - 1) / (MOST_COUNTS - 1)) for i in range(MOST_COUNTS))})


def own_threads(model: Model, limits: Limits, workers: int) -> int:
    """Threads that the handlers give each worker by themselves: the cores' share, as far as it was measured."""
    share = max(1, model.cores // (workers + limits.other_workers))
    return max(t for t in model.services if t <= share)


def simplest(model: Model, limits: Limits) -> Callable[[Setting], tuple[int, bool, int, float, int]]:
    """The order among equals: fewest workers, threads as they come by themselves, smallest batch, smallest delay."""

    def order(setting: Setting) -> tuple[int, bool, int, float, int]:
        own = setting.threads == own_threads(model, limits, setting.workers)
        return setting.workers, not own, setting.batch_size, setting.max_batch_delay_ms, setting.threads

    return order
