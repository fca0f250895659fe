"""Which form of a model is the fastest on this machine: torch, torch.compile, AOTInductor, onnxruntime or OpenVINO.

Every form is put into a copy of the archive and runs through the whole handler, in a process like a worker's. All of them take
turns, batch size by batch size, in random order. A form whose answers to the samples are not those of eager float32 does not win.
One of less precision (bf16, int8) takes part only when it is allowed to, and what that costs in accuracy is measured.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from batchline.alone import Alone
from batchline.archive import forms_folder, make_weights, weights_of
from batchline.convert import convert
from batchline.errors import ArchiveError, MeasureError
from batchline.recipe import CHOICE, LABELLED, RUNTIMES, Recipe, read_recipe
from batchline.runfile import Machine, machine, put, versions

FORMAT = "batchline-race/1"
BATCH_SIZES = (1, 4, 16)
ROUNDS = 5
LEAST_BATCHES = 3
SLOT_S = 0.2
TIE = 0.05  # forms that are this close are as fast as each other
SCORE_TOLERANCE = 1e-3  # of any number in an answer, absolute or relative, against eager float32
REDUCED_TOLERANCE = 0.05  # the same for a form that was allowed less precision; the best label is the same all the same
ACCURACY_COST = 0.005  # of the labelled requests, that such a form may answer worse
REDUCED = {"bf16": ("torch", "openvino"), "int8": ("onnxruntime",)}  # who computes in it
F32 = "f32"
MOST_LABELLED = 2000
THREADS = "BATCHLINE_THREADS"  # handlers/cores.py
Progress = Callable[[int, int, str], None]


class Form(NamedTuple):
    """What runs a model, and in what precision."""

    runtime: str
    precision: str = F32

    def __str__(self) -> str:
        return self.runtime if self.precision == F32 else f"{self.runtime} {self.precision}"


REFERENCE = Form("torch")


@dataclass(frozen=True)
class Lane:
    """One form with one thread count.

    Attributes:
        batch_ms: median by batch size, the whole handler.
        inference_ms: its inference stage, where the handler reports it.
        difference: the largest of a number in an answer from eager float32's.
        same_answers: within the tolerance of its precision, and the best label is the same.
        accuracy: share of the model's labelled requests whose best label is right; None where there are none.
    """

    runtime: str
    threads: int
    batch_ms: dict[int, float]
    inference_ms: dict[int, float]
    difference: float
    same_answers: bool
    precision: str = F32
    accuracy: float | None = None

    @property
    def form(self) -> Form:
        """Which it is."""
        return Form(self.runtime, self.precision)

    @property
    def request_ms(self) -> float:
        """Milliseconds a request, the geometric mean over the batch sizes: no size weighs more than another."""
        return math.exp(float(np.mean([math.log(ms / size) for size, ms in self.batch_ms.items()])))


@dataclass(frozen=True)
class Race:
    """The result.

    Attributes:
        winner: the form.
        lanes: every form that ran, fastest with one thread first.
        absent: why a form did not run, in words.
    """

    model: str
    winner: Form
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
    allowed: Sequence[str] = (),
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
        allowed: precisions below float32 that may take part.

    Raises:
        MeasureError: no archive or no samples, or not even torch runs.
    """
    recipe, archive = read_recipe(model, models), store / f"{model}.mar"
    if not archive.is_file():
        raise MeasureError(f"no archive {archive}; `make archive` builds it.")
    if not recipe.samples:
        raise MeasureError(f"{recipe.folder / 'samples'} holds no request to race with; put real ones there, one a file.")
    for key in ("runtime", "precision"):
        if key in recipe.config:
            raise MeasureError(f"{recipe.folder / 'model-config.yaml'} names a {key}, which wins over any race; take it out to race.")
    absent: dict[str, str] = {}
    lanes: list[Lane] = []
    known = labelled(recipe, build_dir)
    with tempfile.TemporaryDirectory(prefix="batchline-race-") as scratch:
        archives = dict(_archives(recipe, archive, _entered(runtimes, allowed), build_dir, Path(scratch), absent))
        for threads in sorted({1, machine().cores}):
            lanes += _heat(recipe, archives, threads, rounds, absent, progress, known)
    if not any(lane.form == REFERENCE for lane in lanes):
        raise MeasureError(f"{model} does not run with torch: {absent.get(str(REFERENCE), 'no reason')}")
    lanes.sort(key=lambda lane: (lane.threads, lane.request_ms))
    return Race(model, _winner(lanes), lanes, absent, machine(), versions())


