"""Figures 10 to 15 and 18: one request as a sum of stages, and many requests in lanes. Each is a pure function of measured files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from batchline.report.bars import SYMBOLS, WORDS, Block, blocks, draw_bar, draw_bracket, draw_key, draw_labels
from batchline.report.captions import counted, served, together
from batchline.report.data import Evidence, Loaded, missing
from batchline.report.lanes import Batch, Window, batches, window
from batchline.report.style import WIDTH, Canvas, Figure, Look, Missing, Point, canvas, provenance
from batchline.staged import Staged
from batchline.stages import HANDLER_STAGES, Journey, Part

MOST_ROWS = 6  # bars in one figure
MOST_LANES = 12
FAR, NEAR = 0.2, 0.05  # shares of the network in a journey
LANE_KEY = {"wait": "on the way in, and $w$", **{name: WORDS[name] for name in HANDLER_STAGES}, "front end": "on the way back"}
THIN, THICK = 0.12, 0.56  # of a lane


# ---- 10, 11, 12: one request


def timeline(evidence: Evidence) -> Figure | Missing:
    """Figure 10: the stages one after another, a row each, so that it is seen that they never overlap."""
    title = "A request is a journey with stages"
    staged = _own(evidence)
    if staged is None:
        return missing("timeline", title, evidence, "stages")
    found = blocks(staged.journey)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 3.4)
        axes = figure.add_subplot()
        _draw_timeline(axes, found, look)
        _time_axis(axes, found[-1].end)
        return figure

    said = ", then ".join(f"{WORDS[block.name]} {block.ms:.2f} ms" for block in found)
    alt = f"A row for each stage of one request to {evidence.model}, each bar beginning where the one above ends: {said}."
    both = "Network and front end are at both ends of the way; each is drawn in one piece."
    points = tuple(Point(block.middle, float(len(found) - 1 - row), _hover(block)) for row, block in enumerate(found))
    return Figure("timeline", title, alt, f"{_caption(evidence, staged)} {both}", draw, points)


def _draw_timeline(axes: Any, found: Sequence[Block], look: Look) -> None:
    for row, block in enumerate(reversed(found)):
        (bar,) = axes.barh(row, block.width, 0.62, block.start, color=look.colour(block.name), linewidth=0)
        bar.set_gid(block.name)
        if row:  # the next stage begins where this one ends
            axes.plot([block.end, block.end], [row - 1.31, row + 0.31], color=look.muted, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), [WORDS[block.name] for block in reversed(found)])


def named(evidence: Evidence) -> Figure | Missing:
    """Figure 11: the same blocks side by side, each with its symbol and its time."""
    title = "Each stage has a name and a time"
    staged = _own(evidence)
    if staged is None:
        return missing("named", title, evidence, "stages")
    found = blocks(staged.journey)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 2.4)
        _draw_named(figure.add_subplot(), found, look)
        return figure

    said = ", ".join(f"{part.symbol or part.name} {part.ms:.2f} ms" for part in staged.journey.parts)
    alt = f"One bar of side-by-side blocks, the time of one request to {evidence.model}: {said}."
    return Figure("named", title, alt, _caption(evidence, staged), draw, _points(found))


def _draw_named(axes: Any, found: Sequence[Block], look: Look) -> None:
    draw_bar(axes, found, look, 0.0, 1.0)
    words = [f"{SYMBOLS[block.name]}\n{block.ms:.2f} ms" for block in found]
    draw_labels(axes, found, words, look, (0.0, 0.9), (0.0, found[-1].end))
    axes.set_ylim(-1.7, 1.15)
    _time_axis(axes, found[-1].end, above=True)


def total(evidence: Evidence) -> Figure | Missing:
    """Figure 12: the blocks without gaps, and a bracket under all of them: the total is their sum."""
    title = "The total is the sum"
    staged = _own(evidence)
    if staged is None:
        return missing("total", title, evidence, "stages")
    journey = staged.journey

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 2.3)
        _draw_total(figure.add_subplot(), journey, look)
        return figure

    rest = ", the rest is hatched" if journey.unexplained_ms > 0 else ""
    alt = (
        f"The stages of one request to {evidence.model} as one bar, and a bracket under all of it: {_sum_ms(journey):.2f} ms add up, "
        f"{journey.total_ms:.2f} ms were measured."
    )
    sources = f"Every part has a source of its own; together they are {journey.covered:.1%} of the measured total{rest}."
    return Figure("total", title, alt, f"{_caption(evidence, staged)} {sources}", draw, _points(blocks(journey)))


def _draw_total(axes: Any, journey: Journey, look: Look) -> None:
    found = blocks(journey)
    draw_bar(axes, found, look, 0.0, 1.0)
    if journey.unexplained_ms > 0:
        hatched = {"color": "none", "edgecolor": look.muted, "hatch": "////", "linewidth": 0.5}
        (rest,) = axes.barh(0.0, journey.unexplained_ms, 1.0, found[-1].end, align="edge", **hatched)
        rest.set_gid("unexplained")
    signs = " + ".join(SYMBOLS[block.name] for block in found)
    numbers = " + ".join(f"{block.ms:.2f}" for block in found)
    words = rf"$T_{{\mathrm{{total}}}}$ = {signs}" + f"\n= {numbers} = {_sum_ms(journey):.2f} ms;  measured: {journey.total_ms:.2f} ms"
    draw_bracket(axes, 0.0, journey.total_ms, -0.2, 0.25, words, look)
    axes.set_ylim(-1.55, 1.15)
    _time_axis(axes, max(found[-1].end, journey.total_ms), above=True)


# ---- 13, 14: the largest stage, and one of next to nothing


def dominant(everything: Sequence[Evidence]) -> Figure | Missing:
    """Figure 13: the journey in which the model takes most beside the one in which the network does, and what to mend in each."""
    title = "One stage dominates: fix that one"
    journeys = _journeys(everything)
    if not journeys:
        return missing("dominant", title, _first(everything), "stages")
    pair = _extremes([staged for _, staged in journeys])

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 1.2 + 1.35 * len(pair))
        axes = figure.add_subplot()
        for row, staged in enumerate(reversed(pair)):
            _draw_dominant(axes, staged, look, 2.2 * row)
        axes.set_ylim(-0.75, 2.2 * len(pair) - 0.85)
        _share_axis(axes)
        draw_key(figure, _key(pair), look)
        return figure

    said = [
        f"{_where(staged)}: {WORDS[largest.name]} is {largest.share:.0%} of {staged.journey.total_ms:.1f} ms"
        for staged in pair
        if (largest := _largest(staged.journey))
    ]
    alt = f"Bars of the stages as shares of the whole, the largest marked. {'; '.join(said)}."
    caption = together([*(_caption(_of(journeys, staged), staged) for staged in pair), "Each bar is its own 100%."])
    return Figure("dominant", title, alt, caption, draw, _rows_of_points(pair, 2.2, 0.4))


def _draw_dominant(axes: Any, staged: Staged, look: Look, bottom: float) -> None:
    journey = staged.journey
    found = blocks(journey, journey.total_ms / 100)
    draw_bar(axes, found, look, bottom, 0.8, only=journey.dominant)
    block = next(block for block in found if block.name == journey.dominant)
    axes.barh(bottom, block.width, 0.8, block.start, align="edge", color="none", edgecolor=look.text, linewidth=2.0)
    _row_title(axes, staged, look, bottom + 0.92)
    words = (
        f"fix this one: {SYMBOLS[block.name]} = {block.ms:.1f} ms, {block.share:.0%}; half of it saves {journey.halving_saves_ms:.1f} ms"
    )
    tip = {"arrowstyle": "-|>", "color": look.text, "linewidth": 1.2}
    axes.annotate("", (block.middle, bottom), (block.middle, bottom - 0.3), arrowprops=tip, annotation_clip=False)
    _beneath(axes, block, words, look, bottom - 0.34)


def _extremes(all_staged: Sequence[Staged]) -> list[Staged]:
    """The journey with the largest share of inference and the one with the largest of the network; where they are one, it alone."""
    model = max(all_staged, key=lambda staged: _share(staged.journey, "inference"))
    network = max(all_staged, key=lambda staged: _share(staged.journey, "network"))
    return [model] if network is model else [model, network]


def at_zero(everything: Sequence[Evidence]) -> Figure | Missing:
    """Figure 14: journeys with a stage of next to nothing: the bar closes up, and the sum still holds."""
    title = "A stage may be next to nothing: the sum still holds"
    journeys = _journeys(everything)
    if not journeys:
        return missing("at-zero", title, _first(everything), "stages")
    shown = [staged for _, staged in journeys[:MOST_ROWS]]
    least = [_least(staged, shown) for staged in shown]

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 0.9 + 0.95 * len(shown))
        axes = figure.add_subplot()
        for row, (staged, part) in enumerate(zip(reversed(shown), reversed(least), strict=True)):
            _draw_zero(axes, staged, part.name, look, 1.9 * row)
        axes.set_ylim(-0.6, 1.9 * len(shown) - 0.75)
        _share_axis(axes)
        draw_key(figure, _key(shown), look)
        return figure

    said = "; ".join(
        f"{_where(staged)}: {WORDS[part.name]} {part.ms:.2f} of {staged.journey.total_ms:.2f} ms"
        for staged, part in zip(shown, least, strict=True)
    )
    law = (
        "A stage of no width adds nothing: the rest is still the sum. Loading the model is in no bar, it was over before the first request."
    )
    caption = together(["Each bar is its own 100%.", law, *(_caption(evidence, staged) for evidence, staged in journeys[:MOST_ROWS])])
    alt = f"Bars of stages as shares of the whole, the smallest stage of each pointed at. {said}."
    return Figure("at-zero", title, alt, caption, draw, _rows_of_points(shown, 1.9, 0.35))


def _draw_zero(axes: Any, staged: Staged, least: str, look: Look, bottom: float) -> None:
    journey = staged.journey
    found = blocks(journey, journey.total_ms / 100)
    draw_bar(axes, found, look, bottom, 0.7)
    _row_title(axes, staged, look, bottom + 0.78)
    block = next(block for block in found if block.name == least)
    axes.plot([block.middle, block.middle], [bottom, bottom - 0.2], color=look.text, linewidth=1.2)
    _beneath(axes, block, f"{SYMBOLS[least]} = {block.ms:.2f} ms: {max(block.share, 0.0):.1%}", look, bottom - 0.24)


def _least(staged: Staged, others: Sequence[Staged]) -> Part:
    """The smallest stage; the network where another journey of the model shows what it is without its being near."""
    network = next((part for part in staged.journey.parts if part.name == "network"), None)
    far = any(_share(other.journey, "network") > FAR for other in others if other.journey.model == staged.journey.model)
    if network and far and network.share < NEAR:
        return network
    return min(staged.journey.parts, key=lambda part: part.ms)


# ---- 15, 18: many requests


def lanes(evidence: Evidence) -> Figure | Missing:
    """Figure 15: what was in the workers at once, in a real run: as many lanes as workers were busy."""
    title = "Many requests overlap in time"
    run, shown = _busiest(evidence)
    if run is None or shown is None:
        return _no_lanes("lanes", title, evidence)

    def draw(look: Look) -> Canvas:
        figure = canvas(look, WIDTH, 1.8 + 0.62 * min(shown.count, MOST_LANES))
        _draw_lanes(figure.add_subplot(), shown, look)
        draw_key(figure, LANE_KEY, look)
        return figure

    alt = (
        f"{counted(shown.count, 'lane')} over {shown.end_ms:.1f} ms of a run of {evidence.model}: each holds batches one after another, "
        f"and they overlap. At t = T_total, {shown.total_ms:.1f} ms, {counted(shown.finished(), 'request')} had an answer."
    )
    return Figure("lanes", title, alt, f"{_run_caption(evidence, run)} {_lanes_caption(shown)}", draw, _lane_points(shown))


def summary(evidence: Evidence) -> Figure | Missing:
    """Figure 18: one request's bar, a sum, above the lanes of many, a rate."""
    title = "One request is a sum, many are a rate"
    staged, (run, shown) = _own(evidence), _busiest(evidence)
    if staged is None:
        return missing("requests-summary", title, evidence, "stages")
    if run is None or shown is None:
        return _no_lanes("requests-summary", title, evidence)
    found = blocks(staged.journey)
    ideal_per_s, per_s = shown.count / shown.mean_ms * 1e3, sum(record.ok for record in run.records) / run.duration_s

    def draw(look: Look) -> Canvas:
        count = min(shown.count, MOST_LANES)
        figure = canvas(look, WIDTH, 3.6 + 0.62 * count)
        upper, lower = figure.subplots(2, 1, height_ratios=[1.9, 1.1 + 0.62 * count])
        _draw_named(upper, found, look)
        upper.set_xlabel(r"one request, in ms: $T_{\mathrm{total}}$ = the sum of its stages")
        _draw_lanes(lower, shown, look)
        ratio = rf"throughput $\approx N / T_{{\mathrm{{total}}}}$ = {shown.count} / {shown.mean_ms:.1f} ms = {ideal_per_s:.4g} a second"
        lower.set_xlabel(f"many requests, in ms: {ratio}; measured {per_s:.4g}")
        return figure

    alt = (
        f"Above, the stages of one request to {evidence.model}, {staged.journey.total_ms:.2f} ms in all. Below, "
        f"{counted(shown.count, 'lane')} of a run: N / T_total is {ideal_per_s:.4g} requests a second, {per_s:.4g} were answered."
    )
    mean = f"Throughput is about N / T_total, with T_total the mean of the run, {shown.mean_ms:.1f} ms."
    caption = together([_caption(evidence, staged), _run_caption(evidence, run), mean, _lanes_caption(shown)])
    return Figure("requests-summary", title, alt, caption, draw, _points(found))


