"""The simulator against theory, against ciw, against the rules written down a second time, and against hand-made cases."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import ciw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from batchline import cli, kernel, simulate
from batchline.errors import SimulateError
from batchline.queueing import SERVERS, Server, Service, Setting, capacity_per_s
from batchline.simulate import simulate_times
from batchline.simulated import Simulated, Trace, as_json

ENOUGH = 40  # replications: Student's t beyond 3 standard errors is then once in 200
QUANTILE_ERROR = 0.001  # of the histogram
EXPONENTIAL = tuple(-np.log1p(-(np.arange(20_000) + 0.5) / 20_000))  # its quantiles: a sample that is as even as can be
SAMPLE = Service.line(10, 1, 16)


def ideal(batch_size: int, delay_ms: float = 0.0, workers: int = 1) -> Setting:
    """A queue as theory has it: no limit."""
    return Setting(batch_size, delay_ms, workers, queue_limit=None)


def run(service: Service, setting: Setting, per_ms: float, requests: int = 200_000, server: Server = "torchserve") -> Simulated:
    return simulate.simulate(service, setting, per_ms * 1e3, requests=requests, replications=ENOUGH, clock_ms=0.0, server=server)


def error(found: Simulated, name: str) -> float:
    """Standard error of a figure, from its interval."""
    low, high = found.intervals[name]
    return (high - low) / 2 / float(stdtrit(found.replications - 1, 0.975))


def agrees(found: Simulated, name: str, exact: float, also: float = 0.0) -> None:
    """Within 3 standard errors, `also` that of what it is compared with."""
    head, _, figure = name.partition(".")
    value = getattr(getattr(found, head), figure) if figure else getattr(found, head)
    assert abs(value - exact) <= 3 * math.hypot(error(found, name), also) + 1e-9 * exact, (name, value, exact)


# ---- theory: the vectors of shared/design/queueing.md, by its sections


@pytest.mark.parametrize(("rho", "p99"), [(0.3, 1.89087), (0.5, 3.33626), (0.7, 6.48550)])
def test_m_d_1(rho: float, p99: float) -> None:
    """3.2: the mean, and Erlang's exact p99."""
    found = run(Service((1.0,)), ideal(1), rho)
    agrees(found, "queue_wait_ms.mean", rho / 2 / (1 - rho))
    agrees(found, "queue_wait_ms.p99", p99, also=QUANTILE_ERROR * p99)
    agrees(found, "utilisation", rho)
    agrees(found, "throughput_per_s", rho * 1e3)


@pytest.mark.parametrize(("workers", "load", "wait"), [(1, 0.5, 1.0), (2, 1.4, 0.960784), (4, 2.8, 0.357212), (8, 6.4, 0.286028)])
def test_m_m_n(workers: int, load: float, wait: float) -> None:
    """3.3: Erlang C; the exponential service comes in as noise."""
    found = run(Service((1.0,), noise=EXPONENTIAL), ideal(1, workers=workers), load, 400_000)
    agrees(found, "queue_wait_ms.mean", wait)
    certain = wait * (workers - load)  # that a request waits
    if certain > 0.01:
        p99 = math.log(certain / 0.01) / (workers - load)
        agrees(found, "queue_wait_ms.p99", p99, also=QUANTILE_ERROR * p99)


@pytest.mark.parametrize(("workers", "load", "wait"), [(2, 1.4, 0.4905), (4, 2.8, 0.1888), (8, 6.4, 0.1523)])
def test_m_d_n(workers: int, load: float, wait: float) -> None:
    """3.3: simulated there."""
    agrees(run(Service((1.0,)), ideal(1, workers=workers), load), "queue_wait_ms.mean", wait, also=0.001)


@pytest.mark.parametrize(("per_ms", "size", "latency"), [(0.5, 1, 2.0), (1.5, 2, 3.77007), (3, 4, 3.5525), (6, 8, 3.39802)])
def test_bulk_service_by_one_server(per_ms: float, size: int, latency: float) -> None:
    """3.4: M/M^[1,b]/1, a batch's time independent of its size."""
    found = run(Service((1.0,) * size, noise=EXPONENTIAL), ideal(size), per_ms, 400_000)
    agrees(found, "latency_ms.mean", latency)


