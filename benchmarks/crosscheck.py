"""The load generator beside two others: MLPerf's LoadGen (open loop) and wrk (closed loop), on one server in one run.

python benchmarks/crosscheck.py: against tests/server/known.py, whose every answer takes 5 ms.
python benchmarks/crosscheck.py --stall-s 1 --seconds 10: the same, stopped for a second in the middle of each run.
python benchmarks/crosscheck.py --url http://127.0.0.1:8080/predictions/digits --body models/digits/samples/seven.json

Ours and the other alternate, round by round, so that a machine whose speed drifts slows both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from batchline.load import LoadRun, Target, closed_loop, draw, open_loop
from batchline.runfile import machine
from batchline.summary import summarise

HERE = Path(__file__).resolve().parent
KNOWN = HERE.parent / "tests" / "server" / "known.py"
FIGURES = ("per_s", "p50_ms", "p90_ms", "p99_ms")
UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
POST = 'wrk.method = "POST"\nlocal file = io.open("{}", "rb")\nwrk.body = file:read("*a")\n'
Figures = dict[str, float]
Measure = Callable[[], Figures]


def main() -> None:
    """One table: a row a load and generator, median (least .. most) of the rounds."""
    asked = arguments()
    missing = [*loadgen_missing(asked.loadgen_python), *([] if shutil.which("wrk") else ["wrk: apt-get install wrk"])]
    table = Table(title=f"{asked.rounds} rounds of {asked.seconds:g} s, alternating: median (least .. most)")
    for column in ("load", "generator", "answers/s", "p50 ms", "p90 ms", "p99 ms"):
        table.add_column(column, justify="left" if column in ("load", "generator") else "right")
    with tempfile.TemporaryDirectory() as folder, server(asked.url, asked.delay_ms) as (url, pid):
        body = asked.body or Path(folder) / "body"
        if asked.body is None:
            body.write_bytes(b"x")
        for load, generators in plan(asked, url, body, Path(folder)):
            stop = partial(stalled, pid, asked.stall_s, asked.seconds / 2)
            add(table, load, [{name: stop(measure) for name, measure in generators.items()} for _ in range(asked.rounds)])
    console = Console(width=140)
    console.print(table, machine(), sep="\n")
    for reason in missing:
        console.print(f"not run: {reason}", style="bold")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs; without it, one with a known delay is started")
    parser.add_argument("--body", type=Path, help="the file to POST")
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--stall-s", type=float, default=0.0, help="stop our server for so long in the middle of each run")
    parser.add_argument("--rates", type=float, nargs="*", default=[100.0, 300.0])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loadgen-python", default="/tmp/crosscheck-venv/bin/python", help="a Python with mlcommons-loadgen")
    return parser.parse_args()


def loadgen_missing(python: str) -> list[str]:
    """What to do where LoadGen cannot be imported."""
    if shutil.which(python) and not subprocess.run([python, "-c", "import mlperf_loadgen"], capture_output=True).returncode:
        return []
    venv = Path(python).parents[1]
    return [f"LoadGen: python3 -m venv {venv} && {venv}/bin/pip install mlcommons-loadgen"]


@contextmanager
def server(url: str | None, delay_ms: float) -> Iterator[tuple[str, int | None]]:
    """The one given, or one of our own with its process id."""
    if url:
        yield url, None
        return
    with subprocess.Popen([sys.executable, str(KNOWN), str(delay_ms / 1e3)], stdout=subprocess.PIPE, text=True) as known:
        assert known.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(known.stdout.readline())}/x", known.pid
        finally:
            known.kill()


def stalled(pid: int | None, stall_s: float, after_s: float, measure: Measure) -> Figures:
    """Measures while the server stands still for stall_s."""
    if pid is None or not stall_s:
        return measure()
    timers = [threading.Timer(after_s, os.kill, (pid, signal.SIGSTOP)), threading.Timer(after_s + stall_s, os.kill, (pid, signal.SIGCONT))]
    for timer in timers:
        timer.start()
    try:
        return measure()
    finally:
        for timer in timers:
            timer.join()


def plan(asked: argparse.Namespace, url: str, body: Path, folder: Path) -> Iterator[tuple[str, dict[str, Measure]]]:
    """A load and who offers it."""
    target, others = Target(url, [body.read_bytes()]), not loadgen_missing(asked.loadgen_python)
    for rate in asked.rates:
        seeds = iter(range(1, 1000))
        generators: dict[str, Measure] = {
            "batchline": lambda rate=rate, seeds=seeds: figures(open_loop(target, draw("poisson", rate, asked.seconds, next(seeds))))
        }
        if others:
            command = [asked.loadgen_python, str(HERE / "crosscheck_loadgen.py"), url, str(body), str(rate), str(asked.seconds)]
            generators["LoadGen"] = lambda command=command: json.loads(output(command).splitlines()[-1])
        yield f"open, {rate:g}/s", generators
    script = folder / "post.lua"
    script.write_text(POST.format(body.resolve()))
    for clients in asked.clients:
        generators = {"batchline": lambda clients=clients: figures(closed_loop(target, clients, asked.seconds))}
        if shutil.which("wrk"):
            command = ["wrk", "-t1", f"-c{clients}", f"-d{asked.seconds:g}s", "--latency", "-s", str(script), url]
            generators["wrk"] = lambda command=command: wrk(output(command))
        yield f"closed, {clients} clients", generators


def output(command: list[str]) -> str:
    """What it prints; its own complaint where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def figures(run: LoadRun) -> Figures:
    """Ours. LoadGen's rate is of answers until the last one, so that ours is counted in the same way here."""
    told = summarise(run)
    if set(told.statuses) != {200}:
        raise SystemExit(f"not every answer was 200: {told.statuses}")
    return {
        "invalid": float(bool(told.invalid)),
        "per_s": len(run.records) / run.duration_s,
        **{f"p{p}_ms": told.latency_ms[f"p{p}"] for p in (50, 90, 99)},
    }


def wrk(text: str) -> Figures:
    """From wrk's own report; it counts answers of other statuses on a line of their own."""
    if "Non-2xx" in text:
        raise SystemExit(text)
    found = {f"p{m[1]}_ms": float(m[2]) * UNITS_MS[m[3]] for m in re.finditer(r"^\s+(50|90|99)%\s+([\d.]+)(us|ms|s)$", text, re.MULTILINE)}
    rate = re.search(r"Requests/sec:\s*([\d.]+)", text)
    assert rate
    return {"per_s": float(rate[1]), **found}


def add(table: Table, load: str, rounds: list[dict[str, Figures]]) -> None:
    """A row a generator."""
    for name in rounds[0]:
        cells = []
        for figure in FIGURES:
            values = [one[name][figure] for one in rounds]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})")
        invalid = sum(one[name].get("invalid", 0.0) for one in rounds)
        table.add_row(load, name + (f" ({invalid:.0f} INVALID)" if invalid else ""), *cells)
    table.add_section()


if __name__ == "__main__":
    main()
