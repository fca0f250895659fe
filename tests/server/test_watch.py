"""`batchline watch` on a real TorchServe: what it shows agrees with what the load saw, and it says what it cannot know."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from batchline import server
from batchline.client import Client
from batchline.destination import target as load_target
from batchline.errors import RequestFailed
from batchline.load import LoadRun, Target, closed_loop, draw, open_loop
from batchline.properties import read_configuration
from batchline.watch import ModelView, View, scrape, view, views
from tests.harness import ROOT, STORE
from tests.server.conftest import GOOD, Home

COMMAND = [sys.executable, "-m", "batchline", "watch"]


@dataclass(frozen=True)
class Watched:
    """A running server and requests for it."""

    home: Home
    client: Client
    target: Target

    def command(self, *more: str) -> list[str]:
        return [*COMMAND, *more, "--config", str(self.home.config)]


@pytest.fixture(scope="module")
def watched(new_home: Callable[[], Home]) -> Watched:
    """Digits, with our handler, and `plain`, with one of a few lines."""
    home = new_home()
    home.archive("plain", GOOD)
    shutil.copy(STORE / "digits.mar", home.store)
    shutil.copy(ROOT / "metrics.yaml", home.folder)
    home.configure("plain", "digits", more="metrics_mode=prometheus\nmetrics_config=metrics.yaml\ndecode_input_request=false")
    home.start()
    configuration = read_configuration(home.config)
    client, target = Client.of(configuration, home.folder), load_target(configuration, "digits", ROOT / "models", home=home.folder)
    closed_loop(target, 1, 0.5)
    client.predict("plain", b"{}")
    return Watched(home, client, target)


def around(client: Client, run: Callable[[], LoadRun], refused: int = 0) -> tuple[View, LoadRun]:
    """A view of an interval that holds a whole run: handlers' metrics come through a log, a moment after the answers, one by one."""
    before = scrape(client, "digits")
    done = run()
    until_s = time.monotonic() + 5
    while True:
        seen = view(before, scrape(client, "digits"))
        (model,) = seen.models
        told = [round((per_s or 0) * seen.seconds) for per_s in (model.handled_per_s, model.refused_per_s)]
        if told == [len(done.records), refused] or time.monotonic() > until_s:
            return seen, done
        time.sleep(0.05)


def test_a_quick_models_requests_are_all_counted(watched: Watched) -> None:
    """Hundreds of batches a second: the histograms are a sample, the counters are not."""
    seen, run = around(watched.client, lambda: closed_loop(watched.target, 4, 1.5))
    (model,) = seen.models
    for rate in (model.offered_per_s, model.handled_per_s):
        assert rate is not None and rate * seen.seconds == pytest.approx(len(run.records))
    batches = sum(1 / record.batch_size for record in run.records if record.batch_size)
    assert model.batches is not None and 1 <= model.batches.count < batches


def test_the_figures_are_those_that_the_load_saw(watched: Watched) -> None:
    """Not about: every request, every batch, every stage's microseconds."""
    open_loop(watched.target, draw("constant", 8, 3.2, seed=1))  # so few that every batch is told, from the next second on
    seen, run = around(watched.client, lambda: open_loop(watched.target, np.repeat(np.arange(8) / 8, 4)))
    (model,) = seen.models
    records, shares = run.records, [1 / record.batch_size for record in run.records if record.batch_size]
    assert len(shares) == len(records) > 20
    for rate in (model.offered_per_s, model.handled_per_s):
        assert rate is not None and rate * seen.seconds == pytest.approx(len(records))
    assert model.batches is not None and model.batches.count == pytest.approx(sum(shares)) and model.batches.count < len(records)
    for stage in model.stages:
        told = sum(record.stages_ms[stage.name] * share for record, share in zip(records, shares, strict=True)) / sum(shares)
        assert stage.mean_ms == pytest.approx(told, abs=0.002), "the log has whole microseconds, the header rounds too"
    assert [stage.name for stage in model.stages] == ["deserialize", "preprocess", "inference", "serialize"]
    assert model.latency_ms is not None and model.queue_ms is not None
    assert 0 < model.queue_ms < model.latency_ms < sum(record.latency_ms for record in records) / len(records)
    assert 0 < (model.busy or 0) < 1 and model.missing == seen.missing == ()


