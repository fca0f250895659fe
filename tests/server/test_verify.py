"""A promise held against a real TorchServe whose model sleeps for a known time; and tuning, which writes only what was kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from batchline import apply, cli, measure, onserver, server, tune, verify
from batchline.errors import MeasureError, RequestFailed, ServerError
from batchline.measured import write_measured
from batchline.properties import ModelSettings, read_configuration, write_models
from batchline.targets import Limits, Target
from batchline.verify import Demand, Verified
from tests.known_run import known_run
from tests.server.conftest import Home

# Long times: what a busy machine adds to 150 ms is little, and the generator may be 5% of the median late.
C_MS, M_MS = 150.0, 0.5
RATE_PER_S = 250.0  # two workers with batches of 32 do 385
SLEEPS = f"""
import time

class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        due = time.perf_counter() + ({C_MS} + {M_MS} * len(data)) / 1e3
        time.sleep(max(0.0, due - time.perf_counter()))
        for index in range(len(data)):
            context.set_response_header(index, "Server-Timing", f'inference;dur={C_MS}, batch;desc="{{len(data)}}"')
        return ["done" for _ in data]
"""


@dataclass(frozen=True)
class Running:
    """A home whose server runs."""

    home: Home
    models: Path

    def subject(self) -> onserver.Subject:
        return onserver.find(read_configuration(self.home.config), "known", self.models, home=self.home.folder)

    def verify(self, limit_ms: float, rate_per_s: float = RATE_PER_S, tries: int = 1) -> Verified:
        """The first run that says something: on a busy machine the generator is late now and then."""
        for seed in range(1, 1 + tries):
            found, _ = verify.verify(self.subject(), Demand(limit_ms, rate_per_s, seed=seed))
            if found.outcome != "invalid":
                break
        return found

    def words(self, verb: str, *more: str) -> list[str]:
        """A command line."""
        given = ["known", "--rate-per-s", f"{RATE_PER_S:g}", "--models", str(self.models), "--config", str(self.home.config)]
        return ["batchline", verb, *given, *more]


@pytest.fixture(scope="module")
def running(new_home: Callable[[], Home]) -> Running:
    home = new_home()
    home.archive("known", SLEEPS)
    models = home.folder / "models"
    (models / "known" / "samples").mkdir(parents=True)
    for name in ("handler.py", "model-config.yaml", "samples/one.json"):
        (models / "known" / name).touch()
    config = home.configure("known", more="metrics_mode=prometheus\ndecode_input_request=false")
    write_models(config, [ModelSettings("known", "1.0", 32, 2, 2, 2, 60)])
    home.start()
    return Running(home, models)


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "WARM_UP_S", 0.5)
    monkeypatch.setattr(measure, "JVM_WARM_UP_S", 0.5)


@pytest.fixture
def untouched(running: Running) -> Iterator[bytes]:
    """config.properties; it must be the same byte for byte afterwards, and the user's server the same process."""
    before, served = running.home.config.read_bytes(), server.running(running.home.folder)
    yield before
    assert running.home.config.read_bytes() == before
    assert server.running(running.home.folder) == served and served


def test_kept(running: Running, untouched: bytes) -> None:
    """Nothing over a far limit: as few requests as the rule can do with, and the figures are the handler's."""
    found = running.verify(1500.0, tries=3)
    assert found.outcome == "kept", (found.judgement, found.invalid)
    assert found.judgement.over == 0 and found.judgement.requests >= 918
    assert found.seen.statuses == {200: found.judgement.requests}
    assert found.seen.throughput_per_s == pytest.approx(RATE_PER_S, rel=0.001)
    assert found.seen.latency_ms["p50"] > C_MS + M_MS
    assert found.seen.mean_batch_size and 5 < found.seen.mean_batch_size <= 32, "about 250/s x 0.16 s / 2"
    assert found.seen.queue_wait_ms and 0 < found.seen.queue_wait_ms < found.seen.latency_ms["mean"] - C_MS
    assert found.seen.p99_interval_ms and found.seen.p99_interval_ms[0] <= found.seen.latency_ms["p99"] <= found.seen.p99_interval_ms[1]