def parse_runtimes(text: str) -> tuple[str, ...]:
    """Turns "onnxruntime,openvino" into a tuple, nothing into all. Raises MeasureError for an unknown one."""
    names = tuple(name.strip() for name in text.split(",")) if text else RUNTIMES
    if unknown := [name for name in names if name not in RUNTIMES]:
        raise MeasureError(f"{unknown[0]!r} is no form of a model; there are {', '.join(RUNTIMES)}.")
    return names


def parse_precisions(text: str) -> tuple[str, ...]:
    """Turns "bf16,int8" into a tuple, nothing into none. Raises MeasureError for an unknown one."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if unknown := [name for name in names if name not in REDUCED]:
        raise MeasureError(f"{unknown[0]!r} is no precision that can be allowed; there are {', '.join(REDUCED)}.")
    return names


def labelled(recipe: Recipe, build_dir: Path) -> list[tuple[Path, str]]:
    """Requests whose right answer is known: files in labelled/LABEL/, in the model's folder or where its export.py wrote them."""
    folders = (recipe.folder / LABELLED, build_dir / recipe.name / LABELLED)
    found = [path for folder in folders for path in sorted(folder.glob("*/*")) if path.is_file()]
    random.Random(1).shuffle(found)
    return [(path, path.parent.name) for path in found[:MOST_LABELLED]]


def write_choice(recipe: Recipe, found: Race) -> Path:
    """models/NAME/runtime.json: the winner, which the next `make archive` packs, and the table that it won by."""
    path = recipe.folder / CHOICE
    table = [{**asdict(lane), "request_ms": lane.request_ms} for lane in found.lanes]
    facts = {"absent": found.absent, "machine": asdict(found.machine), "versions": found.versions}
    put(path, {"format": FORMAT, **found.winner._asdict(), "table": table, **facts}, indent=1)
    return path


def _entered(runtimes: Sequence[str], allowed: Sequence[str]) -> list[Form]:
    """The reference first; every form in float32; then those of less precision."""
    chosen = [runtime for runtime in RUNTIMES if runtime in (REFERENCE.runtime, *runtimes)]
    reduced = [Form(runtime, precision) for precision in allowed for runtime in REDUCED[precision] if runtime in runtimes]
    return [*map(Form, chosen), *reduced]


def _archives(
    recipe: Recipe, archive: Path, entered: Sequence[Form], build_dir: Path, scratch: Path, absent: dict[str, str]
) -> Iterator[tuple[Form, Path]]:
    """A copy of the archive for each form that can be made."""
    weights = weights_of(make_weights(recipe, build_dir))
    for form in entered:
        try:
            file = convert(weights, form.runtime, forms_folder(recipe.name, build_dir), form.precision)
        except ArchiveError as error:
            absent[str(form)] = str(error).splitlines()[-1]
            continue
        made = scratch / str(form) / archive.name
        made.parent.mkdir()
        _repack(archive, made, form, file)
        yield form, made


