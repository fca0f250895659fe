"""Anything at all beside good requests: as many answers as requests, only 4xx for the bad, and the good as if alone."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.harness import Worker, request, wire

Sent = dict[str, Any]
ROW = [float(i % 17) for i in range(64)]


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (24, 20)) -> bytes:
    noise = np.random.default_rng(len(kind)).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(buffer, kind)
    return buffer.getvalue()


FILES = [
    picture(*made)
    for made in [("PNG",), ("JPEG",), ("GIF", "P"), ("TIFF", "RGBA"), ("BMP",), ("WEBP",), ("PNG", "1"), ("ICO", "RGBA"), ("TIFF", "LAB")]
]
TEXTS = [b"A man is eating food.", b"", b"\xff\xfe", b'"\\ud800"', b"word " * 400, "\u4f60\u597d".encode(), b"\x00"]
GOOD: dict[str, list[Sent]] = {
    "digits": [request(ROW), request({"instances": [ROW, ROW[::-1]]}), request({"data": [ROW[i : i + 8] for i in range(0, 64, 8)]})],
    "minilm": [request(b"A man is eating food."), request({"instances": ["a", "The girl is carrying a baby."]}), request({"data": "yes"})],
    "efficientnet": [
        request(FILES[0]),
        request({"b64": base64.b64encode(FILES[1]).decode()}),
        request(FILES[2], "multipart/form-data", field="f"),
    ],
}
GOOD |= {"classifier": GOOD["minilm"], "dots": GOOD["efficientnet"], "shades": GOOD["efficientnet"]}

# ---- what strangers send

KEYS = st.sampled_from(["data", "body", "b64", "instances", "inputs", "shape", "datatype", "name", "id", "parameters", "x"]) | st.text(
    max_size=4
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from([10**400, "\ud800", "data:;base64,", ROW, 16, 17]),
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON,
        "shape": JSON | st.lists(st.integers(-1, 65), max_size=3),
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8", "BOOL", "FP99"]) | JSON,
        "data": st.sampled_from([ROW, ROW * 2, ["a"], [[1.0] * 8] * 8]) | JSON,
    },
)
ENVELOPES = st.one_of(
    JSON,
    st.fixed_dictionaries({"inputs": st.lists(TENSOR, max_size=2)}, optional={"id": JSON}),
    st.fixed_dictionaries({"instances": st.lists(JSON | st.just(ROW) | st.just("a text"), max_size=4)}),
    st.fixed_dictionaries({"data": st.lists(st.floats() | st.integers(-1, 17), min_size=63, max_size=65)}),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real picture file, cut or with some bytes changed."""
    data = bytearray(draw(st.sampled_from(FILES)))
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=6)):
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


BODIES = st.one_of(
    st.binary(max_size=80),
    damaged(),
    damaged().map(lambda data: json.dumps({"data": base64.b64encode(data).decode()}).encode()),
    st.sampled_from(TEXTS),
    st.sampled_from(FILES),
    SCALARS.map(lambda value: json.dumps({"data": value}).encode()),
    ENVELOPES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"[" * 3000, b'{"a":' * 3000, b'{"instances":[' + b"[" * 960 + b"]" * 960 + b"]}", b"9" * 5000, b"{}", b"NaN"]),
)
TYPES = st.sampled_from(
    ["", "application/json", "Application/JSON; charset=utf-8", "text/plain", "image/png", "multipart/form-data", "application/vnd.x+json"]
)
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "content-type", "X-Request-Start", "describe", "explain", "Inference-Header-Content-Length"])
    | st.text(max_size=8),
    TYPES | st.text(max_size=12) | st.sampled_from(["t=nan", "t=1e999", "t=0", "False"]),
    max_size=3,
)
NAMES = st.sampled_from(["body", "data", "file", "content-type", "describe"]) | st.text(max_size=4)
PARAMETER = st.builds(
    lambda name, kind, value: {"name": name, "contentType": kind, "value": value}, NAMES, TYPES, BODIES.map(bytearray) | ENVELOPES
)
STRANGE = st.builds(wire, st.lists(PARAMETER, max_size=2), HEADERS) | st.builds(lambda body, kind: request(body, kind), BODIES, TYPES)


def close(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and found.keys() == wanted.keys() and all(close(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(close, found, wanted))
    return abs(found - wanted) <= 1e-5 if isinstance(wanted, float) else bool(found == wanted)


def hold(worker: Worker, good: list[Sent], alone: list[Any], batch: list[int | Sent]) -> None:
    """Whole numbers in the batch name good requests; the rest is strange."""
    replies = worker.send(*[good[sent] if isinstance(sent, int) else sent for sent in batch])
    for sent, reply in zip(batch, replies, strict=True):
        answer = reply.json  # valid JSON, or this raises
        if isinstance(sent, int):
            assert reply.status == 200, answer
            assert close(answer, alone[sent])
        else:
            assert reply.status == 200 or 400 <= reply.status < 500, (reply.status, answer)
            assert reply.status == 200 or (answer["code"] == reply.status and answer["message"])
        assert reply.content_type == "application/json"
        assert 'batch;desc="' in reply.headers["Server-Timing"]


@pytest.fixture(params=list(GOOD))
def case(request: pytest.FixtureRequest) -> tuple[Worker, list[Sent], list[Any]]:
    worker: Worker = request.getfixturevalue(request.param)
    good = GOOD[request.param]
    return worker, good, [worker.send(sent)[0].json for sent in good]


BATCHES = st.lists(st.integers(0, 2) | STRANGE, min_size=1, max_size=6)


@settings(max_examples=40)
@given(batch=BATCHES)
def test_no_stranger_harms_a_neighbour(case: tuple[Worker, list[Sent], list[Any]], batch: list[int | Sent]) -> None:
    worker, good, alone = case
    hold(worker, good, alone, batch)


def test_a_wrong_neighbour_would_be_noticed(case: tuple[Worker, list[Sent], list[Any]]) -> None:
    worker, good, alone = case
    with pytest.raises(AssertionError):
        hold(worker, good, [alone[1], alone[0], alone[2]], [0])
    with pytest.raises(AssertionError):
        hold(worker, [request(b"")], alone, [0])
