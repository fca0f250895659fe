"""What the handlers' metrics cost: `python benchmarks/metrics.py [MODEL] [--clients 32] [--rounds 12] [--starts 2]`.

One server has the model four times: twice as it is, twice with `metrics: false` in its model-config.yaml. They take turns, the order
drawn anew each round. The two alike say how far two workers differ by themselves; two servers would differ by more. Closed loop.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import driver
import numpy as np
from builds import Builds, build_with
from rich.progress import Progress

from batchline import measure
from batchline.measure import Subject
from batchline.properties import read_configuration
from batchline.swept import Candidate

ROOT = Path(__file__).resolve().parents[1]
WARM_UP_S = 4.0
TOLD, SILENT = ("with", "with_again"), ("without", "without_again")
Rates = dict[str, list[float]]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="digits")
    parser.add_argument("--setting", default="32,1,1", help="batch size, delay in ms, workers")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12, help="of each start")
    parser.add_argument("--starts", type=int, default=2, help="of the server")
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


def run(subject: Subject, silent: Path, said: argparse.Namespace, start: int, progress: Progress) -> Rates:
    """Requests a second of each, a figure a round, on one server."""
    drawn = random.Random(start)
    settings = [Candidate(name, *map(int, said.setting.split(","))) for name in TOLD + SILENT]
    drawn.shuffle(settings)
    server = Builds(subject.archive, subject.recipe.version, settings, subject.base, 1, 100)
    server.builds = dict.fromkeys(SILENT, silent)
    generator = driver.generator_for(said.model)
    per_s: Rates = {setting.name: [] for setting in settings}
    with server:
        for setting in settings:
            driver.closed(server.target(setting, subject.bodies), said.clients, WARM_UP_S, generator)
        for _ in progress.track(range(said.rounds), description=f"start {start}"):
            for setting in drawn.sample(settings, len(settings)):
                per_s[setting.name].append(
                    driver.closed(server.target(setting, subject.bodies), said.clients, said.seconds, generator).per_s
                )
    return per_s


def spread(ratios: Sequence[float]) -> str:
    """The median, and where 80% of the rounds lie."""
    low, middle, high = np.percentile(ratios, (10, 50, 90))
    return f"{middle:.3f} ({low:.3f} .. {high:.3f} in 80% of the rounds)"


def main() -> None:
    """Prints requests a second with metrics over those without, round by round, and each over its own like."""
    said = parse()
    subject = measure.subject(said.model, ROOT / "models", ROOT / "model_store", read_configuration(ROOT / "config.properties"))
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        silent = build_with(subject.archive, Path(folder), "metrics: false")
        starts = [run(subject, silent, said, start, progress) for start in range(said.starts)]
    told, again, silent_s, silent_again = (np.concatenate([start[name] for start in starts]) for name in TOLD + SILENT)
    count = said.rounds * said.starts
    print(f"{said.model}, {said.clients} clients, {driver.generator_for(said.model)}, {count} rounds in turn on {said.starts} servers")
    print(f"requests/s with metrics {np.median([told, again]):.0f}, without {np.median([silent_s, silent_again]):.0f}")
    ratios = (told + again) / (silent_s + silent_again)
    error = ratios.std(ddof=1) / np.sqrt(count)
    print(f"with / without: {spread(ratios)}, mean {ratios.mean():.3f} +- {1.96 * error:.3f}")
    print(f"with / with: {spread(told / again)}; without / without: {spread(silent_s / silent_again)}")


if __name__ == "__main__":
    main()
