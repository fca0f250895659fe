from __future__ import annotations

import base64
import io
import itertools
import logging
import math
import re
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from batchline.handlers import BadInput, BatchHandler
from batchline.handlers.metrics import Share
from PIL import Image

from tests.harness import Reply, Worker, load, request, wire

ROW = [float(i % 17) for i in range(64)]
BAD = request(b"not json", "application/json")
SUM: dict[str, Any] = {"model": {"modelName": "sum", "serializedFile": "model.pt2", "modelVersion": "2.1"}}
METRIC = re.compile(r"\[METRICS\]\s*([\w\s]+)\.([\w\s]+):([0-9\-,.e]+)\|#([^|]*)\|#type:([^|]+)\|#hostname:([^,]+),([0-9]+)(,(.*))?")
Make = Callable[..., Worker]


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.sum(1), x.amax(1)], 1)


@pytest.fixture(scope="module")
def sum_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that gives the sum and the largest of three numbers."""
    folder = tmp_path_factory.mktemp("sum")
    torch.export.save(
        torch.export.export(Sum(), (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},)), folder / "model.pt2"
    )
    return folder


@pytest.fixture
def make(sum_dir: Path) -> Make:
    def made(handler: type = BatchHandler, batch_size: int = 4, **config: Any) -> Worker:
        return load(handler, sum_dir, "sum", batch_size, config, SUM)

    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Worker], list[int]]:
    """Counts the forward passes of a worker: the size of each."""

    def watch(worker: Worker) -> list[int]:
        sizes: list[int] = []
        model = worker.handler.model

        def counted(first: Any, *others: Any) -> Any:
            sizes.append(len(first))
            return model(first, *others)

        monkeypatch.setattr(worker.handler, "model", counted)
        return sizes

    return watch


def statuses(replies: list[Reply]) -> list[int]:
    return [reply.status for reply in replies]


# ---- each request stands alone


@pytest.mark.parametrize("at", [0, 1, 3])
def test_three_good_and_one_bad(digits: Worker, minilm: Worker, efficientnet: Worker, samples: dict[str, bytes], at: int) -> None:
    cases = [
        (digits, request(ROW), BAD),
        (minilm, request(b"A man is eating food."), request(b"\xff")),
        (efficientnet, request(samples["coffee.jpg"]), request(b"not an image")),
    ]
    for worker, good, bad in cases:
        batch = [good] * 3
        alone = worker.send(*batch)
        batch.insert(at, bad)
        replies = worker.send(*batch)
        assert replies.pop(at).status == 400
        assert [reply.body for reply in replies] == [reply.body for reply in alone]


def test_all_bad_and_the_model_is_not_called(digits: Worker, calls: Callable[[Worker], list[int]]) -> None:
    sizes = calls(digits)
    assert statuses(digits.send(BAD, request(b""), request([1, 2]), request({}))) == [400] * 4
    assert sizes == []


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_one_forward_a_batch(digits: Worker, calls: Callable[[Worker], list[int]], size: int) -> None:
    sizes = calls(digits)
    assert statuses(digits.send(*[request(ROW)] * size)) == [200] * size
    assert sizes == [size]
    sizes.clear()
    assert statuses(digits.send(BAD, *[request(ROW)] * size)) == [400] + [200] * size
    assert sizes == [size]


def test_an_empty_batch(digits: Worker) -> None:
    assert digits.send() == []


def test_instances_join_one_forward_and_are_split_back(make: Make, calls: Callable[[Worker], list[int]]) -> None:
    worker = make()
    sizes = calls(worker)
    replies = worker.send(request({"instances": [[1, 2, 3], [4, 5, 6]]}), request([7, 8, 9]), request({"instances": [[0, 0, 1]]}))
    assert [reply.json for reply in replies] == [{"predictions": [[6, 3], [15, 6]]}, [24, 9], {"predictions": [[1, 1]]}]
    assert sizes == [4]


@pytest.mark.parametrize(("most", "sizes_wanted"), [(2, [2, 2, 1]), (3, [3, 2]), (5, [5]), (1, [1] * 5)])
def test_more_than_max_instances_run_in_chunks(
    make: Make, calls: Callable[[Worker], list[int]], most: int, sizes_wanted: list[int]
) -> None:
    worker = make(max_instances=most)
    sizes = calls(worker)
    first, second = worker.send(request({"instances": [[i, 0, 0] for i in range(4)]}), request([9, 0, 0]))
    assert first.json == {"predictions": [[i, i] for i in range(4)]}
    assert second.json == [9, 9]
    assert sizes == sizes_wanted


def test_a_bad_instance_fails_its_request_and_names_its_place(make: Make, calls: Callable[[Worker], list[int]]) -> None:
    worker = make(max_instances=2)
    bad, good = worker.send(request({"instances": [[1, 2, 3], [1, "x", 3], [1, 2, 3]]}), request([1, 2, 3]))
    assert bad.status == 400
    assert bad.json["message"].startswith("instances[1]: ")
    assert good.json == [6, 3]


def test_more_instances_than_a_request_may_hold(make: Make, calls: Callable[[Worker], list[int]]) -> None:
    worker = make(max_request_instances=3)
    sizes = calls(worker)
    many, most, one = worker.send(request({"instances": [[1, 2, 3]] * 4}), request({"instances": [[1, 2, 3]] * 3}), request([4, 5, 6]))
    assert statuses([many, most, one]) == [413, 200, 200]
    assert many.json["message"].startswith("instances: holds 4 instances, more than the 3")
    assert sizes == [4]  # the other two


def test_decoded_items_are_dropped_after_each_chunk(make: Make) -> None:
    decoded: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class Handler(BatchHandler):
        def decode(self, value: Any) -> torch.Tensor:
            item = torch.tensor(value, dtype=torch.float32)
            decoded.append(weakref.ref(item))
            return item

        def preprocess(self, data: Any) -> torch.Tensor:
            return torch.stack(self.each(self.decode, data))

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            alive.append(sum(item() is not None for item in decoded))
            return super().inference(data, *args, **kwargs)

    worker = make(Handler, max_instances=2)
    replies = worker.send(request({"instances": [[i, 0, 0] for i in range(5)]}), request([9, 0, 0]))
    assert [reply.json for reply in replies] == [{"predictions": [[i, i] for i in range(5)]}, [9, 9]]
    assert alive == [2, 2, 2]


# ---- the deadline


@pytest.mark.parametrize(("config", "budget_s"), [({}, 60), ({"responseTimeout": 30}, 15), ({"responseTimeout": 1}, 0.5)])
def test_a_batch_may_take_half_of_the_response_timeout(make: Make, config: dict[str, Any], budget_s: float) -> None:
    worker = make(**config)
    assert worker.handler.budget_s == budget_s
    before = time.monotonic()
    assert worker.one([1, 2, 3]).json == [6, 3]
    assert before + budget_s <= worker.handler.deadline_s <= time.monotonic() + budget_s


def test_past_the_deadline_no_chunk_is_begun_and_small_requests_came_first(
    make: Make, calls: Callable[[Worker], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    class Late(BatchHandler):
        """Time is up once the first chunk is through; decodes by itself, as a user's stage may."""

        def preprocess(self, data: Any) -> torch.Tensor:
            return torch.tensor([row["data"] for row in data], dtype=torch.float32)

        def postprocess(self, data: torch.Tensor) -> list[Any]:
            self.deadline_s = -math.inf
            return super().postprocess(data)

    worker = make(Late, max_instances=3, responseTimeout=60)
    sizes = calls(worker)
    with caplog.at_level(logging.INFO, "ts.metrics.caching_metric"):
        large, small, pair = worker.send(
            request({"instances": [[1, 1, 1]] * 50}), request([1, 2, 3]), request({"instances": [[4, 5, 6], [7, 8, 9]]})
        )
    assert statuses([large, small, pair]) == [413, 200, 200]
    assert small.json == [6, 3]
    assert pair.json == {"predictions": [[15, 6], [24, 9]]}
    assert sizes == [3]
    assert "not done within the 30 s that a batch may take (half of responseTimeout)" in large.json["message"]
    assert "kind:too_slow" in caplog.text
    assert worker.one([1, 2, 3]).json == [6, 3]  # the next batch has a deadline of its own


