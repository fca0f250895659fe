"""batchline's models on the servers that a user would pick instead, side by side in one run: `make bench`.

First each server, one after another, is started with each of its process counts, checked against batchline's answers and
loaded briefly; it keeps the count that was fastest. Then come rounds: in each, every server in turn gets the same loads, in
an order that alternates, so that a machine whose speed drifts slows all alike. What counts is a ratio within a round.
The load comes from this machine's own cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import agree
import contestants
import driver
import environments
import prepare
import requests
import showcompare
from contestants import CONTESTANTS
from plan import Entry, Plan
from rich.console import Console
from running import Job, NotRun, Running

from batchline import runfile
from batchline.errors import BatchlineError

TUNE_CLIENTS = 8
TUNE_S = 1.5
FIRST_WARM_S = 2.0  # a JVM compiles what it runs often
WARM_S = 0.5
IDLE_S = 1.0
IDLE_SHARE = 0.03  # of a core; a server that uses more while nobody asks is ended between its turns
OWN_LOAD = 0.7
CAPABLE = 0.9  # of its capacity; an equal load above that would only measure how long it was overloaded
MOST_OPEN_PER_S = 1000.0  # what the generator sends on time while it shares two cores with a server
EQUAL_LOAD_OF = ("fastapi", "flask", "litserve", "bentoml", "ray", "mlserver")
BATCHES = {"digits": (32, 1.0), "efficientnet_lite0": (8, 2.0), "minilm": (8, 2.0)}  # batch size, delay ms: of all that batch


def answers(running: Running) -> list[Any]:
    """One answer to each body, read as batchline's are. Raises NotRun for one that is none."""
    found = []
    for body in running.target.bodies:
        reply = requests.post(running.target.url, body, headers=running.target.headers, timeout=60)
        if reply.status_code != 200:
            raise NotRun(f"answered {reply.status_code}: {reply.text[:200]}")
        found.append(running.read(reply.content))
    return found


