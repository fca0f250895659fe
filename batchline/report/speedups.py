"""Figures 5 and 6: the speedup S(B) of one model against its ceiling, and of all models on one axis.

Where T(B) is no line no ceiling is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from batchline.cost import CostLine
from batchline.measured import SERVER
from batchline.report.batching import BEND, bars_of, caption_of
from batchline.report.data import Evidence, missing
from batchline.report.style import MARKERS, Canvas, Figure, Look, Missing, Point, apart, canvas, provenance

LOOK_FAR = 4  # times the largest measured batch that the curve is drawn to


def speedup(evidence: Evidence) -> Figure | Missing:
    """Figure 5: S against B, measured points with intervals, the line's curve and its ceiling where there is one."""
    if evidence.fit is None:
        title = "Speedup flattens against a ceiling"
        return missing("speedup", title, evidence, "measure", evidence.unfit if evidence.measured else "")
    fit, points = evidence.fit, speedups(evidence)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.0, 4.2)
        axes = figure.add_subplot()
        draw_speedup(axes, fit.server, points, look)
        return figure

    said = ", ".join(f"{point.speedup:.2f} at {point.batch_size}" for point in points)
    ceiling = f"ceiling 1 + c/m = {fit.server.ceiling:.2f}" if fit.server.ceiling else f"no ceiling: {BEND}"
    title = f"Batching wins up to {max(point.speedup for point in points):.1f} times here, {ceiling}"
    bars = bars_of(evidence)
    assert bars
    caption = f"{caption_of(evidence, bars)} Bars: 95%, Student's t over {fit_rounds(evidence)} rounds."
    alt = f"Speedup S of {evidence.model} against batch size B: {said}; {ceiling}."
    hover = tuple(
        Point(float(p.batch_size), p.speedup, f"B = {p.batch_size}: {p.speedup:.2f} times ({p.low:.2f} to {p.high:.2f})") for p in points
    )
    return Figure("speedup", title, alt, caption, draw, hover)


@dataclass(frozen=True)
class Speedup:
    """S(B) as measured, with its 95% interval over the rounds."""

    batch_size: int
    speedup: float
    low: float
    high: float


def speedups(evidence: Evidence) -> list[Speedup]:
    """Every round is a small experiment: its own T(1) over its own T(B)."""
    assert evidence.measured and evidence.fit
    times = {size: [float(np.median(batches)) for batches in rounds] for size, rounds in evidence.measured.times_ms(SERVER).items()}
    found, smallest = [], min(times)
    for row in evidence.fit.server.table:
        pairs = zip(times[smallest], times[row.batch_size], strict=False)
        each = [row.batch_size * one / smallest / many for one, many in pairs]
        half = 0.0
        if len(each) > 1 and row.batch_size > smallest:
            half = float(stats.t.ppf(0.975, len(each) - 1) * np.std(each, ddof=1) / np.sqrt(len(each)))
        found.append(Speedup(row.batch_size, row.speedup, row.speedup - half, row.speedup + half))
    return found


def fit_rounds(evidence: Evidence) -> int:
    """Rounds of the measurement."""
    assert evidence.measured
    return evidence.measured.plan.rounds


