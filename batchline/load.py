"""Requests out, one RequestRecord a request back: open loop at a rate or by a trace, closed loop with N clients.

Open loop: every send time is drawn before the first request leaves, and latency counts from that intended time, sent or
not. A server that stalls for a second therefore shows a second, instead of the generator politely waiting with it
(coordinated omission; Tene's wrk2 README, MLPerf's LoadGen). Nothing is dropped or delayed silently: the generator counts
what is in flight and how late its own sends were, and calls its own run INVALID when they were too late.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from batchline.alarm import Alarm
from batchline.arrivals import DRAWN, Times, replay
from batchline.arrivals import draw as draw  # part of this module's face
from batchline.errors import LoadError, Outrun
from batchline.punctual import punctual
from batchline.transport import HttpTransport, Reply, Transport

DURATION_S = 30.0
MAX_IN_FLIGHT = 10_000
PROGRESS_S = 0.5
SPIN_S = 0.0015  # epoll wakes to the millisecond: without an alarm the last stretch before a send is spun, other work running in between
IDLE_TURN_S = 50e-6  # a turn of the event loop shorter than this had nothing to do
Progress = Callable[[Sequence["RequestRecord"], float], None]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the run began.

    Attributes:
        intended_s: when it was due; closed loop: when its client was ready to send.
        sent_s: when it was handed to its connection.
        first_byte_s: when the answer's headers had come; over gRPC they come with its last byte.
        done_s: when its last byte had.
        status: HTTP status, or what a gRPC answer amounts to; 0 where the connection failed.
        received: bytes of the answer's body.
        batch_size: requests in the batch it travelled in, from Server-Timing; None where the server did not say.
        stages_ms: milliseconds by stage, from Server-Timing.
        reused: whether its connection had served a request before.
        error: what went wrong where there was no answer; over gRPC also the words that came with an error.
    """

    intended_s: float
    sent_s: float
    first_byte_s: float
    done_s: float
    status: int
    received: int = 0
    batch_size: int | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    reused: bool = True
    error: str = ""

    @classmethod
    def of(cls, reply: Reply, intended_s: float, sent_s: float, begin_s: float) -> RequestRecord:
        """What became of a request of a run that began at begin_s by time.perf_counter(); the other times are since then."""
        told = (reply.status, reply.received, reply.batch_size, reply.stages_ms, reply.reused, reply.error)
        return cls(intended_s, sent_s, reply.first_byte_s - begin_s, reply.done_s - begin_s, *told)

    @property
    def latency_ms(self) -> float:
        """From the intended send to the last byte."""
        return (self.done_s - self.intended_s) * 1e3

    @property
    def lag_ms(self) -> float:
        """How late the generator itself was."""
        return (self.sent_s - self.intended_s) * 1e3

    @property
    def ok(self) -> bool:
        """Answered with 2xx."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class LoadRun:
    """What a run of load brought back.

    Attributes:
        records: one a request, in order of their intended times.
        duration_s: from the first intended send to the last answer.
        planned_s: how long requests were meant to be sent.
        offered_per_s: requests due a second; None in a closed loop, which has no rate of its own.
        most_in_flight: requests that were out at once.
        cpu_share: of one core, used by this process for anything but waiting for the next send.
    """

    records: list[RequestRecord]
    duration_s: float
    planned_s: float
    offered_per_s: float | None
    most_in_flight: int
    cpu_share: float


@dataclass(frozen=True)
class Target:
    """Where requests go and what they carry.

    Attributes:
        url: the whole URL; over gRPC grpc://HOST:PORT/MODEL.
        bodies: sent in turn.
        headers: with every request; X-Request-Start is added, so that the answer tells its queue.
        timeout_s: an answer later than this counts as none.
        channels: connections over gRPC; over HTTP there are as many as requests in flight.
    """

    url: str
    bodies: Sequence[bytes]
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0
    channels: int = 1

    def transport(self) -> Transport:
        """What carries its requests. Raises LoadError where gRPC is asked for and not installed."""
        place = urlsplit(self.url)
        if place.scheme != "grpc":
            return HttpTransport(self.url, self.bodies, self.headers, self.timeout_s)
        from batchline.grpcload import GrpcTransport  # grpcio is an extra

        return GrpcTransport(place.netloc, unquote(place.path[1:]), self.bodies, self.headers, self.timeout_s, self.channels)


@dataclass(frozen=True)
class Schedule:
    """When requests go out: at `times`, or whenever one of `clients` is free.

    Attributes:
        times: intended send times of an open loop, seconds; None for a closed loop.
        clients: of a closed loop, else 0.
        duration_s: how long requests are sent.
    """

    times: Times | None
    clients: int
    duration_s: float


def open_loop(target: Target, times: Times, progress: Progress | None = None, cap: int = MAX_IN_FLIGHT, ahead: bool = True) -> LoadRun:
    """Sends one request at each of `times`, whatever became of those before.

    Args:
        target: where to and what.
        times: intended send times, seconds, ascending.
        progress: called about twice a second with the records so far and the seconds.
        cap: most requests in flight; one more fails the run, for delaying it would hide the overload.
        ahead: before ordinary processes, where that may be had.

    Raises:
        Outrun: the cap was reached.
    """
    with punctual() if ahead else contextlib.nullcontext(False) as granted:
        return asyncio.run(_Generator(target, progress, cap, granted).open_loop(times))


def closed_loop(target: Target, clients: int, duration_s: float, progress: Progress | None = None) -> LoadRun:
    """`clients` clients for `duration_s` seconds, each sending its next request when it has its answer."""
    if clients < 1 or not duration_s > 0:
        raise LoadError(f"clients and duration must be positive, not {clients} clients for {duration_s:g} s.")
    return asyncio.run(_Generator(target, progress, clients).closed_loop(clients, duration_s))


class _Generator:
    """One run. Everything in it happens on one event loop in one thread."""

    def __init__(self, target: Target, progress: Progress | None, cap: int, ahead: bool = False) -> None:
        self.transport = target.transport()
        self.progress = progress
        self.cap = cap
        self.ahead = ahead
        self.records: list[RequestRecord] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.begin_s = 0.0
        self.epoch_s = 0.0
        self.spun_s = 0.0
        self.alarm: Alarm | None = None

    async def open_loop(self, times: Times) -> LoadRun:
        """A task a request; each is created at its own time, however many are still out."""
        tasks: set[asyncio.Task[None]] = set()
        async with self.transport, self._reporting(), self._alarmed():
            self._start()
            for turn, due_s in enumerate(times.tolist()):
                await self._until(due_s)
                if self.in_flight >= self.cap:
                    raise Outrun(
                        f"{self.cap} requests in flight after {due_s:.1f} s: the server does not keep up, or the generator; lower the rate."
                    )
                task = asyncio.ensure_future(self._request(turn, due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        span_s = float(times[-1])
        return self._finish(span_s, len(times) / span_s if span_s else None)

    async def closed_loop(self, clients: int, duration_s: float) -> LoadRun:
        """A task a client."""

        async def client(number: int) -> None:
            turn = number
            while self._now() < duration_s:
                await self._request(turn, self._now())
                turn += clients

        async with self.transport, self._reporting():
            self._start()
            await asyncio.gather(*(client(number) for number in range(clients)))
        return self._finish(duration_s, None)

    def _start(self) -> None:
        self.begin_s, self.epoch_s, self.cpu_s = time.perf_counter(), time.time(), time.process_time()

    def _now(self) -> float:
        return time.perf_counter() - self.begin_s

    async def _until(self, due_s: float) -> None:
        if self.alarm and due_s > self._now():
            await self.alarm.until(self.begin_s + due_s)
        while (left := due_s - self._now()) > 0:
            if left > SPIN_S:
                await asyncio.sleep(left - SPIN_S)
                continue
            before_s = self._now()
            await asyncio.sleep(0)
            turn_s = self._now() - before_s
            self.spun_s += turn_s if turn_s < IDLE_TURN_S else 0.0

    @contextlib.asynccontextmanager
    async def _alarmed(self) -> AsyncIterator[None]:
        """An alarm while the block runs, where it is of use: who is not ahead of other processes wakes late by it, and spins instead."""
        with contextlib.suppress(OSError):
            self.alarm = Alarm() if self.ahead else None
        try:
            yield
        finally:
            if self.alarm:
                self.alarm.close()

    async def _request(self, turn: int, intended_s: float) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        sent_s = self._now()
        try:
            reply = await self.transport.send(turn, {"X-Request-Start": f"t={self.epoch_s + sent_s:.6f}"})
        finally:
            self.in_flight -= 1
        self.records.append(RequestRecord.of(reply, intended_s, sent_s, self.begin_s))

    @contextlib.asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        """Calls progress now and then while the block runs."""

        async def report() -> None:
            while self.progress:
                await asyncio.sleep(PROGRESS_S)
                self.progress(self.records, self._now())

        reporter = asyncio.ensure_future(report())
        try:
            yield
        finally:
            reporter.cancel()

    def _finish(self, planned_s: float, offered_per_s: float | None) -> LoadRun:
        elapsed_s = self._now()
        share = max(0.0, time.process_time() - self.cpu_s - self.spun_s) / elapsed_s
        self.records.sort(key=lambda record: record.intended_s)
        return LoadRun(self.records, elapsed_s, planned_s, offered_per_s, self.most_in_flight, share)


def schedule(
    rate_per_s: float | None, clients: int | None, duration_s: float | None = None, arrivals: str = "poisson", seed: int = 1
) -> Schedule:
    """An open loop at a rate or by a trace, or a closed loop.

    Args:
        rate_per_s: open loop; rescales a trace to this mean rate.
        clients: closed loop.
        duration_s: 30 unless given; a trace's own length.
        arrivals: poisson, constant, or the path of a file of arrival times.
        seed: of poisson.

    Raises:
        LoadError: both a rate or trace and clients, or none of them; or one that cannot be offered.
    """
    traced = arrivals not in DRAWN
    if clients is None and traced:
        times = replay(Path(arrivals), rate_per_s, duration_s)
        return Schedule(times, 0, float(times[-1]))
    if traced or (rate_per_s is None) == (clients is None):
        raise LoadError("give a rate (--rate-per-s 50), a number of clients (--clients 8) or a trace (--arrivals FILE), one of them.")
    length_s = DURATION_S if duration_s is None else duration_s
    if rate_per_s is not None:
        return Schedule(draw(arrivals, rate_per_s, length_s, seed), 0, length_s)
    assert clients is not None
    return Schedule(None, clients, length_s)


def drive(target: Target, schedule: Schedule, progress: Progress | None = None) -> LoadRun:
    """Offers what a schedule says."""
    if schedule.times is not None:
        return open_loop(target, schedule.times, progress)
    return closed_loop(target, schedule.clients, schedule.duration_s, progress)


def offer(
    target: Target,
    rate_per_s: float | None,
    clients: int | None,
    duration_s: float | None,
    arrivals: str = "poisson",
    seed: int = 1,
    progress: Progress | None = None,
) -> LoadRun:
    """Open loop at `rate_per_s` or by a trace, or closed loop with `clients`. Raises LoadError as `schedule` does."""
    return drive(target, schedule(rate_per_s, clients, duration_s, arrivals, seed), progress)
