"""Figures 16, 19 and 20: how many workers, which setting, and whether the promise was kept.

Each is a pure function of measured files, with theory over the measurement: N·X(1), or the simulator on what a batch was measured to
cost, to which nothing of what it is held against was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchline.load import RequestRecord
from batchline.report.captions import counted
from batchline.report.curves import Cell, over, service_of
from batchline.report.data import Evidence, Kept, Planned, missing, where_measured
from batchline.report.style import WIDTH, Canvas, Figure, Look, Missing, Point, canvas, draw_dots, provenance
from batchline.scaling import Curve

DELAYS_MS = (1, 2, 5, 10, 20, 50, 100)
QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
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
    caption = f"{evidence.model}: {how}. {note} {where_measured(evidence, measured)}"
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
    draw_dots(axes, counts[1:], measured[1:], around, look.colour("measured"), "measured")
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


# ---- 19: the map of settings


def settings_map(evidence: Evidence) -> Figure | Missing:
    """Figure 19: predicted p99 over batch size x delay at the plan's rate, what keeps the target outlined, the choice marked."""
    title = "Which settings keep the target, and which was chosen"
    plan, measured = evidence.plan, evidence.measured
    if plan is None:
        return missing("settings", title, evidence, "plan")
    rate_per_s = plan.rate_per_s or plan.max_rate_per_s
    service = service_of(measured)
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
    return Figure("settings", title, alt, f"{run}.{checks} {where_measured(evidence, measured)}", draw, _map_points(cells))


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
