"""Figures 16, 17, 19 and 20: how many workers, what load, which setting, and whether the promise was kept.

Each is a pure function of measured files, with theory over the measurement: N·X(1), or the simulator on what a batch was measured to
cost, to which nothing of what it is held against was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchline.errors import BatchlineError
from batchline.load import RequestRecord
from batchline.measured import Measured
from batchline.queueing import Service, Setting
from batchline.report.captions import counted, served
from batchline.report.curves import Cell, CurvePoint, along, over
from batchline.report.data import Evidence, Kept, Planned, missing
from batchline.report.style import WIDTH, Canvas, Figure, Look, Missing, Point, apart, canvas, provenance
from batchline.scaling import Curve
from batchline.service import model_of
from batchline.swept import Candidate, Sweep, largest_kept, points
from batchline.swept import Point as Rate

CURVE_POINTS = 40
REFUSED = 0.01  # of the requests: fewer are not written beside a point
DELAYS_MS = (1, 2, 5, 10, 20, 50, 100)
QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
NAMED = ("default", "tuned")
TARGETS_SHOWN = 8.0
LABELS_APART = 0.04  # of the axis
NAMED_QUEUE = 0.1  # of the axis' length
WIDE = 8.0  # inches


# ---- 16: workers


def workers(evidence: Evidence) -> Figure | Missing:
    """Figure 16: throughput against workers, the ideal N·X(1) over it, what is lost between them shaded."""
    title = "More workers, until the cores are used up"
    measured, fit = evidence.measured, evidence.fit
    if measured is None:
        return missing("workers", title, evidence, "measure")
    if fit is None or fit.scaling is None:
        return missing("workers", title, evidence, "measure", evidence.unfit or "throughput was measured for no number of workers")
    curve, cores = fit.scaling.curve(1) or fit.scaling.curves[0], fit.scaling.cores

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 6.4, 3.9)
        _draw_workers(figure.add_subplot(), curve, cores, look)
        return figure

    rows = "; ".join(f"{counted(row.workers, 'worker')} {row.per_s:.4g} of {row.ideal_per_s:.4g}" for row in curve.rows)
    alt = f"Requests a second of {evidence.model} against workers, measured of ideal: {rows}. The gap is shaded: queueing and contention."
    how = f"batches of {curve.batch_size}, {counted(curve.threads, 'thread')} a worker, always enough requests waiting"
    note = f"Points: medians; bars: least and most of the runs. {fit.scaling.peak.note[0].upper()}{fit.scaling.peak.note[1:]}."
    caption = f"{evidence.model}: {how}. {note} {_place(evidence, measured)}"
    hover = tuple(
        Point(row.workers, row.per_s, f"{counted(row.workers, 'worker')}: {row.per_s:.4g} requests/s, {row.efficiency:.0%} of the ideal")
        for row in curve.rows
    )
    return Figure("workers", title, alt, caption, draw, hover)


def _draw_workers(axes: Any, curve: Curve, cores: int, look: Look) -> None:
    counts = np.array([0, *(row.workers for row in curve.rows)], dtype=float)
    measured = np.array([0.0, *(row.per_s for row in curve.rows)])
    ideal, most = counts * curve.rows[0].per_s, float(counts[-1])
    axes.fill_between(counts, np.minimum(measured, ideal), ideal, color=look.colour("wait"), alpha=0.25, linewidth=0)
    axes.plot(counts, ideal, color=look.colour("theory"), linewidth=1.6, linestyle="--", gid="ideal")
    axes.plot(counts, measured, color=look.colour("measured"), linewidth=1.2)
    around = [[row.per_s - row.per_s_least for row in curve.rows], [row.per_s_most - row.per_s for row in curve.rows]]
    _dots(axes, counts[1:], measured[1:], around, look.colour("measured"), "measured")
    axes.set_xlim(0, most * 1.3)
    axes.set_ylim(0, max(ideal[-1], max(row.per_s_most for row in curve.rows)) * 1.08)
    axes.text(most * 1.03, ideal[-1], "ideal, $N / T$", va="center", color=look.colour("theory"))
    if ideal[-1] > measured[-1] * 1.15:
        axes.text(most * 1.03, measured[-1], "measured", va="center", color=look.colour("measured"))
        axes.text(most * 1.03, (ideal[-1] + measured[-1]) / 2, "queueing /\ncontention", va="center", color=look.colour("wait"))
    if cores <= most:
        axes.axvline(cores, color=look.muted, linewidth=0.8, linestyle=":")
        axes.text(cores, axes.get_ylim()[1], f" {counted(cores, 'core')}", va="top", color=look.muted, fontsize=look.small)
    axes.set_xticks(counts if len(counts) < 12 else counts[:: len(counts) // 8])
    axes.set_xlabel("workers $N$")
    axes.set_ylabel("requests answered a second")


# ---- 17: load


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
    service = _service(evidence.measured)
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


def _service(measured: Measured | None) -> Service | None:
    """What a batch costs; None where the measurement does not say."""
    try:
        return model_of(measured).services[1] if measured else None
    except BatchlineError:
        return None


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
    around = np.array([_around(point.p99_ms, point.p99_interval_ms) for point in each.found]).T
    _dots(axes, rates, p99, around, colour, f"{name} p99")
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
    return f"{run}. {dots} {lines}{refused}{doubts} {_place(evidence, sweep)}"


def _rate_words(point: Rate) -> str:
    interval = f" ({point.p99_interval_ms[0]:.1f} to {point.p99_interval_ms[1]:.1f})" if point.p99_interval_ms else ""
    refused = f", {point.refused_share:.1%} refused" if point.refused_share else ""
    return f"{point.candidate} at {point.rate_per_s:g} requests/s: p50 {point.p50_ms:.1f} ms, p99 {point.p99_ms:.1f} ms{interval}{refused}"


# ---- 19: the map of settings


def settings_map(evidence: Evidence) -> Figure | Missing:
    """Figure 19: predicted p99 over batch size x delay at the plan's rate, what keeps the target outlined, the choice marked."""
    title = "Which settings keep the target, and which was chosen"
    plan, measured = evidence.plan, evidence.measured
    if plan is None:
        return missing("settings", title, evidence, "plan")
    rate_per_s = plan.rate_per_s or plan.max_rate_per_s
    service = _service(measured)
    if measured is None or service is None or not rate_per_s > 0:
        return missing("settings", title, evidence, "measure", "" if measured is None else "it does not say what a batch costs")
    cells = over(service, plan.workers, rate_per_s, _sizes(len(service.batch_ms), plan), _delays(plan))
    verified = [kept for kept in evidence.of(Kept) if _place_of(kept, plan, rate_per_s)]

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 4.2)
        _draw_map(figure.add_subplot(), cells, plan, verified, look)
        return figure

    good = [f"{cell.batch_size} with {cell.max_batch_delay_ms} ms" for cell in cells if _keeps(cell, plan)]
    alt = (
        f"A table of predicted p99 of {evidence.model}, batch sizes by delays. Within {plan.p99_ms:g} ms: {'; '.join(good) or 'none'}. "
        f"Chosen: {plan.batch_size} with {plan.max_batch_delay_ms} ms."
    )
    run = f"{evidence.model}: simulated p99 in ms at {rate_per_s:.4g} requests/s with {counted(plan.workers, 'worker')}, seed 1"
    checks = f" {counted(len(verified), 'verified point')} on it." if verified else " `batchline verify` puts a measured point on it."
    return Figure("settings", title, alt, f"{run}.{checks} {_place(evidence, measured)}", draw, _map_points(cells))