def _repack(archive: Path, made: Path, form: Form, file: Path | None) -> None:
    """The archive with another choice and that form; model-config.yaml's own `runtime` would win over it."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            if entry.filename not in (CHOICE, file.name if file else ""):
                new.writestr(entry, old.read(entry))
        new.writestr(CHOICE, json.dumps(form._asdict()))
        if file:
            new.write(file, file.name)


def _heat(
    recipe: Recipe,
    archives: dict[Form, Path],
    threads: int,
    rounds: int,
    absent: dict[str, str],
    progress: Progress | None,
    known: Sequence[tuple[Path, str]],
) -> list[Lane]:
    """All forms with this many threads, turn by turn; before that, each answers the samples and the labelled requests."""
    with ExitStack() as stack:
        running: dict[Form, Alone] = {}
        started = {form: stack.enter_context(_alone(archive, recipe.samples, threads)) for form, archive in archives.items()}
        for form, alone in started.items():
            try:
                alone.wait_ready()
                alone.check_fallback()
            except MeasureError as error:
                absent[str(form)] = str(error).splitlines()[-1]
                continue
            running[form] = alone
        answers = {form: alone.answers() for form, alone in running.items()}
        right = {form: _right(alone, known) for form, alone in running.items()}
        times = _times(running, rounds, f"{threads} thread{'s' * (threads > 1)}", progress)
    reference = answers.get(REFERENCE)
    lanes = [_lane(form, threads, found, answers[form], reference) for form, found in times.items()]
    return [replace(lane, accuracy=right[lane.form]) for lane in lanes]


def _right(alone: Alone, known: Sequence[tuple[Path, str]]) -> float | None:
    return accuracy(alone.answers([path for path, _ in known]), [label for _, label in known]) if known else None


def _alone(archive: Path, samples: Sequence[Path], threads: int) -> Alone:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {THREADS: str(threads)}
    return Alone(archive, samples, max(BATCH_SIZES), environment)


def accuracy(answers: Sequence[Any], labels: Sequence[str]) -> float:
    """The share of a classifier's answers whose best label is the right one."""
    best = [answer[0].get("label") if isinstance(answer, list) and answer else None for answer in answers]
    return float(np.mean([one == label for one, label in zip(best, labels, strict=True)]))


def _times(
    running: dict[Form, Alone], rounds: int, words: str, progress: Progress | None
) -> dict[Form, dict[int, list[tuple[float, dict[str, float]]]]]:
    """Form -> batch size -> (milliseconds, by stage) of each batch; the first of every turn is a warm-up and not kept."""
    chance = random.Random(1)
    turns = [(form, size) for form in running for size in BATCH_SIZES]
    found: dict[Form, dict[int, list[tuple[float, dict[str, float]]]]] = {form: {size: [] for size in BATCH_SIZES} for form in running}
    for number in range(rounds):
        chance.shuffle(turns)
        for place, (form, size) in enumerate(turns):
            if progress:
                progress(number * len(turns) + place, rounds * len(turns), f"{form}, batches of {size}, {words}")
            found[form][size] += running[form].run_for(size, SLOT_S, LEAST_BATCHES)
    return found


def _lane(
    form: Form, threads: int, found: dict[int, list[tuple[float, dict[str, float]]]], answers: list[Any], reference: list[Any] | None
) -> Lane:
    tolerance = SCORE_TOLERANCE if form.precision == F32 else REDUCED_TOLERANCE
    difference, same = compare(answers, reference, tolerance) if reference is not None else (math.inf, False)
    batch_ms = {size: float(np.median([ms for ms, _ in times])) for size, times in found.items()}
    told = {size: [stages["inference"] for _, stages in times if "inference" in stages] for size, times in found.items()}
    inference_ms = {size: float(np.median(times)) for size, times in told.items() if times}
    return Lane(form.runtime, threads, batch_ms, inference_ms, min(difference, 1e9), same, form.precision)


def compare(answers: Sequence[Any], reference: Sequence[Any], tolerance: float = SCORE_TOLERANCE) -> tuple[float, bool]:
    """The largest difference of a number, and whether all answers are the same: shape, words, best label, numbers in tolerance."""
    pairs = [_difference(answer, wanted) for answer, wanted in zip(answers, reference, strict=True)]
    largest = max(pairs, default=0.0)
    return largest, largest <= tolerance


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


def _winner(lanes: Sequence[Lane]) -> Form:
    """The fastest with one thread a worker, which is how the plan serves; of forms as fast the exact one with fewer dependencies."""
    reference = next((lane.accuracy for lane in lanes if lane.form == REFERENCE), None)
    ready = [lane for lane in lanes if lane.threads == 1 and lane.same_answers and _accurate(lane, reference)]
    fastest = min(lane.request_ms for lane in ready)
    tied = (lane for lane in ready if lane.request_ms <= fastest * (1 + TIE))
    return min(tied, key=lambda lane: (lane.precision != F32, RUNTIMES.index(lane.runtime))).form


def _accurate(lane: Lane, reference: float | None) -> bool:
    return lane.accuracy is None or reference is None or lane.accuracy >= reference - ACCURACY_COST