@pytest.mark.parametrize(
    ("per_ms", "latency", "size"),
    [
        (0.02, 12.2359, 1.0226),
        (0.05, 14.0191, 1.1298),
        (0.10, 16.4090, 1.4652),
        (0.20, 19.6613, 2.6047),
        (0.40, 26.4251, 6.6703),
        (0.60, 39.5312, 15.0),
        (0.80, 78.8889, 40.0),
    ],
)
def test_no_batch_limit_and_no_delay(per_ms: float, latency: float, size: float) -> None:
    """3.5: exact, by Inoue's identity."""
    found = run(Service.line(10, 1, 400), ideal(400), per_ms)
    agrees(found, "latency_ms.mean", latency)
    agrees(found, "mean_batch_size", size, also=1e-4)


ONE_WORKER = [
    (0.05, 8, 0, 14.0191, 1.1298, 22.95),
    (0.05, 8, 5, 18.5851, 1.3855, 28.70),
    (0.05, 8, 50, 48.3802, 3.6801, 78.0),
    (0.20, 8, 0, 19.6684, 2.6046, 29.6),
    (0.20, 8, 5, 23.9167, 3.8057, 36.3),
    (0.20, 8, 20, 32.0530, 6.5731, 52.8),
    (0.30, 8, 0, 22.9081, 4.3086, 37.6),
    (0.30, 8, 5, 26.5725, 5.9573, 40.9),
    (0.40, 8, 0, 32.1660, 6.6691, 70.4),
    (0.40, 8, 5, 33.9355, 7.5745, 71.4),
    (0.40, 16, 0, 26.4306, 6.6703, 42.1),
    (0.40, 16, 10, 38.6858, 12.5270, 58.2),
]


@pytest.mark.parametrize(("per_ms", "size", "delay_ms", "latency", "batch", "p99"), ONE_WORKER)
def test_one_worker(per_ms: float, size: int, delay_ms: float, latency: float, batch: float, p99: float) -> None:
    """3.7: mean and batch exact; p99 was simulated there, to 2%."""
    found = run(SAMPLE, ideal(size, delay_ms), per_ms)
    agrees(found, "latency_ms.mean", latency)
    agrees(found, "mean_batch_size", batch, also=1e-4)
    agrees(found, "latency_ms.p99", p99, also=0.01 * p99)


def test_one_worker_without_batches() -> None:
    """3.7, first row: M/D/1 with its exact p99."""
    found = run(SAMPLE, ideal(1), 0.05)
    agrees(found, "latency_ms.mean", 17.7222)
    agrees(found, "latency_ms.p99", 53.566, also=0.05)


@pytest.mark.parametrize(("per_ms", "delay_ms", "latency"), [(0.2, 5, 16.2497), (0.2, 20, 27.0502), (1, 5, 18.9614)])
def test_workers_that_are_always_free(per_ms: float, delay_ms: float, latency: float) -> None:
    """3.7: one collector at a time, and never a busy worker in the way."""
    agrees(run(SAMPLE, ideal(8, delay_ms, 200), per_ms), "latency_ms.mean", latency)


ONE_RUN = [  # load, delay, mean and p99 of one run of 200,000 jobs, the standard deviation of both over 50 such runs
    (0.9, 0, 23.8, 34.8, 0.11, 0.66),
    (0.9, 5, 21.2, 29.1, 0.08, 0.79),
    (0.7, 0, None, 28.8, 0.03, 0.03),
    (0.7, 5, None, 24.5, 0.01, 0.03),
    (0.3, 0, 14.5, 24.3, 0.02, 0.05),
    (0.3, 5, 17.5, 22.0, 0.01, 0.01),
]
PRINTED = 0.05 / 3  # of numbers with one decimal place: half of it, as if it were 3 standard errors


@pytest.mark.parametrize(("load", "delay_ms", "latency", "p99", "latency_error", "p99_error"), ONE_RUN)
def test_four_workers(load: float, delay_ms: float, latency: float | None, p99: float, latency_error: float, p99_error: float) -> None:
    """3.8."""
    found = run(SAMPLE, ideal(8, delay_ms, 4), load * 4 * 8 / 18)
    if latency is not None:
        agrees(found, "latency_ms.mean", latency, also=math.hypot(latency_error, PRINTED))
    agrees(found, "latency_ms.p99", p99, also=math.hypot(p99_error, PRINTED, QUANTILE_ERROR * p99))


