"""Why a plan is what it is: what binds it, the reason in plain words, and what would have to change where a target is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from batchline import search
from batchline.queueing import Setting, Slowdown, slowed
from batchline.search import Point, Trials
from batchline.service import Model, halve
from batchline.targets import Binding, Limits, Predicted, Target

ROOM = 1.25  # a setting that carries so many times the rate is bound by nothing
BUSY = 0.9  # of the most that the machine can do at all: then it is full
GAIN = 1.03  # what more memory must bring before it is memory that binds
MORE_CORES = (1.5, 2, 4, 8)  # times the cores


def binding(trials: Trials, target: Target, among: Sequence[Setting], most_per_s: float, feasible: bool) -> Binding:
    """What stands between this plan and more.

    Args:
        trials: knows model and limits.
        target: of the plan.
        among: all settings that fit.
        most_per_s: the largest rate at which p99 is kept.
        feasible: whether the target is kept.
    """
    if feasible and target.rate_per_s and most_per_s >= ROOM * target.rate_per_s:
        return "none"
    if not most_per_s:
        return "latency"
    ceiling_per_s = max(trials.capacity_per_s(each) for each in among)
    if _ceiling_without_memory(trials, target) > GAIN * ceiling_per_s:
        return "memory"
    wanted_per_s = max(most_per_s, target.rate_per_s or 0.0)
    return "cores" if wanted_per_s >= BUSY * ceiling_per_s else "latency"


def _ceiling_without_memory(trials: Trials, target: Target) -> float:
    free = replace(trials.limits, memory_mib=math.inf)
    every = search.settings(trials.model, free, target.p99_ms)
    return max(trials.capacity_per_s(each) for each in every)


def reason(trials: Trials, target: Target, setting: Setting, found: Predicted, binds: Binding, feasible: bool) -> str:
    """Regime, stage, workers and delay, and what binds: a few sentences."""
    parts = [_batch(trials, setting), _stage(trials.model, setting.batch_size), _delay(setting, found)]
    return " ".join(part for part in (*parts, _bound(trials, target, found, binds, feasible)) if part)


def _batch(trials: Trials, setting: Setting) -> str:
    model, size = trials.model, setting.batch_size
    times = model.services[setting.threads].batch_ms
    if size == 1 and model.regime == "compute-bound":
        return (
            f"{model.name} is compute-bound: a request costs its own compute, batches serve at most {model.most:.2f} times as many, "
            f"and each request in one waits for all of it; so batch size 1."
        )
    if size == 1:
        return f"Batches serve up to {model.most:.2f} times as many requests, but none has a lower p99 here; so batch size 1."
    won = size * times[0] / times[size - 1]
    return (
        f"{model.name} is {model.regime}: a batch of {size} takes {times[size - 1]:.3g} ms where one request takes {times[0]:.3g} ms, "
        f"so a full one serves {won:.2f} times as many."
    )


def dominating(model: Model, batch_size: int) -> tuple[str, float]:
    """The longest stage of a batch and its part of T(B); what no stage holds counts as TorchServe's own."""
    whole = model.services[1].batch_ms[batch_size - 1]
    parts = {stage: each[batch_size - 1] for stage, each in model.stages_ms.items()}
    parts["TorchServe's own"] = whole - sum(parts.values())
    stage = max(parts, key=lambda name: parts[name])
    return stage, parts[stage] / whole


def _stage(model: Model, batch_size: int) -> str:
    if not model.stages_ms:
        return ""
    stage, part = dominating(model, batch_size)
    return f"{part:.0%} of a batch's time is {stage}."


def _delay(setting: Setting, found: Predicted) -> str:
    mean = f"{found.mean_batch_size:.2f} requests in the mean"
    if setting.batch_size == 1:
        return ""
    if setting.workers == 1:
        return f"The worker finds company for a request while it is busy ({mean}); holding one back would only cost time: delay 1 ms."
    if setting.max_batch_delay_ms > 1:
        return f"Waiting {setting.max_batch_delay_ms:g} ms keeps the {setting.workers} workers from small batches: {mean}."
    return f"The {setting.workers} workers fill batches without waiting: {mean}."


def _bound(trials: Trials, target: Target, found: Predicted, binds: Binding, feasible: bool) -> str:
    what = "GPUs" if trials.limits.gpus else "cores"
    if binds == "none":
        return f"There is room: the workers are busy {found.utilisation:.0%} of the time."
    if binds == "memory":
        return f"Memory binds: another worker takes {trials.model.worker_mib:.0f} MiB, and there is none left for it."
    if binds == "cores":
        busy = "are busy nearly all the time" if feasible else "cannot do as many requests as wanted, or only just"
        return f"The {what} bind: they {busy}."
    return f"Latency binds: the {what} could do more, but not with 99 of 100 answers within {target.p99_ms:g} ms."


