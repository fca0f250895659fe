"""Part `brute`: the whole grid on a server, briefly, against the one setting that the plan chose from a measurement."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tuning import LIMITS_MS, Bench, Candidates, candidate_of, load, saturated_per_s, words

from batchline import plan as planning
from batchline.load import closed_loop
from batchline.swept import Candidate
from batchline.targets import Limits, Target

PART = "brute"
SIZES = (8, 4, 16, 2, 32, 1)  # a good one early prunes the rest
DELAYS_MS = (1, 2, 5, 10, 20, 50, 100)
WORKERS = (1, 2, 3)
PROBE_S, SATURATE_S, WARM_S = 3.0, 1.5, 0.5
STEPS = 3  # of the bisection
BETTER = 1.03  # of the best so far, to be looked at closer
CONFIRM_S, CONFIRM_STEPS, ROUNDS, FINALISTS = 6.0, 5, 3, 3
HIGHEST = 0.99  # of capacity
Found = dict[str, Any]


def run(bench: Bench, most_per_s: float) -> None:
    """The grid, the plan, and the finalists once more."""
    limit_ms = bench.record.setdefault("p99_ms", LIMITS_MS[bench.record["model"]])
    for size in SIZES:
        if size <= bench.model.largest:
            column(bench, size, limit_ms, most_per_s)
    if not bench.done(PART, "plan"):
        choose(bench, limit_ms)
    confirm(bench, limit_ms, most_per_s)


def settings(size: int) -> list[Candidate]:
    """One batch size's delays, a worker each; more are started when it is their turn. A batch of one waits for nothing."""
    return [Candidate(f"d{delay}", size, delay, 1) for delay in (DELAYS_MS if size > 1 else DELAYS_MS[:1])]


def key(size: int, delay_ms: int, workers: int) -> str:
    """Of a setting in the record."""
    return f"b={size} D={delay_ms} N={workers}"


def column(bench: Bench, size: int, limit_ms: float, most_per_s: float) -> None:
    """All settings of one batch size on one server."""
    each = settings(size)
    wanted = [(candidate, workers) for candidate in each for workers in WORKERS]
    if all(bench.done(PART, key(size, candidate.max_batch_delay_ms, workers)) for candidate, workers in wanted):
        return
    begun_s = time.monotonic()
    with bench.serve(each) as server:
        started_s = time.monotonic() - begun_s
        for candidate in each:
            for workers in WORKERS:
                name = key(size, candidate.max_batch_delay_ms, workers)
                if bench.done(PART, name):
                    continue
                with bench.turns.turn():
                    found = point(bench, server, candidate, workers, limit_ms, most_per_s)
                found["start_s"] = started_s if candidate is each[0] and workers == WORKERS[0] else 0.0
                bench.keep(PART, name, found)
                bench.say(f"{name}: {found['rate_per_s']:.1f}/s {found['how']} in {found['wall_s']:.1f} s; best {best(bench):.1f}/s")
            with bench.turns.turn():
                server.scale(server.candidates.index(candidate), 1)


def best(bench: Bench) -> float:
    """The largest rate that any setting of the grid kept so far."""
    return max((found["rate_per_s"] for name, found in bench.record.get(PART, {}).items() if name.startswith("b=")), default=0.0)


def point(bench: Bench, server: Candidates, candidate: Candidate, workers: int, limit_ms: float, most_per_s: float) -> Found:
    """The largest rate of one setting that keeps p99; 0 where it cannot be better than the best so far."""
    begun_s, so_far = time.monotonic(), best(bench)
    capacity = known_capacity(bench, candidate.batch_size, workers)
    if capacity and HIGHEST * capacity < BETTER * so_far:
        return {"rate_per_s": 0.0, "how": "its capacity is below the best", "capacity_per_s": capacity, "wall_s": 0.0}
    server.scale(server.candidates.index(candidate), workers)
    target = server.target(candidate, bench.subject.bodies)
    closed_loop(target, min(100, 2 * candidate.batch_size * workers), WARM_S)
    capacity = capacity or saturated_per_s(server, candidate, bench.subject.bodies, SATURATE_S, workers)
    high = min(HIGHEST * capacity, most_per_s)
    if BETTER * so_far >= high:
        return {"rate_per_s": 0.0, "how": "no better than the best", "capacity_per_s": capacity, "wall_s": time.monotonic() - begun_s}
    first = BETTER * so_far if so_far else high / 2
    rate, tried = largest(bench, server, candidate, limit_ms, (0.0, high), PROBE_S, STEPS, first, seed=workers)
    how = f"after {tried} loads" if rate else "not at the best's rate"
    return {"rate_per_s": rate, "how": how, "capacity_per_s": capacity, "wall_s": time.monotonic() - begun_s}


def known_capacity(bench: Bench, size: int, workers: int) -> float:
    """Of another delay of the same batch size: full batches wait for nothing. 0 where none was looked at."""
    for name, found in bench.record.get(PART, {}).items():
        if name.startswith(f"b={size} ") and name.endswith(f"N={workers}"):
            return float(found["capacity_per_s"])
    return 0.0


