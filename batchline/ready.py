"""Waits until every worker of a starting TorchServe is READY, and says why when one will never be."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from batchline.client import Client
from batchline.errors import RequestFailed, ServerError, WorkerFailed
from batchline.properties import Configuration
from batchline.workerlog import TRACEBACK, WorkerLog, own_traceback

POLL_S = 0.2
SETTLE_S = 2.0  # a dead worker's last lines reach the log through a thread of the JVM
WORKER_SOCKET = re.compile(r"\.ts\.sock\.(\d+)")
Progress = Callable[[Mapping[str, tuple[int, int]], float], None]  # name/version -> (READY workers, wanted), seconds so far
Version = dict[str, Any]  # one entry of GET /models/NAME/all


def archives(configuration: Configuration, model_store: Path) -> list[str]:
    """What load_models names, as the management API names it: file names or URLs."""
    wanted = [entry.strip().rpartition("=")[2] for entry in configuration.load_models]
    return sorted(p.name for p in model_store.glob("*.mar")) if "all" in [entry.lower() for entry in wanted] else wanted


def wait_ready(
    jvm: Callable[[], psutil.Process | None],
    client: Client,
    log: WorkerLog,
    wanted: list[str],
    progress: Progress | None = None,
    limit_s: float = 3600.0,
) -> None:
    """Returns when every archive of `wanted` is registered and all its workers are READY.

    Args:
        jvm: the server's process while it lives.
        client: asks its management API.
        log: what this run has written.
        wanted: the archives, as `archives` names them.
        progress: called about every 0.2 s.
        limit_s: give up after that long.

    Raises:
        WorkerFailed: a worker's process ended; TorchServe would only start it again, for five minutes.
        ServerError: the JVM ended, an archive was passed over, or time is up.
    """
    began, seen = time.monotonic(), dict[psutil.Process, str]()
    while True:
        process = jvm()
        if process is None:
            raise ServerError(f"TorchServe ended while it started:\n{log.tail()}")
        versions = _versions(client, wanted, log)
        _watch(process, seen, versions or [], log)
        states = {
            f"{version['modelName']}/{version['modelVersion']}": (ready_workers(version), int(version["minWorkers"]))
            for version in versions or []
        }
        seconds = time.monotonic() - began
        if progress:
            progress(states, seconds)
        if versions is not None and all(ready >= least for ready, least in states.values()):
            return
        if seconds > limit_s:
            raise ServerError(f"not every worker was READY after {limit_s:g} s (model: ready, wanted): {states}; logs in {log.folder}.")
        time.sleep(POLL_S)


def ready_workers(version: Version) -> int:
    """How many of a model version's workers are READY."""
    return sum(worker["status"] == "READY" for worker in version["workers"])


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """The process's children and theirs; empty once it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _children(jvm: psutil.Process) -> list[psutil.Process]:
    """Its own children only: what a worker forks for a moment carries the worker's command line, and its end is nobody's death."""
    try:
        return jvm.children()
    except psutil.Error:
        return []


def _versions(client: Client, wanted: list[str], log: WorkerLog) -> list[Version] | None:
    """Every version of every model; None as long as the API does not answer, which it does once all archives are registered."""
    try:
        models = client.models()
        versions = [version for name in sorted({m["modelName"] for m in models}) for version in client.describe(name, "all")]
    except (ServerError, RequestFailed):
        return None
    missing = sorted(set(wanted) - {version["modelUrl"] for version in versions})
    if missing:
        reasons = log.unregistered()
        said = "; ".join(f"{url} ({reasons.get(url, 'no reason logged')})" for url in missing)
        raise ServerError(f"TorchServe passed over {said}.")
    return versions


def _watch(jvm: psutil.Process, seen: dict[psutil.Process, str], versions: list[Version], log: WorkerLog) -> None:
    """Notes the workers' processes and raises WorkerFailed when one is gone. The log alone would not do: its level can be changed."""
    for process, worker in seen.items():
        if not alive(process):
            raise WorkerFailed(_model_of(worker, versions, log), _last_words(log, worker, process.pid))
    for process in _children(jvm):
        with suppress(psutil.Error):
            if process not in seen and (match := WORKER_SOCKET.search(" ".join(process.cmdline()))):
                seen[process] = match[1]


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not, and where nothing reaps orphans (many containers) it stays one for ever."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _last_words(log: WorkerLog, worker: str, pid: int) -> str:
    """The dead worker's traceback, once the log has stopped growing."""
    until, lines = time.monotonic() + SETTLE_S, list[str]()
    while time.monotonic() < until:
        before, lines = lines, log.worker_lines(worker, pid)
        if lines == before and TRACEBACK in lines:
            break
        time.sleep(POLL_S)
    return own_traceback(lines)


def _model_of(worker: str, versions: list[Version], log: WorkerLog) -> str:
    """The model's name: from the API, or, before that answers, what the worker printed of it."""
    for version in versions:
        if any(entry["id"] == worker for entry in version["workers"]):
            return str(version["modelName"])
    said = [re.match(r"model_name: (.+), batchSize: ", line) for line in log.worker_lines(worker)]
    return next((match[1] for match in said if match), f"(worker {worker})")
