"""Figure 17: latency against offered load, each setting measured and simulated, with the target.

A pure function of measured files; the lines are the simulator's on what a batch was measured to cost, to which nothing of the points
was fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchline.queueing import Service, Setting
from batchline.report.captions import served
from batchline.report.curves import CurvePoint, along, service_of
from batchline.report.data import Evidence, missing, where_measured
from batchline.report.style import Canvas, Figure, Look, Missing, Point, apart, bar_around, canvas, draw_dots
from batchline.swept import Candidate, Sweep, largest_kept, points
from batchline.swept import Point as Rate

CURVE_POINTS = 40
REFUSED = 0.01  # of the requests: fewer are not written beside a point
NAMED = ("default", "tuned")
TARGETS_SHOWN = 8.0
LABELS_APART = 0.04  # of the axis
NAMED_QUEUE = 0.1  # of the axis' length
WIDE = 8.0  # inches


@dataclass(frozen=True)
class Swept:
    """One candidate as drawn: its measured points, and the simulated curve where there is a measurement to simulate from."""

    candidate: Candidate
    number: int
    found: list[Rate]
    curve: list[CurvePoint]

    def colour(self, look: Look) -> str:
        """Grey for the default, blue for the tuned, others in their order."""
        name = self.candidate.name
        return look.colour(name) if name in NAMED else look.series(self.number + 1)

    def ink(self, look: Look) -> str:
        """The same for words, which must be read: the default's grey is too pale for them."""
        return look.muted if self.candidate.name == "default" else self.colour(look)


def load(evidence: Evidence) -> Figure | Missing:
    """Figure 17: latency against offered load up to and past saturation, each setting, with the target: where a queue appears."""
    sweep = evidence.sweep
    title = _headline(sweep)
    if sweep is None:
        return missing("load", title, evidence, "sweep")
    service = service_of(evidence.measured)
    drawn = [_swept(sweep, number, service) for number, each in enumerate(sweep.plan.candidates) if points(sweep, each.name)]
    if not drawn:
        return missing("load", title, evidence, "sweep", "no request of it was answered")
    alone_ms = evidence.fit.request_ms if evidence.fit else None

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDE, 4.7)
        _draw_load(figure.add_subplot(), sweep, drawn, alone_ms, look)
        return figure

    said = " ".join(f"{each.candidate.name}: {', '.join(f'{p.p99_ms:.0f} ms at {p.rate_per_s:g}' for p in each.found)}." for each in drawn)
    alt = f"99th percentile of latency of {evidence.model} against offered requests a second. {said}"
    hover = tuple(Point(point.rate_per_s, point.p99_ms, _rate_words(point)) for each in drawn for point in each.found)
    return Figure("load", title, alt, _load_caption(evidence, sweep, drawn), draw, hover)


def _swept(sweep: Sweep, number: int, service: Service | None) -> Swept:
    candidate = sweep.plan.candidates[number]
    found = points(sweep, candidate.name)
    if service is None or candidate.batch_size > len(service.batch_ms):
        return Swept(candidate, number, found, [])
    rates = np.linspace(0.02, 1.03, CURVE_POINTS) * found[-1].rate_per_s
    setting = Setting(candidate.batch_size, candidate.max_batch_delay_ms, candidate.workers, sweep.plan.threads, sweep.plan.queue_limit)
    return Swept(candidate, number, found, along(service, setting, [float(rate) for rate in rates]))


def _draw_load(axes: Any, sweep: Sweep, drawn: Sequence[Swept], alone_ms: float | None, look: Look) -> None:
    target = sweep.plan.target_p99_ms
    right = 1.1 * max(point.rate_per_s for each in drawn for point in each.found)
    top = _top_ms(drawn, target)
    if alone_ms is not None:
        _draw_queue(axes, drawn[0], alone_ms, top, look)
        axes.axhline(alone_ms, color=look.muted, linewidth=0.8, linestyle=":", gid="alone")
    for row, each in enumerate(reversed(drawn)):
        _draw_candidate(axes, each, top, look)
        _draw_name(axes, each, sweep, row, look)
    _draw_ends(axes, drawn[-1], alone_ms, top, look)
    if target is not None:
        axes.axhline(target, color=look.colour("target"), linewidth=1.4, linestyle="--", gid="target")
        axes.text(0.012 * right, target + 0.01 * top, f"target: p99 within {target:g} ms", va="bottom", color=look.colour("target"))
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.set_xlabel("offered load, requests a second")
    axes.set_ylabel("latency, ms")


