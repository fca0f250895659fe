"""Latency against offered load, up to and past saturation, under several settings that take turns.

A server of its own holds every setting at once. In each visit the rates come in random order, and at each rate the settings follow
one another within seconds and see the same arrivals: what changes from minute to minute falls on all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from batchline.arrivals import draw
from batchline.candidates import Candidates
from batchline.errors import MeasureError, Outrun
from batchline.load import LoadRun, closed_loop, open_loop
from batchline.measure import Subject
from batchline.runfile import machine
from batchline.saturate import saturate
from batchline.summary import summarise
from batchline.swept import Candidate, Step, Sweep, SweepPlan, write_sweep

DEFAULT, TUNED = "default", "tuned"
DEFAULT_BATCH_SIZE, DEFAULT_DELAY_MS = 1, 100  # TorchServe's own (ModelConfig), and a worker a core
FRACTIONS = (0.15, 0.4, 0.65, 0.85, 1.0, 1.15)  # of a candidate's capacity
PAST = 1.2  # of its capacity: further beyond it a candidate is not asked
APART = 0.08  # rates that lie closer are one
MOST_CANDIDATES = 4
JVM_WARM_UP_S = 3.0
WARM_UP_S, CAPACITY_S = 1.5, 1.5
SETTLE_S = 1.0
QUEUE_LIMIT = 100  # TorchServe's own
SETTING = re.compile(r"(?P<name>[A-Za-z0-9_]{1,32})=(?P<numbers>[0-9]+,[0-9]+,[0-9]+)")
Progress = Callable[[int, int, str], None]  # steps done, steps in all, what is under way


class Turn(NamedTuple):
    """One step of the plan."""

    candidate: Candidate
    rate_per_s: float
    visit: int


def default(cores: int) -> Candidate:
    """What TorchServe does where nobody says otherwise."""
    return Candidate(DEFAULT, DEFAULT_BATCH_SIZE, DEFAULT_DELAY_MS, cores)


def tuned(subject: Subject) -> Candidate:
    """What the subject's configuration says; raises MeasureError where it says nothing of the model."""
    name, version = subject.recipe.name, subject.recipe.version
    found = next((model for model in subject.base.models if (model.name, model.version) == (name, version)), None)
    if not found or None in (found.batch_size, found.max_batch_delay_ms, found.min_workers):
        raise MeasureError(f"{subject.base.path} gives {name} no batchSize, maxBatchDelay and minWorkers to compare with the default.")
    return Candidate(TUNED, found.batch_size or 1, found.max_batch_delay_ms or 1, found.min_workers or 1)


def parse_candidates(texts: Sequence[str]) -> list[Candidate]:
    """Turns "tuned=8,1,2" into a candidate: its name, batchSize, maxBatchDelay and workers. Raises MeasureError."""
    found = []
    for text in texts:
        match = SETTING.fullmatch(text)
        numbers = [int(part) for part in match["numbers"].split(",")] if match else []
        if not match or min(numbers) < 1 or max(numbers) > 10**6:
            raise MeasureError(f"a setting is NAME=BATCH_SIZE,DELAY_MS,WORKERS (tuned=8,1,2), each 1 at least, not {text!r}.")
        found.append(Candidate(match["name"], *numbers))
    _check(found)
    return found


def parse_rates(text: str) -> list[float]:
    """Turns "20,40,80" into rates. Raises MeasureError for what is no list of positive numbers."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < 1e6 for rate in rates):
        raise MeasureError(f"rates are requests a second with commas between them (20,40,80), not {text!r}.")
    return sorted(set(rates))


def sweep(
    subject: Subject,
    candidates: Sequence[Candidate],
    output: Path,
    rates_per_s: Sequence[float] | None = None,
    target_p99_ms: float | None = None,
    visits: int = 3,
    step_s: float = 3.0,
    least_requests: int = 200,
    threads: int = 1,
    seed: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Measures; `output` holds every step that is done, also when this is interrupted.

    Args:
        subject: the model.
        candidates: one to four settings with names that differ.
        output: where the sweep is written.
        rates_per_s: the same for all candidates; else parts of each one's own measured capacity, past it too.
        target_p99_ms: kept in the file, for who draws it.
        visits: how often each rate.
        step_s: seconds that count of each.
        least_requests: of a step; low rates take longer, up to four times.
        threads: of every worker.
        seed: of arrivals and order.
        progress: called before each step.

    Raises:
        MeasureError: there are no such candidates, `output` cannot be written, or the server does not answer the samples with 2xx.
        ServerError: TorchServe does not start.
    """
    _check(candidates)
    if target_p99_ms is not None and not 0 < target_p99_ms < 1e9:
        raise MeasureError(f"a target is a positive number of milliseconds, not {target_p99_ms:g}.")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise MeasureError(f"cannot write {output}: {output.parent} is no folder that may be written to.")
    plan = SweepPlan(tuple(candidates), (), visits, step_s, least_requests, SETTLE_S, threads, QUEUE_LIMIT, target_p99_ms, seed)
    found = Sweep(subject.recipe.name, subject.recipe.version, hashlib.sha256(subject.archive.read_bytes()).hexdigest(), plan, machine())
    if progress:
        progress(0, 1, "TorchServe starts and warms up")
    server = Candidates(subject.archive, subject.recipe.version, candidates, subject.base, threads, QUEUE_LIMIT)
    with server:
        server.warm_up(JVM_WARM_UP_S)
        for candidate in candidates:
            found.capacity_per_s[candidate.name] = _capacity_per_s(server, candidate, subject.bodies)
        found.plan = replace(plan, loads=tuple(_loads(candidates, found.capacity_per_s, rates_per_s)))
        turns = list(_turns(found.plan))
        for number, turn in enumerate(turns):
            if progress:
                progress(number, len(turns), f"{turn.candidate.name} at {turn.rate_per_s:.4g} requests/s")
            found.steps.append(_step(server, turn, found.plan, subject.bodies))
            found.complete = number == len(turns) - 1
            write_sweep(output, found)
    return found


