"""What a server takes longer for after it had nothing to do: from single requests, each after a pause of its own.

While a machine waits, its cores sleep, their clocks fall and other processes take the caches. T(B) is measured with the next batch
ready; a request that comes to a server at rest meets another T. Here the handler's part of that (more of T) and what is
outside (more of the front end) as a function of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from batchline.measured import SERVER, Measured, RequestTime, RestedTime

BINS = 4  # of equal width on a logarithmic axis
LEAST = 3  # points in a bin
SHORTEST_MS = 0.01  # rest, and step from one to the next


class Point(NamedTuple):
    """All samples once, after the same pause: means, milliseconds."""

    pause_ms: float
    latency_ms: float
    handler_ms: float


class Rest(NamedTuple):
    """What queueing.Service knows of it: the front end of a server that had next to no rest, and what more rest adds."""

    front_end_ms: float
    points: tuple[tuple[float, float, float], ...]


def rest_of(measured: Measured, one_ms: float) -> Rest:
    """The front end's time and the cost of rest, so that a lone request is predicted right, back to back or after a pause.

    Args:
        measured: its requests, those after a pause too; without these no rest is known.
        one_ms: T(1), with the next request ready.
    """
    samples = measured.plan.samples
    alone = list(_points([(0.0, request) for request in measured.requests], samples))
    if not alone:
        return Rest(0.0, ())
    lone_ms = median(point.latency_ms for point in alone)
    paused = list(_points([(request.pause_ms, request) for request in measured.rested], samples))
    if not paused:
        return Rest(max(0.0, lone_ms - one_ms), ())
    hot_ms = _hot_ms(measured)
    lone_handler_ms = median(point.handler_ms for point in alone)
    batch_more_ms = min(max(0.0, lone_handler_ms - hot_ms), max(0.0, lone_ms - one_ms))
    front_end_ms = max(0.0, lone_ms - one_ms - batch_more_ms)
    found = [(max(front_end_ms, SHORTEST_MS), batch_more_ms, 0.0)]  # as long as the answer goes out and the next request comes in
    for point in _binned(paused):
        batch_more_ms = max(batch_more_ms, point.handler_ms - hot_ms)
        front_more_ms = max(found[-1][2], point.latency_ms - one_ms - batch_more_ms - front_end_ms)
        rest_ms = point.pause_ms + front_end_ms + front_more_ms
        found.append((max(rest_ms, found[-1][0] + SHORTEST_MS), batch_more_ms, front_more_ms))
    return Rest(front_end_ms, tuple(found))


def _hot_ms(measured: Measured) -> float:
    """The handler's part of T(1) while the next request was ready: the median of the rounds' means; 0 where no stage is told."""
    rounds: dict[int, list[float]] = {}
    for batch in measured.batches:
        if batch.place == SERVER and batch.batch_size == 1 and not batch.warm_up:
            rounds.setdefault(batch.round, []).append(sum(batch.stages_ms.values()))
    return median(map(fmean, rounds.values())) if rounds else 0.0


def _points(told: Sequence[tuple[float, RequestTime | RestedTime]], samples: int) -> Iterator[Point]:
    """One for every so many requests that followed one another in a round, warm-ups left out: samples take turns, so each is in it once.

    A round with fewer is one point by itself: a slow model's requests are few.
    """
    rounds: dict[int, list[tuple[float, RequestTime | RestedTime]]] = {}
    for pause_ms, request in told:
        if not request.warm_up:
            rounds.setdefault(request.round, []).append((pause_ms, request))
    for turn in rounds.values():
        size = min(samples, len(turn))
        for begin in range(0, len(turn) - size + 1, size):
            group = turn[begin : begin + size]
            latency_ms = fmean(request.latency_ms for _, request in group)
            yield Point(group[0][0], latency_ms, fmean(sum(request.stages_ms.values()) for _, request in group))


def _binned(points: Sequence[Point]) -> Iterator[Point]:
    """Medians of the points whose pauses are alike."""
    pauses = np.log([point.pause_ms for point in points])
    edges = np.linspace(pauses.min(), pauses.max(), BINS + 1)
    places = np.clip(np.searchsorted(edges, pauses, side="right") - 1, 0, BINS - 1)
    for place in range(BINS):
        inside = [point for point, where in zip(points, places, strict=True) if where == place]
        if len(inside) >= LEAST:
            yield Point(*(median(values) for values in zip(*inside, strict=True)))
