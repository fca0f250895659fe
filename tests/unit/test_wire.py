"""Both readers make the same of any message, both writers the same bytes; whatever is odd is TorchServe's to judge."""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from batchline.handlers import wire
from batchline.handlers.errors import ModelLoadError
from hypothesis import given
from hypothesis import strategies as st
from ts.context import Context
from ts.model_service_worker import TorchModelServiceWorker
from ts.protocol import otf_message_handler as stock
from ts.service import Service

from tests.harness import Worker, entry_class, load

READ, WRITE, UNPACK = stock.retrieve_msg, stock.create_predict_response, Service.retrieve_data_for_inference
Request = tuple[str, dict[str, str], list[tuple[str, str, bytes]]]


class Pieces:
    """A connection that delivers a message in pieces of its own choice, then is closed."""

    def __init__(self, message: bytes, sizes: list[int]) -> None:
        self.message, self.sizes, self.turn = message, sizes, 0

    def recv(self, size: int) -> bytes:
        self.turn += 1
        count = min(size, self.sizes[self.turn % len(self.sizes)])
        piece, self.message = self.message[:count], self.message[count:]
        return piece


def integer(value: int) -> bytes:
    return struct.pack("!i", value)


def sized(value: bytes) -> bytes:
    return integer(len(value)) + value


def encode(requests: list[Request]) -> bytes:
    """A batch as TorchServe's ModelRequestEncoder writes it."""
    message = b"I"
    for request_id, headers, parameters in requests:
        message += sized(request_id.encode())
        message += b"".join(sized(name.encode()) + sized(value.encode()) for name, value in headers.items()) + integer(-1)
        message += b"".join(sized(name.encode()) + sized(kind.encode()) + sized(value) for name, kind, value in parameters) + integer(-1)
    return message + integer(-1)


def load_message(name: str, batch_size: int) -> bytes:
    return b"L" + sized(name.encode()) + sized(b"/models/x") + integer(batch_size) + sized(b"handler.py") + integer(-1) + sized(b"") + b"\1"


def taken_apart(read: Any, connection: Any, unpack: Any, count: int) -> list[Any]:
    """What a worker sees of so many messages; the error that ends it included."""
    seen: list[Any] = []
    for _ in range(count):
        try:
            command, message = read(connection)
            if command != b"I":
                seen.append((command, message))
                continue
            headers, fields, ids = unpack(message)
            seen.append((command, [processor.get_request_properties() for processor in headers], fields, ids, kinds(fields)))
        except (Exception, SystemExit) as error:
            seen.append((type(error), str(error)))
            break
    return seen


def kinds(fields: list[dict[str, Any]]) -> list[Any]:
    return [[(type(name), type(value)) for name, value in request.items()] for request in fields]


@pytest.fixture(autouse=True)
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
REQUEST = st.tuples(
    TEXT,
    st.dictionaries(TEXT, TEXT, max_size=4),
    st.lists(st.tuples(TEXT, st.sampled_from(["", "application/json", "text/plain", "image/jpeg"]), st.binary(max_size=300)), max_size=3),
)
SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=5)


@given(st.lists(st.lists(REQUEST, max_size=4), min_size=1, max_size=3), SIZES, SIZES)
def test_the_same_batches_however_the_socket_cuts_them(batches: list[list[Request]], sizes: list[int], others: list[int]) -> None:
    message = load_message("m", 4) + b"".join(encode(batch) for batch in batches)
    count = len(batches) + 2  # and the end
    wanted = taken_apart(READ, Pieces(message, sizes), UNPACK, count)
    assert taken_apart(wire.read, Pieces(message, others), wire.unpack, count) == wanted
    assert wanted[-1] == (SystemExit, "0")


@given(REQUEST, st.data(), SIZES)
def test_a_broken_message_ends_as_with_torchserves_reader(request: Request, data: st.DataObject, sizes: list[int]) -> None:
    """Cut off, a byte changed, another command: the same request, the same error or the same exit."""
    message = bytearray(encode([request, ("id", {"a": "b"}, [("body", "", b"x")])]))
    place = data.draw(st.integers(0, len(message) - 1))
    if data.draw(st.booleans()):
        message[place] = data.draw(st.sampled_from([0, 1, 2, 65, 254, 255]))
    else:
        del message[place:]
    wanted = taken_apart(READ, Pieces(bytes(message), [len(message) + 1]), UNPACK, 3)
    assert taken_apart(wire.read, Pieces(bytes(message), sizes), wire.unpack, 3) == wanted


