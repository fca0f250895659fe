"""What the parts of `make bench-tune` share: the model, its measurement, turns under a lock, a record that can be gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from turns import Turns

from batchline import measure, runfile, verify
from batchline.candidates import Candidates
from batchline.load import LoadRun, closed_loop, open_loop
from batchline.measure import Subject
from batchline.measured import Measured, read_measured
from batchline.properties import read_configuration
from batchline.queueing import Setting
from batchline.saturate import saturate
from batchline.service import Model, model_of
from batchline.summary import summarise
from batchline.swept import Candidate

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "bench" / "tune"
MODELS = ("sleep", "digits", "efficientnet_lite0", "minilm")
LIMITS_MS = {"sleep": 150.0, "digits": 25.0, "efficientnet_lite0": 150.0, "minilm": 60.0}
WARM_UP_S, JVM_WARM_UP_S = 1.5, 3.0
QUEUE_LIMIT = 100
SIZES = (1, 4, 8, 16, 32)  # that a quick measurement takes here: workers are compared with batches of 8
# c = 20 ms, m = 2 ms: known, exact to a tenth of a millisecond, and of no core.
SLEEPS = """
import time


class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        due = time.perf_counter() + (20 + 2 * len(data)) / 1e3
        time.sleep(max(0.0, due - time.perf_counter()))
        for index in range(len(data)):
            context.set_response_header(index, "Server-Timing", f'batch;desc="{len(data)}"')
        return ["done" for _ in data]
"""


@dataclass
class Bench:
    """One model on this machine.

    Attributes:
        subject: the model.
        measured: its measurement.
        model: what that says.
        turns: the lock.
        record: what is done so far, by a key of each step; written after each.
        output: where; None to keep nothing.
        console: where progress is told.
        fresh: the measurement was made just now, and nothing was predicted from it yet.
    """

    subject: Subject
    measured: Measured
    model: Model
    turns: Turns
    output: Path | None
    console: Console
    fresh: bool = False
    record: dict[str, Any] = field(default_factory=dict)

    def done(self, part: str, key: str) -> Any:
        """The result of a step that was taken before, else None."""
        return self.record.get(part, {}).get(key)

    def keep(self, part: str, key: str, result: Any) -> Any:
        """Writes a step's result down."""
        self.record.setdefault(part, {})[key] = result
        self.write()
        return result

    def write(self) -> None:
        """Puts the record into its file."""
        if self.output:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            runfile.put(self.output, self.record, indent=1)

    def say(self, words: str) -> None:
        """A line of progress."""
        self.console.print(f"{time.strftime('%H:%M:%S')} {words}", highlight=False, soft_wrap=True)

    def measured_now(self, number: int) -> Model:
        """What a quick measurement says at this very time: a shared machine is faster in one quarter of an hour than in the next."""
        if self.fresh:
            self.fresh = False
            return self.model
        path = HOME / f"run-{self.subject.recipe.name}-{number}.json"
        with self.turns.turn():
            self.say(f"measuring, for the settings of group {number + 1}")
            begun = measure.begin(self.subject, path, overwrite=True, quick=True, batch_sizes=SIZES)
            return model_of(measure.measure(self.subject, begun, path), self.subject.archive)

    @contextlib.contextmanager
    def serve(self, candidates: list[Candidate]) -> Iterator[Candidates]:
        """A server with these settings, started and warm; it stays up while the lock is let go."""
        with contextlib.ExitStack() as stack:
            with self.turns.turn():
                server = stack.enter_context(serving(self.subject, candidates))
            yield server


@contextlib.contextmanager
def serving(subject: Subject, candidates: list[Candidate]) -> Iterator[Candidates]:
    """A server with these settings, started and warm."""
    with Candidates(subject.archive, subject.recipe.version, candidates, subject.base, 1, QUEUE_LIMIT) as server:
        server.warm_up(JVM_WARM_UP_S)
        for candidate in candidates:
            closed_loop(server.target(candidate, subject.bodies), in_flight(candidate.batch_size, candidate.workers), WARM_UP_S)
        yield server


def find(name: str) -> Subject:
    """One of MODELS."""
    models, store = sleeping_model() if name == "sleep" else (ROOT / "models", ROOT / "model_store")
    return measure.subject(name, models, store, read_configuration(ROOT / "config.properties"))


def in_flight(batch_size: int, workers: int) -> int:
    """Requests that keep every worker's next batch full, as far as the queue has room."""
    return min(2 * batch_size * workers, QUEUE_LIMIT)


