"""Figure 7: where batches come from. Real arrivals of a real run, the timer, and the batches that left together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchline.report.captions import served
from batchline.report.data import Evidence, Loaded, missing
from batchline.report.lanes import Batch, batches
from batchline.report.style import Canvas, Figure, Look, Missing, Point, bare, canvas, provenance

SHOWN = 5  # batches
TITLE = "Requests gather, then leave together"


def queue(evidence: Evidence) -> Figure | Missing:
    """Figure 7: arrivals as dots, the wait w, the batch, and the way back, a row a batch."""
    for loaded in reversed(evidence.loads):
        found = batches(loaded.records)
        if len(found) >= SHOWN and any(each.size > 1 for each in found):
            return _figure(evidence, loaded, _fullest(found))
    why = "no run of load has batches of several requests, with the times that our handlers tell" if evidence.loads else ""
    return missing("queue", TITLE, evidence, "load", why)


def _fullest(found: Sequence[Batch]) -> list[Batch]:
    """The stretch of consecutive batches that holds the most requests a batch; of equals the first."""
    starts = range(len(found) - SHOWN + 1)
    best = max(starts, key=lambda start: (sum(each.size for each in found[start : start + SHOWN]), -start))
    return list(found[best : best + SHOWN])


def _figure(evidence: Evidence, loaded: Loaded, shown: Sequence[Batch]) -> Figure:
    zero_s = min(each.sent_s for each in shown)

    def ms(moment_s: float) -> float:
        return (moment_s - zero_s) * 1e3

    def draw(look: Look) -> Canvas:
        figure = canvas(look, 8.0, 1.4 + 0.75 * len(shown))
        axes = figure.add_subplot()
        for row, each in enumerate(reversed(shown)):
            _draw_row(axes, each, row, ms, look)
        axes.set_yticks(range(len(shown)), [f"batch of {each.size}" for each in reversed(shown)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.02 * max(ms(each.done_s) for each in shown))
        axes.set_ylim(-0.6, len(shown) - 0.1)
        axes.set_xlabel("milliseconds since the first of them was sent")
        _names(axes, look)
        return figure

    said = "; ".join(f"{each.size} requests, {ms(each.begin_s):.2f} to {ms(each.end_s):.2f} ms" for each in shown)
    settings = served(loaded.settings.batch_size, loaded.settings.max_batch_delay_ms, loaded.settings.workers) if loaded.settings else ""
    rate = f"{loaded.offered_per_s:.4g} requests/s" if loaded.offered_per_s else "clients that wait for their answers"
    end = provenance(loaded.machine, loaded.versions, evidence.written_unix_s(loaded), f"{len(loaded.records)} requests in the run")
    return Figure(
        "queue",
        TITLE,
        f"{len(shown)} batches of {evidence.model} one after another: {said}. Dots are requests as they were sent.",
        f"{evidence.model}, {rate}{f', {settings}' if settings else ''}. A dot is a request when it was sent; purple is w, from "
        f"its send until a worker had it, way in included; blue the batch in the worker; grey the way back. {end}",
        draw,
        tuple(_hover(each, row, ms) for row, each in enumerate(reversed(shown))),
    )


def _draw_row(axes: Any, each: Batch, row: int, ms: Any, look: Look) -> None:
    start, begin, end, done = ms(each.sent_s), ms(each.begin_s), ms(each.end_s), ms(each.done_s)
    axes.barh(row, begin - start, 0.22, start, color=look.colour("w"), linewidth=0, gid="w")
    axes.barh(row, end - begin, 0.62, begin, color=look.colour("m"), linewidth=0, gid="batch")
    axes.barh(row, done - end, 0.22, end, color=look.colour("front end"), linewidth=0, gid="back")
    sent = sorted(ms(record.sent_s) for record in each.records)
    heights = [row + 0.42] * len(sent)
    axes.plot(sent, heights, "o", color=look.colour("measured"), markersize=4.5, gid="arrivals", clip_on=False)


def _names(axes: Any, look: Look) -> None:
    """A line that names the colours, above all rows."""
    bare(axes, "left", "bottom")
    axes.spines["left"].set_visible(False)
    place = {"transform": axes.transAxes, "va": "bottom", "fontsize": look.small}
    for x, words, thing in ((0.0, "● a request is sent", "measured"), (0.24, "■ $w$: it waits", "w"), (0.44, "■ its batch runs", "m")):
        axes.text(x, 1.01, words, color=look.colour(thing), **place)
    axes.text(0.64, 1.01, "■ the way back", color=look.colour("front end"), **place)


def _hover(each: Batch, row: int, ms: Any) -> Point:
    wait_ms, run_ms, back_ms = (
        ms(b) - ms(a) for a, b in ((each.sent_s, each.begin_s), (each.begin_s, each.end_s), (each.end_s, each.done_s))
    )
    words = f"batch of {each.size}: the first waits {wait_ms:.2f} ms, the batch runs {run_ms:.2f} ms, the way back is {back_ms:.2f} ms"
    return Point((ms(each.begin_s) + ms(each.end_s)) / 2, row, words)