def _busiest(evidence: Evidence) -> tuple[Loaded | None, Window | None]:
    """The newest run with the most lanes, and the stretch to look at; None where no answer told its stages."""
    found = [(run, window(told)) for run in evidence.loads if (told := batches(run.records))]
    return max(found, key=lambda each: each[1].count, default=(None, None))


def _no_lanes(key: str, title: str, evidence: Evidence) -> Missing:
    why = "no answer told its stages; a handler built on batchline.handlers does" if evidence.loads else ""
    return missing(key, title, evidence, "load", why)


def _draw_lanes(axes: Any, shown: Window, look: Look) -> None:
    count = min(shown.count, MOST_LANES)
    for batch, lane in shown.rows:
        if lane < count:
            _draw_batch(axes, batch, shown, count - 1 - lane, look)
    axes.axvline(shown.total_ms, color=look.text, linewidth=1.2, linestyle="--", gid="total")
    words = rf"$t = T_{{\mathrm{{total}}}}$ = {shown.total_ms:.1f} ms: {shown.finished()} answered"
    axes.text(shown.total_ms + 0.01 * shown.end_ms, count - 0.55, words, ha="left", va="bottom", color=look.text)
    axes.set_ylim(-0.5, count - 0.15)
    _time_axis(axes, shown.end_ms / 1.02)
    axes.set_yticks(range(count), [f"lane {count - number}" for number in range(count)])
    axes.set_xlabel("milliseconds since the first of them was sent")


