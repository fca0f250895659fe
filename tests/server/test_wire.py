"""The handlers of the checkout on a real TorchServe, with its own reader and with ours: the same answers; the logs and /metrics."""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from batchline import server
from batchline.client import Client
from batchline.properties import read_configuration
from tests.harness import ROOT, STORE

from .conftest import Home

RAISES = '''
from batchline.handlers import VectorClassifier

class Handler(VectorClassifier):
    """Sound while it warms up."""

    served = 0

    def handle(self, data, context):
        self.served += 1
        return super().handle(data, context)

    def postprocess(self, data):
        if self.served:
            raise ArithmeticError("seen in the log")
        return super().postprocess(data)
'''
ROW = json.dumps([index % 17 for index in range(64)]).encode()
PREDICT = "/predictions/{}"
# path, body, headers
REQUESTS = [
    (PREDICT, ROW, {}),
    (PREDICT, ROW, {"Content-Type": "application/json; charset=utf-8", "X-More": "ÿ"}),
    (PREDICT, b"", {}),
    (PREDICT, b"[1, 2", {"Content-Type": "application/json"}),
    (PREDICT, b"\xff\xfe", {"Content-Type": "text/plain"}),
    (PREDICT, b"[" + b"1, " * 300_000 + b"1]", {}),
    (PREDICT, json.dumps({"instances": [[16] * 64] * 300}).encode(), {}),
    ("/explanations/{}", ROW, {}),
    (PREDICT, b"data=" + ROW, {"Content-Type": "application/x-www-form-urlencoded"}),
]


def repack(home: Home, name: str, more: str = "", handler: str | None = None) -> None:
    """The digits archive under another name, with the checkout's handlers and more lines in its model-config.yaml."""
    home.store.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(STORE / "digits.mar") as built, zipfile.ZipFile(home.store / f"{name}.mar", "w") as changed:
        for entry in built.infolist():
            content = built.read(entry)
            if entry.filename == "model-config.yaml":
                content += more.encode()
            if entry.filename == "MAR-INF/MANIFEST.json":
                content = content.replace(b'"modelName": "digits"', f'"modelName": "{name}"'.encode())
            if entry.filename == "handler.py" and handler:
                content = handler.encode()
            if not entry.filename.startswith("batchline/handlers/"):
                changed.writestr(entry, content)
        for path in (ROOT / "handlers").glob("*.py"):
            changed.write(path, f"batchline/handlers/{path.name}")


@pytest.fixture(scope="module")
def home(new_home: Callable[[], Home]) -> Iterator[Home]:
    made = new_home()
    repack(made, "fast")
    repack(made, "slow", "\nfast_wire: false\n")
    repack(made, "raises", handler=RAISES)
    made.configure(
        "fast", "slow", "raises", more=f"metrics_mode=prometheus\ndecode_input_request=false\nmetrics_config={ROOT / 'metrics.yaml'}"
    )
    made.start()
    yield made
    server.stop(made.folder)


def log(home: Home, name: str) -> str:
    return (home.folder / ".batchline" / "logs" / name).read_text()


def url(home: Home, path: str, name: str, port: int = 0) -> str:
    return f"http://127.0.0.1:{home.ports[port]}{path.format(name)}"


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: f"{asked[0][1:5]}-{asked[1][:8]!r}")
def test_both_readers_give_the_same_answer(home: Home, asked: tuple[str, bytes, dict[str, str]]) -> None:
    path, body, headers = asked
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    fast, slow = (requests.post(url(home, path, name), data=body, headers=sent, timeout=60) for name in ("fast", "slow"))
    assert (fast.status_code, fast.content) == (slow.status_code, slow.content)
    assert fast.headers.keys() == slow.headers.keys()
    assert fast.headers["content-type"] == slow.headers["content-type"]
    assert "batch;desc=" in fast.headers["Server-Timing"]


def test_only_the_slow_one_has_torchserves_line_a_batch(home: Home) -> None:
    assert requests.post(url(home, PREDICT, "fast"), data=ROW, timeout=60).ok
    assert requests.post(url(home, PREDICT, "slow"), data=ROW, timeout=60).ok
    lines = [line for line in log(home, "model_log.log").splitlines() if "Backend received inference" in line]
    assert {"-slow_" in line for line in lines} == {True}
    assert "fast_wire is off" not in log(home, "model_log.log")


def test_every_batch_is_on_the_metrics_page(home: Home) -> None:
    def counts() -> dict[tuple[str, str], float]:
        page = requests.get(url(home, "/metrics", "", 2), timeout=60).text
        families = [family for family in text_string_to_metric_families(page) if family.name.startswith("batchline_")]
        samples = [sample for family in families for sample in family.samples if sample.labels.get("ModelName") == "fast"]
        return {
            (sample.name, sample.labels.get("stage", sample.labels.get("kind", ""))): sample.value
            for sample in samples
            if "le" not in sample.labels
        }

    before = counts()
    for _ in range(5):
        assert requests.post(url(home, PREDICT, "fast"), data=ROW, timeout=60).ok
    assert requests.post(url(home, PREDICT, "fast"), data=b"[1]", timeout=60).status_code == 400
    wanted = before.get(("batchline_requests_total", ""), 0) + 6
    until_s = time.monotonic() + 5  # counters lag by a second at most, and the front end reads them in a thread of its own
    while (after := counts()).get(("batchline_requests_total", ""), 0) < wanted and time.monotonic() < until_s:
        time.sleep(0.05)
    assert after["batchline_requests_total", ""] == wanted
    told = after["batchline_batch_size_count", ""]
    assert 1 <= told <= wanted and after["batchline_batch_size_sum", ""] == told  # one at a time
    for stage in ("deserialize", "preprocess", "inference", "serialize"):
        assert after["batchline_stage_duration_seconds_count", stage] == told
    assert after["batchline_busy_seconds_total", ""] > before.get(("batchline_busy_seconds_total", ""), 0)
    assert after["batchline_bad_input_total", "shape"] == before.get(("batchline_bad_input_total", "shape"), 0) + 1


def test_a_traceback_reaches_the_log_and_no_line_a_request_does(home: Home) -> None:
    assert requests.post(url(home, PREDICT, "raises"), data=ROW, timeout=60).status_code == 500
    for _ in range(200):
        if "ArithmeticError: seen in the log" in log(home, "model_log.log"):
            break
        Client.of(read_configuration(home.config), home.folder).models()
    assert "Traceback (most recent call last):" in log(home, "model_log.log")
    assert "ArithmeticError: seen in the log" in log(home, "model_log.log")
    assert "[METRICS]" not in log(home, "ts_log.log")
    assert not re.search("Waiting time ns|[Bb]ackend response|Flushing req.cmd PREDICT", log(home, "ts_log.log"))
    assert "Model fast loaded." in log(home, "ts_log.log")
    assert log(home, "access_log.log") == ""