def test_a_known_rate_is_seen_while_it_is_offered(watched: Watched) -> None:
    load = threading.Thread(target=lambda: open_loop(watched.target, draw("constant", 40, 3.2, seed=1)), daemon=True)
    load.start()
    looks = views(watched.client, "digits", 1.0)
    next(looks)  # the load is there now
    (model,) = next(looks).models
    load.join()
    assert model.offered_per_s == pytest.approx(40, rel=0.1)
    assert model.handled_per_s == pytest.approx(40, rel=0.1)
    assert model.waiting <= model.capacity == 100 and (model.workers, model.ready) == (1, 1)


def test_refused_requests_are_counted(watched: Watched) -> None:
    bad = Target(watched.target.url, [b"{"])
    seen, run = around(watched.client, lambda: open_loop(bad, draw("constant", 20, 0.5, seed=1)), refused=10)
    assert {record.status for record in run.records} == {400}
    assert (seen.models[0].refused_per_s or 0) * seen.seconds == pytest.approx(len(run.records))


def test_every_model_and_one_that_is_not_ours(watched: Watched) -> None:
    before = scrape(watched.client)
    watched.client.predict("plain", b"{}")
    seen = view(before, scrape(watched.client))
    models: dict[str, ModelView] = {model.model: model for model in seen.models}
    assert list(models) == ["digits", "plain"] and seen.missing == ()
    plain = models["plain"]
    assert (plain.offered_per_s or 0) * seen.seconds == pytest.approx(1)
    assert plain.latency_ms is not None and plain.stages == () and plain.busy is None
    assert "the handler of plain reports no batches" in plain.missing[0] and models["digits"].missing == ()
    with pytest.raises(RequestFailed, match="absent"):
        scrape(watched.client, "absent")


def test_once_as_text_and_as_json(watched: Watched) -> None:
    told = json.loads(subprocess.run(watched.command("digits", "--once", "--json", "--interval-s", "0.3"), capture_output=True).stdout)
    (model,) = told["models"]
    assert model["model"] == "digits" and model["offered_per_s"] == 0 and model["latency_ms"] is None
    assert told["seconds"] == pytest.approx(0.3, abs=0.25)
    drawn = subprocess.run(
        watched.command("--once", "--interval-s", "0.3"), capture_output=True, text=True, env={**os.environ, "COLUMNS": "40"}
    )
    assert drawn.returncode == 0, drawn.stderr
    assert "digits 1.0" in drawn.stdout and max(map(len, drawn.stdout.splitlines())) <= 40


def test_in_a_terminal_until_ctrl_c(watched: Watched) -> None:
    master, slave = pty.openpty()
    running = subprocess.Popen(watched.command("digits", "--interval-s", "0.2"), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    drawn = b""
    while b"READY" not in drawn:
        drawn += os.read(master, 4096)
    running.send_signal(signal.SIGINT)
    try:
        while more := os.read(master, 4096):
            drawn += more
    except OSError:  # the other end is closed: the process has ended
        pass
    os.close(master)
    assert running.wait(20) == 0
    assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l"), "the cursor is back"
    assert b"Traceback" not in drawn


def test_without_prometheus_until_the_server_stops(home: Home, tmp_path: Path) -> None:
    """No terminal, TorchServe's own settings for metrics: jobs and workers are still shown, line by line."""
    home.configure("good")
    home.start()
    command = [*COMMAND, "good", "--interval-s", "0.2", "--config", str(home.config)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stderr is not None
    missing, line = running.stdout.readline(), running.stdout.readline()
    assert "set metrics_mode=prometheus" in missing
    assert "good ?/s offered, latency -, queue -, waiting 0, 1 of 1 READY" in line
    server.stop(home.folder)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 1
    assert said.startswith("batchline: TorchServe at ") and "no longer answers" in said and said.count("\n") == 1
    down = subprocess.run(command, capture_output=True, text=True)
    assert down.returncode == 1 and down.stderr.startswith("batchline: no TorchServe answers at ") and down.stderr.count("\n") == 1
