"""Figures 1 to 6, 8 and 9: one prediction as a bar, many of them one by one and as one batch, the speedup, its ceiling, and the two dials.

Each is a pure function of a measurement. Where T(B) is no line, c and m have no place in a picture: bars are drawn as they were
measured, in one colour, and no ceiling is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from batchline.cost import CostLine
from batchline.fit import Fit
from batchline.measured import SERVER
from batchline.report.captions import short
from batchline.report.data import Evidence, missing
from batchline.report.style import MARKERS, Canvas, Figure, Look, Missing, Point, apart, bare, canvas, provenance
from batchline.scaling import Curve

TYPICAL = 8  # the batch that bars are drawn with, or the measured size that is nearest
MOST_BLOCKS = 16  # of one bar that are drawn apart
APART = 2.4  # of two bars in one picture: labels have room between them
LOOK_FAR = 4  # times the largest measured batch that the curve is drawn to
BEND = "the line does not fit"


@dataclass(frozen=True)
class Bars:
    """What figures 1 to 4 draw. Milliseconds.

    Attributes:
        line: c and m, or the table.
        batch_size: B of the batch.
        one_ms, batch_ms: T(1) and T(B), measured medians.
    """

    fit: Fit
    batch_size: int
    one_ms: float
    batch_ms: float

    @property
    def line(self) -> CostLine:
        """The server's."""
        return self.fit.server

    @property
    def serial_ms(self) -> float:
        """B requests one after another."""
        return self.batch_size * self.one_ms

    @property
    def speedup(self) -> float:
        """S(B), measured."""
        return self.serial_ms / self.batch_ms


def bars_of(evidence: Evidence) -> Bars | None:
    """The bars of a measurement; None where there is none to be fitted."""
    if evidence.fit is None:
        return None
    table = evidence.fit.server.table
    row = min(table[1:], key=lambda row: (abs(np.log(row.batch_size / TYPICAL)), row.batch_size))
    return Bars(evidence.fit, row.batch_size, table[0].batch_ms, row.batch_ms)


# ---- 1 to 4: bars


