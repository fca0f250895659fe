"""What a batch costs on this machine: batches of every size on a TorchServe of its own and through the handler alone, turn by
turn in random order, then throughput for each number of workers and threads.

The plan is fixed before it begins. Every step's raw values are in the file before the next one starts.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from batchline.alone import Alone
from batchline.errors import MeasureError
from batchline.measured import (
    HANDLER,
    SERVER,
    BatchTime,
    Measured,
    Plan,
    RequestTime,
    RestedTime,
    SettingRun,
    read_measured,
    write_measured,
)
from batchline.properties import Configuration
from batchline.recipe import Recipe, read_recipe
from batchline.runfile import machine
from batchline.saturate import Reply, paced, saturate
from batchline.turns import JVM_WARM_UP_S, REQUEST, REST_SLOTS, RESTED, SETTING, WARM_UP, Turn, taken, turns_of, words
from batchline.variants import THREADS, Variants

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
QUICK_BATCH_SIZES = (1, 4, 16)
SETTING_BATCH_SIZE = 8  # throughput is compared at the largest measured size up to this
LARGEST = 4096  # of a batch
MOST_BATCHES = 300  # of a handler in one turn: a tiny model would fill the file
MOST_COUNTS = 8  # worker counts, where there are many cores
PAUSES, QUICK_PAUSES = 24, 12  # requests after a pause in a round, about
LEAST_PAUSES = 4  # different ones
Progress = Callable[[int, int, str], None]  # turns done, turns in all, what is under way


@dataclass(frozen=True)
class Subject:
    """What is measured: a model's archive and samples, and the configuration to serve it with.

    Attributes:
        recipe: of models/NAME.
        archive: NAME.mar.
        bodies: the samples, one request each.
        base: the user's configuration.
    """

    recipe: Recipe
    archive: Path
    bodies: list[bytes]
    base: Configuration


def subject(model: str, models: Path, store: Path, base: Configuration) -> Subject:
    """Finds what is to be measured; raises MeasureError where the archive or its samples are missing."""
    recipe = read_recipe(model, models)
    archive = store / f"{model}.mar"
    if not archive.is_file():
        raise MeasureError(f"no archive {archive}; `make archive` builds it.")
    bodies = [path.read_bytes() for path in recipe.samples]
    if not bodies:
        raise MeasureError(
            f"{recipe.folder / 'samples'} holds no request to measure with; put real ones there, one a file, and `make archive`."
        )
    return Subject(recipe, archive, bodies, base)


def make_plan(subject: Subject, cores: int, quick: bool = False, batch_sizes: Sequence[int] | None = None) -> Plan:
    """The plan for this many cores; --quick gives fewer sizes and shorter turns, and so wider intervals.

    Raises:
        MeasureError: fewer than three batch sizes, or none of them 1: no line and no speedup could come of it.
    """
    sizes = tuple(sorted(set(batch_sizes or (QUICK_BATCH_SIZES if quick else BATCH_SIZES))))
    if len(sizes) < 3 or sizes[0] != 1:
        raise MeasureError(f"a line needs at least three batch sizes, 1 among them, not {', '.join(map(str, sizes))}.")
    limit = int(subject.recipe.config.get("threads") or cores)
    settings = _settings(cores, limit, quick)
    at = max(size for size in sizes if size <= SETTING_BATCH_SIZE)
    common: dict[str, Any] = {"batch_sizes": sizes, "samples": len(subject.bodies), "settings": settings, "setting_batch_size": at}
    lengths = math.ceil((QUICK_PAUSES if quick else PAUSES) / len(subject.bodies))
    common["settings_of_one"] = at > 1
    common["pauses"] = max(LEAST_PAUSES, lengths) * len(subject.bodies)
    if quick:
        return Plan(**common, rounds=4, warm_up_s=1.0, slot_s=0.3, least_batches=2, setting_s=1.2, setting_visits=2)
    return Plan(**common, rounds=8, warm_up_s=1.5, slot_s=0.6, least_batches=3, setting_s=2.0, setting_visits=4)


def parse_sizes(text: str) -> list[int] | None:
    """Turns "1,4,16" into [1, 4, 16] and nothing into None. Raises MeasureError for what is no list of positive numbers."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= LARGEST for part in parts):
        raise MeasureError(f"batch sizes are whole numbers from 1 to {LARGEST} with commas between them (1,4,16), not {text!r}.")
    return [int(part) for part in parts]


