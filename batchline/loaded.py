"""What a batch takes longer for when requests come one by one: from open load on a server whose batches are full all the same.

T(B) is measured with the next batch ready. The server then reads requests and answers them while a worker hands its batch over; when
requests come one by one that work falls into batches that run, and on a machine whose cores are busy these wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from batchline.arrivals import Times
from batchline.measured import LoadedRun, Measured
from batchline.queueing import Service, Setting, Slowdown
from batchline.simulate import simulate_times

MOST_FACTOR, CLOSE = 4.0, 1.002  # looked for up to this, and so near
FULL_BATCH_MS = 1e6  # a batch waits until it is full
QUEUE = "queue"  # in Server-Timing: a request's wait, which is not the handler's


def handler_ms(stages_ms: Mapping[str, float]) -> float:
    """A batch's time in the handler, from what an answer tells; 0 where it tells nothing."""
    return sum(ms for name, ms in stages_ms.items() if name != QUEUE)


def arrivals_of(run: LoadedRun, seed: int) -> Times:
    """When the requests of a run were sent: so many moments in the time, each anywhere; seconds [requests], the same for the same run."""
    chance = np.random.default_rng((seed, run.workers, run.batch_size, run.visit))
    return np.sort(chance.uniform(0.0, run.requests / run.rate_per_s, run.requests))


def loaded_of(measured: Measured, service: Service, batch_size: int) -> Slowdown:
    """How many times as long a batch takes in load as the service says, 1 or more, by the number of busy workers.

    Each number's factor is the one with which the simulation, given the very arrivals, has the mean batch take as many times as long
    as the handler was seen to take for it; fewer busy workers have theirs already.

    Args:
        measured: its loaded runs of this batch size.
        service: without such factors; its noise at the mean.
        batch_size: of the runs.

    Returns:
        Of 1 .. the most workers that were loaded; empty where none was, or the handler does not tell its time.
    """
    alone_ms = [run.handler_ms for run in measured.settings if run.workers == 1 and run.batch_size == batch_size and run.handler_ms]
    runs: dict[int, list[LoadedRun]] = {}
    for run in measured.loaded:
        if run.batch_size == batch_size and run.threads == measured.plan.threads and run.handler_ms:
            runs.setdefault(run.workers, []).append(run)
    if not alone_ms:
        return ()
    known: dict[int, float] = {}
    for workers, loads in sorted(runs.items()):
        seen = fmean(ms for run in loads for ms in run.handler_ms) / fmean(alone_ms)
        known[workers] = _factor(measured.plan.seed, service, known, loads, seen)
    return _levels(known)


def _factor(seed: int, service: Service, known: Mapping[int, float], loads: Sequence[LoadedRun], seen: float) -> float:
    low, high = 1.0, MOST_FACTOR
    while high > low * CLOSE:
        middle = (low * high) ** 0.5
        trial = replace(service, loaded=_levels({**known, loads[0].workers: middle}))
        low, high = (middle, high) if _longer(seed, trial, loads) < seen else (low, middle)
    return high if low > 1.0 else 1.0


def _longer(seed: int, service: Service, loads: Sequence[LoadedRun]) -> float:
    """How many times as long as T(B) the mean batch of these runs is simulated to take."""
    times_ms: list[float] = []
    for run in loads:
        setting = Setting(run.batch_size, FULL_BATCH_MS, run.workers, queue_limit=None)
        trace = simulate_times(service, setting, arrivals_of(run, seed))
        first = np.unique(trace.batch, return_index=True)[1]
        times_ms += (trace.done_ms - trace.dispatch_ms)[first].tolist()
    noise = fmean(service.noise) if service.noise else 1.0
    return fmean(times_ms) / (service.batch_ms[loads[0].batch_size - 1] * noise)


def _levels(known: Mapping[int, float]) -> Slowdown:
    """1 .. the most workers, between them on straight lines."""
    counts = sorted(known)
    return tuple(map(float, np.interp(np.arange(1, counts[-1] + 1), counts, [known[n] for n in counts]))) if counts else ()
