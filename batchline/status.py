"""What TorchServe was told and what it does: wanted and effective settings of each model, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from batchline.errors import ServerError
from batchline.properties import Configuration, ModelSettings, read_configuration
from batchline.server import running


@dataclass(frozen=True)
class Settings:
    """The numbers that config.properties decides; None where it says nothing."""

    batch_size: int | None
    max_batch_delay_ms: int | None
    min_workers: int | None
    max_workers: int | None

    def agrees(self, effective: Settings) -> bool:
        """Whether every number that is wanted is also in effect."""
        return all(want is None or want == getattr(effective, name) for name, want in vars(self).items())


@dataclass(frozen=True)
class WorkerStatus:
    """One worker process; rss_bytes is its resident memory, None when it cannot be read (another machine, not started)."""

    id: str
    pid: int
    state: str
    rss_bytes: int | None


@dataclass(frozen=True)
class ModelStatus:
    """One model version.

    Attributes:
        wanted: from config.properties; None when that does not mention it.
        effective: from the management API; None when the server does not have it.
        workers: its worker processes.
        waiting: requests in its queue.
    """

    name: str
    version: str
    wanted: Settings | None
    effective: Settings | None
    workers: tuple[WorkerStatus, ...] = ()
    waiting: int = 0

    @property
    def ready(self) -> int:
        """READY workers."""
        return sum(worker.state == "READY" for worker in self.workers)

    @property
    def matches(self) -> bool:
        """Whether the server does what config.properties says, with all the workers it should have."""
        if self.wanted is None or self.effective is None:
            return False
        return self.wanted.agrees(self.effective) and self.ready >= (self.effective.min_workers or 0)


def status(home: Path, config: Path) -> list[ModelStatus]:
    """Every model of the configuration and every one of the server; raises ServerError when no server of this checkout runs."""
    server = running(home)
    if server is None:
        raise ServerError("no server of this checkout runs; start one with `make serve`.")
    client = server.client(home)
    names = sorted({model["modelName"] for model in client.models()})
    return compare(read_configuration(config), [version for name in names for version in client.describe(name, "all")])


def compare(configuration: Configuration, versions: list[dict[str, Any]]) -> list[ModelStatus]:
    """Puts what is wanted beside what GET /models/NAME/all answered."""
    wanted = {(model.name, model.version): _wanted(model) for model in configuration.models}
    served = {(entry["modelName"], entry["modelVersion"]): entry for entry in versions}
    return [_model(key, wanted.get(key), served.get(key)) for key in sorted({*wanted, *served})]


def _model(key: tuple[str, str], wanted: Settings | None, entry: dict[str, Any] | None) -> ModelStatus:
    if entry is None:
        return ModelStatus(*key, wanted, None)
    effective = Settings(entry["batchSize"], entry["maxBatchDelay"], entry["minWorkers"], entry["maxWorkers"])
    workers = tuple(WorkerStatus(w["id"], w["pid"], w["status"], _rss_bytes(w["pid"])) for w in entry["workers"])
    return ModelStatus(*key, wanted, effective, workers, entry["jobQueueStatus"]["pendingRequests"])


def _wanted(model: ModelSettings) -> Settings:
    return Settings(model.batch_size, model.max_batch_delay_ms, model.min_workers, model.max_workers)


def _rss_bytes(pid: int) -> int | None:
    if pid <= 0:  # TorchServe's word for not started yet
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
