from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from batchline.handlers import BatchHandler, VectorClassifier

from tests.harness import Worker, load, request

ROW = [float(i % 17) for i in range(64)]
SQUARE = [ROW[i : i + 8] for i in range(0, 64, 8)]


def with_value(text: str, at: int = 10, square: bool = False) -> bytes:
    numbers = [str(number) for number in ROW]
    numbers[at] = text
    rows = ["[" + ",".join(numbers[i : i + 8]) + "]" for i in range(0, 64, 8)]
    return ("[" + ",".join(rows if square else numbers) + "]").encode()


def test_flat_and_square_are_the_same_picture(digits: Worker) -> None:
    flat, square, wrapped = digits.send(request(ROW), request(SQUARE), request({"data": SQUARE}))
    assert flat.json == square.json == wrapped.json
    assert len(flat.json) == 5
    assert {"label", "index", "score"} == set(flat.json[0])


def test_held_out_accuracy(digits: Worker) -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    split = pytest.importorskip("sklearn.model_selection").train_test_split
    data = sklearn_datasets.load_digits()
    _, x, _, y = split(data.data, data.target, test_size=0.2, random_state=0, stratify=data.target)
    reply = digits.one({"instances": x.tolist()}, "application/json")
    found = [answer[0]["index"] for answer in reply.json["predictions"]]
    assert len(found) == 360
    assert sum(a == b for a, b in zip(found, y.tolist(), strict=True)) / 360 >= 0.97


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (with_value("17"), "body[10]: is 17, must be from 0 to 16"),
        (with_value("-0.5"), "body[10]: is -0.5"),
        (with_value("99", square=True), "body[1][2]: is 99"),
        (with_value("true"), "body[10]: must be a number, not a boolean"),
        (with_value("null", square=True), "body[1][2]: must be a number, not null"),
        (with_value('"7"'), "body[10]: must be a number, not a text"),
        (with_value("{}"), "body[10]: must be a number, not an object"),
        (with_value("1e400"), "body[10]: must be a finite number"),
        (with_value("-1e400", square=True), "body[1][2]: must be a finite number"),
        (with_value("1" + "0" * 400), "body[10]: must be a finite number"),
        (with_value("1e300"), "body[10]: must be a finite number"),
        (with_value("NaN"), "NaN is not JSON"),
        (with_value("Infinity"), "Infinity is not JSON"),
        (with_value("[1]"), "unequal length or depth"),
        (b"[]", "not 0"),
        (b"[[]]", "not 1x0"),
        (json.dumps(ROW[:63]).encode(), "must be 64 numbers from 0 to 16 as 64 or 8x8, not 63"),
        (json.dumps([*ROW, 1]).encode(), "not 65"),
        (json.dumps(SQUARE[:7]).encode(), "not 7x8"),
        (json.dumps([*SQUARE[:7], [1] * 7]).encode(), "unequal length"),
        (json.dumps([SQUARE]).encode(), "not 1x8x8; several instances go as"),
        (json.dumps([ROW, ROW]).encode(), "not 2x64; several instances go as"),
        (b"[" * 500 + b"]" * 500, "must be 64 numbers"),
        (b"[" * 100_000, "nested too deeply"),
        (b"3", "not a number"),
        (b'"text"', "not a text"),
        (b"null", "8x8, not null"),
        (b"{}", "the object is empty"),
        (b"[1, 2", "bad JSON at line 1, column"),
        (b"\x80\x81", "not UTF-8"),
        (b'{"instances": [[1], 2]}', "instances[0]: must be 64 numbers"),
    ],
)
def test_refused_with_the_place(digits: Worker, body: bytes, words: str) -> None:
    bad, good = digits.send(request(body), request(ROW))
    assert bad.status == 400
    assert bad.json["code"] == 400
    assert bad.json["type"] == "BadInput"
    assert words in bad.json["message"]
    assert good.status == 200


def test_the_instance_and_the_number_are_both_named(digits: Worker) -> None:
    wrong = [*ROW[:63], 77]
    v1 = digits.one({"instances": [ROW, {"data": wrong}]}, "application/json")
    v2 = digits.one({"inputs": [{"name": "x", "shape": [2, 64], "datatype": "FP32", "data": ROW + wrong}]}, "application/json")
    assert v1.json["message"].startswith("instances[1].data[63]: is 77")
    assert v2.json["message"].startswith("inputs[0].data[1][63]: is 77")


def test_v2_of_eight_by_eight(digits: Worker) -> None:
    body = {"id": "7", "inputs": [{"name": "x", "shape": [2, 8, 8], "datatype": "FP32", "data": [SQUARE, SQUARE]}]}
    reply = digits.one(body, "application/json").json
    assert reply["id"] == "7"
    assert reply["model_name"] == "digits"
    assert [(t["name"], t["datatype"], t["shape"]) for t in reply["outputs"]] == [
        ("label", "BYTES", [2, 5]),
        ("index", "INT64", [2, 5]),
        ("score", "FP32", [2, 5]),
    ]


# ---- models with other settings


@pytest.fixture(scope="module")
def linear_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = 2x, from one number to two."""
    folder = tmp_path_factory.mktemp("linear")
    model = torch.nn.Linear(1, 2)
    torch.nn.init.constant_(model.weight, 2.0)
    torch.nn.init.zeros_(model.bias)
    program = torch.export.export(model, (torch.zeros(2, 1),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "model.pt2")
    return folder


MANIFEST: dict[str, Any] = {"model": {"modelName": "linear", "serializedFile": "model.pt2", "modelVersion": "1.0"}}


def test_a_model_of_two_classes_without_a_range_or_labels(linear_dir: Path) -> None:
    worker = load(VectorClassifier, linear_dir, config={"shapes": [[1]]}, manifest=MANIFEST)
    plain, large, beyond, v2 = worker.send(
        request([-1e6]),
        request(b"[1" + b"0" * 30 + b"]"),
        request(b"[1e300]"),
        request({"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP64", "data": [1, 2]}]}),
    )
    assert plain.json == [{"label": "0", "index": 0, "score": 0.5}, {"label": "1", "index": 1, "score": 0.5}]
    assert large.status == 200
    assert (beyond.status, "body[0]: must be a finite number" in beyond.json["message"]) == (400, True)
    assert v2.json["outputs"][2]["shape"] == [2, 2]


@pytest.mark.parametrize("shapes", [None, [], [[64], [8, 9]]])
def test_wrong_shapes_are_refused_at_load(linear_dir: Path, shapes: Any) -> None:
    with pytest.raises(RuntimeError, match="shapes must list"):
        load(VectorClassifier, linear_dir, config={"shapes": shapes or []}, manifest=MANIFEST)


def test_the_plain_handler_names_the_place_too(linear_dir: Path) -> None:
    worker = load(BatchHandler, linear_dir, manifest=MANIFEST)
    replies = worker.send(
        request([3]), request(b"[1e400]"), request(b'{"instances": [[1], [[2]], ["a"]]}'), request(b"\xff"), request([1, 2])
    )
    assert [reply.status for reply in replies[:2]] == [200, 400]
    assert replies[0].json == [6.0, 6.0]
    assert replies[1].json["message"] == "body[0]: must hold only finite numbers (float32)"
    assert replies[2].json["message"].startswith("instances[2]: must be a JSON number or nested lists")
    assert replies[3].status == 400
    assert replies[4].status == 500  # only the model knows how many numbers it takes
