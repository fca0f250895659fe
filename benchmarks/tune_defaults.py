"""Part `defaults`: TorchServe's defaults and the tutorials' settings against tuned ones, the same load, in turn."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

import tune_brute
from tuning import LIMITS_MS, Bench, candidate_of, load, saturated_per_s, setting_of, words

from batchline import plan as planning
from batchline.queueing import capacity_per_s
from batchline.runfile import machine
from batchline.swept import Candidate
from batchline.targets import Limits, Target

PART = "defaults"
LOADS = (0.3, 0.6)  # of what the defaults can do
ROUNDS = 3
LOAD_S, SATURATE_S = 6.0, 1.5


def run(bench: Bench, most_per_s: float) -> None:
    """p99 at the same rates, then the largest rate within the target, everything in turn."""
    limit_ms = bench.record.setdefault("p99_ms", LIMITS_MS[bench.record["model"]])
    candidates = contestants(bench, limit_ms)
    names = [(name, number) for number in range(ROUNDS) for name in candidates]
    if all(bench.done(PART, f"{name} {number}") for name, number in names):
        return
    capacity = capacity_per_s(bench.model.services[1], setting_of(candidates["default"]))
    rates = [min(share * capacity, most_per_s) for share in LOADS]
    with bench.serve(list(candidates.values())) as server:
        for number in range(ROUNDS):
            order = list(candidates) if number % 2 == 0 else list(candidates)[::-1]
            for name in order:
                if bench.done(PART, f"{name} {number}"):
                    continue
                candidate = candidates[name]
                with bench.turns.turn():
                    told = [
                        load(server, candidate, bench.subject.bodies, rate, max(100, int(rate * LOAD_S)), 10 * number + i, limit_ms)
                        for i, rate in enumerate(rates)
                    ]
                    most = saturated_per_s(server, candidate, bench.subject.bodies, SATURATE_S)
                    high = min(tune_brute.HIGHEST * most, most_per_s)
                    kept = tune_brute.confirmed(bench, server, candidate, limit_ms, high, seed=100 * number)
                found = {**asdict(candidate), "loads": [asdict(one) for one in told], "saturated_per_s": most, "largest_per_s": kept}
                bench.keep(PART, f"{name} {number}", found)
                p99 = ", ".join(f"{one.p99_ms:.1f}" for one in told)
                bench.say(f"{name} {words(candidate)}: p99 {p99} ms; {kept:.1f}/s within {limit_ms:g} ms")


def contestants(bench: Bench, limit_ms: float) -> dict[str, Candidate]:
    """Both kinds of untuned settings, one worker a core, and the plan's for the higher load and for the largest rate."""
    if known := bench.done(PART, "candidates"):
        return {name: Candidate(**fields) for name, fields in known.items()}
    cores = machine().cores
    found = {"default": Candidate("default", 1, 100, cores), "tutorial": Candidate("tutorial", 8, 100, cores)}
    rate = LOADS[-1] * capacity_per_s(bench.model.services[1], setting_of(found["default"]))
    for name, target in (("tuned", Target(limit_ms, rate)), ("largest", Target(limit_ms, goal="max-rate"))):
        found[name] = candidate_of(planning.choose(bench.model, target, Limits()).setting, name)
    bench.keep(PART, "candidates", {name: asdict(candidate) for name, candidate in found.items()})
    return found


def rows(record: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Name, setting and figures of each contestant; in brackets what tuned settings have of it, the median of the rounds' ratios."""
    part = record[PART]
    rounds = {name: [part[f"{name} {number}"] for number in range(ROUNDS)] for name in part["candidates"]}
    told = []
    for name, found in rounds.items():
        cells = [
            against([one["loads"][i]["p99_ms"] for one in found], [one["loads"][i]["p99_ms"] for one in rounds["tuned"]], what=rate)
            for i, rate in enumerate(one["rate_per_s"] for one in found[0]["loads"])
        ]
        cells.append(against([one["largest_per_s"] for one in found], [one["largest_per_s"] for one in rounds["largest"]]))
        cells.append(f"{median(one['saturated_per_s'] for one in found):.0f}")
        told.append((name, words(Candidate(**part["candidates"][name])), cells))
    return told


def against(values: list[float], tuned: list[float], what: float | None = None) -> str:
    """Median (least .. most) [tuned / this], after the rate it was had at."""
    ratios = [ours / theirs for ours, theirs in zip(tuned, values, strict=False) if theirs]
    at = f"{what:.0f}/s: " if what else ""
    return f"{at}{spread_of(values)} [{median(ratios):.2f}]" if ratios else f"{at}{spread_of(values)} [-]"


def spread_of(values: list[float]) -> str:
    """Median (least .. most)."""
    return f"{median(values):.1f} ({min(values):.1f} .. {max(values):.1f})"
