"""benchmarks/pace.py's own loop says what the simulator says, and batches are told apart as they were."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.load import RequestRecord
from batchline.queueing import Service
from tests.harness import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import pace


@given(st.lists(st.floats(0.001, 0.2), min_size=20, max_size=200))
def test_the_loop_is_the_simulator_where_no_batch_is_slow(gaps_s: list[float]) -> None:
    """But for the clock's whole milliseconds, which the simulator has."""
    times = np.cumsum(gaps_s)
    service = Service(tuple(10.0 + 4 * size for size in range(1, 13)), noise=(1.0,), front_end_ms=0.5)
    load = pace.Batches(np.array([1]), np.array([14.0]), np.array([times[-1] + 100]))
    mean_ms, p99_ms = pace.in_order(service, load, times)
    simulated_mean_ms, simulated_p99_ms = pace.drawn(service, times)
    assert mean_ms == pytest.approx(simulated_mean_ms, rel=0.1, abs=2.0) and p99_ms == pytest.approx(simulated_p99_ms, rel=0.15, abs=6.0)


def test_answers_of_one_batch_are_one_batch() -> None:
    def answer(done_s: float, size: int, inference_ms: float) -> RequestRecord:
        return RequestRecord(0, 0, done_s, done_s, 200, batch_size=size, stages_ms={"inference": inference_ms, "queue": 9.0})

    records = [answer(0.2, 1, 5.0), answer(0.1, 2, 7.0), answer(0.11, 2, 7.0), answer(0.3, 2, 6.0), answer(0.31, 2, 6.0)]
    found = pace.batches_of(records)
    assert found.sizes.tolist() == [2, 1, 2] and found.handler_ms.tolist() == [7.0, 5.0, 6.0] and found.done_s.tolist() == [0.11, 0.2, 0.31]