def needs(model: Model, limits: Limits, setting: Setting) -> tuple[str, ...]:
    """What config.properties cannot say."""
    own = search.own_threads(model, limits, setting.workers)
    if limits.gpus or own == setting.threads:
        return ()
    return (
        f"threads: the handlers would give each worker {own}; start the server with BATCHLINE_THREADS={setting.threads} in its environment"
        + (f", or put `threads: {setting.threads}` into the model's model-config.yaml." if setting.threads < own else "."),
    )


def remedies(trials: Trials, target: Target, best: Point, led: tuple[Setting, float] | None, at_rate: Predicted | None) -> Iterator[str]:
    """What would have to change, one way a sentence; every one was simulated.

    Args:
        trials: of the model.
        target: out of reach.
        best: the nearest that can be had.
        led: the setting with the largest rate that keeps p99, and that rate; None where no rate keeps it.
        at_rate: the lowest p99 at the target's rate; None where no setting is stable at it.
    """
    if target.rate_per_s and led:
        yield f"the rate: {_down(led[1]):g} requests/s keep p99 within {target.p99_ms:g} ms ({search.words(led[0])})."
    if at_rate and at_rate.p99_ms > 0:
        yield f"the target: p99 of {_up(at_rate.intervals['p99_ms'][1]):g} ms is kept at {target.rate_per_s:g} requests/s."
    elif not led:
        yield f"the target: even rare requests need a p99 of {_up(best[1].intervals['p99_ms'][1]):g} ms."
    yield from _more_cores(trials, target)
    yield from _faster_stage(trials, target, best[0])


def _more_cores(trials: Trials, target: Target) -> Iterator[str]:
    if not target.rate_per_s or trials.limits.gpus:
        return
    for times in MORE_CORES:
        cores = math.ceil(trials.model.cores * times)
        more = Trials(with_cores(trials.model, cores), trials.limits, trials.seed)
        if setting := reached(more, target):
            shared = f"if workers share them as they share {trials.model.cores}"
            yield f"the cores: {cores} like these would do ({search.words(setting)}), {shared}."
            return


def _faster_stage(trials: Trials, target: Target, setting: Setting) -> Iterator[str]:
    if not trials.model.stages_ms:
        return
    stage, part = dominating(trials.model, setting.batch_size)
    if stage not in trials.model.stages_ms:
        stage, part = max(((s, ms[setting.batch_size - 1]) for s, ms in trials.model.stages_ms.items()), key=lambda each: each[1])
        part /= trials.model.services[1].batch_ms[setting.batch_size - 1]
    faster = Trials(halve(trials.model, stage), trials.limits, trials.seed)
    if found := reached(faster, target):
        yield f"the model: with {stage} ({part:.0%} of a batch) twice as fast it is kept ({search.words(found)})."
    else:
        yield f"the model: {stage} is the longest stage ({part:.0%} of a batch), but twice as fast would not be enough."


def with_cores(model: Model, cores: int) -> Model:
    """The model on so many cores, if n workers on them slow each other as n·old/new did on the old ones."""

    def spread(slow: Slowdown) -> Slowdown:
        return tuple(slowed(slow, max(1.0, n * model.cores / cores)) for n in range(1, cores + 2))

    services = {threads: service.reslowed(spread) for threads, service in model.services.items()}
    return replace(model, services=services, cores=cores, measured_workers=cores + 1)


def reached(trials: Trials, target: Target) -> Setting | None:
    """A setting that keeps the target, if one without a delay does; looked for on few requests first, batch sizes doubling."""
    if search.lone_ms(trials.model.services[max(trials.model.services)]) > target.p99_ms:
        return None
    every = search.settings(trials.model, replace(trials.limits, memory_mib=math.inf), target.p99_ms)
    among = [s for s in every if s.max_batch_delay_ms <= 1 and s.batch_size & (s.batch_size - 1) == 0]
    if target.rate_per_s is None:
        led = search.largest_rate(trials, among, target.p99_ms)
        return led[0][0] if led else None
    best = search.lowest_p99(trials, among, target.rate_per_s, last=search.MORE)
    return next((setting for setting, found in best[:3] if search.keeps(found, target.p99_ms)), None)


def _down(value: float) -> float:
    """Three figures, not above the value."""
    return _rounded(value, math.floor)


def _up(value: float) -> float:
    return _rounded(value, math.ceil)


def _rounded(value: float, how: Callable[[float], int]) -> float:
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{how(value / step) * step:.6g}")
