"""The three models on a real TorchServe: right answers in every form, errors that stay with their request, workers that live."""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from batchline import inference_pb2, inference_pb2_grpc
from tests.harness import ROOT
from tests.server.served import Served, good_json

MODELS = ("digits", "efficientnet_lite0", "minilm")
SAMPLES = {name: sorted((ROOT / "models" / name / "samples").iterdir()) for name in MODELS}
COFFEE = (ROOT / "models/efficientnet_lite0/samples/coffee.jpg").read_bytes()
CHELSEA = (ROOT / "models/efficientnet_lite0/samples/chelsea.png").read_bytes()
SEVEN = (ROOT / "models/digits/samples/seven.json").read_bytes()
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def workers_live(served: Served) -> Iterator[None]:
    """Whatever a test sends, every worker is the one it was."""
    before = {name: served.workers(name) for name in MODELS}
    yield
    assert {name: served.workers(name) for name in MODELS} == before


def test_pictures(served: Served) -> None:
    coffee = good_json(served.post("efficientnet_lite0", COFFEE))
    assert (coffee[0]["label"], coffee[0]["index"]) == ("espresso", 967)
    assert coffee[0]["score"] == pytest.approx(0.95, abs=0.01)
    chelsea = good_json(served.post("efficientnet_lite0", CHELSEA))
    assert [row["label"] for row in chelsea[:2]] == ["tiger cat", "Egyptian cat"]
    assert [row["score"] for row in chelsea[:2]] == pytest.approx([0.40, 0.36], abs=0.01)
    assert len(coffee) == 5 and [row["score"] for row in coffee] == sorted((row["score"] for row in coffee), reverse=True)


def test_digits(served: Served) -> None:
    for sample, digit in (("seven", 7), ("three", 3), ("zero", 0)):
        body = (ROOT / f"models/digits/samples/{sample}.json").read_bytes()
        assert good_json(served.post("digits", body))[0]["index"] == digit


def test_sentences(served: Served) -> None:
    texts = ("A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.")
    food, bread, baby = (np.array(good_json(served.post("minilm", text.encode()))["embedding"]) for text in texts)
    assert len(food) == 384
    assert np.linalg.norm(food) == pytest.approx(1, abs=1e-5)
    assert food @ bread == pytest.approx(0.755, abs=0.002)
    assert food @ baby == pytest.approx(-0.105, abs=0.002)


def as_base64(body: bytes, **around: str) -> bytes:
    return json.dumps({"data": around.get("head", "") + base64.b64encode(body).decode()}).encode()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (COFFEE, {"Content-Type": "image/jpeg"}),
        (COFFEE, {"Content-Type": "application/octet-stream"}),
        (as_base64(COFFEE), JSON),
        (as_base64(COFFEE), {"Content-Type": "Application/JSON; charset=UTF-8"}),
        (as_base64(COFFEE), {}),
        (as_base64(COFFEE, head="data:image/jpeg;base64,"), JSON),
        (json.dumps(base64.urlsafe_b64encode(COFFEE).decode().rstrip("=")).encode(), JSON),
    ],
)
def test_forms_of_a_picture(served: Served, body: bytes, headers: dict[str, str]) -> None:
    assert good_json(served.post("efficientnet_lite0", body, headers=headers))[0]["label"] == "espresso"


def test_multipart_with_a_field_of_any_name(served: Served) -> None:
    for name in ("data", "body", "picture", "Ünïcode"):
        reply = requests.post(
            f"{served.url}/predictions/efficientnet_lite0", files={name: ("coffee.jpg", COFFEE, "image/jpeg")}, timeout=60
        )
        assert good_json(reply)[0]["label"] == "espresso", name


