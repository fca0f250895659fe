"""HTTP as servers really speak it: whole, in pieces, chunked, without a length, cut off, late, or something else altogether."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.errors import LoadError
from batchline.lone import LoneConnection
from batchline.transport import HttpTransport, Reply, Requests

OK = b'HTTP/1.1 200 OK\r\nServer-Timing: inference;dur=1.5, batch;desc="3"\r\nContent-Length: 5\r\n\r\nhello'
BOTH = (False, True)  # the load generator's transport, and the lone request's
Pieces = Sequence[bytes | None]  # None: the connection is closed


class Scripted:
    """Answers one request after another, a script each; what came in is in `seen`, one entry a request, with its connection's number."""

    def __init__(self, scripts: Sequence[Pieces]) -> None:
        self.scripts = list(scripts)
        self.seen: list[tuple[int, bytes]] = []
        self.closed = asyncio.Event()
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                self.seen.append((number, head + await reader.readexactly(length)))
                for piece in self.scripts.pop(0):
                    if piece is None:
                        raise ConnectionError
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        self.closed.set()


@contextlib.asynccontextmanager
async def served(scripts: Sequence[Pieces]) -> AsyncIterator[tuple[str, Scripted]]:
    """The URL of a scripted server."""
    script = Scripted(scripts)
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/predictions/m", script


def replies(scripts: Sequence[Pieces], timeout_s: float = 20.0, lone: bool = False) -> tuple[list[Reply], Scripted]:
    """What became of one request a script, one after another; `lone`: over a LoneConnection."""

    def one_by_one(url: str) -> list[Reply]:
        requests = Requests(url, [b"body"], {"X-Key": "k"})
        with LoneConnection(timeout_s) as connection:
            return [connection.send(requests, turn, {"X-Turn": str(turn)}) for turn in range(len(scripts))]

    async def run() -> tuple[list[Reply], Scripted]:
        async with served(scripts) as (url, script), HttpTransport(url, [b"body"], {"X-Key": "k"}, timeout_s) as transport:
            if lone:
                return await asyncio.to_thread(one_by_one, url), script
            return [await transport.send(turn, {"X-Turn": str(turn)}) for turn in range(len(scripts))], script

    return asyncio.run(run())


@pytest.mark.parametrize("lone", BOTH)
def test_requests_share_a_connection_and_carry_their_headers(lone: bool) -> None:
    (first, second), script = replies([[OK], [OK]], lone=lone)
    assert (first.status, first.received, first.batch_size, first.stages_ms) == (200, 5, 3, {"inference": 1.5})
    assert (first.reused, second.reused) == (False, True)
    assert first.first_byte_s <= first.done_s <= second.first_byte_s
    assert [number for number, _ in script.seen] == [1, 1]
    head, _, body = script.seen[1][1].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /predictions/m HTTP/1.1" and body == b"body"
    assert {b"X-Key: k", b"X-Turn: 1", b"Content-Length: 4"} < set(lines)


@given(st.lists(st.integers(1, len(OK) - 1), unique=True).map(sorted), st.booleans())
def test_an_answer_may_come_in_any_pieces(cuts: list[int], lone: bool) -> None:
    (reply,), _ = replies([[OK[a:b] for a, b in zip([0, *cuts], [*cuts, len(OK)], strict=True)]], lone=lone)
    assert (reply.status, reply.received, reply.batch_size) == (200, 5, 3)


@pytest.mark.parametrize("lone", BOTH)
@pytest.mark.parametrize(
    ("pieces", "status", "received"),
    [
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"4\r\ndefg\r\n0\r\n\r\n"], 200, 7),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil the end", None], 200, 13),
        ([b"HTTP/1.0 200 OK\r\n\r\n", b"old", None], 200, 3),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], 200, 5),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, 0),
        ([OK + b"junk after it", None], 200, 5),
        ([b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", None], 413, 2),
    ],
)
def test_other_ways_to_end_an_answer(pieces: Pieces, status: int, received: int, lone: bool) -> None:
    (reply, after), _ = replies([pieces, [OK]], lone=lone)
    assert (reply.status, reply.received, reply.error) == (status, received, "")
    assert after.status == 200, "the next request has a connection that works"


@pytest.mark.parametrize("lone", BOTH)
@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([None], "ConnectionResetError: the server closed the connection before it had answered"),
        ([OK[:-2], None], "ConnectionResetError: the server closed the connection before it had answered"),
        ([b"SSH-2.0-OpenSSH\r\n"], "ConnectionError: the answer is no HTTP/1.1"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], "ConnectionError: the answer is no HTTP/1.1"),
    ],
)
def test_no_answer_says_why_and_the_next_request_is_sent_anew(pieces: Pieces, error: str, lone: bool) -> None:
    (reply, after), _ = replies([pieces, [OK]], lone=lone)
    assert reply.status == 0 and reply.error.startswith(error)
    assert (after.status, after.reused) == (200, False)


@pytest.mark.parametrize("lone", BOTH)
def test_a_late_answer_is_none(lone: bool) -> None:
    (reply, after), _ = replies([[OK[:20]], [OK]], timeout_s=0.2, lone=lone)
    assert (reply.status, reply.error) == (0, "TimeoutError: no answer within 0.2 s")
    assert (after.status, after.reused) == (200, False)


def test_a_connection_that_was_closed_while_idle_is_not_used_again() -> None:
    async def run() -> list[Reply]:
        async with served([[OK, None], [OK]]) as (url, script), HttpTransport(url, [b"body"], {}, 20) as transport:
            first = await transport.send(0, {})
            await script.closed.wait()
            await until(lambda: not transport.idle)
            return [first, await transport.send(1, {})]

    assert [(reply.status, reply.reused) for reply in asyncio.run(run())] == [(200, False), (200, False)]


async def until(holds: Callable[[], bool]) -> None:
    """Lets the loop turn until something holds; pytest's own limit ends a wait in vain."""
    while not holds():
        await asyncio.sleep(0)


def test_as_many_connections_as_requests_and_none_left() -> None:
    async def run() -> tuple[list[Reply], int, int]:
        async with served([[OK]] * 150) as (url, script):
            async with HttpTransport(url, [b"body"], {}, 20) as transport:
                found = await asyncio.gather(*(transport.send(turn, {}) for turn in range(150)))
                opened = len(transport.open)
            await until(lambda: not transport.open)
            return found, opened, script.connections

    found, opened, connections = asyncio.run(run())
    assert {reply.status for reply in found} == {200} and opened == connections == 150


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host/x", "http://", "http://host:port/", "http://[::1/"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(LoadError, match="is no address to send to"):
        HttpTransport(url, [b""], {}, 1)


def test_a_path_is_quoted() -> None:
    transport = HttpTransport("http://host/predictions/naïve model?x=1", [b""], {}, 1)
    assert transport.requests.whole(0, {}).startswith(b"POST /predictions/na%C3%AFve%20model?x=1 HTTP/1.1\r\nHost: host\r\n")
