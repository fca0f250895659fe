"""A server that takes part: started in an environment of its own, waited for, weighed, ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import environments
import psutil
import requests
import wire
from stock import free_ports

from batchline.load import Target

ROOT = Path(__file__).resolve().parents[1]
START_S, END_S = 120.0, 15.0
LAST_LINES = 3  # of a server that did not start


class NotRun(Exception):
    """Why a server takes no part."""


@dataclass(frozen=True)
class Job:
    """What a server is to serve.

    Attributes:
        model: its name.
        runtime: eager or onnx.
        bodies: requests as batchline takes them.
        processes: that compute.
        threads: of each; 0 for the runtime's own choice.
        batch_size, delay_ms: where the server batches.
        niceness: of its session; below 0 it goes before what else runs on the machine.
    """

    model: str
    runtime: str
    bodies: tuple[bytes, ...]
    processes: int
    threads: int
    batch_size: int
    delay_ms: float
    niceness: int = 0


@dataclass
class Running:
    """A server that answers.

    Attributes:
        target: where requests go.
        read: an answer's body -> the answer as batchline gives it.
        roots: its processes less their children.
        end: stops it.
        job: what it serves.
    """

    target: Target
    read: wire.Read
    roots: list[psutil.Process]
    end: Callable[[], None]
    job: Job

    def tree(self) -> list[psutil.Process]:
        """All its processes."""
        found = dict.fromkeys(self.roots)
        for root in self.roots:
            try:
                found.update(dict.fromkeys(root.children(recursive=True)))
            except psutil.Error:
                continue
        return [process for process in found if process.is_running()]

    def memory_mib(self) -> dict[str, Any]:
        """Resident memory: of all processes together, with shared pages counted once, of the largest, and of the largest but the JVM."""
        resident, proportional, workers = [], [], [0.0]
        for process in self.tree():
            try:
                full, name = process.memory_full_info(), process.name()
            except psutil.Error:
                continue
            resident.append(full.rss / 2**20)
            proportional.append(full.pss / 2**20)
            if name != "java":
                workers.append(full.rss / 2**20)
        largest = {"largest": max(resident, default=0.0), "worker": max(workers)}
        return {"rss": sum(resident), "pss": sum(proportional), **largest, "processes": len(resident)}

    def cpu_s(self) -> float:
        """Processor time that its processes have used."""
        used = 0.0
        for process in self.tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            used += times.user + times.system
        return used


def set_group_niceness(pids: Iterable[int], niceness: int) -> None:
    """Before other work on the machine, or after it: Linux may share the cores among sessions, whatever their processes' niceness is."""
    for pid in pids if niceness else ():
        with contextlib.suppress(OSError):  # ended, or no such grouping here
            Path("/proc", str(pid), "autogroup").write_text(str(niceness))


class Others:
    """How many cores other work on the machine has while something is measured: what disturbs a measurement, whoever it is."""

    def __init__(self, server: Running | None) -> None:
        self.server = server
        self.began, self.busy_s, self.own_s = time.monotonic(), self._busy(), self._own()

    def cores(self) -> float:
        """Since it was made: processor time of the machine less the server's, this process's and its ended children's."""
        taken = self._busy() - self.busy_s - (self._own() - self.own_s)
        return round(max(0.0, taken / (time.monotonic() - self.began)), 2)

    def _busy(self) -> float:
        told = psutil.cpu_times()
        return float(sum(told) - told.idle - getattr(told, "iowait", 0.0) - getattr(told, "guest", 0.0) - getattr(told, "guest_nice", 0.0))

    def _own(self) -> float:
        own = psutil.Process().cpu_times()
        return float(own.user + own.system + own.children_user + own.children_system) + (self.server.cpu_s() if self.server else 0.0)


def script(
    path: str,
    peer: str,
    bodies: wire.Form = wire.plain,
    read: wire.Read = json.loads,
    url: str = "/predict",
    added: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Job], Running]:
    """A server of benchmarks/, run by the Python of its own environment; `added` goes into its environment variables."""

    def start(job: Job) -> Running:
        (port,) = free_ports(1)
        command = command_of(path, peer, job, port)
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the server)
        home = Path(tempfile.mkdtemp(prefix="bench-home-"))
        given = {**os.environ, **({"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}), **added}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = psutil.Popen(command, cwd=home, env=given, start_new_session=True, **quiet)
        set_group_niceness([process.pid], job.niceness)

        def end() -> None:
            end_tree(process)
            log.close()
            shutil.rmtree(home, ignore_errors=True)

        sent, headers = bodies(job.model, job.bodies)
        target = Target(f"http://127.0.0.1:{port}{url.format(model=job.model)}", sent, headers)
        running = Running(target, read, [process], end, job)
        try:
            wait_answering(running, log)
        except BaseException:  # Ctrl-C and SIGTERM too: nobody else knows of it yet
            end()
            raise
        return running

    return start


def command_of(path: str, peer: str, job: Job, port: int) -> list[str]:
    """What starts a script with its settings. Raises NotRun where its environment is missing."""
    python = environments.python_of(peer)
    if not python.exists():
        raise NotRun(f"no environment {python.parents[1].name}: make bench-setup")
    command = [str(python), str(ROOT / "benchmarks" / path), "--model", job.model, "--runtime", job.runtime, "--port", str(port)]
    command += ["--processes", str(job.processes), "--threads", str(job.threads)]
    return [*command, "--batch-size", str(job.batch_size), "--delay-ms", str(job.delay_ms)]


def end_tree(process: psutil.Process) -> None:
    """SIGTERM to the root, which should end its children; SIGKILL to exactly those processes that stay."""
    try:
        tree = [process, *process.children(recursive=True)]
        process.terminate()
    except psutil.Error:
        return
    _, left = psutil.wait_procs(tree[:1], END_S)
    _, left = psutil.wait_procs(tree, 2.0)
    for survivor in left:
        try:
            survivor.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(left, 5.0)


def wait_answering(running: Running, log: Any) -> None:
    """Returns when it answers its first request with 200. Raises NotRun, having stopped it, when it ends or takes too long."""
    until, said = time.monotonic() + START_S, ""
    root = running.roots[0]
    while time.monotonic() < until and root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        try:
            reply = requests.post(running.target.url, running.target.bodies[0], headers=running.target.headers, timeout=30)
            if reply.status_code == 200:
                return
            said = f"{reply.status_code} {reply.text[:300]}"
        except requests.RequestException as error:
            said = type(error).__name__
        time.sleep(0.2)
    log.seek(0)
    words = [line.strip() for line in log.read().splitlines() if line.strip()]
    running.end()
    raise NotRun(f"never answered (last: {said}): {' | '.join(words[-LAST_LINES:])}")
