"""What a run of load says: rates, percentiles with their intervals, stage means, and whether the generator kept its own word."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import stats

from batchline.load import LoadRun, RequestRecord

LAG_MS = 1.0  # a send later than this, or than 5% of the median latency, is the generator's fault and not the server's
LAG_SHARE = 0.05
RATE_OFF = 0.01
CPU_SHARE = 0.85  # of one core; beyond it the generator itself queues
CONFIDENCE = 0.95
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class LoadSummary:
    """A run in numbers. Latencies are of answered requests, from the intended send to the last byte.

    Attributes:
        requests: how many were sent.
        offered_per_s: due a second; None in a closed loop.
        achieved_per_s: sent a second in an open loop, answered a second in a closed one.
        latency_ms: "p50" .. "p99", "mean", "max".
        p99_interval_ms: 95%, from order statistics: no distribution is assumed; None below about 370 requests, where none exists.
        statuses: how many of each HTTP status; 0 for failed connections.
        stages_ms: mean of each stage of the answers that told them.
        mean_batch_size: over requests.
        reconnects: requests that needed a new connection; TorchServe closes it after every 4xx and 5xx.
        lag_p99_ms: how late the generator's own sends were.
        invalid: why the run says nothing about the server; empty for a valid one.
    """

    requests: int
    offered_per_s: float | None
    achieved_per_s: float
    latency_ms: dict[str, float]
    p99_interval_ms: tuple[float, float] | None
    statuses: dict[int, int]
    stages_ms: dict[str, float]
    mean_batch_size: float | None
    reconnects: int
    lag_p99_ms: float
    invalid: list[str]


def summarise(run: LoadRun) -> LoadSummary:
    """A run's records -> its numbers. A pure function of the run."""
    answered = [record for record in run.records if record.status]
    latencies = np.array([record.latency_ms for record in answered])
    lags = np.array([record.lag_ms for record in run.records])
    lag_p99 = float(np.percentile(lags, 99)) if len(lags) else 0.0
    achieved = _achieved(run, len(answered))
    sizes = [record.batch_size for record in answered if record.batch_size]
    return LoadSummary(
        requests=len(run.records),
        offered_per_s=run.offered_per_s,
        achieved_per_s=achieved,
        latency_ms=_latencies(latencies),
        p99_interval_ms=quantile_interval(latencies, 0.99),
        statuses=dict(sorted(Counter(record.status for record in run.records).items())),
        stages_ms=_stage_means(answered),
        mean_batch_size=float(np.mean(sizes)) if sizes else None,
        reconnects=sum(not record.reused for record in run.records),
        lag_p99_ms=lag_p99,
        invalid=list(_faults(run, latencies, lag_p99, achieved)),
    )


def quantile_interval(values: np.ndarray, quantile: float) -> tuple[float, float] | None:  # type: ignore[type-arg]
    """A 95% interval of a quantile from order statistics.

    The number of values below the true quantile is Binomial(n, quantile), so the values at that distribution's 2.5% and
    97.5% ranks enclose it (David and Nagaraja, Order Statistics, 7.1). None when n is too small for the upper rank.
    """
    count = len(values)
    if not count:
        return None
    low, high = (int(stats.binom.ppf(tail, count, quantile)) for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    if high >= count:
        return None
    ordered = np.sort(values)
    return float(ordered[max(low - 1, 0)]), float(ordered[high])


def _achieved(run: LoadRun, answered: int) -> float:
    if run.offered_per_s is None:
        return answered / run.duration_s
    last_s = max(record.sent_s for record in run.records)
    return len(run.records) / last_s if last_s > 0 else run.offered_per_s


def _latencies(latencies: np.ndarray) -> dict[str, float]:  # type: ignore[type-arg]
    if not len(latencies):
        return {}
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, np.percentile(latencies, PERCENTILES), strict=True)}
    return {**named, "mean": float(latencies.mean()), "max": float(latencies.max())}


def _stage_means(answered: list[RequestRecord]) -> dict[str, float]:
    told = [record.stages_ms for record in answered if record.stages_ms]
    names = dict.fromkeys(name for stages in told for name in stages)
    return {name: float(np.mean([stages.get(name, 0.0) for stages in told])) for name in names}


def _faults(run: LoadRun, latencies: np.ndarray, lag_p99: float, achieved: float) -> list[str]:  # type: ignore[type-arg]
    """Why the figures would be the generator's and not the server's."""
    said = []
    allowed = max(LAG_MS, LAG_SHARE * float(np.median(latencies))) if len(latencies) else LAG_MS
    if run.offered_per_s is not None and lag_p99 > allowed:
        said.append(
            f"1% of sends were more than {lag_p99:.1f} ms late (allowed {allowed:.1f} ms): lower the rate, or free a core for the generator"
        )
    if run.offered_per_s is not None and abs(achieved / run.offered_per_s - 1) > RATE_OFF:
        said.append(f"sent {achieved:.1f} requests a second where {run.offered_per_s:.1f} were due: lower the rate")
    if run.cpu_share > CPU_SHARE:
        said.append(f"the generator used {run.cpu_share:.0%} of a core (allowed {CPU_SHARE:.0%}): lower the rate, or use more machines")
    if not len(latencies):
        said.append("no request was answered: is the server up, and the model's name right?")
    return said
