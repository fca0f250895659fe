"""No server: the same computation in batches on all cores, as fast as it goes. Prints {"per_s": ..} when its time is up."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path

from work import LOADERS, Settings, load_for

WARM_S = 1.0


def compute(given: Settings, bodies: list[bytes], seconds: float, ready: object, counted: object) -> None:
    """One process: batches until the time is up."""
    predict = load_for(given)
    turns = itertools.cycle(bodies)
    warm_until = time.perf_counter() + WARM_S
    while time.perf_counter() < warm_until:
        predict(list(itertools.islice(turns, given.batch_size)))
    ready.wait()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += len(predict(list(itertools.islice(turns, given.batch_size))))
    counted.put(done / (time.perf_counter() - began))


def main() -> None:
    """One process a core, one thread each, all at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, choices=list(LOADERS))
    parser.add_argument("--runtime", default="eager")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("bodies", nargs="+", type=Path)
    said = parser.parse_args()
    given = Settings(said.model, said.runtime, processes=said.processes, threads=1, batch_size=said.batch_size)
    context = multiprocessing.get_context("spawn")
    ready, counted = context.Barrier(said.processes), context.Queue()
    common = (given, [path.read_bytes() for path in said.bodies], said.seconds, ready, counted)
    running = [context.Process(target=compute, args=common) for _ in range(said.processes)]
    for process in running:
        process.start()
    rates = [counted.get() for _ in running]
    for process in running:
        process.join()
    print(json.dumps({"per_s": sum(rates), "each_per_s": rates}))


if __name__ == "__main__":
    main()