@pytest.mark.parametrize(
    "request_bytes",
    [
        sized(b"id") + sized(b"name") + integer(-1) + integer(-1),  # a header without a value
        sized(b"id") + integer(-1) + sized(b"name") + sized(b"type") + integer(-1) + integer(-1),  # a parameter without one
        sized(b"id") + integer(-1) + sized(b"name") + integer(-1) + sized(b"value") + integer(-1),
        sized(b"id") + integer(-1) + sized(b"name") + integer(-7) + sized(b"value") + integer(-1),
        sized(b"\xff") + integer(-1) + integer(-1),
        sized(b"id") + integer(-1) + sized(b"\xff") + sized(b"") + sized(b"value") + integer(-1),
    ],
)
def test_an_odd_message_is_read_as_torchserve_reads_it(request_bytes: bytes) -> None:
    message = b"I" + request_bytes + integer(-1)
    wanted = taken_apart(READ, Pieces(message, [99999]), UNPACK, 2)
    assert taken_apart(wire.read, Pieces(message, [5]), wire.unpack, 2) == wanted


@pytest.mark.parametrize("value", [None, "true", "false", "maybe"])
@pytest.mark.parametrize("body", [b'{"a": 1}', b"{", b"\xff"])
def test_where_torchserve_decodes_it_still_does(monkeypatch: pytest.MonkeyPatch, value: str | None, body: bytes) -> None:
    monkeypatch.delenv("TS_DECODE_INPUT_REQUEST")
    if value is not None:
        monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", value)
    message = encode([("a", {}, [("body", "application/json", body), ("more", "text/plain", body)])])
    wanted = taken_apart(READ, Pieces(message, [99999]), UNPACK, 2)
    assert taken_apart(wire.read, Pieces(message, [7]), wire.unpack, 2) == wanted


def test_large_bodies_over_a_real_socket() -> None:
    body = bytes(range(256)) * 40_000
    message = encode([("a", {"h": "v"}, [("body", "", body)])] * 2) + encode([])
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(theirs.sendall, message)
        command, batch = wire.read(ours)
        assert command == b"I"
        assert [fields["body"] for fields in batch.fields] == [body, body]
        assert wire.unpack(wire.read(ours)[1]) == ([], [], {})
        sent.result()


def test_an_error_of_the_socket_is_passed_on() -> None:
    class Broken(Pieces):
        def recv(self, size: int) -> bytes:
            if not self.message:
                raise ConnectionResetError("reset")
            return super().recv(size)

    message = encode([("a", {}, [("body", "", b"x")])])
    for cut in (0, 1, 9, len(message) - 1):
        with pytest.raises(ConnectionResetError, match="reset"):
            wire.read(Broken(message[:cut], [3]))


# ---- answers


def context(answers: list[dict[str, Any]]) -> Context:
    made = Context("m", "/m", {}, len(answers), None, "0.12.0")
    headers, _, ids = UNPACK([{"requestId": f"r{i}é".encode(), "headers": [], "parameters": []} for i in range(len(answers))])
    made.request_ids, made.request_processor = ids, headers
    for index, answer in enumerate(answers):
        for name, value in answer["headers"].items():
            made.set_response_header(index, name, value)
        if answer["status"]:
            made.set_response_status(*answer["status"], index)
    return made


ANSWER = st.fixed_dictionaries(
    {
        "headers": st.dictionaries(
            st.sampled_from(["content-type", "Server-Timing", "x", "ts_stream_next"]) | TEXT, TEXT | st.just("true")
        ),
        "status": st.none() | st.tuples(st.sampled_from([None, 200, 400, 503]), st.none() | TEXT),
        "body": st.binary(max_size=40) | TEXT | st.binary().map(bytearray) | st.lists(st.integers()) | st.just(torch.ones(2)),
    }
)


