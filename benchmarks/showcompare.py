"""A run of compare.py as a person reads it: `python benchmarks/showcompare.py results.json` shows a stored one."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OURS = "ours"
DISTURBED = 0.1  # of a core for other work, by median
Result = dict[str, Any]


def as_result(entry: Any) -> Result:
    """What is kept of one server."""
    job = entry.job
    return {
        "name": entry.name,
        "title": entry.contestant.title,
        "runtime": job.runtime,
        "processes": job.processes,
        "threads": job.threads,
        "batch_size": job.batch_size if entry.contestant.batches else 1,
        "delay_ms": job.delay_ms if entry.contestant.batches else 0.0,
        "not_run": entry.problem,
        "largest_difference": entry.off,
        "exact": entry.contestant.exact,
        "idle_share": entry.idle_share,
        "memory_mib": entry.memory,
        "tuning": entry.tuning,
        "rounds": entry.rounds,
    }


def show(results: Result, console: Console) -> None:
    """A table of rates and ratios, one of latencies, one of memory; then who did not run and why."""
    servers = [server for server in results["servers"] if server["rounds"]]
    plan = results["plan"]
    console.print(rates(servers, plan, results["model"]), latencies(servers, plan), memory(servers))
    for server in results["servers"]:
        if server["not_run"]:
            console.print(f"{server['name']}: not run: {server['not_run']}", highlight=False, soft_wrap=True)
    for server in servers:
        faults = [fault for told in server["rounds"] for fault in told.get("invalid", ())]
        failed = sum(told.get("failed", 0) for told in server["rounds"])
        if failed or faults:
            doubt = f"; {len(faults)} loads in doubt, such as: {max(faults)}" if faults else ""
            console.print(f"{server['name']}: {failed} requests failed{doubt}", highlight=False, soft_wrap=True)
    others = [told["other_cores"] for server in servers for told in server["rounds"] if "other_cores" in told]
    if others:
        most, middle_one = max(others), statistics.median(others)
        said = f"other work had {middle_one:.2f} of the {results['machine']['cores']} cores while these were measured, {most:.2f} at most"
        console.print(
            f"{said}{'' if middle_one < DISTURBED else ': DISTURBED, measure again when it is quiet'}", highlight=False, soft_wrap=True
        )
    machine, given = results["machine"], f"each tuned with {plan['tune_clients']} clients"
    said = f"{plan['rounds']} rounds of {plan['seconds']:g} s a load, alternating; {given}; closed loops by {plan['generator']}; "
    console.print(f"{said}{machine['cores']} cores of {machine['cpu']}, the load on the same cores", highlight=False, soft_wrap=True)


def rates(servers: list[Result], plan: Result, model: str) -> Table:
    """Requests a second: median (least .. most), and what ours does for one of theirs, by round: median."""
    shown = Table(title=f"{model}: requests/s, median (least .. most) of {plan['rounds']} rounds; ours / theirs within a round")
    shown.add_column("server")
    shown.add_column("processes x batch", justify="right")
    for clients in plan["clients"]:
        shown.add_column(f"{clients} clients", justify="right")
        shown.add_column("ours/", justify="right")
    ours = next((server for server in servers if server["name"] == OURS), None)
    for server in servers:
        cells = []
        for clients in plan["clients"]:
            found = by_round(server, clients)
            cells += [spread(list(found.values())), ratio(by_round(ours, clients) if ours else {}, found)]
        shown.add_row(label(server), f"{server['processes']} x {server['batch_size']}", *cells)
    return shown


def latencies(servers: list[Result], plan: Result) -> Table:
    """p50 and p99 of the closed loops, p99 of the open ones: medians over rounds, milliseconds."""
    equal = f" and {plan['equal_per_s']:.0f}/s" if plan["equal_per_s"] else ""
    shown = Table(title=f"ms, median of rounds; open loop (Poisson) at 70% of its own capacity{equal}")
    shown.add_column("server")
    for clients in plan["clients"]:
        shown.add_column(f"{clients}: p50", justify="right")
        shown.add_column("p99", justify="right")
    for name in ("70%: rate/s", "p50", "p99", "equal: p50", "p99"):
        shown.add_column(name, justify="right")
    for server in servers:
        closed = [told for told in server["rounds"] if told["loop"] == "closed"]
        cells = [middle(closed, key, clients=clients) for clients in plan["clients"] for key in ("p50_ms", "p99_ms")]
        own, same = ([told for told in server["rounds"] if told["loop"] == loop] for loop in ("own", "equal"))
        cells += [
            middle(own, "offered_per_s"),
            middle(own, "p50_ms"),
            middle(own, "p99_ms"),
            middle(same, "p50_ms"),
            middle(same, "p99_ms"),
        ]
        shown.add_row(label(server), *cells)
    return shown


def memory(servers: list[Result]) -> Table:
    """Resident memory, and how far answers were from ours."""
    shown = Table(title="resident memory, MiB, and answers")
    for name in ("server", "processes", "sum", "sum, shared pages once", "largest process", "idle CPU", "answers off by"):
        shown.add_column(name, justify="left" if name == "server" else "right")
    for server in servers:
        held, off = server["memory_mib"], server["largest_difference"]
        if held:
            figures = (f"{held[key]:.0f}" for key in ("processes", "rss", "pss", "largest"))
            apart = "-" if off is None else f"{off:.1e}" + ("" if server["exact"] else " (own preprocessing)")
            shown.add_row(label(server), *figures, f"{server['idle_share']:.1%}", apart)
    return shown


def label(server: Result) -> str:
    """Its title, and its runtime where that is not eager PyTorch."""
    return server["title"] + ("" if server["runtime"] in ("eager", "archive") else f" ({server['runtime']})")


def by_round(server: Result, clients: int) -> dict[int, float]:
    """Round -> requests a second; the bare loop has no clients."""
    loops = [told for told in server["rounds"] if told["loop"] == "bare" or (told["loop"] == "closed" and told["clients"] == clients)]
    return {told["round"]: told["per_s"] for told in loops}


def spread(values: list[float]) -> str:
    """Median (least .. most)."""
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} .. {max(values):.1f})"


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """Median over the rounds that both have."""
    found = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number]]
    return f"{statistics.median(found):.2f}" if found else "-"


def middle(told: list[Result], key: str, **like: object) -> str:
    """Median of one figure over the measurements that are like this."""
    values = [one[key] for one in told if all(one[name] == value for name, value in like.items()) and one[key] is not None]
    return f"{statistics.median(values):.1f}" if values else "-"


if __name__ == "__main__":
    show(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Console(width=160))
