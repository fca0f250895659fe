"""The three models exported to a real tritonserver: the handler's answers, errors that stay with their request, warm-up, load."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchline import triton as exporter
from batchline.destination import triton_target
from batchline.errors import RequestFailed, ServerError
from batchline.properties import read_configuration
from tests.harness import ROOT, STORE, Worker, entry_class, load, unpack
from tests.server.triton import Triton, packages, serve

MODELS = ("digits", "efficientnet_lite0", "minilm")
SAMPLES = {name: sorted((ROOT / "models" / name / "samples").iterdir()) for name in MODELS}
COFFEE = (ROOT / "models/efficientnet_lite0/samples/coffee.jpg").read_bytes()
SEVEN = (ROOT / "models/digits/samples/seven.json").read_bytes()
DELAY_MS = 200  # so that requests sent together meet in one batch
INSTANCES = {"digits": 2, "efficientnet_lite0": 1, "minilm": 1, "echo": 1}
BAD = b"[1, 2, 3]"

# Custom handlers that only Triton's side of the bargain can be seen with.
ECHO = """
class Handler:
    def initialize(self, context):
        self.batch_size = context.system_properties["batch_size"]
        self.warm = []

    def handle(self, data, context):
        import ts, sys
        context.metrics.add_time("HandlerTime", 1.0)
        if any(row["body"] == b"raise" for row in data):
            raise ValueError("secret")
        if data[0]["body"] == b"418":
            context.set_response_status(418, "teapot", 0)
        if data[0]["body"] == b"warm":
            self.warm.append(len(data))
        if data[0]["body"] == b"how warm?":
            return [self.warm] * len(data)
        headers = [context.get_all_request_header(i) for i in range(len(data))]
        return [{"headers": head, "ts": hasattr(ts, "__file__"), "batch_size": self.batch_size} for head in headers]
"""


def archive(store: Path, name: str, handler: str, **files: bytes) -> None:
    """A small archive, as torch-model-archiver lays one out."""
    manifest = {"model": {"modelName": name, "handler": "handler.py", "modelVersion": "1.0"}}
    with zipfile.ZipFile(store / f"{name}.mar", "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        mar.writestr("handler.py", handler)
        for path, content in files.items():
            mar.writestr(path, content)


def current(name: str, to: Path) -> None:
    """The model's archive with the handlers as they are in this checkout, which the harness imports too."""
    with zipfile.ZipFile(STORE / f"{name}.mar") as built, zipfile.ZipFile(to / f"{name}.mar", "w") as mar:
        for entry in built.namelist():
            if not entry.startswith("batchline/handlers/"):
                mar.writestr(entry, built.read(entry))
        for path in (ROOT / "handlers").glob("*.py"):
            mar.write(path, f"batchline/handlers/{path.name}")


def settings(name: str) -> dict[str, Any]:
    workers = INSTANCES.get(name, 1)
    return {"1.0": {"minWorkers": workers, "maxWorkers": workers, "batchSize": 6, "maxBatchDelay": DELAY_MS, "responseTimeout": 60}}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three models, an echo, and digits with a warm-up sample that its handler refuses."""
    home = tmp_path_factory.mktemp("triton")
    for name in MODELS:
        current(name, home)
    archive(home, "echo", ECHO, **{"samples/warm.txt": b"warm"})
    with zipfile.ZipFile(home / "digits.mar") as whole, zipfile.ZipFile(home / "broken.mar", "w") as broken:
        for entry in whole.namelist():
            broken.writestr(entry, BAD if entry.startswith("samples/") and not entry.endswith("/") else whole.read(entry))
    names = (*MODELS, "echo", "broken")
    config = home / "config.properties"
    config.write_text(f"models={json.dumps({name: settings(name) for name in names})}\n")
    for name in names:
        exporter.export(name, read_configuration(config), home, home / "repository", "cpu")
    return home / "repository"


@pytest.fixture(scope="module")
def triton(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """All of them on one server whose Python has no TorchServe and no batchline."""
    home = tmp_path_factory.mktemp("server")
    paths = packages(home / "packages", without=r"ts$|torchserve|batchline|__editable__|.*\.pth$|numpy")
    with serve(repository, home, paths, [*MODELS, "echo"]) as running:
        yield running


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Worker]:
    """The same archives behind TorchServe's own Service."""
    home = tmp_path_factory.mktemp("workers")
    return {name: load(entry_class(name), unpack(name, home), name, batch_size=6) for name in MODELS}


