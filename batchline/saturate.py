"""Keeps a server busy with as little of the machine as it takes: plain sockets, requests made ready beforehand, one thread.

load.py measures what a request feels, at 0.15 ms of a core a request. Here the server's own pace is
wanted, also of models that are faster than that, and the client shares the cores with the server: an answer costs it about
0.03 ms. With 2·B requests out and batchSize B, every batch holds exactly B: while one runs, the next is complete in the queue.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchline.client import batch_size, error_message, parse_server_timing, stage_times
from batchline.errors import MeasureError

READ = 65536
PATIENCE_S = 120.0  # without any answer


class Reply(NamedTuple):
    """One answer: seconds since the run began, HTTP status, the Server-Timing header."""

    done_s: float
    status: int
    timing: str
    sent_s: float

    @property
    def batch_size(self) -> int | None:
        """Requests in its batch, where the handler says so."""
        return batch_size(parse_server_timing(self.timing))

    @property
    def stages_ms(self) -> dict[str, float]:
        """Milliseconds by stage, where the handler says so."""
        return stage_times(parse_server_timing(self.timing))


@dataclass
class _Connection:
    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    sent_s: float = 0.0


def saturate(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], clients: int, seconds: float, multiple: int = 1, least: int = 1
) -> list[Reply]:
    """Connections that each send their next request when they have their answer.

    Args:
        address: host and port.
        path: of the URL.
        bodies: sent in turn.
        clients: how many connections.
        seconds: no request is sent later than this, but for the next two.
        multiple: the number of requests in all is a multiple of it, so that the last batch is full too.
        least: at least so many requests, however long they take.

    Returns:
        The answers, in the order they came. None is missing.

    Raises:
        MeasureError: the server cannot be reached, ends a connection, answers with 4xx or 5xx, or not at all for 120 s.
    """
    requests = [_request(address, path, body) for body in bodies]
    connections = [_connect(address) for _ in range(clients)]
    try:
        return _Loop(connections, requests, seconds, multiple, max(least, clients)).run()
    except OSError as error:
        raise MeasureError(f"the server at {address[0]}:{address[1]} broke off: {error}; its logs say why.") from None
    finally:
        for connection in connections:
            connection.socket.close()


def paced(address: tuple[str, int], path: str, bodies: Sequence[bytes], pauses_s: Sequence[float], seconds: float) -> list[Reply]:
    """One connection that pauses before each of its requests: so many seconds after the answer to the one before; else as `saturate`.

    After `seconds` it ends with the next whole turn of all bodies, though pauses are left.
    """
    requests = [_request(address, path, body) for body in bodies]
    connection = _connect(address)
    try:
        return _Loop([connection], requests, seconds, len(bodies), 1 + len(bodies), pauses_s).run()
    except OSError as error:
        raise MeasureError(f"the server at {address[0]}:{address[1]} broke off: {error}; its logs say why.") from None
    finally:
        connection.socket.close()


def _request(address: tuple[str, int], path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


def _connect(address: tuple[str, int]) -> _Connection:
    try:
        connected = socket.create_connection(address, timeout=PATIENCE_S)
    except OSError as error:
        raise MeasureError(f"no server answers at {address[0]}:{address[1]}: {error}.") from None
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Connection(connected)


class _Loop:
    """One run: send, wait for whichever answer comes, send again."""

    def __init__(
        self,
        connections: list[_Connection],
        requests: list[bytes],
        seconds: float,
        multiple: int,
        least: int,
        pauses_s: Sequence[float] = (),
    ) -> None:
        self.connections, self.requests, self.pauses_s = connections, requests, pauses_s
        self.seconds, self.multiple, self.least = seconds, multiple, least
        self.sent = 0
        self.replies: list[Reply] = []
        self.begin_s = time.perf_counter()

    def run(self) -> list[Reply]:
        with selectors.DefaultSelector() as selector:
            for connection in self.connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._send(connection)
            while len(self.replies) < self.sent:
                ready = selector.select(PATIENCE_S)
                if not ready:
                    raise MeasureError(f"no answer for {PATIENCE_S:g} s; the server's logs say why.")
                for key, _ in ready:
                    self._receive(key.data)
        return self.replies

    def _now(self) -> float:
        return time.perf_counter() - self.begin_s

    def _wants_more(self) -> bool:
        if self.pauses_s and self.sent >= len(self.pauses_s):
            return False
        return self.sent < self.least or self._now() < self.seconds or self.sent % self.multiple > 0

    def _send(self, connection: _Connection) -> None:
        request = self.requests[self.sent % len(self.requests)]
        if self.pauses_s:
            time.sleep(self.pauses_s[self.sent])
        self.sent += 1
        connection.sent_s = self._now()
        connection.socket.sendall(request)

    def _receive(self, connection: _Connection) -> None:
        part = connection.socket.recv(READ)
        if not part:
            raise MeasureError("the server closed a connection before it answered; its logs say why.")
        connection.buffer += part
        answer = _answer(connection.buffer)
        if answer is None:
            return
        status, timing, body = answer
        if status >= 400:
            raise MeasureError(f"the server answered {status} to a sample: {error_message(body)}")
        connection.buffer.clear()
        self.replies.append(Reply(self._now(), status, timing, connection.sent_s))
        if self._wants_more():
            self._send(connection)


def _answer(buffer: bytearray) -> tuple[int, str, bytes] | None:
    """Status, Server-Timing and body of a complete answer; None while it is not."""
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    headers = dict(_headers(buffer[:head_end].decode("latin-1")))
    if "content-length" not in headers:
        raise MeasureError("the server streams its answers (no Content-Length): such a model has no batch time.")
    end = head_end + 4 + int(headers["content-length"])
    if len(buffer) < end:
        return None
    status = int(buffer[9:12])
    return status, headers.get("server-timing", ""), bytes(buffer[head_end + 4 : end])


def _headers(head: str) -> Iterator[tuple[str, str]]:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()
