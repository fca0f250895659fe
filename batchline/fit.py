"""run.json -> what it says: the line of the server and of the handler alone, what TorchServe adds, and how workers scale.

A pure function of the file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from batchline.cost import CostLine, fit_cost_line
from batchline.errors import MeasureError
from batchline.measured import HANDLER, SERVER, Measured
from batchline.runfile import Machine
from batchline.scaling import Scaling, Throughput, fit_scaling


@dataclass(frozen=True)
class Fit:
    """What a measurement says.

    Attributes:
        server: the line that a server has, TorchServe's own time in it.
        handler: the line of the handler alone; None where it was not measured.
        request_ms: median latency of a request that is alone on the server; None where it was not measured.
        scaling: throughput by workers and threads; None where it was not measured.
        warnings: what a reader should know before using any of it.
    """

    model: str
    model_version: str
    machine: Machine
    versions: dict[str, str]
    complete: bool
    server: CostLine
    handler: CostLine | None
    request_ms: float | None
    scaling: Scaling | None
    warnings: list[str]

    @property
    def overhead_ms(self) -> tuple[float, float] | None:
        """TorchServe's own milliseconds (a batch, a request): the server's line less the handler's; None without both lines."""
        if not (self.handler and self.handler.linear and self.server.linear):
            return None
        return self.server.c_ms - self.handler.c_ms, self.server.m_ms - self.handler.m_ms


def fit(measured: Measured) -> Fit:
    """Everything that a measurement says; raises MeasureError where it holds too little for a line."""
    if not any(not batch.warm_up and batch.place == SERVER for batch in measured.batches):
        raise MeasureError("no batch of the server was measured; `batchline measure MODEL --resume` goes on.")
    server = fit_cost_line(measured.times_ms(SERVER))
    alone = measured.times_ms(HANDLER)
    handler = fit_cost_line(alone) if len(alone) > 2 else None
    latencies = [request.latency_ms for request in measured.requests if not request.warm_up]
    return Fit(
        model=measured.model,
        model_version=measured.model_version,
        machine=measured.machine,
        versions=measured.versions,
        complete=measured.complete,
        server=server,
        handler=handler,
        request_ms=float(np.median(latencies)) if latencies else None,
        scaling=_scaling(measured),
        warnings=_warnings(measured, server, handler),
    )


def _scaling(measured: Measured) -> Scaling | None:
    runs = [Throughput(run.workers, run.threads, run.batch_size, run.per_s) for run in measured.settings]
    return fit_scaling(runs, measured.machine.cores) if runs else None


def _warnings(measured: Measured, server: CostLine, handler: CostLine | None) -> list[str]:
    said = [] if measured.complete else ["the measurement is not complete: `batchline measure MODEL --resume` goes on"]
    said += [f"server: {warning}" for warning in server.warnings]
    return said + [f"handler alone: {warning}" for warning in (handler.warnings if handler else ())]


def as_json(found: Fit) -> dict[str, Any]:
    """The server's line at the top, as `batchline fit --json` prints it; units are in the names."""
    overhead = found.overhead_ms
    return {
        "model": found.model,
        "model_version": found.model_version,
        **_line(found.server),
        "handler": _line(found.handler) if found.handler else None,
        "overhead": {"batch_ms": overhead[0], "request_ms": overhead[1]} if overhead else None,
        "request_ms": found.request_ms,
        "scaling": asdict(found.scaling) if found.scaling else None,
        "warnings": found.warnings,
        "complete": found.complete,
        "machine": asdict(found.machine),
        "versions": found.versions,
    }


def _line(line: CostLine) -> dict[str, Any]:
    own = {key: value for key, value in asdict(line).items() if key != "warnings"}
    return own | {"batch_size_80": line.size_for(0.8), "batch_size_90": line.size_for(0.9)}


def compare(one: Fit, other: Fit) -> list[str]:
    """Two measurements of the same model: c and m side by side, and whether their intervals meet."""
    said, apart = [], []
    for name, value, interval in (("c", "c_ms", "c_ms_interval"), ("m", "m_ms", "m_ms_interval")):
        values = [getattr(found.server, value) for found in (one, other)]
        intervals = [getattr(found.server, interval) for found in (one, other)]
        ranges = [f"{v:.2f} ms ({low:.2f} to {high:.2f})" for v, (low, high) in zip(values, intervals, strict=True)]
        said.append(f"{name}: {ranges[0]} against {ranges[1]}")
        if intervals[0][0] > intervals[1][1] or intervals[1][0] > intervals[0][1]:
            apart.append(name)
    if apart and not (one.server.linear and other.server.linear):
        return [
            *said,
            f"{' and '.join(apart)} differ, and where T(B) is no line other batch sizes or rounds give another one: compare the tables",
        ]
    loads = " and ".join(f"{found.machine.load_average_1min:.1f}" for found in (one, other))
    verdict = (
        f"{' and '.join(apart)} differ: the machine was too noisy or another one (load average {loads}); measure again when it is quiet"
    )
    return [*said, verdict if apart else "they agree within their intervals"]