def test_a_form_by_mistake_is_told_the_remedy(served: Served) -> None:
    reply = served.post("digits", SEVEN.strip(), headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert reply.status_code == 400
    assert "Content-Type: application/json" in good_json(reply)["message"]


def test_kserve_v1(served: Served) -> None:
    pictures = [base64.b64encode(COFFEE).decode(), {"b64": base64.b64encode(CHELSEA).decode()}]
    reply = served.post("efficientnet_lite0", json.dumps({"instances": pictures}).encode(), "/v1/models/{}:predict", headers=JSON)
    assert [rows[0]["label"] for rows in good_json(reply)["predictions"]] == ["espresso", "tiger cat"]


def test_kserve_v2(served: Served) -> None:
    flat = [number for row in json.loads(SEVEN) for number in row]
    body = {"id": "mine", "inputs": [{"name": "x", "shape": [2, 64], "datatype": "INT32", "data": flat * 2}]}
    answer = good_json(served.post("digits", json.dumps(body).encode(), "/v2/models/{}/infer", headers=JSON))
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("mine", "digits", "1.0")
    index = next(tensor for tensor in answer["outputs"] if tensor["name"] == "index")
    assert index["shape"] == [2, 5] and index["datatype"] == "INT64" and index["data"][0] == index["data"][5] == 7
    without_id = good_json(served.post("digits", json.dumps({"inputs": body["inputs"]}).encode(), "/v2/models/{}/infer", headers=JSON))
    assert "id" not in without_id


def test_grpc(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)

        def ask(model: str, field: str, body: bytes) -> Any:
            return json.loads(stub.Predictions(inference_pb2.PredictionsRequest(model_name=model, input={field: body})).prediction)

        assert ask("efficientnet_lite0", "data", COFFEE)[0]["label"] == "espresso"
        assert ask("efficientnet_lite0", "data", as_base64(COFFEE))[0]["label"] == "espresso"
        assert ask("digits", "data", SEVEN)[0]["label"] == "7"
        assert len(ask("minilm", "body", b"A man is eating food.")["embedding"]) == 384
        assert ask("efficientnet_lite0", "data", b"not a picture")["code"] == 400


def test_a_bad_picture_fails_alone(served: Served) -> None:
    """TorchServe's own handler answers 503 to all of a batch that holds one of these."""
    odd = [b"", b"not a picture", COFFEE[: len(COFFEE) // 2], b"\xff\xd8\xff", CHELSEA[:200], b"{", b"[]", b'"x"'] * 3
    bodies = [body for i in range(24) for body in (odd[i], COFFEE, COFFEE)][:60]
    wanted = [400 if body is not COFFEE else 200 for body in bodies]
    replies = served.post_all("efficientnet_lite0", bodies)
    assert [reply.status_code for reply in replies] == wanted
    answers = [good_json(reply) for reply in replies]
    assert all(answer[0]["label"] == "espresso" for answer, status in zip(answers, wanted, strict=True) if status == 200)
    assert all(answer["type"] == "BadInput" and answer["message"] for answer, status in zip(answers, wanted, strict=True) if status == 400)
    batches = [reply.headers["Server-Timing"] for reply in replies]
    assert any('batch;desc="1"' not in timing for timing in batches), "no two requests shared a batch"


def test_odd_pictures_are_served(served: Served) -> None:
    picture = Image.open(io.BytesIO(COFFEE))
    bodies = []
    for mode, kind in [
        ("L", "PNG"),
        ("LA", "PNG"),
        ("RGBA", "PNG"),
        ("P", "GIF"),
        ("1", "PNG"),
        ("CMYK", "JPEG"),
        ("L", "JPEG"),
        ("I;16", "PNG"),
        ("I", "TIFF"),
    ]:
        buffer = io.BytesIO()
        (picture.convert("L").convert(mode) if mode.startswith("I") else picture.convert(mode)).save(buffer, kind)
        bodies.append(buffer.getvalue())
    replies = served.post_all("efficientnet_lite0", bodies)
    assert [reply.status_code for reply in replies] == [200] * len(bodies)


def test_too_many_pixels_are_refused_from_the_header(served: Served) -> None:
    buffer = io.BytesIO()
    Image.new("1", (20000, 20000)).save(buffer, "PNG")
    reply, neighbour = served.post_all("efficientnet_lite0", [buffer.getvalue(), COFFEE])
    assert (reply.status_code, good_json(reply)["code"], neighbour.status_code) == (413, 413, 200)


def test_an_answer_over_the_limit_is_a_413(served: Served) -> None:
    """TorchServe itself would kill the worker."""
    body = json.dumps({"instances": ["a"] * 1200}).encode()
    reply = served.post("minilm", body, headers=JSON)
    assert reply.status_code == 413
    assert "max_response_size" in good_json(reply)["message"]


def test_stage_times(served: Served) -> None:
    start = time.time()
    reply = served.post("digits", SEVEN, headers={"X-Request-Start": f"t={start:.6f}"})
    elapsed_ms = (time.time() - start) * 1e3
    answer = served.client.predict("digits", SEVEN)
    assert list(answer.stages) == ["queue", "deserialize", "preprocess", "inference", "serialize"]
    parts = dict(part.strip().split(";dur=") for part in reply.headers["Server-Timing"].split(",") if ";dur=" in part)
    assert 0 < sum(map(float, parts.values())) <= elapsed_ms
    refused = served.post("digits", b"{")
    assert "queue" not in refused.headers["Server-Timing"] and "deserialize;dur=" in refused.headers["Server-Timing"]


def test_metrics(served: Served) -> None:
    served.post("digits", SEVEN)
    served.post("digits", b"{")
    text = requests.get(f"{served.metrics}/metrics", timeout=60).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    counted = {(s.name, s.labels.get("stage") or s.labels.get("kind")): s.value for s in samples if s.labels.get("ModelName") == "digits"}
    for stage in ("deserialize", "preprocess", "inference", "serialize"):
        assert counted["batchline_stage_duration_seconds_count", stage] >= 2
        assert 0 < counted["batchline_stage_duration_seconds_sum", stage] < 60  # seconds, not milliseconds
    assert counted["batchline_batch_size_count", None] >= 2
    assert counted["batchline_bad_input_total", "json"] >= 1


def test_explanations(served: Served) -> None:
    answer = good_json(served.post("efficientnet_lite0", COFFEE, "/explanations/{}"))
    assert answer["label"] == "espresso" and len(answer["attribution"]) == len(answer["attribution"][0]) == 224
    assert served.post("digits", SEVEN, "/explanations/{}").status_code == 501


def test_a_connection_outlives_a_refusal(served: Served) -> None:
    """TorchServe closes the connection after every 4xx; a session opens another."""
    with requests.Session() as session:
        url = f"{served.url}/predictions/digits"
        assert [session.post(url, data=body, timeout=60).status_code for body in (SEVEN, b"{", SEVEN, b"", SEVEN)] == [
            200,
            400,
            200,
            400,
            200,
        ]


def test_headers_of_every_kind(served: Served) -> None:
    odd = [
        {"describe": "True"},
        {"explain": "True"},
        {"Content-Type": "text/plain; charset=latin-1"},
        {"Content-Type": "application/json"},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "nonsense"},
        {"X-Request-Start": "t=nan"},
        {"X-Odd": "é".encode("latin-1").decode("latin-1")},
        {"Inference-Header-Content-Length": "7"},
    ]
    for model, body in (("digits", SEVEN), ("minilm", b"A man is eating food."), ("efficientnet_lite0", COFFEE)):
        neighbours = served.post_all(model, [body] * len(odd) * 2, [*odd, *[{}] * len(odd)])
        assert [reply.status_code for reply in neighbours[len(odd) :]] == [200] * len(odd)
        assert all(reply.status_code in (200, 400, 415, 501) for reply in neighbours), [reply.text[:100] for reply in neighbours]


def test_random_bodies(served: Served) -> None:
    """Seeded noise at each model, in company of good requests."""
    chance = random.Random(7)
    for model in MODELS:
        good = SAMPLES[model][0].read_bytes()
        bodies = []
        for _ in range(40):
            broken = bytearray(good)
            for _ in range(chance.randint(1, 20)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            bodies += [bytes(broken[: chance.randint(0, len(broken))]), good]
        types = [
            {"Content-Type": chance.choice(["application/json", "text/plain", "image/png", "x/y"])} if i % 2 == 0 else {} for i in range(80)
        ]
        replies = served.post_all(model, bodies, types)
        assert all(reply.status_code == 200 for reply in replies[1::2])
        assert all(reply.status_code in (200, 400, 413) for reply in replies)
        for reply in replies:
            good_json(reply)
