"""Part `predict`: settings that were not measured, predicted and then loaded, three times each, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from tuning import Bench, Candidates, saturated_per_s, setting_of, told, words

from batchline import verify
from batchline.load import open_loop
from batchline.queueing import Service, Setting, capacity_per_s
from batchline.simulate import simulate, simulate_times
from batchline.swept import Candidate

PART = "predict"
GROUP = 4  # settings on one server at once: memory
SEEDS = 24
SATURATE_S = 2.0
SHORTEST_S, LONGEST_S, REQUESTS = 4.0, 12.0, 900
# batch size, delay ms, workers, part of the predicted capacity; measured were others, SIZES, each when saturated.
HELD_OUT = (
    (3, 1, 1, 0.60), (6, 5, 2, 0.45), (12, 2, 1, 0.75), (24, 10, 2, 0.60),
    (1, 1, 2, 0.60), (5, 20, 1, 0.30), (10, 1, 3, 0.45), (20, 5, 1, 0.85),
    (3, 2, 2, 0.75), (9, 10, 3, 0.60), (6, 1, 1, 0.85), (12, 50, 2, 0.30),
)  # fmt: skip
Row = dict[str, Any]


def run(bench: Bench, repeats: int, most_per_s: float) -> None:
    """Loads every setting `repeats` times, as far as that was not done before."""
    chosen = [(Candidate(f"s{i}", b, d, n), share) for i, (b, d, n, share) in enumerate(HELD_OUT) if b <= bench.model.largest]
    for first in range(0, len(chosen), GROUP):
        group = chosen[first : first + GROUP]
        left = [(repeat, *pair) for repeat in range(repeats) for pair in group if not bench.done(PART, key(pair[0], repeat))]
        if not left:
            continue
        model = bench.measured_now(first // GROUP)
        bench.say(f"a server with {', '.join(words(candidate) for candidate, _ in group)}")
        with bench.serve([candidate for candidate, _ in group]) as server:
            for repeat, candidate, share in left:
                with bench.turns.turn():
                    row = step(bench, model.services[1], server, candidate, share, repeat, most_per_s)
                bench.keep(PART, key(candidate, repeat), row)
                bench.say(f"{words(candidate)} at {row['rate_per_s']:.1f}/s, repeat {repeat + 1}: {brief(row)}")


def key(candidate: Candidate, repeat: int) -> str:
    """Of a step in the record."""
    return f"{words(candidate)} {repeat}"


def step(bench: Bench, service: Service, server: Candidates, candidate: Candidate, share: float, repeat: int, most_per_s: float) -> Row:
    """One repeat of one setting: loaded between two looks at its saturated throughput, and both predicted; latency for the very
    arrivals that were sent, and once more with T(B) at the pace that was seen then: that takes out the machine's drift, and
    with it what the capacity itself has wrong.
    """
    setting = setting_of(candidate)
    capacity = capacity_per_s(service, setting)
    rate = min(share * capacity, most_per_s)
    before_per_s = saturated_per_s(server, candidate, bench.subject.bodies, SATURATE_S)
    count = int(rate * min(LONGEST_S, max(SHORTEST_S, REQUESTS / rate)))
    times, begin_s = verify.arrivals(rate, count, (candidate.batch_size, candidate.workers, repeat))
    sent = open_loop(server.target(candidate, bench.subject.bodies), times)
    figures = told(verify.counted(sent, begin_s, rate), rate, float("inf"))
    saturated = (before_per_s + saturated_per_s(server, candidate, bench.subject.bodies, SATURATE_S)) / 2
    pace = capacity / saturated  # of T(B), then against when it was measured
    return {
        **asdict(candidate),
        "share": rate / capacity,
        "rate_per_s": rate,
        "measured": asdict(figures) | {"over": None, "saturated_per_s": saturated},
        "predicted": foretold(service, setting, rate, times, begin_s) | {"saturated_per_s": capacity},
        "at_pace": foretold(replace(service, batch_ms=tuple(ms * pace for ms in service.batch_ms)), setting, rate, times, begin_s),
    }


def foretold(service: Service, setting: Setting, rate_per_s: float, times: np.ndarray, begin_s: float) -> Row:
    """Mean, p99 and mean batch for these arrivals, a mean over seeds of the noise; and p99 of the long run."""
    front = float(np.mean(service.front_end_ms))
    each = []
    for seed in range(SEEDS):
        trace = simulate_times(service, setting, times, seed=seed)
        kept = (trace.arrival_ms >= begin_s * 1e3) & (trace.batch >= 0)
        latency = (trace.done_ms - trace.arrival_ms + trace.more_ms)[kept] + front
        each.append((latency.mean(), np.percentile(latency, 99), kept.sum() / len(np.unique(trace.batch[kept]))))
    mean, p99, batch = map(float, np.mean(each, axis=0))
    long_run = simulate(service, setting, rate_per_s)
    return {
        "mean_ms": mean,
        "p99_ms": p99,
        "mean_batch_size": batch,
        "long_run_mean_ms": long_run.latency_ms.mean if long_run.stable else None,
        "long_run_p99_ms": long_run.latency_ms.p99 if long_run.stable else None,
    }


def brief(row: Row) -> str:
    """Measured against predicted in a line."""
    seen, said = row["measured"], row["predicted"]
    figures = ", ".join(f"{name} {seen[f'{name}_ms']:.1f} ({seen[f'{name}_ms'] / said[f'{name}_ms'] - 1:+.0%})" for name in ("mean", "p99"))
    return figures + (" INVALID" if seen["invalid"] else "")


def errors(rows: Sequence[Row], name: str, said: str = "predicted") -> list[float]:
    """Measured over what was said, less 1, of each repeat that says something; of all where none does."""
    sound = [row for row in rows if not row["measured"]["invalid"]] or list(rows)
    pairs = [(row["measured"][name], row.get(said, {}).get(name)) for row in sound]
    return [seen / expected - 1 for seen, expected in pairs if seen and expected]


def by_setting(record: Row) -> dict[str, list[Row]]:
    """A record's repeats of each setting, by its words."""
    rows: dict[str, list[Row]] = {}
    for row in record.get(PART, {}).values():
        rows.setdefault(f"b={row['batch_size']} D={row['max_batch_delay_ms']} N={row['workers']}", []).append(row)
    return rows
