"""`batchline measure` on models whose c and m are known because they sleep, served by a real TorchServe."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from batchline.errors import MeasureError
from batchline.fit import fit
from batchline.measure import Subject, begin, measure, subject
from batchline.measured import Measured, Plan, read_measured, write_measured
from batchline.properties import read_configuration

from .conftest import Home

NAME = "known"
# TorchServe takes 2 to 5 ms a batch, more on a busy machine: c is large enough that this is well within 3% of it.
C_MS, M_MS = 300.0, 80.0
# Sleeping is exact to a tenth of a millisecond; the last two are spun.
KNOWN = """
import time

class Handler:
    def initialize(self, context):
        self.initialized = True
        self.calls = 0

    def handle(self, data, context):
        self.calls += 1
        {first}
        due = time.perf_counter() + ({formula}) / 1e3
        time.sleep(max(0.0, due - time.perf_counter() - 0.002))
        while time.perf_counter() < due:
            pass
        return [{{"ok": True}} for _ in data]
"""


def known(home: Home, formula: str, first: str = "pass", config: str = "") -> Subject:
    """A model folder and its archive, whose batch of B takes `formula` milliseconds."""
    home.archive(NAME, KNOWN.format(formula=formula.replace("B", "len(data)"), first=first), config)
    folder = home.folder / "models" / NAME
    (folder / "samples").mkdir(parents=True)
    (folder / "samples" / "one.json").write_text("[1]")
    (folder / "handler.py").write_text("")
    (folder / "model-config.yaml").write_text("")
    return subject(NAME, home.folder / "models", home.store, read_configuration(home.configure(NAME)))


def plan(batch_sizes: tuple[int, ...], workers: tuple[int, ...] = (1,)) -> Plan:
    return Plan(
        batch_sizes=batch_sizes,
        samples=1,
        rounds=3,
        warm_up_s=0.3,
        slot_s=0.2,
        least_batches=2,
        settings=tuple((count, 1) for count in workers),
        setting_batch_size=batch_sizes[-1],
        setting_s=0.8,
        setting_visits=1,
    )


def measure_with(what: Subject, output: Path, made: Plan) -> Measured:
    measured = begin(what, output)
    measured.plan = made
    return measure(what, measured, output)


def started_here() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(home.folder)
    return home


def test_a_known_line_is_recovered_on_the_server_and_alone(folder: Home, tmp_path: Path) -> None:
    """The server's line is the handler's and what TorchServe takes, little beside 300 ms; two sleeping workers do twice as much."""
    what = known(folder, f"{C_MS} + {M_MS} * B")
    found = fit(measure_with(what, tmp_path / "run.json", plan((1, 2, 4), workers=(1, 2))))
    assert found.handler
    for line in (found.server, found.handler):
        assert line.linear and line.ceiling
        assert (line.c_ms, line.m_ms) == (pytest.approx(C_MS, rel=0.03), pytest.approx(M_MS, rel=0.03))
        assert line.ceiling == pytest.approx(1 + C_MS / M_MS, rel=0.06)
    assert found.request_ms and found.request_ms > C_MS + M_MS
    assert found.scaling and found.scaling.peak.workers == 2
    assert found.scaling.per_s(2) == pytest.approx(2 * 4 / ((C_MS + 4 * M_MS) / 1e3), rel=0.15)
    assert read_measured(tmp_path / "run.json").complete
    assert not started_here()


def test_the_first_batches_of_a_new_worker_do_not_pass_for_contention(folder: Home, tmp_path: Path) -> None:
    what = known(folder, "40 + 2 * B", first="time.sleep(0.3 if self.calls <= 3 else 0)")
    made = replace(plan((1, 2, 4), workers=(1, 2)), warm_up_s=2.0, setting_visits=2, settings_of_one=True)
    measured = measure_with(what, tmp_path / "run.json", made)
    per_s = {(run.batch_size, run.visit, run.workers): run.per_s for run in measured.settings}
    assert len(per_s) == 8, "batches of four and of one, up and down"
    for size, visit in ((4, 0), (4, 1), (1, 0), (1, 1)):
        assert per_s[size, visit, 2] == pytest.approx(2 * per_s[size, visit, 1], rel=0.15)


def test_a_bent_one_is_refused(folder: Home, tmp_path: Path) -> None:
    what = known(folder, "20 + 4 * B + (60 if B > 2 else 0)")
    found = fit(measure_with(what, tmp_path / "run.json", plan((1, 2, 4, 8))))
    assert found.handler and not found.server.linear and not found.handler.linear
    assert found.server.ceiling is None and found.overhead_ms is None
    assert found.server.batch_ms(8) == pytest.approx(20 + 32 + 60, rel=0.1)


@pytest.mark.parametrize(
    ("first", "config", "said"),
    [
        ("assert self.calls % 2, 'every other batch fails'", "", "answered 503"),
        ("pass", "batchSize: 3\nmaxBatchDelay: 5\n", "take batchSize out of its model-config.yaml"),
    ],
)
def test_a_server_that_does_not_do_as_it_should(folder: Home, tmp_path: Path, first: str, config: str, said: str) -> None:
    """One clear message; an earlier measurement is kept."""
    what = known(folder, "5 + B", first, config)
    with pytest.raises(MeasureError, match=said) as raised:
        measure_with(what, tmp_path / "run.json", plan((1, 2)))
    assert "\n" not in str(raised.value)
    assert not started_here()
    assert not (tmp_path / "run.json").exists() or not read_measured(tmp_path / "run.json").complete


def test_a_handler_that_does_not_load_tells_its_own_words(folder: Home, tmp_path: Path) -> None:
    what = known(folder, "5 + B")
    folder.archive(NAME, KNOWN.format(formula="1", first="pass").replace("self.calls = 0", "raise ValueError('no weights here')"))
    with pytest.raises(Exception, match="no weights here"):
        measure_with(what, tmp_path / "run.json", plan((1,)))
    assert not started_here() and not (tmp_path / "run.json").exists()


def test_interrupted_and_resumed(folder: Home, new_home: Callable[[], Home]) -> None:
    """Ctrl-C leaves a valid file and no process; --resume adds what is missing, and the user's own server is not touched."""
    what = known(folder, "10 + 2 * B")
    own = folder.start()
    command = [sys.executable, "-m", "batchline", "measure", NAME, "--quick", "--batch-sizes", "1,2,4", "-o", "run.json"]
    running = subprocess.Popen(command, cwd=folder.folder, stdout=subprocess.PIPE, text=True, preexec_fn=_default_sigint)
    until = time.monotonic() + 120
    while not (folder.folder / "run.json").exists() and time.monotonic() < until and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=60)
    assert running.returncode == 130 and "--resume" in printed
    assert {p.pid for p in started_here()} <= {own.pid, *(c.pid for c in psutil.Process(own.pid).children(recursive=True))}
    before = read_measured(folder.folder / "run.json")
    assert not before.complete and before.batches
    # What is missing of the plan is more of the same: this much of it tells as much.
    before.plan = replace(before.plan, rounds=3, settings=((1, 1),), setting_visits=1)
    write_measured(folder.folder / "run.json", before)

    resumed = subprocess.run([*command, "--resume"], cwd=folder.folder, capture_output=True, text=True, check=True, timeout=200)
    after = read_measured(folder.folder / "run.json")
    assert after.complete and after.batches[: len(before.batches)] == before.batches
    assert "c = 1" in resumed.stdout and "expected: about" in resumed.stdout
    assert fit(after).handler and fit(after).handler.c_ms == pytest.approx(10, rel=0.1)  # type: ignore[union-attr]
    assert own.process() and own.client(folder.folder).describe(NAME)[0]["workers"][0]["status"] == "READY"
    assert what.archive.is_file()


def _default_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