def saturated_per_s(server: Candidates, candidate: Candidate, bodies: list[bytes], seconds: float, workers: int | None = None) -> float:
    """Requests answered a second with every worker's next batch waiting; the first fill is left out. `workers`: those it was scaled to."""
    clients = in_flight(candidate.batch_size, workers or candidate.workers)
    replies = saturate(server.address, server.path(server.candidates.index(candidate)), bodies, clients, seconds, least=3 * clients)
    ends = sorted(reply.done_s for reply in replies)
    return (len(ends) - 2 * clients) / (ends[-clients - 1] - ends[clients - 1])


@dataclass(frozen=True)
class Told:
    """One run of load: latencies of answered requests in ms, the share over a limit, the generator's faults."""

    rate_per_s: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    mean_batch_size: float | None
    over: float
    invalid: list[str]


def told(run: LoadRun, rate_per_s: float, limit_ms: float) -> Told:
    """A run without its lead-in -> figures; what was not answered well is over the limit."""
    good = np.array([record.latency_ms for record in run.records if record.ok])
    sizes = [1 / record.batch_size for record in run.records if record.ok and record.batch_size]
    mean, p50, p99 = (float(good.mean()), *map(float, np.percentile(good, (50, 99)))) if len(good) else (float("inf"),) * 3
    over = 1 - float((good <= limit_ms).sum()) / len(run.records)
    return Told(rate_per_s, len(run.records), mean, p50, p99, len(sizes) / sum(sizes) if sizes else None, over, summarise(run).invalid)


def load(server: Candidates, candidate: Candidate, bodies: list[bytes], rate_per_s: float, count: int, seed: int, limit_ms: float) -> Told:
    """Poisson load on one setting."""
    times, begin_s = verify.arrivals(rate_per_s, count, (seed,))
    run = open_loop(server.target(candidate, bodies), times)
    return told(verify.counted(run, begin_s, rate_per_s), rate_per_s, limit_ms)


def setting_of(candidate: Candidate) -> Setting:
    """The same for the simulation."""
    return Setting(candidate.batch_size, candidate.max_batch_delay_ms, candidate.workers, 1, QUEUE_LIMIT)


def candidate_of(setting: Setting, name: str) -> Candidate:
    """The same for a server."""
    return Candidate(name, setting.batch_size, max(1, int(setting.max_batch_delay_ms)), setting.workers)


def words(candidate: Candidate) -> str:
    """A setting in short."""
    return f"b={candidate.batch_size} D={candidate.max_batch_delay_ms} N={candidate.workers}"


def sleeping_model() -> tuple[Path, Path]:
    """Folders of models and of archives with `sleep`, whose every batch takes 20 + 2 B ms."""
    models, store = HOME / "models", HOME / "model_store"
    for folder in (models / "sleep" / "samples", store):
        folder.mkdir(parents=True, exist_ok=True)
    (models / "sleep" / "handler.py").write_text(SLEEPS)
    (models / "sleep" / "model-config.yaml").write_text("")
    (models / "sleep" / "samples" / "one.json").write_text("[1]")
    command = [str(Path(sys.executable).parent / "torch-model-archiver"), "--model-name", "sleep", "--version", "1.0", "--force"]
    command += ["--handler", str(models / "sleep" / "handler.py"), "--export-path", str(store)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TMPDIR": str(HOME)})
    return models, store


def begin(name: str, run: Path | None, quick: bool, turns: Turns, output: Path | None, console: Console) -> Bench:
    """The model with its measurement: the one given, the one of an earlier begin of this record, or a new one."""
    HOME.mkdir(parents=True, exist_ok=True)
    subject = find(name)
    record = json.loads(output.read_text()) if output and output.exists() else {}
    path = run or HOME / f"run-{name}.json"
    begun_s, fresh = time.monotonic(), False
    if not run and not (record and path.exists() and read_measured(path).complete):
        with turns.turn():
            console.print(f"{time.strftime('%H:%M:%S')} measuring {name}", highlight=False)
            measure.measure(subject, measure.begin(subject, path, overwrite=True, quick=quick, batch_sizes=SIZES if quick else None), path)
        record, fresh = {**record, "measure_s": time.monotonic() - begun_s}, True
    measured = read_measured(path)
    here = {"machine": asdict(runfile.machine()), "versions": runfile.versions(), "pin_cores": bool(subject.recipe.config.get("pin_cores"))}
    record = {"model": name, **here, "run": path.name, **record}
    made = Bench(subject, measured, model_of(measured, subject.archive), turns, output, console, fresh, record)
    made.write()
    return made
