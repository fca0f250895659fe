"""The cores: how many threads of all are this worker's, and which cores where it is to stay on a part of its own."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger(__name__)

NO_QUOTA = 1e9  # cores
WORKER_SCRIPT = "model_service_worker.py"
FIXED_THREADS = "BATCHLINE_THREADS"


def cores(allowed: int | None = None) -> int:
    """Cores this process may use: its CPU affinity (or so many), within the container's quota where there is one."""
    return max(1, min(allowed or len(_affinity()), math.floor(_quota() + 1e-9) or 1))


def live_workers() -> int:
    """Workers of this TorchServe, this one included; 1 elsewhere."""
    return max(1, len(_workers()))


def place_among_own() -> tuple[int, int]:
    """The place of this worker among those of its model and version, from 0, the oldest first; and how many these are. (0, 1) elsewhere.

    TorchServe runs all workers of a model in the folder that it unpacked the archive to, and no others.
    """
    folders = {worker: _folder(worker) for worker in _workers()}
    here = next((folder for worker, folder in folders.items() if worker.pid == os.getpid()), "")
    own = sorted((worker.create_time(), worker.pid) for worker, folder in folders.items() if folder == here)
    pids = [pid for _, pid in own]
    return (pids.index(os.getpid()), len(pids)) if os.getpid() in pids else (0, 1)


def part_of(cores: Sequence[int], place: int, workers: int) -> list[int]:
    """One worker's part of these cores: neighbours, as many for every worker; all of them where there are more workers than cores."""
    width = len(cores) // workers
    return list(cores[place * width : (place + 1) * width] if width else cores)


def side_by_side(cpus: Sequence[int]) -> list[int]:
    """These CPUs so that the hyper-threads of one core are neighbours: two workers must not get one each and share every core."""
    return sorted(cpus, key=lambda cpu: (_topology(cpu, "physical_package_id", 0), _topology(cpu, "core_id", cpu), cpu))


def _topology(cpu: int, name: str, default: int) -> int:
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}").read_text())
    except (OSError, ValueError):
        return default


def _affinity(pid: int = 0) -> list[int]:
    """Cores of a process, by default of this thread."""
    return sorted(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _quota() -> float:
    """CPU quota of the cgroup in cores."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()  # cgroup v2
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()  # cgroup v1
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return NO_QUOTA
    return NO_QUOTA if quota in ("max", "-1") else int(quota) / int(period)


def _workers() -> list[psutil.Process]:
    """The children of this process's parent that run TorchServe's worker script."""
    import psutil

    try:
        siblings = psutil.Process(os.getppid()).children()
    except psutil.Error:
        return []
    return [process for process in siblings if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and any(WORKER_SCRIPT in part for part in process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def _folder(process: psutil.Process) -> str:
    import psutil

    try:
        return process.cwd()
    except psutil.Error:
        return ""


def _move_to(part: Sequence[int]) -> None:
    """All threads of this process: an affinity is a thread's, and what it starts later inherits it."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), part)
        except ProcessLookupError:  # it has just ended
            continue


class Share:
    """Keeps the threads of all workers together within the cores, whatever the worker count is set to, also later.

    Args:
        limit: `threads` of model-config.yaml: the most this worker may have; None for no limit of its own.
        pin: `pin_cores` of model-config.yaml: whether each worker of this model stays on a part of the cores of its own. A worker that
            wakes for a batch may else be put on the core of one that is at work, and both then take turns on it beside an idle core.

    Workers come and go while the server runs (PUT /models/NAME?min_worker=4), so the share is looked at again now and then.
    BATCHLINE_THREADS in the worker's environment fixes the threads instead: a measurement knows which of its workers are busy.
    """

    every_s = 5.0

    def __init__(self, limit: int | None = None, pin: bool = False) -> None:
        self.limit = limit
        self.pin = pin and hasattr(os, "sched_setaffinity")
        self.looked_s = -math.inf
        self.current = 0

    def allowed(self) -> list[int]:
        """Cores of all workers together, now: a pinned worker asks for its parent's, which nobody pins."""
        try:
            return _affinity(os.getppid() if self.pin else 0)
        except OSError:
            return _affinity()

    def share(self) -> int:
        """Threads due to this worker now, at least one."""
        fixed, most = os.environ.get(FIXED_THREADS, ""), cores(len(self.allowed()))
        fair = min(most, int(fixed)) if fixed.isdigit() else most // live_workers()
        return max(1, min(fair, self.limit) if self.limit else fair)

    def keep(self) -> None:
        """Sets torch's threads to the share, and the cores to the part; cheap enough to be called once a batch."""
        now_s = time.monotonic()
        if now_s - self.looked_s < self.every_s:
            return
        self.looked_s = now_s
        self._keep_threads()
        if self.pin:
            self._keep_part()

    def _keep_threads(self) -> None:
        due = self.share()
        if due != self.current:
            torch.set_num_threads(due)
            self.current = due
            logger.info("torch threads: %d (cores %d, workers %d)", due, cores(len(self.allowed())), live_workers())

    def _keep_part(self) -> None:
        allowed, (place, workers) = side_by_side(self.allowed()), place_among_own()
        part = part_of(allowed, place, workers)
        if sorted(part) == _affinity():
            return
        try:
            _move_to(part)
        except OSError as error:  # the container's own set of cores has just changed: not a request's fault, and looked at again
            logger.warning("pin_cores: the kernel refuses cores %s now: %s", part, error)
            return
        logger.info("cores: %s of %s (worker %d of %d of this model)", part, allowed, place + 1, workers)
