"""A running server between two looks at it: from its metrics port and its management API alone.

TorchServe's counters (see counters.py) give rates and means of requests; the histograms that batchline's handlers observe give stages
and sizes of batches. There is no histogram of requests: p50 and p99 are a stage's, of batches, and hold no queue, front end or network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from batchline.client import Client
from batchline.counters import LATENCY, QUEUE, REQUESTS, Sample, parse
from batchline.errors import MeasureError, RequestFailed, ServerError

STAGE = "batchline_stage_duration_seconds"
BATCH = "batchline_batch_size"
BAD = "batchline_bad_input_total"
HANDLED = "batchline_requests_total"
BUSY = "batchline_busy_seconds_total"
FAILED = "Requests5XX"
ORDER = ("deserialize", "preprocess", "inference", "serialize")
NOT_FOUND = 404
TIMEOUT_S = 10.0  # a server that has not described itself by then is as good as gone


@dataclass(frozen=True)
class Scrape:
    """One look at a server.

    Attributes:
        at_s: seconds of a monotonic clock when the metrics were read.
        page: the metrics port's text; None where that port does not answer.
        versions: what GET /models/NAME/all answers, every model's one after the other.
    """

    at_s: float
    page: str | None
    versions: tuple[dict[str, Any], ...]

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """The page's, none without a page; each look is the end of one interval and the begin of the next."""
        return tuple(parse(self.page or ""))


@dataclass(frozen=True)
class Quantile:
    """A quantile out of a histogram: the value by Prometheus' rule, and the bucket that the true one lies in; high may be infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Histogram:
    """Observations by bucket.

    Attributes:
        bounds: upper ones, ascending, the last infinite.
        counts: of each bucket by itself, as many as there are bounds.
        total: all observed values added up.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Observations in all buckets."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Exact, whatever the buckets are; None where nothing was observed."""
        return self.total / self.count if self.count > 0 else None

    def quantile(self, share: float) -> Quantile | None:
        """As Prometheus' histogram_quantile: linear within a bucket, from 0 in the first, the last finite bound in the infinite one."""
        rank, below, low = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count > 0 and below + count >= rank:
                value = low if math.isinf(bound) else low + (bound - low) * (rank - below) / count
                return Quantile(value, low, bound)
            below, low = below + count, bound
        return None

    def since(self, before: Histogram | None) -> Histogram:
        """What was observed after `before`; all of it where that is another server's, with other buckets or more in one."""
        if before is None or before.bounds != self.bounds:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if min(counts) < 0 else Histogram(self.bounds, counts, self.total - before.total)


@dataclass(frozen=True)
class StageView:
    """One stage of the batches of an interval; None where there were none."""

    name: str
    mean_ms: float
    p50_ms: Quantile | None
    p99_ms: Quantile | None


@dataclass(frozen=True)
class ModelView:
    """One model over an interval, all its versions together; None is what cannot be known, or what there was none of.

    Attributes:
        versions: default first, as TorchServe lists them.
        batch_size, max_batch_delay_ms: settings of the first.
        offered_per_s: requests that arrived, answered or not.
        handled_per_s: requests that a handler of ours finished, refused ones among them.
        refused_per_s: of those, answered 4xx.
        latency_ms: mean of a request from its body's last byte to its answer's first: no network, no HTTP.
        queue_ms: mean of that until its batch was complete.
        stages: of batches, in the order they run.
        batches: requests a batch.
        waiting, capacity: jobs in the queues now, and how many find room.
        workers, ready: worker processes.
        busy: share of the READY workers' time that handlers of ours worked; a batch counts when it is done, so it may exceed 1.
        memory_bytes: of each worker, as TorchServe last looked (once a minute).
        missing: what this model lacks, in words.
    """

    model: str
    versions: tuple[str, ...]
    batch_size: int
    max_batch_delay_ms: int
    offered_per_s: float | None
    handled_per_s: float | None
    refused_per_s: float | None
    latency_ms: float | None
    queue_ms: float | None
    stages: tuple[StageView, ...]
    batches: Histogram | None
    waiting: int
    capacity: int
    workers: int
    ready: int
    busy: float | None
    memory_bytes: tuple[int, ...]
    missing: tuple[str, ...]

    @property
    def rest_ms(self) -> float | None:
        """Of latency_ms, what is neither queue nor stages; a little off where batches differ in size, for a stage's mean is a batch's."""
        if self.latency_ms is None or self.queue_ms is None or not self.stages:
            return None
        return self.latency_ms - self.queue_ms - sum(stage.mean_ms for stage in self.stages)

    @property
    def slowest(self) -> StageView | None:
        """The stage with the largest mean."""
        return max(self.stages, key=lambda stage: stage.mean_ms, default=None)


