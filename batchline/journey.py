"""One request's journey, measured: requests, the same requests without a model, and TorchServe's counters around them.

What a request costs outside of TorchServe's own clock (the network, reading and writing HTTP, the client) is measured by sending
the same body to /ping, which is read in full and answered without a worker. It is sent right among the requests, not before
them: with caches cold from the model's work it takes two to three times as long as on an idle machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from batchline.client import Client, base_url
from batchline.counters import Counters, read_counters, requests_in_all
from batchline.destination import target as load_target
from batchline.errors import LoadError, MeasureError, RequestFailed, ServerError
from batchline.load import LoadRun, Progress, RequestRecord, Target, closed_loop, draw, open_loop
from batchline.lone import LoneConnection
from batchline.properties import Configuration
from batchline.transport import Requests

SHORTEST_S = 1.0
WARM_UP_S = 6.0  # at most
WARM_UP_SLICE_S = 1.0
WARM_UP_REQUESTS = 300  # Java compiles what ran 200 times: before, its way with a request costs a millisecond more, and /ping's does not
WARM_UP_CLIENTS = 4  # so that a slow model has as many soon
PAUSE_S = 0.005  # TorchServe writes its counters and logs after an answer: the next request shall not find it at that
BARE_PER_S = 20.0  # few enough to be no load of their own
CONNECTS = 20
SETTLE_S = 2.0
SETTLE_STEP_S = 0.05
PROGRESS_S = 0.5


@dataclass(frozen=True)
class Settings:
    """What the management API says of the model's default version."""

    batch_size: int
    max_batch_delay_ms: int
    workers: int


@dataclass(frozen=True)
class Measured:
    """What a run brought back.

    Attributes:
        model: its name.
        requests: to the model.
        bare: the same bodies to /ping.
        empty: no body to /ping.
        round_trip_ms: of a bare TCP connection, median.
        before, after: TorchServe's counters around the requests.
        settings: of the model.
        load: the run that the requests are of; None for lone requests, one at a time with pauses.
    """

    model: str
    requests: list[RequestRecord]
    bare: list[RequestRecord]
    empty: list[RequestRecord]
    round_trip_ms: float
    before: Counters
    after: Counters
    settings: Settings
    load: LoadRun | None = None


@dataclass(frozen=True)
class Offered:
    """The requests of a run: lone ones unless there is a rate, or more clients than one."""

    duration_s: float = 10.0
    rate_per_s: float | None = None
    clients: int | None = None

    @property
    def lone(self) -> bool:
        """One request at a time."""
        return self.rate_per_s is None and self.clients in (None, 1)

    def check(self) -> None:
        """Raises LoadError for a run that cannot be."""
        if not self.duration_s >= SHORTEST_S:
            raise LoadError(f"--duration-s must be {SHORTEST_S:g} at least, not {self.duration_s:g}: a mean wants some requests.")
        if self.rate_per_s is not None and self.clients is not None:
            raise LoadError("give a rate (--rate-per-s 50) or a number of clients (--clients 8), not both.")
        if self.clients is not None and self.clients < 1:
            raise LoadError(f"--clients must be 1 at least, not {self.clients}.")


@dataclass(frozen=True)
class _Sent:
    requests: list[RequestRecord]
    bare: list[RequestRecord]
    load: LoadRun | None = None


@dataclass(frozen=True)
class Subject:
    """A model on a server: what is sent to it, and to /ping the same bodies, each followed by an empty one."""

    model: str
    client: Client
    target: Target
    ping: Target


def subject(configuration: Configuration, model: str, models: Path, home: Path = Path()) -> Subject:
    """The model on the server of a configuration, with its own samples.

    Raises:
        LoadError: the model has no samples.
        ServerError, RequestFailed: no server answers, or it does not know the model.
    """
    target = load_target(configuration, model, models, home)
    bodies = [part for body in target.bodies for part in (body, b"")]
    ping = Target(f"{base_url(configuration, 'inference')}/ping", bodies, target.headers)
    return Subject(model, Client.of(configuration, home), target, ping)


def measure(subject: Subject, offered: Offered, progress: Progress | None = None) -> Measured:
    """Sends requests for `duration_s` seconds after a warm-up, between two looks at the counters.

    Raises:
        LoadError: load that cannot be offered.
        MeasureError: no request was answered well, /ping was not, or the server does not show its counters.
    """
    offered.check()
    model, client, target, ping = subject.model, subject.client, subject.target, subject.ping
    send = _send_lone if offered.lone else _send_loaded
    _check(model, _warm_up(target, ping, client))
    round_trip_ms = _round_trip_ms(ping.url)
    before = _settled(client, model)
    sent = _check(model, send(target, ping, offered, progress))
    after = _settled(client, model)
    bare, empty = sent.bare[0::2], sent.bare[1::2]
    return Measured(model, sent.requests, bare, empty, round_trip_ms, before, after, _settings(client, model), sent.load)