@dataclass(frozen=True)
class Case:
    model: str
    body: bytes
    content_type: str = ""


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


PICTURE = base64.b64encode(COFFEE).decode()
ZEROS = [0] * 64
CASES = {
    **{path.name: Case(name, path.read_bytes()) for name in MODELS for path in SAMPLES[name]},
    "digits as KServe v1": Case("digits", _json({"instances": [ZEROS, ZEROS]})),
    "digits as KServe v2": Case(
        "digits", _json({"id": "7", "inputs": [{"name": "x", "shape": [1, 64], "datatype": "INT32", "data": ZEROS}]})
    ),
    "a picture as base64": Case("efficientnet_lite0", _json({"data": PICTURE}), "application/json"),
    "a bracket as text": Case("minilm", b'["not JSON to be read"]', "text/plain"),
    "the same as JSON": Case("minilm", b'["not JSON to be read"]'),
    "a long text": Case("minilm", b"word " * 2000),
    "umlauts": Case("minilm", "Größe \N{SNOWMAN} \x00".encode()),
    "empty": Case("digits", b""),
    "bad JSON": Case("digits", b"{"),
    "too few numbers": Case("digits", BAD),
    "NaN": Case("digits", b"[NaN]"),
    "the third instance": Case("digits", _json({"instances": [ZEROS, ZEROS, [1]]})),
    "no picture": Case("efficientnet_lite0", b"\x00\xff" * 100),
    "half a picture": Case("efficientnet_lite0", COFFEE[: len(COFFEE) // 2]),
    "no text": Case("minilm", b"\xff\xfe"),
    "too many": Case("digits", _json({"instances": [ZEROS] * 4097})),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_as_on_torchserve(triton: Triton, workers: dict[str, Worker], name: str) -> None:
    case = CASES[name]
    wanted = workers[case.model].one(case.body, case.content_type)
    given = triton.post(case.model, case.body, **({"content_type": case.content_type} if case.content_type else {}))
    if wanted.status == 200:
        assert given.status == 200, given.error
        assert len(given.rows) == 1
        assert_close(json.loads(given.rows[0]), wanted.json)
    else:
        assert given.status == 400 and given.rows == []
        assert given.error == f"{wanted.status} {wanted.json['type']}: {wanted.json['message']}"


def assert_close(given: Any, wanted: Any) -> None:
    """Equal JSON, but for the last digits of floats, which change with the batch."""
    if isinstance(wanted, dict):
        assert given.keys() == wanted.keys()
        given, wanted = list(given.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(given) == len(wanted)
        for one, other in zip(given, wanted, strict=True):
            assert_close(one, other)
    else:
        assert given == (pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else wanted)


def test_kserve_v2_as_plain_json(triton: Triton) -> None:
    """What a client without the binary form sends."""
    body = {"inputs": [{"name": "body", "shape": [1, 1], "datatype": "BYTES", "data": [SEVEN.decode()]}]}
    answer = triton.send("digits", _json(body), {"Content-Type": "application/json"})
    (output,) = answer.head["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("answer", "BYTES", [1, 1])
    assert json.loads(output["data"][0])[0]["label"] == "7"


def test_a_bad_request_fails_alone(triton: Triton) -> None:
    """In one batch, as Triton's own counts say."""
    before = triton.executions("digits")
    answers = triton.post_all("digits", [SEVEN, SEVEN, BAD, SEVEN, b"\xff", SEVEN])
    rows, batches = (after - was for after, was in zip(triton.executions("digits"), before, strict=True))
    assert [answer.status for answer in answers] == [200, 200, 400, 200, 400, 200]
    assert all(json.loads(answer.rows[0])[0]["label"] == "7" for answer in answers if answer.status == 200)
    assert (rows, batches) == (6, 1)


def test_content_types_share_a_batch(triton: Triton) -> None:
    before = triton.executions("digits")
    with_type = {"content_type": "application/json"}
    answers = triton.post_all("digits", [SEVEN] * 5)
    assert triton.post("digits", SEVEN, **with_type).status == 200 and {answer.status for answer in answers} == {200}
    assert triton.executions("digits")[1] - before[1] == 2


def test_rows_of_one_request(triton: Triton) -> None:
    """A body a row; the first row in error is the request's error, and says which it is."""
    three = (ROOT / "models/digits/samples/three.json").read_bytes()
    assert [json.loads(row)[0]["label"] for row in triton.post("digits", SEVEN, three).rows] == ["7", "3"]
    refused = triton.post("digits", SEVEN, BAD, b"{")
    assert refused.status == 400 and refused.error.startswith("400 BadInput: body[1]: ")
    assert triton.post("digits", *[SEVEN] * 7).status == 400  # more rows than max_batch_size


def test_a_lying_length_kills_nobody(triton: Triton) -> None:
    """The binary form says how long each value is; one that lies is refused before it reaches the handler."""
    tensor = {"name": "body", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}
    head = _json({"inputs": [tensor]})
    answer = triton.send("digits", head + b"\xff\xff\xff\x00oops", {"Inference-Header-Content-Length": str(len(head))})
    assert answer.status == 400
    assert triton.post("digits", SEVEN).status == 200


def test_settings_arrive(triton: Triton) -> None:
    config = triton.get("models/efficientnet_lite0/config")
    batching = config["dynamic_batching"]
    assert config["max_batch_size"] == 6 and batching["max_queue_delay_microseconds"] == DELAY_MS * 1000
    assert [(group["count"], group["kind"]) for group in config["instance_group"]] == [(1, "KIND_CPU")]
    assert [group["count"] for group in triton.get("models/digits/config")["instance_group"]] == [2]
    assert [warm["batch_size"] for warm in config["model_warmup"]] == [1, 6]
    assert config["version_policy"] == {"specific": {"versions": [1]}}


def test_warm_up_goes_the_whole_way(triton: Triton) -> None:
    """The sample reached the handler through Triton, alone and as a full batch, before anyone asked."""
    assert json.loads(triton.post("echo", b"how warm?").rows[0]) == [1, 6]


def test_a_model_that_cannot_answer_its_sample_is_not_ready(triton: Triton) -> None:
    assert "warm-up on samples/" in triton.load("broken")
    assert not triton.ready("broken") and all(triton.ready(name) for name in MODELS)


def test_instances_share_the_cores(triton: Triton) -> None:
    """Every instance of every model counts; TorchServe's worker script has another name."""
    seen = [int(count) for count in re.findall(r"torch threads: \d+ \(cores \d+, workers (\d+)\)", triton.log.read_text())]
    assert sum(INSTANCES.values()) in seen


def test_headers_and_a_handler_that_fails(triton: Triton) -> None:
    """Any handler of TorchServe's kind, without TorchServe: parameters are its headers, and what it raises stays in the log."""
    said = json.loads(triton.post("echo", b"x", **{"content_type": "text/plain", "X-Request-Start": "t=1", "explain": True}).rows[0])
    assert said == {"headers": {"content-type": "text/plain", "x-request-start": "t=1", "explain": "True"}, "ts": False, "batch_size": 6}
    raised = triton.post("echo", b"raise")
    assert raised.status == 503 and raised.error == "503: Prediction failed"
    assert "ValueError: secret" in triton.log.read_text()
    assert triton.post("echo", b"418").error.startswith("418: {")
    assert triton.post("echo", b"x").status == 200


def test_load(triton: Triton) -> None:
    """`batchline load --server triton`: pictures in the binary form, texts of different lengths under one header."""
    for model in ("efficientnet_lite0", "minilm"):
        command = [sys.executable, "-m", "batchline", "load", model, "--server", "triton", "--url", triton.url]
        done = subprocess.run([*command, "--clients", "2", "--duration-s", "1"], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert re.search(r"statuses +│ 200: \d+ *$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_load_where_there_is_nothing(triton: Triton, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models" / "digits", tmp_path / "absent")
    for model, models, url, said in (
        ("digits", ROOT / "models", "http://127.0.0.1:9", "no Triton answers at http://127.0.0.1:9"),
        ("absent", tmp_path, triton.url, "has no model 'absent' that is READY"),
    ):
        with pytest.raises((ServerError, RequestFailed), match=re.escape(said)):
            triton_target(url, model, models)


def test_a_numpy_that_the_stub_misreads_is_refused(repository: Path, tmp_path: Path) -> None:
    """The wheel's stub is built for numpy 1: under numpy 2 every byte of an input would be its first one."""
    if int(np.__version__.partition(".")[0]) < 2:
        pytest.skip("this environment has numpy 1")
    with serve(repository, tmp_path, [Path(sysconfig.get_path("purelib"))], ["echo"]) as running:
        assert not running.ready("echo")
        assert f"cannot read numpy {np.__version__}" in running.log.read_text()
