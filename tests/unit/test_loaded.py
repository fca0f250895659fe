"""What a batch takes longer for when requests come one by one: from the runs of a measurement to the service that a plan reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchline.loaded import arrivals_of, handler_ms, loaded_of
from batchline.measured import LoadedRun, Measured, SettingRun
from batchline.queueing import Service, Setting, capacity_per_s
from batchline.service import model_of
from batchline.simulate import simulate, simulate_times
from tests.known_run import known_run

T8_MS = 4.0 + 8 * 1.0
PER_S = 8e3 / T8_MS


def run_of(workers: int, load: float, visit: int = 0, batches: int = 40) -> LoadedRun:
    return LoadedRun(workers, 1, 8, visit, load * workers * PER_S, 8 * batches, [])


def measured(runs: Sequence[LoadedRun], alone_ms: float | None = T8_MS) -> Measured:
    """T(B) = 4 + B; workers that do not slow each other at saturation; the handler is all of it."""
    made = known_run(4.0, 1.0)
    made.settings = [replace(run, handler_ms=alone_ms) for run in made.settings]
    made.loaded = list(runs)
    return made


def took(run: LoadedRun, factors: tuple[float, ...], service: Service) -> LoadedRun:
    """The run, if batches took so many times as long while so many workers were busy: followed from batch to batch."""
    due_ms = arrivals_of(run, 1)[7::8] * 1e3  # a batch begins when its last request comes and a worker is free
    free = [(0.0, worker) for worker in range(run.workers)]
    running: dict[int, list[float]] = {}
    now, begun, found = 0.0, 0, list[float]()
    while begun < len(due_ms) or running:
        pace = 1 / (factors[len(running) - 1] * service.slow(len(running), 8)) if running else 1.0
        begins = max(due_ms[begun], now) if begun < len(due_ms) and free else np.inf
        worker, left = min(((w, left) for w, (left, _) in running.items()), key=lambda each: each[1], default=(-1, np.inf))
        then = min(begins, now + left / pace)
        for each in running.values():
            each[0] -= (then - now) * pace
        if begins <= now + left / pace:
            running[free.pop()[1]] = [T8_MS, then]
            begun += 1
        else:
            found.append(then - running.pop(worker)[1])
            free.append((then, worker))
        now = then
    return replace(run, handler_ms=found)


def test_one_worker_takes_as_many_times_as_long_as_it_was_seen_to() -> None:
    runs = [replace(run_of(1, 0.7, visit), handler_ms=[T8_MS * factor] * 40) for visit, factor in ((0, 1.1), (1, 1.3))]
    service = model_of(measured(runs)).services[1]
    assert service.loaded == pytest.approx([1.2], rel=0.01)
    assert service.slow_in_load(1, 8) == service.slow_in_load(2, 8) == pytest.approx(1.2, rel=0.01)
    assert service.slow(1, 8) == 1.0


@given(alone=st.floats(1.0, 1.3), both=st.floats(1.0, 1.6), load=st.floats(0.5, 0.8), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_two_workers_factors_are_found_again(alone: float, both: float, load: float, seed: int) -> None:
    """What a loop of its own has two workers take, when one takes `alone` and two `both` times as long."""
    service = known_service()
    runs = [took(run_of(workers, load, seed), (alone, both), service) for workers in (1, 2)]
    assert loaded_of(measured(runs), service, 8) == pytest.approx([alone, both], rel=0.02)


def known_service() -> Service:
    return Service.line(4.0, 1.0, 32, slowdown=(1.0, 1.0, 1.5))


def test_what_is_faster_in_load_is_taken_to_be_as_fast() -> None:
    run = replace(run_of(1, 0.7), handler_ms=[0.8 * T8_MS] * 40)
    assert loaded_of(measured([run]), known_service(), 8) == (1.0,)


@pytest.mark.parametrize("made", [measured([]), measured([replace(run_of(1, 0.7), requests=0)]), known_run(4.0, 1.0)])
def test_nothing_is_added_where_nothing_was_seen(made: Measured) -> None:
    service = model_of(made).services[1]
    assert service.loaded == service.loaded_of_one == ()
    assert service.slow_in_load(2, 8) == service.slow(2, 8)


def test_a_handler_that_does_not_tell_its_time_adds_nothing() -> None:
    run = replace(run_of(1, 0.7), handler_ms=[9.0] * 40)
    assert loaded_of(measured([run], alone_ms=None), known_service(), 8) == ()


def test_batches_of_one_have_their_own_and_sizes_between_lie_between() -> None:
    service = replace(Service.line(4, 1, 16), loaded=(1.1, 1.2), loaded_of_one=(1.4, 1.5), slowdown_size=8)
    assert [service.slow_in_load(busy, 8) for busy in (1, 2, 3)] == pytest.approx([1.1, 1.2, 1.2])
    assert service.slow_in_load(1, 16) == pytest.approx(1.1)
    assert [service.slow_in_load(busy, 1) for busy in (1, 2)] == pytest.approx([1.4, 1.5])
    assert service.slow_in_load(2, 2) == pytest.approx(1.5 - 0.3 / 3)


def test_workers_of_more_threads_keep_as_many_cores_busy() -> None:
    runs = [replace(run_of(workers, 0.9), handler_ms=[T8_MS * factor] * 40) for workers, factor in ((1, 1.1), (2, 1.4))]
    made = measured(runs)
    made.settings.append(SettingRun(1, 2, 8, 0, 1.5 * PER_S, 400, T8_MS / 1.5))
    services = model_of(made).services
    assert len(services[1].loaded) == 2
    assert services[2].loaded == services[1].loaded[1:]


def test_the_capacity_stays_and_the_queue_is_longer() -> None:
    plain = Service.line(4.0, 1.0, 8)
    loaded, setting = replace(plain, loaded=(1.25,)), Setting(1, 1, 1)
    assert capacity_per_s(loaded, setting) == capacity_per_s(plain, setting) == pytest.approx(200.0)
    slower = Service.line(5.0, 1.25, 8)
    seen, expected = (simulate(service, setting, 100.0, requests=20_000).latency_ms for service in (loaded, slower))
    assert (seen.mean, seen.p99) == (pytest.approx(expected.mean), pytest.approx(expected.p99))


def test_a_rate_that_open_load_cannot_have_is_no_number() -> None:
    service, setting = replace(Service.line(4.0, 1.0, 8), loaded=(1.25,)), Setting(1, 1, 1)
    found = simulate(service, setting, 170.0, requests=20_000)
    assert not found.stable and found.capacity_per_s == pytest.approx(200.0)
    assert simulate(service, setting, 150.0, requests=20_000).stable


def test_the_wait_is_not_the_handlers() -> None:
    assert handler_ms({"queue": 50.0, "preprocess": 1.0, "inference": 3.0}) == 4.0
    assert handler_ms({}) == 0.0


def test_arrivals_are_whole_batches_at_the_rate_and_the_same_again() -> None:
    run = run_of(2, 0.7)
    times = arrivals_of(run, 1)
    assert len(times) == run.requests and np.all(np.diff(times) >= 0)
    assert times[-1] <= run.requests / run.rate_per_s
    assert np.array_equal(times, arrivals_of(run, 1)) and not np.array_equal(times, arrivals_of(replace(run, visit=1), 1))
    trace = simulate_times(known_service(), Setting(8, 1e6, 2, queue_limit=None), times)
    assert np.bincount(trace.batch).tolist() == [8] * 40