def test_past_the_deadline_no_row_is_decoded(make: Make) -> None:
    decoded: list[Any] = []

    class Late(BatchHandler):
        """Time is up once the second row is decoded."""

        def preprocess(self, data: Any) -> torch.Tensor:
            def decode(value: Any) -> torch.Tensor:
                decoded.append(value)
                if len(decoded) == 2:
                    self.deadline_s = -math.inf
                return torch.tensor(value, dtype=torch.float32)

            return torch.stack(self.each(decode, data))

    replies = make(Late).send(request([1, 2, 3]), request([4, 5, 6]), request([7, 8, 9]), request({"instances": [[1, 1, 1]] * 9}))
    assert statuses(replies) == [200, 200, 413, 413]
    assert [reply.json for reply in replies[:2]] == [[6, 3], [15, 6]]
    assert decoded == [[1, 2, 3], [4, 5, 6]]


# ---- what a user's stage may do


class StockPreprocess(BatchHandler):
    def preprocess(self, data: Any) -> torch.Tensor:
        rows = []
        for row in data:
            value = row.get("data") or row.get("body")
            rows.append(torch.tensor(value, dtype=torch.float32))
        return torch.stack(rows)


class OnlyInference(BatchHandler):
    def inference(self, data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.model(data) * 2  # type: ignore[no-any-return]


class OnlyPostprocess(BatchHandler):
    def postprocess(self, data: torch.Tensor) -> list[Any]:
        return [{"sum": row[0].item()} for row in data]


@pytest.mark.parametrize(("handler", "wanted"), [(StockPreprocess, [6, 3]), (OnlyInference, [12, 6]), (OnlyPostprocess, {"sum": 6})])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_subclass_of_one_stage(make: Make, handler: type, wanted: Any, size: int) -> None:
    worker = make(handler)
    assert [reply.json for reply in worker.send(*[request([1, 2, 3])] * size)] == [wanted] * size
    replies = worker.send(*[request([1, 2, 3])] * size, request([[1], [2, 3]]), BAD)
    assert statuses(replies)[:size] == [200] * size
    assert [reply.json for reply in replies[:size]] == [wanted] * size
    assert min(statuses(replies)[size:]) >= 400


@pytest.mark.parametrize("form", [tuple, lambda rows: np.array(rows), lambda rows: torch.tensor(rows)])
def test_any_sequence_of_the_right_length_is_taken(make: Make, form: Callable[[Any], Any]) -> None:
    class Handler(BatchHandler):
        def postprocess(self, data: torch.Tensor) -> Any:
            return form(data.tolist())

    assert [reply.json for reply in make(Handler).send(request([1, 2, 3]), request([4, 5, 6]))] == [[6, 3], [15, 6]]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda data: data.tolist()[:1], "list with 1 answers for 2 instances"),
        (lambda data: [*data.tolist(), 0, 0], "list with 4 answers for 2 instances"),
        (lambda data: {"a": 1, "b": 2}, "dict with 2 answers for 2 instances"),
        (lambda data: None, "NoneType with no list for 2 instances"),
        (lambda data: "ab", "str with 2 answers for 2 instances"),
    ],
)
def test_a_wrong_number_of_answers_is_named_in_the_log(
    make: Make, returned: Callable[[Any], Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Handler(BatchHandler):
        def postprocess(self, data: torch.Tensor) -> Any:
            return returned(data)

    replies = make(Handler).send(request([1, 2, 3]), request([4, 5, 6]), BAD)
    assert statuses(replies) == [500, 500, 400]
    assert words in caplog.text
    assert "r0" in replies[0].json["message"]


class Panic(BaseException):
    """As pyo3 raises for a panic in Rust."""


@pytest.mark.parametrize("stage", ["preprocess", "inference", "postprocess"])
@pytest.mark.parametrize(
    "fault", [RuntimeError("boom SECRET"), Panic("boom SECRET"), SystemExit(3), MemoryError(), RecursionError(), StopIteration()]
)
def test_only_the_row_that_a_stage_raises_for_fails(make: Make, stage: str, fault: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Handler(BatchHandler):
        def check(self, numbers: torch.Tensor) -> None:
            if (numbers == 99).any():
                raise fault

        def preprocess(self, data: Any) -> torch.Tensor:
            batch: torch.Tensor = super().preprocess(data)
            if stage == "preprocess":
                self.check(batch)
            return batch

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            if stage == "inference":
                self.check(data)
            return super().inference(data)

        def postprocess(self, data: Any) -> list[Any]:
            if stage == "postprocess":
                self.check(data)
            return super().postprocess(data)

    replies = make(Handler).send(
        request([1, 2, 3]), request([99, 0, 0]), request([4, 5, 6]), BAD, request({"instances": [[1, 1, 1], [99, 0, 0]]})
    )
    assert statuses(replies) == [200, 500, 200, 400, 500]
    assert [replies[0].json, replies[2].json] == [[6, 3], [15, 6]]
    assert "request r1 failed" in caplog.text
    assert "SECRET" not in str(replies[1].json)
    assert "r1" in replies[1].json["message"]


@pytest.mark.parametrize(("status", "sent"), [(422, 422), (499, 500), ("400", 500), (200, 500), (None, 400), (99999, 500)])
def test_the_status_of_a_users_own_error(make: Make, status: Any, sent: int) -> None:
    class Handler(BatchHandler):
        def preprocess(self, data: Any) -> Any:
            def decode(value: Any) -> torch.Tensor:
                if value == [0, 0, 0]:
                    raise BadInput("all zero", status)
                return torch.tensor(value).float()

            return torch.stack(self.each(decode, data))

    bad, good = make(Handler).send(request([0, 0, 0]), request([1, 2, 3]))
    assert (bad.status, good.status) == (sent, 200)
    assert "all zero" in bad.json["message"]


def test_an_answer_without_a_json_form_fails_alone(make: Make) -> None:
    odd = {6: object(), 15: float("nan"), 24: b"\xff", 33: "\ud800"}

    class Handler(BatchHandler):
        def postprocess(self, data: torch.Tensor) -> list[Any]:
            return [{"value": odd[int(row[0])]} for row in data]

    replies = make(Handler).send(*[request([i, i + 1, i + 2]) for i in (1, 4, 7, 10)])
    assert statuses(replies) == [500, 200, 200, 200]
    assert [reply.json for reply in replies[1:]] == [{"value": None}, {"value": "/w=="}, {"value": "?"}]


def test_an_answer_too_large_is_413_and_its_neighbours_are_served(make: Make) -> None:
    class Handler(BatchHandler):
        def postprocess(self, data: torch.Tensor) -> list[Any]:
            return ["x" * int(row[0]) for row in data]

    replies = make(Handler, max_response_size=100).send(request([98, 0, 0]), request([99, 0, 0]), request([5, 0, 0]))
    assert statuses(replies) == [200, 413, 200]
    assert replies[1].json["message"] == "the answer has 101 bytes, more than the 100 that max_response_size allows"


# ---- headers


def test_describe_concerns_its_own_request_only(digits: Worker) -> None:
    described, good, bad = digits.send(request(ROW, headers={"describe": "True"}), request(ROW), BAD)
    assert described.json["handler"] == "Handler"
    assert "64 numbers" in described.json["expects"]
    assert isinstance(good.json, list)
    assert statuses([described, good, bad]) == [200, 200, 400]
    assert isinstance(digits.one(ROW).json, list)


def test_without_explanations_501_and_the_neighbours_are_served(digits: Worker, minilm: Worker) -> None:
    for worker, good in ((digits, request(ROW)), (minilm, request(b"hi"))):
        explained, plain, bad = worker.send({**good, "headers": [{"name": b"explain", "value": b"True"}]}, good, request(b""))
        assert statuses([explained, plain, bad]) == [501, 200, 400]
        assert explained.json["type"] == "NotSupported"


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [ROW, ROW]},
        {"inputs": [{"name": "x", "shape": [2, 64], "datatype": "FP32", "data": ROW + ROW}]},
    ],
)
def test_an_explanation_is_of_one_instance(digits: Worker, body: dict[str, Any]) -> None:
    explain = {"explain": "True"}
    several, single, plain = digits.send(request(body, headers=explain), request({"instances": [ROW]}, headers=explain), request(body))
    assert statuses([several, single, plain]) == [400, 501, 200]
    assert "an explanation is of one instance" in several.json["message"]


