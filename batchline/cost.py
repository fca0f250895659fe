"""The line T(B) = c + B·m: what a batch costs, how sure that is, and whether it is a line at all.

c is paid once a batch, m once for each request in it. From them follow the speedup of a batch over its requests one by one,
S(B) = B(c + m) / (c + Bm), and its ceiling 1 + c/m. All of it is a pure function of measured batch times.

Noise on a machine is one-sided (nothing makes a batch faster than it is) and grows with B, so the line goes through medians
and is fitted to relative errors; where too few rounds tell of noise, to plain ones. Every round of a measurement is a small
experiment of its own, with a line of its own; the intervals are Student's t over the rounds, so that what changes from minute
to minute counts as what it is (batch means; Law, Simulation Modeling and Analysis, 9.5.3). Before anything is concluded from
the line, the medians are held against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from batchline.errors import MeasureError

Regime = Literal["overhead-bound", "balanced", "compute-bound"]
Interval = tuple[float, float]
Array = np.ndarray[Any, np.dtype[np.float64]]
Times = Mapping[int, Sequence[Sequence[float]]]  # batch size -> round -> milliseconds

CONFIDENCE = 0.95
BEND = 0.05  # a median that leaves the line by more than this part of itself, and by more than noise, is no noise
LACK_OF_FIT_P = 0.01
OVERHEAD_BOUND = 4.0  # c/m above it: batching pays several times over
COMPUTE_BOUND = 0.25  # c/m below it: the ceiling is under 1.25
NOISY = 0.10  # of one batch size's median, from round to round
UNKNOWN = 1e6  # of c/m, where nothing bounds it
FEW_ROUNDS = 3  # fewer give no interval of their own


@dataclass(frozen=True)
class Row:
    """One batch size: measured and, where there is a line, predicted.

    Attributes:
        batch_size: B.
        batch_ms: median T(B).
        speedup: B·T(1) / T(B), measured.
        speedup_predicted: S(B) of the line; None without one.
    """

    batch_size: int
    batch_ms: float
    speedup: float
    speedup_predicted: float | None


@dataclass(frozen=True)
class CostLine:
    """c and m of one model on one machine.

    Attributes:
        c_ms, m_ms: the line; c is never negative.
        c_ms_interval, m_ms_interval: 95%.
        ceiling, ceiling_interval: 1 + c/m; None where the measured times are no line.
        linear: whether they are.
        regime: in words.
        table: the measured batch sizes.
        warnings: what a reader should know before using any of it.
    """

    c_ms: float
    m_ms: float
    c_ms_interval: Interval
    m_ms_interval: Interval
    ceiling: float | None
    ceiling_interval: Interval | None
    linear: bool
    regime: Regime
    table: list[Row]
    warnings: list[str]

    def batch_ms(self, batch_size: float) -> float:
        """T(B): of the line, or interpolated in the measured table, never falling, where there is no line.

        Beyond the table every further request costs what one costs between its last two sizes.
        """
        if self.linear:
            return self.c_ms + self.m_ms * batch_size
        sizes = [float(row.batch_size) for row in self.table]
        times = np.maximum.accumulate([row.batch_ms for row in self.table])
        if batch_size <= sizes[-1]:
            return float(np.interp(batch_size, sizes, times))
        return float(times[-1] + (batch_size - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))

    def speedup(self, batch_size: float) -> float:
        """S(B) = B·T(1) / T(B); on a line B(c + m) / (c + Bm)."""
        return batch_size * self.batch_ms(1) / self.batch_ms(batch_size)

    def size_for(self, fraction: float) -> int | None:
        """The smallest B that reaches this fraction of the limit 1/m a worker: B >= (c/m)·f / (1 - f). None without a line."""
        if not self.linear:
            return None
        return max(1, math.ceil(self.c_ms / self.m_ms * fraction / (1 - fraction) - 1e-9))


def fit_cost_line(times_ms: Times) -> CostLine:
    """Fits the line to measured batch times.

    Args:
        times_ms: batch size -> for each round the milliseconds of its batches, warm-ups left out.

    Raises:
        MeasureError: fewer than three batch sizes, a batch size without times, or times that do not grow with it.
    """
    sizes, rounds = _medians(times_ms)
    medians = np.array([np.median(values) for values in rounds])
    weights = _weights(rounds, medians)
    c_ms, m_ms = _line(sizes, medians, weights)
    if m_ms <= 0:
        raise MeasureError(
            "larger batches took no longer than small ones: the times are of something else, or the machine was too busy; measure again."
        )
    bend, significant = _lack_of_fit(sizes, rounds, medians, (c_ms, m_ms))
    linear = not (significant and bend > BEND)
    c_interval, m_interval, ceiling_interval = _intervals(sizes, rounds, medians, weights, (c_ms, m_ms))
    ratio = c_ms / m_ms
    return CostLine(
        c_ms=c_ms,
        m_ms=m_ms,
        c_ms_interval=c_interval,
        m_ms_interval=m_interval,
        ceiling=1 + ratio if linear else None,
        ceiling_interval=ceiling_interval if linear else None,
        linear=linear,
        regime=_regime(ratio if linear else float(np.max(sizes * medians[0] / sizes[0] / medians)) - 1),
        table=_table(sizes, medians, (c_ms, m_ms) if linear else None),
        warnings=[*_noise(sizes, rounds), *_shape(linear, bend, c_interval, _count(rounds))],
    )


def _medians(times_ms: Times) -> tuple[Array, list[Array]]:
    """Sizes, and for each the median of every round."""
    if len(times_ms) < 3:
        raise MeasureError(f"a line needs at least three batch sizes, here are {len(times_ms)}; measure on (--resume).")
    sizes = sorted(times_ms)
    for size in sizes:
        every = np.array([value for times in times_ms[size] for value in times], dtype=float)
        if not len(every) or not np.all(np.isfinite(every)) or every.min() <= 0:
            raise MeasureError(f"batch size {size} has no times, or times that are no positive numbers; measure again.")
    return np.array(sizes, dtype=float), [np.array([np.median(times) for times in times_ms[size] if len(times)]) for size in sizes]


def _weights(rounds: list[Array], medians: Array) -> Array:
    """Noise grows with the time that it disturbs; where it was not seen, every median counts the same."""
    return 1 / medians**2 if _count(rounds) >= FEW_ROUNDS else np.ones_like(medians)


def _count(rounds: list[Array]) -> int:
    return min(len(values) for values in rounds)


def _line(sizes: Array, times: Array, weights: Array) -> tuple[float, float]:
    """(c, m) with the least weighted sum of squared errors, c at least 0."""
    mean_b, mean_t = np.average(sizes, weights=weights), np.average(times, weights=weights)
    m = float(np.sum(weights * (sizes - mean_b) * (times - mean_t)) / np.sum(weights * (sizes - mean_b) ** 2))
    c = float(mean_t - m * mean_b)
    return (c, m) if c >= 0 else (0.0, float(np.sum(weights * sizes * times) / np.sum(weights * sizes**2)))


def _lack_of_fit(sizes: Array, rounds: list[Array], medians: Array, line: tuple[float, float]) -> tuple[float, bool]:
    """The most by which a median leaves the line, as a part of itself, and whether that is more than noise.

    The classical F test of lack of fit against pure error (Draper and Smith, Applied Regression Analysis, 2.1), on relative
    errors. With one round there is no pure error, and the bend alone decides.
    """
    off = medians / (line[0] + line[1] * sizes) - 1
    bend = float(np.max(np.abs(off)))
    counts = np.array([len(values) for values in rounds])
    free = int(np.sum(counts - 1))
    if not free:
        return bend, True
    pure = sum(float(np.sum((values / median - 1) ** 2)) for values, median in zip(rounds, medians, strict=True)) / free
    lack = float(np.sum(counts * off**2)) / (len(sizes) - 2)
    return bend, bool(stats.f.sf(lack / max(pure, 1e-12), len(sizes) - 2, free) < LACK_OF_FIT_P)


def _intervals(
    sizes: Array, rounds: list[Array], medians: Array, weights: Array, line: tuple[float, float]
) -> tuple[Interval, Interval, Interval]:
    """95% of c, m and 1 + c/m."""
    count = _count(rounds)
    if count < FEW_ROUNDS:
        return _residual_intervals(sizes, medians, weights, line)
    lines = np.array([_line(sizes, np.array([values[i] for values in rounds]), weights) for i in range(count)])
    c, m, ceiling = lines[:, 0], lines[:, 1], 1 + lines[:, 0] / lines[:, 1]
    return _around(line[0], c, 0.0), _around(line[1], m, 0.0), _around(1 + line[0] / line[1], ceiling, 1.0)


def _around(center: float, values: Array, least: float) -> Interval:
    """Student's t interval of what the rounds say, not below `least`."""
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1)) / math.sqrt(len(values))
    return max(least, center - reach), center + reach


