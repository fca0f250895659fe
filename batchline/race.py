"""Which form of a model is the fastest on this machine: torch, torch.compile, AOTInductor, onnxruntime or OpenVINO.

Every form is put into a copy of the archive and runs through the whole handler, in a process like a worker's. All of them take
turns, batch size by batch size, in random order. A form whose answers to the samples are not those of eager float32 does not win.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchline.alone import Alone
from batchline.archive import forms_folder, make_weights, weights_of
from batchline.convert import convert
from batchline.errors import ArchiveError, MeasureError
from batchline.recipe import CHOICE, RUNTIMES, Recipe, read_recipe
from batchline.runfile import Machine, machine, put, versions

FORMAT = "batchline-race/1"
BATCH_SIZES = (1, 4, 16)
ROUNDS = 5
LEAST_BATCHES = 3
SLOT_S = 0.2
TIE = 0.05  # forms that are this close are as fast as each other
SCORE_TOLERANCE = 1e-3  # of any number in an answer, absolute or relative, against eager float32
REFERENCE = "torch"
THREADS = "BATCHLINE_THREADS"  # handlers/runtime.py
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Lane:
    """One form with one thread count.

    Attributes:
        batch_ms: median by batch size, the whole handler.
        inference_ms: its inference stage, where the handler reports it.
        difference: the largest of a number in an answer from eager float32's.
        same_answers: within the tolerance, and the best label is the same.
    """

    runtime: str
    threads: int
    batch_ms: dict[int, float]
    inference_ms: dict[int, float]
    difference: float
    same_answers: bool

    @property
    def request_ms(self) -> float:
        """Milliseconds a request, the geometric mean over the batch sizes: no size weighs more than another."""
        return math.exp(float(np.mean([math.log(ms / size) for size, ms in self.batch_ms.items()])))


@dataclass(frozen=True)
class Race:
    """The result.

    Attributes:
        winner: the runtime.
        lanes: every form that ran, fastest with one thread first.
        absent: why a form did not run, in words.
    """

    model: str
    winner: str
    lanes: list[Lane]
    absent: dict[str, str]
    machine: Machine
    versions: dict[str, str]


def race(
    model: str,
    models: Path,
    store: Path,
    build_dir: Path = Path("build"),
    runtimes: Sequence[str] = RUNTIMES,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Race:
    """Runs every form of `runtimes` that this machine can, and torch, which they are held against.

    Args:
        model: its name.
        models: the folder of model folders.
        store: the folder of archives.
        build_dir: where weights and forms are kept.
        runtimes: of recipe.RUNTIMES.
        rounds: turns of each form and batch size.
        progress: called before each turn.

    Raises:
        MeasureError: no archive or no samples, or not even torch runs.
    """
    recipe, archive = read_recipe(model, models), store / f"{model}.mar"
    if not archive.is_file():
        raise MeasureError(f"no archive {archive}; `make archive` builds it.")
    if not recipe.samples:
        raise MeasureError(f"{recipe.folder / 'samples'} holds no request to race with; put real ones there, one a file.")
    if "runtime" in recipe.config:
        raise MeasureError(f"{recipe.folder / 'model-config.yaml'} names a runtime, which wins over any race; take it out to race.")
    absent: dict[str, str] = {}
    lanes: list[Lane] = []
    with tempfile.TemporaryDirectory(prefix="batchline-race-") as scratch:
        entered = [runtime for runtime in RUNTIMES if runtime in (REFERENCE, *runtimes)]
        archives = dict(_archives(recipe, archive, entered, build_dir, Path(scratch), absent))
        for threads in sorted({1, machine().cores}):
            lanes += _heat(recipe, archives, threads, rounds, absent, progress)
    if not any(lane.runtime == REFERENCE for lane in lanes):
        raise MeasureError(f"{model} does not run with torch: {absent.get(REFERENCE, 'no reason')}")
    lanes.sort(key=lambda lane: (lane.threads, lane.request_ms))
    return Race(model, _winner(lanes), lanes, absent, machine(), versions())


def parse_runtimes(text: str) -> tuple[str, ...]:
    """Turns "onnxruntime,openvino" into a tuple, nothing into all. Raises MeasureError for an unknown one."""
    names = tuple(name.strip() for name in text.split(",")) if text else RUNTIMES
    if unknown := [name for name in names if name not in RUNTIMES]:
        raise MeasureError(f"{unknown[0]!r} is no form of a model; there are {', '.join(RUNTIMES)}.")
    return names


def write_choice(recipe: Recipe, found: Race) -> Path:
    """models/NAME/runtime.json: the winner, which the next `make archive` packs, and the table that it won by."""
    path = recipe.folder / CHOICE
    table = [{**asdict(lane), "request_ms": lane.request_ms} for lane in found.lanes]
    facts = {"absent": found.absent, "machine": asdict(found.machine), "versions": found.versions}
    put(path, {"format": FORMAT, "runtime": found.winner, "table": table, **facts}, indent=1)
    return path


def _archives(
    recipe: Recipe, archive: Path, runtimes: Sequence[str], build_dir: Path, scratch: Path, absent: dict[str, str]
) -> Iterator[tuple[str, Path]]:
    """A copy of the archive for each form that can be made."""
    weights = weights_of(make_weights(recipe, build_dir))
    for runtime in runtimes:
        try:
            form = convert(weights, runtime, forms_folder(recipe.name, build_dir))
        except ArchiveError as error:
            absent[runtime] = str(error).splitlines()[-1]
            continue
        made = scratch / runtime / archive.name
        made.parent.mkdir()
        _repack(archive, made, runtime, form)
        yield runtime, made


def _repack(archive: Path, made: Path, runtime: str, form: Path | None) -> None:
    """The archive with another choice and that form; model-config.yaml's own `runtime` would win over it."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            if entry.filename not in (CHOICE, form.name if form else ""):
                new.writestr(entry, old.read(entry))
        new.writestr(CHOICE, json.dumps({"runtime": runtime}))
        if form:
            new.write(form, form.name)


