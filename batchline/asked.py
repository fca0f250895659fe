"""What `batchline plan` was asked, from its words: models, targets and limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import psutil

from batchline.measured import read_measured
from batchline.properties import Configuration, read_configuration
from batchline.queueing import SERVERS
from batchline.service import MIB, Model, model_of
from batchline.targets import QUEUE_LIMIT, Goal, Limits, PlanError, Target


def read_models(runs: Sequence[Path], store: Path) -> list[Model]:
    """Each run.json as a model; the archive in the store tells of its size where the run does not. Raises MeasureError."""
    found = []
    for run in runs:
        measured = read_measured(run)
        found.append(model_of(measured, store / f"{measured.model}.mar"))
    return found


def make_targets(
    names: Sequence[str], p99_ms: Sequence[str], rate_per_s: Sequence[str], max_rate: bool = False, cheapest: bool = False
) -> list[Target]:
    """One target a model.

    Args:
        names: of the models, in order.
        p99_ms: "100" for all of them, or "NAME=100" for each.
        rate_per_s: likewise; empty with max_rate.
        max_rate: the goal is the largest rate.
        cheapest: the goal is the fewest workers; with neither it is the lowest p99.

    Raises:
        PlanError: no number, a name that is not there, a model without its number, or two goals at once.
    """
    if max_rate and (rate_per_s or cheapest):
        raise PlanError("--max-rate looks for the rate itself: give it without --rate-per-s and --cheapest.")
    if not max_rate and not rate_per_s:
        raise PlanError("a plan needs --rate-per-s, the requests a second to be answered, or --max-rate to find the most.")
    goal: Goal = "max-rate" if max_rate else "cheapest" if cheapest else "p99"
    limits = parse_each("--p99-ms", p99_ms, names)
    rates = parse_each("--rate-per-s", rate_per_s, names) if rate_per_s else {}
    return [Target(limits[name], rates.get(name), goal) for name in names]


def parse_each(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """["100"] or ["a=100", "b=20"] -> a number for every name. Raises PlanError."""
    common, own = None, dict[str, float]()
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals and name not in names:
            raise PlanError(f"{option} {text}: no run of a model {name!r} is given; there are {', '.join(names)}.")
        if (name in own) if equals else common is not None:
            raise PlanError(f"{option} is given twice for {name or 'all models'}; give it once, or once a model as MODEL=NUMBER.")
        if equals:
            own[name] = _number(option, number)
        else:
            common = _number(option, text)
    missing = [name for name in names if name not in own and common is None]
    if missing:
        raise PlanError(f"{option} says nothing of {missing[0]}: give {missing[0]}=NUMBER too, or one number for all.")
    return {name: own.get(name, common or 0.0) for name in names}


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise PlanError(f"{option} takes a number above 0, or MODEL=NUMBER, not {text!r}.")
    return value


def make_limits(
    config: Path,
    planned: Sequence[tuple[str, str]],
    memory_gib: float | None,
    gpus: int = 0,
    headroom: float = 0.2,
    server: str = "torchserve",
) -> Limits:
    """What the plan may use: the machine's memory unless given; queue limit and other models of config.properties, if there.

    Raises:
        PlanError: a limit that none can be.
        ConfigError: the file is there and cannot be read.
    """
    if memory_gib is not None and not (math.isfinite(memory_gib) and memory_gib > 0):
        raise PlanError(f"--memory-gib must be above 0, not {memory_gib:g}.")
    if server not in SERVERS:
        raise PlanError(f"--server is {' or '.join(SERVERS)}, not {server!r}.")
    memory_mib = memory_gib * 1024 if memory_gib is not None else psutil.virtual_memory().total / MIB
    configuration = read_configuration(config) if config.is_file() else None
    return Limits(
        memory_mib=memory_mib,
        gpus=gpus,
        other_workers=_other_workers(configuration, planned) if configuration else 0,
        queue_limit=configuration.integer("job_queue_size", QUEUE_LIMIT) if configuration else QUEUE_LIMIT,
        headroom=headroom,
        server="triton" if server == "triton" else "torchserve",
    )


def _other_workers(configuration: Configuration, planned: Sequence[tuple[str, str]]) -> int:
    return sum(model.min_workers or 1 for model in configuration.models if (model.name, model.version) not in planned)
