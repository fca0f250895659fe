"""What is simulated: what a batch costs, and how a model is served."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from batchline.errors import SimulateError

Server = Literal["torchserve", "triton"]
Arrivals = Literal["poisson", "constant"]
Slowdown = tuple[float, ...]  # of n = 1, 2, .. busy workers

SERVERS: tuple[Server, ...] = ("torchserve", "triton")
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant")
QUEUE_LIMIT = 100  # TorchServe's job_queue_size
UNLIMITED = 1 << 20  # waiting requests of a queue without a limit; one that is longer never comes back
MOST_WORKERS, MOST_BATCH, MOST_JOBS = 10_000, 100_000, 1_000_000
SHORTEST_MS, LONGEST_MS = 1e-4, 1e8  # of a batch; finer and coarser than the histogram of latencies holds


@dataclass(frozen=True)
class Service:
    """What a batch costs on one machine.

    Attributes:
        batch_ms: T(1), T(2), .. T(b_max): milliseconds of a batch on the only busy worker.
        slowdown: how many times as long a batch takes while n = 1, 2, .. workers are busy. Beyond its end it grows in proportion: with n
            workers last·n/len. Empty: workers do not disturb each other.
        slowdown_of_one: the same with a batch size of 1, where `slowdown` is of slowdown_size and more; between them straight over
            log(batch size). What a server does for every batch weighs more in small ones. Empty: as `slowdown`.
        slowdown_size: see there.
        noise: measured T(B) / median, one of which is drawn for every batch. Their mean counts as it is. Empty: none.
        front_end_ms: what a request takes outside queue and worker (network, reading, answering), added to its latency; or a sample of
            it, one of which is drawn for every request.
        rested: how long a worker has had nothing to do, what its next batch takes more than T(B), and what a request of that batch
            takes more outside; milliseconds, ascending, on straight lines from (0, 0, 0), flat beyond the last. A machine that waited
            has cold caches and cores asleep. Empty: rest makes no difference.
    """

    batch_ms: tuple[float, ...]
    slowdown: Slowdown = ()
    noise: tuple[float, ...] = ()
    front_end_ms: float | tuple[float, ...] = 0.0
    rested: tuple[tuple[float, float, float], ...] = ()
    slowdown_of_one: Slowdown = ()
    slowdown_size: int = 1

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
        check_count("batch size", most, MOST_BATCH)
        return cls(tuple(c_ms + m_ms * size for size in range(1, most + 1)), tuple(slowdown), tuple(noise), front_end_ms)

    def slow(self, busy: float, batch_size: int) -> float:
        """How many times as long a batch takes while so many workers are busy, 1 or more of them, whose setting has this batch size."""
        large = slowed(self.slowdown, busy)
        if not self.slowdown_of_one or batch_size >= self.slowdown_size:
            return large
        share = math.log(batch_size) / math.log(self.slowdown_size)
        return share * large + (1 - share) * slowed(self.slowdown_of_one, busy)

    def reslowed(self, change: Callable[[Slowdown], Slowdown]) -> Service:
        """The same on another machine: both slowdowns changed; where workers do not disturb each other they still do not."""
        both = (change(slow) if slow else () for slow in (self.slowdown, self.slowdown_of_one))
        return replace(self, slowdown=next(both), slowdown_of_one=next(both))

    def check(self) -> None:
        """Raises SimulateError where a value cannot be."""
        for ms in self.batch_ms:
            if not SHORTEST_MS <= ms <= LONGEST_MS:
                raise SimulateError(f"a batch takes {SHORTEST_MS:g} to {LONGEST_MS:g} ms, not {ms:g}.")
        for what, values in (("slowdown", self.slowdown + self.slowdown_of_one), ("noise", self.noise)):
            if not all(0 < value < 1e6 for value in values):
                raise SimulateError(f"every {what} must be a positive factor; here is {next(v for v in values if not 0 < v < 1e6):g}.")
        front = self.front_end_ms if isinstance(self.front_end_ms, tuple) else (self.front_end_ms,)
        if not front or not all(0 <= ms < LONGEST_MS for ms in front):
            raise SimulateError(f"the front end's time is milliseconds from 0 up, not {self.front_end_ms!r}.")
        rests = (0.0, *(rest_ms for rest_ms, _, _ in self.rested))
        if not all(0 <= ms < LONGEST_MS for each in self.rested for ms in each) or any(b <= a for a, b in pairwise(rests)):
            raise SimulateError(f"what rest costs is milliseconds from 0 up, after rests that grow from above 0, not {self.rested!r}.")


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
        check_count("batch size", self.batch_size, MOST_BATCH)
        check_count("workers", self.workers, MOST_WORKERS)
        if self.batch_size * self.workers > MOST_JOBS:
            raise SimulateError(f"{self.workers} workers of batch size {self.batch_size} are more than {MOST_JOBS} requests at once.")
        if not 0 <= self.max_batch_delay_ms <= LONGEST_MS:
            raise SimulateError(f"the batch delay is milliseconds from 0 to {LONGEST_MS:g}, not {self.max_batch_delay_ms:g}.")
        if self.queue_limit:
            check_count("queue limit", self.queue_limit, UNLIMITED // 2)


def slowed(slowdown: Slowdown, busy: float) -> float:
    """How many times as long a batch takes while so many workers are busy, by one slowdown; beyond its end in proportion."""
    if not slowdown:
        return 1.0
    measured = len(slowdown)
    if busy >= measured:
        return slowdown[-1] * busy / measured
    return float(np.interp(busy, np.arange(1, measured + 1), slowdown))


def capacity_per_s(service: Service, setting: Setting) -> float:
    """N·b / T(b) with every worker busy and T's noise at its mean: what is answered a second when the queue never runs empty.

    Raises:
        SimulateError: values that cannot be.
    """
    check_both(service, setting)
    noise = float(np.mean(service.noise)) if service.noise else 1.0
    batch_ms = service.batch_ms[setting.batch_size - 1] * service.slow(setting.workers, setting.batch_size) * noise
    return setting.workers * setting.batch_size / batch_ms * 1e3


def on_cores(service: Service, cores: int) -> Service:
    """The same service by workers of one thread that share so many cores: beyond them each gets a part; 0 for a core to each.

    Raises:
        SimulateError: a number of cores that cannot be.
    """
    check_count("cores", cores, MOST_WORKERS, least=0)
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


def check_both(service: Service, setting: Setting) -> None:
    """Raises SimulateError where one cannot be, or the service does not know so large a batch."""
    setting.check()
    if len(service.batch_ms) < setting.batch_size:
        raise SimulateError(f"batches are known up to {len(service.batch_ms)}, and batch size {setting.batch_size} was to be simulated.")
    service.check()


def check_count(what: str, value: int, most: int, least: int = 1) -> None:
    """Raises SimulateError for a number that is not within these."""
    if not least <= value <= most:
        raise SimulateError(f"{what} must be a whole number from {least:,} to {most:,}, not {value:,}.")
