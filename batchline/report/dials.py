"""Figures 8 and 9: the two dials, batch size and workers, and the whole journey of a batch on one canvas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from batchline.fit import Fit
from batchline.report.batching import APART, bar_points, bars_of, caption_of, draw_batch, draw_serial, measured_mark, time_axis
from batchline.report.captions import short
from batchline.report.data import Evidence, missing
from batchline.report.speedups import draw_speedup, speedups, told_ceiling
from batchline.report.style import Canvas, Figure, Look, Missing, Point, bare, canvas
from batchline.scaling import Curve


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
    return Figure("dials", title, alt, f"{caption_of(evidence, bars)} {how}", draw, tuple(hover))


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
    wait_ms, points, line = _wait_ms(evidence), speedups(evidence), evidence.fit.server

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 10.0, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        start = wait_ms or 0.0
        time_axis(left, 1.12 * max(bars.serial_ms, start + bars.batch_ms), (-1.2, APART + 0.8))
        draw_serial(left, bars, APART, look)
        measured_mark(left, bars.serial_ms, APART, look)
        if wait_ms:
            left.barh(0.0, wait_ms, 1.0, 0.0, color=look.colour("w"), gid="w", edgecolor=look.paper, linewidth=0.8)
            left.text(0.0, 0.55, f"$w$ = {short(wait_ms)} ms", ha="left", va="bottom", color=look.text)
        draw_batch(left, bars, bars.batch_size, 0.0, look, start)
        left.set_yticks([APART, 0.0], [f"{bars.batch_size} one\nby one", f"one batch\nof {bars.batch_size}"])
        left.tick_params(axis="y", length=0)
        draw_speedup(right, line, points, look)
        return figure

    waits = f" after a wait of {short(wait_ms)} ms" if wait_ms else ""
    alt = (
        f"{evidence.model}: {bars.batch_size} requests one by one take {short(bars.serial_ms)} ms, "
        f"as one batch {short(bars.batch_ms)} ms{waits}; "
        f"beside it the speedup against batch size, {told_ceiling(line)}."
    )
    note = "" if wait_ms else " The wait w is not drawn: no request's stages were given (`batchline stages`)."
    hover = tuple(Point(float(p.batch_size), p.speedup, f"B = {p.batch_size}: {p.speedup:.2f} times", 1) for p in points)
    return Figure(
        "batching-summary",
        title,
        alt,
        f"{caption_of(evidence, bars)}{note}",
        draw,
        (*bar_points(bars, ((1, APART, bars.serial_ms),)), *hover),
    )


def _wait_ms(evidence: Evidence) -> float | None:
    """The wait w of a request, from its newest journey."""
    for staged in reversed(evidence.staged):
        for part in staged.journey.parts:
            if part.name == "wait" and part.ms > 0:
                return part.ms
    return None