def draw_speedup(axes: Any, line: CostLine, points: Sequence[Speedup], look: Look) -> None:
    """Measured points; the line's curve and its ceiling where T(B) is a line."""
    largest = points[-1].batch_size
    sizes = np.geomspace(1, largest * (LOOK_FAR if line.linear else 1), 200)
    if line.linear and line.ceiling and line.ceiling_interval:
        axes.axhspan(*line.ceiling_interval, color=look.colour("c"), alpha=0.18, linewidth=0)
        axes.axhline(line.ceiling, color=look.colour("c"), linewidth=1.4, linestyle="--", gid="ceiling")
        axes.text(sizes[-1], line.ceiling, rf"ceiling $1 + c/m$ = {line.ceiling:.2f}", ha="right", va="bottom", color=look.text)
        axes.plot(sizes, [line.speedup(size) for size in sizes], color=look.colour("theory"), linewidth=1.6, gid="S(B)")
        under = (float(sizes[-1]), line.speedup(float(sizes[95])))  # below all of the curve that the words are as wide as
        words = r"$S(B) = B(c+m)\,/\,(c+Bm)$"
        axes.annotate(words, under, (0, -14), textcoords="offset points", ha="right", va="top", color=look.colour("theory"))
    else:
        axes.text(0.03, 0.95, f"no ceiling: {BEND}", transform=axes.transAxes, va="top", color=look.text)
    around = [[max(0.0, p.speedup - p.low) for p in points], [max(0.0, p.high - p.speedup) for p in points]]
    shown = axes.errorbar(
        [p.batch_size for p in points], [p.speedup for p in points], around, color=look.colour("measured"), marker="o", markersize=6,
        linestyle="none" if line.linear else "-", linewidth=1, capsize=3,
    )  # fmt: skip
    shown.lines[0].set_gid("measured")
    second = (points[1].batch_size, points[1].low)
    axes.annotate("measured", second, (5, -5), textcoords="offset points", ha="left", va="top", color=look.colour("measured"))
    _speedup_axes(axes, [p.batch_size for p in points], sizes[-1], max(line.ceiling or 0, *(p.high for p in points)))


def _speedup_axes(axes: Any, ticks: Sequence[int], most: float, top: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.93, most * 1.05)
    axes.set_ylim(0, 1.15 * top)
    axes.set_xlabel("batch size $B$ (logarithmic)")
    axes.set_ylabel("speedup $S$: times as fast as one by one")


def regimes(all_evidence: Sequence[Evidence]) -> Figure | Missing:
    """Figure 6: the speedups of all models on one axis: who loves batching, and who shrugs."""
    title = "Some models love batching, some shrug"
    known = [each for each in all_evidence if each.fit]
    if not known:
        return missing("regimes", title, next(iter(all_evidence), Evidence("MODEL")), "measure")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 4.4)
        axes = figure.add_subplot()
        _draw_regimes(axes, known, look)
        return figure

    said = "; ".join(f"{each.model}, {each.fit.server.regime}: {told_ceiling(each.fit.server)}" for each in known if each.fit)
    measured = known[0].measured
    assert measured
    end = provenance(measured.machine, measured.versions, known[0].written_unix_s(measured))
    hover = tuple(
        Point(float(p.batch_size), p.speedup, f"{each.model}, B = {p.batch_size}: {p.speedup:.2f} times")
        for each in known
        for p in speedups(each)
    )
    alt = f"Measured speedup against batch size for {len(known)} models. {said}."
    return Figure("regimes", title, alt, f"Points measured, lines S(B) where T(B) is a line. {end}", draw, hover)


def _draw_regimes(axes: Any, known: Sequence[Evidence], look: Look) -> None:
    ends = []
    for number, each in enumerate(known):
        assert each.fit
        line, points, colour = each.fit.server, speedups(each), look.series(number)
        sizes, style = [p.batch_size for p in points], {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 6}
        axes.plot(sizes, [p.speedup for p in points], linestyle="none" if line.linear else "-", linewidth=1, gid=each.model, **style)
        if line.linear:
            fine = np.geomspace(1, sizes[-1], 100)
            axes.plot(fine, [line.speedup(size) for size in fine], color=colour, linewidth=1.4)
        ends.append((points[-1].speedup, sizes[-1], f" {each.model}\n {line.regime}\n {told_ceiling(line)}", colour))
    top = max(end[0] for end in ends)
    for y, (_, x, words, colour) in zip(apart([end[0] for end in ends], 0.19 * top), ends, strict=True):
        axes.text(x * 1.04, y, words, va="center", color=colour, fontsize=look.small)
    largest = max(end[1] for end in ends)
    ticks = sorted({row.batch_size for each in known if each.fit for row in each.fit.server.table})
    _speedup_axes(axes, ticks, largest * 3.6, top * 1.05)


def told_ceiling(line: CostLine) -> str:
    """The ceiling in words, or that there is none."""
    return f"ceiling {line.ceiling:.2f}" if line.ceiling else f"no ceiling: {BEND}"
