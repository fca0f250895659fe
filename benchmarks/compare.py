"""batchline's models on the servers that a user would pick instead, side by side in one run: `make bench`.

First each server, one after another, is started with each of its process counts and then with each batch size, checked
against batchline's answers and loaded briefly; it keeps what was fastest. Then come rounds: in each, every server in turn gets
the same loads, in an order that alternates, so that a machine whose speed drifts slows all alike. What counts is a ratio
within a round.
The load comes from this machine's own cores.
"""

from __future__ import annotations

import argparse
import json
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
import psutil
import requests
import showcompare
from contestants import CONTESTANTS
from plan import Entry, Plan
from rich.console import Console
from running import Job, NotRun, Others, Running, set_group_niceness
from turns import Turns

from batchline import runfile
from batchline.errors import BatchlineError

TUNE_S = 1.2
WARM_S = 0.5
SETTLE_S, IDLE_S = 0.7, 1.0
HOLD_S = 150.0  # of the lock, at least
LEAST_FREE = 6 << 30  # bytes; with less than that a server is ended between its turns, whatever it does meanwhile
IDLE_SHARE = 0.03  # of a core; a server that uses more while nobody asks is ended between its turns
OWN_LOAD = 0.7
CAPABLE = 0.9  # of its capacity; an equal load above that would only measure how long it was overloaded
MOST_OPEN_PER_S = 1000.0  # what the generator sends on time while it shares two cores with a server
EQUAL_LOAD_OF = ("fastapi", "flask", "litserve", "bentoml", "ray", "mlserver")
TUNE_CLIENTS = {"digits": 32, "efficientnet_lite0": 8, "minilm": 8}
BATCHES = {  # batch size and delay in ms that each server may choose from; the first while its process count is chosen
    "digits": ((32, 1.0), (16, 1.0), (32, 0.0)),
    "efficientnet_lite0": ((8, 2.0), (1, 1.0), (4, 2.0)),
    "minilm": ((8, 2.0), (4, 1.0), (16, 2.0)),
}


def answers(running: Running) -> list[Any]:
    """One answer to each body, read as batchline's are. Raises NotRun for one that is none."""
    found = []
    for body in running.target.bodies:
        reply = requests.post(running.target.url, body, headers=running.target.headers, timeout=60)
        if reply.status_code != 200:
            raise NotRun(f"answered {reply.status_code}: {reply.text[:200]}")
        found.append(running.read(reply.content))
    return found


