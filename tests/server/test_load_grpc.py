"""Load over gRPC: what a status becomes against a server that says any, and the whole way against a real TorchServe."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchline import cli, inference_pb2, inference_pb2_grpc
from batchline.destination import target
from batchline.errors import ConfigError, LoadError
from batchline.grpcload import status_of
from batchline.load import LoadRun, Target, closed_loop, draw, open_loop
from batchline.properties import read_configuration
from batchline.summary import summarise
from tests.harness import ROOT
from tests.server.conftest import Home, free_ports
from tests.server.served import Served

SEVEN = (ROOT / "models/digits/samples/seven.json").read_bytes()
REFUSAL = b'{"code":400,"type":"BadInput","message":"no"}'
ECHO = """
class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [bytes(row["data"]) for row in data]
"""


class Says(inference_pb2_grpc.InferenceAPIsServiceServicer):  # type: ignore[misc]
    """Answers a body with itself; a model's name is the status to fail with."""

    def __init__(self) -> None:
        self.peers: set[str] = set()
        self.metadata: dict[str, str] = {}

    def Predictions(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.peers.add(context.peer())
        self.metadata = dict(context.invocation_metadata())
        name, _, details = request.model_name.partition(" ")
        if name == "sleep":
            done = threading.Event()
            context.add_callback(done.set)
            done.wait(5.0)
        elif name != "echo":
            context.abort(grpc.StatusCode[name], details.replace("|", "\n"))
        (field,) = request.input.values()
        return inference_pb2.PredictionResponse(prediction=field)


def listen(servicer: Says) -> tuple[grpc.Server, int]:
    listening = grpc.server(ThreadPoolExecutor(8))
    inference_pb2_grpc.add_InferenceAPIsServiceServicer_to_server(servicer, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    listening.start()
    return listening, port


@pytest.fixture(scope="module")
def says() -> Iterator[tuple[str, Says]]:
    servicer = Says()
    listening, port = listen(servicer)
    yield f"grpc://127.0.0.1:{port}", servicer
    listening.stop(None).wait()


def few(url: str, body: bytes = b"x", **kwargs: Any) -> LoadRun:
    return open_loop(Target(url, [body], **kwargs), draw("constant", 50, 0.1, seed=1))


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("INVALID_ARGUMENT", 400),
        ("PERMISSION_DENIED Token Authorization failed.", 403),
        ("NOT_FOUND", 404),
        ("RESOURCE_EXHAUSTED", 503),
        ("UNAVAILABLE", 503),
        ("INTERNAL", 500),
        ("UNKNOWN", 500),
        ("DATA_LOSS", 500),
        ("DEADLINE_EXCEEDED", 0),
        ("CANCELLED", 0),
        ("INTERNAL Model not found: x|org.pytorch.serve.archive.model.ModelNotFoundException", 404),
        ("INTERNAL no worker|InternalServerException.()", 503),
    ],
)
def test_a_grpc_status_becomes_a_number(says: tuple[str, Says], model: str, status: int) -> None:
    run = few(f"{says[0]}/{model.replace(' ', '%20')}")
    assert {r.status for r in run.records} == {status}
    name, _, details = model.partition(" ")
    assert {r.error for r in run.records} == {f"{name}: {details.replace('|', chr(10))}"}


def test_an_error_that_comes_as_ok(says: tuple[str, Says]) -> None:
    url = f"{says[0]}/echo"
    assert {r.status for r in few(url, REFUSAL).records} == {400}
    (record, *_) = few(url, b"[1]").records
    assert (record.status, record.received, record.stages_ms, record.batch_size) == (200, 3, {}, None)
    assert record.sent_s <= record.first_byte_s == record.done_s


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3), max_leaves=5)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_an_answer_is_no_error(body: bytes) -> None:
    assert status_of(body) == 200


@given(
    st.integers(300, 700) | LEAF,
    st.text() | LEAF,
    st.text() | LEAF,
    st.just({}) | st.dictionaries(st.sampled_from(["id", "predictions"]), LEAF),
)
@example(400, "BadInput", "no", {"id": 7})
@example(200, "BadInput", "no", {})
@example(True, "BadInput", "no", {})
def test_an_error_is_one_whole_object(code: Any, kind: Any, message: Any, more: dict[str, Any]) -> None:
    said = {"code": code, "type": kind, "message": message, **more}
    good = type(code) is int and 400 <= code <= 599 and isinstance(kind, str) and isinstance(message, str) and not more
    assert status_of(json.dumps(said).encode()) == (code if good else 200)


@given(st.integers(400, 599), st.text(), st.text())
def test_an_error_is_read(code: int, kind: str, message: str) -> None:
    assert status_of(json.dumps({"code": code, "type": kind, "message": message}).encode()) == code


def test_channels_are_connections(says: tuple[str, Says]) -> None:
    for channels in (1, 3):
        says[1].peers.clear()
        run = closed_loop(Target(f"{says[0]}/echo", [b"x"], channels=channels), clients=6, duration_s=0.5)
        assert len(says[1].peers) == channels
        assert summarise(run).statuses == {200: len(run.records)}
    with pytest.raises(LoadError, match="channels must be positive"):
        few(f"{says[0]}/echo", channels=0)


def test_headers_go_as_metadata(says: tuple[str, Says]) -> None:
    few(f"{says[0]}/echo", headers={"Authorization": "Bearer key"})
    assert says[1].metadata["authorization"] == "Bearer key"
    assert says[1].metadata["x-request-start"].startswith("t=")


