"""Measures what docs/walkthrough.md is drawn from, beside results/measure-*.json: `python benchmarks/collect.py MODEL... [-o results]`.

For each model, one worker each: a plan for the target below, a server of its own with that plan's settings, a request's stages, load, the
promise held against the server; then latency against load, TorchServe's defaults beside the settings for the largest rate.
"""

from __future__ import annotations

import argparse
import json
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
ONE_WORKER_GIB = 1.2  # memory for one of any of them: on two cores the load generator needs the other
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


def collect(model: str, folder: Path) -> None:
    """All files of one model."""
    p99_ms, rate_per_s = TARGETS[model]
    (measured,) = folder.glob(f"measure-{model}-*.json")
    kept = {kind: folder / f"{kind}-{model}-{SUFFIX}.json" for kind in ("plan", "stages", "load", "verify", "sweep")}
    target = ("--p99-ms", p99_ms, "--rate-per-s", rate_per_s)
    plan = json.loads(run("plan", measured, *target, "--cheapest", "--json", output=kept["plan"], may_fail=True))
    with tempfile.TemporaryDirectory(prefix="batchline-collect-") as scratch:
        home = Path(scratch)
        config, _ = copy_configuration(home)
        setting = {"batch_size": plan["batch_size"], "max_batch_delay_ms": plan["max_batch_delay_ms"]}
        setting |= {"min_workers": plan["workers"], "max_workers": plan["workers"]}
        models = [replace(each, **setting) if each.name == model else each for each in read_configuration(config).models]
        write_models(config, models)
        place = ("--config", config)
        try:
            server.start(config, ROOT / "model_store", home)
            run("load", model, "--clients", 8, "--duration-s", 4, *place)  # Java compiles what it runs often
            run("stages", model, "--duration-s", 5, "--json", *place, output=kept["stages"], may_fail=True)
            run("load", model, "--rate-per-s", rate_per_s, "--duration-s", 3, "-o", kept["load"], *place, may_fail=True)
            run("verify", model, *target, "--plan", kept["plan"], "-o", kept["verify"], *place, may_fail=True)
        finally:
            server.stop(home)
        most = json.loads(run("plan", measured, "--p99-ms", p99_ms, "--max-rate", "--memory-gib", ONE_WORKER_GIB, "--json"))
        settings = (
            "--setting",
            "default=1,100,1",
            "--setting",
            f"tuned={most['batch_size']},{most['max_batch_delay_ms']},{most['workers']}",
        )
        run("sweep", model, *settings, "--p99-ms", p99_ms, "--visits", 2, "--step-s", 2, "-o", kept["sweep"])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", choices=list(TARGETS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "results")
    said = parser.parse_args()
    for model in said.models:
        collect(model, said.output.resolve())


if __name__ == "__main__":
    main()