def _draw_batch(axes: Any, batch: Batch, shown: Window, y: float, look: Look) -> None:
    """Thin from the first send, above, and to the last answer, below; thick where the worker has it, stage by stage."""
    sent, begin, end, done = (shown.at_ms(moment) for moment in (batch.sent_s, batch.begin_s, batch.end_s, batch.done_s))
    edge = (THICK - THIN) / 2
    axes.barh(y + edge, begin - sent, THIN, sent, color=look.colour("wait"), linewidth=0)
    axes.barh(y - edge, done - end, THIN, end, color=look.colour("front end"), linewidth=0)
    at = begin
    for name, ms in batch.stages_ms.items():
        (bar,) = axes.barh(y, ms, THICK, at, color=look.colour(name), linewidth=0)
        bar.set_gid(name)
        at += ms
    if batch.size > 1 and end - begin > 0.03 * shown.end_ms and begin > 0 and end < shown.end_ms:
        axes.text(
            (begin + end) / 2, y, str(batch.size), ha="center", va="center", color=look.on("inference"), fontsize=look.small, clip_on=True
        )


def _lane_points(shown: Window) -> tuple[Point, ...]:
    count = min(shown.count, MOST_LANES)
    inside = [(batch, lane, shown.at_ms((batch.begin_s + batch.end_s) / 2)) for batch, lane in shown.rows if lane < count]
    return tuple(Point(at, float(count - 1 - lane), _told(batch)) for batch, lane, at in inside if 0 <= at <= shown.end_ms)