def test_broken_and_the_promise_beside_it(
    running: Running, untouched: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request can be quicker than the handler's 150 ms. What a measurement of that handler promises comes near to what is seen."""
    run, sent = tmp_path / "run.json", tmp_path / "sent.json"
    write_measured(run, known_run(C_MS, M_MS))
    monkeypatch.chdir(running.home.folder)
    for seed in "123":  # the first run that says something
        given = ("--p99-ms", "140", "--seed", seed, "--run", str(run), "--json", "-o", str(sent))
        monkeypatch.setattr("sys.argv", running.words("verify", *given))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        found = json.loads(capsys.readouterr().out)
        if ended.value.code != 2:
            break
    assert (found["outcome"], ended.value.code) == ("broken", 1), found
    assert found["over"] == found["requests"] >= verify.FIRST and not found["kept"]
    assert found["promised"]["p50_ms"] == pytest.approx(found["seen"]["latency_ms"]["p50"], rel=0.2)
    assert len(json.loads(sent.read_text())["records"]) == found["requests"]


def test_invalid(running: Running, untouched: bytes) -> None:
    """Far more than the generator can send: neither kept nor broken, whatever came of the requests."""
    found = running.verify(1500.0, 30_000.0)
    assert found.outcome == "invalid" and verify.exit_status(found) == 2
    assert any("late" in reason or "were due" in reason for reason in found.invalid)


def test_another_server_than_the_one_that_is_written(running: Running, tmp_path: Path) -> None:
    """One sentence each: other settings, none, no server."""
    copy = tmp_path / "config.properties"
    copy.write_bytes(running.home.config.read_bytes())
    for wanted, said in (
        (ModelSettings("known", "1.0", 16, 2, 2, 2, 60), "batch_size 16 is written, 32 in effect"),
        (ModelSettings("known", "1.0", 32, 2, 1, 1, 60), "min_workers 1 is written, 2 in effect"),
        (ModelSettings("known", "2.0", 32, 2, 2, 2, 60), "has no settings for known 1.0"),
    ):
        write_models(copy, [wanted])
        with pytest.raises(MeasureError, match=said) as raised:
            onserver.find(read_configuration(copy), "known", running.models)
        assert "\n" not in str(raised.value)
    with pytest.raises(RequestFailed, match="unknown"):
        onserver.find(read_configuration(copy), "unknown", running.models)
    copy.write_text("management_address=http://127.0.0.1:9\n")
    with pytest.raises(ServerError, match="no TorchServe answers"):
        onserver.find(read_configuration(copy), "known", running.models)


def tuned(running: Running, limit_ms: float, rate_per_s: float = RATE_PER_S, c_ms: float = C_MS) -> tune.Tuned:
    subject = measure.subject("known", running.models, running.home.store, read_configuration(running.home.config))
    return tune.tune(subject, known_run(c_ms, M_MS, cores=1), Target(limit_ms, rate_per_s), Limits(memory_mib=8000.0))


def test_tune_writes_what_was_kept(running: Running) -> None:
    """On a server of its own; the user's stays as it is, and only the model's line of the file changes."""
    before, served = running.home.config.read_text(), server.running(running.home.folder)
    found = tuned(running, 1500.0)
    assert found.kept, (found.why, [attempt.verified for attempt in found.attempts])
    assert running.home.config.read_text() == before, "nothing is written before it is asked for"
    apply.apply(running.home.config, [found.attempts[-1].plan])
    after, chosen = running.home.config.read_text(), found.attempts[-1].plan.setting
    (written,) = read_configuration(running.home.config).models
    assert (written.batch_size, written.max_batch_delay_ms) == (chosen.batch_size, chosen.max_batch_delay_ms)
    assert written.min_workers == written.max_workers == chosen.workers
    assert [a for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b] == [
        line for line in before.splitlines() if line.startswith('  "known"')
    ]
    assert server.running(running.home.folder) == served
    running.home.config.write_text(before)


def test_tune_that_fails_says_so(running: Running, untouched: bytes) -> None:
    """The measurement says 50 ms, the server takes 150: the first plan is broken, and corrected there is none that keeps 120 ms."""
    found = tuned(running, 120.0, rate_per_s=90.0, c_ms=50.0)
    assert not found.kept and [attempt.verified.outcome for attempt in found.attempts] == ["broken"], found
    assert "by what was measured and seen on the server no setting keeps p99 within 120 ms" in found.why


def test_interrupted(running: Running, untouched: bytes, tmp_path: Path) -> None:
    """Ctrl-C while its own server starts: 130, the file as it was, no process left."""
    write_measured(tmp_path / "run.json", known_run(C_MS, M_MS))
    command = running.words("tune", "--p99-ms", "1500", "--run", str(tmp_path / "run.json"), "--model-store", str(running.home.store))
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=running.home.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_default_sigint,
    )
    assert process.stdout
    lines = next((line for line in iter(process.stdout.readline, "") if "of its own starts" in line), "it ended before")
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 130, (lines, said, wrong)
    assert "is as it was" in said and not [child for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def _default_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
