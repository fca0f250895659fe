"""Throughput against workers: known curves are found again, the right one of two wins, and few counts claim little."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchline.errors import MeasureError
from batchline.scaling import Curve, Scaling, Throughput, fit_kinked, fit_scaling, fit_usl

Law = Callable[[int], float]
TWELVE = range(1, 13)
rates_per_s = st.floats(1e-2, 1e5)
sigmas = st.just(0.0) | st.floats(1e-6, 0.9)
kappas = st.just(0.0) | st.floats(1e-6, 0.3) | st.floats(0.3, 3)
noises = st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=12)


def usl(gamma: float, sigma: float, kappa: float) -> Law:
    return lambda n: gamma * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def kinked(x1: float, kink: float) -> Law:
    return lambda n: x1 * min(n, kink)


def points(law: Law, counts: Sequence[int], noise: Sequence[float] | None = None) -> list[tuple[int, float]]:
    return [(n, law(n) * (1 + off)) for n, off in zip(counts, noise or [0.0] * len(counts), strict=True)]


def runs(law: Law, counts: Sequence[int], threads: int = 1, batch_size: int = 8) -> list[Throughput]:
    return [Throughput(n, threads, batch_size, law(n)) for n in counts]


def measured(table: dict[int, list[float]], threads: int = 1, batch_size: int = 8) -> list[Throughput]:
    return [Throughput(n, threads, batch_size, per_s) for n, visits in table.items() for per_s in visits]


def only(scaling: Scaling) -> Curve:
    (curve,) = scaling.curves
    return curve


# ---- known curves


@given(rates_per_s, sigmas, kappas, st.integers(5, 40))
def test_usl_is_found_exactly(gamma: float, sigma: float, kappa: float, most: int) -> None:
    found = fit_usl(points(usl(gamma, sigma, kappa), range(1, most + 1)))
    assert found.gamma_per_s == pytest.approx(gamma, rel=1e-9)
    assert found.sigma == pytest.approx(sigma, rel=1e-6, abs=1e-12)
    assert found.kappa == pytest.approx(kappa, rel=1e-6, abs=1e-12)
    if kappa:
        assert found.peak_workers == pytest.approx(max(1.0, math.sqrt((1 - sigma) / kappa)), rel=1e-6)
        assert found.asymptote_per_s is None
    else:
        assert found.peak_workers is None
        assert found.asymptote_per_s == (pytest.approx(gamma / sigma, rel=1e-6) if sigma else None)


@given(rates_per_s, st.integers(4, 40), st.data())
def test_kinked_line_is_found_exactly(x1: float, most: int, data: st.DataObject) -> None:
    """At the cores wherever they are; before them where at least two counts lie on the flat part."""
    at_cores = data.draw(st.booleans())
    cores = data.draw(st.integers(1 if at_cores else 3, most + 3))
    kink = float(cores) if at_cores else data.draw(st.floats(1, min(most - 1.0, 0.999 * cores)))
    found = fit_kinked(points(kinked(x1, kink), range(1, most + 1)), float(cores))
    assert found.x1_per_s == pytest.approx(x1, rel=1e-9)
    assert found.kink_workers == pytest.approx(kink, rel=1e-9)
    assert found.at_cores == at_cores


@given(rates_per_s, st.floats(0, 0.3), st.just(0.0) | st.floats(1e-4, 0.05), noises)
def test_usl_under_noise(gamma: float, sigma: float, kappa: float, noise: list[float]) -> None:
    """Twelve counts, each up to 2% off in the worst way: γ within 5%, σ within 0.08, κ within 0.01, and every count within 5%."""
    law = usl(gamma, sigma, kappa)
    found = fit_usl(points(law, TWELVE, noise))
    assert found.gamma_per_s == pytest.approx(gamma, rel=0.05)
    assert found.sigma == pytest.approx(sigma, abs=0.08)
    assert found.kappa == pytest.approx(kappa, abs=0.01)
    assert all(found.per_s(n) == pytest.approx(law(n), rel=0.05) for n in TWELVE)


@given(rates_per_s, st.integers(1, 11), st.floats(0, 1), noises)
def test_kinked_line_under_noise(x1: float, cores: int, part: float, noise: list[float]) -> None:
    """Twelve counts, each up to 2% off in the worst way: x1 within 5%, the kink within 8%."""
    kink = 1 + part * (cores - 1)
    found = fit_kinked(points(kinked(x1, kink), TWELVE, noise), float(cores))
    assert found.x1_per_s == pytest.approx(x1, rel=0.05)
    assert found.kink_workers == pytest.approx(kink, rel=0.08)


def squares(found: Sequence[tuple[int, float]], law: Callable[[int], float]) -> float:
    return sum((per_s / law(n) - 1) ** 2 for n, per_s in found)


def best_x1(found: Sequence[tuple[int, float]], kink: float) -> float:
    each = np.array([per_s / min(n, kink) for n, per_s in found])
    return float(1 / np.linalg.lstsq(each[:, None], np.ones(len(found)), rcond=None)[0][0])


@given(noises, sigmas, kappas, st.integers(3, 12))
def test_no_allowed_curve_is_nearer(noise: list[float], sigma: float, kappa: float, most: int) -> None:
    """Throughput up to 20% off either way, above the ideal too, where σ or κ would be negative were they free."""
    scattered = points(kinked(1, 6), TWELVE, [10 * off for off in noise])[:most]
    found = fit_usl(scattered)
    least = squares(scattered, found.per_s) - 1e-9
    assert least <= squares(scattered, usl(scattered[0][1], sigma, kappa))
    for factor in (0.999, 1.001):
        assert least <= squares(scattered, usl(found.gamma_per_s * factor, found.sigma, found.kappa))
        assert least <= squares(scattered, usl(found.gamma_per_s, found.sigma * factor, found.kappa * factor))
    line = fit_kinked(scattered, 6.0)
    kinks = [6.0] if line.at_cores else [6.0, *np.linspace(1, min(most - 1, 6), 101)]
    assert squares(scattered, line.per_s) - 1e-9 <= min(squares(scattered, kinked(best_x1(scattered, kink), kink)) for kink in kinks)


@pytest.mark.parametrize(
    ("name", "law", "cores"),
    [
        ("usl", usl(100, 0.05, 0.01), 4),
        ("usl", usl(100, 0.2, 0.0), 8),
        ("usl", usl(100, 0.02, 0.005), 7),
        ("kinked", kinked(100, 4), 4),
        ("kinked", kinked(100, 7), 7),
        ("kinked", kinked(100, 4), 8),
        ("kinked", kinked(100, 3.6), 4),
    ],
)
@pytest.mark.parametrize("visits", [1, 4])
def test_the_right_curve_wins(name: str, law: Law, cores: int, visits: int) -> None:
    """Eight worker counts with 2% noise: in 90 of 100 seeds and more."""
    wins = 0
    for seed in range(100):
        factor = 1 + 0.02 * np.random.default_rng(seed).standard_normal((8, visits))
        table = {n: [law(n) * float(f) for f in factor[n - 1]] for n in range(1, 9)}
        comparison = only(fit_scaling(measured(table), cores)).comparison
        assert comparison and comparison.accepted
        wins += comparison.better == name
    assert wins >= 90


def test_errors_are_of_counts_left_out() -> None:
    """Each of 2 .. 6 left out in turn, written out here."""
    law, counts = usl(50, 0.1, 0.02), range(1, 7)
    curve = only(fit_scaling(runs(law, counts), 3))
    comparison, expected = curve.comparison, []
    for left_out in range(2, 7):
        seen = [n for n in counts if n != left_out]
        expected.append(abs(fit_kinked(points(law, seen), 3.0).per_s(left_out) / law(left_out) - 1))
    assert comparison and comparison.better == "usl"
    assert comparison.kinked_error == pytest.approx(np.mean(expected))
    assert comparison.usl_error == pytest.approx(0, abs=1e-9)
    assert [row.per_s_fitted for row in curve.rows] == pytest.approx([law(n) for n in counts])


def test_an_outlier_among_the_runs_is_not_believed() -> None:
    law = usl(100, 0.05, 0.01)
    table = {n: [law(n)] * 3 for n in range(1, 9)}
    table[4][1] /= 10
    curve = only(fit_scaling(measured(table), 4))
    assert curve.usl and curve.usl.sigma == pytest.approx(0.05) and curve.usl.kappa == pytest.approx(0.01)
    assert (curve.rows[3].per_s_least, curve.rows[3].per_s_most) == (table[4][1], table[4][0])


@given(rates_per_s, st.sets(st.integers(2, 40), min_size=4, max_size=9))
def test_straight_line_has_no_peak_and_no_bend(x1: float, counts: set[int]) -> None:
    """σ = κ = 0 and the kink beyond what was measured are the same curve: the one with fewer parameters is named."""
    curve = only(fit_scaling(runs(kinked(x1, 64), [1, *counts]), 64))
    assert curve.usl and curve.kinked and curve.comparison
    assert (curve.usl.sigma, curve.usl.kappa, curve.usl.peak_workers, curve.usl.asymptote_per_s) == (0, 0, None, None)
    assert (curve.kinked.kink_workers, curve.comparison.better) == (64, "kinked")
    assert all(row.efficiency == pytest.approx(1) for row in curve.rows)


def test_more_threads_than_cores_leave_nothing_to_gain() -> None:
    found = only(fit_scaling(runs(lambda n: 80.0, [1, 2, 3], threads=4), 2)).kinked
    assert found and (found.x1_per_s, found.kink_workers, found.at_cores) == (pytest.approx(80), 1, True)


# ---- few counts


@pytest.mark.parametrize("most", [2, 3, 4])
def test_few_counts_claim_no_usl(most: int) -> None:
    curve = only(fit_scaling(runs(usl(100, 0.1, 0.05), range(1, most + 1)), 2))
    assert curve.usl is None and curve.comparison is None and curve.kinked is not None
    assert curve.note == f"{most} worker counts cannot tell the curves apart; the measured table is what counts"
    assert curve.per_s(most + 1) is None


def test_two_cores() -> None:
    """What such a machine gives: the kink a little before the cores, and a plateau."""
    table = {1: [100.0, 101.0, 99.0], 2: [180.0, 182.0, 178.0], 3: [177.0, 181.0, 176.0]}
    scaling = fit_scaling([*measured(table), *measured({1: [150.0, 152.0]}, threads=2)], 2)
    one, two = scaling.curves
    assert [(row.workers, row.per_s, row.ideal_per_s, row.efficiency) for row in one.rows] == [
        (1, 100, 100, 1),
        (2, 180, 200, 0.9),
        (3, 177, 300, pytest.approx(0.59)),
    ]
    assert one.kinked and one.kinked.kink_workers == pytest.approx(1.785, abs=0.01) and not one.kinked.at_cores
    assert [row.per_s_fitted for row in one.rows] == [one.kinked.per_s(n) for n in (1, 2, 3)]
    assert (two.kinked, two.rows[0].per_s_fitted, two.note) == (None, None, "one worker count only; the measured table is what counts")
    assert (scaling.peak.workers, scaling.peak.threads, scaling.peak.highest_workers) == (2, 1, 2)


def test_one_low_point_at_the_end_is_no_plateau() -> None:
    found = fit_kinked([(1, 100.0), (2, 200.0), (3, 285.0)], 16.0)
    assert (found.kink_workers, found.at_cores) == (16, True)


# ---- what is expected of a worker count


def test_expected_throughput() -> None:
    law = kinked(100, 4)
    scaling = fit_scaling(runs(law, [1, 2, 3, 4, 6, 8]), 4)
    assert [scaling.per_s(n) for n in (0, 1, 2, 8)] == [0, 100, 200, 400]
    assert scaling.per_s(7) == pytest.approx(400)
    assert scaling.per_s(20) == pytest.approx(400)
    assert (scaling.per_s(0, threads=2), scaling.per_s(1, threads=2)) == (0, None)
    assert scaling.per_s(1, batch_size=4) is None


def test_measured_goes_before_fitted() -> None:
    """A count that fits no curve keeps its own value, and halfway to the next is halfway."""
    table = {n: [usl(100, 0.05, 0.01)(n)] for n in (1, 2, 3, 4, 6, 8)}
    table[6] = [370.0]
    scaling = fit_scaling(measured(table), 4)
    assert scaling.per_s(6) == 370
    assert scaling.per_s(7) == pytest.approx((370 + table[8][0]) / 2)
    beyond = scaling.curves[0].better
    assert beyond and scaling.per_s(9) == pytest.approx(beyond.per_s(9))


def test_no_more_than_the_ideal() -> None:
    """Where one worker was measured too low, or another count too high."""
    table = {n: [100.0 * n] for n in range(2, 9)}
    scaling = fit_scaling(measured({1: [97.0], **table}), 16)
    beyond = scaling.curves[0].better
    assert beyond and beyond.per_s(9) > 9 * 97
    assert [scaling.per_s(n) for n in (2, 9)] == [2 * 97, 9 * 97]
    assert scaling.curves[0].rows[1].per_s == 200


def test_a_curve_that_predicts_badly_is_not_used() -> None:
    zigzag = {1: [100.0], 2: [60.0], 3: [250.0], 4: [90.0], 5: [300.0], 6: [80.0]}
    curve = only(fit_scaling(measured(zigzag), 6))
    assert curve.comparison and not curve.comparison.accepted
    assert "neither predicts within 10%" in curve.note
    assert curve.per_s(6) == 80 and curve.per_s(7) is None


def test_the_largest_batch_size_unless_given() -> None:
    scaling = fit_scaling([*runs(kinked(10, 2), [1, 2, 3], batch_size=1), *runs(kinked(40, 2), [1, 2, 3], batch_size=8)], 2)
    assert (scaling.per_s(2), scaling.per_s(2, batch_size=1), scaling.per_s(2, batch_size=8)) == (80, 20, 80)


# ---- the peak


def test_peak_within_the_noise_takes_the_fewest_workers() -> None:
    table = {1: [100.0, 101.0], 2: [195.0, 205.0], 3: [203.0, 209.0], 4: [204.0, 210.0]}
    peak = fit_scaling(measured(table), 2).peak
    assert (peak.workers, peak.highest_workers, peak.per_s) == (2, 4, 200)
    assert (
        peak.note == "4 workers measured highest, 207 requests/s, but the runs with 2 workers overlap with it (195 to 205): no gain in more"
    )


def test_peak_beyond_the_noise_is_the_highest() -> None:
    peak = fit_scaling(measured({1: [100.0, 101.0], 2: [180.0, 181.0], 3: [190.0, 192.0]}), 2).peak
    assert (peak.workers, peak.highest_workers, peak.note) == (3, 3, "3 workers measured highest, 191 requests/s")


def test_a_wild_run_of_a_far_count_is_no_neighbour() -> None:
    peak = fit_scaling(measured({1: [100.0, 500.0, 101.0], 2: [200.0, 201.0, 202.0], 3: [290.0, 300.0, 310.0]}), 3).peak
    assert peak.workers == 3


def test_peak_is_of_all_thread_counts() -> None:
    peak = fit_scaling([*runs(kinked(10, 4), range(1, 6)), *runs(kinked(25, 2), [1, 2], threads=2)], 4).peak
    assert (peak.workers, peak.threads, peak.per_s) == (2, 2, 50)


# ---- whatever was measured

tables = st.dictionaries(st.integers(2, 40), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=4), max_size=9)
visits = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=4)


@given(tables, visits, st.integers(1, 64), st.integers(1, 8))
def test_no_throughputs_break_it(table: dict[int, list[float]], one: list[float], cores: int, threads: int) -> None:
    scaling = fit_scaling(measured({1: one, **table}, threads), cores)
    assert json.loads(json.dumps(asdict(scaling), allow_nan=False))["cores"] == cores
    one_per_s = float(np.median(one))
    assert (scaling.per_s(0, threads), scaling.per_s(1, threads)) == (0, one_per_s)
    for workers in range(1, 60):
        per_s = scaling.per_s(workers, threads)
        assert per_s is None or 0 < per_s <= workers * one_per_s
    for row in only(scaling).rows:
        assert row.per_s_least <= row.per_s <= row.per_s_most
        assert row.per_s_fitted is None or row.per_s_fitted > 0
    curve = only(scaling)
    assert curve.usl is None or min(curve.usl.sigma, curve.usl.kappa) >= 0
    assert curve.kinked is None or 1 <= curve.kinked.kink_workers <= max(1, cores / threads)


@given(tables, visits, st.integers(1, 64), st.randoms())
def test_the_order_of_the_runs_changes_nothing(table: dict[int, list[float]], one: list[float], cores: int, order: random.Random) -> None:
    found = [*measured({1: one, **table}), *measured({1: one}, threads=2)]
    shuffled = list(found)
    order.shuffle(shuffled)
    assert fit_scaling(shuffled, cores) == fit_scaling(found, cores)


@settings(max_examples=50)
@given(tables, visits, st.integers(1, 64), st.integers(-20, 20))
def test_a_factor_on_all_throughputs_is_a_factor_on_all_results(
    table: dict[int, list[float]], one: list[float], cores: int, power: int
) -> None:
    """Powers of two, which multiply without rounding: ties and overlaps stay what they were."""
    factor = 2.0**power
    found = measured({1: one, **table})
    before = fit_scaling(found, cores)
    after = fit_scaling([Throughput(run.workers, run.threads, run.batch_size, run.per_s * factor) for run in found], cores)
    a, b = only(before), only(after)
    assert after.peak.per_s == before.peak.per_s * factor and after.peak.workers == before.peak.workers
    assert b.comparison == a.comparison and b.note == a.note
    for old, new in zip(a.rows, b.rows, strict=True):
        assert new.efficiency == old.efficiency
        assert (new.per_s, new.ideal_per_s, new.per_s_fitted) == (
            old.per_s * factor,
            old.ideal_per_s * factor,
            None if old.per_s_fitted is None else old.per_s_fitted * factor,
        )
    for workers in range(50):
        per_s = before.per_s(workers)
        assert after.per_s(workers) == (None if per_s is None else per_s * factor)


# ---- what is refused


@pytest.mark.parametrize("per_s", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_no_throughput(per_s: float) -> None:
    words = r"a run of 2 workers with 1 thread at batch size 8 measured .* requests a second, which is no throughput; measure again\."
    with pytest.raises(MeasureError, match=words):
        fit_scaling([*measured({1: [10.0]}), Throughput(2, 1, 8, per_s)], 2)


@pytest.mark.parametrize(("workers", "threads", "batch_size"), [(0, 1, 8), (1, 0, 8), (1, 1, 0)])
def test_no_run(workers: int, threads: int, batch_size: int) -> None:
    with pytest.raises(MeasureError, match="which is no throughput"):
        fit_scaling([*measured({1: [10.0]}), Throughput(workers, threads, batch_size, 10.0)], 2)


def test_nothing_measured() -> None:
    with pytest.raises(MeasureError, match="no throughput was measured for any number of workers"):
        fit_scaling([], 2)


@pytest.mark.parametrize("others", [[], measured({1: [10.0], 2: [20.0]}), measured({1: [10.0]}, threads=2, batch_size=4)])
def test_no_run_with_one_worker(others: list[Throughput]) -> None:
    with pytest.raises(MeasureError, match=r"no run with one worker \(2 threads, batch size 8\)"):
        fit_scaling([*others, *measured({2: [20.0], 3: [20.0]}, threads=2)], 2)


def test_no_cores() -> None:
    with pytest.raises(MeasureError, match="at least one core, not 0"):
        fit_scaling(measured({1: [10.0]}), 0)
