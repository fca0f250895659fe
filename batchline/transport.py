"""How one request travels: the interface that the load generator sends through, and HTTP."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
from requests.utils import requote_uri

from batchline.client import batch_size, parse_server_timing, stage_times
from batchline.errors import LoadError

NO_ANSWER = 0  # status of a request whose connection failed
DEFAULT_PORTS = {"http": 80, "https": 443}
CUT = "the server closed the connection before it had answered"


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request. Times are those of time.perf_counter(), in seconds.

    Attributes:
        first_byte_s: when the answer's headers had come.
        done_s: when its last byte had.
        status: HTTP status; 0 where the connection failed.
        received: bytes of the answer's body.
        batch_size: requests in the batch it travelled in; None where the server did not say.
        stages_ms: milliseconds by stage.
        reused: whether its connection had served a request before.
        error: what went wrong where there was no answer.
    """

    first_byte_s: float
    done_s: float
    status: int
    received: int = 0
    batch_size: int | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    reused: bool = True
    error: str = ""


class Transport(Protocol):
    """Carries requests; entering opens it, leaving closes its connections."""

    async def __aenter__(self) -> object:
        """Called in the event loop that will send."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> object:
        """Closes every connection."""

    async def send(self, turn: int, headers: dict[str, str]) -> Reply:
        """Sends the body whose turn it is and waits for its end, good or bad; raises only for a bug."""


class Requests:
    """POSTs over HTTP/1.1, laid out once.

    Args:
        url: the whole URL, http or https.
        bodies: sent in turn.
        headers: with every request.

    Raises:
        LoadError: the URL is none of HTTP.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], headers: dict[str, str]) -> None:
        try:
            place = urlsplit(requote_uri(url))
            self.host, self.port = place.hostname or "", place.port or DEFAULT_PORTS[place.scheme]
        except (KeyError, ValueError):
            self.host = ""
        if not self.host:
            raise LoadError(f"{url!r} is no address to send to; it looks like http://127.0.0.1:8080/predictions/MODEL.")
        self.tls = ssl.create_default_context() if place.scheme == "https" else None
        path = (place.path or "/") + (f"?{place.query}" if place.query else "")
        fixed = {"Host": place.netloc.rpartition("@")[2], "Accept": "*/*", "User-Agent": "batchline"} | headers
        self.parts = [(_head(path, fixed | {"Content-Length": str(len(body))}), b"\r\n\r\n" + body) for body in bodies]

    def whole(self, turn: int, headers: dict[str, str]) -> bytes:
        """The request whose turn it is, with these headers too."""
        head, body = self.parts[turn % len(self.parts)]
        return head + _lines(headers) + body


