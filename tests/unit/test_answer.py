from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import enum
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from batchline.handlers.answer import annotate, dump, encode, tensors, to_jsonable
from batchline.handlers.errors import ServerFault
from batchline.handlers.payload import Request
from hypothesis import given
from hypothesis import strategies as st


class Colour(enum.Enum):
    RED = "red"


class Name(str, enum.Enum):
    ANNA = "anna"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Box:
    corner: Any
    score: Any


Point = collections.namedtuple("Point", "x y")


def strict(body: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(body.decode("utf-8"), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]], dtype=np.uint8), [[1, 2], [3, 4]]),
        (np.array(2.5), 2.5),
        (np.array([]), []),
        (np.float16(np.inf), None),
        (np.array([1.0, np.nan]), [1.0, None]),
        (torch.tensor([1.5, 2.5]), [1.5, 2.5]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (torch.tensor(7), 7),
        (torch.tensor([True]), [True]),
        (torch.ones(1, requires_grad=True), [1.0]),
        (torch.tensor([float("nan"), float("-inf")]), [None, None]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (memoryview(b"a"), "YQ=="),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (Colour.RED, "red"),
        (Name.ANNA, "anna"),
        (Level.HIGH, 3),
        (Box(np.array([1]), np.float32(0.25)), {"corner": [1], "score": 0.25}),
        (Point(1, 2), [1, 2]),
        ({3}, [3]),
        (frozenset({"a"}), ["a"]),
        ((1, (2,)), [1, [2]]),
        (float("nan"), None),
        (float("inf"), None),
        ({"x": float("-inf")}, {"x": None}),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        ({1: "a", Colour.RED: "b", None: "c", 2.5: "d", Level.HIGH: "e"}, {"1": "a", "red": "b", "None": "c", "2.5": "d", "3": "e"}),
        (True, True),
        (None, None),
    ],
)
def test_every_kind_of_value_becomes_json(value: Any, wanted: Any) -> None:
    found = strict(dump(to_jsonable(value)))
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_value_that_holds_itself_is_our_fault_not_a_crash() -> None:
    loop: list[Any] = []
    loop.extend([loop, loop])
    ring: dict[str, Any] = {}
    ring["ring"] = [ring]
    for value in (loop, ring):
        with pytest.raises(ServerFault, match="contains itself"):
            to_jsonable(value)


def test_nesting_to_the_limit_and_not_beyond() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value]
    assert strict(dump(to_jsonable(value))) == value
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ServerFault, match="nested"):
        to_jsonable(value)
    while isinstance(value, list):  # taken apart here: its own destructor would recurse
        value = value.pop()


@pytest.mark.parametrize("value", [object(), (n for n in [1]), lambda: 1, 1j])
def test_a_value_without_json_form_is_named(value: Any) -> None:
    with pytest.raises(ServerFault, match=type(value).__name__):
        to_jsonable([value])


def test_text_is_utf8_and_a_lone_surrogate_does_not_escape() -> None:
    assert dump({"label": "\u4f60\u597d"}) == '{"label":"\u4f60\u597d"}'.encode()
    assert dump(["a\ud800b", {"\udfff": 1}]) == b'["a?b",{"?":1}]'


def test_notes_join_the_answer() -> None:
    note = {"truncated": True}
    assert annotate({"embedding": [1]}, note) == {"embedding": [1], "truncated": True}
    assert annotate([{"label": "a"}, {"label": "b"}], note) == [{"label": "a", **note}, {"label": "b", **note}]
    assert annotate([1, 2], note) == [1, 2]
    assert annotate({"a": 1}, {}) == {"a": 1}


def test_each_protocol_has_its_own_envelope() -> None:
    plain = encode(Request(["x"], ["body"]), [{"a": 1}], "m", "1.0")
    v1 = encode(Request(["x", "y"], ["", ""], "v1"), [1, 2], "m", "1.0")
    v2 = encode(Request(["x"], [""], "v2", "i-1"), [[0.5, 1.5]], "m", "1.0")
    anonymous = encode(Request(["x"], [""], "v2"), [[0.5, 1.5]], "m", "1.0")
    assert (strict(plain[0]), plain[1]) == ({"a": 1}, "application/json")
    assert strict(v1[0]) == {"predictions": [1, 2]}
    outputs = [{"name": "predictions", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5]}]
    assert strict(v2[0]) == {"model_name": "m", "model_version": "1.0", "id": "i-1", "outputs": outputs}
    assert "id" not in strict(anonymous[0])


