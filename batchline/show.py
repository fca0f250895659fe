"""How a person reads it: answers, stage times, a server's state. No output is wider than the terminal."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchline.client import Answer, error_message
from batchline.ready import Progress
from batchline.server import RunningServer
from batchline.status import ModelStatus

# Okabe and Ito's colours, told apart with any kind of colour vision; the letters stand in where there is no colour.
STAGES = {
    "queue": ("#E69F00", "q"),
    "deserialize": ("#56B4E9", "d"),
    "preprocess": ("#009E73", "p"),
    "inference": ("#0072B2", "i"),
    "serialize": ("#CC79A7", "s"),
}
OTHER = ("#D55E00", "o")
REST = ("#999999", ".")
REST_NAME = "network and front end"
NUMBERS_SHOWN = 6
LINES_SHOWN = 40


def show_answer(console: Console, answer: Answer) -> None:
    """The answer as its kind deserves, then its stage times as one bar."""
    if answer.status >= 400:
        console.print(_plain(f"{answer.status} {error_message(answer.body)}", "bold #D55E00"), soft_wrap=False)
    else:
        _show_body(console, answer)
    _show_stages(console, answer)


def show_status(console: Console, statuses: Sequence[ModelStatus]) -> None:
    """A row a model: batchSize, maxBatchDelay and workers, written `wanted -> effective` where they differ."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    names = [f"{model.name} {model.version}" for model in statuses]
    table.add_column("model", overflow="fold", min_width=min(max(map(len, names), default=0), console.width // 3))
    for heading in ("batch", "delay ms", "workers", "states", "MiB each", "queue", "ok"):
        table.add_column(heading, overflow="fold")
    for name, model in zip(names, statuses, strict=True):
        states = ", ".join(sorted({w.state for w in model.workers})) or "-"
        memory = ", ".join("-" if w.rss_bytes is None else f"{w.rss_bytes / 2**20:.0f}" for w in model.workers) or "-"
        verdict = Text("yes", "#009E73") if model.matches else Text("NO", "bold #D55E00")
        row = [name, *_numbers(model), states, memory, str(model.waiting)]
        table.add_row(*(_plain(cell) for cell in row), verdict)
    console.print(table)


@contextmanager
def show_progress(console: Console) -> Iterator[Progress]:
    """A line that counts READY workers and seconds while a server starts, and one for each model that is done."""
    done: set[str] = set()
    with console.status("starting TorchServe") as line:

        def update(states: Mapping[str, tuple[int, int]], seconds: float) -> None:
            counts = "  ".join(f"{name} {ready}/{wanted}" for name, (ready, wanted) in sorted(states.items()))
            line.update(_plain(f"workers READY: {counts or 'none yet'}  {seconds:.0f} s"))
            for name, (ready, wanted) in sorted(states.items()):
                if ready >= wanted and name not in done:
                    done.add(name)
                    console.print(_plain(f"{name}: {ready} of {wanted} workers READY after {seconds:.1f} s"))

        yield update


def show_running(console: Console, server: RunningServer, models: Path, names: Sequence[str]) -> None:
    """Where the server listens, and a curl line to try for each model."""
    if not server.fresh:
        console.print(f"TorchServe runs already (pid {server.pid}, {server.config}); `make stop` ends it.", soft_wrap=True)
    for name in names:
        sample = next((p for p in sorted((models / name / "samples").glob("*")) if p.is_file() and not p.name.startswith(".")), None)
        given = f" -T {sample}" if sample else " -T FILE"
        console.print(f"curl {server.inference}/predictions/{name}{given}", soft_wrap=True, markup=False, highlight=False)
    if server.key_file:
        console.print("# add -H 'Authorization: Bearer KEY' with the inference key of key_file.json", soft_wrap=True, markup=False)


def _show_body(console: Console, answer: Answer) -> None:
    try:
        value = json.loads(answer.body)
    except ValueError:
        kind = answer.headers.get("content-type", "unknown type")
        console.print(_plain(_text(answer.body) or f"{len(answer.body)} bytes of {kind}"))
        return
    if _is_ranking(value):
        _show_ranking(console, value)
        return
    if isinstance(value, dict) and _is_vector(value.get("embedding")):
        console.print(_plain(_vector(value.pop("embedding"))))
        if not value:
            return
    lines = json.dumps(value, ensure_ascii=False, indent=2).splitlines()
    more = [f"... {len(lines) - LINES_SHOWN} lines more"] if len(lines) > LINES_SHOWN else []
    console.print(_plain("\n".join(lines[:LINES_SHOWN] + more)))


def _show_ranking(console: Console, ranking: list[dict[str, Any]]) -> None:
    longest = min(max(len(str(row["label"])) for row in ranking), max(console.width // 3, 8))
    room = max(console.width - longest - 10, 1)
    full = "#" if console.options.ascii_only else "█"
    for row in ranking:
        label = _clean(str(row["label"]))
        label = label if len(label) <= longest else label[: longest - 1] + "~"
        bar = full * round(min(max(row["score"], 0.0), 1.0) * room)
        console.print(Text.assemble(f"{label:<{longest}} {row['score']:.3f} ", (bar, "#0072B2")), no_wrap=True, overflow="crop")


def _show_stages(console: Console, answer: Answer) -> None:
    total = answer.seconds * 1e3
    times = [(name, ms, STAGES.get(name, OTHER)) for name, ms in answer.stages.items()]
    rest = max(total - sum(answer.stages.values()), 0.0)
    times.append((REST_NAME if answer.stages else "no stage times in the answer", rest, REST))
    cells = _shares([ms for _, ms, _ in times], max(console.width - 1, 1))
    plain = console.options.ascii_only or console.color_system is None
    bar, legend = Text(), Text()
    for (name, ms, (colour, letter)), count in zip(times, cells, strict=True):
        bar.append((letter if plain else "█") * count, style=colour)
        mark = letter if plain else "■"
        legend.append(f"{mark} ", style=colour).append(f"{_clean(name)} {ms:.1f} ms  ")
    batch = "" if answer.batch is None else f", in a batch of {answer.batch}"
    console.print(bar, no_wrap=True, overflow="crop")
    console.print(legend.append(f"total {total:.1f} ms{batch}"))


def _shares(values: Sequence[float], width: int) -> list[int]:
    """Splits width cells in proportion to values; the parts add up to width exactly."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    ends, run = [0], 0.0
    for value in values:
        run += value
        ends.append(round(width * run / total))
    return [after - before for before, after in itertools.pairwise(ends)]


def _numbers(model: ModelStatus) -> list[str]:
    """Cells for batchSize, maxBatchDelay and workers."""
    wanted, effective = model.wanted, model.effective
    pairs = [("batch_size", "batch_size"), ("max_batch_delay_ms", "max_batch_delay_ms"), ("min_workers", "max_workers")]
    cells = []
    for low, high in pairs:
        want, have = _span(wanted, low, high), _span(effective, low, high)
        cells.append(have if want == have or want == "unset" else f"{want} -> {have}")
    return cells


def _span(settings: object | None, low: str, high: str) -> str:
    if settings is None:
        return "absent"
    first, last = getattr(settings, low), getattr(settings, high)
    if first is None:
        return "unset"
    return str(first) if first == last or last is None else f"{first}-{last}"


def _is_ranking(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_ranked, value))


def _is_ranked(row: object) -> bool:
    """A label and its score and no box: boxes are worth more than a bar."""
    return isinstance(row, dict) and {"label", "score"} <= row.keys() and "box" not in row and isinstance(row["score"], int | float)


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(number, int | float) for number in value)


def _vector(numbers: list[float]) -> str:
    first = ", ".join(f"{number:.4f}" for number in numbers[:NUMBERS_SHOWN])
    more = ", ..." if len(numbers) > NUMBERS_SHOWN else ""
    return f"{len(numbers)} numbers, length {math.hypot(*numbers):.4f}: {first}{more}"


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _plain(text: str, style: str = "") -> Text:
    return Text(_clean(text), style=style)


def _clean(text: str) -> str:
    """Text from a server without what would steer the terminal."""
    return "".join(char if char in "\n\t" or char.isprintable() else "\ufffd" for char in text)
