"""Measures what docs/walkthrough.md is drawn from, beside results/measure-*.json: `python benchmarks/collect.py MODEL... [-o results]`.

For each model, one worker of one thread, for on two cores the load generator needs the other: a plan for the target below, a server of its
own with that plan's settings, a request's stages, load, the promise held against the server; then latency against load, TorchServe's
defaults beside the settings for the largest rate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from batchline import server
from batchline.properties import read_configuration, write_models

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.server.served import copy_configuration  # noqa: E402

TARGETS = {"digits": (25.0, 400.0), "efficientnet_lite0": (100.0, 25.0), "minilm": (60.0, 80.0)}  # p99 ms, requests/s
ONE_WORKER_GIB = 1.05  # memory for one of any of them
RATES = {"digits": ("--rates", "50,100,200,400,600,800,1000")}  # what the generator sends on time; the others saturate below that
PARTS = ("promise", "sweep")
SUFFIX = "xeon-2cores"


def run(*words: object, output: Path | None = None, may_fail: bool = False) -> str:
    """A batchline command; its standard output, which also goes into a file where one is named."""
    done = subprocess.run([sys.executable, "-m", "batchline", *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(f"batchline {' '.join(map(str, words))}: exit status {done.returncode}", flush=True)
    if done.returncode and not may_fail:
        raise SystemExit(done.returncode)
    if output:
        output.write_text(done.stdout, encoding="utf-8")
    return done.stdout


def one_thread(measured: Path, scratch: Path) -> Path:
    """The run without its settings of more threads, so that a plan from it has none."""
    run = json.loads(measured.read_text(encoding="utf-8"))
    run["settings"] = [setting for setting in run["settings"] if setting["threads"] == 1]
    kept = scratch / measured.name
    kept.write_text(json.dumps(run), encoding="utf-8")
    return kept


def promise(model: str, measured: Path, kept: dict[str, Path], home: Path) -> None:
    """A plan, and a server that runs it: stages, load, and whether the promise is kept."""
    p99_ms, rate_per_s = TARGETS[model]
    target = ("--p99-ms", p99_ms, "--rate-per-s", rate_per_s)
    plan = json.loads(run("plan", measured, *target, "--cheapest", "--json", output=kept["plan"], may_fail=True))
    config, _ = copy_configuration(home)
    setting = {"batch_size": plan["batch_size"], "max_batch_delay_ms": plan["max_batch_delay_ms"]}
    setting |= {"min_workers": plan["workers"], "max_workers": plan["workers"]}
    models = [replace(each, **setting) if each.name == model else each for each in read_configuration(config).models]
    write_models(config, models)
    place = ("--config", config)
    try:
        server.start(config, ROOT / "model_store", home)
        run("load", model, "--clients", 8, "--duration-s", 6, *place)  # Java compiles what it runs often
        run("stages", model, "--duration-s", 5, "--json", *place, output=kept["stages"], may_fail=True)
        run("load", model, "--rate-per-s", rate_per_s, "--duration-s", 3, "-o", kept["load"], *place, may_fail=True)
        run("verify", model, *target, "--plan", kept["plan"], "-o", kept["verify"], *place, may_fail=True)
    finally:
        server.stop(home)


def sweep(model: str, measured: Path, kept: dict[str, Path]) -> None:
    """Latency against load under TorchServe's defaults and under the settings for the largest rate."""
    target = ("--p99-ms", TARGETS[model][0])
    most = json.loads(run("plan", measured, *target, "--max-rate", "--memory-gib", ONE_WORKER_GIB, "--json", may_fail=True))
    tuned = f"tuned={most['batch_size']},{most['max_batch_delay_ms']},{most['workers']}"
    settings = ("--setting", "default=1,100,1", "--setting", tuned)
    run("sweep", model, *settings, *target, *RATES.get(model, ()), "--visits", 2, "--step-s", 2, "-o", kept["sweep"])


def collect(model: str, folder: Path, parts: list[str]) -> None:
    """The files of one model."""
    kept = {kind: folder / f"{kind}-{model}-{SUFFIX}.json" for kind in ("plan", "stages", "load", "verify", "sweep")}
    with tempfile.TemporaryDirectory(prefix="batchline-collect-") as scratch:
        (found,) = folder.glob(f"measure-{model}-*.json")
        measured = one_thread(found, Path(scratch))
        if "promise" in parts:
            promise(model, measured, kept, Path(scratch))
        if "sweep" in parts:
            sweep(model, measured, kept)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", choices=list(TARGETS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "results")
    parser.add_argument("--part", action="append", choices=PARTS, help="all unless given")
    said = parser.parse_args()
    os.environ["BATCHLINE_THREADS"] = "1"
    for model in said.models:
        collect(model, said.output.resolve(), said.part or list(PARTS))


if __name__ == "__main__":
    main()
