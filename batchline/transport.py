"""How one request travels: the interface that the load generator sends through, and HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import aiohttp

from batchline.client import batch_size, parse_server_timing, stage_times

NO_ANSWER = 0  # status of a request whose connection failed


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


class HttpTransport:
    """POST over HTTP/1.1, a connection for as many requests as are in flight.

    Args:
        url: the whole URL.
        bodies: sent in turn.
        headers: with every request.
        timeout_s: an answer later than this counts as none.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], headers: dict[str, str], timeout_s: float) -> None:
        self.url, self.bodies, self.headers, self.timeout_s = url, bodies, headers, timeout_s

    async def __aenter__(self) -> HttpTransport:
        """No limit on connections: aiohttp's own, 100, would turn an open loop into a closed one without a word."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_mark_new)
        connector = aiohttp.TCPConnector(limit=0, force_close=False, keepalive_timeout=60.0)
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=[trace], auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(self, turn: int, headers: dict[str, str]) -> Reply:
        """See Transport."""
        mark: dict[str, bool] = {}
        body = self.bodies[turn % len(self.bodies)]
        try:
            async with self.session.post(self.url, data=body, headers=self.headers | headers, trace_request_ctx=mark) as response:
                first_s = time.perf_counter()
                received = len(await response.read())
                done_s = time.perf_counter()
                timing = parse_server_timing(response.headers.get("Server-Timing", ""))
                told = (batch_size(timing), stage_times(timing))
                return Reply(first_s, done_s, response.status, received, *told, reused=not mark)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            now_s = time.perf_counter()
            return Reply(now_s, now_s, NO_ANSWER, reused=not mark, error=f"{type(error).__name__}: {error}")


async def _mark_new(session: aiohttp.ClientSession, context: Any, params: object) -> None:
    context.trace_request_ctx["new"] = True