def test_a_delay_helps_several_busy_workers() -> None:
    """3.8, what the plan is built on: at 90% of capacity 5 ms of waiting lower both the mean and p99."""
    without, waiting = (run(SAMPLE, ideal(8, delay_ms, 4), 1.6).latency_ms for delay_ms in (0, 5))
    assert waiting.mean < without.mean - 2
    assert waiting.p99 < without.p99 - 3


def test_a_full_queue_refuses_as_often_as_theory_says() -> None:
    """M/M/1/K with K = 3 waiting + 1 served: the part refused is (1 - ρ)ρ^K / (1 - ρ^(K + 1))."""
    rho, room = 0.8, 4
    found = run(Service((1.0,), noise=EXPONENTIAL), Setting(1, 0, 1, queue_limit=3), rho)
    agrees(found, "rejected", found.requests * (1 - rho) * rho**room / (1 - rho ** (room + 1)))
    assert "503" in found.note


def test_little() -> None:
    """L = λ·W, L being integrated over time and W averaged over requests."""
    found = run(SAMPLE, ideal(8, 5, 2), 0.6)
    assert found.mean_in_system == pytest.approx(found.throughput_per_s / 1e3 * found.latency_ms.mean, rel=2e-3)


# ---- another simulator


def waits_of_ciw(times_ms: list[float], services_ms: list[float], workers: int) -> list[float]:
    """Wait of each customer, in the order of arrival."""
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*np.diff(times_ms, prepend=0.0), math.inf])],
        service_distributions=[ciw.dists.Sequential(services_ms)],
        number_of_servers=[workers],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_time(1e9)
    return [record.waiting_time for record in sorted(simulation.get_all_records(), key=lambda record: record.arrival_date)]


@pytest.mark.parametrize(("workers", "noise"), [(1, ()), (1, EXPONENTIAL), (3, ()), (3, EXPONENTIAL)])
def test_ciw_has_every_request_wait_as_long(workers: int, noise: tuple[float, ...]) -> None:
    """M/D/1, M/M/1, M/D/3, M/M/3: the same arrivals and services, so the same waits."""
    times_s = np.cumsum(np.random.default_rng(5).exponential(1e-3 / 0.85 / workers, 1000))
    found = simulate_times(Service((1.0,), noise=noise), ideal(1, workers=workers), times_s)
    theirs = waits_of_ciw(list(found.arrival_ms), list(found.done_ms - found.dispatch_ms), workers)
    assert found.dispatch_ms - found.arrival_ms == pytest.approx(theirs, abs=1e-6)
    assert max(theirs) > 2


# ---- the rules a second time: from batch to batch instead of from event to event


