"""Figures 16, 17, 19 and 20: points are the file's, curves the simulator's, and what is missing is said with the command for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from batchline.load import RequestRecord
from batchline.promise import Promise
from batchline.queueing import Service, Setting
from batchline.report import curves, offered
from batchline.report import decisions as figures
from batchline.report.curves import along, over
from batchline.report.data import Evidence, Kept, Loaded, Planned, Source, gather
from batchline.report.style import DARK, LIGHT, Figure, Missing, png, rules, spots, svg
from batchline.runfile import Machine
from batchline.simulate import simulate
from batchline.swept import Candidate, Step, Sweep, SweepPlan, points, write_sweep
from batchline.verify import Seen
from tests.known_run import known_run
from tests.unit.baselines import like_baseline

MACHINE = Machine("a CPU", 2, "Linux", 0.1)
ALL = (figures.workers, offered.load, figures.settings_map, figures.promise)
RATES = (20.0, 60.0, 90.0, 110.0)


def sweep(*names: str, per_step: int = 400) -> Sweep:
    """One worker of T(B) = 8 + 2B at batch sizes 1 and 8: latency grows with the rate, the first refuses from 90 on."""
    chosen = [Candidate("default", 1, 100, 1), Candidate("tuned", 8, 1, 1)]
    made = tuple(each for each in chosen if not names or each.name in names)
    loads = tuple((each.name, rate) for each in made for rate in RATES)
    plan = SweepPlan(made, loads, 2, 3.0, 200, 1.0, 1, 100, 50.0, 1)
    steps = []
    for name, rate in loads:
        slow = 1.0 if name == "tuned" else 3.0
        for visit in range(2):
            latencies = [12.0 + slow * rate / 10 + 0.01 * number + visit for number in range(per_step)]
            steps.append(Step(name, rate, visit, latencies, 40 if slow > 1 and rate > 80 else 0, 0, 2.0))
    return Sweep("known", "1.0", "0" * 64, plan, MACHINE, {"torch": "2"}, True, {"default": 100.0, "tuned": 333.0}, steps)


def planned(size: int = 8, delay_ms: int = 1, p99_ms: float = 60.0) -> Planned:
    return Planned("known", p99_ms, 100.0, "p99", size, delay_ms, 1, 1, True, None, 150.0, "latency", "because")


def kept(size: int = 8, delay_ms: int = 1, rate: float = 100.0, count: int = 1000, promised: Promise | None = None) -> Kept:
    seen = Seen({"mean": 21.0, "p50": 20.0, "p90": 30.0, "p95": 33.0, "p99": 41.5}, (39.0, 44.0), 99.0, 2.0, 3.0, {200: count})
    settings = {"batch_size": size, "max_batch_delay_ms": delay_ms, "min_workers": 1, "max_workers": 1}
    return Kept("known", 60.0, rate, "kept", True, count, 3, seen, settings, promised)


def loaded(count: int = 1000) -> Loaded:
    times = [(number * 0.01, number * 0.01 + 0.02 + 1e-5 * (number % 100)) for number in range(count)]
    records = [RequestRecord(sent, sent, done, done, 200) for sent, done in times]
    return Loaded("known", MACHINE, {}, 10.0, 10.0, 100.0, 5, 0.1, records)


def evidence(*contents: Any) -> Evidence:
    return Evidence("known", tuple(Source("", content, 1796217470.0) for content in contents))


@pytest.fixture(scope="module")
def known() -> Evidence:
    promise = Promise(40.0, 32.0, 19.0)
    return evidence(known_run(8.0, 2.0), sweep(), planned(), kept(promised=promise), loaded())


@pytest.fixture(scope="module")
def hero(known: Evidence) -> Figure:
    """Simulated once."""
    return figure(offered.load(known))


def figure(found: Figure | Missing) -> Figure:
    assert isinstance(found, Figure), found
    return found


def sketch(found: Figure | Missing) -> Any:
    """The artists, not laid out: that takes longest."""
    with rules(figure(found), LIGHT):
        return figure(found).draw(LIGHT).axes[0]


def one(found: Figure | Missing, name: str) -> Any:
    (artist,) = sketch(found).findobj(lambda artist: artist.get_gid() == name)
    return artist


def xy(found: Figure | Missing, name: str) -> tuple[list[float], list[float]]:
    artist = one(found, name)
    return list(artist.get_xdata()), list(artist.get_ydata())


def words(found: Figure | Missing) -> str:
    axes = sketch(found)
    return "\n".join([*(text.get_text() for text in axes.texts), axes.get_title(loc="left")])


# ---- 16: workers


def test_workers_are_drawn_as_measured_and_the_ideal_is_as_many_times_one(known: Evidence) -> None:
    rows = known.fit.scaling.curves[0].rows  # type: ignore[union-attr]
    x, y = xy(figures.workers(known), "measured")
    assert (x, y) == ([1, 2, 3], pytest.approx([row.per_s for row in rows]))
    x, y = xy(figures.workers(known), "ideal")
    assert (x, y) == ([0, 1, 2, 3], pytest.approx([n * rows[0].per_s for n in range(4)]))


def test_a_gap_is_named_and_no_gap_is_not(known: Evidence) -> None:
    bent = known_run(8.0, 2.0)
    bent.settings = [replace(run, per_s=run.per_s / (1 if run.workers < 3 else 2)) for run in bent.settings]
    assert "contention" in words(figures.workers(evidence(bent))) and "contention" not in words(figures.workers(known))


def test_one_worker_count_and_a_hundred_are_drawn() -> None:
    for count in (1, 100):
        found = figures.workers(evidence(known_run(8.0, 2.0, workers=count)))
        assert len(xy(found, "measured")[0]) == count and len(sketch(found).get_xticks()) < 20


# ---- 17: load


def test_points_are_the_sweeps_own(hero: Figure) -> None:
    found = hero
    for name in ("default", "tuned"):
        rows = points(sweep(), name)
        assert xy(found, f"{name} p99") == ([row.rate_per_s for row in rows], pytest.approx([row.p99_ms for row in rows]))
        assert xy(found, f"{name} p50") == ([row.rate_per_s for row in rows], pytest.approx([row.p50_ms for row in rows]))
    assert one(found, "target").get_ydata()[0] == 50.0 and one(found, "alone").get_ydata()[0] == pytest.approx(12.0)
    assert words(found).count("refused") == 2
    assert xy(found, "default kept")[0] == [60.0, 60.0] and xy(found, "tuned kept")[0] == [110.0, 110.0]
    assert figure(found).title == "1.8 times the load within 50 ms"


def test_the_curve_is_the_simulators_and_does_not_see_the_points(hero: Figure) -> None:
    line, other = xy(hero, "tuned p99 simulated"), known_run(16.0, 4.0)
    assert len(line[0]) == offered.CURVE_POINTS and max(line[0]) == pytest.approx(1.03 * 110.0)
    slower = replace(sweep(), steps=[replace(step, latency_ms=[9 * ms for ms in step.latency_ms]) for step in sweep().steps])
    assert xy(offered.load(evidence(known_run(8.0, 2.0), slower)), "tuned p99 simulated") == line
    assert xy(offered.load(evidence(other, sweep())), "tuned p99 simulated")[1][-1] > line[1][-1]


@pytest.mark.parametrize("target", [50.0, 5000.0])
def test_the_lines_names_do_not_lie_on_each_other(target: float) -> None:
    axes = sketch(offered.load(evidence(known_run(8.0, 2.0), replace(sweep(), plan=replace(sweep().plan, target_p99_ms=target)))))
    axes.figure.draw_without_rendering()
    named = [
        Text.get_window_extent(text) for text in axes.texts if text.get_text() in ("p50", "p99") or text.get_text().startswith("alone")
    ]
    assert len(named) == 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(named, 2))


def test_without_a_measurement_the_points_stand_alone() -> None:
    found = offered.load(evidence(sweep()))
    assert len(xy(found, "tuned p99")[0]) == len(RATES) and "run.json" in figure(found).caption
    assert not sketch(found).findobj(lambda artist: "simulated" in str(artist.get_gid()))


def test_one_request_is_a_point_without_an_interval_and_many_are_drawn() -> None:
    for count in (1, 20_000):
        assert len(xy(offered.load(evidence(sweep("tuned", per_step=count))), "tuned p99")[0]) == len(RATES)


def test_a_late_generator_is_told() -> None:
    late = replace(sweep(), steps=[replace(step, invalid=["late"]) for step in sweep().steps])
    assert "INVALID: in 16 of 16 steps" in figure(offered.load(evidence(late))).caption


@pytest.mark.parametrize("rate", [20.0, 100.0, 250.0])
def test_a_curve_is_where_the_simulator_itself_is(rate: float) -> None:
    service, setting = Service.line(8.0, 2.0, 8, front_end_ms=3.0), Setting(8, 1, 1)
    (point,), whole = along(service, setting, [rate], arrivals=60_000), simulate(service, setting, rate, requests=100_000)
    assert point.p50_ms == pytest.approx(whole.latency_ms.p50, rel=0.03)
    assert point.p99_ms == pytest.approx(whole.latency_ms.p99, rel=0.06)
    assert point.wait_ms == pytest.approx(whole.queue_wait_ms.mean, rel=0.06) and point.refused_share == 0


def test_past_capacity_a_curve_refuses_what_it_cannot_do() -> None:
    (point,) = along(Service.line(8.0, 2.0, 1), Setting(1, 1, 1, queue_limit=20), [200.0], arrivals=20_000)
    assert point.refused_share == pytest.approx(0.5, abs=0.02)
    assert 20 * 10.0 < point.p99_ms < 24 * 10.0


# ---- 19: the map


def test_every_cell_is_what_the_simulator_says_and_the_choice_is_marked(known: Evidence) -> None:
    found = figures.settings_map(known)
    service = curves.service_of(known.measured)
    assert service
    for cell in over(service, 1, 100.0, [1, 8], [1, 50]):
        text = one(found, f"{cell.batch_size} {cell.max_batch_delay_ms}").get_text()
        assert text == ("-" if cell.p99_ms is None else f"{cell.p99_ms:.3g}")
    x, y = xy(found, "choice")
    assert (np.mean([min(x), max(x)]), np.mean([min(y), max(y)])) == pytest.approx((0.0, 3.0))  # delay 1, batch size 8
    assert one(found, "verified").get_text() == "● 41.5"


@pytest.mark.parametrize("other", [kept(rate=50.0), replace(kept(), settings=None), replace(kept(), settings={"batch_size": 8})])
def test_what_was_verified_elsewhere_is_not_on_the_map(other: Kept) -> None:
    found = figures.settings_map(evidence(known_run(8.0, 2.0), planned(), other))
    assert not sketch(found).findobj(lambda artist: artist.get_gid() == "verified") and "batchline verify" in figure(found).caption


def test_a_choice_that_is_no_power_of_two_and_an_odd_delay_have_their_place() -> None:
    found = figures.settings_map(evidence(known_run(8.0, 2.0), planned(6, 7)))
    assert one(found, "6 7").get_text() and "chosen" in words(found)


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_the_outline_closes(good: set[tuple[int, int]]) -> None:
    ends: dict[tuple[float, float], int] = {}
    for edge in figures._outline(good):
        for end in edge:
            ends[end] = ends.get(end, 0) + 1
    assert all(count % 2 == 0 for count in ends.values()) and bool(ends) == bool(good)


# ---- 20: the promise


def test_the_distribution_is_that_of_the_records_and_the_promise_beside_the_kept(known: Evidence) -> None:
    found = figures.promise(known)
    latencies, _ = xy(found, "measured")
    assert latencies == pytest.approx(sorted(record.latency_ms for record in loaded().records))
    heights = [float(-np.log10(1 - share)) for share in (0.5, 0.95, 0.99)]
    assert xy(found, "quantiles") == ([20.0, 33.0, 41.5], pytest.approx(heights))
    assert xy(found, "promised") == ([19.0, 32.0, 40.0], pytest.approx(heights))
    assert one(found, "target").get_xdata()[0] == 60.0
    assert "3 of 1000 requests over 60 ms" in figure(found).caption


def test_without_records_or_promise_the_quantiles_are_drawn() -> None:
    found = figures.promise(evidence(kept(), loaded(count=7)))  # another run's records are not this one's
    axes = sketch(found)
    assert xy(found, "quantiles")[0] == [20.0, 33.0, 41.5]
    assert not axes.findobj(lambda artist: artist.get_gid() in ("measured", "promised"))


def test_what_was_not_kept_says_why() -> None:
    found = figure(figures.promise(evidence(replace(kept(), outcome="undecided", kept=False, bounded="too few requests"))))
    assert found.title == "The promise is undecided" and "Too few requests." in found.caption


# ---- what lacks, what is the same


@pytest.mark.parametrize(
    ("draw", "verb"), list(zip(ALL, ("measure", "sweep", "plan", "verify"), strict=True)), ids=lambda each: getattr(each, "__name__", each)
)
def test_where_data_lack_it_is_said_which_command_supplies_them(draw: Callable[..., Any], verb: str) -> None:
    found = draw(evidence())
    assert isinstance(found, Missing) and found.command.startswith(f"batchline {verb} ") and found.command in found.sentence


def test_data_that_do_not_suffice_are_no_figure() -> None:
    empty, unmeasured = replace(sweep(), steps=[]), known_run(8.0, 2.0)
    unmeasured.settings = []
    unanswered = replace(kept(), seen=replace(kept().seen, latency_ms={}))
    for found in (
        offered.load(evidence(empty)),
        figures.workers(evidence(unmeasured)),
        figures.settings_map(evidence(planned())),
        figures.promise(evidence(unanswered)),
    ):
        assert isinstance(found, Missing), found


def test_files_become_the_hero(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.json", sweep())
    (found,) = gather([tmp_path / "sweep.json"])
    assert len(xy(offered.load(found), "tuned p99")[0]) == len(RATES)
    assert json.loads((tmp_path / "sweep.json").read_text())["format"] == "batchline-sweep/1"


def test_the_bytes_are_the_same_twice_and_points_lie_in_the_picture(known: Evidence, hero: Figure) -> None:
    first, second = hero, figure(offered.load(known))
    assert png(first, LIGHT, dpi=40) == png(second, LIGHT, dpi=40) != png(second, DARK, dpi=40)
    assert all(0 < spot.left < 1 and 0 < spot.top < 1 and spot.words for spot in spots(first))
    assert svg(figure(figures.promise(known))) == svg(figure(figures.promise(known)))


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__)
def test_it_looks_as_it_did(draw: Callable[..., Any], known: Evidence, hero: Figure) -> None:
    like_baseline(hero if draw is offered.load else figure(draw(known)))
