"""Why a prediction was off: T(B) of another moment, T(B) itself, or the queue's model? `python benchmarks/pace.py MODEL`.

One worker or two are loaded several times, T(B) and the saturated throughput taken just before and just after each load. Each load is
then predicted three times, for its very arrivals:

around      from the T(B) and the slowdown of two workers around it, as a plan is from a measurement
own         from the times that its own batches took and how these grew while the other worker was busy, drawn at random
in order    from the same times where they were: what was slow for a while stays so for that while, whatever made it slow

What "own" takes away is T(B) of another moment, what "in order" takes away is spells and what two workers do to each other; what is left
is the queue's model.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import psutil
import showtune
from rich.console import Console
from tune_predict import SEEDS
from tuning import MODELS, find, saturated_per_s, serving, setting_of

from batchline import runfile, verify
from batchline.candidates import Candidates
from batchline.load import RequestRecord, open_loop
from batchline.queueing import Service
from batchline.saturate import saturate
from batchline.simulate import simulate_times
from batchline.swept import Candidate

SIZES = (1, 2, 3, 4, 6, 8, 12)
GAINS = np.linspace(0.0, 0.9, 181)  # 1 - 1/slowdown, tried in turn
TABLE_S, SATURATE_S, LOAD_S = 1.5, 2.0, 12.0
OURS = ("deserialize", "preprocess", "inference", "serialize")
WAYS = ("around", "own", "in order")


@dataclass(frozen=True)
class Cores:
    """Seconds so far: of the workers on a core, in their handlers; of this machine's cores in use, and of those that the host gave away."""

    workers_s: float
    handlers_s: float
    used_s: float
    stolen_s: float

    @classmethod
    def now(cls, server: Candidates, handlers_s: float = 0.0) -> Cores:
        """As the kernel counts them."""
        machine, workers = psutil.cpu_times(), psutil.Process(server.server.pid).children(recursive=True)
        stolen_s = getattr(machine, "steal", 0.0)
        times = [worker.cpu_times() for worker in workers]
        return cls(sum(each.user + each.system for each in times), handlers_s, machine.user + machine.system + stolen_s, stolen_s)

    def __add__(self, other: Cores) -> Cores:
        return Cores(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Cores) -> Cores:
        return Cores(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def on_core(self) -> float:
        """The part of the handlers' time that their workers had a core; what messages take beside the handler counts too."""
        return self.workers_s / self.handlers_s

    @property
    def stolen(self) -> float:
        """The part of the time that something here wanted a core and the host did not give it."""
        return self.stolen_s / self.used_s


@dataclass(frozen=True)
class Table:
    """T(B) and the handler's part of it in milliseconds, every batch of each size; lone requests; and the cores meanwhile."""

    batch_ms: dict[int, list[float]]
    handler_ms: dict[int, list[float]]
    lone_ms: list[float]
    cores: Cores

    def __add__(self, other: Table) -> Table:
        both = [
            {size: mine[size] + theirs[size] for size in mine}
            for mine, theirs in ((self.batch_ms, other.batch_ms), (self.handler_ms, other.handler_ms))
        ]
        return Table(both[0], both[1], self.lone_ms + other.lone_ms, self.cores + other.cores)


@dataclass(frozen=True)
class Batches:
    """A load's own batches in order: size, the handler's milliseconds, when the last answer came (s)."""

    sizes: np.ndarray
    handler_ms: np.ndarray
    done_s: np.ndarray

    @property
    def together(self) -> np.ndarray:
        """How much of each one's time the other worker had a batch too, 0 to 1."""
        starts = self.done_s - self.handler_ms / 1e3
        shared = np.minimum(self.done_s[:, None], self.done_s) - np.maximum(starts[:, None], starts)
        np.fill_diagonal(shared, 0.0)
        return np.minimum(1.0, shared.clip(0.0).sum(axis=1) / (self.handler_ms / 1e3))


def handler_ms(stages_ms: dict[str, float]) -> float:
    """All that the handler says it took."""
    return sum(stages_ms.get(name, 0.0) for name in OURS)


def take_table(server: Candidates, bodies: list[bytes]) -> Table:
    """Batches of each size back to back, then single requests."""
    batch_ms, inside_ms, handlers_ms = {}, {}, 0.0
    begun = Cores.now(server)
    for candidate in server.candidates[1:]:
        size = candidate.batch_size
        path = server.path(server.candidates.index(candidate))
        last = saturate(server.address, path, bodies, 2 * size, TABLE_S, multiple=size, least=6 * size)[size - 1 :: size]
        batch_ms[size] = [(after.done_s - before.done_s) * 1e3 for before, after in pairwise(last)]
        inside_ms[size] = [handler_ms(reply.stages_ms) for reply in last[1:]]
        handlers_ms += sum(handler_ms(reply.stages_ms) for reply in last)
    lone = saturate(server.address, server.path(1), bodies, 1, TABLE_S / 2)
    handlers_ms += sum(handler_ms(reply.stages_ms) for reply in lone)
    lone_ms = [(reply.done_s - reply.sent_s) * 1e3 for reply in lone[1:]]
    return Table(batch_ms, inside_ms, lone_ms, Cores.now(server, handlers_ms / 1e3) - begun)


def batches_of(records: Sequence[RequestRecord]) -> Batches:
    """Requests of one batch carry the same stages, and their answers come one after another."""
    groups: list[list[RequestRecord]] = []
    for record in sorted(records, key=lambda record: record.done_s):
        if groups and groups[-1][-1].stages_ms["inference"] == record.stages_ms["inference"] and len(groups[-1]) < (record.batch_size or 1):
            groups[-1].append(record)
        else:
            groups.append([record])
    sizes = np.array([group[0].batch_size or 1 for group in groups])
    return Batches(sizes, np.array([handler_ms(group[0].stages_ms) for group in groups]), np.array([group[-1].done_s for group in groups]))


def around(table: Table, loaded: Candidate, saturated_per_s: float) -> Service:
    """What a measurement of that moment would say: medians, each batch over its median, the slowdown of all workers at saturation."""
    medians = {size: median(times) for size, times in table.batch_ms.items()}
    noise = tuple(ms / medians[size] for size, times in table.batch_ms.items() for ms in times)
    batch_ms = np.interp(np.arange(1, loaded.batch_size + 1), list(medians), list(medians.values()))
    alone_per_s = loaded.batch_size / fmean(table.batch_ms[loaded.batch_size]) * 1e3
    slowdown = (1.0, max(1.0, loaded.workers * alone_per_s / saturated_per_s))
    return Service(tuple(map(float, batch_ms)), slowdown, noise, max(0.1, median(table.lone_ms) - medians[1]))


def own(table: Table, load: Batches, shared: np.ndarray) -> Service:
    """The handler's line through the load's own batches, each over that line; the way to the worker and back from the table.

    `shared` [batches] is the part of its time that each had to share with the other worker: one that shared all of it took `slowdown`
    times as long. Line and slowdown are those that leave the least spread.
    """
    fits = [(*line_of(load.sizes, load.handler_ms * (1 - gain * shared)), gain) for gain in GAINS]
    line, off, gain = min(fits, key=lambda fit: float(np.var(fit[1])))
    sizes = list(table.batch_ms)
    outside = [median(table.batch_ms[size]) - median(table.handler_ms[size]) for size in sizes]
    each = np.arange(1, max(sizes) + 1)
    batch_ms = line(each) + np.interp(each, sizes, outside)
    front_end_ms = max(0.1, median(table.lone_ms) - median(table.batch_ms[1]))
    return Service(tuple(map(float, batch_ms)), (1.0, float(1 / (1 - gain))), tuple(map(float, off)), front_end_ms)


def line_of(sizes: np.ndarray, times_ms: np.ndarray) -> tuple[np.polynomial.Polynomial, np.ndarray]:
    """The straight line over batch size, level where there is one size only; and each batch over it."""
    line = np.polynomial.Polynomial.fit(sizes, times_ms, min(1, len(np.unique(sizes)) - 1))
    return line, times_ms / line(sizes)


def drawn(service: Service, loaded: Candidate, times: np.ndarray) -> tuple[float, float]:
    """Mean and p99 for these arrivals, a mean over seeds of the noise."""
    found = []
    for seed in range(SEEDS):
        trace = simulate_times(service, setting_of(loaded), times, seed=seed)
        latency = trace.done_ms - trace.arrival_ms + float(np.mean(service.front_end_ms))
        found.append((latency.mean(), np.percentile(latency, 99)))
    mean, p99 = np.mean(found, axis=0)
    return float(mean), float(p99)


def in_order(service: Service, load: Batches, loaded: Candidate, times: np.ndarray) -> tuple[float, float]:
    """The same by one collector at a time, where a batch is as slow as the one that really ran then, whatever slowed it."""
    latency, first, collector_s = [], 0, 0.0
    free_s = [0.0] * loaded.workers  # a heap
    while first < len(times):
        begin_s = max(heapq.heappop(free_s), collector_s, times[first])
        most = times[first : first + loaded.batch_size]
        size = max(1, int((most <= begin_s + loaded.max_batch_delay_ms / 1e3).sum()))
        full = size == loaded.batch_size
        collector_s = max(begin_s, most[-1]) if full else begin_s + loaded.max_batch_delay_ms / 1e3
        slow = service.noise[min(int(np.searchsorted(load.done_s, collector_s)), len(service.noise) - 1)]
        done_s = collector_s + service.batch_ms[size - 1] * slow / 1e3
        heapq.heappush(free_s, done_s)
        latency += list((done_s - most[:size]) * 1e3 + float(np.mean(service.front_end_ms)))
        first += size
    return float(np.mean(latency)), float(np.percentile(latency, 99))


def step(bodies: list[bytes], server: Candidates, before: Table, share: float, repeat: int) -> tuple[Table, dict[str, Any]]:
    """One load between two tables: the later one, and what was measured and predicted; of a full queue only that it was."""
    loaded = server.candidates[0]
    before_per_s = saturated_per_s(server, loaded, bodies, SATURATE_S)
    rate = share * before_per_s
    times, _ = verify.arrivals(rate, int(rate * LOAD_S), (repeat,))
    idle = Cores.now(server)
    run = open_loop(server.target(loaded, bodies), times)
    cores = Cores.now(server) - idle
    saturated = (before_per_s + saturated_per_s(server, loaded, bodies, SATURATE_S)) / 2
    after = take_table(server, bodies)
    refused = sum(not record.ok for record in run.records)
    if refused:
        return after, {"rate_per_s": rate, "refused": refused}
    table, load = before + after, batches_of(run.records)
    cores = replace(cores, handlers_s=float(load.handler_ms.sum()) / 1e3)
    nothing = np.zeros(len(load.sizes))
    services = {"around": around(table, loaded, saturated), "own": own(table, load, load.together if loaded.workers > 1 else nothing)}
    said = {way: drawn(service, loaded, times) for way, service in services.items()}
    said["in order"] = in_order(own(table, load, nothing), load, loaded, times)
    seen = np.array([record.latency_ms for record in run.records])
    known = {size: fmean(inside) for size, inside in table.handler_ms.items()}
    pairs = [(ms, known[size]) for size, ms in zip(load.sizes.tolist(), load.handler_ms, strict=True) if size in known]
    found = {
        "rate_per_s": rate,
        "saturated_per_s": saturated,
        "mean_ms": float(seen.mean()),
        "p99_ms": float(np.percentile(seen, 99)),
        "handler_over_back_to_back": float(sum(ms for ms, _ in pairs) / sum(known for _, known in pairs)),
        "on_core": {"back_to_back": table.cores.on_core, "load": cores.on_core},
        "stolen": {"back_to_back": table.cores.stolen, "load": cores.stolen},
        "slowdown": {way: service.slowdown[-1] for way, service in services.items()} if loaded.workers > 1 else None,
        "spread": float(np.std(services["own"].noise)),
        "predicted": {way: {"mean_ms": mean, "p99_ms": p99} for way, (mean, p99) in said.items()},
    }
    return after, found


def brief(found: dict[str, Any]) -> str:
    """What a load met."""
    if "refused" in found:
        return f"the queue was full for {found['refused']} requests at {found['rate_per_s']:.0f}/s: left out"
    return f"mean {found['mean_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms"


def markdown(record: dict[str, Any]) -> str:
    """A row a load whose queue was never full: measured, and how far off each way is; the medians of |error| last."""
    loads = [load for load in record["loads"] if "refused" not in load]
    slow = [load.get("slowdown") for load in loads]
    rows, offs = [], []
    for load, slowdown in zip(loads, slow, strict=True):
        off = [load[field] / load["predicted"][way][field] - 1 for way in WAYS for field in ("mean_ms", "p99_ms")]
        offs.append(off)
        cells = [f"{load['rate_per_s']:.0f}", f"{load['mean_ms']:.1f}", f"{load['p99_ms']:.1f}", f"{load['handler_over_back_to_back']:.3f}"]
        if slowdown:
            cells += [f"{load['handler_over_back_to_back'] * load['on_core']['load'] / load['on_core']['back_to_back']:.3f}"]
            cells += [f"{load['stolen'][when]:.0%}" for when in ("back_to_back", "load")]
            cells += [f"{slowdown[way]:.2f}" for way in ("around", "own")]
        rows.append((*cells, *(f"{each:+.0%}" for each in off)))
    headings = ["rate/s", "mean ms", "p99 ms", "handler, of back to back"]
    if any(slow):
        headings += ["on a core, of back to back", "stolen back to back", "stolen in the load"]
        headings += ["slowdown at saturation", "slowdown in the load"]
    rows.append(("median", *[""] * (len(headings) - 1), *(f"{each:.0%}" for each in np.median(np.abs(offs), axis=0))))
    headings += [f"{way}: {name} off" for way in WAYS for name in ("mean", "p99")]
    return showtune.table(headings, rows)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("model", nargs="?", choices=[name for name in MODELS if name != "sleep"], help="sleep tells no stages")
    what.add_argument("--show", type=Path, help="print a record's table again")
    parser.add_argument("--setting", type=int, nargs=3, default=(12, 2, 1), metavar=("SIZE", "DELAY", "WORKERS"), help="1 or 2 workers")
    parser.add_argument("--share", type=float, default=0.75, help="of the saturated throughput")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("-o", "--output", type=Path, help="the record: every figure")
    said = parser.parse_args()
    if said.setting[2] not in (1, 2):
        parser.error("one worker or two")
    return said


def main() -> None:
    """Loads, and prints the table."""
    said = parse()
    record = json.loads(said.show.read_text()) if said.show else measured(said)
    print(markdown(record))


def measured(said: argparse.Namespace) -> dict[str, Any]:
    """The record, written after every load."""
    subject, console = find(said.model), Console(width=150)
    loaded = Candidate("loaded", *said.setting)
    sizes = sorted({loaded.batch_size, *(size for size in SIZES if size <= loaded.batch_size)})
    candidates = [loaded, *(Candidate(f"b{size}", size, 200, 1) for size in sizes)]
    record: dict[str, Any] = {
        "model": said.model,
        "setting": said.setting,
        "machine": asdict(runfile.machine()),
        "versions": runfile.versions(),
        "pin_cores": bool(subject.recipe.config.get("pin_cores")),
        "loads": [],
    }
    with serving(subject, candidates) as server:
        table = take_table(server, subject.bodies)
        for repeat in range(said.repeats):
            table, found = step(subject.bodies, server, table, said.share, repeat)
            record["loads"].append(found)
            console.print(f"load {repeat + 1} of {said.repeats}: {brief(found)}", highlight=False)
            if said.output:
                runfile.put(said.output, record, indent=1)
    return record


if __name__ == "__main__":
    main()
