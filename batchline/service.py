"""run.json -> what a plan must know of a model: T(B), how busy workers slow each other, noise, rest, the front end, stages, memory.

A pure function of the file, but for the archive, whose size stands in where no worker's memory was measured.

What is called T(B) here is the worker's whole cycle with the next batch ready, as `batchline measure` takes it on a server: from
one batch's last answer to the next one's. Handing the batch to the worker and back is in it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from batchline.cost import Regime, fit_cost_line
from batchline.errors import MeasureError
from batchline.measured import SERVER, Measured
from batchline.queueing import Service
from batchline.rested import rest_of
from batchline.variants import WORKER_BYTES

MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """One measured model.

    Attributes:
        name, version: as in config.properties.
        cores: of the machine that it was measured on.
        services: threads a worker -> its service; 1 is always there.
        regime: overhead-bound, balanced or compute-bound.
        most: how many times faster than requests one by one batches get at the best batch size.
        worker_mib: resident memory of one worker, MiB.
        worker_mib_measured: False where it is an estimate: torch and Python, and the unpacked archive.
        stages_ms: stage -> milliseconds of it in T(1) .. T(b_max); what no stage holds is TorchServe's own.
        gpu: whether its workers ran on a GPU.
        measured_workers: the most that were measured.
        warnings: of the measurement.
    """

    name: str
    version: str
    cores: int
    services: Mapping[int, Service]
    regime: Regime
    most: float
    worker_mib: float
    worker_mib_measured: bool = False
    stages_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    gpu: bool = False
    measured_workers: int = 1
    warnings: tuple[str, ...] = ()

    @property
    def largest(self) -> int:
        """The largest batch size that was measured: T(B) is known up to here."""
        return len(self.services[1].batch_ms)


def model_of(measured: Measured, archive: Path | None = None) -> Model:
    """What a measurement says to a plan.

    Args:
        measured: a complete run.json.
        archive: NAME.mar, for the memory of a worker where the measurement holds none.

    Raises:
        MeasureError: the measurement is not complete, or holds too little for T(B).
    """
    if not measured.complete:
        raise MeasureError(
            f"the measurement of {measured.model} is not complete (complete: false): "
            f"`batchline measure {measured.model} --resume` goes on, and then there is something to plan from."
        )
    line = fit_cost_line(measured.times_ms(SERVER))
    batch_ms = _batch_ms(measured)
    memory_mib = measured.worker_mib or estimated_mib(archive)
    return Model(
        name=measured.model,
        version=measured.model_version,
        cores=measured.machine.cores,
        services=_services(measured, batch_ms),
        regime=line.regime,
        most=max(size * batch_ms[0] / each for size, each in enumerate(batch_ms, 1)),
        worker_mib=memory_mib,
        worker_mib_measured=measured.worker_mib is not None,
        stages_ms=_stages_ms(measured, batch_ms),
        gpu=bool(measured.gpu),
        measured_workers=max((run.workers for run in measured.settings), default=1),
        warnings=tuple(line.warnings),
    )


def correct(model: Model, batch_factor: float = 1.0, front_end_more_ms: float = 0.0) -> Model:
    """The model after what a running server showed.

    Args:
        model: as measured, or as corrected before.
        batch_factor: T(B) seen / T(B) predicted, above 0: every batch takes so many times as long; stages grow with it.
        front_end_more_ms: what a request takes outside queue and worker beyond what was predicted; the sum is never below 0.

    Raises:
        MeasureError: a factor that is no positive number.
    """
    if not 0 < batch_factor < 1e3 or not abs(front_end_more_ms) < 1e6:
        raise MeasureError(f"a correction by {batch_factor!r} times and {front_end_more_ms!r} ms cannot come from a server.")
    stages = {name: tuple(ms * batch_factor for ms in each) for name, each in model.stages_ms.items()}
    services = {t: _corrected(service, batch_factor, front_end_more_ms) for t, service in model.services.items()}
    return replace(model, services=services, stages_ms=stages)


def halve(model: Model, stage: str) -> Model:
    """The model if this stage took half as long: what a remedy would bring."""
    shares = [1 - ms / 2 / whole for ms, whole in zip(model.stages_ms[stage], model.services[1].batch_ms, strict=True)]
    services = {
        t: replace(service, batch_ms=_rising(ms * share for ms, share in zip(service.batch_ms, shares, strict=True)))
        for t, service in model.services.items()
    }
    return replace(model, services=services)


def estimated_mib(archive: Path | None) -> float:
    """Memory of a worker where none was measured: torch and Python, and what the archive unpacks to; MiB."""
    if archive is None or not archive.is_file():
        return WORKER_BYTES / MIB
    try:
        with zipfile.ZipFile(archive) as packed:
            return (WORKER_BYTES + sum(entry.file_size for entry in packed.infolist())) / MIB
    except (OSError, zipfile.BadZipFile) as error:
        raise MeasureError(f"cannot read {archive} ({error}); `make archive` builds it again.") from None


def _corrected(service: Service, batch_factor: float, front_end_more_ms: float) -> Service:
    front_end_ms = max(0.0, _alone_ms(service) + front_end_more_ms)
    rested = tuple((rest_ms, more_ms * batch_factor, outside_ms) for rest_ms, more_ms, outside_ms in service.rested)
    return replace(service, batch_ms=tuple(ms * batch_factor for ms in service.batch_ms), front_end_ms=front_end_ms, rested=rested)


def _alone_ms(service: Service) -> float:
    return float(np.mean(service.front_end_ms))


def _services(measured: Measured, batch_ms: tuple[float, ...]) -> dict[int, Service]:
    """One for each thread count that throughput was measured with; T(B) was measured with plan.threads and is scaled to the others."""
    noise, rest = _noise(measured), rest_of(measured, batch_ms[0])
    threads = sorted({measured.plan.threads, *(run.threads for run in measured.settings)})
    size = measured.plan.setting_batch_size
    known = {t: _slowdown(measured, t, size) for t in threads}
    of_one = _slowdown(measured, measured.plan.threads, 1) if 1 in measured.plan.setting_batch_sizes else ()
    one_per_s = {t: _throughput(measured, t, size).get(1) for t in threads}
    base_per_s = one_per_s[measured.plan.threads]
    found = {}
    for t in threads:
        per_s = one_per_s[t]
        factor = base_per_s / per_s if base_per_s and per_s else 1.0
        if t == measured.plan.threads or per_s:
            own = of_one if t == measured.plan.threads else ()
            found[t] = Service(tuple(ms * factor for ms in batch_ms), known[t], noise, *rest, slowdown_of_one=own, slowdown_size=size)
    found.setdefault(1, found[min(found)])
    return dict(sorted(found.items()))


def _batch_ms(measured: Measured) -> tuple[float, ...]:
    """T(1) .. T(b_max): medians of the rounds' medians, straight lines between measured sizes, never falling.

    Where T(B) is a line that is the line, up to the noise of the medians.
    """
    times = measured.times_ms(SERVER)
    sizes = sorted(times)
    medians = np.maximum.accumulate([np.median([np.median(batches) for batches in times[size] if batches]) for size in sizes])
    return tuple(float(ms) for ms in np.interp(np.arange(1, sizes[-1] + 1), sizes, medians))


def _noise(measured: Measured) -> tuple[float, ...]:
    """Each batch's time over the median of its size, all sizes together, warm-ups left out.

    Both are of single batches, so their mean is above 1 where now and then one takes far longer.
    """
    found: dict[int, list[float]] = {}
    for batch in measured.batches:
        if batch.place == SERVER and not batch.warm_up:
            found.setdefault(batch.batch_size, []).append(batch.batch_ms)
    return tuple(ms / median(times) for _, times in sorted(found.items()) for ms in times)


def _throughput(measured: Measured, threads: int, batch_size: int) -> dict[int, float]:
    """Workers -> median requests a second at saturation."""
    found: dict[int, list[float]] = {}
    for run in measured.settings:
        if (run.threads, run.batch_size) == (threads, batch_size):
            found.setdefault(run.workers, []).append(run.per_s)
    return {workers: median(per_s) for workers, per_s in sorted(found.items())}


def _slowdown(measured: Measured, threads: int, batch_size: int) -> tuple[float, ...]:
    """slowdown(n) = n·X(1) / X(n) for n = 1 .. the most workers measured, between them on a straight line; 1 at least, never falling."""
    per_s = _throughput(measured, threads, batch_size)
    if 1 not in per_s:
        return (1.0,)
    counts = list(per_s)
    slow = [n * per_s[1] / per_s[n] for n in counts]
    each = np.interp(np.arange(1, counts[-1] + 1), counts, slow)
    return _rising(max(1.0, float(value)) for value in each)


def _stages_ms(measured: Measured, batch_ms: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """Median of each stage by batch size, on a server; straight lines between."""
    found: dict[str, dict[int, list[float]]] = {}
    for batch in measured.batches:
        if batch.place == SERVER and not batch.warm_up:
            for stage, ms in batch.stages_ms.items():
                found.setdefault(stage, {}).setdefault(batch.batch_size, []).append(ms)
    sizes = np.arange(1, len(batch_ms) + 1)
    each = {stage: np.interp(sizes, sorted(times), [median(times[size]) for size in sorted(times)]) for stage, times in found.items()}
    return {stage: tuple(float(min(ms, whole)) for ms, whole in zip(times, batch_ms, strict=True)) for stage, times in each.items()}


def _rising(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.maximum.accumulate(list(values)))