def _warm_up(target: Target, ping: Target, client: Client) -> _Sent:
    """Java compiles what runs often: without pauses, until both ways have run often. What any model was asked before counts."""
    before, records, until_s = _asked_before(client), list[RequestRecord](), time.monotonic() + WARM_UP_S
    while not records or (before + len(records) < WARM_UP_REQUESTS and time.monotonic() < until_s):
        records += closed_loop(target, WARM_UP_CLIENTS, WARM_UP_SLICE_S).records
    return _Sent(records, closed_loop(ping, 1, WARM_UP_SLICE_S).records)


def _asked_before(client: Client) -> float:
    """Requests since the server started; 0 where it does not show its counters."""
    try:
        return requests_in_all(client.metrics())
    except (ServerError, RequestFailed, MeasureError):
        return 0.0


def _send_lone(target: Target, ping: Target, offered: Offered, progress: Progress | None) -> _Sent:
    """In turn: a request, its body to /ping, nothing to /ping; all on one connection."""
    asked, pinged = (Requests(each.url, each.bodies, each.headers) for each in (target, ping))
    requests: list[RequestRecord] = []
    bare: list[RequestRecord] = []
    told_s = 0.0
    with LoneConnection(target.timeout_s) as connection:
        sender = _Sender(connection)
        while (now_s := sender.now_s()) < offered.duration_s or not requests:
            if progress and now_s - told_s >= PROGRESS_S:
                told_s = now_s
                progress(requests, now_s)
            turn = len(requests)
            requests.append(sender.send(asked, turn))
            bare += [sender.send(pinged, number) for number in (2 * turn, 2 * turn + 1)]
    return _Sent(requests, bare)


class _Sender:
    """Pauses, sends, and notes what came of it."""

    def __init__(self, connection: LoneConnection) -> None:
        self.connection = connection
        self.begin_s, self.epoch_s = time.perf_counter(), time.time()

    def now_s(self) -> float:
        return time.perf_counter() - self.begin_s

    def send(self, requests: Requests, turn: int) -> RequestRecord:
        time.sleep(PAUSE_S)
        sent_s = self.now_s()
        reply = self.connection.send(requests, turn, {"X-Request-Start": f"t={self.epoch_s + sent_s:.6f}"})
        return RequestRecord.of(reply, sent_s, sent_s, self.begin_s)


def _send_loaded(target: Target, ping: Target, offered: Offered, progress: Progress | None) -> _Sent:
    """The load as `batchline load` sends it; /ping at random moments meanwhile."""
    times = draw("poisson", BARE_PER_S, offered.duration_s, seed=2)
    bare = _Alongside(lambda: open_loop(ping, times, ahead=offered.rate_per_s is not None).records)  # by the rules of the requests
    if offered.rate_per_s is None:
        run = closed_loop(target, offered.clients or 1, offered.duration_s, progress)
    else:
        run = open_loop(target, draw("poisson", offered.rate_per_s, offered.duration_s, seed=1), progress)
    return _Sent(run.records, bare.result(), run)


class _Alongside:
    """A function in a thread of its own, which does not outlive an interrupted program."""

    def __init__(self, function: Callable[[], list[RequestRecord]]) -> None:
        self.records: list[RequestRecord] = []
        self.thread = threading.Thread(target=lambda: self.records.extend(function()), daemon=True)
        self.thread.start()

    def result(self) -> list[RequestRecord]:
        self.thread.join()
        return self.records


def _check(model: str, sent: _Sent) -> _Sent:
    """Raises MeasureError where there is nothing to add up."""
    if not any(record.ok for record in sent.requests):
        raise MeasureError(
            f"no request to {model} was answered with 2xx ({_outcomes(sent.requests)}); `batchline predict` with a sample shows why."
        )
    if not all(record.ok for record in sent.bare) or len(sent.bare) < 2:
        raise MeasureError(f"/ping was not always answered with 200 ({_outcomes(sent.bare)}): a worker is down, see `make status`.")
    return sent


def _outcomes(records: Sequence[RequestRecord]) -> str:
    counted: dict[str, int] = {}
    for record in records:
        name = str(record.status) if record.status else record.error
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counted.items()) or "none sent"


def _round_trip_ms(url: str) -> float:
    """A TCP connection stands after one round trip; the median of some."""
    place, taken = urlsplit(url), []
    for _ in range(CONNECTS):
        begin_s = time.perf_counter()
        try:
            socket.create_connection((place.hostname, place.port), timeout=10).close()
        except OSError as error:
            raise ServerError(f"cannot connect to {place.netloc}: {error}") from None
        taken.append(time.perf_counter() - begin_s)
    return float(np.median(taken)) * 1e3


def _settled(client: Client, model: str) -> Counters:
    """The counters when they no longer move: an answer's are added just after it is written."""
    try:
        counters = read_counters(client.metrics(), model)
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            time.sleep(SETTLE_STEP_S)
            before, counters = counters, read_counters(client.metrics(), model)
            if counters == before:
                break
    except (ServerError, RequestFailed) as error:
        raise MeasureError(f"the model answers and the metrics port does not; is enable_metrics_api=false? ({error})") from None
    return counters


def _settings(client: Client, model: str) -> Settings:
    version = client.describe(model)[0]
    return Settings(version["batchSize"], version["maxBatchDelay"], len(version["workers"]))
