"""What the handlers' metrics cost: `python benchmarks/metrics.py [MODEL] [--clients 32] [--rounds 10]`.

The same archive twice, once with `metrics: false` in its model-config.yaml, each on a server of its own; they take turns. Closed loop.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import driver
import numpy as np
from rich.progress import track

from batchline import measure
from batchline.candidates import Candidates
from batchline.properties import read_configuration
from batchline.swept import Candidate

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "model-config.yaml"
WARM_UP_S = 4.0


def without_metrics(archive: Path, folder: Path) -> Path:
    """The archive with its metrics off."""
    made = folder / archive.name
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(made, "w") as packed:
        for entry in source.infolist():
            content = source.read(entry)
            packed.writestr(entry, content + b"\nmetrics: false\n" if entry.filename == CONFIG else content)
    return made


def main() -> None:
    """Prints requests a second with metrics as a part of those without, round by round's median and spread."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="digits")
    parser.add_argument("--setting", default="32,1,1", help="batch size, delay in ms, workers")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    said = parser.parse_args()
    base = read_configuration(ROOT / "config.properties")
    subject = measure.subject(said.model, ROOT / "models", ROOT / "model_store", base)
    setting = Candidate("one", *map(int, said.setting.split(",")))
    generator = driver.generator_for(said.model)
    with tempfile.TemporaryDirectory() as folder:
        archives = {True: subject.archive, False: without_metrics(subject.archive, Path(folder))}
        servers = {on: Candidates(archive, subject.recipe.version, [setting], base, 1, 100) for on, archive in archives.items()}
        with servers[True], servers[False]:
            targets = {on: server.target(setting, subject.bodies) for on, server in servers.items()}
            for target in targets.values():
                driver.closed(target, said.clients, WARM_UP_S, generator)
            per_s: dict[bool, list[float]] = {True: [], False: []}
            for number in track(range(said.rounds), "rounds"):
                for on in (True, False) if number % 2 else (False, True):
                    per_s[on].append(driver.closed(targets[on], said.clients, said.seconds, generator).per_s)
    ratios = np.array(per_s[True]) / np.array(per_s[False])
    low, middle, high = np.percentile(ratios, (10, 50, 90))
    print(f"{said.model}, {said.clients} clients, {generator}, alternating {said.rounds} times {said.seconds:g} s")
    print(f"requests/s with metrics {np.median(per_s[True]):.0f}, without {np.median(per_s[False]):.0f}")
    print(f"with / without: {middle:.3f} ({low:.3f} .. {high:.3f} in 80% of the rounds)")


if __name__ == "__main__":
    main()