def start(entry: Entry, processes: int, reference: list[Any] | None) -> Running:
    """Starts it, checks its answers, warms it up. Raises NotRun, with nothing left running."""
    threads = 1 if entry.job.model in driver.WRK_MODELS else max(1, (os.cpu_count() or 1) // processes)  # a second one only costs there
    running = entry.contestant.start(replace(entry.job, processes=processes, threads=threads))
    try:
        if reference:
            pairs = zip(reference, answers(running), strict=True)
            entry.off = max(agree.compare(ours, theirs, entry.contestant.exact) for ours, theirs in pairs)
        warm(running, driver.generator_for(entry.job.model), FIRST_WARM_S)
    except agree.Disagree as error:
        running.end()
        raise NotRun(f"{error}") from None
    except BaseException:
        running.end()
        raise
    return running


def warm(running: Running, generator: str, seconds: float) -> None:
    """Some load of which nothing is kept."""
    driver.closed(running.target, TUNE_CLIENTS, seconds, generator)


def tune(entry: Entry, plan: Plan, reference: list[Any]) -> None:
    """Tries its process counts and leaves the fastest running; sets `problem` when none ran."""
    best = 0.0
    for processes in plan.processes or entry.contestant.tries:
        try:
            with plan.turn():
                running = start(entry, processes, reference)
                told = driver.closed(running.target, TUNE_CLIENTS, TUNE_S, driver.generator_for(plan.model))
        except (NotRun, BatchlineError, requests.RequestException) as error:
            entry.problem = f"with {processes} processes: {error}"
            continue
        entry.tuning.append({"processes": processes, **asdict(told)})
        if told.per_s > best:
            entry.end()
            best, entry.running, entry.job = told.per_s, running, running.job
        else:
            running.end()
    if entry.running:
        entry.problem = ""
        with plan.turn():
            keep_or_end(entry)


def keep_or_end(entry: Entry) -> None:
    """Ends a server that is busy while nobody asks: it would slow the others' turns."""
    assert entry.running
    if entry.idle_share is None:
        before = entry.running.cpu_s()
        time.sleep(IDLE_S)
        entry.idle_share = (entry.running.cpu_s() - before) / IDLE_S
    if entry.idle_share > IDLE_SHARE:
        entry.end()


def take_turn(entry: Entry, plan: Plan, round_number: int, equal_per_s: float | None, reference: list[Any]) -> None:
    """All loads of one round on one server."""
    if entry.bare:
        told = contestants.bare_per_s(entry.job, plan.seconds)
        entry.rounds.append({"round": round_number, "loop": "bare", **told})
        return
    if entry.running is None:
        entry.running = start(entry, entry.job.processes, reference)
    else:
        warm(entry.running, driver.generator_for(plan.model), WARM_S)
    target, capacity = entry.running.target, 0.0
    for clients in plan.clients:
        told = driver.closed(target, clients, plan.seconds, driver.generator_for(plan.model))
        capacity = max(capacity, told.per_s)
        entry.rounds.append({"round": round_number, "loop": "closed", **asdict(told)})
    rates = {"own": OWN_LOAD * capacity}
    if equal_per_s and equal_per_s < CAPABLE * capacity:
        rates["equal"] = equal_per_s
    for loop, rate in rates.items():
        told = driver.opened(target, min(rate, MOST_OPEN_PER_S), plan.seconds, seed=round_number + 1)
        entry.rounds.append({"round": round_number, "loop": loop, **asdict(told)})
    entry.memory = entry.memory or entry.running.memory_mib()
    keep_or_end(entry)


def equal_load(entries: list[Entry]) -> float | None:
    """70% of what the best Python peer did while it was tuned; of those in the run's own runtime, which names none."""
    peers = [entry for entry in entries if entry.name in EQUAL_LOAD_OF]
    best = max((told["per_s"] for entry in peers for told in entry.tuning), default=None)
    return min(OWN_LOAD * best, MOST_OPEN_PER_S) if best else None


def measure(entries: list[Entry], plan: Plan, reference: list[Any], console: Console, keep: Callable[[float | None], Any]) -> float | None:
    """Tuning, then the rounds, kept one by one. A server that fails on the way is named and left out of later rounds."""
    for entry in entries:
        if not entry.bare:
            tune(entry, plan, reference)
            told = ", ".join(f"{one['processes']} processes {one['per_s']:.1f}/s" for one in entry.tuning)
            idle = "" if entry.idle_share is None else f"; idle {entry.idle_share:.1%} of a core"
            console.print(f"tuned {entry.name}: {told or 'not run'}{idle} {entry.problem}", highlight=False, soft_wrap=True)
    equal_per_s = equal_load(entries)
    for number in range(plan.rounds):
        for entry in entries if number % 2 == 0 else entries[::-1]:
            if entry.problem:
                continue
            try:
                with plan.turn():
                    take_turn(entry, plan, number, equal_per_s, reference)
            except (NotRun, BatchlineError, requests.RequestException) as error:
                entry.problem = f"in round {number + 1}: {error}"
                entry.end()
        console.print(f"round {number + 1} of {plan.rounds} done")
        keep(equal_per_s)
    return equal_per_s


def reference_answers(job: Job, plan: Plan) -> list[Any]:
    """What batchline answers, as its archive was built."""
    with plan.turn():
        running = CONTESTANTS["ours"].start(job)
        try:
            return answers(running)
        finally:
            running.end()


def entry_of(name: str, base: Job) -> Entry:
    """NAME or NAME:RUNTIME -> an entry. Raises SystemExit for a name that is none."""
    plain, _, runtime = name.partition(":")
    if plain not in CONTESTANTS:
        raise SystemExit(f"there is no server {plain}; known are {', '.join(CONTESTANTS)}")
    contestant = CONTESTANTS[plain]
    chosen = runtime or ("archive" if plain == "ours" else base.runtime)
    if chosen == "onnx":
        prepare.as_onnx(base.model)
    return Entry(name, contestant, replace(base, runtime=chosen, processes=contestant.tries[0]))


def package_versions(entries: list[Entry]) -> dict[str, str]:
    """The peers' own packages."""
    found = {}
    for entry in entries:
        for package in entry.contestant.packages:
            for python in (Path(sys.executable), *(environments.python_of(peer) for peer in environments.PEERS)):
                code = f"from importlib.metadata import version; print(version({package!r}))"
                done = environments.run([str(python), "-c", code], check=False) if python.exists() else None
                if done and not done.returncode:
                    found[package] = done.stdout.strip()
                    break
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, choices=list(BATCHES))
    parser.add_argument("--servers", default=",".join(CONTESTANTS), help="comma-separated, each NAME or NAME:RUNTIME")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--runtime", choices=("eager", "onnx"), default="eager", help="of every server that names none; ours: its archive's"
    )
    parser.add_argument("--processes", default="", help="counts to try with every server, instead of its own list")
    parser.add_argument("--batch-size", type=int, help="of every server that batches")
    parser.add_argument("--delay-ms", type=float, help="of every server that waits for a batch")
    parser.add_argument("--lock", type=Path, help="a file to lock while measuring, as flock(1) does; let go about every 150 s")
    parser.add_argument("-o", "--output", type=Path, help="results.json, with every number")
    return parser.parse_args()


