"""One request as a sum of stages, on a real TorchServe: the three models, and handlers whose times are known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchline import server
from batchline.client import Client
from batchline.errors import LoadError, MeasureError, RequestFailed, ServerError
from batchline.journey import Offered, Subject, measure, subject
from batchline.properties import Configuration, read_configuration
from batchline.stages import COVERED, Journey, add_up
from tests.harness import ROOT, STORE
from tests.server.conftest import GOOD, Home

LOAD_S, INFERENCE_S = 2.0, 0.05
# Loads for seconds, has nothing to preprocess, and works for a known time.
SLOW = f"""
import time


class Handler:
    def initialize(self, context):
        time.sleep({LOAD_S})
        self.initialized = True

    def handle(self, data, context):
        began = time.perf_counter()
        time.sleep({INFERENCE_S})
        taken_ms = (time.perf_counter() - began) * 1e3
        for index in range(len(data)):
            stages = f"deserialize;dur=0, preprocess;dur=0, inference;dur={{taken_ms:.3f}}, serialize;dur=0"
            context.set_response_header(index, "Server-Timing", f'{{stages}}, batch;desc="{{len(data)}}"')
        return ["done" for _ in data]
"""
REFUSES = """
class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        for index in range(len(data)):
            context.set_response_status(400, "Bad Request", index)
        return ["no" for _ in data]
"""


HANDLERS = {"slow": SLOW, "plain": GOOD, "refuses": REFUSES}
OURS = ("efficientnet_lite0", "minilm", "digits")


@dataclass(frozen=True)
class Running:
    """A home whose server runs."""

    configuration: Configuration
    models: Path
    home: Path
    config: Path

    def subject(self, model: str) -> Subject:
        return subject(self.configuration, model, self.models, self.home)

    def journey(self, model: str, duration_s: float = 1.0, **offered: float) -> Journey:
        return add_up(measure(self.subject(model), Offered(duration_s, **offered)))  # type: ignore[arg-type]


def samples(models: Path, *names: str) -> None:
    for name in names:
        (models / name / "samples").mkdir(parents=True)
        for file in ("handler.py", "model-config.yaml"):
            (models / name / file).touch()
        (models / name / "samples" / "one.txt").write_text("one")


@pytest.fixture(scope="module")
def known(new_home: Callable[[], Home]) -> Running:
    """Our three models and handlers of a few lines on one server."""
    home = new_home()
    models = home.folder / "models"
    for name, handler in HANDLERS.items():
        home.archive(name, handler)
    samples(models, *HANDLERS, "absent", "empty")
    (models / "empty" / "samples" / "one.txt").unlink()
    for name in OURS:
        shutil.copy(STORE / f"{name}.mar", home.store)
        (models / name).symlink_to(ROOT / "models" / name)
    config = home.configure(*HANDLERS, *OURS, more="metrics_mode=prometheus\ndecode_input_request=false")
    home.start()
    return Running(read_configuration(config), models, home.folder, config)


@pytest.mark.parametrize("model", OURS)
def test_the_parts_add_up_to_the_total(known: Running, model: str) -> None:
    """Within 2% in the mean. A machine that is busy with something else makes single runs worse: the best of three counts."""
    tried: list[Journey] = []
    while not any(abs(found.covered - 1) <= COVERED for found in tried):
        assert len(tried) < 3, [(found.covered, found.doubts) for found in tried]
        tried.append(known.journey(model, 3.0))
    found = tried[-1]
    assert found.doubts == () and found.reports_stages
    shares = {part.name: part.share for part in found.parts}
    assert all(share >= 0 for share in shares.values())
    assert shares["inference"] > 0 and shares["wait"] > 0
    assert shares["network"] < 0.1, "loopback"


def test_what_is_known_of_a_handler_is_found(known: Running) -> None:
    """Nothing to preprocess is 0 and the sum holds; loading took seconds and is in no request; loopback is next to nothing."""
    found = known.journey("slow", 2.0)
    sizes = {part.name: part.ms for part in found.parts}
    assert sizes["preprocess"] == sizes["deserialize"] == 0.0
    assert sizes["inference"] >= INFERENCE_S * 1e3
    assert sizes["wait"] >= 4.5, "maxBatchDelay is 5 ms, and its clock counts whole milliseconds"
    assert sizes["network"] < sizes["inference"] / 10
    assert abs(found.covered - 1) <= COVERED and found.doubts == ()
    assert found.total_ms < LOAD_S * 1e3
    assert found.dominant == "inference" and found.halving_saves_ms == pytest.approx(sizes["inference"] / 2)


def test_under_load_the_wait_dominates(known: Running) -> None:
    """Six clients and batches of two at 50 ms each: two batches are always before one's own."""
    found = known.journey("slow", 2.0, clients=6)
    sizes = {part.name: part.ms for part in found.parts}
    assert found.dominant == "wait" and "Requests wait for a worker: raise batchSize (2)" in found.advice
    assert sizes["wait"] >= INFERENCE_S * 1e3
    assert abs(found.covered - 1) <= COVERED and not found.lone


def test_a_handler_that_does_not_report(known: Running) -> None:
    found = known.journey("plain")
    assert not found.reports_stages
    assert [part.name for part in found.parts] == ["network", "wait", "worker", "front end"]
    assert found.total_ms == pytest.approx(sum(part.ms for part in found.parts) + found.unexplained_ms)


def test_requests_of_others_are_noticed(known: Running) -> None:
    """While ours go out, so does one of another client."""
    client, sent = Client.of(known.configuration, known.home), []

    def progress(records: object, seconds: float) -> None:
        if not sent:
            sent.append(client.predict("slow", b"another"))

    measured = measure(known.subject("slow"), Offered(1.0), progress)
    assert any(doubt.startswith("1 requests of other clients") for doubt in add_up(measured).doubts)


def test_what_cannot_be_measured(known: Running) -> None:
    with pytest.raises(RequestFailed, match="absent"):
        known.journey("absent")
    with pytest.raises(LoadError, match="holds no request to send"):
        known.journey("empty")
    with pytest.raises(MeasureError, match=r"no request to refuses was answered with 2xx \(\d+ x 400\)"):
        known.journey("refuses")


def test_the_command(known: Running) -> None:
    command = [sys.executable, "-m", "batchline", "stages"]
    given = ["--config", str(known.config), "--models", str(known.models), "--duration-s", "1"]
    drawn = subprocess.run([*command, "slow", *given], capture_output=True, text=True)
    assert "Half of inference would save" in drawn.stdout, drawn.stderr
    assert (drawn.returncode == 0) is ("ADDS UP" in drawn.stdout) is ("DOUBTFUL" not in drawn.stdout)
    told = json.loads(subprocess.run([*command, "slow", *given, "--json"], capture_output=True, text=True).stdout)
    assert told["dominant"] == "inference" and told["stages"]["inference"]["ms"] >= INFERENCE_S * 1e3
    failed = subprocess.run([*command, "absent", *given], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("batchline: 404: ") and failed.stderr.count("\n") == 1


def test_without_prometheus_and_without_a_server(home: Home) -> None:
    """TorchServe's own default for metrics_mode shows no counters."""
    samples(home.folder / "models", "good")
    running = Running(read_configuration(home.configure("good")), home.folder / "models", home.folder, home.config)
    home.start()
    with pytest.raises(MeasureError, match="metrics_mode=prometheus"):
        running.journey("good")
    server.stop(home.folder)
    began = time.monotonic()
    with pytest.raises(ServerError, match="no TorchServe answers"):
        running.journey("good")
    assert time.monotonic() - began < 30
