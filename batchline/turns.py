"""A measurement's turns in their order, which of them a file holds already, and how long all of them take."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator
from typing import NamedTuple

from batchline.measured import HANDLER, SERVER, Measured, Plan

WORKER_START_S = 5.0  # for the expected duration only
SERVER_START_S = 3.0
JVM_WARM_UP_S = 3.0
REST_SLOTS = 3  # turns' time that requests after a pause may take
REQUEST, RESTED, SETTING = "request", "rested", "setting"
WARM_UP = -1  # as a round


class Turn(NamedTuple):
    """One step of the plan; `round` is its visit where it is a setting's."""

    kind: str  # server, handler, request, rested, setting
    batch_size: int
    round: int
    workers: int = 1
    threads: int = 1


def turns_of(plan: Plan) -> Iterator[Turn]:
    """Every turn in order: the batches' rounds, each shuffled; then settings up and down, so that drift falls on all alike."""
    chance = random.Random(plan.seed)
    for number in range(plan.rounds):
        batch = [Turn(place, size, number) for size in plan.batch_sizes for place in (SERVER, HANDLER)]
        batch += [Turn(kind, 1, number) for kind in (REQUEST, RESTED) if kind == REQUEST or plan.pauses]
        chance.shuffle(batch)
        yield from batch
    for threads in sorted({t for _, t in plan.settings}):
        counts = sorted(w for w, t in plan.settings if t == threads)
        sizes = plan.setting_batch_sizes if threads == plan.threads else (plan.setting_batch_size,)
        for visit, size in itertools.product(range(plan.setting_visits), sizes):
            for workers in counts if visit % 2 == 0 else reversed(counts):
                yield Turn(SETTING, size, visit, workers, threads)


def taken(measured: Measured) -> set[Turn]:
    """Those whose values are there."""
    return {
        *(Turn(b.place, b.batch_size, b.round) for b in measured.batches),
        *(Turn(REQUEST, 1, r.round) for r in measured.requests),
        *(Turn(RESTED, 1, r.round) for r in measured.rested),
        *(Turn(SETTING, s.batch_size, s.visit, s.workers, s.threads) for s in measured.settings),
    }


def words(turn: Turn | None) -> str:
    """What is under way; None: a server starts."""
    if turn is None:
        return "TorchServe starts and warms up"
    if turn.kind == SETTING:
        return f"{turn.workers} workers, {turn.threads} threads each, batches of {turn.batch_size}"
    if turn.kind in (REQUEST, RESTED):
        return "one request at a time" if turn.kind == REQUEST else "one request after a pause"
    return f"batches of {turn.batch_size}, {turn.kind}"


def expected_s(plan: Plan) -> float:
    """How long the plan takes where batches are short against a turn; slow models take their least batches' time instead."""
    turns = plan.rounds * (2 * len(plan.batch_sizes) + 1) * plan.slot_s
    shortest_ms, longest_ms = plan.pause_ms
    mean_pause_s = (longest_ms - shortest_ms) / math.log(longest_ms / shortest_ms) / 1e3  # evenly on a logarithmic axis
    turns += plan.rounds * min(plan.pauses * mean_pause_s, REST_SLOTS * plan.slot_s)
    threads = {t for _, t in plan.settings}
    each = {kind: len(plan.setting_batch_sizes) if kind == plan.threads else 1 for kind in threads}
    starts = len(plan.batch_sizes) + sum(each[kind] * max(w for w, t in plan.settings if t == kind) for kind in threads)
    turns += plan.warm_up_s * (len(plan.batch_sizes) + len(threads) - 1)
    begun = len(threads) * (SERVER_START_S + JVM_WARM_UP_S) + starts * WORKER_START_S / min(os.cpu_count() or 1, 2)
    settings = sum(each[t] for _, t in plan.settings)
    return turns + settings * plan.setting_visits * (plan.setting_s + plan.warm_up_s) + begun
