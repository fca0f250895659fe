"""What `make bench` is to reach, and what stored runs of it did, as a Markdown table: `python benchmarks/bars.py results/bench-*.json`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import EQUAL_LOAD_OF as PEERS
from showcompare import by_round, label

Result = dict[str, Any]
IN_ONNX = tuple(f"{name}:onnx" for name in PEERS)
LOUD = 0.25  # of a core for other work
STOCK = ("torchserve-defaults", "torchserve-tuned")


@dataclass(frozen=True)
class Bar:
    """Requests a second of ours against the best of some servers.

    Attributes:
        model: its name.
        against: in words.
        servers: their names; the one with the highest median counts.
        clients: of the closed loop.
        least: ratio; None where it is only told.
        ours: which of ours.
    """

    model: str
    against: str
    servers: tuple[str, ...]
    clients: int
    least: float | None = None
    ours: str = "ours"


BARS = (
    Bar("efficientnet_lite0", "best Python peer, the same eager PyTorch", PEERS, 8, 4.0),
    Bar("efficientnet_lite0", "best Python peer in our winning runtime", IN_ONNX, 8, 1.2),
    Bar("efficientnet_lite0", "the bare loop in our winning runtime", ("bare:onnx",), 8, 0.85),
    Bar("efficientnet_lite0", "the same handler on Triton", ("ours-triton",), 8),
    Bar("digits", "TorchServe, its defaults", ("torchserve-defaults",), 32, 15.0),
    Bar("digits", "best Python peer", PEERS, 32, 2.0),
    Bar("digits", "a hand-written Triton Python model", ("triton",), 32, 0.9),
    Bar("digits", "the same, ours exported to Triton", ("triton",), 32, 0.85, ours="ours-triton"),
    Bar("digits", "the same handler on Triton", ("ours-triton",), 32),
    Bar("minilm", "TorchServe, a plain handler, its defaults", ("torchserve-defaults",), 8, 3.0),
    Bar("minilm", "TorchServe, a plain handler, its defaults", ("torchserve-defaults",), 32, 3.0),
    Bar("minilm", "the bare loop in our winning runtime", ("bare:onnx",), 8, 0.8),
    Bar("minilm", "the bare loop in our winning runtime", ("bare:onnx",), 32, 0.8),
    Bar("minilm", "best Python peer in our winning runtime", IN_ONNX, 32),
    Bar("minilm", "the same handler on Triton", ("ours-triton",), 32),
)


def main(paths: list[str]) -> None:
    """Prints a row for each bar whose model was run, of the run that knows most about it."""
    runs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    print("| model | ours against | clients | ours / theirs (least .. most) | at least | reached |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for bar in BARS:
        able = [run for run in runs if run["model"] == bar.model]
        if able:
            run = max(able, key=lambda one: knows(one, bar))
            row(bar.model, *throughput(bar, run))
        if able and bar is BARS[0]:
            row(bar.model, *tail(run))
    for run in runs:
        if servers(run, STOCK):
            row(run["model"], *memory(run))


def knows(run: Result, bar: Bar) -> tuple[bool, bool]:
    """Whether it has the servers of a bar with so many clients, and whether their settings were chosen with as many."""
    both = (servers(run, (bar.ours,)), servers(run, bar.servers))
    return all(any(by_round(one, bar.clients) for one in each) for each in both), run["plan"]["tune_clients"] == bar.clients


def row(*cells: str) -> None:
    """One of the table."""
    print(f"| {' | '.join(cells)} |")


def throughput(bar: Bar, run: Result) -> tuple[str, ...]:
    """Ratios within a round, against the best by median."""
    ours = quiet(found(run, bar.ours), bar.clients)
    theirs = max(
        (server for server in servers(run, bar.servers) if by_round(server, bar.clients)),
        key=lambda one: rate(one, bar.clients),
        default=None,
    )
    if theirs is None:
        return bar.against, str(bar.clients), "not run", word(bar.least), "-"
    other = quiet(theirs, bar.clients)
    ratios = [ours[number] / other[number] for number in sorted(ours.keys() & other.keys())]
    if not ratios:
        return bar.against, str(bar.clients), "no round without a disturbance", word(bar.least), "-"
    middle, rounds = statistics.median(ratios), run["plan"]["rounds"]
    of = "" if len(ratios) == rounds else f", {len(ratios)} of {rounds} rounds"
    reached = "-" if bar.least is None else "yes" if middle >= bar.least else f"no, {1 - middle / bar.least:.0%} short"
    named = f"{bar.against} ({label(theirs)})" if len(bar.servers) > 1 else bar.against
    return named, str(bar.clients), f"{middle:.2f} ({min(ratios):.2f} .. {max(ratios):.2f}{of})", word(bar.least), reached


def tail(run: Result) -> tuple[str, ...]:
    """p99 of the open loop whose rate is the same for all, against the Python peer that has the lowest; above 1 is ours lower."""
    mine = tails(found(run, "ours"))
    rivals = [server for server in servers(run, PEERS) if tails(server)]
    what = "p99 at equal load, best eager Python peer"
    if not mine or not rivals:
        return what, "open", "no peer bears it", "1", "-"
    theirs = min(rivals, key=lambda one: statistics.median(tails(one).values()))
    ratios = [tails(theirs)[number] / mine[number] for number in sorted(mine.keys() & tails(theirs).keys())]
    if not ratios:
        return what, "open", "no round without a disturbance", "1", "-"
    middle = statistics.median(ratios)
    cells = f"{middle:.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) times as long"
    return f"{what} ({label(theirs)})", "open", cells, "1", "yes" if middle > 1 else "no"


def memory(run: Result) -> tuple[str, ...]:
    """The largest worker's resident memory against the stock or plain handler's, whichever has less."""
    mine = found(run, "ours")["memory_mib"].get("worker")
    theirs = min((server["memory_mib"]["worker"] for server in servers(run, STOCK) if server["memory_mib"].get("worker")), default=None)
    what = "memory of a worker, TorchServe with the stock or a plain handler"
    if not mine or not theirs:
        return what, "-", "not measured", "lower", "-"
    return what, "-", f"{mine / theirs:.2f} ({mine:.0f} MiB, {theirs:.0f} MiB)", "lower", "yes" if mine < theirs else "no"


def quiet(server: Result, clients: int) -> dict[int, float]:
    """Round -> requests a second, less those loads while which other work had a quarter of a core or more; older runs do not know."""
    loud = {
        told["round"]
        for told in server["rounds"]
        if told.get("other_cores", 0.0) >= LOUD and (told["loop"] == "bare" or (told["loop"] == "closed" and told["clients"] == clients))
    }
    return {number: per_s for number, per_s in by_round(server, clients).items() if number not in loud}


def servers(run: Result, names: Iterable[str]) -> list[Result]:
    """Those that were measured."""
    return [server for server in run["servers"] if server["name"] in set(names) and server["rounds"]]


def found(run: Result, name: str) -> Result:
    """One server. Raises SystemExit where the run has none of that name."""
    for server in run["servers"]:
        if server["name"] == name:
            return dict(server)
    raise SystemExit(f"the run of {run['model']} has no server {name}")


def rate(server: Result, clients: int) -> float:
    """Median requests a second."""
    return statistics.median(by_round(server, clients).values())


def tails(server: Result) -> dict[int, float]:
    """Round -> p99 in ms at the load that is the same for all, less the disturbed ones."""
    loads = [told for told in server["rounds"] if told["loop"] == "equal" and told.get("other_cores", 0.0) < LOUD]
    return {told["round"]: told["p99_ms"] for told in loads if told["p99_ms"]}


def word(least: float | None) -> str:
    """A bar's number."""
    return "-" if least is None else f"{least:g}"


if __name__ == "__main__":
    main(sys.argv[1:])