def _sizes(most: int, plan: Planned) -> list[int]:
    return sorted({plan.batch_size, *(1 << n for n in range(most.bit_length()) if 1 << n <= most)} & set(range(1, most + 1)))


def _delays(plan: Planned) -> list[int]:
    return sorted({*DELAYS_MS, plan.max_batch_delay_ms})


def _keeps(cell: Cell, plan: Planned) -> bool:
    return cell.p99_ms is not None and cell.p99_ms <= plan.p99_ms


def _place_of(kept: Kept, plan: Planned, rate_per_s: float) -> tuple[int, int] | None:
    """Where a verified setting is on the map; None where it is on another: other workers, or a rate that differs by more than 2%."""
    told = kept.settings or {}
    size, delay_ms, count = (told.get(name) for name in ("batch_size", "max_batch_delay_ms", "min_workers"))
    if size is None or delay_ms is None or count != plan.workers or abs(kept.rate_per_s / rate_per_s - 1) > 0.02:
        return None
    return size, delay_ms


def _draw_map(axes: Any, cells: Sequence[Cell], plan: Planned, verified: Sequence[Kept], look: Look) -> None:
    sizes, delays = sorted({cell.batch_size for cell in cells}), sorted({cell.max_batch_delay_ms for cell in cells})
    good = {(sizes.index(cell.batch_size), delays.index(cell.max_batch_delay_ms)) for cell in cells if _keeps(cell, plan)}
    for cell in cells:
        row, column = sizes.index(cell.batch_size), delays.index(cell.max_batch_delay_ms)
        colour, alpha = (look.colour("good"), 0.3) if (row, column) in good else (look.grid, 0.5)
        axes.fill_between([column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=colour, alpha=alpha, linewidth=0)
        words = "-" if cell.p99_ms is None else f"{cell.p99_ms:.3g}"
        axes.text(column, row, words, ha="center", va="center", color=look.text, gid=f"{cell.batch_size} {cell.max_batch_delay_ms}")
    for (x0, y0), (x1, y1) in _outline(good):
        axes.plot([x0, x1], [y0, y1], color=look.colour("good"), linewidth=2.2, solid_capstyle="round")
    _draw_choice(axes, plan, sizes, delays, look)
    for kept in verified:
        _draw_verified(axes, kept, sizes, delays, look)
    axes.set_xticks(range(len(delays)), delays)
    axes.set_yticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.5, len(delays) - 0.5)
    axes.set_ylim(-0.5, len(sizes) - 0.5)
    axes.set_xlabel("maxBatchDelay, ms")
    axes.set_ylabel("batchSize")
    told = "; ●: measured" if verified else ""
    words = f"predicted p99, ms; outlined: within {plan.p99_ms:g} ms; -: more arrives than it can do{told}"
    axes.set_title(words, fontsize=look.small, loc="left")


