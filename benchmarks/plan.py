"""What a run of compare.py measures, and what it knows of each server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from contestants import Contestant
from running import Job, Running
from turns import Turns


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
        tune_clients: of the brief loads that choose a server's settings.
        generator: of the closed loops, wrk or batchline.
        niceness: of the sessions of the servers and of the load, where Linux shares the cores among sessions.
        turns: between other measurements on the machine.
    """

    model: str
    clients: list[int]
    seconds: float
    rounds: int
    processes: list[int]
    batches: list[tuple[int, float]]
    tune_clients: int
    generator: str
    niceness: int = 0
    turns: Turns = field(default_factory=Turns)
