"""A running server as a person reads it: a picture that renews itself, or, where there is no terminal, a line an interval."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from batchline.show import OTHER, REST, STAGES
from batchline.watch import Histogram, ModelView, Quantile, View

WAIT = STAGES["queue"]
WARNING = "bold #D55E00"
BAR_CELLS = 12
LABEL_CELLS = len("  deserialize  ")


def watch(console: Console, views: Iterator[View], where: str) -> None:
    """Shows each view until Ctrl-C; raises what `views` raises, with the last view left standing."""
    try:
        if not console.is_terminal:
            _lines(console, views)
            return
        with Live(Text(f"{where}: looking"), console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for seen in views:
                live.update(picture(console, seen, where, console.height), refresh=True)
    except KeyboardInterrupt:
        return


def _lines(console: Console, views: Iterator[View]) -> None:
    said: set[str] = set()
    for seen in views:
        for missing in (*seen.missing, *(lack for model in seen.models for lack in model.missing)):
            if missing not in said:
                said.add(missing)
                console.print(Text(missing), soft_wrap=True)
        for line in lines(seen):
            console.print(Text(f"{time.strftime('%H:%M:%S')} {line}"), soft_wrap=True)


def lines(seen: View) -> list[str]:
    """A line a model."""
    failed = f", server 5xx {_per_s(seen.failed_per_s)}" if seen.failed_per_s else ""
    return [f"{_line(model)}{failed}" for model in seen.models]


def picture(console: Console, seen: View, where: str, rows: int | None = None) -> Text:
    """Every model's block, or a row each where the blocks need more than `rows`; no line is wider than the terminal."""
    head = f"{where}, {len(seen.models)} {'model' if len(seen.models) == 1 else 'models'}, the last {seen.seconds:.1f} s"
    out = [Text(part) for part in _wrapped(console, head)]
    if seen.failed_per_s:
        out += [Text(part, WARNING) for part in _wrapped(console, f"{_per_s(seen.failed_per_s)} answers are 5xx, all models together")]
    out += [Text(part, WARNING) for missing in seen.missing for part in _wrapped(console, missing)]
    blocks = [line for model in seen.models for line in block(console, model)]
    if rows is not None and len(out) + len(blocks) > rows:
        blocks = _table(console, seen)
        blocks += [Text(part, WARNING) for model in seen.models for lack in model.missing for part in _wrapped(console, lack)]
    return Text("\n", no_wrap=True).join([*out, *blocks])