def test_no_server_over_grpc() -> None:
    run = few(f"grpc://127.0.0.1:{free_ports(1)[0]}/digits")
    assert {r.status for r in run.records} == {0} and all("UNAVAILABLE" in r.error for r in run.records)
    assert any("no request was answered" in reason for reason in summarise(run).invalid)


def test_a_server_that_dies_leaves_requests_without_an_answer() -> None:
    command = [sys.executable, "-m", "tests.server.test_load_grpc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as dying:
        assert dying.stdout is not None
        url = f"grpc://127.0.0.1:{int(dying.stdout.readline())}/sleep"
        threading.Timer(0.5, dying.kill).start()
        run = open_loop(Target(url, [b"x"]), draw("constant", 100, 0.8, seed=1))
    assert {r.status for r in run.records} == {0}
    assert any("Stream removed" in r.error or "Socket closed" in r.error for r in run.records)
    assert any("failed to connect" in r.error for r in run.records)


def test_an_answer_later_than_the_timeout_is_none(says: tuple[str, Says]) -> None:
    records = few(f"{says[0]}/sleep", timeout_s=0.1).records
    assert {r.status for r in records} == {0} and all(r.error.startswith("DEADLINE_EXCEEDED") for r in records)
    assert all(r.latency_ms >= 100 for r in records)


def test_the_cap_fails_the_run(says: tuple[str, Says]) -> None:
    with pytest.raises(LoadError, match="20 requests in flight"):
        open_loop(Target(f"{says[0]}/sleep", [b"x"]), draw("constant", 200, 1, seed=1), cap=20)


def test_rest_needs_no_grpc() -> None:
    code = "import sys; sys.modules['grpc'] = None\nfrom batchline import cli, load, showload, summary\n"
    code += "load.Target('http://127.0.0.1:1/x', [b'x']).transport()\n"
    code += "from batchline.errors import LoadError\ntry:\n    load.Target('grpc://127.0.0.1:1/x', [b'x']).transport()\n"
    code += "except LoadError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'batchline[grpc]'" in done.stdout


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["batchline", "load", *arguments, "--models", str(ROOT / "models")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, 1), "1: INVALID, as a busy machine makes it"


@pytest.mark.parametrize("way", [("--rate-per-s", "40", "--duration-s", "2"), ("--clients", "2", "--duration-s", "1", "--channels", "2")])
def test_torchserve_over_grpc(served: Served, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    out = served.home / "run.json"
    command(monkeypatch, "digits", "--protocol", "grpc", "--config", str(served.home / "config.properties"), "-o", str(out), *way)
    records = json.loads(out.read_text())["records"]
    assert len(records) > 40 and {record["status"] for record in records} == {200}
    assert all(record["received"] > 0 and not record["stages_ms"] and record["batch_size"] is None for record in records)


def test_a_trace_over_either_protocol(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    times = [n / 40 for n in range(40)]
    (served.home / "times.txt").write_text("\n".join(map(str, times)))
    for protocol in ("rest", "grpc"):
        out, config = served.home / "run.json", str(served.home / "config.properties")
        command(
            monkeypatch, "digits", "--arrivals", str(served.home / "times.txt"), "--protocol", protocol, "--config", config, "-o", str(out)
        )
        content = json.loads(out.read_text())
        assert [record["intended_s"] for record in content["records"]] == times
        assert {record["status"] for record in content["records"]} == {200}
        assert "41.0 offered" in capsys.readouterr().out, "40 requests, the last after 39/40 s"


def test_faults_over_grpc_have_the_numbers_of_rest(served: Served) -> None:
    """The handler's own comes as OK, the front end's as INTERNAL."""
    for model, body in (("digits", b"{"), ("digits", b"[1, 2, 3]"), ("nobody", SEVEN)):
        (status,) = {r.status for r in few(f"grpc://{served.grpc}/{model}", body).records}
        assert status == served.post(model, body).status_code


def test_a_token_and_a_full_queue(home: Home) -> None:
    """One worker that takes a quarter of a second a batch, with room for two requests to wait."""
    home.archive("good", ECHO.replace("return [", "__import__('time').sleep(0.25)\n        return ["))
    home.configure("good", token_auth=True, more="job_queue_size=2")
    home.start()
    models = home.folder / "models"
    (models / "good" / "samples").mkdir(parents=True)
    (models / "good" / "samples" / "one.json").write_bytes(b"[1]")
    for needed in ("handler.py", "model-config.yaml"):
        (models / "good" / needed).touch()
    allowed = target(read_configuration(home.config), "good", models, home.folder, protocol="grpc")
    assert {r.status for r in few(allowed.url, b"[1]").records} == {403}
    run = open_loop(allowed, draw("constant", 40, 1, seed=1))
    assert {r.status for r in run.records} == {200, 503}
    assert "has no worker" in next(r.error for r in run.records if r.status == 503)


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "config.properties"
    config.write_text("enable_grpc_ssl=true\n")
    with pytest.raises(LoadError, match="rest or grpc, not 'soap'"):
        target(read_configuration(config), "digits", ROOT / "models", protocol="soap")
    with pytest.raises(LoadError, match="channels are for gRPC"):
        target(read_configuration(config), "digits", ROOT / "models", channels=2)
    from batchline.destination import _grpc_url

    with pytest.raises(ConfigError, match="enable_grpc_ssl"):
        _grpc_url(read_configuration(config), "digits")


if __name__ == "__main__":
    server_, port_ = listen(Says())
    print(port_, flush=True)
    server_.wait_for_termination()