@pytest.mark.parametrize(("sent", "status"), [({"explain": "True", "Explain": "False"}, 501), ({"Explain": "True", "explain": "no"}, 200)])
def test_torchserves_own_explain_wins_over_the_clients(digits: Worker, sent: dict[str, str], status: int) -> None:
    replies = digits.send(request(ROW, headers=sent), request(ROW, headers=dict(reversed(sent.items()))))
    assert statuses(replies) == [status, status]


def test_explanations_of_pictures(efficientnet: Worker, samples: dict[str, bytes]) -> None:
    pytest.importorskip("captum")
    explain = {"explain": "True"}
    alone = efficientnet.send(request(samples["chelsea.png"]))[0]
    replies = efficientnet.send(
        request(samples["coffee.jpg"], headers=explain), request(samples["chelsea.png"]), request(b"nothing", headers=explain)
    )
    assert statuses(replies) == [200, 200, 400]
    assert replies[0].json["label"] == "espresso"
    assert np.array(replies[0].json["attribution"]).shape == (224, 224)
    assert np.abs(replies[0].json["attribution"]).max() > 0
    assert replies[1].json == alone.json
    assert "not a picture" in replies[2].json["message"]


def test_explanations_without_captum(efficientnet: Worker, samples: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("captum", "captum.attr"):
        monkeypatch.setitem(sys.modules, name, None)
    explained, plain = efficientnet.send(request(samples["coffee.jpg"], headers={"explain": "True"}), request(samples["coffee.jpg"]))
    assert (explained.status, plain.status) == (501, 200)
    assert "captum" in explained.json["message"]


def test_an_id_does_not_leak_into_the_next_request(digits: Worker) -> None:
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": ROW}
    first, failed = digits.send(
        request({"id": "SECRET", "inputs": [tensor]}), request({"id": "SECRET2", "inputs": [{**tensor, "data": [1]}]})
    )
    second, third = digits.send(request({"inputs": [tensor]}), request(ROW))
    assert first.json["id"] == "SECRET"
    assert failed.status == 400
    assert b"SECRET" not in second.body + third.body
    assert "id" not in second.json


@pytest.mark.parametrize("name", ["Content-Type", "content-type", "CONTENT-TYPE"])
def test_header_names_in_any_case(minilm: Worker, name: str) -> None:
    reply = minilm.send(wire([{"name": "body", "contentType": "", "value": bytearray(b'"hi"')}], {name: "text/plain"}))[0]
    plain = minilm.send(wire([{"name": "body", "contentType": "", "value": bytearray(b'"hi"')}], {}))[0]
    assert reply.status == plain.status == 200
    assert reply.json != plain.json  # with quotes, and without


@pytest.mark.parametrize("name", ["X-Request-Start", "x-request-start"])
def test_server_timing_on_answers_and_errors(digits: Worker, name: str) -> None:
    stamped = {name: f"t={time.time() - 2}"}
    replies = digits.send(
        request(ROW), request(b"bad", headers=stamped), request(ROW, headers=stamped), request(ROW, headers={name: "nonsense"})
    )
    stages = [re.findall(r"(\w+);", reply.headers["Server-Timing"]) for reply in replies]
    inner = ["deserialize", "preprocess", "inference", "serialize", "batch"]
    assert stages == [inner, ["queue", *inner], ["queue", *inner], inner]
    assert all('batch;desc="4"' in reply.headers["Server-Timing"] for reply in replies)
    waited_ms = float(re.findall(r"queue;dur=([\d.]+)", replies[1].headers["Server-Timing"])[0])
    assert waited_ms >= 2000


def test_json_is_the_content_type_of_everything(digits: Worker) -> None:
    explain = request(ROW, headers={"explain": "True"})
    replies = digits.send(
        request(ROW), BAD, request(b""), request({"instances": [ROW]}), request(ROW, headers={"describe": "True"}), explain
    )
    assert {reply.content_type for reply in replies} == {"application/json"}
    assert all(reply.json is not None for reply in replies)


def test_metrics_in_the_form_that_torchserve_reads(digits: Worker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ts.metrics.caching_metric"):
        digits.send(request(ROW), BAD, request([1]))
    written = [record.getMessage() for record in caplog.records if record.name == "ts.metrics.caching_metric"]
    lines = "\n".join(written).split("\n")
    assert sum("batchline_" in text for text in written) == 1  # what is known of the whole batch goes out at once
    ours = [match for match in map(METRIC.fullmatch, lines) if match and match[1].startswith("batchline_")]
    assert len(ours) == sum("batchline_" in line for line in lines) == 4 + 1 + 2 + 2
    seen = {(match[1], match[4], match[5]) for match in ours}
    assert ("batchline_batch_size", "ModelName:digits", "HISTOGRAM") in seen
    assert ("batchline_bad_input_total", "ModelName:digits,kind:json", "COUNTER") in seen
    assert ("batchline_bad_input_total", "ModelName:digits,kind:shape", "COUNTER") in seen
    assert ("batchline_stage_duration_seconds", "ModelName:digits,stage:inference", "HISTOGRAM") in seen
    told = {match[1]: match[3] for match in ours}
    assert told["batchline_batch_size"] == told["batchline_requests_total"] == "3"
    assert 0 < float(told["batchline_busy_seconds_total"]) < 60


def test_many_batches_are_told_in_part_and_counted_in_full(digits: Worker, caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    share = digits.handler.metrics.share = Share(lambda: now_s)
    share.seen, now_s = 200, 101.0  # in the second before
    with caplog.at_level(logging.INFO, "ts.metrics.caching_metric"):
        for _ in range(44):
            digits.send(request(ROW), BAD)
        rest = digits.handler.metrics.rest
        assert rest is not None
        rest.join()  # the last three are told within a second
    written = [record.getMessage() for record in caplog.records if record.name == "ts.metrics.caching_metric"]
    found = [[match for match in map(METRIC.fullmatch, text.split("\n")) if match] for text in written]
    sums: Counter[str] = Counter()
    for match in itertools.chain.from_iterable(found):
        sums[match[1]] += float(match[3])  # type: ignore[assignment]
    assert sums["batchline_batch_size"] == 2 * 5  # the first of every ten
    assert sums["batchline_requests_total"] == 88
    assert sums["batchline_bad_input_total"] == 44


def test_few_batches_are_all_told() -> None:
    now_s = 0.0
    share = Share(lambda: now_s)
    share.seen, share.every, share.left, now_s = 40, 9, 9, 2.0
    assert [share.due() for _ in range(5)] == [True] * 5


def test_a_users_own_kind_does_not_split_the_log_line(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    class Handler(BatchHandler):
        def preprocess(self, data: Any) -> Any:
            raise BadInput("no", kind="a:b,c|#d e")

    with caplog.at_level(logging.INFO, "ts.metrics.caching_metric"):
        assert statuses(make(Handler).send(request([1, 2, 3]))) == [400]
    written = "\n".join(record.getMessage() for record in caplog.records).split("\n")
    lines = [match for match in map(METRIC.fullmatch, written) if match]
    assert ("batchline_bad_input_total", "ModelName:sum,kind:a_b_c__d_e") in [(match[1], match[4]) for match in lines]


# ---- nothing is left behind


def test_a_handler_keeps_nothing_of_a_request(digits: Worker) -> None:
    digits.send(request(ROW), BAD)
    kept = [name for name in vars(digits.handler) if name != "deadline_s"]  # a time, of each batch its own
    before = {name: id(getattr(digits.handler, name)) for name in kept}
    for _ in range(20):
        digits.send(request(ROW), BAD, request({"id": "x", "instances": [ROW]}))
    assert {name: id(getattr(digits.handler, name)) for name in kept} == before
    assert set(vars(digits.handler)) == {*kept, "deadline_s"}


def test_memory_does_not_grow_over_requests_of_varied_size(efficientnet: Worker, minilm: Worker) -> None:
    random = np.random.default_rng(0)
    pictures = []
    for width, height in random.integers(20, 900, (20, 2)).tolist():
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (height, width, 3), np.uint8)).save(buffer, "JPEG")
        pictures.append(request({"data": base64.b64encode(buffer.getvalue()).decode()}))
    texts = [request(("word " * int(n)).encode()) for n in random.integers(1, 60, 20)]

    def serve(rounds: int) -> None:
        for i in range(0, rounds, 2):
            assert statuses(efficientnet.send(pictures[i // 2 % 20])) == [200]
            assert statuses(minilm.send(texts[i // 2 % 20], BAD)) == [200, 400]

    serve(100)
    before = psutil.Process().memory_info().rss
    serve(200)
    assert psutil.Process().memory_info().rss - before < 60e6
