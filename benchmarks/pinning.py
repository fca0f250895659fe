"""What pin_cores does: `python benchmarks/pinning.py MODEL [--setting 3,2,2] [--share 0.75] [--rounds 8]`.

One server has the model twice, pinned and free. Both are loaded with the same arrivals, the order drawn anew each round, at a share of
what they do saturated; and before and after saturated. Open loop.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pace
from builds import Builds, build_with
from rich.progress import Progress
from tuning import JVM_WARM_UP_S, QUEUE_LIMIT, find, saturated_per_s

from batchline import runfile, verify
from batchline.load import open_loop
from batchline.swept import Candidate

PINNED, FREE = "pinned", "free"
SATURATE_S = 2.0


class Seen(NamedTuple):
    """Of one load, milliseconds; the handler's a request."""

    mean: float
    p99: float
    handler: float


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=("digits", "efficientnet_lite0", "minilm"))
    parser.add_argument("--setting", default="3,2,2", help="batch size, delay in ms, workers")
    parser.add_argument("--share", type=float, default=0.75, help="of the saturated throughput")
    parser.add_argument("--most-per-s", type=float, default=1500.0, help="that the generator is asked for")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("-o", "--output", type=Path, help="the record: every figure of every round")
    return parser.parse_args()


def load(server: Builds, candidate: Candidate, bodies: list[bytes], times: np.ndarray) -> Seen:
    """One load, whose requests are all answered."""
    records = open_loop(server.target(candidate, bodies), times).records
    if not all(record.ok for record in records):
        raise SystemExit("requests were refused: a smaller --share")
    batches, latency = pace.batches_of(records), [record.latency_ms for record in records]
    return Seen(float(np.mean(latency)), float(np.percentile(latency, 99)), float(batches.handler_ms.sum() / batches.sizes.sum()))


def spread(ratios: np.ndarray) -> str:
    """Median, smallest and largest."""
    return f"{np.median(ratios):.2f} ({ratios.min():.2f} .. {ratios.max():.2f})"


def main() -> None:
    """Prints pinned over free, round by round."""
    said, subject, drawn = parse(), find(parse().model), random.Random(1)
    settings = [Candidate(name, *map(int, said.setting.split(","))) for name in (PINNED, FREE)]
    seen: dict[str, list[Seen]] = {PINNED: [], FREE: []}
    saturated: dict[str, list[float]] = {PINNED: [], FREE: []}

    def saturate(server: Builds) -> None:
        for candidate in (*drawn.sample(settings, 2), *drawn.sample(settings, 2)):
            saturated[candidate.name].append(saturated_per_s(server, candidate, subject.bodies, SATURATE_S))

    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        server = Builds(subject.archive, subject.recipe.version, settings, subject.base, 1, QUEUE_LIMIT)
        server.builds = {name: build_with(subject.archive, Path(folder), f"pin_cores: {str(name == PINNED).lower()}") for name in seen}
        with server:
            server.warm_up(JVM_WARM_UP_S)
            saturate(server)
            rate = min(said.most_per_s, said.share * float(np.mean([*saturated[PINNED], *saturated[FREE]])))
            for number in progress.track(range(said.rounds), description=f"{rate:.0f}/s"):
                times, _ = verify.arrivals(rate, int(rate * said.seconds), (number,))
                for candidate in drawn.sample(settings, 2):
                    seen[candidate.name].append(load(server, candidate, subject.bodies, times))
            saturate(server)
    if said.output:
        each = {name: [load._asdict() for load in loads] for name, loads in seen.items()}
        whose = {"model": said.model, "setting": said.setting, "rate_per_s": rate, "machine": asdict(runfile.machine())}
        runfile.put(said.output, whose | {"versions": runfile.versions(), "loads_ms": each, "saturated_per_s": saturated}, indent=1)
    print(f"{said.model}, batch size, delay, workers {said.setting}, {rate:.0f}/s, {said.rounds} rounds")
    print("pinned over free, median (least .. most)")
    ratios = np.array(seen[PINNED]) / np.array(seen[FREE])
    for name, each in zip(Seen._fields, ratios.T, strict=True):
        print(f"{name:<9} {spread(each)}")
    print(f"saturated {spread(np.array(saturated[PINNED]) / np.array(saturated[FREE]))}")


if __name__ == "__main__":
    main()