def test_a_handlers_own_bytes_go_out_as_they_are() -> None:
    assert encode(Request(["x"], [""]), [b"\x89PNG"], "m", "1") == (b"\x89PNG", "application/octet-stream")
    assert strict(encode(Request(["x"], [""], "v1"), [b"a"], "m", "1")[0]) == {"predictions": [base64.b64encode(b"a").decode()]}


@pytest.mark.parametrize(
    ("column", "datatype", "shape", "data"),
    [
        ([1, 2], "INT64", [2], [1, 2]),
        ([2**63], "FP32", [1], [2**63]),
        ([1, 2.5], "FP32", [2], [1, 2.5]),
        ([True, False], "BOOL", [2], [True, False]),
        (["a", "b"], "BYTES", [2], ["a", "b"]),
        ([[[1, 2, 3]], [[4, 5, 6]]], "INT64", [2, 1, 3], [1, 2, 3, 4, 5, 6]),
        ([[1], [2, 3]], "BYTES", [2], ["[1]", "[2,3]"]),
        ([[], [1]], "BYTES", [2], ["[]", "[1]"]),
        ([[], []], "BYTES", [2], ["[]", "[]"]),
        ([1, "a"], "BYTES", [2], ["1", '"a"']),
        ([None], "BYTES", [1], ["null"]),
        ([1.0, None], "BYTES", [2], ["1.0", "null"]),
        ([True, 1], "BYTES", [2], ["true", "1"]),
        (["\u4f60", ["b"]], "BYTES", [2], ['"\u4f60"', '["b"]']),
    ],
)
def test_v2_one_tensor(column: list[Any], datatype: str, shape: list[int], data: list[Any]) -> None:
    assert tensors(column) == [{"name": "predictions", "datatype": datatype, "shape": shape, "data": data}]


def by_name(answers: list[Any]) -> dict[str, tuple[str, list[int], list[Any]]]:
    return {t["name"]: (t["datatype"], t["shape"], t["data"]) for t in tensors(answers)}


def test_v2_records_become_a_tensor_a_field() -> None:
    found = by_name(
        [[{"label": "a", "score": 0.7}, {"label": "b", "score": 0.3}], [{"label": "c", "score": 0.9}, {"label": "d", "score": 0.1}]]
    )
    assert found == {"label": ("BYTES", [2, 2], ["a", "b", "c", "d"]), "score": ("FP32", [2, 2], [0.7, 0.3, 0.9, 0.1])}


def test_v2_a_flag_on_some_answers_is_false_on_the_others() -> None:
    assert by_name([{"e": [1.5]}, {"e": [2.5], "truncated": True}])["truncated"] == ("BOOL", [2], [False, True])
    found = by_name([[{"label": "a", "truncated": True}], [{"label": "b"}]])
    assert found == {"label": ("BYTES", [2, 1], ["a", "b"]), "truncated": ("BOOL", [2, 1], [True, False])}


def test_v2_a_score_that_is_not_a_number_is_no_flag() -> None:
    (tensor,) = tensors([{"label": "a", "score": None}])
    assert tensor["datatype"] == "BYTES"
    assert json.loads(tensor["data"][0]) == {"label": "a", "score": None}


def test_v2_ragged_answers_are_json_texts() -> None:
    answers = [[{"box": [1, 2], "label": "a"}], [], [{"box": [3, 4], "label": "b"}, {"box": [5, 6], "label": "c"}]]
    (tensor,) = tensors(answers)
    assert (tensor["datatype"], tensor["shape"]) == ("BYTES", [3])
    assert [json.loads(text) for text in tensor["data"]] == answers


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None), max_size=5),
    st.binary(max_size=5),
    st.sampled_from(
        [Colour.RED, Level.HIGH, np.float32("nan"), np.arange(3), torch.ones(2, dtype=torch.bfloat16), object(), pathlib.Path("x"), 1j]
    ),
)
KEYS = st.text(st.characters(codec=None), max_size=3) | st.integers() | st.floats() | st.sampled_from([Colour.RED, None, b"k"])
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.tuples(inner, inner), max_leaves=20
)


@given(st.lists(ANYTHING, min_size=1, max_size=4), st.sampled_from(["v1", "v2"]))
def test_any_answer_is_valid_json_or_our_fault(answers: list[Any], protocol: Any) -> None:
    try:
        body, content_type = encode(Request(answers, [""] * len(answers), protocol), answers, "m", "1")
    except ServerFault:
        return
    found = strict(body)
    assert content_type == "application/json"
    assert len(found["predictions"]) == len(answers) if protocol == "v1" else all(t["shape"][0] == len(answers) for t in found["outputs"])