def _top_ms(drawn: Sequence[Swept], target: float | None) -> float:
    """Where the axis ends: above everything, but no further than so many targets; what is beyond has an arrow and its number."""
    highs = [point.p99_interval_ms[1] if point.p99_interval_ms else point.p99_ms for each in drawn for point in each.found]
    curves = [point.p99_ms for each in drawn for point in each.curve]
    top = 1.08 * max(*highs, *curves, 1.3 * (target or 0.0))
    return min(top, TARGETS_SHOWN * target) if target else top


def _draw_candidate(axes: Any, each: Swept, top: float, look: Look) -> None:
    colour, name = each.colour(look), each.candidate.name
    if each.curve:
        rates = [point.rate_per_s for point in each.curve]
        axes.plot(rates, [point.p99_ms for point in each.curve], color=colour, linewidth=1.6, gid=f"{name} p99 simulated")
        dashed = (0, (4, 2))
        axes.plot(rates, [point.p50_ms for point in each.curve], color=colour, linewidth=1.0, linestyle=dashed, gid=f"{name} p50 simulated")
    for point in each.found:
        axes.plot([point.rate_per_s] * len(point.visits_p99_ms), point.visits_p99_ms, ".", color=colour, markersize=3, alpha=0.5)
    rates, p99 = [point.rate_per_s for point in each.found], [point.p99_ms for point in each.found]
    around = np.array([bar_around(point.p99_ms, point.p99_interval_ms) for point in each.found]).T
    draw_dots(axes, rates, p99, around, colour, f"{name} p99")
    axes.plot(rates, [point.p50_ms for point in each.found], "o", color=colour, markerfacecolor=look.paper, markersize=4, gid=f"{name} p50")
    crossed = [(point.rate_per_s, point.p99_ms) for point in each.found if point.invalid]
    axes.plot([x for x, _ in crossed], [y for _, y in crossed], "x", color=look.paper, markersize=4.5, gid=f"{name} invalid", zorder=4)
    for point in each.found:
        _draw_note(axes, point, top, each.ink(look), look)


def _draw_ends(axes: Any, each: Swept, alone_ms: float | None, top: float, look: Look) -> None:
    """What the lines are, beside the right edge: the last setting's quantiles and a request alone, pushed apart where they meet."""
    ends = [] if alone_ms is None else [(alone_ms, f"alone {alone_ms:.1f} ms", look.muted)]
    if each.curve and each.curve[-1].p99_ms < top:
        ends += [(each.curve[-1].p50_ms, "p50", each.ink(look)), (each.curve[-1].p99_ms, "p99", each.ink(look))]
    beside = {"xycoords": ("axes fraction", "data"), "textcoords": ("axes fraction", "data"), "va": "center", "fontsize": look.small}
    for y, (ms, words, colour) in zip(apart([ms for ms, _, _ in ends], LABELS_APART * top), ends, strict=True):
        tie = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(words, (1, ms), xytext=(1.02, y), color=colour, arrowprops=tie, **beside)


def _draw_note(axes: Any, point: Rate, top: float, colour: str, look: Look) -> None:
    """What share was refused, and an arrow with the number where the point is beyond the axis."""
    said = [f"{point.refused_share:.0%} refused"] if point.refused_share > REFUSED else []
    y = min(point.p99_ms, 0.975 * top)
    if point.p99_ms > top:
        said.insert(0, f"{point.p99_ms:.0f} ms")
        axes.plot(point.rate_per_s, y, "^", color=colour, markersize=6)
    place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "ha": "left"}
    axes.annotate("\n".join(said), (point.rate_per_s, y), color=colour, fontsize=look.small - 1.5, annotation_clip=False, **place)


