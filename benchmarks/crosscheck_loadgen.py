"""MLPerf's LoadGen, server scenario, against one URL; crosscheck.py runs this with the Python that has mlcommons-loadgen.

python crosscheck_loadgen.py URL BODY RATE_PER_S SECONDS: prints {"per_s", "p50_ms", "p90_ms", "p99_ms"} as JSON.
"""

from __future__ import annotations

import json
import queue
import re
import sys
import tempfile
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import mlperf_loadgen as loadgen

THREADS = 64
FIGURE = re.compile(r"^(?P<name>\S.*?)\s*(?:\(ns\))?\s*:\s*(?P<value>[\d.]+)$", re.MULTILINE)


def send(url: str, body: bytes, waiting: queue.SimpleQueue[int]) -> None:
    """One thread, one connection: takes a query, sends it, tells LoadGen when its answer is read."""
    place = urlsplit(url)
    connection = HTTPConnection(place.netloc)
    while True:
        query = waiting.get()
        connection.request("POST", place.path, body)
        connection.getresponse().read()
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query, 0, 0)])


def settings(rate_per_s: float, seconds: float) -> loadgen.TestSettings:
    """Poisson arrivals at a rate; the latency bound judges nothing here."""
    made = loadgen.TestSettings()
    made.scenario, made.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
    made.server_target_qps, made.server_target_latency_ns = rate_per_s, 10**9
    made.min_duration_ms, made.min_query_count = int(seconds * 1e3), 1
    return made


def main(url: str, body: str, rate_per_s: float, seconds: float) -> None:
    """Runs once; the figures come from LoadGen's own summary."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(THREADS):
        threading.Thread(target=send, args=(url, Path(body).read_bytes(), waiting), daemon=True).start()
    under_test = loadgen.ConstructSUT(lambda samples: [waiting.put(sample.id) for sample in samples], lambda: None)
    samples = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        log = loadgen.LogSettings()
        log.log_output.outdir, log.log_output.copy_summary_to_stdout = folder, False
        loadgen.StartTestWithLogSettings(under_test, samples, settings(rate_per_s, seconds), log)
        text = (Path(folder) / "mlperf_log_summary.txt").read_text()
    said = {match["name"]: float(match["value"]) for match in FIGURE.finditer(text)}
    figures = {f"p{p}_ms": said[f"{p}.00 percentile latency"] / 1e6 for p in (50, 90, 99)}
    print(json.dumps({"per_s": said["Completed samples per second"], **figures}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
