"""Every raw value of a run in one JSON file, with the machine it was measured on. Units are in the names."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from batchline.load import LoadRun

FORMAT = "batchline-load/1"
PACKAGES = ("batchline", "torchserve", "torch", "torchvision", "httptools", "numpy")


def write(path: Path, model: str, run: LoadRun, settings: Mapping[str, int | None] | None = None, seed: int | None = None) -> None:
    """Writes a run of load, whole or not at all.

    Args:
        path: of the file.
        model: its name.
        run: what came back.
        settings: what the server had in effect, as `served` gives it; None where it does not say.
        seed: of Poisson arrivals; None where there were none.
    """
    put(path, {"format": FORMAT, **content(model, run), "settings": settings, "seed": seed})


def content(model: str, run: LoadRun) -> dict[str, Any]:
    """A run of load with the machine it was measured on, as it is written."""
    return {
        "model": model,
        "written_unix_s": time.time(),
        "machine": asdict(machine()),
        "versions": versions(),
        "planned_s": run.planned_s,
        "duration_s": run.duration_s,
        "offered_per_s": run.offered_per_s,
        "most_in_flight": run.most_in_flight,
        "generator_cpu_share": run.cpu_share,
        "records": [asdict(record) for record in run.records],
    }


def served(version: Mapping[str, Any]) -> dict[str, int | None]:
    """What the management API says of a model's version, in the words of these files."""
    return {"batch_size": version["batchSize"], "max_batch_delay_ms": version["maxBatchDelay"], "workers": len(version["workers"])}


def put(path: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Writes JSON to `path`, whole or not at all: the file is put in place when it is complete."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        arriving.write_text(json.dumps(content, allow_nan=False, indent=indent), encoding="utf-8")
        os.replace(arriving, path)
    finally:
        arriving.unlink(missing_ok=True)


@dataclass(frozen=True)
class Machine:
    """What a reader must know of the machine to compare figures.

    Attributes:
        cores: that this process may use.
        load_average_1min: when the run began; above 1 or so, something else ran.
    """

    cpu: str
    cores: int
    system: str
    load_average_1min: float


def machine() -> Machine:
    """The machine that this runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(_cpu_name(), cores or 1, platform.platform(), os.getloadavg()[0])


def versions() -> dict[str, str]:
    """Python's and the packages' that have a part in the figures."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
