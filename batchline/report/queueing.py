"""Figure 7: where batches come from. Real arrivals of a real run, the timer, and the batches that left together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchline.report.captions import served, short
from batchline.report.data import Evidence, Loaded, missing
from batchline.report.lanes import Batch, batches
from batchline.report.style import Canvas, Figure, Look, Missing, Point, bare, canvas, provenance
from batchline.summary import summarise

SHOWN = 5  # batches
TITLE = "Requests gather, then leave together"


@dataclass(frozen=True)
class Sum:
    """A request in the mean of the run: w + (c + Bm) + the way back. Milliseconds."""

    wait_ms: float
    batch_ms: float
    back_ms: float

    @property
    def parts(self) -> tuple[tuple[str, str, str, float], ...]:
        """Name of the artist, colour, words, milliseconds."""
        return (
            ("sum w", "w", "$w$, it waits", self.wait_ms),
            ("sum batch", "m", "$c+Bm$, its batch runs", self.batch_ms),
            ("sum back", "front end", "front end, network", self.back_ms),
        )


@dataclass(frozen=True)
class Shown:
    """What is drawn.

    Attributes:
        rows: consecutive batches, first one first.
        timers: for each (when it began, when it would have ended), seconds; None where the file does not tell, or workers are several.
        limit: requests that fill a batch; None where the file does not tell.
        mean: over all requests of the run.
    """

    rows: tuple[Batch, ...]
    timers: tuple[tuple[float, float] | None, ...]
    limit: int | None
    mean: Sum

    def ms(self, moment_s: float) -> float:
        """A moment of the run on the axis."""
        return (moment_s - min(each.sent_s for each in self.rows)) * 1e3


def queue(evidence: Evidence) -> Figure | Missing:
    """Figure 7: arrivals as dots, the timer, and the batches that left together, a row a batch; under it a request's sum."""
    for loaded in reversed(evidence.loads):
        found = batches(loaded.records)
        if len(found) >= SHOWN and any(each.size > 1 for each in found):
            return _figure(evidence, loaded, _shown(loaded, found))
    why = "no run of load has batches of several requests, with the times that our handlers tell" if evidence.loads else ""
    return missing("queue", TITLE, evidence, "load", why)


def _shown(loaded: Loaded, found: Sequence[Batch]) -> Shown:
    settings = loaded.settings
    first = _telling(found, settings.batch_size if settings else None)
    rows = tuple(found[first : first + SHOWN])
    timers: list[tuple[float, float] | None] = [None] * SHOWN
    if settings and settings.max_batch_delay_ms and settings.workers == 1:
        for number, each in enumerate(rows):
            free_s = found[first + number - 1].end_s if first + number else 0.0
            begin_s = max(each.sent_s, free_s)
            timers[number] = (begin_s, begin_s + settings.max_batch_delay_ms / 1e3)
    return Shown(rows, tuple(timers), settings.batch_size if settings else None, _mean(found))


def _telling(found: Sequence[Batch], limit: int | None) -> int:
    """Where the stretch of consecutive batches begins that shows both ends of a wait, then most requests; of equals the first."""

    def tells(start: int) -> tuple[int, int, int]:
        sizes = [each.size for each in found[start : start + SHOWN]]
        return len({size == limit for size in sizes}), sum(sizes), -start

    return max(range(len(found) - SHOWN + 1), key=tells)


def _mean(found: Sequence[Batch]) -> Sum:
    each = [
        (batch.begin_s - record.sent_s, batch.end_s - batch.begin_s, record.done_s - batch.end_s)
        for batch in found
        for record in batch.records
    ]
    wait_s, batch_s, back_s = np.mean(each, axis=0)
    return Sum(float(wait_s) * 1e3, float(batch_s) * 1e3, float(back_s) * 1e3)


def _figure(evidence: Evidence, loaded: Loaded, shown: Shown) -> Figure:
    rows, ms = shown.rows, shown.ms

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 8.0, 5.6)
        above, below = figure.subplots(2, 1, height_ratios=(3.6, 1))
        _draw_rows(above, shown, look)
        _draw_sum(below, shown.mean, look)
        return figure

    said = "; ".join(f"{each.size} requests, {ms(each.begin_s):.2f} to {ms(each.end_s):.2f} ms" for each in rows)
    summed = " + ".join(f"{part_ms:.2f}" for *_, part_ms in shown.mean.parts)
    settings = served(loaded.settings.batch_size, loaded.settings.max_batch_delay_ms, loaded.settings.workers) if loaded.settings else ""
    rate = f"{loaded.offered_per_s:.4g} requests/s" if loaded.offered_per_s else "clients that wait for their answers"
    seed = [f"seed {loaded.seed}"] if loaded.seed is not None else []
    end = provenance(loaded.machine, loaded.versions, evidence.written_unix_s(loaded), f"{len(loaded.records)} requests in the run", *seed)
    invalid = "".join(f" INVALID: {reason}." for reason in summarise(loaded.run).invalid)
    timer = "The frame is the timer: maxBatchDelay from when the worker was free and a request there. " if any(shown.timers) else ""
    return Figure(
        "queue",
        TITLE,
        f"{len(rows)} batches of {evidence.model} one after another: {said}. Dots are requests as they were sent. "
        f"Under it a request's time in the mean: {summed} ms for w, its batch, and the way back.",
        f"{evidence.model}, {rate}{f', {settings}' if settings else ''}. A dot is a request when it was sent. {timer}w is from a send "
        f"until a worker had its batch, the way in included. Below: the mean of the run. {end}{invalid}",
        draw,
        tuple(_hover(each, row, ms) for row, each in enumerate(reversed(rows))),
    )