def prediction(evidence: Evidence) -> Figure | Missing:
    """Figure 1: one prediction as a bar, the fixed c and the work m of one request."""
    title = "One prediction is a bar of time"
    bars = bars_of(evidence)
    if bars is None:
        return missing("prediction", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        _time(axes, 1.12 * max(bars.one_ms, bars.line.batch_ms(1)), (-0.75, 0.75))
        _draw_batch(axes, bars, 1, 0.0, look)
        _measured_mark(axes, bars.one_ms, 0.0, look)
        return figure

    parts = _parts(bars.line, 1)
    alt = f"A bar of {short(bars.one_ms)} ms, one request to {evidence.model}: {parts}."
    return Figure("prediction", title, alt, _caption(evidence, bars), draw, _bar_points(bars, ((1, 0.0, bars.one_ms),)))


def serial(evidence: Evidence) -> Figure | Missing:
    """Figure 2: B requests one by one, each with a c of its own."""
    title = "One by one, everybody pays the fixed cost"
    bars = bars_of(evidence)
    if bars is None:
        return missing("serial", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        _time(axes, 1.12 * bars.serial_ms, (-0.75, 0.75))
        _draw_serial(axes, bars, 0.0, look)
        _measured_mark(axes, bars.serial_ms, 0.0, look)
        return figure

    alt = (
        f"{bars.batch_size} bars end to end, {bars.batch_size} requests to {evidence.model} one after another: {short(bars.serial_ms)} ms."
    )
    return Figure("serial", title, alt, _caption(evidence, bars), draw, _bar_points(bars, ((1, 0.0, bars.serial_ms),)))


def batch(evidence: Evidence) -> Figure | Missing:
    """Figure 3: the same B requests as one batch, c paid once."""
    title = "One batch pays it once"
    bars = bars_of(evidence)
    if bars is None:
        return missing("batch", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        _time(axes, 1.12 * bars.serial_ms, (-0.75, 0.75))
        _draw_batch(axes, bars, bars.batch_size, 0.0, look)
        _measured_mark(axes, bars.batch_ms, 0.0, look)
        return figure

    parts, size = _parts(bars.line, bars.batch_size), bars.batch_size
    alt = f"One bar, a batch of {size} requests to {evidence.model}, {short(bars.batch_ms)} ms: {parts}."
    caption = f"{_caption(evidence, bars)} The axis is that of the bars one by one."
    return Figure("batch", title, alt, caption, draw, _bar_points(bars, ((bars.batch_size, 0.0, bars.batch_ms),)))


def both(evidence: Evidence) -> Figure | Missing:
    """Figure 4: both bars from one edge; the speedup is the ratio of their lengths."""
    bars = bars_of(evidence)
    if bars is None:
        title = "The ratio of two bars is the speedup"
        return missing("both", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 3.7)
        axes = figure.add_subplot()
        _time(axes, 1.12 * bars.serial_ms, (-1.0, APART + 0.8))
        _draw_serial(axes, bars, APART, look)
        _draw_batch(axes, bars, bars.batch_size, 0.0, look)
        for y, ms in ((APART, bars.serial_ms), (0.0, bars.batch_ms)):
            _measured_mark(axes, ms, y, look)
        words = rf"$S({bars.batch_size})$ = {short(bars.serial_ms)} / {short(bars.batch_ms)} = {bars.speedup:.2f}"
        axes.text(0.99, 0.02, words, transform=axes.transAxes, ha="right", va="bottom", fontsize=13, color=look.text, gid="speedup")
        axes.set_yticks([APART, 0.0], [f"{bars.batch_size} one\nby one", f"one batch\nof {bars.batch_size}"])
        axes.tick_params(axis="y", length=0)
        return figure

    alt = (
        f"Two bars from one edge: {bars.batch_size} requests to {evidence.model} one by one take {short(bars.serial_ms)} ms, as one batch "
        f"{short(bars.batch_ms)} ms: {bars.speedup:.2f} times as fast."
    )
    rows = ((1, APART, bars.serial_ms), (bars.batch_size, 0.0, bars.batch_ms))
    title = f"A batch of {bars.batch_size} is {bars.speedup:.1f} times as fast"
    return Figure("both", title, alt, _caption(evidence, bars), draw, _bar_points(bars, rows))


def _draw_serial(axes: Any, bars: Bars, y: float, look: Look) -> None:
    each = bars.line.batch_ms(1)
    for number in range(min(bars.batch_size, MOST_BLOCKS)):
        _draw_batch(axes, bars, 1, y, look, number * each, words=number == 0)
    if bars.batch_size > MOST_BLOCKS:
        axes.text(MOST_BLOCKS * each, y, f" .. {bars.batch_size} of them", va="center", color=look.muted)


def _draw_batch(axes: Any, bars: Bars, size: int, y: float, look: Look, start: float = 0.0, words: bool = True) -> None:
    """One batch as blocks: c, then an m for each request; one block where there is no line."""
    line, edge = bars.line, {"edgecolor": look.paper, "linewidth": 0.8}
    if not line.linear:
        ms = bars.one_ms if size == 1 else bars.batch_ms
        axes.barh(y, ms, 1.0, start, color=look.colour("m"), gid=f"T({size})", **edge)
        if words:
            label = f"$T({size})$ = {short(ms)} ms, in one piece: {BEND}"
            _label(axes, start, ms, y, label, "m", look)
        return
    axes.barh(y, line.c_ms, 1.0, start, color=look.colour("c"), gid="c", **edge)
    shown = min(size, MOST_BLOCKS)
    width = size * line.m_ms / shown
    for number in range(shown):
        axes.barh(y, width, 1.0, start + line.c_ms + number * width, color=look.colour("m"), gid="m", **edge)
    if words:
        _label(axes, start, line.c_ms, y, f"$c$, once a batch: {short(line.c_ms)} ms", "c", look)
        many = (
            f"${size}\\,m$, for {size} requests: {size} · {short(line.m_ms)} ms"
            if size > 1
            else f"$m$, for one request: {short(line.m_ms)} ms"
        )
        _label(axes, start + line.c_ms, size * line.m_ms, y, many, "m", look)


def _label(axes: Any, start: float, width: float, y: float, words: str, thing: str, look: Look) -> None:
    """Under its block, on the side with room. c is pointed at near its beginning, from lower than m: they never meet."""
    right = axes.get_xlim()[1]
    at, drop = (start + min(width / 2, 0.03 * right), -24) if thing == "c" else (start + width / 2, -8)
    side, corner = ("left", (0, 1)) if at < 0.7 * right else ("right", (1, 1))
    line = {"arrowstyle": "-", "color": look.colour(thing), "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0, "relpos": corner}
    place = {"xytext": (0, drop), "textcoords": "offset points", "ha": side, "va": "top"}
    axes.annotate(words, (at, y - 0.5), color=look.text, arrowprops=line, **place)


def _measured_mark(axes: Any, ms: float, y: float, look: Look) -> None:
    axes.plot([ms, ms], [y - 0.6, y + 0.6], color=look.colour("measured"), linewidth=2, gid="measured", solid_capstyle="butt")
    axes.text(ms, y + 0.62, f"measured {short(ms)} ms", ha="right", va="bottom", color=look.colour("measured"))


def _time(axes: Any, most: float, span: tuple[float, float]) -> None:
    bare(axes, "bottom")
    axes.set_xlim(0, most)
    axes.set_ylim(span[0] - 0.5, span[1] + 0.2)
    axes.set_xlabel("milliseconds")


def _parts(line: CostLine, size: int) -> str:
    if not line.linear:
        return f"c and m cannot be told apart, {BEND}"
    return f"{short(line.c_ms)} ms fixed overhead c and {size} times {short(line.m_ms)} ms of work m"


def _bar_points(bars: Bars, rows: Sequence[tuple[int, float, float]]) -> tuple[Point, ...]:
    """A pointer on each bar's two parts and its measured end."""
    found = []
    for size, y, measured_ms in rows:
        if bars.line.linear:
            c, m = bars.line.c_ms, bars.line.m_ms
            found.append(
                Point(c / 2, y, f"c: {c:.3f} ms ({bars.line.c_ms_interval[0]:.3f} to {bars.line.c_ms_interval[1]:.3f}), once a batch")
            )
            low, high = bars.line.m_ms_interval
            found.append(Point(c + size * m / 2, y, f"m: {m:.3f} ms ({low:.3f} to {high:.3f}) a request"))
        found.append(Point(measured_ms, y, f"measured: {measured_ms:.3f} ms"))
    return tuple(found)


def _caption(evidence: Evidence, bars: Bars) -> str:
    measured = evidence.measured
    assert measured
    count = sum(batch.place == SERVER and not batch.warm_up for batch in measured.batches)
    why = "" if bars.line.linear else f" T(B) is no line here, so c and m are not drawn: {BEND}."
    end = provenance(
        measured.machine, measured.versions, evidence.written_unix_s(measured), f"{count} batches on TorchServe, seed {measured.plan.seed}"
    )
    return f"{evidence.model}, {measured.plan.threads} thread a worker; upright marks are measured medians.{why} {end}"


# ---- 5, 6: speedup


def speedup(evidence: Evidence) -> Figure | Missing:
    """Figure 5: S against B, measured points with intervals, the line's curve and its ceiling where there is one."""
    if evidence.fit is None:
        title = "Speedup flattens against a ceiling"
        return missing("speedup", title, evidence, "measure", evidence.unfit if evidence.measured else "")
    fit, points = evidence.fit, _speedups(evidence)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.0, 4.2)
        axes = figure.add_subplot()
        _draw_speedup(axes, fit.server, points, look)
        return figure

    said = ", ".join(f"{point.speedup:.2f} at {point.batch_size}" for point in points)
    ceiling = f"ceiling 1 + c/m = {fit.server.ceiling:.2f}" if fit.server.ceiling else f"no ceiling: {BEND}"
    title = f"Batching wins up to {max(point.speedup for point in points):.1f} times here, {ceiling}"
    bars = bars_of(evidence)
    assert bars
    caption = f"{_caption(evidence, bars)} Bars: 95%, Student's t over {fit_rounds(evidence)} rounds."
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


def _speedups(evidence: Evidence) -> list[Speedup]:
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


def _draw_speedup(axes: Any, line: CostLine, points: Sequence[Speedup], look: Look) -> None:
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

    said = "; ".join(f"{each.model}, {each.fit.server.regime}: {_ceiling(each.fit.server)}" for each in known if each.fit)
    measured = known[0].measured
    assert measured
    end = provenance(measured.machine, measured.versions, known[0].written_unix_s(measured))
    hover = tuple(
        Point(float(p.batch_size), p.speedup, f"{each.model}, B = {p.batch_size}: {p.speedup:.2f} times")
        for each in known
        for p in _speedups(each)
    )
    alt = f"Measured speedup against batch size for {len(known)} models. {said}."
    return Figure("regimes", title, alt, f"Points measured, lines S(B) where T(B) is a line. {end}", draw, hover)


def _draw_regimes(axes: Any, known: Sequence[Evidence], look: Look) -> None:
    ends = []
    for number, each in enumerate(known):
        assert each.fit
        line, points, colour = each.fit.server, _speedups(each), look.series(number)
        sizes, style = [p.batch_size for p in points], {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 6}
        axes.plot(sizes, [p.speedup for p in points], linestyle="none" if line.linear else "-", linewidth=1, gid=each.model, **style)
        if line.linear:
            fine = np.geomspace(1, sizes[-1], 100)
            axes.plot(fine, [line.speedup(size) for size in fine], color=colour, linewidth=1.4)
        ends.append((points[-1].speedup, sizes[-1], f" {each.model}\n {line.regime}\n {_ceiling(line)}", colour))
    top = max(end[0] for end in ends)
    for y, (_, x, words, colour) in zip(apart([end[0] for end in ends], 0.19 * top), ends, strict=True):
        axes.text(x * 1.04, y, words, va="center", color=colour, fontsize=look.small)
    largest = max(end[1] for end in ends)
    ticks = sorted({row.batch_size for each in known if each.fit for row in each.fit.server.table})
    _speedup_axes(axes, ticks, largest * 3.6, top * 1.05)


def _ceiling(line: CostLine) -> str:
    return f"ceiling {line.ceiling:.2f}" if line.ceiling else f"no ceiling: {BEND}"


# ---- 8, 9: the dials, and all of it


def dials(evidence: Evidence) -> Figure | Missing:
    """Figure 8: throughput by batch size with one worker, and by workers at one batch size: N·B/T(B) beside what was measured."""
    title = "Two dials: wider batches, more workers"
    if evidence.fit is None or evidence.measured is None:
        return missing("dials", title, evidence, "measure", evidence.unfit if evidence.measured else "")
    fit, bars = evidence.fit, bars_of(evidence)
    assert bars
    scaled = fit.scaling.curve(evidence.measured.plan.threads) if fit.scaling else None
    rates = [(row.batch_size, row.batch_size / row.batch_ms * 1e3) for row in fit.server.table]
    tops = [*(per_s for _, per_s in rates), *(max(row.ideal_per_s, row.per_s_most) for row in (scaled.rows if scaled else ()))]

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 9.0, 3.8)
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_batch_dial(left, fit, rates, look)
        if scaled:
            _draw_worker_dial(right, scaled, look)
        else:
            bare(right)
            right.text(0.5, 0.5, "more workers than one\nwere not measured", transform=right.transAxes, ha="center", color=look.muted)
        left.set_ylim(0, 1.12 * max(tops))
        left.set_ylabel("requests a second")
        return figure

    by_size = ", ".join(f"{per_s:.4g} at B = {size}" for size, per_s in rates)
    by_workers = ", ".join(f"{row.per_s:.4g} with {row.workers}" for row in scaled.rows) if scaled else "not measured"
    alt = f"Requests a second of {evidence.model}. One worker by batch size: {by_size}. By workers: {by_workers}."
    how = f"Dashed: N·B/T(B), workers that do not disturb each other; points: measured on {fit.machine.cores} cores, with their spread."
    hover = [Point(float(size), per_s, f"N = 1, B = {size}: {per_s:.4g} requests/s") for size, per_s in rates]
    for row in scaled.rows if scaled else ():
        words = f"N = {row.workers}, B = {row.batch_size}: {row.per_s:.4g} requests/s measured, {row.efficiency:.0%} of {row.workers} alone"
        hover.append(Point(float(row.workers), row.per_s, words, 1))
    return Figure("dials", title, alt, f"{_caption(evidence, bars)} {how}", draw, tuple(hover))


def _draw_batch_dial(axes: Any, fit: Fit, rates: Sequence[tuple[int, float]], look: Look) -> None:
    sizes = [size for size, _ in rates]
    if fit.server.linear:
        fine = np.geomspace(sizes[0], sizes[-1], 100)
        theory = [size / fit.server.batch_ms(size) * 1e3 for size in fine]
        axes.plot(fine, theory, color=look.colour("theory"), linestyle="--", linewidth=1.4, gid="B / T(B)")
        words = r"$B\,/\,(c+Bm)$"
        axes.annotate(words, (fine[65], theory[65]), (8, -4), textcoords="offset points", va="top", color=look.colour("theory"))
    axes.plot(
        *zip(*rates, strict=True),
        "o",
        color=look.colour("measured"),
        linestyle="none" if fit.server.linear else "-",
        linewidth=1,
        gid="by batch size",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(0.9 * sizes[0], 1.12 * sizes[-1])
    axes.set_xlabel("batch size $B$ (logarithmic), one worker")


def _draw_worker_dial(axes: Any, scaled: Curve, look: Look) -> None:
    rows = scaled.rows
    counts, most = [row.workers for row in rows], rows[-1].workers
    ideal = [0.0, *(row.ideal_per_s for row in rows)]
    axes.plot([0, *counts], ideal, color=look.colour("theory"), linestyle="--", linewidth=1.4, gid="N B / T(B)")
    axes.annotate(r"$N\cdot B\,/\,T(B)$ ", (most, ideal[-1]), (-6, 0), textcoords="offset points", ha="right", color=look.colour("theory"))
    around = [[row.per_s - row.per_s_least for row in rows], [row.per_s_most - row.per_s for row in rows]]
    shown = axes.errorbar(
        counts, [row.per_s for row in rows], around, color=look.colour("measured"), marker="o", markersize=6, linestyle="none", capsize=3
    )
    shown.lines[0].set_gid("by workers")
    last = (most, rows[-1].per_s_least)
    axes.annotate("measured", last, (0, -6), textcoords="offset points", ha="center", va="top", color=look.colour("measured"))
    axes.set_xticks(counts if most <= 12 else counts[:: 1 + most // 12])
    axes.set_xlim(0, 1.15 * most)
    axes.set_xlabel(f"workers $N$, batch size {rows[0].batch_size}")


def summary(evidence: Evidence) -> Figure | Missing:
    """Figure 9: one by one, as a batch with its wait in front, and the speedup, on one canvas."""
    title = "The whole journey of a batch in one picture"
    bars = bars_of(evidence)
    if bars is None or evidence.fit is None:
        return missing("batching-summary", title, evidence, "measure", evidence.unfit if evidence.measured else "")
    wait_ms, points, line = _wait_ms(evidence), _speedups(evidence), evidence.fit.server

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 10.0, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        start = wait_ms or 0.0
        _time(left, 1.12 * max(bars.serial_ms, start + bars.batch_ms), (-1.2, APART + 0.8))
        _draw_serial(left, bars, APART, look)
        _measured_mark(left, bars.serial_ms, APART, look)
        if wait_ms:
            left.barh(0.0, wait_ms, 1.0, 0.0, color=look.colour("w"), gid="w", edgecolor=look.paper, linewidth=0.8)
            left.text(0.0, 0.55, f"$w$ = {short(wait_ms)} ms", ha="left", va="bottom", color=look.text)
        _draw_batch(left, bars, bars.batch_size, 0.0, look, start)
        left.set_yticks([APART, 0.0], [f"{bars.batch_size} one\nby one", f"one batch\nof {bars.batch_size}"])
        left.tick_params(axis="y", length=0)
        _draw_speedup(right, line, points, look)
        return figure

    waits = f" after a wait of {short(wait_ms)} ms" if wait_ms else ""
    alt = (
        f"{evidence.model}: {bars.batch_size} requests one by one take {short(bars.serial_ms)} ms, "
        f"as one batch {short(bars.batch_ms)} ms{waits}; "
        f"beside it the speedup against batch size, {_ceiling(line)}."
    )
    note = "" if wait_ms else " The wait w is not drawn: no request's stages were given (`batchline stages`)."
    hover = tuple(Point(float(p.batch_size), p.speedup, f"B = {p.batch_size}: {p.speedup:.2f} times", 1) for p in points)
    return Figure(
        "batching-summary",
        title,
        alt,
        f"{_caption(evidence, bars)}{note}",
        draw,
        (*_bar_points(bars, ((1, APART, bars.serial_ms),)), *hover),
    )


def _wait_ms(evidence: Evidence) -> float | None:
    """The wait w of a request, from its newest journey."""
    for staged in reversed(evidence.staged):
        for part in staged.journey.parts:
            if part.name == "wait" and part.ms > 0:
                return part.ms
    return None
