"""Figures 1 to 4: one prediction as a bar, many of them one by one and as one batch, and the ratio of both.

Each is a pure function of a measurement. Where T(B) is no line, c and m have no place in a picture: bars are drawn as they were
measured, in one colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchline.cost import CostLine
from batchline.fit import Fit
from batchline.measured import SERVER
from batchline.report.captions import short
from batchline.report.data import Evidence, missing
from batchline.report.style import Canvas, Figure, Look, Missing, Point, bare, canvas, provenance

TYPICAL = 8  # the batch that bars are drawn with, or the measured size that is nearest
MOST_BLOCKS = 16  # of one bar that are drawn apart
APART = 2.4  # of two bars in one picture: labels have room between them
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


def prediction(evidence: Evidence) -> Figure | Missing:
    """Figure 1: one prediction as a bar, the fixed c and the work m of one request."""
    title = "One prediction is a bar of time"
    bars = bars_of(evidence)
    if bars is None:
        return missing("prediction", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        time_axis(axes, 1.12 * max(bars.one_ms, bars.line.batch_ms(1)), (-0.75, 0.75))
        draw_batch(axes, bars, 1, 0.0, look)
        measured_mark(axes, bars.one_ms, 0.0, look)
        return figure

    parts = _parts(bars.line, 1)
    alt = f"A bar of {short(bars.one_ms)} ms, one request to {evidence.model}: {parts}."
    return Figure("prediction", title, alt, caption_of(evidence, bars), draw, bar_points(bars, ((1, 0.0, bars.one_ms),)))


def serial(evidence: Evidence) -> Figure | Missing:
    """Figure 2: B requests one by one, each with a c of its own."""
    title = "One by one, everybody pays the fixed cost"
    bars = bars_of(evidence)
    if bars is None:
        return missing("serial", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        time_axis(axes, 1.12 * bars.serial_ms, (-0.75, 0.75))
        draw_serial(axes, bars, 0.0, look)
        measured_mark(axes, bars.serial_ms, 0.0, look)
        return figure

    alt = (
        f"{bars.batch_size} bars end to end, {bars.batch_size} requests to {evidence.model} one after another: {short(bars.serial_ms)} ms."
    )
    return Figure("serial", title, alt, caption_of(evidence, bars), draw, bar_points(bars, ((1, 0.0, bars.serial_ms),)))


def batch(evidence: Evidence) -> Figure | Missing:
    """Figure 3: the same B requests as one batch, c paid once."""
    title = "One batch pays it once"
    bars = bars_of(evidence)
    if bars is None:
        return missing("batch", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 2.0)
        axes = figure.add_subplot()
        time_axis(axes, 1.12 * bars.serial_ms, (-0.75, 0.75))
        draw_batch(axes, bars, bars.batch_size, 0.0, look)
        measured_mark(axes, bars.batch_ms, 0.0, look)
        return figure

    parts, size = _parts(bars.line, bars.batch_size), bars.batch_size
    alt = f"One bar, a batch of {size} requests to {evidence.model}, {short(bars.batch_ms)} ms: {parts}."
    caption = f"{caption_of(evidence, bars)} The axis is that of the bars one by one."
    return Figure("batch", title, alt, caption, draw, bar_points(bars, ((bars.batch_size, 0.0, bars.batch_ms),)))


def both(evidence: Evidence) -> Figure | Missing:
    """Figure 4: both bars from one edge; the speedup is the ratio of their lengths."""
    bars = bars_of(evidence)
    if bars is None:
        title = "The ratio of two bars is the speedup"
        return missing("both", title, evidence, "measure", evidence.unfit if evidence.measured else "")

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 7.5, 3.7)
        axes = figure.add_subplot()
        time_axis(axes, 1.12 * bars.serial_ms, (-1.0, APART + 0.8))
        draw_serial(axes, bars, APART, look)
        draw_batch(axes, bars, bars.batch_size, 0.0, look)
        for y, ms in ((APART, bars.serial_ms), (0.0, bars.batch_ms)):
            measured_mark(axes, ms, y, look)
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
    return Figure("both", title, alt, caption_of(evidence, bars), draw, bar_points(bars, rows))


def draw_serial(axes: Any, bars: Bars, y: float, look: Look) -> None:
    """B batches of one, end to end, the first with its words."""
    each = bars.line.batch_ms(1)
    for number in range(min(bars.batch_size, MOST_BLOCKS)):
        draw_batch(axes, bars, 1, y, look, number * each, words=number == 0)
    if bars.batch_size > MOST_BLOCKS:
        axes.text(MOST_BLOCKS * each, y, f" .. {bars.batch_size} of them", va="center", color=look.muted)


def draw_batch(axes: Any, bars: Bars, size: int, y: float, look: Look, start: float = 0.0, words: bool = True) -> None:
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


def measured_mark(axes: Any, ms: float, y: float, look: Look) -> None:
    """An upright line where a bar ended when it was measured."""
    axes.plot([ms, ms], [y - 0.6, y + 0.6], color=look.colour("measured"), linewidth=2, gid="measured", solid_capstyle="butt")
    axes.text(ms, y + 0.62, f"measured {short(ms)} ms", ha="right", va="bottom", color=look.colour("measured"))


def time_axis(axes: Any, most: float, span: tuple[float, float]) -> None:
    """Milliseconds from 0 to `most` along the bottom, and nothing else; `span`: the lowest and highest bar's edge."""
    bare(axes, "bottom")
    axes.set_xlim(0, most)
    axes.set_ylim(span[0] - 0.5, span[1] + 0.2)
    axes.set_xlabel("milliseconds")


def _parts(line: CostLine, size: int) -> str:
    if not line.linear:
        return f"c and m cannot be told apart, {BEND}"
    return f"{short(line.c_ms)} ms fixed overhead c and {size} times {short(line.m_ms)} ms of work m"


def bar_points(bars: Bars, rows: Sequence[tuple[int, float, float]]) -> tuple[Point, ...]:
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


def caption_of(evidence: Evidence, bars: Bars) -> str:
    """What a figure of this measurement says under it: model, threads, number of batches, machine and versions."""
    measured = evidence.measured
    assert measured
    count = sum(batch.place == SERVER and not batch.warm_up for batch in measured.batches)
    why = "" if bars.line.linear else f" T(B) is no line here, so c and m are not drawn: {BEND}."
    end = provenance(
        measured.machine, measured.versions, evidence.written_unix_s(measured), f"{count} batches on TorchServe, seed {measured.plan.seed}"
    )
    return f"{evidence.model}, {measured.plan.threads} thread a worker; upright marks are measured medians.{why} {end}"
