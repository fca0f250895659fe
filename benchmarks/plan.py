"""What a run of compare.py measures, and what it knows of each server."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from contestants import Contestant
from running import Job, Running

HOLD_S = 150.0  # of the lock, at least; a turn is not broken off
YIELD_S = 0.3


@dataclass
class Entry:
    """A server in this run.

    Attributes:
        name: as it was asked for, NAME or NAME:RUNTIME.
        contestant: what it is.
        job: what it serves; its processes and batch size are what tuning found.
        running: while it runs.
        tuning: brief loads, by process count and batch size.
        rounds: measurements, each with its round and its loop: closed, own or equal.
        memory: after its first turn.
        off: largest difference of its answers from ours.
        idle_share: of a core, while nobody asks.
        problem: why it was left out, from then on.
    """

    name: str
    contestant: Contestant
    job: Job
    running: Running | None = None
    tuning: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    off: float | None = None
    idle_share: float | None = None
    problem: str = ""

    @property
    def bare(self) -> bool:
        """The loop without a server."""
        return self.contestant.kind == "bare"

    def end(self) -> None:
        """Ends it, if it runs."""
        if self.running:
            self.running.end()
            self.running = None


@dataclass
class Plan:
    """What is measured.

    Attributes:
        model: its name.
        clients: of the closed loops.
        seconds: of each load.
        rounds: of all servers.
        processes: counts to try with every server; empty for each server's own.
        batches: batch sizes and delays in ms to try; the first while process counts are tried.
        niceness: of the sessions of the servers and of the load, where Linux shares the cores among sessions.
        lock: a file that is locked while something is measured, so that other measurements on the machine go between; None for none.
        held: that file, while it is locked.
        held_since_s: when it was.
    """

    model: str
    clients: list[int]
    seconds: float
    rounds: int
    processes: list[int]
    batches: list[tuple[int, float]]
    niceness: int = 0
    lock: Path | None = None
    held: TextIO | None = None
    held_since_s: float = 0.0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One server's turn. The lock is let go between turns, once it has been held for a while."""
        if self.lock and self.held is None:
            self.held = self.lock.open("a")
            fcntl.flock(self.held, fcntl.LOCK_EX)
            self.held_since_s = time.monotonic()
        yield
        if self.held and time.monotonic() - self.held_since_s > HOLD_S:
            self.let_go()
            time.sleep(YIELD_S)

    def let_go(self) -> None:
        """Unlocks."""
        if self.held:
            self.held.close()
            self.held = None