def _draw_name(axes: Any, each: Swept, sweep: Sweep, row: int, look: Look) -> None:
    """The setting in words, a line above the axes, and a foot under the highest rate that kept the target."""
    colour, target = each.ink(look), sweep.plan.target_p99_ms
    kept = None if target is None else largest_kept(sweep, each.candidate.name, target)
    carried = f"; within the target up to {kept.rate_per_s:g} a second" if kept else "" if target is None else "; never within the target"
    axes.annotate(
        f"● {_settings(each.candidate)}{carried}",
        (0, 1),
        (0, 6 + 14 * row),
        xycoords="axes fraction",
        textcoords="offset points",
        color=colour,
    )
    if kept and target is not None:
        axes.plot([kept.rate_per_s] * 2, [0, target], color=colour, linewidth=1.0, linestyle=":", gid=f"{each.candidate.name} kept")


def _draw_queue(axes: Any, each: Swept, alone_ms: float, top: float, look: Look) -> None:
    """The first setting's queue: how far its median is above a request that is alone; named where it is seen."""
    source: Sequence[CurvePoint | Rate] = each.curve or each.found
    rates, above = [point.rate_per_s for point in source], [min(max(point.p50_ms, alone_ms), top) for point in source]
    axes.fill_between(rates, alone_ms, above, color=look.colour("wait"), alpha=0.2, linewidth=0)
    if above[-1] - alone_ms > NAMED_QUEUE * top:
        at = {"ha": "left", "va": "center", "color": look.colour("wait"), "fontsize": 13}
        axes.text(rates[-1], alone_ms + (above[-1] - alone_ms) * 0.5, r" $T_{\mathrm{queue}}$", **at)


def _headline(sweep: Sweep | None) -> str:
    if sweep and sweep.plan.target_p99_ms and len(sweep.plan.candidates) > 1:
        ends = (sweep.plan.candidates[0], sweep.plan.candidates[-1])
        first, last = (largest_kept(sweep, candidate.name, sweep.plan.target_p99_ms) for candidate in ends)
        if first and last and last.rate_per_s > first.rate_per_s:
            return f"{last.rate_per_s / first.rate_per_s:.1f} times the load within {sweep.plan.target_p99_ms:g} ms"
    return "Latency grows with load, and a queue appears"


def _settings(candidate: Candidate) -> str:
    return f"{candidate.name}: {served(candidate.batch_size, candidate.max_batch_delay_ms, candidate.workers)}"


def _load_caption(evidence: Evidence, sweep: Sweep, drawn: Sequence[Swept]) -> str:
    count = sum(point.requests for each in drawn for point in each.found)
    run = f"{sweep.model}: Poisson arrivals, {count} requests, seed {sweep.plan.seed}, settings in turn"
    dots = "Points: measured, p99 full with its 95% interval from order statistics, p50 hollow; a small dot is one visit's p99."
    alike = "Lines: simulated from what a batch was measured to cost, nothing fitted to the points; p99 full, p50 dashed. "
    lines = alike if any(each.curve for each in drawn) else "No simulated lines: they want the model's run.json as well. "
    refused = f"Refused: answered 503, {sweep.plan.queue_limit} requests wait already; latencies are of the answered."
    bad = sum(bool(step.invalid) for step in sweep.steps)
    doubts = (
        f" INVALID: in {bad} of {len(sweep.steps)} steps the generator was late or short of CPU; points with such steps are crossed."
        if bad
        else ""
    )
    return f"{run}. {dots} {lines}{refused}{doubts} {where_measured(evidence, sweep)}"


def _rate_words(point: Rate) -> str:
    interval = f" ({point.p99_interval_ms[0]:.1f} to {point.p99_interval_ms[1]:.1f})" if point.p99_interval_ms else ""
    refused = f", {point.refused_share:.1%} refused" if point.refused_share else ""
    return f"{point.candidate} at {point.rate_per_s:g} requests/s: p50 {point.p50_ms:.1f} ms, p99 {point.p99_ms:.1f} ms{interval}{refused}"
