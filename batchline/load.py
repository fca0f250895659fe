"""Requests out, one RequestRecord a request back: open loop at a rate, closed loop with N clients.

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
from typing import Any

import aiohttp
import numpy as np

from batchline.client import Client, base_url, batch_size, parse_server_timing, stage_times
from batchline.errors import LoadError
from batchline.properties import Configuration
from batchline.recipe import read_recipe

Times = np.ndarray[Any, np.dtype[np.float64]]
MAX_IN_FLIGHT = 10_000
PROGRESS_S = 0.5
SPIN_S = 0.0015  # epoll wakes to the millisecond: the last stretch before a send is spun, other work running in between
IDLE_TURN_S = 50e-6  # a turn of the event loop shorter than this had nothing to do
NO_ANSWER = 0  # status of a request whose connection failed
Progress = Callable[[Sequence["RequestRecord"], float], None]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds since the run began.

    Attributes:
        intended_s: when it was due; closed loop: when its client was ready to send.
        sent_s: when it was handed to its connection.
        first_byte_s: when the answer's headers had come.
        done_s: when its last byte had.
        status: HTTP status; 0 where the connection failed.
        received: bytes of the answer's body.
        batch_size: requests in the batch it travelled in, from Server-Timing; None where the server did not say.
        stages_ms: milliseconds by stage, from Server-Timing.
        reused: whether its connection had served a request before.
        error: what went wrong where there was no answer.
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
        url: the whole URL.
        bodies: sent in turn.
        headers: with every request; X-Request-Start is added, so that the answer tells its queue.
        timeout_s: an answer later than this counts as none.
    """

    url: str
    bodies: Sequence[bytes]
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0


def draw(arrivals: str, rate_per_s: float, duration_s: float, seed: int) -> Times:
    """Intended send times in [0, duration_s), seconds.

    Raises:
        LoadError: a rate or duration that is not positive, or that leaves no request to send.
    """
    if not rate_per_s > 0 or not duration_s > 0:
        raise LoadError(f"rate and duration must be positive, not {rate_per_s:g} req/s for {duration_s:g} s.")
    if arrivals not in ("poisson", "constant"):
        raise LoadError(f"arrivals are poisson or constant, not {arrivals!r}.")
    if arrivals == "constant":
        times = np.arange(0.0, duration_s, 1.0 / rate_per_s)
    else:
        chance = np.random.default_rng(seed)
        often = int(rate_per_s * duration_s + 10 * np.sqrt(rate_per_s * duration_s) + 20)
        times = np.cumsum(chance.exponential(1.0 / rate_per_s, often))
    times = times[times < duration_s]
    if not len(times):
        raise LoadError(f"{rate_per_s:g} req/s for {duration_s:g} s is no request; raise one of them.")
    return times


def open_loop(target: Target, times: Times, progress: Progress | None = None, cap: int = MAX_IN_FLIGHT) -> LoadRun:
    """Sends one request at each of `times`, whatever became of those before.

    Args:
        target: where to and what.
        times: intended send times, seconds, ascending.
        progress: called about twice a second with the records so far and the seconds.
        cap: most requests in flight; one more fails the run, for delaying it would hide the overload.

    Raises:
        LoadError: the cap was reached.
    """
    return asyncio.run(_Generator(target, progress, cap).open_loop(times))


def closed_loop(target: Target, clients: int, duration_s: float, progress: Progress | None = None) -> LoadRun:
    """`clients` clients for `duration_s` seconds, each sending its next request when it has its answer."""
    if clients < 1 or not duration_s > 0:
        raise LoadError(f"clients and duration must be positive, not {clients} clients for {duration_s:g} s.")
    return asyncio.run(_Generator(target, progress, clients).closed_loop(clients, duration_s))


