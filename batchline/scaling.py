"""How throughput grows with workers: the ideal N·X(1), what was measured, and the curve that bends away from it beyond the cores.

Two curves are fitted and compared. The universal scalability law is smooth (Gunther, arXiv:0808.1431):

    X(N) = γ·N / (1 + σ·(N − 1) + κ·N·(N − 1))

with σ the share of work done one at a time and κ the cost of workers keeping each other in step. The kinked line
X(N) = x1·min(N, K) says that workers are independent until the hardware is used up: K = P/k with P cores and k threads a
worker, or less where the points say so (two hardware threads on one core, or cores that the server's front end takes).
Each is judged by its error on worker counts that it has not seen.

A pure function of measured throughputs: no clock, no network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from batchline.errors import MeasureError

LEAST_COUNTS = 5  # the three parameters of USL, one count to spare, one left out
ACCEPTED_ERROR = 0.10  # a curve that misses unseen counts by more is not used beyond what was measured
ROUNDING = 1e-9  # less than this is the arithmetic's
EXACT = 1e-6  # relative residual that counts as none
MOST_ABOVE = 2.0  # γ against the measured X(1): throughput far above the ideal would otherwise drive it to infinity
USL, KINKED = "usl", "kinked"

Point = tuple[int, float]  # workers, requests a second
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Throughput:
    """One run at saturation: requests a second of so many workers with so many threads each."""

    workers: int
    threads: int
    batch_size: int
    per_s: float


@dataclass(frozen=True)
class Row:
    """One worker count. Throughputs are requests a second.

    Attributes:
        per_s: median of the runs.
        per_s_least, per_s_most: their spread.
        ideal_per_s: N·X(1).
        efficiency: per_s / ideal_per_s; above 1 is noise, or an X(1) that was measured cold.
        per_s_fitted: of the better curve, or of the kinked line where they were not compared; None with one worker count.
    """

    workers: int
    threads: int
    batch_size: int
    per_s: float
    per_s_least: float
    per_s_most: float
    ideal_per_s: float
    efficiency: float
    per_s_fitted: float | None = None


@dataclass(frozen=True)
class Usl:
    """X(N) = γ·N/(1 + σ(N − 1) + κN(N − 1)).

    Attributes:
        gamma_per_s: γ, requests a second of one worker.
        sigma, kappa: contention and coherency, 0 or more.
        peak_workers: sqrt((1 − σ)/κ), at least 1; None where throughput never falls (κ = 0).
        asymptote_per_s: γ/σ where κ = 0; None where there is a peak, and where σ is 0 too: that is a straight line.
    """

    gamma_per_s: float
    sigma: float
    kappa: float
    peak_workers: float | None
    asymptote_per_s: float | None

    def per_s(self, workers: float) -> float:
        """Requests a second."""
        return self.gamma_per_s * workers / (1 + self.sigma * (workers - 1) + self.kappa * workers * (workers - 1))


@dataclass(frozen=True)
class Kinked:
    """X(N) = x1·min(N, K).

    Attributes:
        x1_per_s: requests a second of one worker.
        kink_workers: K.
        at_cores: K was not fitted but is cores / threads.
    """

    x1_per_s: float
    kink_workers: float
    at_cores: bool

    def per_s(self, workers: float) -> float:
        """Requests a second."""
        return self.x1_per_s * min(workers, self.kink_workers)


@dataclass(frozen=True)
class Comparison:
    """The curves on worker counts that were left out, one at a time.

    One worker is never left out: every curve starts there, and no user has to predict it.

    Attributes:
        usl_error, kinked_error: mean of |predicted / measured − 1| over the left-out counts.
        better: "usl" or "kinked": the smaller error, and of equals the line, which has fewer parameters.
        accepted: the better one's error is at most 10%.
    """

    usl_error: float
    kinked_error: float
    better: str
    accepted: bool


@dataclass(frozen=True)
class Curve:
    """All worker counts of one thread count and batch size, fewest workers first; the first row is one worker.

    Attributes:
        kinked: None with one worker count.
        usl, comparison: None with fewer than five.
        note: what the fits are worth, in words.
    """

    threads: int
    batch_size: int
    rows: tuple[Row, ...]
    kinked: Kinked | None
    usl: Usl | None
    comparison: Comparison | None
    note: str

    @property
    def better(self) -> Usl | Kinked | None:
        """The curve that the table shows."""
        return self.usl if self.comparison and self.comparison.better == USL else self.kinked

    def per_s(self, workers: int) -> float | None:
        """As Scaling.per_s, of this curve."""
        ideal_per_s = workers * self.rows[0].per_s
        if workers <= self.rows[-1].workers:
            measured = np.interp(workers, [row.workers for row in self.rows], [row.per_s for row in self.rows])
            return min(float(measured), ideal_per_s)
        if self.better and self.comparison and self.comparison.accepted:
            return min(self.better.per_s(workers), ideal_per_s)
        return None


@dataclass(frozen=True)
class Peak:
    """What to run: the fewest workers that measured as high as any.

    Attributes:
        per_s: median of its runs, requests a second.
        highest_workers: the count with the highest median; more than `workers` where the two cannot be told apart.
        note: in words.
    """

    workers: int
    threads: int
    batch_size: int
    per_s: float
    highest_workers: int
    note: str


@dataclass(frozen=True)
class Scaling:
    """Throughput against workers on a machine of so many cores: a curve for each thread count and batch size, and the peak.

    dataclasses.asdict turns it into JSON; what would be infinite is None.
    """

    cores: int
    curves: tuple[Curve, ...]
    peak: Peak

    def curve(self, threads: int, batch_size: int | None = None) -> Curve | None:
        """The curve of a thread count at a batch size, the largest measured unless given; None if there was no such run."""
        found = [curve for curve in self.curves if curve.threads == threads and batch_size in (None, curve.batch_size)]
        return max(found, key=lambda curve: curve.batch_size, default=None)

    def per_s(self, workers: int, threads: int = 1, batch_size: int | None = None) -> float | None:
        """Requests a second to expect.

        0 for no workers. At a measured count, what was measured there; between two, on the straight line between them; beyond
        the last, the better curve if it was accepted. Never above the ideal N·X(1).

        Returns:
            None where nothing is known: a thread count that was not measured, or a worker count that no accepted curve reaches.
        """
        if workers < 1:
            return 0.0
        curve = self.curve(threads, batch_size)
        return curve.per_s(workers) if curve else None


def fit_scaling(runs: Sequence[Throughput], cores: int) -> Scaling:
    """Measured throughputs -> table, curves and peak. The order of the runs does not matter.

    Args:
        runs: one or more a (workers, threads, batch_size).
        cores: P, that all workers share.

    Raises:
        MeasureError: no runs, one that is no measured throughput, or a thread count without a run of one worker.
    """
    _check(runs, cores)
    groups = sorted({(run.threads, run.batch_size) for run in runs})
    curves = tuple(_curve([run for run in runs if (run.threads, run.batch_size) == group], cores) for group in groups)
    return Scaling(cores, curves, _peak(curves))


def _check(runs: Sequence[Throughput], cores: int) -> None:
    if not runs:
        raise MeasureError("no throughput was measured for any number of workers; `batchline measure MODEL` does it.")
    if cores < 1:
        raise MeasureError(f"a machine has at least one core, not {cores}.")
    for run in runs:
        if min(run.workers, run.threads, run.batch_size) < 1 or not (math.isfinite(run.per_s) and run.per_s > 0):
            raise MeasureError(f"{_named(run)} measured {run.per_s!r} requests a second, which is no throughput; measure again.")
    for threads, batch_size in sorted({(run.threads, run.batch_size) for run in runs}):
        if not any((run.workers, run.threads, run.batch_size) == (1, threads, batch_size) for run in runs):
            raise MeasureError(
                f"no run with one worker ({_counted(threads, 'thread')}, batch size {batch_size}), so N times one worker cannot be told; "
                "measure that too."
            )


def _named(run: Throughput) -> str:
    return f"a run of {_counted(run.workers, 'worker')} with {_counted(run.threads, 'thread')} at batch size {run.batch_size}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _curve(runs: Sequence[Throughput], cores: int) -> Curve:
    rows = tuple(_rows(runs))
    points = [(row.workers, row.per_s) for row in rows]
    threads, batch_size = rows[0].threads, rows[0].batch_size
    limit = max(1.0, cores / threads)  # a worker with more threads than cores has the machine full by itself
    enough = len(points) >= LEAST_COUNTS
    comparison = _compare(points, limit) if enough else None
    kinked = fit_kinked(points, limit) if len(points) > 1 else None
    usl = fit_usl(points) if enough else None
    curve = Curve(threads, batch_size, rows, kinked, usl, comparison, _note(len(points), comparison))
    return replace(curve, rows=tuple(_fitted(curve)))


def _fitted(curve: Curve) -> Iterable[Row]:
    for row in curve.rows:
        yield replace(row, per_s_fitted=curve.better.per_s(row.workers) if curve.better else None)


def _rows(runs: Sequence[Throughput]) -> Iterable[Row]:
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.workers, []).append(run.per_s)
    one_per_s = median(found[1])
    for workers, per_s in sorted(found.items()):
        middle, ideal = median(per_s), workers * one_per_s
        yield Row(workers, runs[0].threads, runs[0].batch_size, middle, min(per_s), max(per_s), ideal, middle / ideal)


def _note(counts: int, comparison: Comparison | None) -> str:
    table = "the measured table is what counts"
    if comparison is None:
        return (
            f"{_counted(counts, 'worker count')} cannot tell the curves apart; {table}" if counts > 1 else f"one worker count only; {table}"
        )
    off = {KINKED: f"the kinked line {comparison.kinked_error:.1%}", USL: f"the universal scalability law {comparison.usl_error:.1%}"}
    other = KINKED if comparison.better == USL else USL
    said = f"on worker counts left out {off[comparison.better]} off, {off[other]}"
    return said if comparison.accepted else f"{said}: neither predicts within {ACCEPTED_ERROR:.0%}; {table}"


def _compare(points: Sequence[Point], limit: float) -> Comparison:
    usl, kinked = [], []
    for left_out in range(1, len(points)):
        workers, per_s = points[left_out]
        seen = [*points[:left_out], *points[left_out + 1 :]]
        usl.append(abs(fit_usl(seen).per_s(workers) / per_s - 1))
        kinked.append(abs(fit_kinked(seen, limit).per_s(workers) / per_s - 1))
    usl_error, kinked_error = mean(usl), mean(kinked)
    better = USL if usl_error < kinked_error - ROUNDING else KINKED
    return Comparison(usl_error, kinked_error, better, min(usl_error, kinked_error) <= ACCEPTED_ERROR)


def fit_usl(points: Sequence[Point]) -> Usl:
    """The universal scalability law with the least squared relative residuals X/X̂ − 1; σ and κ are 0 or more.

    N/X̂ = 1/γ + (σ/γ)·(N − 1) + (κ/γ)·N·(N − 1) is linear in three unknowns, so those residuals have one minimum and no starting
    values are needed.

    Args:
        points: (workers, requests a second), fewest workers first; the first is one worker.
    """
    workers, per_s = _columns(points)
    relative = per_s / per_s[0]
    design = np.column_stack([np.ones_like(workers), workers - 1, workers * (workers - 1)]) * (relative / workers)[:, None]
    bounds = ([1 / MOST_ABOVE, 0.0, 0.0], [np.inf] * 3)
    alone, serial, crosstalk = map(float, lsq_linear(design, np.ones_like(workers), bounds, method="bvls").x)
    sigma, kappa = (share if share > ROUNDING else 0.0 for share in (serial / alone, crosstalk / alone))
    gamma_per_s = float(per_s[0]) / alone
    asymptote_per_s = gamma_per_s / sigma if sigma and not kappa else None
    return Usl(gamma_per_s, sigma, kappa, _peak_workers(sigma, kappa), asymptote_per_s)


def _peak_workers(sigma: float, kappa: float) -> float | None:
    if sigma >= 1:
        return 1.0
    return max(1.0, math.sqrt((1 - sigma) / kappa)) if kappa else None


def fit_kinked(points: Sequence[Point], limit: float) -> Kinked:
    """The kinked line with the least squared relative residuals X/X̂ − 1.

    The kink stands at `limit` unless an earlier one is better by Akaike's criterion, the second parameter counted. An earlier one must
    leave at least two counts on the flat part: a single low point at the end is no plateau.

    Args:
        points: (workers, requests a second), fewest workers first; the first is one worker.
        limit: cores / threads, at least 1.
    """
    workers, per_s = _columns(points)
    relative = per_s / per_s[0]
    fits = [(_line(workers, relative, kink), kink) for kink in _earlier_kinks(workers, relative, limit)]
    (x1, squares), kink = _line(workers, relative, limit), limit
    (free_x1, free_squares), free_kink = min(fits, key=lambda fit: fit[0][1], default=((x1, squares), kink))
    none = len(points) * EXACT**2
    if len(points) * math.log((squares + none) / (free_squares + none)) > 2:
        x1, kink = free_x1, free_kink
    return Kinked(x1 * float(per_s[0]), kink, kink == limit)


def _line(workers: Array, relative: Array, kink: float) -> tuple[float, float]:
    """x1 of the best line with this kink, and its squared relative residuals."""
    each = relative / np.minimum(workers, kink)
    x1 = float((each @ each) / each.sum())
    return x1, float(np.sum((each / x1 - 1) ** 2))


def _earlier_kinks(workers: Array, relative: Array, limit: float) -> Iterable[float]:
    """The best kink between each count and the next, as long as two counts lie on the flat part.

    Rise and plateau have a parameter each, so within a gap both are means; a kink that falls outside its gap is best at its edge.
    """
    for rising in range(1, len(workers) - 1):
        x1, _ = _line(workers[:rising], relative[:rising], np.inf)
        plateau, _ = _line(np.ones_like(workers[rising:]), relative[rising:], 1.0)
        yield min(float(np.clip(plateau / x1, workers[rising - 1], workers[rising])), limit)


def _columns(points: Sequence[Point]) -> tuple[Array, Array]:
    workers, per_s = zip(*points, strict=True)
    return np.array(workers, dtype=float), np.array(per_s, dtype=float)


def _peak(curves: Sequence[Curve]) -> Peak:
    """The highest median; then fewer workers of its curve, neighbour by neighbour, while their runs overlap with the highest's."""
    curve = max(curves, key=lambda curve: max(row.per_s for row in curve.rows))
    highest = max(curve.rows, key=lambda row: row.per_s)
    chosen = highest
    for row in reversed(curve.rows[: curve.rows.index(highest)]):
        if row.per_s_most < highest.per_s_least:
            break
        chosen = row
    return Peak(chosen.workers, chosen.threads, chosen.batch_size, chosen.per_s, highest.workers, _peak_note(chosen, highest))


def _peak_note(chosen: Row, highest: Row) -> str:
    if chosen is highest:
        return f"{_counted(highest.workers, 'worker')} measured highest, {highest.per_s:.4g} requests/s"
    return (
        f"{_counted(highest.workers, 'worker')} measured highest, {highest.per_s:.4g} requests/s, but the runs with "
        f"{_counted(chosen.workers, 'worker')} overlap with it ({chosen.per_s_least:.4g} to {chosen.per_s_most:.4g}): no gain in more"
    )
