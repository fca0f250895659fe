"""BentoML: a batchable API, whose dispatcher fits its own cost line and decides how long to wait."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import bentoml
from work import hand_down, instance_bytes, load_for, settings

given = settings()
MAX_LATENCY_MS = 60_000  # BentoML's default: a budget beyond which requests are refused, not a wait


@bentoml.service(workers=given.processes, traffic={"timeout": 120}, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Service:
    """JSON {"inputs": [...]} -> [answer]."""

    def __init__(self) -> None:
        self.compute = load_for(given)

    @bentoml.api(batchable=True, max_batch_size=given.batch_size, max_latency_ms=MAX_LATENCY_MS)
    def predict(self, inputs: list[Any]) -> list[Any]:
        """A batch gathered from many requests."""
        return self.compute([instance_bytes(given.model, value) for value in inputs])


if __name__ == "__main__":
    command = [sys.executable, "-m", "bentoml", "serve", "serve_bentoml:Service", "--host", "127.0.0.1", "--port", str(given.port)]
    os.chdir(Path(__file__).parent)
    quiet = {"BENTOML_DO_NOT_TRACK": "True", "NO_COLOR": "1"}
    os.execve(sys.executable, command, hand_down(given) | quiet)
