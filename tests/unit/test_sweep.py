"""A sweep's file and what it says; the plan of turns; the file of a journey."""

from __future__ import annotations

import itertools
import json
import socket
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.errors import MeasureError
from batchline.journey import Settings
from batchline.load import LoadRun, RequestRecord, Target, open_loop
from batchline.runfile import Machine
from batchline.staged import Staged, read_staged, staged_json
from batchline.stages import Journey, Part
from batchline.sweep import Turn, _apart, _as_step, _loads, _step, _turns, default, parse_candidates, parse_rates
from batchline.swept import FORMAT, Candidate, Step, Sweep, SweepPlan, largest_kept, points, read_sweep, write_sweep

ONE, EIGHT = Candidate("default", 1, 100, 2), Candidate("tuned", 8, 1, 2)
PLAN = SweepPlan((ONE, EIGHT), (("default", 10.0), ("tuned", 10.0), ("tuned", 20.0)), 2, 3.0, 200, 1.0, 1, 100, 50.0, 1)


def swept(*steps: Step) -> Sweep:
    return Sweep(
        "digits", "1.0", "0" * 64, PLAN, Machine("a CPU", 2, "Linux", 0.1), {}, True, {"default": 15.0, "tuned": 25.0}, list(steps)
    )


def step(name: str, rate: float, latencies: list[float], visit: int = 0, refused: int = 0) -> Step:
    return Step(name, rate, visit, latencies, refused, 0, 2.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = swept(step("tuned", 10.0, [1.0, 2.5]), replace(step("tuned", 10.0, []), invalid=["late"], stages_ms={"queue": 1.0}))
    write_sweep(tmp_path / "sweep.json", written)
    assert asdict(read_sweep(tmp_path / "sweep.json")) == asdict(written)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "batchline-sweep/2"}, "batchline-sweep/2"),
        ({"format": "batchline-load/1"}, "batchline-load/1"),
        ({"steps": [{"candidate": "x"}]}, "steps"),
        ({"capacity_per_s": {"default": -1.0}}, "capacity_per_s"),
        ({"extra": 1}, "extra"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = tmp_path / "sweep.json"
    write_sweep(path, swept())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MeasureError, match=named) as raised:
        read_sweep(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", ["", "[]", "3", '{"format": "batchline-sweep/1"', "\x00"])
def test_no_file_and_no_json_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "sweep.json"
    with pytest.raises(MeasureError, match="batchline sweep"):
        read_sweep(path)
    path.write_text(content)
    with pytest.raises(MeasureError, match=str(path)):
        read_sweep(path)


def test_points_pool_the_visits_and_count_what_was_refused() -> None:
    low, high = list(np.linspace(1, 2, 500)), list(np.linspace(3, 4, 500))
    found = swept(
        step("tuned", 20.0, low, 1, refused=111), step("tuned", 20.0, high), step("tuned", 10.0, [5.0]), step("default", 10.0, [])
    )
    assert points(found, "default") == []
    ten, twenty = points(found, "tuned")
    assert (ten.rate_per_s, ten.p99_ms, ten.p99_interval_ms, ten.requests) == (10.0, 5.0, None, 1)
    assert twenty.requests == 1111 and twenty.refused_share == pytest.approx(111 / 1111)
    assert twenty.p99_ms == pytest.approx(np.percentile(low + high, 99))
    assert twenty.p99_interval_ms and twenty.p99_interval_ms[0] < twenty.p99_ms < twenty.p99_interval_ms[1]
    assert twenty.visits_p99_ms == pytest.approx((np.percentile(low, 99), np.percentile(high, 99)))


def test_a_rate_that_refuses_keeps_no_target() -> None:
    quick = [1.0] * 97
    found = swept(step("tuned", 10.0, quick), step("tuned", 20.0, quick, refused=3), step("tuned", 30.0, quick))
    kept = largest_kept(found, "tuned", 50.0)
    assert kept and kept.rate_per_s == 10.0
    assert largest_kept(found, "tuned", 0.5) is None


def test_turns_visit_every_load_and_settings_follow_one_another() -> None:
    turns = list(_turns(PLAN))
    assert len(turns) == PLAN.visits * len(PLAN.loads)
    for visit in range(PLAN.visits):
        here = [turn for turn in turns if turn.visit == visit]
        assert {(turn.candidate.name, turn.rate_per_s) for turn in here} == set(PLAN.loads)
        at_ten = [number for number, turn in enumerate(here) if turn.rate_per_s == 10.0]
        assert at_ten[1] - at_ten[0] == 1
    assert turns == list(_turns(PLAN))


@given(st.dictionaries(st.sampled_from(["default", "tuned"]), st.floats(0.5, 1e5), min_size=2))
def test_rates_reach_past_each_capacity_and_no_further(capacity: dict[str, float]) -> None:
    loads = list(_loads([ONE, EIGHT], capacity, None))
    for name, most in capacity.items():
        own = [rate for other, rate in loads if other == name]
        assert own and most < max(own) <= 1.2 * most and own == sorted(set(own))


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_rates_that_are_close_are_one(rates: list[float]) -> None:
    kept = _apart(iter(rates))
    assert all(b > 1.08 * a for a, b in itertools.pairwise(kept))
    assert all(any(rate <= near * 1.0801 and rate >= near for near in kept) for rate in rates)


def test_given_rates_are_for_everyone() -> None:
    assert list(_loads([ONE, EIGHT], {"default": 1.0, "tuned": 9.0}, [5.0, 50.0])) == [
        (name, rate) for name in ("default", "tuned") for rate in (5.0, 50.0)
    ]


def test_only_settled_requests_count() -> None:
    def record(due_s: float, status: int = 200, size: int | None = 2) -> RequestRecord:
        return RequestRecord(due_s, due_s, due_s + 0.01, due_s + 0.02, status, batch_size=size, stages_ms={"queue": due_s})

    run = LoadRun([record(0.5), record(1.0), record(1.5, 503, None), record(2.0, 0, None), record(2.5, size=4)], 3.0, 3.0, 2.0, 1, 0.1)
    made = _as_step(Turn(EIGHT, 2.0, 1), run, 1.0)
    assert made.latency_ms == pytest.approx([20.0, 20.0])
    assert (made.refused, made.failed, made.mean_batch_size, made.stages_ms) == (1, 1, 3.0, {"queue": 1.75})


def test_low_rates_take_longer_but_not_for_ever() -> None:
    assert [PLAN.seconds(rate) for rate in (1000.0, 40.0, 1.0)] == [3.0, 5.0, 12.0]


def test_settings_are_read_and_checked() -> None:
    assert parse_candidates(["tuned=8,1,2", "tutorial=8,100,1"]) == [EIGHT, Candidate("tutorial", 8, 100, 1)]
    assert default(4) == Candidate("default", 1, 100, 4)
    for wrong in (["tuned"], ["=8,1,2"], ["a=0,1,2"], ["a=8,1"], ["a=8,1,2", "a=4,1,2"], ["a b=1,1,1"], [], ["a=1,1,1"] * 5, ["a=8,-1,2"]):
        with pytest.raises(MeasureError):
            parse_candidates(wrong)


@pytest.mark.parametrize("text", ["", "a", "0", "-1", "nan", "inf", "10,,20", "1e9"])
def test_no_rates_are_refused(text: str) -> None:
    with pytest.raises(MeasureError, match="rates"):
        parse_rates(text)


def test_rates_are_in_order_and_once() -> None:
    assert parse_rates("20, 10.5,20") == [10.5, 20.0]


def journey() -> Journey:
    parts = (Part("network", "T_network", 1.0, 0.1), Part("inference", "T_inference", 9.0, 0.9))
    return Journey("digits", 3, True, 1.5, 10.0, parts, 0.1, 0.2, 0.0, 1.0, "inference", 4.5, 0.45, "act", True, ("a doubt",))


def test_a_journey_is_read_as_it_was_printed(tmp_path: Path) -> None:
    told = Staged(journey(), Settings(1, 2, 3), "a slow link", Machine("a CPU", 2, "Linux", 0.1), {"torch": "2"})
    (tmp_path / "stages.json").write_text(json.dumps(staged_json(told)))
    assert read_staged(tmp_path / "stages.json") == told
    assert staged_json(told)["stages"]["inference"]["ms"] == 9.0


@pytest.mark.parametrize(
    "change", [{"stages": []}, {"stages": {"a": 1}}, {"total_ms": "10"}, {"more": 1}, {"settings": {}}, {"stages": None}]
)
def test_a_journey_that_is_none_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "stages.json").write_text(json.dumps(staged_json(Staged(journey())) | change))
    with pytest.raises(MeasureError, match="batchline-stages/1"):
        read_staged(tmp_path / "stages.json")


def test_the_formats_name_themselves() -> None:
    assert (FORMAT, staged_json(Staged(journey()))["format"]) == ("batchline-sweep/1", "batchline-stages/1")


def test_a_step_that_outruns_the_generator_is_one_bad_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes connections and never answers: the sweep goes on, and the step says why it counts for nothing."""

    class Silent:
        def target(self, candidate: Candidate, bodies: list[bytes]) -> Target:
            return Target(f"http://127.0.0.1:{listener.getsockname()[1]}/", bodies, timeout_s=0.2)

    monkeypatch.setattr("batchline.sweep.open_loop", partial(open_loop, cap=20))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        found = _step(Silent(), Turn(EIGHT, 500.0, 0), PLAN, [b"x"])  # type: ignore[arg-type]
    assert found.latency_ms == []
    assert "requests in flight" in found.invalid[0]
    sweep = swept(step("tuned", 10.0, [1.0]), found, step("tuned", 600.0, [1.0]))
    assert [point.rate_per_s for point in points(sweep, "tuned")] == [10.0, 600.0]
    kept = largest_kept(sweep, "tuned", 5.0)
    assert kept is not None and kept.rate_per_s == 10.0  # what is beyond a rate that could not be told is not kept
