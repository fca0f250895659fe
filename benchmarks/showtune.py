"""`make bench-tune`'s records as Markdown: `python benchmarks/showtune.py results/tune-*.json`; docs/tuned.md holds what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import tune_brute
import tune_defaults
import tune_predict

Record = dict[str, Any]
PREDICTED = (("mean", "mean_ms"), ("p99", "p99_ms"), ("throughput", "saturated_per_s"))
AT_PACE = (("mean at the pace then", "mean_ms"), ("p99 at the pace then", "p99_ms"))  # tune_predict.step
# What is to be reached: median of |error| over the settings. A sleeping handler has no throughput to be wrong about.
BARS = {"sleep": {"mean": 0.04, "p99": 0.08}}
REAL_BARS = {"p99": 0.12, "throughput": 0.03}
OF_THE_BEST, OF_ITS_TIME = 0.97, 0.05
NAMES = ("sleep", "digits", "efficientnet_lite0", "minilm")


def main(paths: Sequence[str]) -> None:
    """Prints the tables of all records that are there."""
    records = sorted((json.loads(Path(path).read_text()) for path in paths), key=lambda record: NAMES.index(record["model"]))
    print(markdown(records))


def markdown(records: Sequence[Record]) -> str:
    """The tables, each of the records that have it."""
    models = [record["model"] for record in records]
    records = [{**record, "title": _title(record, models.count(record["model"]) > 1)} for record in records]
    parts = {
        "Settings that were not measured, predicted": [summary(records)],
        "Setting by setting": list(map(settings, records)),
        "Against brute force": [brute(records)],
        "Against the defaults": [defaults(records)],
    }
    return "\n\n".join("\n\n".join([f"### {title}", *filter(None, tables)]) for title, tables in parts.items() if any(tables))


def _title(record: Record, machine: bool) -> str:
    """The model, and where it was measured on more than one machine, which."""
    cpu = record["machine"]["cpu"].replace("(R)", "").replace(" Processor", "")
    return f"{record['model']} on {cpu}" if machine else str(record["model"])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns are words."""
    marks = ["---" if place < left else "---:" for place in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, marks, *rows))


# ---- predictions


def summary(records: Sequence[Record]) -> str:
    """A row a model: median of |error|, its bar, the largest, how far the repeats lie apart."""
    said = [(*each, "predicted") for each in PREDICTED] + [(*each, "at_pace") for each in AT_PACE]
    rows = [row for record in records for each in said if (row := _summed(record, *each))]
    headings = ("model", "of", "settings", "median error", "at most", "reached", "largest", "repeats apart")
    return table(headings, rows, left=2) if rows else ""


def _summed(record: Record, name: str, field: str, said: str) -> tuple[str, ...] | None:
    each = [tune_predict.errors(rows, field, said) for rows in tune_predict.by_setting(record).values()]
    offs = [(abs(median(off)), max(off) - min(off)) for off in each if off]
    if not offs:
        return None
    bar = BARS.get(record["model"], REAL_BARS).get(name)
    middle, apart = median(off for off, _ in offs), median(apart for _, apart in offs)
    reached = "-" if bar is None else "yes" if middle <= bar else "no"
    largest = max(off for off, _ in offs)
    return (
        record["title"],
        name,
        str(len(offs)),
        f"{middle:.1%}",
        "-" if bar is None else f"{bar:.0%}",
        reached,
        f"{largest:.1%}",
        f"{apart:.1%}",
    )


def settings(record: Record) -> str:
    """A row a setting: what was measured, and how far off what was predicted is, each the median (least .. most) of the repeats."""
    found = tune_predict.by_setting(record)
    if not found:
        return ""
    rows = [
        (
            setting,
            f"{repeats[0]['rate_per_s']:.0f}",
            f"{repeats[0]['share']:.0%}",
            *(_seen(repeats, field) for field in ("mean_ms", "p99_ms")),
            *(_off(repeats, field) for _, field in PREDICTED),
            _off(repeats, "p99_ms", "at_pace"),
            f"{sum(bool(row['measured']['invalid']) for row in repeats)} of {len(repeats)}",
        )
        for setting, repeats in found.items()
    ]
    headings = (record["title"], "rate/s", "of capacity", "mean ms", "p99 ms", *(f"{name} off" for name, _ in PREDICTED))
    headings += ("p99 off at the pace then", "invalid")
    return table(headings, rows)


def _seen(repeats: Sequence[Record], field: str) -> str:
    return f"{median(row['measured'][field] for row in repeats):.1f}"


def _off(repeats: Sequence[Record], field: str, said: str = "predicted") -> str:
    off = tune_predict.errors(repeats, field, said)
    return f"{median(off):+.1%} ({min(off):+.0%} .. {max(off):+.0%})" if off else "-"


# ---- brute force


def brute(records: Sequence[Record]) -> str:
    """A row a model: the best of the grid, the plan's choice, and the ratio of their rates and of their times."""
    rows = [_held(record) for record in records if record.get("confirmed")]
    headings = (
        "model",
        "p99 within ms",
        "brute force's best",
        "its rate/s",
        "the plan",
        "its rate/s",
        "plan over best",
        "grid s",
        "plan s",
        "of its time",
    )
    return table(headings, rows) if rows else ""


def _held(record: Record) -> tuple[str, ...]:
    found = tune_brute.compared(record)
    rates = [tune_defaults.spread_of(found.rates[name]) for name in (found.best, "plan")]
    ratio = f"{found.ratio:.1%} ({'reached' if found.ratio >= OF_THE_BEST else 'missed'})"
    part = f"{found.planned_s / found.grid_s:.1%}, unpruned {found.planned_s / found.unpruned_s:.1%}"
    return (
        record["title"],
        f"{record['p99_ms']:g}",
        found.settings[found.best],
        rates[0],
        found.settings["plan"],
        rates[1],
        ratio,
        f"{found.grid_s:.0f}",
        f"{found.planned_s:.0f}",
        part,
    )


# ---- defaults


def defaults(records: Sequence[Record]) -> str:
    """Three rows a model: each untuned setting, then the tuned."""
    rows = [row for record in records if record.get(tune_defaults.PART) for row in _contestants(record)]
    headings = ("model", "setting", "p99 ms, lower rate", "p99 ms, higher rate", "largest rate/s in the limit", "saturated/s")
    return table(headings, rows, left=2) if rows else ""


def _contestants(record: Record) -> list[tuple[str, ...]]:
    return [
        (f"{record['title']}, {record['p99_ms']:g} ms", f"{name}, {setting}", *cells) for name, setting, cells in tune_defaults.rows(record)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