def _residual_intervals(sizes: Array, medians: Array, weights: Array, line: tuple[float, float]) -> tuple[Interval, Interval, Interval]:
    """From how far the medians lie off the line, where too few rounds tell of noise; the ratio's by Fieller's theorem (1954)."""
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    off = medians - (line[0] + line[1] * sizes)
    free = len(sizes) - 2
    covariance = np.linalg.inv(design.T @ (design * weights[:, None])) * float(np.sum(weights * off**2)) / free
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, free))
    errors = [reach * math.sqrt(float(covariance[i, i])) for i in (0, 1)]
    low, high = _fieller(line, covariance, reach)
    c, m = ((max(0.0, value - error), value + error) for value, error in zip(line, errors, strict=True))
    return c, m, (1 + max(0.0, low), 1 + high)


def _fieller(line: tuple[float, float], covariance: Array, reach: float) -> Interval:
    """The ratios r for which c - r·m is within `reach` of its own standard errors of 0."""
    (c, m), square = line, reach**2
    a = m * m - square * float(covariance[1, 1])
    b = c * m - square * float(covariance[0, 1])
    root = b * b - a * (c * c - square * float(covariance[0, 0]))
    if a <= 0 or root < 0:
        return 0.0, UNKNOWN  # m itself may be 0
    return (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a


def _regime(ratio: float) -> Regime:
    return "overhead-bound" if ratio >= OVERHEAD_BOUND else "compute-bound" if ratio <= COMPUTE_BOUND else "balanced"


def _table(sizes: Array, medians: Array, line: tuple[float, float] | None) -> list[Row]:
    """Speedups are over T(1), or over the smallest batch measured, a request, where 1 was not."""
    one = float(medians[0] / sizes[0])
    rows = []
    for size, median in zip(sizes.tolist(), medians.tolist(), strict=True):
        predicted = size * (line[0] + line[1]) / (line[0] + line[1] * size) if line else None
        rows.append(Row(int(size), median, size * one / median, predicted))
    return rows


def _noise(sizes: Array, rounds: list[Array]) -> list[str]:
    """Batch sizes whose median changes from round to round by more than a fit can bear."""
    said = []
    for size, values in zip(sizes.tolist(), rounds, strict=True):
        spread = float(stats.median_abs_deviation(values, scale="normal") / np.median(values)) if len(values) > 1 else 0.0
        if spread > NOISY:
            said.append(
                f"batch size {int(size)}: times differ by {spread:.0%} from round to round; the machine is too busy, measure when it is not"
            )
    return said


def _shape(linear: bool, bend: float, c_interval: Interval, count: int) -> list[str]:
    said = []
    if not linear:
        said.append(f"T(B) is no line, a median leaves it by {bend:.0%}: the measured table is used, and no ceiling is claimed")
    elif c_interval[0] == 0:
        said.append("c cannot be told from 0: batching saves nothing that was measured")
    if count < FEW_ROUNDS:
        said.append(
            f"{count} round{'s' * (count > 1)} measured: intervals come from the line's own misfit and are rough; measure on (--resume)"
        )
    return said