def _told(batch: Batch) -> str:
    stages = ", ".join(f"{WORDS[name]} {ms:.2f}" for name, ms in batch.stages_ms.items())
    return f"batch of {batch.size}: {(batch.done_s - batch.sent_s) * 1e3:.1f} ms from the first send to the last answer ({stages} ms)"


# ---- what the figures share


def _own(evidence: Evidence) -> Staged | None:
    """The newest journey with nothing in its way, rather of a request that was alone."""
    return max(evidence.staged, key=lambda staged: (not staged.note, staged.journey.lone, _when(evidence, staged)), default=None)


def _when(evidence: Evidence, content: object) -> float:
    return evidence.written_unix_s(content) or 0.0


def _journeys(everything: Sequence[Evidence]) -> list[tuple[Evidence, Staged]]:
    return [(evidence, staged) for evidence in everything for staged in evidence.staged]


def _of(journeys: Iterable[tuple[Evidence, Staged]], staged: Staged) -> Evidence:
    return next(evidence for evidence, other in journeys if other is staged)


def _first(everything: Sequence[Evidence]) -> Evidence:
    return everything[0] if everything else Evidence("MODEL")


def _sum_ms(journey: Journey) -> float:
    return sum(part.ms for part in journey.parts)


def _share(journey: Journey, name: str) -> float:
    return sum(part.share for part in journey.parts if part.name == name)