def with_processes(job: Job, processes: int) -> Job:
    """A job for so many processes, which share the cores; digits computes in one thread, because a second one only costs there."""
    threads = 1 if job.model in driver.WRK_MODELS else max(1, (os.cpu_count() or 1) // processes)
    return replace(job, processes=processes, threads=threads)


def start(entry: Entry, job: Job, reference: list[Any] | None) -> Running:
    """Starts it, checks its answers, warms it up. Raises NotRun, with nothing left running."""
    running = entry.contestant.start(job)
    set_group_niceness((process.pid for process in running.tree()), job.niceness)
    try:
        if reference:
            pairs = zip(reference, answers(running), strict=True)
            entry.off = max(agree.compare(ours, theirs, entry.contestant.exact) for ours, theirs in pairs)
        warm(running, entry.contestant.warm_s)
    except agree.Disagree as error:
        running.end()
        raise NotRun(f"{error}") from None
    except BaseException:
        running.end()
        raise
    return running


def warm(running: Running, seconds: float) -> None:
    """Some load of which nothing is kept."""
    model = running.job.model
    driver.closed(running.target, TUNE_CLIENTS[model], seconds, driver.generator_for(model))


def tune(entry: Entry, plan: Plan, reference: list[Any]) -> None:
    """Tries its process counts, then its batch sizes with the fastest of them; leaves the best running, or `problem` set."""
    if entry.tuning:
        return
    for processes in plan.processes or entry.contestant.tries:
        attempt(entry, plan, with_processes(entry.job, processes), reference)
    first = entry.job  # with the fastest count, when one ran
    if entry.contestant.batches and entry.tuning:
        for batch_size, delay_ms in plan.batches[1:]:
            if delay_ms >= entry.contestant.shortest_delay_ms:
                attempt(entry, plan, replace(first, batch_size=batch_size, delay_ms=delay_ms), reference)
    if entry.tuning:
        entry.problem = ""
    if entry.running:
        with plan.turns.turn():
            keep_or_end(entry)


def as_tuned(entry: Entry, path: Path) -> None:
    """Its tries in an earlier run, and the fastest of them, so that it is not tuned again; nothing where it was not in it."""
    for server in json.loads(path.read_text(encoding="utf-8"))["servers"]:
        if server["name"] == entry.name and server["tuning"]:
            entry.tuning = server["tuning"]
            best = max(entry.tuning, key=lambda told: told["per_s"])
            chosen = with_processes(entry.job, best["processes"])
            entry.job = replace(chosen, batch_size=best["batch_size"], delay_ms=best["delay_ms"])


def attempt(entry: Entry, plan: Plan, job: Job, reference: list[Any]) -> None:
    """One way to run it, under brief load; it stays when it is the fastest so far."""
    told_of = {"processes": job.processes, "batch_size": job.batch_size, "delay_ms": job.delay_ms}
    best = max((told["per_s"] for told in entry.tuning), default=0.0)
    try:
        with plan.turns.turn():
            if entry.bare:
                running, told = None, contestants.bare_per_s(job, TUNE_S)
            else:
                running = start(entry, job, reference)
                told = asdict(driver.closed(running.target, plan.tune_clients, TUNE_S, plan.generator))
    except (NotRun, BatchlineError, requests.RequestException) as error:
        entry.problem = f"with {told_of}: {error}"
        return
    entry.tuning.append({**told_of, **told})
    if told["per_s"] > best:
        entry.end()
        entry.running, entry.job = running, job
    elif running:
        running.end()


def keep_or_end(entry: Entry) -> None:
    """Ends a server that is busy while nobody asks, for it would slow the others' turns, and any one where memory runs short."""
    assert entry.running
    if entry.idle_share is None:
        time.sleep(SETTLE_S)
        before = entry.running.cpu_s()
        time.sleep(IDLE_S)
        entry.idle_share = (entry.running.cpu_s() - before) / IDLE_S
    if entry.idle_share > IDLE_SHARE or psutil.virtual_memory().available < LEAST_FREE:
        entry.end()


def take_turn(entry: Entry, plan: Plan, round_number: int, equal_per_s: float | None, reference: list[Any]) -> None:
    """All loads of one round on one server."""
    if entry.bare:
        others = Others(None)
        told = contestants.bare_per_s(entry.job, plan.seconds)
        entry.rounds.append({"round": round_number, "loop": "bare", "other_cores": others.cores(), **told})
        return
    if entry.running is None:
        entry.running = start(entry, entry.job, reference)
    else:
        warm(entry.running, WARM_S)
    target, capacity = entry.running.target, 0.0
    for clients in plan.clients:
        others = Others(entry.running)
        told = driver.closed(target, clients, plan.seconds, plan.generator)
        capacity = max(capacity, told.per_s)
        entry.rounds.append({"round": round_number, "loop": "closed", "other_cores": others.cores(), **asdict(told)})
    rates = {"own": OWN_LOAD * capacity}
    if equal_per_s and equal_per_s < CAPABLE * capacity:
        rates["equal"] = equal_per_s
    for loop, rate in rates.items():
        others = Others(entry.running)
        told = driver.opened(target, min(rate, MOST_OPEN_PER_S), plan.seconds, seed=round_number + 1)
        entry.rounds.append({"round": round_number, "loop": loop, "other_cores": others.cores(), **asdict(told)})
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
        tune(entry, plan, reference)
        tried = (f"{one['processes']}x{one['batch_size']}/{one['delay_ms']:g}ms {one['per_s']:.1f}/s" for one in entry.tuning)
        idle = "" if entry.idle_share is None else f"; idle {entry.idle_share:.1%} of a core"
        console.print(f"tuned {entry.name}: {', '.join(tried) or 'not run'}{idle} {entry.problem}", highlight=False, soft_wrap=True)
    equal_per_s = equal_load(entries)
    for number in range(plan.rounds):
        for entry in entries if number % 2 == 0 else entries[::-1]:
            if entry.problem or (number and entry.name.startswith("naive")):  # slow, and what they are is clear after one
                continue
            try:
                with plan.turns.turn():
                    take_turn(entry, plan, number, equal_per_s, reference)
            except (NotRun, BatchlineError, requests.RequestException) as error:
                entry.problem = f"in round {number + 1}: {error}"
                entry.end()
        console.print(f"round {number + 1} of {plan.rounds} done")
        keep(equal_per_s)
    return equal_per_s


def reference_answers(job: Job, plan: Plan) -> list[Any]:
    """What batchline answers, as its archive was built."""
    with plan.turns.turn():
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
    chosen = runtime or ("archive" if plain.startswith("ours") else base.runtime)
    if chosen == "onnx":
        prepare.as_onnx(base.model)
    return Entry(name, contestant, with_processes(replace(base, runtime=chosen), contestant.tries[0]))


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
    parser.add_argument("--tune-clients", type=int, help="of the loads that settings are chosen by, instead of the model's own")
    parser.add_argument("--generator", choices=("wrk", "batchline"), help="of the closed loops, instead of wrk for digits and batchline")
    parser.add_argument("--tuned", type=Path, help="results.json of an earlier run, whose settings are taken instead of tuning anew")
    parser.add_argument("--processes", default="", help="counts to try with every server, instead of its own list")
    parser.add_argument(
        "--batches", default="", help="such as 8/2,1/1: batch sizes and delays in ms to try, instead of the model's own list"
    )
    parser.add_argument(
        "--niceness", type=int, default=0, help="of the servers' sessions and this one; below 0 (as root) they go before what else runs"
    )
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


def record_of(output: Path | None, plan: Plan, entries: list[Entry]) -> Record:
    """With nothing measured yet."""
    numbers = {"clients": plan.clients, "seconds": plan.seconds, "rounds": plan.rounds, "batches": plan.batches}
    numbers |= {"tune_clients": plan.tune_clients, "niceness": plan.niceness, "generator": plan.generator}
    versions = runfile.versions() | package_versions(entries)
    return Record(output, {"model": plan.model, "machine": asdict(runfile.machine()), "versions": versions, "plan": numbers}, entries)


def job_of(said: argparse.Namespace) -> Job:
    """What every server is to serve, before its process count is known."""
    batch_size, delay_ms = batches_of(said)[0]
    bodies = tuple(path.read_bytes() for path in sorted((prepare.ROOT / "models" / said.model / "samples").iterdir()))
    return Job(said.model, said.runtime, bodies, 1, 1, batch_size, delay_ms, said.niceness)


def batches_of(said: argparse.Namespace) -> list[tuple[int, float]]:
    """What was asked for, else the model's own list."""
    asked = [word.split("/") for word in said.batches.split(",") if word]
    return [(int(size), float(delay)) for size, delay in asked] or list(BATCHES[said.model])


def numbers(words: str) -> list[int]:
    """Words such as 1,8,32."""
    return [int(word) for word in words.split(",") if word]


def main() -> None:
    """Measures and prints; writes results.json."""
    said, console = parse(), Console(width=160)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as Ctrl-C does: with no server left
    turns = Turns(said.lock, HOLD_S)
    tune_clients, generator = said.tune_clients or TUNE_CLIENTS[said.model], said.generator or driver.generator_for(said.model)
    tried = (numbers(said.processes), batches_of(said), tune_clients, generator)
    plan = Plan(said.model, numbers(said.clients), said.seconds, said.rounds, *tried, said.niceness, turns)
    set_group_niceness([os.getpid()], said.niceness)
    prepare.freeze(said.model)
    base = job_of(said)
    entries = [entry_of(name, base) for name in said.servers.split(",")]
    for entry in entries if said.tuned else ():
        as_tuned(entry, said.tuned)
    record = record_of(said.output, plan, entries)
    try:
        reference = reference_answers(replace(base, runtime="archive"), plan)
        equal_per_s = measure(entries, plan, reference, console, record.keep)
    finally:
        for entry in entries:
            entry.end()
        plan.turns.let_go()
    showcompare.show(record.keep(equal_per_s), console)


if __name__ == "__main__":
    main()
