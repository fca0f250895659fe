"""The pure parts of client.py: headers, addresses, error bodies; and what it says when nobody answers."""

from __future__ import annotations

import socket

import pytest

from batchline.client import Client, base_url, batch_size, error_message, parse_server_timing, stage_times
from batchline.errors import ServerError

HEADER = 'queue;dur=1.2, deserialize;dur=0.5, preprocess;dur=3, inference;dur=40.25, serialize;dur=.1, batch;desc="3"'


def test_server_timing() -> None:
    timing = parse_server_timing(HEADER)
    assert stage_times(timing) == {"queue": 1.2, "deserialize": 0.5, "preprocess": 3.0, "inference": 40.25, "serialize": 0.1}
    assert batch_size(timing) == 3


@pytest.mark.parametrize(
    ("header", "stages", "batch"),
    [
        ("", {}, None),
        ("db", {}, None),
        ("db;dur=oops", {}, None),
        ('a;desc="x, y;dur=9";dur=2', {"a": 2.0}, None),
        ("a; DUR = 2 ,b;dur=3;desc=z", {"a": 2.0, "b": 3.0}, None),
        ('batch;desc="many"', {}, None),
        ("batch;desc=4", {}, 4),
    ],
)
def test_server_timing_of_others(header: str, stages: dict[str, float], batch: int | None) -> None:
    timing = parse_server_timing(header)
    assert (stage_times(timing), batch_size(timing)) == (stages, batch)


class Where:
    """A configuration reduced to one address."""

    token_auth = False

    def __init__(self, address: str, host: str, port: int = 8080) -> None:
        self._address, self._host, self._port = address, host, port

    def address(self, kind: str) -> tuple[str, int]:
        return self._host, self._port

    def get(self, key: str, default: str = "") -> str:
        return self._address or default


@pytest.mark.parametrize(
    ("address", "host", "url"),
    [
        ("", "127.0.0.1", "http://127.0.0.1:8080"),
        ("http://0.0.0.0:8080", "0.0.0.0", "http://127.0.0.1:8080"),
        ("https://model.example:8080", "model.example", "https://model.example:8080"),
    ],
)
def test_base_url(address: str, host: str, url: str) -> None:
    assert base_url(Where(address, host), "inference") == url


def test_unix_socket_is_refused_in_words() -> None:
    with pytest.raises(ServerError, match="inference_address is the unix socket /run/"):
        base_url(Where("unix:/run/ts.sock", "/run/ts.sock", -1), "inference")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"code": 400, "type": "BadInput", "message": "empty body"}', "BadInput: empty body"),
        (b'{"message": "only this"}', "only this"),
        (b"[1]", "[1]"),
        (b"", "no reason given"),
        (b"\xff", "\ufffd"),
    ],
)
def test_error_message(body: bytes, said: str) -> None:
    assert error_message(body) == said


def test_nobody_there() -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can answer there
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ServerError, match=f"no TorchServe answers at {url}; start it with `make serve`"):
            Client(url, url, url).predict("digits", b"")


def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # must play no part
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerError, match=r"within 0\.2 s"):
            Client(url, url, url, timeout_s=0.2).models()