class HttpTransport:
    """Requests over HTTP/1.1, a connection for as many as are in flight.

    What a generator takes of the cores that it shares with the server, the server lacks. So this is asyncio's own transport and
    httptools' parser, half of what a client library takes.

    Args:
        url, bodies, headers: see Requests.
        timeout_s: an answer later than this counts as none.

    Raises:
        LoadError: the URL is none of HTTP.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], headers: dict[str, str], timeout_s: float) -> None:
        self.requests = Requests(url, bodies, headers)
        self.timeout_s = timeout_s
        self.idle: list[_Connection] = []  # the one that was used last is taken first: others may close meanwhile
        self.open: set[_Connection] = set()

    async def __aenter__(self) -> HttpTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in list(self.open):
            connection.transport.abort()

    async def send(self, turn: int, headers: dict[str, str]) -> Reply:
        """See Transport."""
        reused = bool(self.idle)
        try:
            connection = self.idle.pop() if reused else await self._connect()
            answer = await connection.ask(self.requests.whole(turn, headers), self.timeout_s)
        except OSError as error:  # TimeoutError is one too
            return no_answer(error, self.timeout_s, reused)
        if connection.usable:
            self.idle.append(connection)
        return Reply(answer.first_byte_s, answer.done_s, answer.status, answer.received, *answer.told, reused=reused)

    async def _connect(self) -> _Connection:
        making = asyncio.get_running_loop().create_connection(
            lambda: _Connection(self), self.requests.host, self.requests.port, ssl=self.requests.tls
        )
        try:
            _, connection = await asyncio.wait_for(making, self.timeout_s)
        except asyncio.TimeoutError:  # until Python 3.11 no OSError
            raise TimeoutError from None
        return connection


@dataclass(slots=True)
class Answer:
    """An answer as far as it has come: see Reply. `timing` is its Server-Timing, `sized` whether it says where it ends."""

    status: int = 0
    first_byte_s: float = 0.0
    done_s: float = 0.0
    received: int = 0
    timing: str = ""
    sized: bool = False

    @property
    def told(self) -> tuple[int | None, dict[str, float]]:
        """Requests in its batch, and milliseconds by stage."""
        timing = parse_server_timing(self.timing)
        return batch_size(timing), stage_times(timing)


class Reader:
    """Reads one connection's answers, one at a time; httptools calls the methods named on_... while it parses.

    Attributes:
        answer: the present one; whoever sends the next request puts an empty one there.
        complete: whether that has come whole.
        keep: whether the connection may carry another request after it.
    """

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """The next answer begins."""
        self.answer, self.complete, self.keep = Answer(), False, True

    def feed(self, data: bytes) -> None:
        """Some bytes have come. Raises ConnectionError where they are no HTTP; what comes after a whole answer only ends the connection."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise ConnectionError(f"the answer is no HTTP/1.1: {error}") from None
            self.keep = False

    def end(self) -> None:
        """No more bytes come: an answer that does not say where it ends, ends with its connection."""
        if self.answer.status and not self.answer.sized and not self.complete:
            self.on_message_complete()
        self.keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line."""
        lower = name.lower()
        if lower == b"server-timing":
            self.answer.timing = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self.answer.sized = True

    def on_headers_complete(self) -> None:
        """All headers have come."""
        self.answer.status, self.answer.first_byte_s = self.parser.get_status_code(), time.perf_counter()

    def on_body(self, part: bytes) -> None:
        """Some of the body has."""
        self.answer.received += len(part)

    def on_message_complete(self) -> None:
        """The end, unless it was one of those that come before an answer (100 Continue)."""
        if self.answer.status < 200:
            self.answer = Answer()
            return
        self.answer.done_s = time.perf_counter()
        self.complete, self.keep = True, self.parser.should_keep_alive()


class _Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, owner: HttpTransport) -> None:
        self.owner = owner
        self.loop = asyncio.get_running_loop()
        self.reader = Reader()
        self.waiter: asyncio.Future[Answer] | None = None
        self.usable = True

    async def ask(self, request: bytes, timeout_s: float) -> Answer:
        """Sends a request and waits for the end of its answer. Raises OSError where none comes, or none in time."""
        self.reader.begin()
        self.waiter = self.loop.create_future()
        timer = self.loop.call_later(timeout_s, self._end, TimeoutError())
        self.transport.write(request)
        try:
            return await self.waiter
        finally:
            timer.cancel()
            self.waiter = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast(asyncio.Transport, transport)
        self.owner.open.add(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            self.reader.feed(data)
        except ConnectionError as error:
            self._end(error)
        self._answered()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not error:
            self.reader.end()
            self._answered()
        self._end(error or ConnectionResetError(CUT))

    def _answered(self) -> None:
        """Hands the answer over, if it is whole."""
        if self.reader.complete and not self.reader.keep:
            self._close()
        if self.reader.complete and self.waiter and not self.waiter.done():
            self.waiter.set_result(self.reader.answer)

    def _end(self, error: Exception) -> None:
        """No answer comes any more."""
        self._close()
        if self.waiter and not self.waiter.done():
            self.waiter.set_exception(error)

    def _close(self) -> None:
        """Not to be used again."""
        self.usable = False
        self.transport.abort()
        self.owner.open.discard(self)
        if self in self.owner.idle:
            self.owner.idle.remove(self)


def no_answer(error: OSError, timeout_s: float, reused: bool) -> Reply:
    """What became of a request whose connection failed."""
    late = isinstance(error, TimeoutError) and error.errno is None  # one with a number is the system's: nobody answers there
    words = f"no answer within {timeout_s:g} s" if late else str(error) or "the connection broke"
    now_s = time.perf_counter()
    return Reply(now_s, now_s, NO_ANSWER, reused=reused, error=f"{type(error).__name__}: {words}")


def _head(path: str, headers: dict[str, str]) -> bytes:
    return f"POST {path} HTTP/1.1".encode("ascii") + _lines(headers)


def _lines(headers: dict[str, str]) -> bytes:
    return "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode("latin-1")
