"""What is done at once, or by a faster library, comes out as when it is done one by one and without it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batchline.handlers import VectorClassifier, answer, payload, runtime
from batchline.handlers.errors import BadInput, ServerFault
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import Worker, request

from .test_answer import ANYTHING, Box, Point

pytest.importorskip("orjson")
NUMBERS = ["0", "-0", "1e999", "18446744073709551616", "9" * 25, "-" + "9" * 19, "1.5e3", "0." + "3" * 25, "NaN", "1e-400", "007"]
NUMBER = st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
SCRAPS = (
    st.sampled_from(['"\\ud800"', '"a\\u00e9"', '"' + "0" * 30 + '"', "true", "null", '{"a":1,"a":2}', "[", "]", " ", "\ufeff"]) | NUMBER
)
BODIES = st.lists(SCRAPS, max_size=5).map(lambda parts: f"[{','.join(parts)}]".encode()) | SCRAPS.map(str.encode) | st.binary(max_size=12)


def outcome(call: Any, *args: Any) -> str:
    """What came of it; repr tells 0 from 0.0 and from -0.0."""
    try:
        return repr(call(*args))
    except (BadInput, ServerFault) as error:
        return f"{type(error).__name__} {error}"


@given(BODIES)
def test_json_is_read_the_same_without_orjson(body: bytes) -> None:
    found = outcome(payload.parse_json, bytearray(body), "a thing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "orjson", None)
        assert outcome(payload.parse_json, bytearray(body), "a thing") == found


SUBCLASSES = st.sampled_from(
    [Point(1, 2), Box(b"a", np.float64(2)), datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), datetime.time(1)]
)


@given(ANYTHING | st.uuids() | SUBCLASSES | st.lists(SUBCLASSES))
def test_answers_hold_the_same_without_orjson(value: Any) -> None:
    def written() -> str:
        return outcome(lambda: json.loads(answer.to_json(value)))

    found = written()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "orjson", None)
        assert written() == found


def test_nesting_has_its_limit_with_orjson_too() -> None:
    deep: Any = 1
    for _ in range(answer.MAX_DEPTH + 1):
        deep = [deep]
    assert answer.to_json(deep[0]) == b"[" * 64 + b"1" + b"]" * 64
    with pytest.raises(ServerFault, match="nested more than 64 deep"):
        answer.to_json(deep)
    assert answer.to_json(uuid.UUID(int=1)) == b'"00000000-0000-0000-0000-000000000001"'


VALUE = st.integers(0, 16) | st.floats(0, 16) | st.sampled_from([True, None, "1", -1, 16.5, 10**400, [1]])
ROW = st.lists(st.integers(0, 16) | st.floats(0, 16), min_size=64, max_size=64)
WRONG = st.tuples(ROW, st.integers(0, 63), VALUE).map(lambda drawn: [*drawn[0][: drawn[1]], drawn[2], *drawn[0][drawn[1] + 1 :]])
SQUARE = ROW.map(lambda row: [row[i : i + 8] for i in range(0, 64, 8)])
INSTANCE = ROW | WRONG | SQUARE | st.sampled_from([[], [1], [[1] * 8] * 7, [[1] * 7] * 8, 3, "x", [[[1] * 8] * 8]])


@given(st.lists(INSTANCE, min_size=1, max_size=4))
def test_rows_together_are_as_rows_one_by_one(digits: Worker, instances: list[Any]) -> None:
    handler: VectorClassifier = digits.handler
    together = handler._at_once([{"data": instance} for instance in instances])
    try:
        alone = torch.tensor([handler.decode(instance) for instance in instances], dtype=torch.float32)
    except BadInput:
        assert together is None
    else:
        assert together is not None
        assert together.dtype == torch.float32
        assert torch.equal(together, alone)


def test_a_subclass_with_a_decode_of_its_own_is_asked(digits: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(VectorClassifier):
        def decode(self, value: Any) -> list[float]:
            return [0.0] * 64

    handler = Own()
    monkeypatch.setattr(handler, "__dict__", {**vars(digits.handler), "deadline_s": math.inf})  # its last batch may be long ago
    assert handler._at_once([{"data": [1] * 64}]) is None
    assert handler.preprocess([{"data": [1] * 64}]).sum() == 0


def test_an_exported_program_looks_at_each_shape_once(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", max=8)
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    model = runtime._load_exported(tmp_path / "model.pt2", torch.device("cpu"))
    looked: list[Any] = []
    model.module.register_forward_pre_hook(lambda module, inputs: looked.append(inputs[0].shape))
    for size in (2, 2, 3, 2, 3):
        x = torch.rand(size, 3)
        assert torch.equal(model(x), program.module()(x))
    assert looked == [(2, 3), (3, 3)]
    for wrong in (torch.rand(9, 3), torch.rand(2, 4), torch.rand(2, 3, dtype=torch.float64)):
        for _ in range(2):  # what did not pass is looked at again
            with pytest.raises((RuntimeError, AssertionError)):
                model(wrong)


def test_requests_without_metrics(digits: Worker, caplog: pytest.LogCaptureFixture) -> None:
    from tests.harness import entry_class, load

    quiet = load(entry_class("digits"), digits.handler.model_dir, "digits", config={"metrics": False})
    with caplog.at_level("INFO"):
        assert quiet.send(request([0] * 64), request([0]))[1].status == 400
    assert "batchline_" not in caplog.text


def test_a_field_with_an_underscore_is_written_too() -> None:
    """orjson itself would leave it out."""
    made = dataclasses.make_dataclass("Made", [("_inner", int)])(1)
    assert answer.to_json(made) == b'{"_inner":1}'