@given(st.lists(ANSWER, max_size=4), st.sampled_from([200, 507]), TEXT, st.booleans(), st.booleans())
def test_the_same_bytes(answers: list[dict[str, Any]], code: int, message: str, stream: bool, criteria: bool) -> None:
    written = []
    for write in (WRITE, wire.write):
        made = context(answers)
        made.stopping_criteria = [lambda body: False] * len(answers) if criteria else None
        written.append(bytes(write([answer["body"] for answer in answers], made.request_ids, message, code, made, stream)))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "é"}, None),
        ({}, (400, "é")),
        ({"ts_stream_next": "true", "content-type": "text/plain"}, None),
        ({"ts_stream_next": "false"}, (None, None)),
        ({"x": "é", "é": "x", "content-type": ""}, (201, None)),
    ],
)
def test_the_same_bytes_of_what_is_rare(headers: dict[str, str], status: Any) -> None:
    answers = [{"headers": headers, "status": status}, {"headers": {}, "status": None}]
    written = [bytes(write([b"a", b"b"], {0: "r0", 1: "r1"}, "m", 200, context(answers))) for write in (WRITE, wire.write)]
    assert written[0] == written[1]


@pytest.mark.parametrize("ret", [None, ["a"], {0: b"a"}, [object()]])
def test_what_is_no_list_of_bytes(ret: Any) -> None:
    assert wire.write(ret, {0: "r0"}, "failed", 503) == WRITE(ret, {0: "r0"}, "failed", 503)


def test_another_rank_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    made = context([{"headers": {}, "status": None}])
    assert wire.write([b"a"], made.request_ids, "", 200, made) is None


# ---- taking the place of TorchServe's


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """This process as a worker: its main module has what model_service_worker.py has."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "retrieve_msg", READ, raising=False)
    monkeypatch.setattr(main, "TorchModelServiceWorker", TorchModelServiceWorker, raising=False)
    monkeypatch.setattr(wire.service, "create_predict_response", WRITE)
    monkeypatch.setattr(Service, "retrieve_data_for_inference", staticmethod(UNPACK))
    yield main


def test_a_worker_gets_all_three(worker: Any) -> None:
    assert wire.install()
    assert (worker.retrieve_msg, wire.service.create_predict_response) == (wire.read, wire.write)
    assert Service.retrieve_data_for_inference is wire.unpack
    assert wire.install()  # again


def test_outside_a_worker_nothing_is_touched() -> None:
    assert not wire.install()
    assert wire.service.create_predict_response is WRITE


@pytest.mark.parametrize("name", sorted(wire.KNOWN))
def test_another_function_is_left_alone(worker: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(wire.KNOWN, name, "0" * 64)
    assert not wire.install()
    assert (worker.retrieve_msg, wire.service.create_predict_response) == (READ, WRITE)
    assert [record.getMessage() for record in caplog.records] == [f"fast_wire is off: TorchServe's {name} is not the one known here"]


def test_another_version_is_left_alone(worker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(wire.ts, "__version__", "0.12.1")
    assert not wire.install()
    assert worker.retrieve_msg is READ
    assert "TorchServe's version 0.12.1 is not" in caplog.text


@pytest.mark.parametrize("setting", [False, True])
def test_fast_wire_in_model_config(worker: Any, digits: Worker, setting: bool) -> None:
    load(entry_class("digits"), digits.handler.model_dir, "digits", config={"fast_wire": setting})
    assert (worker.retrieve_msg is wire.read) == setting


def test_fast_wire_is_true_or_false(digits: Worker) -> None:
    with pytest.raises(ModelLoadError, match="fast_wire must be true or false, not 'off'"):
        load(entry_class("digits"), digits.handler.model_dir, "digits", config={"fast_wire": "off"})


def test_a_batch_of_the_fast_reader_reaches_the_handler(worker: Any, digits: Worker) -> None:
    wire.install()
    row = json.dumps([0] * 64).encode()
    message = encode([("a", {"x": "y"}, [("body", "", row)]), ("b", {}, [("body", "", b"no")])])
    _, batch = worker.retrieve_msg(Pieces(message, [50]))
    written = bytes(digits.service.predict(batch))
    assert b'"label"' in written
    assert b'"BadInput"' in written
