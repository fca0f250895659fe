"""Load on one server, by wrk where a model is so quick that Python's generator would be what is measured, else by batchline's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from batchline.load import Target, closed_loop, open_loop
from batchline.load import draw as draw_times
from batchline.summary import LoadSummary, summarise

LUA = Path(__file__).with_name("post.lua")
WRK_MODELS = {"digits"}


@dataclass(frozen=True)
class Measurement:
    """One load on one server.

    Attributes:
        clients: of a closed loop; 0 for an open one.
        offered_per_s: of an open loop; 0 for a closed one.
        per_s: answers a second.
        p50_ms, p90_ms, p99_ms, max_ms: of answered requests, None where there were none; open loop: from the intended send.
        requests: sent.
        failed: of those, not answered with 2xx.
        generator: wrk or batchline.
        invalid: why the figures are the generator's own, if they are.
    """

    clients: int
    offered_per_s: float
    per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    requests: int
    failed: int
    generator: str
    invalid: tuple[str, ...] = ()


def generator_for(model: str) -> str:
    """Wrk for the quick models when it is installed."""
    return "wrk" if model in WRK_MODELS and shutil.which("wrk") else "batchline"


def closed(target: Target, clients: int, seconds: float, generator: str) -> Measurement:
    """Each client sends its next request when it has its answer."""
    if generator == "wrk":
        return _wrk(target, clients, seconds)
    return _measurement(summarise(closed_loop(target, clients, seconds)), clients)


def opened(target: Target, rate_per_s: float, seconds: float, seed: int) -> Measurement:
    """Poisson arrivals at a rate, whatever became of those before."""
    return _measurement(summarise(open_loop(target, draw_times("poisson", rate_per_s, seconds, seed))), 0)


def _measurement(told: LoadSummary, clients: int) -> Measurement:
    latency = told.latency_ms
    failed = sum(count for status, count in told.statuses.items() if not 200 <= status < 300)
    figures = (latency.get(name) for name in ("p50", "p90", "p99", "max"))
    return Measurement(
        clients, told.offered_per_s or 0.0, told.achieved_per_s, *figures, told.requests, failed, "batchline", tuple(told.invalid)
    )


def _wrk(target: Target, clients: int, seconds: float) -> Measurement:
    """One thread is enough for 50,000 requests a second."""
    with tempfile.TemporaryDirectory(prefix="bench-wrk-") as folder:
        files = []
        for number, body in enumerate(target.bodies):
            files.append(Path(folder, str(number)))
            files[-1].write_bytes(body)
        headers = [f"{name}={value}" for name, value in target.headers.items()]
        command = ["wrk", "--threads", "1", "--connections", str(clients), "--duration", f"{max(1, round(seconds))}s", "--timeout", "30s"]
        command += ["--script", str(LUA), target.url, "--", *headers, "--", *map(str, files)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    figures = (told["p50_ms"], told["p90_ms"], told["p99_ms"], told["max_ms"])
    failed = told["bad_status"] + told["broken"]
    return Measurement(clients, 0.0, (told["requests"] - told["bad_status"]) / told["seconds"], *figures, told["requests"], failed, "wrk")
