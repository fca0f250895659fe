"""Figures 10 to 15 and 18: the blocks are the measured stages, the lanes the measured batches; nothing is drawn that was not measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.journey import Settings
from batchline.load import RequestRecord
from batchline.report import requests as figures
from batchline.report.data import Evidence, Loaded, Source, gather
from batchline.report.lanes import batches, lanes, window
from batchline.report.style import DARK, LIGHT, Figure, Missing, png, rules, spots, svg
from batchline.runfile import Machine
from batchline.staged import Staged, staged_json
from batchline.stages import HANDLER_STAGES, SYMBOLS, Journey, Part
from tests.unit.baselines import like_baseline

MACHINE = Machine("a CPU", 2, "Linux", 0.1)
PARTS = {"network": 0.5, "wait": 5.0, "deserialize": 0.1, "preprocess": 4.0, "inference": 9.0, "serialize": 0.0, "front end": 1.4}
ONE = (figures.timeline, figures.named, figures.total)
ALL = (*ONE, figures.lanes, figures.summary)


def staged(parts: dict[str, float] | None = None, model: str = "known", note: str = "", unexplained: float = 0.2) -> Staged:
    given_ms = PARTS if parts is None else parts
    whole = sum(given_ms.values()) + unexplained
    made = tuple(Part(name, SYMBOLS.get(name, ""), ms, ms / whole) for name, ms in given_ms.items())
    most = max(made, key=lambda part: part.ms)
    covered = 1 - unexplained / whole
    found = Journey(
        model, 100, True, 1.0, whole, made, 0.1, 0.1, unexplained, covered, most.name, most.ms / 2, most.share / 2, "act", True, ()
    )
    return Staged(found, Settings(4, 5, 1), note, MACHINE, {"torch": "2"})


def record(
    sent_ms: float, queue_ms: float, stages: tuple[float, ...], back_ms: float = 0.5, size: int = 1, status: int = 200
) -> RequestRecord:
    told = {"queue": queue_ms, **dict(zip(HANDLER_STAGES, stages, strict=True))}
    done_ms = sent_ms + queue_ms + sum(stages) + back_ms
    times = (sent_ms / 1e3, sent_ms / 1e3, done_ms / 1e3, done_ms / 1e3)
    return RequestRecord(*times, status, batch_size=size, stages_ms=told)


def loaded(workers: int = 2, count: int = 20, model: str = "known", apart_ms: float = 1.0) -> Loaded:
    """Each worker has a batch of its own every 20 ms, 12 ms long; the second one starts 1 ms later."""
    turns = [(turn, worker) for turn in range(count) for worker in range(workers)]
    records = [record(20.0 * turn + apart_ms * worker, 2.0, (0.1, 3.0, 8.0 + 0.01 * turn + 0.001 * worker, 0.9)) for turn, worker in turns]
    return Loaded(model, MACHINE, {}, 1.0, 20e-3 * count, None, workers, 0.1, records)


def evidence(*contents: Any, model: str = "known") -> Evidence:
    return Evidence(model, tuple(Source("", content, 1796217470.0) for content in contents))


@pytest.fixture(scope="module")
def known() -> Evidence:
    return evidence(staged(), loaded())


def figure(found: Figure | Missing) -> Figure:
    assert isinstance(found, Figure), found
    return found


def sketch(found: Figure | Missing) -> Any:
    """The artists, not laid out: that takes longest."""
    with rules(figure(found), LIGHT):
        return figure(found).draw(LIGHT)


def blocks(found: Figure | Missing, name: str, panel: int = 0) -> list[Any]:
    axes = sketch(found).axes[panel]
    return axes.findobj(lambda artist: artist.get_gid() == name)


def words(found: Figure | Missing) -> str:
    return "\n".join(text.get_text() for axes in sketch(found).axes for text in (*axes.texts, axes.xaxis.label))


# ---- one request


@pytest.mark.parametrize("draw", ONE, ids=lambda draw: draw.__name__)
def test_every_stage_is_as_wide_as_it_was_measured_and_begins_where_the_last_ended(draw: Callable[..., Any], known: Evidence) -> None:
    at = 0.0
    for name, ms in PARTS.items():
        (bar,) = blocks(draw(known), name)
        assert (bar.get_x(), bar.get_width()) == pytest.approx((at, ms))
        at += ms


def test_the_bracket_spans_the_measured_total_and_what_is_missing_is_hatched(known: Evidence) -> None:
    found = figures.total(known)
    (rest,) = blocks(found, "unexplained")
    assert (rest.get_x(), rest.get_width()) == pytest.approx((20.0, 0.2)) and rest.get_hatch()
    assert "= 20.00 ms;  measured: 20.20 ms" in words(found)
    assert "99.0%" in figure(found).caption
    assert not blocks(figures.total(evidence(staged(unexplained=-0.3))), "unexplained")


def test_each_stage_is_named_with_its_time(known: Evidence) -> None:
    said = words(figures.named(known))
    assert all(f"{ms:.2f} ms" in said for ms in PARTS.values())
    assert figures.named(known).caption.count("4, maxBatchDelay 5 ms, 1 worker") == 1


def test_a_stage_of_less_than_nothing_has_no_width() -> None:
    found = figures.named(evidence(staged(PARTS | {"front end": -0.4})))
    assert blocks(found, "front end")[0].get_width() == 0 and "-0.40 ms" in words(found)


def test_a_handler_that_tells_no_stages_is_drawn_as_one_worker() -> None:
    found = evidence(staged({"network": 1.0, "wait": 2.0, "worker": 7.0, "front end": 1.0}))
    for draw in ONE:
        assert blocks(draw(found), "worker")[0].get_width() == pytest.approx(7.0)
    assert isinstance(figures.dominant([found]), Figure) and isinstance(figures.at_zero([found]), Figure)


def test_the_journey_without_a_slow_link_is_the_models_own() -> None:
    slow, own = staged(PARTS | {"network": 200.0}, note="behind a slow link"), staged()
    for order in ((slow, own), (own, slow)):
        assert blocks(figures.named(evidence(*order)), "network")[0].get_width() == pytest.approx(0.5)


# ---- the largest and the smallest


def test_the_extremes_are_set_side_by_side_and_the_largest_is_marked() -> None:
    near, far = staged(), staged(PARTS | {"network": 200.0}, note="behind a link of 10 Mbit/s, made with a relay")
    other = staged({"network": 1.0, "inference": 2.0, "front end": 7.0}, model="other")
    found = figures.dominant([evidence(near, far), evidence(other, model="other")])
    bars = blocks(found, "network")
    assert sorted(bar.get_width() for bar in bars) == pytest.approx([100 * part / whole for part, whole in ((0.5, 20.2), (200.0, 219.7))])
    strong = [bar for bar in (*bars, *blocks(found, "inference")) if bar.get_alpha() == 1.0]
    assert sorted(bar.get_width() for bar in strong) == pytest.approx([100 * 9.0 / 20.2, 100 * 200.0 / 219.7])
    assert words(found).count("fix this one") == 2 and "half of it saves 100.0 ms" in words(found)
    assert "relay" in figure(found).caption and "other" not in figure(found).alt


def test_one_journey_is_drawn_once() -> None:
    assert words(figures.dominant([evidence(staged())])).count("fix this one") == 1


def test_the_smallest_stage_is_pointed_at_and_the_network_where_it_came_near() -> None:
    far = staged(PARTS | {"network": 200.0}, note="far away")
    found = words(figures.at_zero([evidence(staged(), far)]))
    assert r"network" in found and "0.50 ms: 2.5%" in found  # near, beside the same model far away
    assert r"serialize" in found and "0.00 ms: 0.0%" in found
    assert "0.00 ms" in words(figures.at_zero([evidence(staged())]))


# ---- many requests


def test_a_batch_is_those_that_tell_the_same_stages_at_the_same_moment() -> None:
    shared = [record(sent, 10.0 - sent, (0.1, 1.0, 5.0, 0.1), size=3) for sent in (0.0, 4.0, 9.0)]
    apart = [record(30.0, 1.0, (0.1, 1.0, 5.0, 0.1), size=1), record(31.0, 5.0, (0.1, 1.0, 6.0, 0.1), size=1)]
    refused = record(0.0, 1.0, (0.1, 1.0, 5.0, 0.1), status=503)
    silent = RequestRecord(0.0, 0.0, 0.1, 0.1, 200)
    found = batches([*apart, *reversed(shared), refused, silent])
    assert [batch.size for batch in found] == [3, 1, 1]
    assert (found[0].sent_s, found[0].begin_s, found[0].end_s) == pytest.approx((0.0, 0.010, 0.0162))


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0.5, 50)), min_size=1, max_size=60))
def test_batches_in_a_lane_never_overlap_and_there_are_no_more_lanes_than_were_busy_at_once(spans: list[tuple[float, float]]) -> None:
    found = batches([record(sent, 1.0, (0.0, 0.0, ms, 0.0)) for sent, ms in spans])
    chosen = lanes(found)
    for lane in set(chosen):
        own = [batch for batch, number in zip(found, chosen, strict=True) if number == lane]
        assert all(after.begin_s >= before.end_s - 0.00021 for before, after in itertools.pairwise(own))
    busy = max(sum(other.begin_s <= batch.begin_s < other.end_s for other in found) for batch in found)
    assert max(chosen) + 1 <= busy


def test_the_lanes_hold_the_batches_where_and_as_long_as_they_were(known: Evidence) -> None:
    found, shown = figures.lanes(known), window(batches(loaded().records))
    assert shown.count == 2 and shown.total_ms == pytest.approx(1.0 + 2.0 + 12.0 + 0.5, abs=0.3)
    bars = blocks(found, "inference")
    assert len(bars) == len(shown.rows)
    expected = sorted(shown.at_ms(batch.begin_s) + 3.1 for batch, _ in shown.rows)
    assert sorted(bar.get_x() for bar in bars) == pytest.approx(expected)
    assert sorted(bar.get_width() for bar in bars) == pytest.approx(sorted(batch.stages_ms["inference"] for batch, _ in shown.rows))
    (line,) = blocks(found, "total")
    assert line.get_xdata()[0] == pytest.approx(shown.total_ms) and "2 answered" in words(found)


def test_the_summary_has_the_sum_and_the_rate(known: Evidence) -> None:
    found = figures.summary(known)
    assert blocks(found, "inference", panel=0)[0].get_width() == pytest.approx(9.0)
    mean_ms = window(batches(loaded().records)).mean_ms
    assert f"2 / {mean_ms:.1f} ms = {2e3 / mean_ms:.4g} a second; measured 100" in words(found)


def test_of_several_runs_the_one_with_most_lanes_is_drawn() -> None:
    found = figures.lanes(evidence(loaded(3), loaded(1), loaded(2)))
    assert [label.get_text() for label in sketch(found).axes[0].get_yticklabels()] == ["lane 3", "lane 2", "lane 1"]


def test_a_huge_run_is_drawn_in_part_and_says_so() -> None:
    found = figures.lanes(evidence(loaded(workers=19, count=300, apart_ms=0.1)))
    assert len(sketch(found).axes[0].get_yticklabels()) == 12
    assert "7 more lanes are not drawn" in figure(found).caption


# ---- what lacks, what is the same


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__)
def test_where_data_lack_it_is_said_which_command_supplies_them(draw: Callable[..., Any]) -> None:
    found = draw(evidence())
    assert isinstance(found, Missing) and found.command.startswith(("batchline stages known", "batchline load known"))
    assert found.command in found.sentence


def test_no_journey_and_no_lanes_at_all() -> None:
    silent = Loaded("known", MACHINE, {}, 1.0, 1.0, 9.0, 1, 0.1, [RequestRecord(0.0, 0.0, 0.1, 0.1, 200)])
    assert isinstance(figures.dominant([]), Missing) and isinstance(figures.at_zero([evidence()]), Missing)
    for found in (figures.lanes(evidence(silent)), figures.summary(evidence(staged(), silent))):
        assert isinstance(found, Missing) and "stages" in found.sentence
    assert isinstance(figures.lanes(evidence(Loaded("known", MACHINE, {}, 1.0, 1.0, 9.0, 1, 0.1, []))), Missing)


def test_one_request_is_a_lane() -> None:
    one = Loaded("known", MACHINE, {}, 1.0, 1.0, None, 1, 0.1, [record(0.0, 1.0, (0.1, 1.0, 5.0, 0.1))])
    assert len(blocks(figures.lanes(evidence(one)), "inference")) == 1
    assert isinstance(figures.summary(evidence(staged(), one)), Figure)


def test_the_bytes_are_the_same_twice_and_light_is_not_dark(known: Evidence) -> None:
    once, twice = figure(figures.lanes(known)), figure(figures.lanes(known))
    assert png(once, LIGHT, dpi=40) == png(twice, LIGHT, dpi=40) != png(twice, DARK, dpi=40)
    assert svg(figure(figures.total(known))) == svg(figure(figures.total(known)))


def test_points_lie_within_the_picture(known: Evidence) -> None:
    for found in (figures.timeline(known), figures.lanes(known), figures.dominant([known])):
        assert figure(found).points
        assert all(0 < spot.left < 1 and 0 < spot.top < 1 and spot.words for spot in spots(figure(found)))
    assert all(figure(draw(known)).points for draw in ALL)


def test_files_become_figures(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    path.write_text(json.dumps(staged_json(staged())))
    (found,) = gather([path])
    assert blocks(figures.total(found), "inference")[0].get_width() == pytest.approx(9.0)


@pytest.mark.parametrize("draw", [figures.total, figures.lanes, figures.summary], ids=lambda draw: draw.__name__)
def test_it_looks_as_it_did(draw: Callable[..., Any], known: Evidence) -> None:
    like_baseline(figure(draw(known)))


def test_the_extremes_look_as_they_did() -> None:
    pair = [evidence(staged(), staged(PARTS | {"network": 200.0}, note="behind a slow link"))]
    like_baseline(figure(figures.dominant(pair)))