@dataclass(frozen=True)
class Record:
    """results.json: what is known so far, kept after every round.

    Attributes:
        path: None to keep nothing.
        given: model, machine, versions and plan.
        entries: the servers.
    """

    path: Path | None
    given: dict[str, Any]
    entries: list[Entry]

    def keep(self, equal_per_s: float | None) -> dict[str, Any]:
        """Writes and returns it."""
        plan = {**self.given["plan"], "equal_per_s": equal_per_s}
        results = {**self.given, "plan": plan, "servers": [showcompare.as_result(entry) for entry in self.entries]}
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            runfile.put(self.path, results)
        return results


def record_of(output: Path | None, plan: Plan, base: Job, entries: list[Entry]) -> Record:
    """With nothing measured yet."""
    numbers = {"clients": plan.clients, "seconds": plan.seconds, "rounds": plan.rounds, "batch_size": base.batch_size}
    numbers |= {"delay_ms": base.delay_ms, "generator": driver.generator_for(plan.model)}
    versions = runfile.versions() | package_versions(entries)
    return Record(output, {"model": plan.model, "machine": asdict(runfile.machine()), "versions": versions, "plan": numbers}, entries)


def job_of(said: argparse.Namespace) -> Job:
    """What every server is to serve, before its process count is known."""
    batch_size, delay_ms = BATCHES[said.model]
    bodies = tuple(path.read_bytes() for path in sorted((prepare.ROOT / "models" / said.model / "samples").iterdir()))
    delay_ms = delay_ms if said.delay_ms is None else said.delay_ms
    return Job(said.model, said.runtime, bodies, 1, 1, said.batch_size or batch_size, delay_ms)


def numbers(words: str) -> list[int]:
    """Words such as 1,8,32."""
    return [int(word) for word in words.split(",") if word]


def main() -> None:
    """Measures and prints; writes results.json."""
    said, console = parse(), Console(width=160)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as Ctrl-C does: with no server left
    plan = Plan(said.model, numbers(said.clients), said.seconds, said.rounds, numbers(said.processes), said.lock)
    prepare.unpack(said.model)
    base = job_of(said)
    entries = [entry_of(name, base) for name in said.servers.split(",")]
    record = record_of(said.output, plan, base, entries)
    try:
        reference = reference_answers(replace(base, runtime="archive"), plan)
        equal_per_s = measure(entries, plan, reference, console, record.keep)
    finally:
        for entry in entries:
            entry.end()
        plan.let_go()
    showcompare.show(record.keep(equal_per_s), console)


if __name__ == "__main__":
    main()