def _check(candidates: Sequence[Candidate]) -> None:
    names = [candidate.name for candidate in candidates]
    if not 1 <= len(names) <= MOST_CANDIDATES or len(set(names)) < len(names):
        raise MeasureError(f"a sweep compares one to {MOST_CANDIDATES} settings with names that differ, not {', '.join(names) or 'none'}.")


def _capacity_per_s(server: Candidates, candidate: Candidate, bodies: Sequence[bytes]) -> float:
    """Requests answered a second when all workers have their next batch waiting."""
    clients = min(2 * candidate.batch_size * candidate.workers, QUEUE_LIMIT)
    path = server.path(server.candidates.index(candidate))
    closed_loop(server.target(candidate, bodies), clients, WARM_UP_S)
    replies = saturate(server.address, path, bodies, clients, CAPACITY_S)
    return len(replies) / max(reply.done_s for reply in replies)


def _loads(candidates: Sequence[Candidate], capacity_per_s: dict[str, float], rates: Sequence[float] | None) -> Iterator[tuple[str, float]]:
    """Given rates for everyone, or those of all capacities, as far as a candidate's own reaches."""
    chosen = rates or _apart(float(f"{part * capacity_per_s[each.name]:.3g}") for each in candidates for part in FRACTIONS)
    for candidate in candidates:
        past = PAST * capacity_per_s[candidate.name]
        yield from ((candidate.name, rate) for rate in chosen if rates or rate <= past)


def _apart(rates: Iterator[float]) -> list[float]:
    kept: list[float] = []
    for rate in sorted(rates):
        if not kept or rate > kept[-1] * (1 + APART):
            kept.append(rate)
    return kept


def _turns(plan: SweepPlan) -> Iterator[Turn]:
    """Every step: rates in random order, the settings at each one after another, now this one first and now that."""
    chance, named = random.Random(plan.seed), {candidate.name: candidate for candidate in plan.candidates}
    for visit in range(plan.visits):
        rates = sorted({rate for _, rate in plan.loads})
        chance.shuffle(rates)
        for rate in rates:
            here = [named[name] for name, other in plan.loads if other == rate]
            chance.shuffle(here)
            yield from (Turn(candidate, rate, visit) for candidate in here)


def _step(server: Candidates, turn: Turn, plan: SweepPlan, bodies: Sequence[bytes]) -> Step:
    seconds = plan.settle_s + plan.seconds(turn.rate_per_s)
    times = draw("poisson", turn.rate_per_s, seconds, seed=plan.seed + 1000 * turn.visit)
    try:
        run = open_loop(server.target(turn.candidate, bodies), times)
    except Outrun as reason:  # of this step alone: the others are not to be lost
        closed_loop(server.target(turn.candidate, bodies), 1, plan.settle_s)  # answered when the queue is done
        return Step(turn.candidate.name, turn.rate_per_s, turn.visit, latency_ms=[], refused=0, failed=0, invalid=[str(reason)])
    return _as_step(turn, run, plan.settle_s)


def _as_step(turn: Turn, run: LoadRun, settle_s: float) -> Step:
    """What a run says once its queue has its length."""
    records = [record for record in run.records if record.intended_s >= settle_s]
    good = [record for record in records if record.ok]
    refused = sum(record.status == 503 for record in records)
    sizes = [record.batch_size for record in good if record.batch_size]
    names = dict.fromkeys(itertools.chain.from_iterable(record.stages_ms for record in good))
    return Step(
        candidate=turn.candidate.name,
        rate_per_s=turn.rate_per_s,
        visit=turn.visit,
        latency_ms=[round(record.latency_ms, 3) for record in good],
        refused=refused,
        failed=len(records) - len(good) - refused,
        mean_batch_size=float(np.mean(sizes)) if sizes else None,
        stages_ms={name: round(float(np.mean([r.stages_ms.get(name, 0.0) for r in good])), 4) for name in names},
        invalid=summarise(run).invalid,
    )