def _largest(journey: Journey) -> Part:
    return next(part for part in journey.parts if part.name == journey.dominant)


def _where(staged: Staged) -> str:
    return f"{staged.journey.model}, {staged.note.partition(',')[0]}" if staged.note else staged.journey.model


def _key(all_staged: Sequence[Staged]) -> dict[str, str]:
    return {part.name: WORDS[part.name] for staged in all_staged for part in staged.journey.parts}


def _row_title(axes: Any, staged: Staged, look: Look, y: float) -> None:
    axes.text(0, y, _where(staged), ha="left", va="bottom", color=look.text, fontweight="bold")
    axes.text(100, y, f"{staged.journey.total_ms:.1f} ms", ha="right", va="bottom", color=look.text)


def _beneath(axes: Any, block: Block, words: str, look: Look, y: float) -> None:
    """Words under a block of a bar of 100, which stay within the bar."""
    side = "left" if block.middle < 40 else "right" if block.middle > 60 else "center"
    at = {"left": block.middle if block.width < 10 else block.start, "right": block.middle if block.width < 10 else block.end}
    axes.text(at.get(side, block.middle), y, words, ha=side, va="top", color=look.text)


def _time_axis(axes: Any, most: float, above: bool = False) -> None:
    axes.set_xlim(0, most * 1.02)
    axes.set_xlabel("milliseconds since the client sent it")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if above:
        axes.xaxis.set_ticks_position("top")
        axes.xaxis.set_label_position("top")
        axes.spines["top"].set_visible(True)
        axes.spines["bottom"].set_visible(False)
        axes.set_yticks([])


def _share_axis(axes: Any) -> None:
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the request's time")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _caption(evidence: Evidence, staged: Staged) -> str:
    journey, settings = staged.journey, staged.settings
    how = "one at a time" if journey.lone else "under load"
    chosen = f", {served(settings.batch_size, settings.max_batch_delay_ms, settings.workers)}" if settings else ""
    note = f" {staged.note[0].upper()}{staged.note[1:].rstrip('.')}." if staged.note else ""
    doubts = f" DOUBTFUL: {'; '.join(staged.journey.doubts)}." if staged.journey.doubts else ""
    place = provenance(staged.machine, staged.versions, evidence.written_unix_s(staged))
    return f"{journey.model}: mean of {counted(journey.requests, 'request')}, {how}{chosen}.{note}{doubts} {place}"


def _run_caption(evidence: Evidence, run: Loaded) -> str:
    how = (
        f"closed loop, at most {run.most_in_flight} at once" if run.offered_per_s is None else f"{run.offered_per_s:.4g} requests/s offered"
    )
    settings = f", {words}" if run.settings and (words := served(*vars(run.settings).values())) else ""
    seed = f", seed {run.seed}" if run.seed is not None else ""
    place = provenance(run.machine, run.versions, evidence.written_unix_s(run))
    return f"{run.model}: a stretch of a run of {counted(len(run.records), 'request')}, {how}{settings}{seed}. {place}"


def _lanes_caption(shown: Window) -> str:
    more = f" {shown.count - MOST_LANES} more lanes are not drawn." if shown.count > MOST_LANES else ""
    return (
        "Thick: in a worker; thin: before and after. A number is the size of a batch. Answers do not say which worker it was: batches that "
        f"overlap are laid into different lanes, so there are as many as workers were busy at once.{more}"
    )


def _hover(block: Block) -> str:
    return f"{WORDS[block.name]}: {block.ms:.2f} ms, {block.share:.1%}"


def _points(found: Sequence[Block]) -> tuple[Point, ...]:
    return tuple(Point(block.middle, 0.5, _hover(block)) for block in found)


def _rows_of_points(shown: Sequence[Staged], step: float, middle: float) -> tuple[Point, ...]:
    rows = [(row, staged.journey) for row, staged in enumerate(reversed(shown))]
    return tuple(
        Point(block.middle, step * row + middle, f"{journey.model}: {_hover(block)}")
        for row, journey in rows
        for block in blocks(journey, journey.total_ms / 100)
    )