@dataclass(frozen=True)
class View:
    """A server over an interval of `seconds`; failed_per_s are answers 5xx of all models and APIs; missing is what no model has."""

    seconds: float
    models: tuple[ModelView, ...]
    failed_per_s: float | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Totals:
    """One model's metrics, since its server started or over an interval."""

    requests: float = 0.0
    queue_ms: float = 0.0
    latency_ms: float = 0.0
    refused: float = 0.0
    handled: float | None = None
    busy_s: float = 0.0
    batches: Histogram | None = None
    stages: dict[str, Histogram] = field(default_factory=dict)

    def since(self, then: _Totals) -> _Totals:
        return _Totals(
            self.requests - then.requests,
            self.queue_ms - then.queue_ms,
            self.latency_ms - then.latency_ms,
            self.refused - then.refused,
            None if self.handled is None else self.handled - (then.handled or 0.0),
            self.busy_s - then.busy_s,
            self.batches and self.batches.since(then.batches),
            {name: seconds.since(then.stages.get(name)) for name, seconds in self.stages.items()},
        )


NOTHING = _Totals()


def views(client: Client, model: str | None, interval_s: float) -> Iterator[View]:
    """A View every interval_s seconds, without end.

    Raises:
        ServerError: no server answers, or it no longer does.
        RequestFailed: it does not know the model.
        MeasureError: the metrics port is not TorchServe's.
    """
    before = scrape(client, model)
    began_s = due_s = time.monotonic()
    while True:
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        try:
            after = scrape(client, model)
        except ServerError:
            watched_s = time.monotonic() - began_s
            raise ServerError(f"TorchServe at {client.management} no longer answers; it did for {watched_s:.0f} s of watching.") from None
        yield view(before, after)
        before = after


def scrape(client: Client, model: str | None = None) -> Scrape:
    """Looks at every model, or at one; raises as `views` does."""
    versions = client.describe(model, "all") if model else _all_versions(client)
    began_s = time.monotonic()
    try:
        page: str | None = client.metrics()
    except (ServerError, RequestFailed):
        page = None  # metrics may be off while the rest works: the management API has just answered
    return Scrape((began_s + time.monotonic()) / 2, page, tuple(versions))