def _table(console: Console, seen: View) -> list[Text]:
    """A row a model, or some lines a model where that is too wide."""
    rows: list[tuple[str, ...]] = [("times in ms", "req/s", "mean", "queue", "slowest p50/p99", "batch", "wait", "ready", "busy")]
    rows += [_cells(model) for model in seen.models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + len(widths) > console.width:
        return [Text(part) for model in seen.models for part in _wrapped(console, _line(model))]
    lines = [" ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return [Text(lines[0], REST[0]), *map(Text, lines[1:])]


def _cells(model: ModelView) -> tuple[str, ...]:
    stage, mean = model.slowest, model.batches.mean if model.batches else None
    slowest = f"{stage.name} {_quantile(stage.p50_ms)}/{_quantile(stage.p99_ms)}" if stage else "-"
    offered = "?" if model.offered_per_s is None else f"{model.offered_per_s:.1f}"
    times = ["-" if ms is None else f"{ms:.1f}" for ms in (model.latency_ms, model.queue_ms)]
    batch, busy = "-" if mean is None else f"{mean:.2f}", "-" if model.busy is None else f"{model.busy:.0%}"
    return (_clean(model.model), offered, *times, slowest, batch, str(model.waiting), f"{model.ready}/{model.workers}", busy)


def block(console: Console, model: ModelView) -> list[Text]:
    """One model's lines."""
    shown = [Text(part, "bold") for part in _wrapped(console, _title(model))]
    for label, said, style in _rows(model):
        shown += _row(console, label, said, style)
        if label == "latency" and model.stages:
            shown += _bar(console, model)
    if model.batches and model.batches.count > 0:
        shown += _sizes(console, model.batches, model.batch_size)
    return shown + [Text(part, WARNING) for lack in model.missing for part in _wrapped(console, lack)]


def _title(model: ModelView) -> str:
    return f"{model.model} {', '.join(model.versions)}: batches of up to {model.batch_size}, delay {model.max_batch_delay_ms} ms"


def _rows(model: ModelView) -> Iterator[tuple[str, str, str]]:
    """Label, text and style of each row of words."""
    refused = f", {_per_s(model.refused_per_s)} refused (4xx)" if model.refused_per_s else ""
    handled = "" if model.handled_per_s is None else f", {_per_s(model.handled_per_s)} handled"
    offered = "unknown" if model.offered_per_s is None else f"{_per_s(model.offered_per_s)} offered"
    yield "requests", f"{offered}{handled}{refused}", ""
    full = model.waiting and model.waiting == model.capacity
    waited = "" if model.queue_ms is None else f", queue time {_ms(model.queue_ms)} mean"
    yield "queue", f"{model.waiting} of {model.capacity} jobs waiting{waited}", WARNING if full else ""
    if model.latency_ms is not None:
        yield "latency", f"{_ms(model.latency_ms)} mean, inside TorchServe", ""
    if model.slowest and model.batches:
        p50, p99 = _quantile(model.slowest.p50_ms), _quantile(model.slowest.p99_ms)
        yield model.slowest.name, f"p50 {p50}, p99 {p99} ms a batch, of {model.batches.count:.0f} batches", ""
    yield "workers", _workers(model), WARNING if model.ready < model.workers or not model.workers else ""


def _workers(model: ModelView) -> str:
    busy = "" if model.busy is None else f", {model.busy:.0%} busy"
    memory = [f"{size / 2**20:.0f}" for size in model.memory_bytes]
    return f"{model.ready} of {model.workers} READY{busy}" + (f", {' + '.join(memory)} MiB" if memory else "")


def _bar(console: Console, model: ModelView) -> list[Text]:
    """Queue, stages and the rest, in proportion; what is less than nothing has no width."""
    parts = [("queue", WAIT, model.queue_ms or 0.0)]
    parts += [(stage.name, STAGES.get(stage.name, OTHER), stage.mean_ms) for stage in model.stages]
    parts.append(("rest", REST, max(model.rest_ms or 0.0, 0.0)))
    plain, total, bar, run, at = _plain(console), sum(ms for *_, ms in parts), Text(), 0.0, 0
    for _, (colour, letter), ms in parts:
        run += ms
        end = round(max(console.width - 1 - len(_head(console, "stages")), 1) * run / total) if total > 0 else 0
        bar.append((letter if plain else "█") * (end - at), colour)
        at = end
    legend = [Text(letter if plain else "■", colour).append(f" {name} {_ms(ms)}", "default") for name, (colour, letter), ms in parts]
    return [_head(console, "stages").append_text(bar), *_flow(console, "", legend)]


def _sizes(console: Console, sizes: Histogram, most: int) -> list[Text]:
    """A bar a bucket of whole numbers; a bucket that no batch can fall in is left out."""
    pieces = [Text(f"mean {sizes.mean:.2f}:" if sizes.mean else "")]
    for low, high, count in zip((0.0, *sizes.bounds), sizes.bounds, sizes.counts, strict=False):
        first, last = math.floor(low) + 1, math.floor(min(high, max(most, low + 1)))
        if count <= 0 and (last < first or first > most):
            continue
        share = count / sizes.count
        cells = ("#" if _plain(console) else "█") * round(BAR_CELLS * share)
        name = str(first) if last <= first else f"{first}-{last}"
        pieces.append(Text(f"{name} ").append(cells, STAGES["inference"][0]).append(f"{' ' if cells else ''}{share:.0%}"))
    return _flow(console, "batches", pieces)


def _flow(console: Console, label: str, pieces: list[Text]) -> list[Text]:
    """Label and pieces, on as few lines as they fit on."""
    out, empty = [_head(console, label)], len(_head(console, label))
    for piece in pieces:
        if len(out[-1]) > empty and len(out[-1]) + len(piece) > console.width - 1:
            out.append(_head(console, ""))
        out[-1].append_text(piece).append("  ")
    for line in out:
        line.rstrip()
    return out


def _row(console: Console, label: str, said: str, style: str) -> list[Text]:
    """Label and words; the words wrap beside the label, or, on a narrow terminal, below its first letters."""
    if _narrow(console):
        return [Text(part, style) for part in _wrapped(console, f"{label}: {said}", "  ")]
    first, *more = _wrapped(console, said, width=console.width - LABEL_CELLS) or [""]
    return [
        _head(console, label).append(first, style or "default"),
        *(_head(console, "").append(part, style or "default") for part in more),
    ]


def _head(console: Console, label: str) -> Text:
    """A row's label, as wide as every other; nothing but an indent on a narrow terminal."""
    return Text("  ") if _narrow(console) else Text().append(f"  {label}".ljust(LABEL_CELLS), REST[0])


def _narrow(console: Console) -> bool:
    return console.width < 3 * LABEL_CELLS


def _line(model: ModelView) -> str:
    """The same in a line for logs and crowded terminals."""
    parts = [f"{model.model} {_per_s(model.offered_per_s)} offered", f"latency {_ms(model.latency_ms)}", f"queue {_ms(model.queue_ms)}"]
    if model.slowest:
        parts.append(f"{model.slowest.name} p50 {_quantile(model.slowest.p50_ms)} p99 {_quantile(model.slowest.p99_ms)} ms")
    if model.batches and model.batches.mean is not None:
        parts.append(f"batch {model.batches.mean:.2f}")
    return ", ".join([*parts, f"waiting {model.waiting}", _workers(model)])


def _wrapped(console: Console, words: str, indent: str = "", width: int | None = None) -> list[str]:
    """Folded to the terminal."""
    return textwrap.wrap(_clean(words), max((width or console.width) - 1, 8), initial_indent=indent, subsequent_indent=indent)


def _clean(words: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in words)


def _quantile(found: Quantile | None) -> str:
    """In milliseconds; only the bound is known in the first and in the last bucket."""
    if found is None:
        return "-"
    if found.low == 0:
        return f"<{found.high:g}"
    if math.isinf(found.high):
        return f">{found.low:g}"
    return f"{found.value:.0f}" if found.value >= 100 else f"{found.value:.1f}"


def _per_s(rate: float | None) -> str:
    return "?/s" if rate is None else f"{rate:.1f}/s"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"


def _plain(console: Console) -> bool:
    return console.options.ascii_only or console.color_system is None
