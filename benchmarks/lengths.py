"""What texts of unlike length cost minilm's handler, in one pass and in passes of like length: `python benchmarks/lengths.py`.

Alternating in one process, whole handler; the spread is over rounds. It also fits what a pass costs in tokens, for
handlers/text.py's PASS_TOKENS.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import Worker, entry_class, load, request, unpack

ROUNDS = 7
MIXES = {"all of 12 words": (12, 12), "5 to 40 words": (5, 40), "5 to 180 words": (5, 180)}
WORDS = ["a", "man", "is", "eating", "food", "and", "the", "girl", "carries", "bread"]


def batch(least: int, most: int, count: int, chance: random.Random) -> list[dict[str, object]]:
    """Requests of texts whose lengths are drawn evenly on a log scale, as real texts rather are."""
    sizes = [round(least * (most / least) ** chance.random()) for _ in range(count)]
    return [request(" ".join(chance.choices(WORDS, k=size)).encode()) for size in sizes]


def seconds(worker: Worker, requests: list[dict[str, object]]) -> float:
    """Of one batch through the handler."""
    begin_s = time.perf_counter()
    worker.send(*requests)
    return time.perf_counter() - begin_s


def pass_tokens(worker: Worker) -> float:
    """What a pass costs beside its tokens, in tokens: the line through the model's times by tokens, batches of 1 to 8."""
    points = []
    for rows, length in [(1, 8), (1, 16), (1, 32), (1, 64), (2, 32), (4, 16), (8, 16), (8, 32)]:
        ids = torch.full((rows, length), 2000)
        times = []
        for _ in range(15):
            begin_s = time.perf_counter()
            worker.handler.model(ids, torch.ones_like(ids))
            times.append(time.perf_counter() - begin_s)
        points.append((rows * length, median(times)))
    slope, fixed = np.polyfit(*zip(*points, strict=True), 1)
    return float(fixed / slope)


def main() -> None:
    """Prints a line a mix and batch size."""
    with tempfile.TemporaryDirectory() as folder:
        compare(load(entry_class("minilm"), unpack("minilm", Path(folder)), "minilm"))


def compare(worker: Worker) -> None:
    """See the module."""
    torch.set_num_threads(1)
    worker.handler.threads.keep = lambda: None
    usual = worker.handler.pass_tokens
    print(f"a pass costs as much as {pass_tokens(worker):.0f} tokens (pass_tokens is {usual})")
    chance = random.Random(1)
    for mix, (least, most) in MIXES.items():
        for count in (8, 32):
            ratios = []
            for _ in range(ROUNDS):
                requests, took = batch(least, most, count, chance), {}
                for tokens in (usual, 0) if chance.random() < 0.5 else (0, usual):
                    worker.handler.pass_tokens = tokens
                    took[tokens] = min(seconds(worker, requests) for _ in range(3))
                ratios.append(took[0] / took[usual])
            print(f"{mix:>16}, batch {count:2}: {median(ratios):.2f} times as fast ({min(ratios):.2f} .. {max(ratios):.2f})")


if __name__ == "__main__":
    main()