def _all_versions(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in sorted({model["modelName"] for model in client.models()}):
        try:
            found += client.describe(name, "all")
        except RequestFailed as error:
            if error.status != NOT_FOUND:  # removed since it was listed
                raise
    return found


def view(before: Scrape, after: Scrape) -> View:
    """What happened between two looks at one server; raises MeasureError where a page is no Prometheus text."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        raise MeasureError("two looks at a server must be some time apart.")
    missing = list(_missing(after.page))
    if before.page is None or after.page is None:
        return View(seconds, tuple(_model(entries, None, None, seconds) for entries in _by_model(after)), None, tuple(missing))
    old, new = before.samples, after.samples
    failed: float | None = (_sum(new, FAILED) - _sum(old, FAILED)) / seconds
    if any(_sum(new, name) < _sum(old, name) for name in (REQUESTS, LATENCY, "Requests2XX")):
        missing.append("the counters began anew: TorchServe was restarted meanwhile, and this interval is not whole.")
        failed, old = None, ()
    models = []
    for entries in _by_model(after):
        now, then = (_totals(samples, entries[0]["modelName"]) for samples in (new, old))
        models.append(_model(entries, after.page, now, seconds, then))
    return View(seconds, tuple(models), failed, tuple(missing))


def _by_model(scrape: Scrape) -> list[list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in scrape.versions:
        found.setdefault(entry["modelName"], []).append(entry)
    return list(found.values())


def as_json(seen: View) -> dict[str, Any]:
    """Plain values for json.dumps: infinite bounds are null."""
    plain: dict[str, Any] = _finite(asdict(seen))
    for told, model in zip(plain["models"], seen.models, strict=True):
        told["rest_ms"] = model.rest_ms
        told["mean_batch_size"] = model.batches.mean if model.batches else None
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _missing(page: str | None) -> Iterator[str]:
    """What the whole page lacks. A metric that is defined has its TYPE on it before its first value."""
    if page is None:
        yield "the metrics port does not answer (enable_metrics_api=false?): no rates, latencies, stages or batch sizes."
        return
    if not all(_defined(page, name) for name in (REQUESTS, QUEUE, LATENCY)):
        yield "TorchServe shows no request counters: set metrics_mode=prometheus and keep them in metrics_config, for rates and latencies."
    elif not all(_defined(page, name) for name in (STAGE, BATCH, HANDLED, BUSY)):
        yield "metrics_config does not define all of batchline's metrics: name batchline's metrics.yaml there, for stages and batches."


def _defined(page: str, name: str) -> bool:
    return f"# TYPE {name} " in page


def _model(entries: list[dict[str, Any]], page: str | None, now: _Totals | None, seconds: float, then: _Totals = NOTHING) -> ModelView:
    """One model's view out of its versions' descriptions and what two pages say of it."""
    workers = [worker for entry in entries for worker in entry["workers"]]
    queues = [entry["jobQueueStatus"] for entry in entries]
    ready = sum(worker["status"] == "READY" for worker in workers)
    done = now.since(then) if now else NOTHING
    counted = page is not None and _defined(page, REQUESTS)
    handled = done.handled
    answered = done.requests if handled is None else handled
    return ModelView(
        model=entries[0]["modelName"],
        versions=tuple(entry["modelVersion"] for entry in entries),
        batch_size=entries[0]["batchSize"],
        max_batch_delay_ms=entries[0]["maxBatchDelay"],
        offered_per_s=done.requests / seconds if counted else None,
        handled_per_s=None if handled is None else handled / seconds,
        refused_per_s=None if handled is None else done.refused / seconds,
        latency_ms=done.latency_ms / answered if counted and answered > 0 else None,
        queue_ms=done.queue_ms / answered if counted and answered > 0 else None,
        stages=_stages(done.stages),
        batches=done.batches,
        waiting=sum(queue["pendingRequests"] for queue in queues),
        capacity=sum(queue["pendingRequests"] + queue["remainingCapacity"] for queue in queues),
        workers=len(workers),
        ready=ready,
        busy=done.busy_s / seconds / ready if handled is not None and ready else None,
        memory_bytes=tuple(worker["memoryUsage"] for worker in workers if worker.get("memoryUsage", 0) > 0),
        missing=_lacks(entries[0]["modelName"], page, now),
    )


def _lacks(name: str, page: str | None, now: _Totals | None) -> tuple[str, ...]:
    if now and now.batches and now.handled is None and page and _defined(page, HANDLED):
        return (f"the archive of {name} was built by an older batchline, which does not count requests: `make archive` builds it again.",)
    if page is None or now is None or not _defined(page, BATCH) or not _defined(page, STAGE) or now.batches or not now.requests:
        return ()
    return (
        f"the handler of {name} reports no batches (not batchline's, `metrics: false`, or every request failed): no stages, batch sizes, "
        "busy share; its mean latency is a request's that arrived, and too low where some got no answer.",
    )


def _stages(found: dict[str, Histogram]) -> tuple[StageView, ...]:
    ordered = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return tuple(_stage(name, found[name]) for name in ordered if found[name].count > 0)


def _stage(name: str, seconds: Histogram) -> StageView:
    return StageView(name, 1e3 * (seconds.mean or 0.0), _in_ms(seconds.quantile(0.5)), _in_ms(seconds.quantile(0.99)))


def _in_ms(seconds: Quantile | None) -> Quantile | None:
    return seconds and Quantile(1e3 * seconds.value, 1e3 * seconds.low, 1e3 * seconds.high)


def _totals(samples: Sequence[Sample], model: str) -> _Totals:
    counted = [sample for sample in samples if sample.labels.get("model_name") == model]
    observed = [sample for sample in samples if sample.labels.get("ModelName") == model]
    stages = dict.fromkeys(sample.labels["stage"] for sample in observed if "stage" in sample.labels)
    found = {stage: _histogram([sample for sample in observed if sample.labels.get("stage") == stage], STAGE) for stage in stages}
    return _Totals(
        requests=_sum(counted, REQUESTS),
        queue_ms=_sum(counted, QUEUE) / 1e3,
        latency_ms=_sum(counted, LATENCY) / 1e3,
        refused=_sum(observed, BAD),
        handled=_sum(observed, HANDLED) if any(sample.name == HANDLED for sample in observed) else None,
        busy_s=_sum(observed, BUSY),
        batches=_histogram(observed, BATCH),
        stages={stage: histogram for stage, histogram in found.items() if histogram},
    )


def _sum(samples: Sequence[Sample], name: str) -> float:
    return sum(sample.value for sample in samples if sample.name == name)


def _histogram(samples: Sequence[Sample], name: str) -> Histogram | None:
    """Prometheus counts each bucket with all below it; series that differ in other labels are added."""
    up_to: dict[float, float] = {}
    for sample in samples:
        if sample.name == f"{name}_bucket":
            bound = float(sample.labels.get("le", "nan").replace("+Inf", "inf"))
            up_to[bound] = up_to.get(bound, 0.0) + sample.value
    if math.inf not in up_to:
        return None
    bounds = sorted(up_to)
    counts = tuple(up_to[high] - up_to[low] for low, high in pairwise(bounds))
    return Histogram(tuple(bounds), (up_to[bounds[0]], *counts), _sum(samples, f"{name}_sum"))
