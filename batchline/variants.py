"""One archive under several names, a batch size each, on a TorchServe of its own beside the user's.

batchSize is fixed when a model is registered. So that batches of 1, 4 and 16 can take turns within a minute, the archive is
registered once for each, and all of them stand ready; only one is busy at a time. A model that does nothing stands beside them:
the JVM compiles what it has run some thousand times, and a batch costs it 3 ms before that and under 1 ms after. A slow model
would stay in between for minutes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import javaproperties
import psutil

from batchline import server
from batchline.client import Client
from batchline.errors import MeasureError, RequestFailed
from batchline.ports import free_ports
from batchline.properties import Configuration, read_configuration
from batchline.ready import POLL_S, Progress, ready_workers
from batchline.saturate import saturate

FULL_BATCH_MS = 10_000  # a batch is not to start before it is full
SCALED_S = 60.0  # for the last worker, once TorchServe has answered
WORKER_BYTES = 700 << 20  # torch and Python, before any weights
THREADS = "BATCHLINE_THREADS"  # handlers/cores.py
OWN = {"load_models", "models", "model_snapshot", "disable_token_authorization", "job_queue_size", "allowed_urls", "workflow_store"}
WARMER, WARMER_BATCH_SIZE = "batchline_warm_up", 4
WARMER_HANDLER = """class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [b"[]"] * len(data)
"""
ADDRESSES = ("inference_address", "management_address", "metrics_address")


class Variants:
    """The server; a context manager that stops it and removes what it left.

    Args:
        archive: NAME.mar.
        version: its version.
        batch_sizes: a variant each.
        base: the user's configuration; what does not name models or ports is taken over.
        threads: of every worker.
        progress: called while it starts.
        queue: requests that may wait.
    """

    def __init__(
        self,
        archive: Path,
        version: str,
        batch_sizes: Sequence[int],
        base: Configuration,
        threads: int,
        progress: Progress | None = None,
        queue: int = 100,
    ) -> None:
        self.archive, self.version, self.batch_sizes, self.base = archive, version, batch_sizes, base
        self.threads, self.progress, self.queue = threads, progress, queue
        self.name = archive.stem

    def __enter__(self) -> Variants:
        _check_memory(self.archive, len(self.batch_sizes))
        self.home = Path(tempfile.mkdtemp(prefix="batchline-measure-"))
        try:
            store = self._store()
            environment = {THREADS: str(self.threads)}
            self.server = server.launch(self._configuration(), store, self.home, self.progress, environment=environment)
            self._check_effective()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        server.stop(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of its inference API."""
        host, _, port = self.server.inference.rpartition("//")[2].rpartition(":")
        return host, int(port)

    def path(self, batch_size: int) -> str:
        """The URL's path of the variant with this batch size."""
        return f"/predictions/{self._variant(batch_size)}"

    def warm_up(self, seconds: float) -> None:
        """Keeps TorchServe itself busy, so that its JVM has compiled what a batch takes."""
        saturate(self.address, f"/predictions/{WARMER}", [b"[]"], 4 * WARMER_BATCH_SIZE, seconds, multiple=WARMER_BATCH_SIZE)

    def scale(self, batch_size: int, workers: int) -> None:
        """Returns when the variant has so many READY workers: TorchServe's own wait may end a moment before the last one is."""
        client = Client(self.server.inference, self.server.management, self.server.metrics, timeout_s=600.0)
        try:
            client.scale(self._variant(batch_size), workers)
        except RequestFailed as error:
            raise MeasureError(f"TorchServe did not scale {self.name} to {workers} workers: {error}") from None
        until_s = time.monotonic() + SCALED_S
        while (ready := ready_workers(client.describe(self._variant(batch_size))[0])) != workers:
            if time.monotonic() > until_s:
                raise MeasureError(f"{ready} workers of {self.name} are READY where {workers} were wanted; is there memory for them?")
            time.sleep(POLL_S)

    def _variant(self, batch_size: int) -> str:
        return f"{self.name}_batch{batch_size}"

    def archive_of(self, batch_size: int) -> Path:
        """What the variant is registered from; a subclass may hold two builds of one model against each other."""
        return self.archive

    def _store(self) -> Path:
        """A model store with a link to each archive, and the model that does nothing."""
        store = self.home / "model_store"
        store.mkdir()
        for archive in {self.archive_of(size) for size in self.batch_sizes}:
            (store / archive.name).symlink_to(archive.resolve())
        model = {"modelName": WARMER, "handler": "warmer.py", "modelVersion": self.version}
        with zipfile.ZipFile(store / f"{WARMER}.mar", "w") as packed:
            packed.writestr("warmer.py", WARMER_HANDLER)
            packed.writestr("MAR-INF/MANIFEST.json", json.dumps({"runtime": "python", "model": model, "archiverVersion": "0.12.0"}))
        return store

    def _configuration(self) -> Configuration:
        values = {key: value for key, value in self.base.values.items() if key not in OWN and not key.startswith("default_workers")}
        if values.get("metrics_config"):
            values["metrics_config"] = str((self.base.path.parent / values["metrics_config"]).resolve())
        ports = free_ports(5)
        values |= {key: f"http://127.0.0.1:{port}" for key, port in zip(ADDRESSES, ports, strict=False)}
        values |= {"grpc_inference_port": str(ports[3]), "grpc_management_port": str(ports[4])}
        values |= {"grpc_inference_address": "127.0.0.1", "grpc_management_address": "127.0.0.1"}
        values |= {"disable_token_authorization": "true", "job_queue_size": str(self.queue)}
        loaded = [f"{self._variant(size)}={self.archive_of(size).name}" for size in self.batch_sizes]
        values["load_models"] = ",".join([*loaded, f"{WARMER}.mar"])
        settings = {self._variant(size): self._settings(size) for size in self.batch_sizes} | {WARMER: self._settings(WARMER_BATCH_SIZE)}
        values["models"] = json.dumps({name: {self.version: chosen} for name, chosen in settings.items()})
        path = self.home / "config.properties"
        path.write_text(javaproperties.dumps(values, timestamp=None), encoding="iso-8859-1")
        return read_configuration(path)

    def _settings(self, batch_size: int) -> dict[str, int]:
        known = {(model.name, model.version): model for model in self.base.models}.get((self.name, self.version))
        timeout_s = (known.response_timeout_s if known else None) or 120
        delay_ms = FULL_BATCH_MS if batch_size > 1 else 1
        return {"minWorkers": 1, "maxWorkers": 1, "batchSize": batch_size, "maxBatchDelay": delay_ms, "responseTimeout": timeout_s}

    def _check_effective(self) -> None:
        """model-config.yaml in the archive would silently win over what was just configured."""
        client = self.server.client(self.home)
        for size in self.batch_sizes:
            (found,) = client.describe(self._variant(size))
            if found["batchSize"] != size:
                raise MeasureError(
                    f"{self.archive} makes batchSize {found['batchSize']}, whatever is configured: "
                    f"take batchSize out of its model-config.yaml and build it again."
                )


def _check_memory(archive: Path, workers: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        weights = sum(entry.file_size for entry in packed.infolist())
    wanted, free = workers * (WORKER_BYTES + weights), psutil.virtual_memory().available
    if wanted > free:
        raise MeasureError(
            f"{workers} workers of {archive.name} need about {wanted / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free: "
            f"measure fewer batch sizes (--batch-sizes 1,4,16), or end what else runs."
        )
