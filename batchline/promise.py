"""What was promised of a setting: out of a plan's file, or predicted from a measurement for the settings in effect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from batchline.asked import make_limits
from batchline.errors import MeasureError
from batchline.measured import read_measured
from batchline.queueing import Server, Setting
from batchline.search import own_threads
from batchline.service import Model, model_of
from batchline.simulate import simulate
from batchline.status import Settings
from batchline.targets import Limits

SETTINGS = {"batch_size": "batch_size", "max_batch_delay_ms": "max_batch_delay_ms", "workers": "min_workers"}  # a plan's words -> Settings
REQUESTS = 100_000


@dataclass(frozen=True)
class Promise:
    """What was predicted of the setting at the rate; None where the prediction does not say."""

    p99_ms: float
    p95_ms: float | None = None
    p50_ms: float | None = None
    mean_ms: float | None = None
    throughput_per_s: float | None = None
    mean_batch_size: float | None = None
    queue_wait_ms: float | None = None


def promised(
    config: Path,
    model: str,
    settings: Settings | None,
    rate_per_s: float,
    plan: Path | None,
    run: Path | None,
    server: str = "torchserve",
) -> Promise | None:
    """What was promised of the settings in effect: a plan's prediction, or one from a measurement; None where neither is given.

    Raises:
        MeasureError: both are given, or the file is not of this model and these settings.
    """
    if plan and run:
        raise MeasureError("give --plan or --run, not both: a promise comes from one of them.")
    if plan:
        return read_promise(plan, model, settings)
    if not run:
        return None
    measured = read_measured(run)
    if measured.model != model:
        raise MeasureError(f"{run} is a measurement of {measured.model}, not of {model}; give that model's.")
    assert settings
    limits = make_limits(config, [(model, measured.model_version)], None, server=server)
    return predict_effective(model_of(measured), settings, rate_per_s, limits)


def predict(model: Model, setting: Setting, rate_per_s: float, server: Server = "torchserve", seed: int = 1) -> Promise | None:
    """Simulates the setting; None where it is not stable at the rate.

    Raises:
        SimulateError: the setting is beyond what was measured.
    """
    found = simulate(model.services[setting.threads], setting, rate_per_s, requests=REQUESTS, seed=seed, server=server)
    if not found.stable:
        return None
    latency = found.latency_ms
    return Promise(
        p99_ms=latency.p99,
        p95_ms=latency.p95,
        p50_ms=latency.p50,
        mean_ms=latency.mean,
        throughput_per_s=found.throughput_per_s,
        mean_batch_size=found.mean_batch_size,
        queue_wait_ms=found.queue_wait_ms.mean,
    )


def predict_effective(model: Model, settings: Settings, rate_per_s: float, limits: Limits) -> Promise:
    """What a measurement says of the settings in effect.

    Args:
        model: of service.model_of.
        settings: of the server.
        rate_per_s: Poisson arrivals.
        limits: the server's queue, batching rule, and workers of other models, with which threads are shared.

    Raises:
        MeasureError: the settings are beyond what was measured, or by it the rate is more than they can do.
    """
    workers = settings.min_workers or 1
    threads = own_threads(model, limits, workers)
    setting = Setting(settings.batch_size or 1, settings.max_batch_delay_ms or 1, workers, threads, limits.queue_limit)
    if setting.batch_size > model.largest:
        raise MeasureError(
            f"{model.name} was measured up to batches of {model.largest}, and the server runs with batch_size {setting.batch_size}: "
            f"measure it with --batch-sizes up to that."
        )
    promise = predict(model, setting, rate_per_s, limits.server)
    if promise is None:
        raise MeasureError(
            f"by its measurement {model.name} cannot do {rate_per_s:g} requests/s with batch_size {setting.batch_size} and {workers} "
            f"workers: lower the rate, or plan for it (batchline plan)."
        )
    return promise


def read_promise(path: Path, model: str, settings: Settings | None) -> Promise:
    """What `batchline plan --json` predicted of the settings in effect.

    Raises:
        MeasureError: the file is no plan of the model, or one of other settings.
    """
    plan = _plan_of(path, model)
    predicted = plan.get("predicted")
    whole = isinstance(predicted, dict) and _is_number(predicted.get("p99_ms")) and all(type(plan.get(name)) is int for name in SETTINGS)
    if not whole:
        raise MeasureError(f"{path} is no plan of {model} with a prediction; `batchline plan RUN.JSON ... --json` prints one.")
    assert isinstance(predicted, dict)
    for name, field in SETTINGS.items():
        now = getattr(settings, field, None)
        if now not in (None, plan[name]):
            raise MeasureError(f"{path} is a plan for {name} {plan[name]}, and the server runs with {now}: give the plan that was written.")
    return Promise(**{field.name: float(predicted[field.name]) for field in fields(Promise) if _is_number(predicted.get(field.name))})


def _plan_of(path: Path, model: str) -> Mapping[str, Any]:
    """A file of one model's plan, or of several models'."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MeasureError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}.") from None
    except (ValueError, RecursionError) as error:
        raise MeasureError(f"{path} is cut or no JSON ({error}); `batchline plan RUN.JSON ... --json` prints one.") from None
    if isinstance(plan, dict) and isinstance(plan.get("models"), dict):
        plan = plan["models"].get(model)
    if not isinstance(plan, dict) or plan.get("model", model) != model:
        raise MeasureError(f"{path} holds no plan of {model}; `batchline plan RUN.JSON ... --json` prints one.")
    return plan


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
