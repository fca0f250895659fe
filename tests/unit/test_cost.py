"""The line c + B·m: recovered from noise, refused where it is none, and never more than the data say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchline.cost import CostLine, fit_cost_line
from batchline.errors import MeasureError

SIZES = (1, 2, 4, 8, 16, 32)
MEDIAN = math.log(2)  # of an exponential with mean 1


def noisy(c: float, m: float, seed: int, rounds: int = 8, sizes: tuple[int, ...] = SIZES) -> dict[int, list[list[float]]]:
    """Times as a machine gives them: never early, later in proportion, slower for a whole round now and then, with lone hiccups."""
    chance = np.random.default_rng(seed)
    found: dict[int, list[list[float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        drift = 1 + 0.01 * chance.exponential()
        for size in sizes:
            hiccup = 1.3 if chance.random() < 0.03 else 1.0
            found[size].append(list((c + m * size) * drift * hiccup * (1 + 0.02 * chance.exponential(1, 6))))
    return found


def exact(c: float, m: float, sizes: tuple[int, ...] = SIZES, rounds: int = 4) -> dict[int, list[list[float]]]:
    return {size: [[c + m * size] * 3 for _ in range(rounds)] for size in sizes}


@pytest.mark.parametrize(("c", "m"), [(10, 1), (1.3, 12.6), (0.5, 0.05), (20, 5)])
def test_intervals_hold_the_truth_as_often_as_they_say(c: float, m: float) -> None:
    """The median of what noise adds counts as part of the truth: no batch is free of it."""
    seeds, late = 200, 1 + 0.03 * MEDIAN
    lines = [fit_cost_line(noisy(c, m, seed)) for seed in range(seeds)]
    held = [
        sum(line.c_ms_interval[0] <= c * late <= line.c_ms_interval[1] for line in lines),
        sum(line.m_ms_interval[0] <= m * late <= line.m_ms_interval[1] for line in lines),
        sum(line.ceiling_interval is not None and line.ceiling_interval[0] <= 1 + c / m <= line.ceiling_interval[1] for line in lines),
    ]
    assert min(held) >= 0.93 * seeds
    assert sum(line.linear for line in lines) >= 0.98 * seeds, "noise is no bend"
    assert np.mean([line.m_ms for line in lines]) == pytest.approx(m * late, rel=0.01)


@given(st.floats(0, 1e3), st.floats(1e-3, 1e3))
def test_a_clean_line_is_recovered(c: float, m: float) -> None:
    line = fit_cost_line(exact(c, m))
    assert line.linear and line.ceiling is not None
    assert line.c_ms == pytest.approx(c, rel=1e-6, abs=1e-6 * m) and line.m_ms == pytest.approx(m, rel=1e-6)
    assert line.ceiling == pytest.approx(1 + c / m, rel=1e-6)
    for row in line.table:
        assert row.speedup == pytest.approx(row.batch_size * (c + m) / (c + m * row.batch_size), rel=1e-6)
        assert row.speedup_predicted == pytest.approx(row.speedup, rel=1e-6)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 300), min_size=3, max_size=7, unique=True).flatmap(
        lambda sizes: st.fixed_dictionaries(
            {size: st.lists(st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=4), min_size=1, max_size=6) for size in sizes}
        )
    )
)
def test_whatever_the_times_nothing_impossible_is_said(times: dict[int, list[list[float]]]) -> None:
    try:
        line = fit_cost_line(times)
    except MeasureError as error:
        assert "measure again" in str(error)
        return
    assert line.c_ms >= 0 and line.m_ms > 0
    for low, high in (line.c_ms_interval, line.m_ms_interval):
        assert 0 <= low <= high and math.isfinite(high)
    assert (line.ceiling is None) == (not line.linear) == (line.ceiling_interval is None)
    assert line.ceiling is None or line.ceiling >= 1
    sizes = np.linspace(1, 400, 50)
    assert np.all(np.diff([line.batch_ms(size) for size in sizes]) >= -1e-9), "a larger batch is never quicker"


@given(st.floats(0.1, 10), st.integers(0, 50))
def test_units_are_only_units(factor: float, seed: int) -> None:
    times = noisy(3, 1, seed)
    one, other = fit_cost_line(times), fit_cost_line({s: [[factor * t for t in r] for r in rounds] for s, rounds in times.items()})
    assert other.c_ms == pytest.approx(factor * one.c_ms, rel=1e-6) and other.ceiling == pytest.approx(one.ceiling, rel=1e-6)


@pytest.mark.parametrize(
    "bent",
    [
        lambda size: 5 + size + 0.05 * size**2,  # a cache that overflows
        lambda size: 5 + 8 * math.ceil(size / 8),  # padding to eights
        lambda size: 5 + size + (30 if size > 8 else 0),  # another algorithm for large batches
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_what_bends_is_refused(bent: object, seed: int) -> None:
    chance = np.random.default_rng(seed)
    times = {s: [list(bent(s) * (1 + 0.01 * chance.exponential(1, 5))) for _ in range(6)] for s in SIZES}  # type: ignore[operator]
    line = fit_cost_line(times)
    assert not line.linear and line.ceiling is None and line.ceiling_interval is None and line.size_for(0.8) is None
    assert any("is no line" in warning for warning in line.warnings)
    for size in SIZES:
        assert line.batch_ms(size) == pytest.approx(np.median(times[size]), rel=0.02), "the measured table stands in"
    assert all(row.speedup_predicted is None for row in line.table)


def test_a_line_through_the_origin_has_no_overhead_and_no_negative_one() -> None:
    line = fit_cost_line({size: [[2.0 * size - 0.3]] * 5 for size in SIZES})
    assert line.c_ms == 0 and line.c_ms_interval[0] == 0
    assert any("cannot be told from 0" in warning for warning in line.warnings) or not line.linear


# Mean milliseconds a batch on a GPU, from TorchServe's published benchmark report (2022-03-22, four workers, 100 clients),
# and the throughput at batch sizes 1 and 8 in the same table.
PUBLISHED = {
    "vgg16 eager": ([13.61, 26.86, 51.69, 102.03], 1.31, 12.60, 1.10, 302.97 / 277.64),
    "vgg16 scripted": ([13.41, 26.53, 52.09, 102.69], 0.92, 12.74, 1.07, 301.07 / 282.06),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_torchserves_own_published_figures_obey_the_line(name: str) -> None:
    means, c, m, ceiling, gained = PUBLISHED[name]
    line = fit_cost_line({size: [[mean]] for size, mean in zip((1, 2, 4, 8), means, strict=True)})
    assert line.linear and line.ceiling is not None and line.ceiling_interval is not None
    assert (line.c_ms, line.m_ms, line.ceiling) == (
        pytest.approx(c, abs=0.01),
        pytest.approx(m, abs=0.01),
        pytest.approx(ceiling, abs=0.01),
    )
    assert line.regime == "compute-bound"
    assert line.ceiling_interval[0] <= gained <= line.ceiling_interval[1], "what batching won on their machine is what the line allows"


def test_one_round_has_no_noise_to_judge_by() -> None:
    line = fit_cost_line({size: [[mean]] for size, mean in zip((1, 2, 4, 8), PUBLISHED["vgg16 eager"][0], strict=True)})
    assert any("1 round measured" in warning for warning in line.warnings)
    assert line.c_ms_interval[1] - line.c_ms_interval[0] > 0.5


@pytest.mark.parametrize(("c", "m", "regime"), [(40, 1, "overhead-bound"), (1, 1, "balanced"), (1, 10, "compute-bound")])
def test_regimes(c: float, m: float, regime: str) -> None:
    assert fit_cost_line(exact(c, m)).regime == regime


def test_the_size_that_reaches_a_part_of_the_limit() -> None:
    line = fit_cost_line(exact(10, 1))
    assert (line.size_for(0.8), line.size_for(0.9)) == (40, 90)
    for fraction in (0.5, 0.8, 0.9):
        size = line.size_for(fraction)
        assert size and size / line.batch_ms(size) >= fraction / line.m_ms - 1e-9 > (size - 1) / line.batch_ms(size - 1)


def test_a_busy_machine_is_named() -> None:
    chance = np.random.default_rng(1)
    times = {size: [[(5 + size) * (1 + chance.exponential(0.5))] for _ in range(8)] for size in SIZES}
    assert any("the machine is too busy" in warning for warning in fit_cost_line(times).warnings)


@pytest.mark.parametrize(
    "times",
    [
        {},
        {1: [[1.0]], 2: [[2.0]]},
        {1: [[1.0]], 2: [[2.0]], 4: [[]]},
        {1: [[1.0]], 2: [[2.0]], 4: [[math.nan]]},
        {1: [[1.0]], 2: [[2.0]], 4: [[-1.0]]},
        {1: [[4.0]], 2: [[2.0]], 4: [[1.0]]},
    ],
)
def test_too_little_or_nonsense(times: dict[int, list[list[float]]]) -> None:
    with pytest.raises(MeasureError, match="measure"):
        fit_cost_line(times)


def test_beyond_the_table_a_request_costs_what_the_last_ones_did() -> None:
    line: CostLine = fit_cost_line({1: [[1.0]] * 4, 2: [[1.2]] * 4, 4: [[4.0]] * 4, 8: [[20.0]] * 4})
    assert not line.linear
    assert line.batch_ms(8) == 20 and line.batch_ms(9) == pytest.approx(24) and line.batch_ms(6) == pytest.approx(12)
