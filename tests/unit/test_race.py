"""A race's judge: which answers count as the same, and who wins."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.errors import MeasureError
from batchline.race import (
    SCORE_TOLERANCE,
    Form,
    Lane,
    _winner,
    accuracy,
    compare,
    parse_precisions,
    parse_runtimes,
    race,
    write_choice,
)
from batchline.recipe import RUNTIMES, read_recipe
from batchline.runfile import machine
from tests.harness import ROOT, STORE

LABELS = [
    {"label": "cat", "index": 3, "score": 0.6},
    {"label": "dog", "index": 1, "score": 0.3},
    {"label": "cow", "index": 0, "score": 0.1},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e3, 1e3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.lists(JSON, max_size=4))
def test_an_answer_is_its_own_like(answers: list[Any]) -> None:
    assert compare(answers, answers) == (0.0, True)


@given(JSON, JSON)
def test_what_differs_in_more_than_numbers_never_counts_as_the_same(one: Any, other: Any) -> None:
    difference, same = compare([one], [other])
    assert same == (difference <= SCORE_TOLERANCE)
    if json.dumps(one) != json.dumps(other) and isinstance(one, str):
        assert not same


def relabelled(*scores: tuple[str, float]) -> list[dict[str, Any]]:
    index = {entry["label"]: entry["index"] for entry in LABELS} | {"hen": 9}
    return [{"label": label, "index": index[label], "score": score} for label, score in scores]


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (relabelled(("cat", 0.6004), ("dog", 0.2996), ("cow", 0.1)), True),
        (relabelled(("cat", 0.605), ("dog", 0.295), ("cow", 0.1)), False),
        (relabelled(("dog", 0.6), ("cat", 0.3), ("cow", 0.1)), False),
        (relabelled(("cat", 0.6), ("cow", 0.1), ("dog", 0.3)), True),
        (relabelled(("cat", 0.6), ("dog", 0.3), ("hen", 0.1001)), True),  # a tie at the end of the list
        (relabelled(("cat", 0.6), ("dog", 0.3), ("hen", 0.2)), False),
        (relabelled(("cat", 0.6), ("dog", 0.3)), False),
        ({"code": 500}, False),
    ],
)
def test_labels_are_compared_by_name(answer: Any, same: bool) -> None:
    assert compare([answer], [LABELS])[1] is same


def lane(runtime: str, ms: float, same: bool = True, threads: int = 1, precision: str = "f32", right: float | None = None) -> Lane:
    return Lane(runtime, threads, {1: ms, 4: 4 * ms}, {}, 0.0, same, precision, right)


def test_who_wins() -> None:
    assert _winner([lane("torch", 10), lane("openvino", 5), lane("onnxruntime", 7)]) == Form("openvino")
    assert _winner([lane("torch", 10), lane("openvino", 5), lane("onnxruntime", 5.2)]) == Form("onnxruntime"), "as fast, and it needs less"
    assert _winner([lane("torch", 10), lane("openvino", 5, same=False)]) == Form("torch"), "another answer is no answer"
    assert _winner([lane("torch", 10), lane("openvino", 5, threads=2), lane("openvino", 11)]) == Form("torch")
    assert lane("torch", 10).request_ms == pytest.approx(10)


def test_less_precision_wins_by_speed_and_not_at_any_price() -> None:
    exact = lane("torch", 10, right=0.975)
    assert _winner([exact, lane("openvino", 5, precision="bf16", right=0.972)]) == Form("openvino", "bf16")
    assert _winner([exact, lane("openvino", 5, precision="bf16", right=0.965)]) == Form("torch"), "a whole percent is too much"
    assert _winner([exact, lane("torch", 9.8, precision="bf16", right=0.975)]) == Form("torch"), "as fast, and exact"


def test_accuracy_is_the_share_of_right_best_labels() -> None:
    assert accuracy([LABELS, LABELS, {"code": 500}, []], ["cat", "dog", "cat", "cat"]) == 0.25


def test_precisions_by_name() -> None:
    assert parse_precisions("") == () and parse_precisions("bf16, int8") == ("bf16", "int8")
    with pytest.raises(MeasureError, match="fp4"):
        parse_precisions("fp4")


def test_forms_by_name() -> None:
    assert parse_runtimes("") == RUNTIMES and parse_runtimes("torch, openvino") == ("torch", "openvino")
    with pytest.raises(MeasureError, match="tensorrt"):
        parse_runtimes("tensorrt")


def test_a_race_on_the_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole handler, in processes of their own; the file it writes is what the next archive is packed by."""
    # With more cores every form would run once more with a thread for each, as it does in the README's race.
    monkeypatch.setattr("batchline.race.machine", lambda: replace(machine(), cores=1))
    found = race("digits", ROOT / "models", STORE, ROOT / "build", runtimes=("onnxruntime",), rounds=1, allowed=("int8",))
    assert {lane.form for lane in found.lanes} == {Form("torch"), Form("onnxruntime"), Form("onnxruntime", "int8")} and found.absent == {}
    exact = [lane for lane in found.lanes if lane.precision == "f32"]
    assert all(lane.same_answers and lane.difference < SCORE_TOLERANCE for lane in exact)
    assert all(lane.accuracy == pytest.approx(0.975, abs=0.01) for lane in exact), "on the held-out fifth"
    assert all(lane.difference > 0 for lane in found.lanes if lane not in exact), "int8 was not what ran"
    assert all(0 < lane.inference_ms[size] < lane.batch_ms[size] for lane in found.lanes for size in lane.batch_ms)
    for name in ("handler.py", "model-config.yaml"):
        (tmp_path / "digits").mkdir(exist_ok=True)
        (tmp_path / "digits" / name).write_text("")
    recipe = read_recipe("digits", tmp_path)
    written = json.loads(write_choice(recipe, found).read_text())
    assert (recipe.runtime, recipe.precision) == found.winner
    assert recipe.runtime == written["runtime"] and len(written["table"]) == len(found.lanes)
    assert not any(math.isnan(lane["request_ms"]) for lane in written["table"])
