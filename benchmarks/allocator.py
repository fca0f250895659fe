"""c + B·m of a model with and without keeping what torch frees: `python benchmarks/allocator.py [MODEL] [--runtime torch]`.

glibc gives large blocks back to the kernel when they are freed, and every batch faults them in anew. The handlers tell it
not to (handlers/runtime.py, keep_freed_memory). Two processes, one that does and one that does not, take turns batch by batch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.progress import track

from batchline.cost import CostLine, fit_cost_line

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
ROUNDS = 5


def serve(pipe: Connection, model: str, runtime: str, keeps: bool) -> None:
    """A process: loads the handler, then answers each batch size with the milliseconds of one batch."""
    import torch
    from batchline.handlers import runtime as loading

    from tests.harness import entry_class, load, request, unpack

    if not keeps:
        loading.keep_freed_memory = lambda: False
    bodies = [path.read_bytes() for path in sorted((ROOT / "models" / model / "samples").iterdir())]
    with tempfile.TemporaryDirectory() as folder:
        worker = load(entry_class(model), unpack(model, Path(folder)), model, config={"runtime": runtime, "precision": "f32"})
        worker.handler.threads.keep = lambda: None
        torch.set_num_threads(1)
        pipe.send("ready")
        while size := pipe.recv():
            requests = [request(bodies[number % len(bodies)]) for number in range(size)]
            begin_s = time.perf_counter()
            worker.send(*requests)
            pipe.send((time.perf_counter() - begin_s) * 1e3)


def start(model: str, runtime: str, keeps: bool) -> Callable[[int], Any]:
    """Starts the process and returns what runs a batch in it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs, model, runtime, keeps), daemon=True).start()
    ours.recv()

    def run(size: int) -> Any:
        ours.send(size)
        return ours.recv()

    return run


def told(line: CostLine) -> str:
    """A line in words."""
    sizes = ", ".join(f"T({row.batch_size}) = {row.batch_ms:.1f}" for row in line.table)
    bend = "" if line.linear else " (no line: it bends)"
    return f"c = {line.c_ms:.2f} ms, m = {line.m_ms:.2f} ms{bend}; {sizes}"


def main() -> None:
    """Prints both lines."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="efficientnet_lite0")
    parser.add_argument("--runtime", default="torch")
    said = parser.parse_args()
    runs = {keeps: start(said.model, said.runtime, keeps) for keeps in (True, False)}
    times: dict[bool, dict[int, list[list[float]]]] = {keeps: {size: [] for size in BATCH_SIZES} for keeps in runs}
    for number in track(range(ROUNDS), "rounds"):
        for size in BATCH_SIZES:
            for keeps in (True, False) if number % 2 else (False, True):
                runs[keeps](size)
                times[keeps][size].append([runs[keeps](size) for _ in range(max(2, 16 // size))])
    for keeps, words in ((True, "kept"), (False, "given back")):
        print(f"freed memory {words}: {told(fit_cost_line(times[keeps]))}")


if __name__ == "__main__":
    main()