def _outline(good: set[tuple[int, int]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The edges between cells that are good and those that are not."""
    edges = []
    for row, column in good:
        for step_row, step_column in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if (row + step_row, column + step_column) not in good:
                x, y = column + step_column / 2, row + step_row / 2
                half = (0.0, 0.5) if step_column else (0.5, 0.0)
                edges.append(((x - half[0], y - half[1]), (x + half[0], y + half[1])))
    return edges


def _draw_choice(axes: Any, plan: Planned, sizes: list[int], delays: list[int], look: Look) -> None:
    if plan.batch_size not in sizes:
        return
    x, y = delays.index(plan.max_batch_delay_ms), sizes.index(plan.batch_size)
    ring = ([x - 0.42, x + 0.42, x + 0.42, x - 0.42, x - 0.42], [y - 0.4, y - 0.4, y + 0.4, y + 0.4, y - 0.4])
    axes.plot(*ring, color=look.colour("choice"), linewidth=2.2, gid="choice")
    axes.text(x, y - 0.27, "chosen", ha="center", va="center", color=look.colour("choice"), fontsize=look.small, fontweight="bold")


def _draw_verified(axes: Any, kept: Kept, sizes: list[int], delays: list[int], look: Look) -> None:
    told = kept.settings or {}
    size, delay_ms = told.get("batch_size"), told.get("max_batch_delay_ms")
    p99_ms = kept.seen.latency_ms.get("p99")
    if size in sizes and delay_ms in delays and p99_ms is not None:
        x, y = delays.index(delay_ms) + 0.39, sizes.index(size) + 0.25
        axes.text(x, y, f"● {p99_ms:.3g}", ha="right", va="center", color=look.text, fontsize=look.small - 1, gid="verified")


def _map_points(cells: Sequence[Cell]) -> tuple[Point, ...]:
    sizes, delays = sorted({cell.batch_size for cell in cells}), sorted({cell.max_batch_delay_ms for cell in cells})
    return tuple(
        Point(
            delays.index(cell.max_batch_delay_ms),
            sizes.index(cell.batch_size),
            f"batchSize {cell.batch_size}, maxBatchDelay {cell.max_batch_delay_ms} ms: "
            + (f"p99 {cell.p99_ms:.1f} ms" if cell.p99_ms is not None else "more arrives than it can do"),
        )
        for cell in cells
    )


# ---- 20: the promise


def promise(evidence: Evidence) -> Figure | Missing:
    """Figure 20: what was promised against what was kept, over the distribution of all latencies where they were kept in a file."""
    kept = evidence.kept
    title = "Promised against kept" if kept is None else f"The promise is {kept.outcome}"
    if kept is None:
        return missing("promise", title, evidence, "verify")
    if not kept.seen.latency_ms:
        return missing("promise", title, evidence, "verify", "no request was answered")
    records = _records(evidence, kept)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 3.9)
        _draw_promise(figure.add_subplot(), kept, records, look)
        return figure

    seen = kept.seen.latency_ms
    told = {name: getattr(kept.promised, name) for name in QUANTILES} if kept.promised else {}
    pairs = [f"{name[:3]} {seen[name[:3]]:.1f} ms" + _against(told.get(name)) for name in QUANTILES if name[:3] in seen]
    alt = f"Share of requests to {evidence.model} answered within a time. {'; '.join(pairs)}. Limit: {kept.limit_ms:g} ms."
    interval = (
        f", p99 between {kept.seen.p99_interval_ms[0]:.1f} and {kept.seen.p99_interval_ms[1]:.1f} ms (95%)"
        if kept.seen.p99_interval_ms
        else ""
    )
    run = (
        f"{evidence.model}: {kept.over} of {kept.requests} requests over {kept.limit_ms:g} ms at {kept.rate_per_s:.4g} requests/s{interval}"
    )
    why = "".join(f" {reason[0].upper()}{reason[1:]}." for reason in (*kept.invalid, kept.bounded) if reason)
    caption = f"{run}. {'Filled' if told else 'Dots'}: measured{'; hollow: promised' if told else ''}.{why}{_kept_place(evidence, kept)}"
    hover = tuple(
        Point(seen[name[:3]], _nines(share), f"measured {name[:3]}: {seen[name[:3]]:.1f} ms")
        for name, share in QUANTILES.items()
        if name[:3] in seen
    )
    return Figure("promise", title, alt, caption, draw, hover)


def _records(evidence: Evidence, kept: Kept) -> list[RequestRecord]:
    """The run that `verify -o` wrote: of as many requests as were counted; none where no such file was given."""
    return next((run.records for run in reversed(evidence.loads) if len(run.records) == kept.requests), [])


def _draw_promise(axes: Any, kept: Kept, records: Sequence[RequestRecord], look: Look) -> None:
    seen = kept.seen.latency_ms
    right = max(1.35 * max(value for name, value in seen.items() if name != "max"), 1.15 * kept.limit_ms)
    answered = np.sort([record.latency_ms for record in records if record.ok])
    if len(answered):
        share = np.arange(1, len(answered) + 1) / max(len(records), 1)
        axes.plot(
            answered,
            _nines(np.minimum(share, 0.9995)),
            color=look.colour("measured"),
            linewidth=1.6,
            drawstyle="steps-post",
            gid="measured",
        )
    measured = {name: seen[name[:3]] for name in QUANTILES if name[:3] in seen}
    axes.plot(
        list(measured.values()),
        [_nines(QUANTILES[name]) for name in measured],
        "o",
        color=look.colour("measured"),
        markersize=6,
        gid="quantiles",
    )
    if kept.promised:
        told = {name: ms for name in QUANTILES if (ms := getattr(kept.promised, name)) is not None}
        style = {"markerfacecolor": look.paper, "markersize": 8, "markeredgewidth": 1.8}
        axes.plot(
            list(told.values()),
            [_nines(QUANTILES[name]) for name in told],
            "D",
            color=look.colour("tuned"),
            gid="promised",
            zorder=2.5,
            **style,
        )
        _beside(axes, told, "promised", look.colour("tuned"), right=False)
    _beside(axes, measured, "measured", look.colour("measured"), right=True)
    axes.axvline(kept.limit_ms, color=look.colour("target"), linewidth=1.4, linestyle="--", gid="target")
    axes.text(kept.limit_ms, 0.06, f" limit {kept.limit_ms:g} ms", color=look.colour("target"), rotation=90, ha="right", va="bottom")
    axes.set_xlim(0, right)
    ticks = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999)
    axes.set_yticks([_nines(tick) for tick in ticks], ["0", "50%", "90%", "95%", "99%", "99.9%"])
    axes.set_ylim(0, _nines(0.9995))
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("requests answered within it")
    axes.grid(axis="y", linewidth=0.6)


def _beside(axes: Any, values: Mapping[str, float], word: str, colour: str, right: bool) -> None:
    """A label at the p99 point, the only one that a limit is about: the curve rises to the right, so right is below it and left above."""
    if "p99_ms" in values:
        place, offset = (values["p99_ms"], _nines(0.99)), (9, -6) if right else (-9, 7)
        words, side = f"{word} p99 {values['p99_ms']:.1f} ms", ("left", "top") if right else ("right", "bottom")
        axes.annotate(words, place, offset, textcoords="offset points", color=colour, ha=side[0], va=side[1])


def _nines(share: Any) -> Any:
    """Stretches the last percents: 90%, 99% and 99.9% are equally far from each other."""
    return -np.log10(1 - np.asarray(share, dtype=float))[()]


def _against(promised_ms: float | None) -> str:
    return "" if promised_ms is None else f" (promised {promised_ms:.1f})"


def _kept_place(evidence: Evidence, kept: Kept) -> str:
    """Where it was measured: verify's own output does not say, its records do."""
    run = next((run for run in reversed(evidence.loads) if len(run.records) == kept.requests), None)
    return f" {provenance(run.machine, run.versions, evidence.written_unix_s(run))}" if run else ""


# ---- what the figures share


def _dots(axes: Any, x: Any, y: Any, around: Any, colour: str, name: str) -> None:
    """Points with their bars; the points' gid is the name."""
    bars = axes.errorbar(x, y, around, color=colour, linestyle="none", marker="o", markersize=5.5, capsize=2.5, elinewidth=1)
    bars.lines[0].set_gid(name)


def _around(value: float, interval: tuple[float, float] | None) -> tuple[float, float]:
    return (max(0.0, value - interval[0]), max(0.0, interval[1] - value)) if interval else (0.0, 0.0)


def _place(evidence: Evidence, content: Measured | Sweep) -> str:
    return provenance(content.machine, content.versions, evidence.written_unix_s(content))