def _heat(
    recipe: Recipe, archives: dict[str, Path], threads: int, rounds: int, absent: dict[str, str], progress: Progress | None
) -> list[Lane]:
    """All forms with this many threads, turn by turn."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {THREADS: str(threads)}
    with ExitStack() as stack:
        running: dict[str, Alone] = {}
        for runtime, archive in archives.items():
            alone = stack.enter_context(Alone(archive, recipe.samples, max(BATCH_SIZES), environment))
            try:
                alone.wait_ready()
                alone.check_fallback()
            except MeasureError as error:
                absent[runtime] = str(error).splitlines()[-1]
                continue
            running[runtime] = alone
        answers = {runtime: alone.answers() for runtime, alone in running.items()}
        times = _times(running, rounds, f"{threads} thread{'s' * (threads > 1)}", progress)
    reference = answers.get(REFERENCE)
    return [_lane(runtime, threads, found, answers[runtime], reference) for runtime, found in times.items()]


def _times(
    running: dict[str, Alone], rounds: int, words: str, progress: Progress | None
) -> dict[str, dict[int, list[tuple[float, dict[str, float]]]]]:
    """Runtime -> batch size -> (milliseconds, by stage) of each batch; the first of every turn is a warm-up and not kept."""
    chance = random.Random(1)
    turns = [(runtime, size) for runtime in running for size in BATCH_SIZES]
    found: dict[str, dict[int, list[tuple[float, dict[str, float]]]]] = {runtime: {size: [] for size in BATCH_SIZES} for runtime in running}
    for number in range(rounds):
        chance.shuffle(turns)
        for place, (runtime, size) in enumerate(turns):
            if progress:
                progress(number * len(turns) + place, rounds * len(turns), f"{runtime}, batches of {size}, {words}")
            found[runtime][size] += running[runtime].run_for(size, SLOT_S, LEAST_BATCHES)
    return found


def _lane(
    runtime: str, threads: int, found: dict[int, list[tuple[float, dict[str, float]]]], answers: list[Any], reference: list[Any] | None
) -> Lane:
    difference, same = compare(answers, reference) if reference is not None else (math.inf, False)
    batch_ms = {size: float(np.median([ms for ms, _ in times])) for size, times in found.items()}
    told = {size: [stages["inference"] for _, stages in times if "inference" in stages] for size, times in found.items()}
    inference_ms = {size: float(np.median(times)) for size, times in told.items() if times}
    return Lane(runtime, threads, batch_ms, inference_ms, min(difference, 1e9), same)


def compare(answers: Sequence[Any], reference: Sequence[Any]) -> tuple[float, bool]:
    """The largest difference of a number, and whether all answers are the same: shape, words, best label, numbers in tolerance."""
    pairs = [_difference(answer, wanted) for answer, wanted in zip(answers, reference, strict=True)]
    largest = max(pairs, default=0.0)
    return largest, largest <= SCORE_TOLERANCE


def _difference(answer: Any, wanted: Any) -> float:
    """Of two answers; infinite where they differ in more than numbers. A classifier's labels are compared by name: near ties may swap."""
    if isinstance(wanted, bool) or isinstance(answer, bool) or wanted is None or isinstance(wanted, str):
        return 0.0 if answer == wanted else math.inf
    if isinstance(wanted, (int, float)):
        return abs(answer - wanted) / max(1.0, abs(wanted)) if isinstance(answer, (int, float)) else math.inf
    if type(answer) is not type(wanted) or len(answer) != len(wanted):
        return math.inf
    if isinstance(wanted, dict):
        return max((_difference(answer.get(key), value) for key, value in wanted.items()), default=0.0)
    if wanted and all(isinstance(entry, dict) and "label" in entry for entry in [*wanted, *answer]):
        return _label_difference(answer, wanted)
    return max((_difference(one, other) for one, other in zip(answer, wanted, strict=True)), default=0.0)


def _label_difference(answer: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> float:
    if answer[0]["label"] != wanted[0]["label"]:
        return math.inf
    scores = {entry["label"]: entry for entry in answer}
    least = min(float(entry.get("score", 0.0)) for entry in answer)  # a label that fell off the end scores no more than the last
    return max(_difference(scores.get(entry["label"], {**entry, "score": least}), entry) for entry in wanted)


def _winner(lanes: Sequence[Lane]) -> str:
    """The fastest with one thread a worker, which is how the plan serves; of forms as fast the one with fewer dependencies."""
    ready = [lane for lane in lanes if lane.threads == 1 and lane.same_answers]
    fastest = min(lane.request_ms for lane in ready)
    return min((lane for lane in ready if lane.request_ms <= fastest * (1 + TIE)), key=lambda lane: RUNTIMES.index(lane.runtime)).runtime