class _Generator:
    """One run. Everything in it happens on one event loop in one thread."""

    def __init__(self, target: Target, progress: Progress | None, cap: int) -> None:
        self.target = target
        self.progress = progress
        self.cap = cap
        self.records: list[RequestRecord] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.begin_s = 0.0
        self.epoch_s = 0.0
        self.spun_s = 0.0

    async def open_loop(self, times: Times) -> LoadRun:
        """A task a request; each is created at its own time, however many are still out."""
        tasks: set[asyncio.Task[None]] = set()
        async with self._session() as session, self._reporting():
            self._start()
            for turn, due_s in enumerate(times.tolist()):
                await self._until(due_s)
                if self.in_flight >= self.cap:
                    raise LoadError(f"{self.cap} requests in flight after {due_s:.1f} s: the server does not keep up; lower the rate.")
                task = asyncio.ensure_future(self._request(session, turn, due_s))
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
                await self._request(session, turn, self._now())
                turn += clients

        async with self._session() as session, self._reporting():
            self._start()
            await asyncio.gather(*(client(number) for number in range(clients)))
        return self._finish(duration_s, None)

    def _session(self) -> aiohttp.ClientSession:
        """No limit on connections: aiohttp's own, 100, would turn an open loop into a closed one without a word."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_mark_new)
        connector = aiohttp.TCPConnector(limit=0, force_close=False, keepalive_timeout=60.0)
        timeout = aiohttp.ClientTimeout(total=self.target.timeout_s)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=[trace], auto_decompress=False)

    def _start(self) -> None:
        self.begin_s, self.epoch_s, self.cpu_s = time.perf_counter(), time.time(), time.process_time()

    def _now(self) -> float:
        return time.perf_counter() - self.begin_s

    async def _until(self, due_s: float) -> None:
        while (left := due_s - self._now()) > 0:
            if left > SPIN_S:
                await asyncio.sleep(left - SPIN_S)
                continue
            before_s = self._now()
            await asyncio.sleep(0)
            turn_s = self._now() - before_s
            self.spun_s += turn_s if turn_s < IDLE_TURN_S else 0.0

    async def _request(self, session: aiohttp.ClientSession, turn: int, intended_s: float) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        mark: dict[str, bool] = {}
        sent_s = self._now()
        headers = {**self.target.headers, "X-Request-Start": f"t={self.epoch_s + sent_s:.6f}"}
        body = self.target.bodies[turn % len(self.target.bodies)]
        try:
            async with session.post(self.target.url, data=body, headers=headers, trace_request_ctx=mark) as response:
                first_s = self._now()
                received = await response.read()
                timing = parse_server_timing(response.headers.get("Server-Timing", ""))
                answer = (response.status, len(received), batch_size(timing), stage_times(timing))
            record = RequestRecord(intended_s, sent_s, first_s, self._now(), *answer, reused=not mark)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            now_s = self._now()
            record = RequestRecord(intended_s, sent_s, now_s, now_s, NO_ANSWER, reused=not mark, error=f"{type(error).__name__}: {error}")
        finally:
            self.in_flight -= 1
        self.records.append(record)

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


async def _mark_new(session: aiohttp.ClientSession, context: Any, params: object) -> None:
    context.trace_request_ctx["new"] = True


def target(configuration: Configuration, model: str, models: Path, home: Path = Path()) -> Target:
    """The model's own samples, to the server of a configuration.

    Raises:
        LoadError: the model has no samples.
        ServerError, RequestFailed: no server answers, or it does not know the model: said before the first request.
    """
    bodies = [path.read_bytes() for path in read_recipe(model, models).samples]
    if not bodies:
        raise LoadError(f"{models / model / 'samples'} holds no request to send; put real ones there, one a file.")
    client = Client.of(configuration, home)
    client.describe(model)
    return Target(f"{base_url(configuration, 'inference')}/predictions/{model}", bodies, client.inference_headers())


def offer(
    target: Target,
    rate_per_s: float | None,
    clients: int | None,
    duration_s: float,
    arrivals: str = "poisson",
    seed: int = 1,
    progress: Progress | None = None,
) -> LoadRun:
    """Open loop at `rate_per_s`, or closed loop with `clients`. Raises LoadError unless exactly one of the two is given."""
    if (rate_per_s is None) == (clients is None):
        raise LoadError("give a rate (--rate-per-s 50) or a number of clients (--clients 8), one of the two.")
    if rate_per_s is not None:
        return open_loop(target, draw(arrivals, rate_per_s, duration_s, seed), progress)
    assert clients is not None
    return closed_loop(target, clients, duration_s, progress)
