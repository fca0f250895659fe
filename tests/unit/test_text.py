from __future__ import annotations

import json
import time

import pytest
import torch

from tests.harness import Reply, Worker, request

EATING, BREAD, BABY = "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."
LONG = "food " * 300


def vector(reply: Reply) -> torch.Tensor:
    assert reply.status == 200, reply.body
    return torch.tensor(reply.json["embedding"])


def texts(worker: Worker, *bodies: str) -> list[Reply]:
    return worker.send(*[request(body.encode()) for body in bodies])


@pytest.mark.parametrize("together", [True, False])
def test_cosines_and_length(minilm: Worker, together: bool) -> None:
    bodies = [EATING, BREAD, BABY]
    replies = texts(minilm, *bodies) if together else [texts(minilm, body)[0] for body in bodies]
    eating, bread, baby = (vector(reply) for reply in replies)
    assert float(eating @ bread) == pytest.approx(0.755, abs=2e-3)
    assert float(eating @ baby) == pytest.approx(-0.105, abs=2e-3)
    for embedding in (eating, bread, baby):
        assert embedding.shape == (384,)
        assert float(embedding.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("neighbours", [[], ["hi"], ["hi", BREAD, LONG]])
def test_only_what_was_cut_is_flagged(minilm: Worker, neighbours: list[str]) -> None:
    first, *others = texts(minilm, LONG, *neighbours)
    assert first.json["truncated"] is True
    assert [reply.json.get("truncated") for reply in others] == [True if text is LONG else None for text in neighbours]


def test_a_text_cut_at_the_window_is_the_text_of_the_window(minilm: Worker) -> None:
    window = "food " * 254  # and two tokens of the model's own
    cut, whole = texts(minilm, LONG, window)
    assert "truncated" not in whole.json
    assert torch.allclose(vector(cut), vector(whole), atol=1e-5)


@pytest.mark.parametrize("body", [b" ", b" \t\r\n", "\u3000\u00a0".encode(), b'""', b'{"data": "  "}'])
def test_a_text_of_nothing_is_refused(minilm: Worker, body: bytes) -> None:
    reply = minilm.one(body)
    assert reply.status == 400
    assert "empty" in reply.json["message"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/octet-stream"])
@pytest.mark.parametrize("body", [b"caf\xe9", b"\xff\xfeh\x00i\x00", b"ok \xed\xa0\x80"])
def test_not_utf8_is_refused(minilm: Worker, body: bytes, content_type: str) -> None:
    bad, good = minilm.send(request(body, content_type), request(b"hi"))
    assert bad.status == 400
    assert "UTF-8" in bad.json["message"]
    assert good.status == 200


@pytest.mark.parametrize("text", ['"\\ud800"', '{"data": "a\\udfffb"}', '{"instances": ["ok", "\\ud83d"]}'])
def test_a_lone_surrogate_is_refused(minilm: Worker, text: str) -> None:
    reply = minilm.one(text.encode(), "application/json")
    assert reply.status == 400
    assert "surrogate" in reply.json["message"]


@pytest.mark.parametrize("text", ["\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467", "a\x00b", "\u4f60\u597d", "x" * 5000])
def test_odd_texts_are_answered(minilm: Worker, text: str) -> None:
    (reply,) = texts(minilm, text)
    assert float(vector(reply).norm()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("text", ["\x00", "\u200b", "\ufffd", "\ufffd\x00 \u200b\x01" * 9, "\u200b " * 40_000])
def test_a_text_of_nothing_that_the_model_knows_is_refused(minilm: Worker, text: str) -> None:
    first, silent, last = texts(minilm, EATING, text, BREAD)
    alone = texts(minilm, EATING, BREAD)
    assert silent.status == 400
    assert "no character that the model knows" in silent.json["message"]
    assert [first.body, last.body] == [reply.body for reply in alone]


def test_a_silent_text_among_instances_is_named(minilm: Worker) -> None:
    bad, good = minilm.send(request({"instances": [EATING, "\u200b", BREAD]}), request(BABY.encode()))
    assert bad.status == 400
    assert bad.json["message"].startswith("instances[1]: ")
    assert good.body == texts(minilm, BABY)[0].body


def test_five_megabytes_cost_little_more_than_a_full_window(minilm: Worker) -> None:
    def seconds(body: str) -> float:
        begin = time.perf_counter()
        (reply,) = texts(minilm, body)
        assert reply.json["truncated"] is True
        return time.perf_counter() - begin

    full = min(seconds(LONG) for _ in range(3))
    huge = min(seconds("food and drink " * 350_000) for _ in range(2))
    assert huge < 10 * full


def test_what_stands_behind_a_sea_of_blanks_is_read(minilm: Worker) -> None:
    behind, plain = texts(minilm, " " * 100_000 + BREAD + "\n" * 100_000, BREAD)
    assert "truncated" not in behind.json
    assert torch.allclose(vector(behind), vector(plain), atol=1e-5)


@pytest.mark.parametrize("text", ["{not json", "[1] a footnote", '"quoted" she said', "{}"])
def test_a_text_that_looks_like_json(minilm: Worker, text: str) -> None:
    typed = minilm.one(text.encode(), "text/plain")
    string = minilm.one(json.dumps(text).encode(), "application/json")
    assert torch.equal(vector(typed), vector(string))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([1], "a list"),
        ({"data": 3}, "must be a text"),
        ({"data": None}, "null"),
        ({"data": True}, "a boolean"),
        ({"instances": ["a", {"x": 1}]}, "instances[1]: must be a text, not an object"),
        ({"instances": [["a"]]}, "instances[0]: must be a text, not a list"),
    ],
)
def test_not_a_text(minilm: Worker, body: object, words: str) -> None:
    reply = minilm.one(body, "application/json")
    assert reply.status == 400
    assert words in reply.json["message"]


def test_padding_neighbours_do_not_change_an_embedding(minilm: Worker) -> None:
    alone = vector(texts(minilm, EATING)[0])
    for neighbours in (["hi"], [LONG], [BREAD, LONG, "a"]):
        assert torch.allclose(vector(texts(minilm, EATING, *neighbours)[0]), alone, atol=1e-5)


def test_v1_and_v2_split_back(minilm: Worker) -> None:
    data = [EATING, LONG]
    v1, v2 = minilm.send(
        request({"instances": data}),
        request({"inputs": [{"name": "t", "shape": [2, 1], "datatype": "BYTES", "data": data}]}, "application/json"),
    )
    assert [answer.get("truncated") for answer in v1.json["predictions"]] == [None, True]
    outputs = {tensor["name"]: tensor for tensor in v2.json["outputs"]}
    assert (outputs["embedding"]["datatype"], outputs["embedding"]["shape"]) == ("FP32", [2, 384])
    assert outputs["truncated"] == {"name": "truncated", "datatype": "BOOL", "shape": [2], "data": [False, True]}
    assert outputs["embedding"]["data"][:384] == pytest.approx(v1.json["predictions"][0]["embedding"], abs=1e-5)
