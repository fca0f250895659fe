"""One request at a time over one kept connection, with as little of a client as can be: what it takes counts as the server's.

A client that waited tens of milliseconds for a model has cold caches, and a library's own work on an answer then takes half a
millisecond more than on /ping's, which came at once. Here an answer's time is taken when its bytes are there.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType

from batchline.transport import CUT, Answer, Reader, Reply, Requests, no_answer

READ = 65536


class LoneConnection:
    """One connection, made anew after an answer that closes it and after a request that got none; a context manager."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.socket: socket.socket | None = None
        self.reader = Reader()

    def __enter__(self) -> LoneConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def send(self, requests: Requests, turn: int, headers: dict[str, str]) -> Reply:
        """Sends the body whose turn it is and waits for its end, good or bad; each call to a server at the same host and port."""
        reused, data = self.socket is not None, requests.whole(turn, headers)
        try:
            connected = self.socket or self._connect(requests)
            answer = self._ask(connected, data)
        except OSError as error:
            self.close()
            return no_answer(error, self.timeout_s, reused)
        if not self.reader.keep:
            self.close()
        return Reply(answer.first_byte_s, answer.done_s, answer.status, answer.received, *answer.told, reused=reused)

    def close(self) -> None:
        """Closes the connection; the next request makes another."""
        if self.socket:
            self.socket.close()
        self.socket = None

    def _connect(self, requests: Requests) -> socket.socket:
        made = socket.create_connection((requests.host, requests.port), timeout=self.timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = requests.tls.wrap_socket(made, server_hostname=requests.host) if requests.tls else made
        self.reader = Reader()
        return self.socket

    def _ask(self, connected: socket.socket, data: bytes) -> Answer:
        self.reader.begin()
        until_s = time.perf_counter() + self.timeout_s
        connected.settimeout(self.timeout_s)
        connected.sendall(data)
        while not self.reader.complete:
            if (left_s := until_s - time.perf_counter()) <= 0:
                raise TimeoutError
            connected.settimeout(left_s)
            part = connected.recv(READ)
            if part:
                self.reader.feed(part)
                continue
            self.reader.end()
            if not self.reader.complete:
                raise ConnectionResetError(CUT)
        return self.reader.answer