def largest(
    bench: Bench,
    server: Candidates,
    candidate: Candidate,
    limit_ms: float,
    within: tuple[float, float],
    seconds: float,
    steps: int,
    first: float,
    seed: int = 1,
) -> tuple[float, int]:
    """The largest rate that keeps p99, by bisection after a first try, and how many loads that took; 0 where the first fails with low = 0
    and a best is known already.
    """
    low, high = within
    rate, kept = first, low
    for tried in range(1, steps + 2):
        found = load(server, candidate, bench.subject.bodies, rate, max(100, int(rate * seconds)), seed + tried, limit_ms)
        if found.over <= 0.01:
            low = kept = rate
        else:
            high = rate
            if tried == 1 and best(bench):
                return 0.0, tried
        rate = (low + high) / 2
    return kept, steps + 1


def choose(bench: Bench, limit_ms: float) -> None:
    """What the plan says, and how long it took."""
    begun_s = time.monotonic()
    plan = planning.choose(bench.model, Target(limit_ms, goal="max-rate"), Limits(queue_limit=100))
    found = asdict(candidate_of(plan.setting, "plan")) | {"rate_per_s": plan.max_rate_per_s, "wall_s": time.monotonic() - begun_s}
    bench.keep(PART, "plan", found)
    bench.say(f"the plan: {words(candidate_of(plan.setting, 'plan'))}, {plan.max_rate_per_s:.1f}/s predicted")


def confirm(bench: Bench, limit_ms: float, most_per_s: float) -> None:
    """The grid's best few and the plan's choice in turn, longer and three times: a short look flatters the best of many."""
    grid = sorted(((found["rate_per_s"], name) for name, found in bench.record[PART].items() if name.startswith("b=")), reverse=True)
    finalists = [parsed(name, f"f{i}") for i, (rate, name) in enumerate(grid[:FINALISTS]) if rate]
    plan = bench.record[PART]["plan"]
    finalists.append(Candidate("plan", plan["batch_size"], plan["max_batch_delay_ms"], plan["workers"]))
    if all(bench.done("confirmed", f"{c.name} {number}") for number in range(ROUNDS) for c in finalists):
        return
    with bench.serve(finalists) as server:
        for number in range(ROUNDS):
            for candidate in finalists if number % 2 == 0 else finalists[::-1]:
                if bench.done("confirmed", f"{candidate.name} {number}"):
                    continue
                with bench.turns.turn():
                    capacity = saturated_per_s(server, candidate, bench.subject.bodies, SATURATE_S)
                    high = min(HIGHEST * capacity, most_per_s)
                    rate = confirmed(bench, server, candidate, limit_ms, high, seed=100 * number)
                bench.keep("confirmed", f"{candidate.name} {number}", {**asdict(candidate), "rate_per_s": rate, "capacity_per_s": capacity})
                bench.say(f"{candidate.name} {words(candidate)}: {rate:.1f}/s of {capacity:.1f}")


def confirmed(bench: Bench, server: Candidates, candidate: Candidate, limit_ms: float, high: float, seed: int) -> float:
    """The largest rate that keeps p99, whatever is known of others."""
    low, rate = 0.0, 0.8 * high
    for step in range(CONFIRM_STEPS):
        found = load(server, candidate, bench.subject.bodies, rate, max(100, int(rate * CONFIRM_S)), seed + step, limit_ms)
        low, high = (rate, high) if found.over <= 0.01 else (low, rate)
        rate = (low + high) / 2 if low else 0.8 * high
    return low


def parsed(name: str, called: str) -> Candidate:
    """A setting from its key."""
    size, delay, workers = (int(part.partition("=")[2]) for part in name.split())
    return Candidate(called, size, delay, workers)


@dataclass(frozen=True)
class Compared:
    """The plan's choice against the grid's.

    Attributes:
        rates: requests a second of each finalist, a figure a round.
        settings: in words.
        best: the finalist of the grid with the largest median.
        ratio: the plan's median over that one's.
        planned_s: the measurement and the plan.
        grid_s: the grid, as it was searched; what cannot beat the best so far is pruned.
        unpruned_s: the same had every setting been looked at for as long as those that were.
    """

    rates: dict[str, list[float]]
    settings: dict[str, str]
    best: str
    ratio: float
    planned_s: float
    grid_s: float
    unpruned_s: float


def compared(record: dict[str, Any]) -> Compared:
    """The finalists of a record in which all parts are done."""
    rates: dict[str, list[float]] = {}
    settings = {}
    for found in record["confirmed"].values():
        rates.setdefault(found["name"], []).append(found["rate_per_s"])
        settings[found["name"]] = words(Candidate(found["name"], found["batch_size"], found["max_batch_delay_ms"], found["workers"]))
    best_name = max((name for name in rates if name != "plan"), key=lambda name: median(rates[name]))
    grid = [found for name, found in record[PART].items() if name.startswith("b=")]
    started_s = sum(found.get("start_s", 0.0) for found in grid)
    looked = [found["wall_s"] for found in grid if found["how"].startswith("after")]
    return Compared(
        rates,
        settings,
        best_name,
        median(rates["plan"]) / median(rates[best_name]),
        record["measure_s"] + record[PART]["plan"]["wall_s"],
        started_s + sum(found["wall_s"] for found in grid),
        started_s + median(looked) * len(grid),
    )