def by_torchserve(times_ms: list[float], service: Service, setting: Setting, clock_ms: float) -> list[tuple[int, float, float]]:
    """(size, dispatch, done) of each batch: the lock goes from one idle worker to the next, the delay counts from the pick-up."""
    free_ms, lock_ms, batches, done = [0.0] * setting.workers, 0.0, [], 0
    while done < len(times_ms):
        free_ms.sort()
        now = max(free_ms[0], lock_ms, times_ms[done])
        size, left, look = 1, setting.max_batch_delay_ms, now
        while size < setting.batch_size:
            if done + size == len(times_ms) or times_ms[done + size] > now + max(0.0, left):
                now += left
                break
            now = max(now, times_ms[done + size])
            size += 1
            left -= (now // clock_ms - look // clock_ms) * clock_ms if clock_ms else now - look
            look = now
            if left <= 0 < setting.max_batch_delay_ms:
                break
        lock_ms, free_ms[0] = now, now + service.batch_ms[size - 1]
        batches.append((size, now, free_ms[0]))
        done += size
    return batches


def by_triton(times_ms: list[float], service: Service, setting: Setting) -> list[tuple[int, float, float]]:
    """The same of a free instance that takes a full batch, or what is there when the oldest has waited long enough."""
    free_ms, batches, done = [0.0] * setting.workers, [], 0
    while done < len(times_ms):
        free_ms.sort()
        full = done + setting.batch_size - 1
        full_ms = times_ms[full] if full < len(times_ms) else math.inf
        now = max(free_ms[0], times_ms[done], min(times_ms[done] + setting.max_batch_delay_ms, full_ms))
        size = sum(time <= now for time in times_ms[done : done + setting.batch_size])
        free_ms[0] = now + service.batch_ms[size - 1]
        batches.append((size, now, free_ms[0]))
        done += size
    return batches


def batches_of(trace: Trace) -> list[tuple[int, float, float]]:
    firsts = np.unique(trace.batch, return_index=True, return_counts=True)
    return [(int(size), trace.dispatch_ms[first], trace.done_ms[first]) for _, first, size in zip(*firsts, strict=True)]


def same(ours: list[tuple[int, float, float]], theirs: list[tuple[int, float, float]]) -> None:
    assert [size for size, _, _ in ours] == [size for size, _, _ in theirs]
    assert np.array(ours) == pytest.approx(np.array(theirs), abs=1e-6)


seeds = st.integers(0, 2**32 - 1)
batch_sizes = st.integers(1, 9)
delays_ms = st.sampled_from([0.0, 1.0, 2.0, 5.0, 17.0])
worker_counts = st.integers(1, 5)
loads = st.floats(0.05, 1.5)


def drawn(seed: int, setting: Setting, load: float, requests: int = 80) -> list[float]:
    """Poisson arrivals at a part of the capacity, in ms."""
    gap_ms = 18 / 8 / setting.workers / load
    return list(np.cumsum(np.random.default_rng(seed).exponential(gap_ms, requests)))


def traced(
    times_ms: list[float], setting: Setting, service: Service = SAMPLE, server: Server = "torchserve", clock_ms: float = 1.0
) -> Trace:
    return simulate_times(service, setting, np.array(times_ms) / 1e3, server=server, clock_ms=clock_ms)


@given(seeds, batch_sizes, delays_ms, worker_counts, loads, st.sampled_from([0.0, 1.0, 10.0]))
@settings(max_examples=60)
def test_torchserve_from_batch_to_batch(seed: int, size: int, delay_ms: float, workers: int, load: float, clock_ms: float) -> None:
    setting = ideal(size, delay_ms, workers)
    times_ms = drawn(seed, setting, load)
    same(batches_of(traced(times_ms, setting, clock_ms=clock_ms)), by_torchserve(times_ms, SAMPLE, setting, clock_ms))


@given(seeds, batch_sizes, delays_ms, worker_counts, loads)
@settings(max_examples=60)
def test_triton_from_batch_to_batch(seed: int, size: int, delay_ms: float, workers: int, load: float) -> None:
    setting = ideal(size, delay_ms, workers)
    times_ms = drawn(seed, setting, load)
    same(batches_of(traced(times_ms, setting, server="triton")), by_triton(times_ms, SAMPLE, setting))


@given(seeds, batch_sizes, worker_counts, loads)
@settings(max_examples=30)
def test_without_a_delay_the_two_servers_are_one(seed: int, size: int, workers: int, load: float) -> None:
    times_ms = drawn(seed, ideal(size, 0, workers), load)
    same(batches_of(traced(times_ms, ideal(size, 0, workers))), batches_of(traced(times_ms, ideal(size, 0, workers), server="triton")))


# ---- what holds for every queue

services = st.builds(
    Service,
    st.lists(st.floats(0.01, 50), min_size=9, max_size=9).map(lambda times: tuple(sorted(times))),
    slowdown=st.sampled_from([(), (1.0,), (1.0, 1.0, 1.7), (1.0, 2.5)]),
    noise=st.sampled_from([(), (0.9, 1.0, 1.0, 1.4)]),
)
limits = st.sampled_from([None, 1, 3, 20])
gaps_ms = st.lists(st.floats(0, 30) | st.just(0.0), min_size=1, max_size=60)
servers = st.sampled_from(SERVERS)


@given(gaps_ms, services, batch_sizes, delays_ms, worker_counts, limits, servers)
@settings(max_examples=150)
def test_every_request_is_answered_once_in_order_and_every_millisecond_counted(
    gaps: list[float], service: Service, size: int, delay_ms: float, workers: int, limit: int | None, server: Server
) -> None:
    setting = Setting(size, delay_ms, workers, queue_limit=limit)
    trace = traced(list(np.cumsum(gaps)), setting, service, server)
    answered = trace.batch >= 0
    if limit is None or server == "triton":
        assert answered.all()
    assert np.array_equal(answered, ~np.isnan(trace.done_ms))  # conservation: answered or refused, nothing else
    assert trace.rejected == np.sum(~answered)
    arrival, picked, dispatch, done, batch, worker = (values[answered] for values in (*arrays(trace), trace.batch, trace.worker))
    numbers, sizes = np.unique(batch, return_counts=True)
    assert np.array_equal(numbers, np.arange(len(numbers)))
    assert sizes.max() <= size
    assert np.all(np.diff(batch) >= 0)  # first come, first served
    assert np.all(np.diff(dispatch) >= 0)
    assert np.all(arrival <= dispatch + 1e-9)
    assert np.all(picked <= dispatch + 1e-9)
    assert np.sum(done - arrival) == pytest.approx(trace.in_system_ms, abs=1e-6)  # Little, on a finite list
    firsts = np.unique(batch, return_index=True)[1]
    assert np.sum(done[firsts] - dispatch[firsts]) == pytest.approx(trace.busy_ms, abs=1e-6)
    for each in range(workers):  # no worker has two batches at once
        mine = firsts[worker[firsts] == each]
        assert np.all(dispatch[mine][1:] >= done[mine][:-1] - 1e-9)


def arrays(trace: Trace) -> tuple[np.ndarray, ...]:
    return trace.arrival_ms, trace.picked_ms, trace.dispatch_ms, trace.done_ms


@given(seeds, loads)
@settings(max_examples=30)
def test_two_workers_on_one_core_do_the_work_of_one(seed: int, load: float) -> None:
    """Work is conserved: whoever does it, the core is busy at the same times and the last answer comes at the same moment."""
    service = Service((9.0,))
    times_ms = drawn(seed, ideal(1), load / 4)
    alone, shared = traced(times_ms, ideal(1), service), traced(times_ms, ideal(1, workers=2), replace(service, slowdown=(1.0,)))
    assert busy_until(shared) == pytest.approx(busy_until(alone), abs=1e-6)


def busy_until(trace: Trace) -> list[float]:
    """When each busy period ends: no later request has come before all earlier ones are done."""
    done = np.maximum.accumulate(trace.done_ms)
    return [float(end) for end, following in zip(done, [*trace.arrival_ms[1:], math.inf], strict=True) if following > end + 1e-6]


# ---- by hand


def test_workers_that_share_a_core_slow_each_other() -> None:
    """The second comes when the first has 6 of 10 ms left; at half speed that takes 12, and the second has 4 of its own left."""
    for slowdown in ((1.0, 2.0), (1.0,)):
        trace = traced([0, 4], ideal(1, workers=2), Service((10.0,), slowdown=slowdown))
        assert list(trace.done_ms) == pytest.approx([16, 20])


def test_workers_slow_each_other_by_their_own_batch_size() -> None:
    """Two batches at once: of one request three times as long, of eight not at all, of two a third of the way, half of four's."""
    service = Service((10.0,) * 8, slowdown=(1.0, 1.0), slowdown_of_one=(1.0, 3.0), slowdown_size=8)
    for size, together in ((1, 30.0), (2, 10 * (3 - 2 / 3)), (4, 10 * (3 - 4 / 3)), (8, 10.0)):
        trace = traced([0.0] * 2 * size, ideal(size, 50, workers=2), service)
        assert trace.done_ms == pytest.approx([together] * 2 * size)
        assert capacity_per_s(service, ideal(size, 50, workers=2)) == pytest.approx(2e3 * size / together)


def test_the_delay_is_taken_off_in_whole_milliseconds_of_the_clock() -> None:
    """Delay 1: at 0.9 the clock still says 0, so another whole millisecond is waited; at 1.5 it says 1, and nothing is left."""
    times_ms = [0.2, 0.9, 1.5, 1.6]
    assert [size for size, _, _ in batches_of(traced(times_ms, ideal(8, 1)))] == [3, 1]
    assert traced(times_ms, ideal(8, 1)).dispatch_ms[0] == pytest.approx(1.5)
    ideal_clock = traced(times_ms, ideal(8, 1), clock_ms=0.0)
    assert [size for size, _, _ in batches_of(ideal_clock)] == [2, 2]
    assert ideal_clock.dispatch_ms[0] == pytest.approx(1.2)


def test_one_collector_at_a_time_gathers_for_all() -> None:
    """Two idle workers and three requests within 10 ms make one batch, as seen on a live server; the other is free for the fourth."""
    trace = traced([0, 5, 10, 210], ideal(4, 200, 2))
    assert list(trace.batch) == [0, 0, 0, 1]
    assert list(trace.dispatch_ms) == pytest.approx([200, 200, 200, 410])
    assert trace.worker[0] != trace.worker[3]


def test_triton_counts_the_delay_from_the_arrival() -> None:
    """Behind a busy instance the delay has run out already: the third leaves at once, where TorchServe waits 5 ms for company."""
    service = Service((10.0, 10.0))
    assert list(traced([0, 6, 8, 12], ideal(2, 5), service, "triton").dispatch_ms) == pytest.approx([5, 15, 15, 25])
    assert list(traced([0, 6, 8, 12], ideal(2, 5), service, clock_ms=0.0).dispatch_ms) == pytest.approx([5, 15, 15, 30])


def test_a_queue_that_is_full_refuses() -> None:
    trace = traced([0.0] * 6 + [11.0], Setting(1, 0, 1, queue_limit=3), Service((10.0,)))
    assert list(trace.batch) == [0, 1, 2, 3, -1, -1, 4]  # one at work, three waiting; later there is room again
    assert trace.rejected == 2
    assert traced([0.0] * 6, Setting(1, 0, 1, queue_limit=3), Service((10.0,)), "triton").rejected == 0


def test_constant_arrivals_never_meet() -> None:
    found = simulate.simulate(Service((9.0,)), ideal(1), 100, requests=2000, arrivals="constant")
    assert found.latency_ms.mean == pytest.approx(9)
    assert found.latency_ms.p99 == pytest.approx(9, rel=QUANTILE_ERROR)
    assert (found.queue_wait_ms.p99, found.utilisation) == (0, pytest.approx(0.9, rel=1e-3))


def test_noise_and_the_front_end_are_drawn_from_what_was_measured() -> None:
    service = Service((10.0,), noise=(0.8, 1.4), front_end_ms=(1.0, 3.0))
    found = simulate.simulate(service, ideal(1), 0.01, requests=20_000)  # nobody meets anybody
    agrees(found, "latency_ms.mean", 13)
    assert found.latency_ms.p99 == pytest.approx(17, rel=QUANTILE_ERROR)
    assert found.queue_wait_ms.mean == pytest.approx(0, abs=0.01)
    assert found.front_end_ms == 2
    assert capacity_per_s(service, ideal(1)) == pytest.approx(1e3 / 11)


# ---- unstable, and honest about it


@pytest.mark.parametrize(("rate_per_s", "limit", "says"), [(1000, 100, "503 to 55.6%"), (445, None, "without end"), (4, 100, None)])
def test_more_than_can_be_done_has_no_latency(rate_per_s: float, limit: int | None, says: str | None) -> None:
    found = simulate.simulate(Service.line(10, 1, 8), Setting(8, 5, 1, queue_limit=limit), rate_per_s, requests=1000)
    assert found.capacity_per_s == pytest.approx(8000 / 18)
    assert found.stable == (says is None)
    if says:
        assert says in found.note
        assert found.latency_ms.p99 == math.inf
        assert set(as_json(found)) == {"stable", "capacity_per_s", "rejected", "note"}


def test_contention_and_noise_count_in_the_capacity() -> None:
    service = Service((10.0,), slowdown=(1.0, 1.5), noise=(1.0, 1.0, 4.0))
    assert capacity_per_s(service, ideal(1, workers=4)) == pytest.approx(4 / (10 * 3 * 2) * 1e3)


def test_what_cannot_settle_within_the_requests_is_no_number() -> None:
    found = simulate.simulate(Service((1.0,)), ideal(1), 999.9, requests=1000)
    assert not found.stable
    assert "99.9900% of the capacity" in found.note
    assert simulate.simulate(Service((1.0,)), Setting(1, 0, 1, queue_limit=10), 999.9, requests=10_000).stable  # a short queue settles


def test_a_queue_that_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the capacity were twice what it is: the run itself shows it."""
    monkeypatch.setattr(simulate, "capacity_per_s", lambda service, setting: 2000.0)
    found = simulate.simulate(Service((1.0,)), ideal(1), 1300, requests=20_000)
    assert not found.stable
    assert "grows" in found.note


# ---- the rest


def test_a_seed_says_everything() -> None:
    one, again, other = (simulate.simulate(SAMPLE, ideal(8, 5, 2), 500, requests=5000, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.latency_ms != other.latency_ms


def test_two_settings_get_the_same_arrivals() -> None:
    """With a core for every worker, batch 1 and no noise a faster service ends every request sooner by the same."""
    slow, fast = (simulate.simulate(Service((ms,)), ideal(1, workers=50), 100, requests=2000) for ms in (10.0, 9.0))
    assert slow.throughput_per_s == pytest.approx(fast.throughput_per_s, rel=0.02)
    assert slow.mean_in_system / fast.mean_in_system == pytest.approx(10 / 9, rel=0.01)


@given(st.lists(st.floats(0.001, 1e5), min_size=100, max_size=300))
@settings(max_examples=30)
def test_quantiles_of_the_histogram(values: list[float]) -> None:
    """Half of a bin off at most from the value that has this part of all below it."""
    counts = np.zeros(kernel.BINS, dtype=np.int64)
    for value in values:
        counts[kernel._bin(value)] += 1
    ordered = sorted(values)
    for found, part in zip(simulate._quantiles(counts, 0), simulate.QUANTILES.values(), strict=True):
        assert found == pytest.approx(ordered[math.ceil(part * len(values)) - 1], rel=QUANTILE_ERROR)


def test_memory_does_not_grow_with_the_requests() -> None:
    peaks = []
    for requests in (20_000, 2_000_000):
        tracemalloc.start()
        simulate.simulate(SAMPLE, Setting(8, 5, 2), 500, requests=requests)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 100e6


BAD = {
    "--rate-per-s=nan": "a rate is",
    "--rate-per-s=0": "a rate is",
    "--batch-size=0": "batch size must be",
    "--batch-size=999999999": "batch size must be",
    "--c-ms=-1": "c and m must be",
    "--m-ms=inf": "c and m must be",
    "--max-batch-delay-ms=-1": "the batch delay is",
    "--workers=0": "workers must be",
    "--requests=1": "requests must be",
    "--seed=-1": "a seed is",
    "--arrivals=now": "arrivals are",
    "--server=other": "a server is",
    "--queue-limit=-1": "queue limit must be",
    "--cores=-1": "cores must be",
    "--front-end-ms=nan": "the front end's time",
}
COMMAND = [
    "simulate",
    "--c-ms",
    "10",
    "--m-ms",
    "1",
    "--rate-per-s",
    "200",
    "--batch-size",
    "8",
    "--max-batch-delay-ms",
    "5",
    "--requests",
    "2000",
]


def command(monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr("sys.argv", ["batchline", *COMMAND, *more])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("option", "says"), BAD.items())
def test_bad_input_is_one_sentence(option: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, option) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"batchline: {says}")


def test_the_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["latency_ms"]) == set(found["queue_wait_ms"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert {"mean_batch_size", "throughput_per_s", "utilisation", "rejected"} < set(found)
    assert found["latency_ms"]["mean"] == pytest.approx(23.9167, rel=0.1)
    assert command(monkeypatch) == 0
    shown = capsys.readouterr().out
    for word in ("p99", "queue wait", "mean batch", "for company", "seed 1"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_verb_on_an_unstable_queue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--rate-per-s=1000") == 1
    assert capsys.readouterr().err.startswith("batchline: 1000 requests/s are more than 1 worker of batch size 8 can do, 444.4/s")
    assert command(monkeypatch, "--rate-per-s=1000", "--json") == 1
    assert json.loads(capsys.readouterr().out)["stable"] is False


def test_other_values_that_cannot_be() -> None:
    for service in (Service((0.0,)), Service((math.nan,)), Service((1.0,), slowdown=(0.0,)), Service((1.0,), noise=(-1.0,))):
        with pytest.raises(SimulateError):
            simulate.simulate(service, ideal(1), 1)
    with pytest.raises(SimulateError, match="known up to 1"):
        simulate.simulate(Service((1.0,)), ideal(2), 1)
    for times_s in ([], [2.0, 1.0], [-1.0], [math.nan]):
        with pytest.raises(SimulateError, match="arrival time"):
            simulate_times(Service((1.0,)), ideal(1), times_s)


def test_no_other_verb_waits_for_numba() -> None:
    code = "import sys, batchline.cli, batchline.simulate; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_batch_after_a_rest_takes_longer_and_its_requests_too() -> None:
    """Equal gaps of 100 ms and T = 10 ms: every worker rests for 85 ms, on a flat part of the curve."""
    rested = replace(Service((10.0,)), rested=((5.0, 2.0, 1.0), (20.0, 5.0, 2.0)))
    found = simulate.simulate(rested, Setting(1, 1, 1), 10.0, requests=1000, arrivals="constant")
    assert found.latency_ms.mean == pytest.approx(10 + 5 + 2)
    assert found.front_end_ms == pytest.approx(2.0)
    trace = simulate_times(rested, Setting(1, 1, 1), [1.0, 1.0225])  # the second after a rest of 22.5 - 15 = 7.5 ms, a sixth of the way
    assert np.diff([trace.dispatch_ms, trace.done_ms], axis=0)[0] == pytest.approx([15.0, 10 + 2 + 3 / 6])


def test_the_front_end_rests_when_no_worker_works() -> None:
    """Two workers, T = 10 ms: the second request comes while the first is computed, by a worker that rested."""
    service = replace(Service((10.0,)), rested=((1.0, 2.0, 3.0),))
    trace = simulate_times(service, ideal(1, 1, 2), [1.0, 1.005])
    assert trace.more_ms.tolist() == [3.0, 0.0]
    assert (trace.done_ms - trace.dispatch_ms).tolist() == pytest.approx([12.0, 12.0])


def test_a_queue_that_never_rests_is_the_one_without_rest() -> None:
    plain = Service((4.0, 5.0, 6.0))
    one, other = (simulate_times(each, ideal(3, 1, 2), np.zeros(300)) for each in (plain, replace(plain, rested=((1e-9, 3.0, 1.0),))))
    assert one.done_ms.tolist() == other.done_ms.tolist()
    assert not other.more_ms.any()


@pytest.mark.parametrize("rate_per_s", [20.0, 60.0, 90.0])
def test_the_first_of_a_busy_period_takes_longer(rate_per_s: float) -> None:
    """M/G/1 with an exceptional first service: Welch, On a Generalized M/G/1 Queuing Process, Operations Research 12 (1964)."""
    usual_ms, first_ms, each_ms = 10.0, 15.0, rate_per_s / 1e3
    service = replace(Service((usual_ms,)), rested=((1e-9, first_ms - usual_ms, 0.0),))
    wait_ms = each_ms * usual_ms**2 / (2 * (1 - each_ms * usual_ms))
    wait_ms += each_ms * (first_ms**2 - usual_ms**2) / (2 * (1 + each_ms * (first_ms - usual_ms)))
    found = run(service, ideal(1, 1), each_ms, requests=400_000)
    assert abs(found.queue_wait_ms.mean - wait_ms) < 3 * error(found, "queue_wait_ms.mean")


@pytest.mark.parametrize("rested", [((0.0, 1.0, 0.0),), ((5.0, -1.0, 0.0),), ((5.0, 1.0, 0.0), (5.0, 2.0, 0.0)), ((math.nan, 1.0, 0.0),)])
def test_a_rest_that_cannot_be(rested: tuple[tuple[float, float, float], ...]) -> None:
    with pytest.raises(SimulateError, match="rest"):
        replace(Service((1.0,)), rested=rested).check()
