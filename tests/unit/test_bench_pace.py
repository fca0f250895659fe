"""benchmarks/pace.py's own loop says what the simulator says, batches are told apart as they were, and a slowdown is found again."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.load import RequestRecord
from batchline.queueing import Service
from batchline.simulate import simulate_times
from batchline.swept import Candidate
from tests.harness import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import pace


@given(st.lists(st.floats(0.001, 0.2), min_size=20, max_size=200), st.sampled_from([1, 2]))
def test_the_loop_is_the_simulator_where_no_batch_is_slow(gaps_s: list[float], workers: int) -> None:
    """But for the clock's whole milliseconds, which the simulator has."""
    times, loaded = np.cumsum(gaps_s), Candidate("loaded", 12, 2, workers)
    service = Service(tuple(10.0 + 4 * size for size in range(1, 13)), noise=(1.0,), front_end_ms=0.5)
    load = pace.Batches(np.array([1]), np.array([14.0]), np.array([times[-1] + 100]))
    mean_ms, p99_ms = pace.in_order(service, load, loaded, times)
    simulated_mean_ms, simulated_p99_ms = pace.drawn(service, loaded, times)
    assert mean_ms == pytest.approx(simulated_mean_ms, rel=0.1, abs=2.0) and p99_ms == pytest.approx(simulated_p99_ms, rel=0.15, abs=6.0)


@pytest.mark.parametrize("slowdown", [1.0, 1.3, 1.8])
def test_the_slowdown_of_two_workers_is_found_in_a_loads_own_batches(slowdown: float) -> None:
    """From when batches ended and how long they took alone; T(B) of one worker with it."""
    rng = np.random.default_rng(1)
    known = Service(tuple(10.0 + 4 * size for size in range(1, 4)), (1.0, slowdown), tuple(rng.uniform(0.8, 1.2, 200)))
    setting = pace.setting_of(Candidate("loaded", 3, 2, 2))
    trace = simulate_times(known, setting, np.cumsum(rng.exponential(0.012, 3000)))
    _, one, sizes = np.unique(trace.batch, return_index=True, return_counts=True)
    done_ms = trace.done_ms[one]
    order = np.argsort(done_ms)
    load = pace.Batches(sizes[order], (done_ms - trace.dispatch_ms[one])[order], done_ms[order] / 1e3)
    table = pace.Table(
        {size: [20.0, 20.0] for size in (1, 2, 3)}, {size: [20.0, 20.0] for size in (1, 2, 3)}, [20.0], pace.Cores(1.0, 1.0, 1.0, 0.0)
    )
    found = pace.own(table, load, load.together)
    assert found.slowdown == (1.0, pytest.approx(slowdown, rel=0.03))
    assert found.batch_ms == pytest.approx(known.batch_ms, rel=0.03)


def test_answers_of_one_batch_are_one_batch() -> None:
    def answer(done_s: float, size: int, inference_ms: float) -> RequestRecord:
        return RequestRecord(0, 0, done_s, done_s, 200, batch_size=size, stages_ms={"inference": inference_ms, "queue": 9.0})

    records = [answer(0.2, 1, 5.0), answer(0.1, 2, 7.0), answer(0.11, 2, 7.0), answer(0.3, 2, 6.0), answer(0.31, 2, 6.0)]
    found = pace.batches_of(records)
    assert found.sizes.tolist() == [2, 1, 2] and found.handler_ms.tolist() == [7.0, 5.0, 6.0] and found.done_s.tolist() == [0.11, 0.2, 0.31]
