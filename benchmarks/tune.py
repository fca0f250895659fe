"""How good predictions, plans and tuned settings are, on a real TorchServe: `make bench-tune`.

predict    settings that were not measured: predicted, then loaded three times each, in turn
brute      every setting of a grid, briefly, and the plan's choice: which keeps p99 at the largest rate, and what each took
defaults   TorchServe's defaults and the tutorials' "batch 8, delay 100" against tuned settings, the same load, in turn

Every step is in the record when it is done, and the same command goes on with it. The load comes from this machine's own cores, so
rates are held below what the generator can send.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import showtune
import tune_brute
import tune_defaults
import tune_predict
from rich.console import Console
from tuning import MODELS, begin
from turns import Turns

PARTS = ("predict", "brute", "defaults")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, choices=MODELS, help="sleep: a handler of known cost, 20 + 2 B ms, on no core")
    parser.add_argument("--part", action="append", choices=PARTS, help="all unless given")
    parser.add_argument("--run", type=Path, help="run.json of the model, else it is measured")
    parser.add_argument("--full", action="store_true", help="measure by the default plan, not by --quick's")
    parser.add_argument("--p99-ms", type=float, help="the target, instead of the model's own here")
    parser.add_argument("--repeats", type=int, default=3, help="of each setting in predict")
    parser.add_argument("--most-per-s", type=float, default=600.0, help="what the generator sends on time beside a server on these cores")
    parser.add_argument("--lock", type=Path, help="a file to lock while measuring, as flock(1) does; let go about every 60 s")
    parser.add_argument("-o", "--output", type=Path, help="the record: every figure; gone on with where it is there")
    return parser.parse_args()


def main() -> None:
    """Measures and prints; the record holds every step."""
    said, console = parse(), Console(width=150)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as Ctrl-C does: with no server left
    turns = Turns(said.lock)
    try:
        bench = begin(said.model, said.run, not said.full, turns, said.output, console)
        if said.p99_ms:
            bench.record["p99_ms"] = said.p99_ms
        for part in said.part or PARTS:
            begun_s = time.monotonic()
            if part == "predict":
                tune_predict.run(bench, said.repeats, said.most_per_s)
            else:
                {"brute": tune_brute, "defaults": tune_defaults}[part].run(bench, said.most_per_s)
            bench.say(f"{part}: {time.monotonic() - begun_s:.0f} s")
        print(showtune.markdown([bench.record]))
    finally:
        turns.let_go()


if __name__ == "__main__":
    main()