def _draw_rows(axes: Any, shown: Shown, look: Look) -> None:
    rows, ms = shown.rows, shown.ms
    for row, (each, timer) in enumerate(zip(reversed(rows), reversed(shown.timers), strict=True)):
        _draw_row(axes, each, row, ms, look)
        if timer:
            _draw_timer(axes, each, row, timer, shown, look)
    bare(axes, "bottom")
    axes.set_yticks(range(len(rows)), [f"batch of {each.size}" for each in reversed(rows)])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.1 * max([ms(each.done_s) for each in rows] + [ms(timer[1]) for timer in shown.timers if timer]))
    axes.set_ylim(-0.6, len(rows) - 0.1)
    axes.set_xlabel("milliseconds since the first of them was sent")
    place = {"transform": axes.transAxes, "va": "bottom", "fontsize": look.small}
    axes.text(0.0, 1.01, "● a request is sent", color=look.colour("measured"), **place)
    if any(shown.timers):
        axes.text(0.24, 1.01, "□ the timer, which ends with the delay or a full batch", color=look.muted, **place)


def _draw_row(axes: Any, each: Batch, row: int, ms: Callable[[float], float], look: Look) -> None:
    start, begin, end, done = ms(each.sent_s), ms(each.begin_s), ms(each.end_s), ms(each.done_s)
    axes.barh(row, begin - start, 0.22, start, color=look.colour("w"), linewidth=0, gid="w")
    axes.barh(row, end - begin, 0.54, begin, color=look.colour("m"), linewidth=0, gid="batch")
    axes.barh(row, done - end, 0.22, end, color=look.colour("front end"), linewidth=0, gid="back")
    sent = sorted(ms(record.sent_s) for record in each.records)
    axes.plot(sent, [row + 0.38] * len(sent), "o", color=look.colour("measured"), markersize=4.5, gid="arrivals", clip_on=False)


def _draw_timer(axes: Any, each: Batch, row: int, timer: tuple[float, float], shown: Shown, look: Look) -> None:
    begin, end = shown.ms(timer[0]), shown.ms(timer[1])
    axes.barh(row - 0.39, end - begin, 0.12, begin, color="none", edgecolor=look.muted, linewidth=0.8, gid="timer")
    axes.barh(row - 0.39, max(0.0, shown.ms(each.begin_s) - begin), 0.12, begin, color=look.muted, linewidth=0, gid="timer ran")
    ended = "full" if shown.limit == each.size else "delay over"
    axes.annotate(
        ended,
        (max(end, shown.ms(each.begin_s)), row - 0.39),
        (3, 0),
        textcoords="offset points",
        va="center",
        color=look.muted,
        fontsize=look.small,
    )


def _draw_sum(axes: Any, mean: Sum, look: Look) -> None:
    """The three pieces of one request, each with its words under it in a slot of its own."""
    total, at = sum(ms for *_, ms in mean.parts), 0.0
    for number, (gid, thing, words, ms) in enumerate(mean.parts):
        axes.barh(0, ms, 0.8, at, color=look.colour(thing), edgecolor=look.paper, linewidth=0.8, gid=gid)
        slot = (number + 0.5) / 3 * total
        axes.plot([at + ms / 2, slot], [-0.4, -0.75], color=look.muted, linewidth=0.8)
        axes.text(slot, -0.8, f"{words}: {short(ms)} ms", ha="center", va="top", color=look.text, fontsize=look.small)
        at += ms
    bare(axes)
    axes.set_xlim(0, 1.001 * total)
    axes.set_ylim(-1.3, 0.8)
    axes.set_title(f"one request in the mean: $L = w + (c + Bm) + t_{{net}}$ = {short(total)} ms", loc="left", fontsize=9.5)


def _hover(each: Batch, row: int, ms: Callable[[float], float]) -> Point:
    begin, end = ms(each.begin_s), ms(each.end_s)
    words = f"first waits {begin - ms(each.sent_s):.2f} ms, runs {end - begin:.2f} ms, back {ms(each.done_s) - end:.2f} ms"
    return Point((begin + end) / 2, row, f"batch of {each.size}: {words}")
