"""Figures 1 to 9: what is drawn is what was measured; nothing is drawn that was not; the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from batchline.load import RequestRecord
from batchline.measured import BatchTime, Measured
from batchline.report import batching, dials, speedups
from batchline.report.captions import short
from batchline.report.data import Evidence, Loaded, Served, Source
from batchline.report.queueing import queue
from batchline.report.style import DARK, LIGHT, Figure, Look, Missing, Point, drawn, png, spots, svg
from batchline.runfile import Machine
from batchline.staged import Staged
from batchline.stages import Journey, Part
from tests.known_run import known_run
from tests.unit.baselines import like_baseline

C_MS, M_MS = 8.0, 2.0
ONE = (batching.prediction, batching.serial, batching.batch, batching.both, speedups.speedup, dials.dials, dials.summary, queue)
DAY_S = 1796217470.0


def evidence(*contents: Any, model: str = "known") -> Evidence:
    return Evidence(model, tuple(Source("", content, DAY_S) for content in contents))


def bent_run(name: str = "bent") -> Measured:
    """T(B) jumps threefold at 32: no line goes through that."""
    made = known_run(C_MS, M_MS, name)
    made.batches = [
        BatchTime(b.place, b.batch_size, b.round, b.batch_ms * (3 if b.batch_size == 32 else 1), b.warm_up) for b in made.batches
    ]
    return made


def run_of_load() -> Loaded:
    """Batches of 3, one every 20 ms, 5 ms in the worker; requests 2 ms apart, the last one 1 ms before the batch begins."""
    records = []
    for number in range(8):
        begin_s = 0.02 * number + 0.01
        stages = {"preprocess": 1.0, "inference": 4.0}
        for before_s in (0.005, 0.003, 0.001):
            sent_s = begin_s - before_s
            told = {"queue": before_s * 1e3, **stages}
            records.append(RequestRecord(sent_s, sent_s, begin_s + 0.006, begin_s + 0.0065, 200, batch_size=3, stages_ms=told))
    return Loaded("known", Machine("a CPU", 2, "Linux", 0.1), {}, 0.16, 0.2, 150.0, 6, 0.1, records, Served(3, 20, 1), 1)


def journey(wait_ms: float) -> Staged:
    parts = (Part("wait", "w", wait_ms, 0.3), Part("inference", "T_inference", 10.0, 0.7))
    made = Journey("known", 9, False, 3.0, wait_ms + 10, parts, 0.0, 0.0, 0.0, 1.0, "inference", 5.0, 0.35, "advice", True, ())
    return Staged(made, machine=Machine("a CPU", 2, "Linux", 0.1), versions={})


@pytest.fixture(scope="module")
def known() -> Evidence:
    return evidence(known_run(C_MS, M_MS), run_of_load(), journey(3.0))


@pytest.fixture(scope="module")
def bent() -> Evidence:
    return evidence(bent_run(), model="bent")


def figure(found: Figure | Missing) -> Figure:
    assert isinstance(found, Figure), found
    return found


seen = lru_cache(maxsize=64)(drawn)  # laid out once, however often a test looks


def artists(found: Figure | Missing, gid: str, look: Look = LIGHT) -> list[Any]:
    return seen(figure(found), look).findobj(lambda artist: artist.get_gid() == gid)


def widths(found: Iterable[Any]) -> list[float]:
    return [bar.get_width() for bar in found]


def words(found: Figure | Missing) -> str:
    return "\n".join(text.get_text() for axes in seen(figure(found)).axes for text in axes.texts)


# ---- 1 to 4: bars


def test_one_prediction_is_c_and_m_end_to_end(known: Evidence) -> None:
    found = batching.prediction(known)
    (c,), (m,), (mark,) = (artists(found, gid) for gid in ("c", "m", "measured"))
    assert c.get_x() == 0 and c.get_width() == pytest.approx(C_MS, rel=1e-3)
    assert m.get_x() == pytest.approx(c.get_width()) and m.get_width() == pytest.approx(M_MS, rel=1e-3)
    assert mark.get_xdata()[0] == pytest.approx(C_MS + M_MS, rel=1e-3)


def test_one_by_one_everybody_pays_c(known: Evidence) -> None:
    found = batching.serial(known)
    assert widths(artists(found, "c")) == pytest.approx([C_MS] * 8, rel=1e-3)
    assert widths(artists(found, "m")) == pytest.approx([M_MS] * 8, rel=1e-3)
    last = max(artists(found, "m"), key=lambda bar: bar.get_x())
    assert last.get_x() + last.get_width() == pytest.approx(8 * (C_MS + M_MS), rel=1e-3)
    assert artists(found, "measured")[0].get_xdata()[0] == pytest.approx(8 * (C_MS + M_MS), rel=1e-3)


def test_a_batch_pays_c_once(known: Evidence) -> None:
    found = batching.batch(known)
    assert widths(artists(found, "c")) == pytest.approx([C_MS], rel=1e-3)
    assert widths(artists(found, "m")) == pytest.approx([M_MS] * 8, rel=1e-3)
    assert artists(found, "measured")[0].get_xdata()[0] == pytest.approx(C_MS + 8 * M_MS, rel=1e-3)


def test_one_by_one_and_the_batch_have_the_same_axis(known: Evidence) -> None:
    assert drawn(figure(batching.serial(known))).axes[0].get_xlim() == drawn(figure(batching.batch(known))).axes[0].get_xlim()


def test_the_ratio_of_the_bars_is_read_off(known: Evidence) -> None:
    found = batching.both(known)
    one, many = sorted(mark.get_xdata()[0] for mark in artists(found, "measured"))
    (said,) = artists(found, "speedup")
    assert said.get_text().endswith(f"= {many / one:.2f}")
    assert min(bar.get_x() for bar in artists(found, "c")) == 0


def test_without_a_line_a_bar_is_not_split(bent: Evidence) -> None:
    for make in (batching.prediction, batching.serial, batching.batch, batching.both, dials.summary):
        assert not artists(make(bent), "c") and not artists(make(bent), "m"), make
        assert "the line does not fit" in figure(make(bent)).caption
    (bar,) = artists(batching.prediction(bent), "T(1)")
    assert bar.get_width() == pytest.approx(C_MS + M_MS)


# ---- 5, 6: speedup


def test_the_speedup_is_what_was_measured_under_the_line(known: Evidence) -> None:
    found = speedups.speedup(known)
    assert known.fit
    table = known.fit.server.table
    (points,) = artists(found, "measured")
    assert list(points.get_xdata()) == [row.batch_size for row in table]
    assert list(points.get_ydata()) == [row.speedup for row in table]
    (curve,) = artists(found, "S(B)")
    assert list(curve.get_ydata()) == pytest.approx([b * (C_MS + M_MS) / (C_MS + b * M_MS) for b in curve.get_xdata()], rel=1e-3)
    assert artists(found, "ceiling")[0].get_ydata()[0] == pytest.approx(1 + C_MS / M_MS, rel=1e-3)


def test_the_intervals_are_of_the_rounds() -> None:
    made = known_run(C_MS, M_MS)
    slower = [
        BatchTime(b.place, b.batch_size, b.round, b.batch_ms * (1 + 0.1 * b.round * (b.batch_size == 8)), False) for b in made.batches
    ]
    made.batches = slower
    by_size = {each.batch_size: each for each in speedups.speedups(evidence(made))}
    assert by_size[1].low == by_size[1].high == 1
    assert by_size[32].high - by_size[32].low < 1e-9 < by_size[8].high - by_size[8].low
    rounds = [8 * (C_MS + M_MS) / ((C_MS + 8 * M_MS) * (1 + 0.1 * number)) for number in range(4)]
    reach = 3.182446305 * np.std(rounds, ddof=1) / 2  # Student's t, 97.5%, 3 degrees of freedom
    assert by_size[8].high - by_size[8].speedup == pytest.approx(reach, rel=1e-3)


def test_no_ceiling_where_the_line_does_not_fit(bent: Evidence) -> None:
    found = speedups.speedup(bent)
    assert "no ceiling: the line does not fit" in words(found)
    assert not artists(found, "ceiling") and not artists(found, "S(B)")
    assert len(artists(found, "measured")[0].get_xdata()) == 3


def test_all_models_on_one_axis(known: Evidence, bent: Evidence) -> None:
    found = speedups.regimes([known, bent])
    for each in (known, bent):
        assert each.fit
        (points,) = artists(found, each.model)
        assert list(points.get_ydata()) == [row.speedup for row in each.fit.server.table]
    assert "balanced" in words(found) and "no ceiling" in words(found)


# ---- 7, 8, 9


def test_dots_are_the_arrivals_and_bars_are_their_batches(known: Evidence) -> None:
    found = queue(known)
    dots = [list(line.get_xdata()) for line in artists(found, "arrivals")]
    assert len(dots) == 5
    for row in dots:
        assert np.diff(row) == pytest.approx([2.0, 2.0])
    assert widths(artists(found, "w")) == pytest.approx([5.0] * 5)
    assert widths(artists(found, "batch")) == pytest.approx([5.0] * 5)
    assert widths(artists(found, "back")) == pytest.approx([1.5] * 5)


def test_the_timer_begins_with_the_first_request_and_ends_with_a_full_batch(known: Evidence) -> None:
    found = queue(known)
    assert widths(artists(found, "timer")) == pytest.approx([20.0] * 5)
    assert widths(artists(found, "timer ran")) == pytest.approx([5.0] * 5)
    starts = [bar.get_x() for bar in artists(found, "w")]
    assert [bar.get_x() for bar in artists(found, "timer")] == pytest.approx(starts)
    assert words(found).count("full") == 5 + 1  # and where the timer is explained


def test_a_batch_that_did_not_fill_left_when_the_delay_was_over() -> None:
    found = queue(evidence(replace(run_of_load(), settings=Served(4, 4, 1))))
    assert widths(artists(found, "timer")) == pytest.approx([4.0] * 5)
    assert words(found).count("delay over") == 5


def test_both_ends_of_a_wait_are_shown_where_the_run_has_both() -> None:
    loaded = run_of_load()
    del loaded.records[-1]
    loaded.records[-2:] = [replace(record, batch_size=2) for record in loaded.records[-2:]]
    said = words(queue(evidence(loaded)))
    assert said.count("delay over") == 1 and said.count("full") == 4 + 1


def test_no_timer_is_drawn_that_the_file_does_not_tell() -> None:
    for settings in (None, Served(3, 20, 2), Served(3, None, 1)):
        found = queue(evidence(replace(run_of_load(), settings=settings)))
        assert not artists(found, "timer") and "timer" not in figure(found).caption


def test_a_request_is_the_sum_of_wait_batch_and_way_back(known: Evidence) -> None:
    found = queue(known)
    pieces = [artists(found, gid)[0] for gid in ("sum w", "sum batch", "sum back")]
    assert widths(pieces) == pytest.approx([3.0, 5.0, 1.5])  # 5, 3 and 1 ms waited
    ends = [bar.get_x() + bar.get_width() for bar in pieces]
    assert [bar.get_x() for bar in pieces] == pytest.approx([0.0, *ends[:-1]])
    assert "9.5 ms" in drawn(figure(found)).axes[1].get_title(loc="left")


def test_throughput_by_batch_size_and_workers(known: Evidence) -> None:
    found = dials.dials(known)
    (by_size,), (theory,) = artists(found, "by batch size"), artists(found, "B / T(B)")
    for line in (by_size, theory):
        assert list(line.get_ydata()) == pytest.approx([b * 1e3 / (C_MS + b * M_MS) for b in line.get_xdata()], rel=1e-3)
    assert list(by_size.get_xdata()) == [1, 8, 32]
    (by_workers,), (ideal,) = artists(found, "by workers"), artists(found, "N B / T(B)")
    assert list(by_workers.get_xdata()) == [1, 2, 3] and list(ideal.get_xdata()) == [0, 1, 2, 3]
    for line in (by_workers, ideal):
        assert list(line.get_ydata()) == pytest.approx([n * 8e3 / (C_MS + 8 * M_MS) for n in line.get_xdata()], rel=1e-3)


def test_the_summary_has_the_wait_in_front_where_it_is_known(known: Evidence) -> None:
    found = dials.summary(known)
    (wait,) = artists(found, "w")
    assert (wait.get_x(), wait.get_width()) == (0, 3.0)
    assert min(bar.get_x() for bar in artists(found, "c") if bar.get_y() == wait.get_y()) == 3.0
    alone = dials.summary(evidence(known_run(C_MS, M_MS)))
    assert not artists(alone, "w") and "batchline stages" in figure(alone).caption


# ---- what all of them keep


@pytest.mark.parametrize("make", ONE)
def test_every_axis_begins_at_zero_or_says_that_it_is_logarithmic(make: Callable[[Evidence], Figure | Missing], known: Evidence) -> None:
    for axes in drawn(figure(make(known))).axes:
        assert axes.get_xlim()[0] == 0 or (axes.get_xscale() == "log" and "logarithmic" in axes.get_xlabel())
        assert not axes.get_ylabel() or axes.get_ylim()[0] == 0


@pytest.mark.parametrize("make", ONE)
def test_captions_say_where_it_comes_from(make: Callable[[Evidence], Figure | Missing], known: Evidence) -> None:
    found = figure(make(known))
    for said in ("known", "a CPU, 2 cores", "2026-12-02"):
        assert said in found.caption
    assert found.alt and found.title and not found.title.endswith(".")


@pytest.mark.parametrize("value, said", [(0.0579, "0.0579"), (12.08, "12.1"), (1463.2, "1463"), (99999.5, "100000"), (0.0, "0")])
def test_no_exponents(value: float, said: str) -> None:
    assert short(value) == said


@pytest.mark.parametrize("make", ONE)
def test_the_same_bytes_twice_whatever_the_user_set(make: Callable[[Evidence], Figure | Missing], known: Evidence) -> None:
    found = figure(make(known))
    first, written = png(found, LIGHT, 50) if make is batching.both else b"", svg(found, DARK)
    with mpl.rc_context({"lines.linewidth": 20, "font.size": 30, "axes.grid": True}):
        assert svg(figure(make(known)), DARK) == written
        assert make is not batching.both or png(found, LIGHT, 50) == first
    assert b"<dc:date>" not in written and b"<dc:creator>" not in written


@pytest.mark.parametrize("make", ONE)
def test_a_pointer_finds_every_point_inside_the_picture(make: Callable[[Evidence], Figure | Missing], known: Evidence) -> None:
    found = figure(make(known))
    places = spots(found)
    assert len(places) == len(found.points) > 0
    assert all(0 <= spot.left <= 1 and 0 <= spot.top <= 1 and spot.words for spot in places)


@pytest.mark.parametrize("make", ONE)
def test_words_do_not_leave_the_picture(make: Callable[[Evidence], Figure | Missing], known: Evidence, bent: Evidence) -> None:
    for each in (known, bent):
        found = make(each)
        if isinstance(found, Missing):
            continue
        shown = seen(found)
        for axes in shown.axes:
            for text in axes.texts:
                box = text.get_window_extent()
                assert box.x0 >= -1 and box.x1 <= shown.bbox.width + 1, text.get_text()
                assert box.y0 >= -1 and box.y1 <= shown.bbox.height + 1, text.get_text()


@pytest.mark.parametrize("make", ONE)
def test_without_data_the_command_that_supplies_it(make: Callable[[Evidence], Figure | Missing]) -> None:
    found = make(Evidence("known"))
    assert isinstance(found, Missing)
    assert found.command.startswith("batchline ") and "known" in found.command and found.command in found.sentence


def test_no_model_at_all_is_missing() -> None:
    assert isinstance(speedups.regimes([]), Missing)
    assert isinstance(speedups.regimes([Evidence("known")]), Missing)


@pytest.mark.parametrize("make", ONE[:-1])
def test_one_batch_size_is_too_little_and_it_says_why(make: Callable[[Evidence], Figure | Missing]) -> None:
    made = known_run(C_MS, M_MS)
    made.batches = [each for each in made.batches if each.batch_size == 1]
    found = make(evidence(made))
    assert isinstance(found, Missing) and "three batch sizes" in found.sentence


def test_a_measurement_without_batches_of_one() -> None:
    made = known_run(C_MS, M_MS)
    shifted = {1: 2, 8: 8, 32: 32}
    made.batches = [
        BatchTime(b.place, shifted[b.batch_size], b.round, C_MS + M_MS * shifted[b.batch_size], b.warm_up) for b in made.batches
    ]
    for make in ONE[:-1]:
        assert png(figure(make(evidence(made))), LIGHT, 40)


def test_a_run_without_workers_settings_draws_the_line_alone() -> None:
    made = known_run(C_MS, M_MS)
    made.settings = []
    found = dials.dials(evidence(made))
    assert len(artists(found, "by batch size")) == 1 and not artists(found, "by workers")
    assert "not measured" in words(found)


def test_a_load_without_batches_is_missing() -> None:
    loaded = run_of_load()
    loaded.records.clear()
    assert isinstance(queue(evidence(loaded)), Missing)


def test_many_models_sizes_and_workers_are_drawn() -> None:
    many = [evidence(known_run(C_MS, M_MS * (n + 1), f"m{n}", workers=9), model=f"m{n}") for n in range(9)]
    assert png(figure(speedups.regimes(many)), LIGHT, 40)
    made = known_run(C_MS, M_MS, workers=12)
    made.batches += [
        BatchTime("server", size, number, C_MS + M_MS * size, False) for size in (512, 4096) for number in range(4) for _ in range(500)
    ]
    for make in ONE[:-1]:
        found = figure(make(evidence(made)))
        assert png(found, LIGHT, 40)
        assert len(drawn(found).findobj(lambda artist: artist.get_gid() == "m")) <= 40


def test_points_of_a_pointer_are_in_the_panel_they_name(known: Evidence) -> None:
    found = figure(dials.summary(known))
    panels = {Point(*point).panel for point in found.points}
    assert panels == {0, 1} and len(drawn(found).axes) == 2


# ---- as it looked when somebody last looked


def regimes(known: Evidence) -> Figure | Missing:
    return speedups.regimes([known, evidence(known_run(1.0, 4.0, "heavy"), model="heavy")])


@pytest.mark.parametrize("make", (*ONE, regimes), ids=lambda make: make.__name__)
def test_it_looks_as_it_did(make: Callable[[Evidence], Figure | Missing], known: Evidence) -> None:
    like_baseline(figure(make(known)))
