"""The event loop of simulate.py, compiled: arrivals, batches and workers, one event after another.

TorchServe (Model.pollBatch of 0.12.0): one idle worker at a time holds the model's lock and gathers a batch. It waits for a first request;
from then on it may wait `delay` for more, and each time one comes it takes the whole milliseconds that the clock moved off what is left.
The batch leaves when it is full or nothing is left, and the next idle worker gets the lock.

Triton (dynamic batcher): while an instance is free, a batch leaves when it is full or its oldest request has waited for `delay`.

Workers share the machine: while n are busy each runs at 1/slow(n). A clock `v` that runs at this pace makes one order of all that are
busy: a batch that begins at v ends at v + T, whatever n does meanwhile (processor sharing by virtual time; Parekh and Gallager, 1993).

Times are milliseconds. Memory is what Space holds; nothing is allocated while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]
Function = TypeVar("Function", bound=Callable[..., Any])

STEPS = 10  # bits of a number that make a bin: 1024 in an octave
OCTAVES = 40
SHIFT = 52 - STEPS
LOWEST = (1023 - 14) << STEPS  # bins begin at 2**-14 ms; what is shorter is in the first and counts as 0
BINS = OCTAVES << STEPS
BEFORE, OPEN, CLOSED = 0, 1, 2  # the window in which is counted

NOW = np.dtype(
    [
        ("t", "f8"),  # now
        ("v", "f8"),  # the clock of the busy workers
        ("next", "f8"),  # arrival
        ("arrived", "i8"),  # requests so far: the next one's number
        ("head", "i8"),  # of the queue
        ("tail", "i8"),
        ("gathering", "b1"),  # an idle worker has a first request and waits for more
        ("taken", "i8"),  # requests that it has
        ("picked", "f8"),  # when it took the first
        ("clock", "f8"),  # when it last looked
        ("left", "f8"),  # of the delay
        ("deadline", "f8"),
        ("busy", "i8"),  # workers
        ("quiet", "f8"),  # since when none was
        ("inside", "i8"),  # requests in a batch that runs
        ("idle_first", "i8"),  # place in `idle` of the worker that has been idle longest
        ("batches", "i8"),  # that have left so far
        ("phase", "i8"),
        ("opened", "f8"),  # when the window was
        ("closed", "f8"),
        ("busy_ms", "f8"),  # in the window, from here on
        ("inside_ms", "f8"),
        ("dispatched", "i8"),
        ("dispatched_batches", "i8"),
        ("answered", "i8"),
        ("settled", "i8"),  # counted requests that were answered or refused
        ("rejected", "i8"),
        ("wait_ms", "f8"),
        ("gathering_ms", "f8"),
        ("rested_ms", "f8"),
        ("overflowed", "b1"),
    ]
)


class Rules(NamedTuple):
    """What does not change while it runs.

    Attributes:
        batch_ms: T(1) .. T(b).
        pace: [workers + 1]: 1/slow(n) of n busy workers, [0] unused.
        noise, front_end_ms: samples; one value where nothing is drawn.
        rested: [points, 3]: a rest, what a batch takes more after its worker had such a one, what the front end takes more for each
            request of it after all workers had; ascending from 0, on straight lines, flat beyond. One point where rest makes no difference.
        times_ms: all arrivals; empty where they are drawn.
        gap_ms: mean time between drawn arrivals.
        first, last: numbers of the requests that count, last not among them.
    """

    batch_ms: Array
    pace: Array
    noise: Array
    front_end_ms: Array
    rested: Array
    times_ms: Array
    batch_size: int
    workers: int
    delay_ms: float
    clock_ms: float
    queue_limit: int
    triton: bool
    poisson: bool
    gap_ms: float
    first: int
    last: int


class Space(NamedTuple):
    """Where it works.

    Attributes:
        queue_ms, queue_id: [a power of two] a ring of waiting requests: arrival and number.
        jobs_ms, jobs_id: [workers, b] the same of those in a batch; sizes [workers] of the batches.
        ends_v, ends_of: [workers] when busy workers end on the clock v, and which they are; the next one last.
        idle: [workers] a ring of idle workers; since [workers] when each became idle.
        more_ms: [workers] what the front end takes more for the batch that a worker runs.
        latency, wait: [BINS] how many requests.
        third_ms, thirds: [3] latency and number of the answered ones by the third of the counted requests they belong to.
        request_ms: [requests, 4] picked, dispatched, done, more outside; request_of: [requests, 2] batch, worker. Empty where nobody asks.
    """

    queue_ms: Array
    queue_id: Array
    jobs_ms: Array
    jobs_id: Array
    sizes: Array
    ends_v: Array
    ends_of: Array
    idle: Array
    since: Array
    more_ms: Array
    latency: Array
    wait: Array
    third_ms: Array
    thirds: Array
    request_ms: Array
    request_of: Array


class Chances(NamedTuple):
    """Random numbers: arrivals apart from the rest, so that every setting gets the same ones."""

    arrivals: np.random.Generator
    noise: np.random.Generator


def compiled(function: Function) -> Function:
    """Machine code, kept on disk where there is a place for it.

    Without numba's reference counts: nothing is allocated here, the arrays are the caller's, and counting them in and out at every access
    takes 15 times as long as the work itself.
    """
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    try:
        return cast(Function, njit(cache=True, **options)(function))
    except RuntimeError:  # neither beside the source nor at home can a file be written
        return cast(Function, njit(**options)(function))


@compiled
def run(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    """From an empty system until every counted request is settled.

    Args:
        now: a record of NOW, zeroed; afterwards it holds the sums.
        rules: Rules.
        space: Space; its counts are added to.
        chances: Chances.
    """
    _begin(now, rules, space, chances)
    while now.phase != CLOSED or now.settled < rules.last - rules.first:
        end = now.t + (space.ends_v[now.busy - 1] - now.v) / rules.pace[now.busy] if now.busy else math.inf
        t = min(end, now.next, now.deadline)
        if t == math.inf or now.overflowed:
            break
        _pass_time(now, rules, t)
        if end <= t:
            _finish(now, rules, space, chances)
        elif now.next <= t:
            _arrive(now, rules, space, chances)
        if rules.triton:
            _gather_triton(now, rules, space, chances)
        else:
            _gather_torchserve(now, rules, space, chances)


@compiled
def _begin(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    now.deadline = now.opened = now.closed = math.inf
    for worker in range(rules.workers):
        space.idle[worker] = worker
    if len(rules.times_ms):
        now.phase, now.opened = OPEN, 0.0
    _draw_arrival(now, rules, chances)


@compiled
def _draw_arrival(now: Any, rules: Rules, chances: Chances) -> None:
    if len(rules.times_ms):
        now.next = rules.times_ms[now.arrived] if now.arrived < len(rules.times_ms) else math.inf
    elif rules.poisson:
        now.next = now.t + rules.gap_ms * chances.arrivals.standard_exponential()
    else:
        now.next = now.next + rules.gap_ms if now.arrived else rules.gap_ms * chances.arrivals.random()


@compiled
def _pass_time(now: Any, rules: Rules, t: float) -> None:
    passed_ms = t - now.t
    if now.phase == OPEN:
        now.busy_ms += passed_ms * now.busy
        now.inside_ms += passed_ms * (now.inside + now.tail - now.head)
    if now.busy:
        now.v += passed_ms * rules.pace[now.busy]
    now.t = t


@compiled
def _arrive(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    number = now.arrived
    if number == rules.first and now.phase == BEFORE:
        now.phase, now.opened = OPEN, now.t
    elif number == rules.last:
        now.phase, now.closed = CLOSED, now.t
    waiting = now.tail - now.head
    if rules.queue_limit and waiting - now.taken >= rules.queue_limit:
        if rules.first <= number < rules.last:
            now.rejected += 1
            now.settled += 1
    elif waiting == len(space.queue_ms):
        now.overflowed = True
    else:
        place = now.tail & (len(space.queue_ms) - 1)
        space.queue_ms[place], space.queue_id[place] = now.t, number
        now.tail += 1
    now.arrived += 1
    _draw_arrival(now, rules, chances)


@compiled
def _gather_torchserve(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    while now.busy < rules.workers:
        ready = min(now.tail - now.head, rules.batch_size)
        if not ready:
            return
        clock = math.floor(now.t / rules.clock_ms) * rules.clock_ms if rules.clock_ms > 0 else now.t
        if not now.gathering:
            now.gathering, now.picked, now.left = True, now.t, rules.delay_ms
            now.taken, now.clock, now.deadline = ready, clock, now.t + now.left
        elif ready > now.taken:
            now.left -= clock - now.clock
            now.taken, now.clock, now.deadline = ready, clock, now.t + now.left
        if now.taken < rules.batch_size and now.left > 0 and now.t < now.deadline:
            return
        _dispatch(now, rules, space, chances, now.taken)


@compiled
def _gather_triton(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    while now.busy < rules.workers:
        ready = min(now.tail - now.head, rules.batch_size)
        if not ready:
            return
        if not now.gathering:
            now.gathering, now.picked = True, now.t
            now.deadline = space.queue_ms[now.head & (len(space.queue_ms) - 1)] + rules.delay_ms
        if ready < rules.batch_size and now.t < now.deadline:
            return
        _dispatch(now, rules, space, chances, ready)


@compiled
def _dispatch(now: Any, rules: Rules, space: Space, chances: Chances, size: int) -> None:
    """The next `size` requests leave the queue and occupy a worker."""
    worker = space.idle[now.idle_first]
    now.idle_first = (now.idle_first + 1) % rules.workers
    noise = rules.noise[int(chances.noise.random() * len(rules.noise))] if len(rules.noise) > 1 else rules.noise[0]
    batch_ms = rules.batch_ms[size - 1] * noise
    if len(rules.rested) > 1:
        batch_ms += _after(rules.rested, now.t - space.since[worker], 1)
        space.more_ms[worker] = 0.0 if now.busy else _after(rules.rested, now.t - now.quiet, 2)
    _occupy(now, space, worker, now.v + batch_ms)
    for job in range(size):
        place = now.head & (len(space.queue_ms) - 1)
        space.jobs_ms[worker, job], space.jobs_id[worker, job] = space.queue_ms[place], space.queue_id[place]
        _count_wait(now, rules, space, space.queue_ms[place], space.queue_id[place], worker)
        now.head += 1
    space.sizes[worker] = size
    now.inside += size
    if now.phase == OPEN:
        now.dispatched += size
        now.dispatched_batches += 1
    now.batches += 1
    now.gathering, now.taken, now.deadline = False, 0, math.inf
    if now.head == now.tail:
        now.head = now.tail = 0  # the same few places of the ring again: they are in the processor's cache


@compiled
def _after(rested: Array, rest_ms: float, column: int) -> float:
    """A column of `rested` where its first is rest_ms."""
    place = 0
    while place < len(rested) - 1 and rested[place + 1, 0] <= rest_ms:
        place += 1
    more_ms: float = rested[place, column]
    if place < len(rested) - 1:
        share = (rest_ms - rested[place, 0]) / (rested[place + 1, 0] - rested[place, 0])
        more_ms += share * (rested[place + 1, column] - more_ms)
    return more_ms


@compiled
def _occupy(now: Any, space: Space, worker: int, end_v: float) -> None:
    place = now.busy
    while place > 0 and space.ends_v[place - 1] <= end_v:
        space.ends_v[place], space.ends_of[place] = space.ends_v[place - 1], space.ends_of[place - 1]
        place -= 1
    space.ends_v[place], space.ends_of[place] = end_v, worker
    now.busy += 1


@compiled
def _count_wait(now: Any, rules: Rules, space: Space, arrived_ms: float, number: int, worker: int) -> None:
    if rules.first <= number < rules.last:
        space.wait[_bin(now.t - arrived_ms)] += 1
        now.wait_ms += now.t - arrived_ms
        now.gathering_ms += now.t - max(arrived_ms, now.picked)
    if len(space.request_ms):
        space.request_ms[number, 0], space.request_ms[number, 1] = now.picked, now.t
        space.request_of[number, 0], space.request_of[number, 1] = now.batches, worker


@compiled
def _finish(now: Any, rules: Rules, space: Space, chances: Chances) -> None:
    """The busy worker that ends next answers its batch and is idle."""
    now.busy -= 1
    worker = space.ends_of[now.busy]
    now.v = space.ends_v[now.busy] if now.busy else 0.0  # near 0 a clock has its finest grain
    space.idle[(now.idle_first + rules.workers - now.busy - 1) % rules.workers] = worker
    space.since[worker] = now.quiet = now.t
    size = space.sizes[worker]
    now.inside -= size
    if now.phase == OPEN:
        now.answered += size
    for job in range(size):
        number = space.jobs_id[worker, job]
        if rules.first <= number < rules.last:
            now.rested_ms += space.more_ms[worker]
            _count_latency(now, rules, space, chances, number, now.t - space.jobs_ms[worker, job] + space.more_ms[worker])
        if len(space.request_ms):
            space.request_ms[number, 2], space.request_ms[number, 3] = now.t, space.more_ms[worker]


@compiled
def _count_latency(now: Any, rules: Rules, space: Space, chances: Chances, number: int, latency_ms: float) -> None:
    sample = rules.front_end_ms
    latency_ms += sample[int(chances.noise.random() * len(sample))] if len(sample) > 1 else sample[0]
    space.latency[_bin(latency_ms)] += 1
    third = 3 * (number - rules.first) // (rules.last - rules.first)
    space.third_ms[third] += latency_ms
    space.thirds[third] += 1
    now.settled += 1


@compiled
def _bin(ms: float) -> int:
    """The exponent and the first bits of a number, read as one whole number: bins of equal width within an octave."""
    place = int(np.float64(ms).view(np.int64) >> SHIFT) - LOWEST
    return min(max(place, 0), BINS - 1)


def edges_ms(bins: Array) -> Array:
    """Where these bins begin; the first at 0."""
    begins = ((np.asarray(bins, dtype=np.int64) + LOWEST) << SHIFT).view(np.float64)
    return np.where(np.asarray(bins) > 0, begins, 0.0)