def _settings(cores: int, thread_limit: int, quick: bool) -> tuple[tuple[int, int], ...]:
    """(workers, threads): 1 to cores + 1 workers of one thread; with more threads as many workers as have a core for each."""
    alone = _spread(cores + 1, 4 if quick else MOST_COUNTS)
    more = [t for t in _doubled(cores) if 1 < t <= thread_limit and not quick]
    return (*((workers, 1) for workers in alone), *((workers, t) for t in more for workers in _spread(cores // t, MOST_COUNTS)))


def _spread(most: int, count: int) -> list[int]:
    """1 .. most, thinned out evenly where there are more than `count`; the last two stay: they are the bend."""
    if most <= count:
        return list(range(1, most + 1))
    return sorted({1, most - 1, most, *(round(1 + i * (most - 1) / (count - 1)) for i in range(count))})


def _doubled(most: int) -> list[int]:
    """1, 2, 4, .. and `most` itself."""
    return sorted({*(2**i for i in range(most.bit_length())), most})


def begin(
    subject: Subject,
    output: Path,
    resume: bool = False,
    overwrite: bool = False,
    quick: bool = False,
    batch_sizes: Sequence[int] | None = None,
) -> Measured:
    """A measurement with its plan, nothing measured yet; or, to be resumed, the one in `output` with what it has.

    Raises:
        MeasureError: output cannot be written, or is another measurement; or there is no plan with such batch sizes.
    """
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise MeasureError(f"cannot write {output}: {output.parent} is no folder that may be written to.")
    if resume:
        return _resumed(subject, output)
    if output.exists() and not overwrite:
        raise MeasureError(f"{output} is there already: --resume goes on with it, --overwrite replaces it, -o names another file.")
    plan = make_plan(subject, machine().cores, quick, batch_sizes)
    return Measured(subject.recipe.name, subject.recipe.version, _sha256(subject.archive), plan)


def measure(subject: Subject, measured: Measured, output: Path, progress: Progress | None = None) -> Measured:
    """Carries the plan out; `output` holds everything that is done, also when this is interrupted.

    Args:
        subject: the model.
        measured: of `begin`; grows.
        output: run.json; written after each turn.
        progress: called before each turn.

    Raises:
        MeasureError: the server does not answer every sample with 2xx, or makes other batches than it should.
        ServerError: TorchServe does not start.
    """
    turns, done = list(turns_of(measured.plan)), taken(measured)
    left = [turn for turn in turns if turn not in done]
    tell = _counting(progress, len(turns) - len(left), left)
    for threads, group in itertools.groupby(left, key=lambda turn: turn.threads):
        _session(subject, measured, output, threads, list(group), tell)
    measured.complete = True
    write_measured(output, measured)
    return measured


def _resumed(subject: Subject, output: Path) -> Measured:
    measured = read_measured(output)
    if measured.model != subject.recipe.name:
        raise MeasureError(f"{output} is a measurement of {measured.model}, not of {subject.recipe.name}; name another file with -o.")
    if measured.archive_sha256 != _sha256(subject.archive):
        raise MeasureError(f"{subject.archive} has changed since {output} was begun; measure again without --resume.")
    return measured


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _counting(progress: Progress | None, done: int, left: list[Turn]) -> Callable[[Turn | None], None]:
    """Tells progress how far the turn is in the whole plan; None is a server that starts."""

    def tell(turn: Turn | None) -> None:
        if progress:
            before = left.index(turn) if turn else 0
            progress(done + before, done + len(left), words(turn))

    return tell


def _session(
    subject: Subject, measured: Measured, output: Path, threads: int, turns: list[Turn], tell: Callable[[Turn | None], None]
) -> None:
    """The turns that one server can do: the workers' threads are fixed when it starts."""
    plan = measured.plan
    sizes = sorted({turn.batch_size for turn in turns if turn.kind != HANDLER})
    tell(None)
    with ExitStack() as stack:
        alone = stack.enter_context(_alone(subject, plan)) if any(turn.kind == HANDLER for turn in turns) else None
        queue = max(100, 2 * max(sizes) * max(turn.workers for turn in turns)) if sizes else 0
        server = stack.enter_context(Variants(subject.archive, subject.recipe.version, sizes, subject.base, threads, queue=queue))
        if alone:
            alone.wait_ready()
        server.warm_up(JVM_WARM_UP_S)
        for size in sizes:
            measured.batches += _server_turn(server, subject.bodies, Turn(SERVER, size, WARM_UP), plan)
        before = Turn(SERVER, 1, WARM_UP)
        for turn in turns:
            tell(turn)
            if turn.kind == SETTING and (turn.batch_size, turn.workers) != (before.batch_size, before.workers):
                if before.workers > 1 and before.batch_size != turn.batch_size:
                    server.scale(before.batch_size, 1)  # its workers would fill the memory for nothing
                _scale(server, subject.bodies, turn, plan)
            before = turn
            _take(turn, subject, plan, server, alone, measured)
            write_measured(output, measured)
        _note_workers(server, sizes, measured)


def _note_workers(server: Variants, sizes: list[int], measured: Measured) -> None:
    """Memory of the largest worker after its batches, and whether a GPU ran it. A process that cannot be read is left out."""
    client = server.server.client(server.home)
    workers = [worker for size in sizes for found in client.describe(server.path(size).rpartition("/")[2]) for worker in found["workers"]]
    for worker in workers:
        with suppress(psutil.Error):
            mib = psutil.Process(worker["pid"]).memory_info().rss / 2**20
            measured.worker_mib = round(max(measured.worker_mib or 0.0, mib), 1)
    measured.gpu = bool(measured.gpu) or any(worker.get("gpu") is True for worker in workers)


def _alone(subject: Subject, plan: Plan) -> Alone:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # it would come before the archive
    return Alone(subject.archive, subject.recipe.samples, max(plan.batch_sizes), {**environment, THREADS: str(plan.threads)})


def _take(turn: Turn, subject: Subject, plan: Plan, server: Variants, alone: Alone | None, measured: Measured) -> None:
    if turn.kind == HANDLER:
        assert alone
        measured.batches += _handler_turn(alone, turn, plan)
    elif turn.kind == SERVER:
        measured.batches += _server_turn(server, subject.bodies, turn, plan)
    elif turn.kind == REQUEST:
        measured.requests += _request_turn(server, subject.bodies, turn, plan)
    elif turn.kind == RESTED:
        measured.rested += _rested_turn(server, subject.bodies, turn, plan)
    else:
        measured.settings.append(_setting_turn(server, subject.bodies, turn, plan))


def _handler_turn(alone: Alone, turn: Turn, plan: Plan) -> list[BatchTime]:
    counted = max(plan.least_batches, plan.turn(turn.batch_size))
    until_s, found = time.perf_counter() + plan.slot_s, list[BatchTime]()
    while len(found) < 1 + counted or (time.perf_counter() < until_s and len(found) < MOST_BATCHES):
        batch_ms, stages_ms = alone.run(turn.batch_size)
        found.append(BatchTime(HANDLER, turn.batch_size, turn.round, _grain(batch_ms), not found, _grains(stages_ms)))
    return found


def _server_turn(server: Variants, bodies: list[bytes], turn: Turn, plan: Plan) -> list[BatchTime]:
    """2·B requests are out: while a batch runs the next is complete, and its time is from the last one's end to its own."""
    size, warms = turn.batch_size, turn.round == WARM_UP
    counted = max(plan.least_batches, plan.turn(size))
    seconds = plan.warm_up_s if warms else plan.slot_s
    replies = saturate(server.address, server.path(size), bodies, 2 * size, seconds, multiple=size, least=(1 + counted) * size)
    _check_sizes(replies, size)
    last = replies[size - 1 :: size]
    begins_s = [0.0, *(reply.done_s for reply in last[:-1])]
    return [
        BatchTime(SERVER, size, turn.round, _grain((reply.done_s - begin_s) * 1e3), warms or number == 0, reply.stages_ms)
        for number, (begin_s, reply) in enumerate(zip(begins_s, last, strict=True))
    ]


def _request_turn(server: Variants, bodies: list[bytes], turn: Turn, plan: Plan) -> list[RequestTime]:
    least = 1 + max(plan.least_batches, len(bodies))
    replies = saturate(server.address, server.path(1), bodies, clients=1, seconds=plan.slot_s, least=least)
    return [RequestTime(turn.round, _grain((r.done_s - r.sent_s) * 1e3), number == 0, r.stages_ms) for number, r in enumerate(replies)]


def _rested_turn(server: Variants, bodies: list[bytes], turn: Turn, plan: Plan) -> list[RestedTime]:
    """Pauses of all lengths, evenly on a logarithmic axis and in random order; after each length every sample in turn."""
    chance, (shortest, longest) = random.Random(f"{plan.seed} {turn.round}"), map(math.log, plan.pause_ms)
    count = plan.pauses // len(bodies)
    lengths_ms = [math.exp(shortest + (longest - shortest) * (place + chance.random()) / count) for place in range(count)]
    chance.shuffle(lengths_ms)
    pauses_ms = [lengths_ms[0], *(length_ms for length_ms in lengths_ms for _ in bodies)]  # the first is the warm-up
    seconds = REST_SLOTS * plan.slot_s
    replies = paced(server.address, server.path(1), bodies, [pause_ms / 1e3 for pause_ms in pauses_ms], seconds)
    return [
        RestedTime(turn.round, _grain(pause_ms), _grain((reply.done_s - reply.sent_s) * 1e3), number == 0, reply.stages_ms)
        for number, (pause_ms, reply) in enumerate(zip(pauses_ms, replies, strict=False))  # a slow model has no time for all
    ]


def _scale(server: Variants, bodies: list[bytes], turn: Turn, plan: Plan) -> None:
    """So many workers, and load until they are warm: a new worker's first batches take twice as long, and would pass for contention."""
    server.scale(turn.batch_size, turn.workers)
    flight = 2 * turn.batch_size * turn.workers
    saturate(server.address, server.path(turn.batch_size), bodies, flight, plan.warm_up_s, multiple=turn.batch_size, least=2 * flight)


def _setting_turn(server: Variants, bodies: list[bytes], turn: Turn, plan: Plan) -> SettingRun:
    """Throughput from full batch to full batch, without the first of each worker and without the last, when the queue runs empty."""
    size, flight = turn.batch_size, 2 * turn.batch_size * turn.workers
    least = flight + 2 * size * turn.workers
    replies = saturate(server.address, server.path(size), bodies, flight, plan.setting_s, multiple=size, least=least)
    _check_sizes(replies, size)
    first, last = size * turn.workers - 1, len(replies) - size * turn.workers - 1
    count = last - first
    per_s = count / (replies[last].done_s - replies[first].done_s)
    return SettingRun(turn.workers, turn.threads, size, turn.round, per_s, count)


def _grain(milliseconds: float) -> float:
    """To a tenth of a microsecond: what the clock does not know need not fill the file."""
    return max(round(milliseconds, 4), 1e-4)


def _grains(stages_ms: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in stages_ms.items()}


def _check_sizes(replies: Sequence[Reply], size: int) -> None:
    """What was measured must be batches of this size; a handler that does not tell is believed."""
    found = {reply.batch_size for reply in replies} - {None, size}
    if found:
        said = ", ".join(str(other) for other in sorted(filter(None, found)))
        raise MeasureError(f"the server made batches of {said} where {size} were waiting; its log may say why.")
