"""The promise kept or not: Poisson load on a running server until MLPerf's early stopping rule decides.

Requests go out in stretches. Each begins with a lead-in that is not counted, in which the queue takes its length; after each the rule
(stopping.py) says kept, broken, or how many more it wants. A request that was not answered with 2xx counts as over the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from batchline.arrivals import Times
from batchline.counters import Counters, read_counters
from batchline.errors import MeasureError, RequestFailed, ServerError
from batchline.load import LoadRun, RequestRecord, Target, closed_loop, open_loop
from batchline.onserver import Subject
from batchline.promise import Promise
from batchline.status import Settings
from batchline.stopping import LEAST_DEPENDENCE, Judgement, dependence, judge, needed, quantile_interval
from batchline.summary import summarise

FORMAT = "batchline-verify/1"
FIRST = 306  # requests: a limit that is far off is known to be broken after so many
MOST = 12_000
PATIENCE = 918
LONGEST_S = 600.0
WARM_UP_S = 3.0  # Java compiles what it runs often
WARM_CLIENTS = 64
LEAD_S, LEAD_REQUESTS = 1.0, 200
LEAST_STEP, LARGEST_STEP = 1.3, 2.0  # of the requests so far
LARGEST_MS, LARGEST_PER_S = 3.6e6, 1e9
PERCENTILES = (50, 90, 95, 99)
Outcome = Literal["kept", "broken", "undecided", "invalid"]
EXIT = {"kept": 0, "broken": 1, "undecided": 1, "invalid": 2}


@dataclass(frozen=True)
class Seen:
    """What the counted requests say.

    Attributes:
        latency_ms: "mean", "p50" .. "p99", of answered requests, from when they were due to the last byte.
        p99_interval_ms: 95%, wider by the dependence; None where there are too few requests for one.
        throughput_per_s: answered with 2xx a second of load.
        mean_batch_size: over batches; None where the handler does not say.
        queue_wait_ms: mean, from TorchServe's counters: until a request's batch was complete; None where they are not shown.
        statuses: how many of each HTTP status; 0 for failed connections.
    """

    latency_ms: dict[str, float]
    p99_interval_ms: tuple[float, float] | None
    throughput_per_s: float
    mean_batch_size: float | None
    queue_wait_ms: float | None
    statuses: dict[int, int]


@dataclass(frozen=True)
class Verified:
    """A promise held against a running server.

    Attributes:
        settings: that the server ran with; None where it does not say.
        outcome: kept, broken, undecided (which is not kept), or invalid: the generator was at fault and nothing was shown.
        judgement: n, the number over the limit, and how many it would have taken.
        promised: None where only the limit was judged.
        invalid: why the run says nothing about the server.
        bounded: why no more requests were sent, where the rule wanted more.
    """

    model: str
    settings: Settings | None
    limit_ms: float
    rate_per_s: float
    outcome: Outcome
    judgement: Judgement
    seen: Seen
    promised: Promise | None = None
    invalid: tuple[str, ...] = ()
    bounded: str = ""


@dataclass(frozen=True)
class Demand:
    """What is to be shown, and with how many requests at most.

    Attributes:
        limit_ms: that 99% of the requests may take.
        rate_per_s: Poisson arrivals.
        requests: counted; None: as few as the rule needs, MOST at most.
        duration_s: the same in seconds of load; None: LONGEST_S at most.
        seed: of the arrivals.
    """

    limit_ms: float
    rate_per_s: float
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 1

    def check(self) -> None:
        """Raises MeasureError for what cannot be shown."""
        for option, value, most in (("--p99-ms", self.limit_ms, LARGEST_MS), ("--rate-per-s", self.rate_per_s, LARGEST_PER_S)):
            if not 0 < value <= most:
                raise MeasureError(f"{option} must be above 0 and at most {most:g}, not {value:g}.")
        if self.requests is not None and self.duration_s is not None:
            raise MeasureError("give --requests or --duration-s, not both; with neither as many are sent as the rule needs.")
        least = math.ceil(LEAST_DEPENDENCE * needed(0))
        if not least <= self.most <= 10**7:
            raise MeasureError(
                f"{self.most} requests can show nothing: {least} are needed even when none is over the limit"
                f" ({least / self.rate_per_s:.0f} s at this rate)."
            )

    @property
    def most(self) -> int:
        """Requests that are counted at most."""
        if self.requests is not None:
            return self.requests
        if self.duration_s is not None:
            return int(min(self.duration_s * self.rate_per_s, 1e8)) if self.duration_s > 0 else 0
        return min(MOST, max(math.ceil(LEAST_DEPENDENCE * needed(1)), int(LONGEST_S * self.rate_per_s)))

    def first(self) -> int:
        """Requests of the first stretch: all, where their number was given."""
        return self.most if self.requests is not None or self.duration_s is not None else FIRST


@dataclass(frozen=True)
class State:
    """How far it is: counted requests, those over the limit, how many are wanted now, seconds of load so far."""

    requests: int
    over: int
    wanted: int
    seconds: float


Progress = Callable[[State], None]


def verify(subject: Subject, demand: Demand, promised: Promise | None = None, progress: Progress | None = None) -> tuple[Verified, LoadRun]:
    """Loads the server until the rule decides, or as many requests were counted as may be.

    Returns:
        What was found, and the counted requests as one run.

    Raises:
        MeasureError: a demand that cannot be shown.
        LoadError: 10,000 requests in flight: the server does not keep up, or does not answer.
    """
    demand.check()
    _warm_up(subject)
    before = _counters(subject)
    stretches, run = list[LoadRun](), _join([], demand)
    judgement, wanted = Judgement("undecided", 0, 0, 0, LEAST_DEPENDENCE), min(demand.first(), demand.most)
    while len(run.records) < wanted:
        stretches.append(_stretch(subject.target, demand, wanted, run, progress))
        run = _join(stretches, demand)
        judgement = _judge(run.records, demand.limit_ms)
        wanted = _wanted(judgement, bool(summarise(run).invalid), demand.most)
    wait_ms = _wait_ms(before, _counters(subject))
    return _verified(subject, demand, judgement, run, wait_ms, promised), run


def arrivals(rate_per_s: float, count: int, seed: Sequence[int]) -> tuple[Times, float]:
    """Poisson arrivals of which it is known how many there are: any number of moments, each anywhere in the time (Ross, 5.3.5).

    So a rate of 50 is 50 a second in every stretch, and not 50 by and large.

    Returns:
        Seconds, ascending: of a lead-in, then of `count` requests; and where those begin.
    """
    chance, gap_s = np.random.default_rng(seed), 1 / rate_per_s
    lead = max(1, min(int(LEAD_S * rate_per_s), LEAD_REQUESTS, count // 2))
    first, rest = (np.sort(chance.uniform(0.0, many * gap_s, many)) for many in (lead, count))
    return np.concatenate([first, lead * gap_s + rest]), lead * gap_s


def counted(run: LoadRun, begin_s: float, rate_per_s: float) -> LoadRun:
    """The run as if it had begun after its lead-in."""
    records = [_moved(record, -begin_s) for record in run.records if record.intended_s >= begin_s]
    return replace(run, records=records, duration_s=run.duration_s - begin_s, planned_s=len(records) / rate_per_s, offered_per_s=rate_per_s)


def as_json(found: Verified) -> dict[str, Any]:
    """The result for another program; `judgement` flattened: requests, over, needed, dependence."""
    told = asdict(found)
    judgement = told.pop("judgement")
    judgement.pop("verdict")
    return {**told, **judgement, "kept": found.outcome == "kept"}


def exit_status(found: Verified) -> int:
    """0 kept, 1 broken or undecided, 2 invalid."""
    return EXIT[found.outcome]


def _warm_up(subject: Subject) -> None:
    """As many clients as fill every worker's batch twice, so that all batch sizes were seen."""
    settings = subject.settings
    clients = 2 * (settings.batch_size or 1) * (settings.min_workers or 1) if settings else 2
    closed_loop(subject.target, min(clients, WARM_CLIENTS), WARM_UP_S)


def _stretch(target: Target, demand: Demand, wanted: int, run: LoadRun, progress: Progress | None) -> LoadRun:
    """What is missing of `wanted` requests, the lead-in taken off."""
    times, begin_s = arrivals(demand.rate_per_s, wanted - len(run.records), (demand.seed, len(run.records)))
    told = _Told(run, demand.limit_ms, begin_s, wanted)

    def report(records: Sequence[RequestRecord], seconds: float) -> None:
        assert progress
        progress(told.add(records, seconds))

    return counted(open_loop(target, times, report if progress else None), begin_s, demand.rate_per_s)


class _Told:
    """Counts what is new only: the generator waits meanwhile, and with it the next send."""

    def __init__(self, run: LoadRun, limit_ms: float, begin_s: float, wanted: int) -> None:
        self.run, self.limit_ms, self.begin_s, self.wanted = run, limit_ms, begin_s, wanted
        self.looked, self.requests = 0, len(run.records)
        self.over = sum(_is_over(record, limit_ms) for record in run.records)

    def add(self, records: Sequence[RequestRecord], seconds: float) -> State:
        new = [record for record in records[self.looked :] if record.intended_s >= self.begin_s]
        self.looked = len(records)
        self.requests += len(new)
        self.over += sum(_is_over(record, self.limit_ms) for record in new)
        return State(self.requests, self.over, self.wanted, self.run.duration_s + seconds)


def _moved(record: RequestRecord, by_s: float) -> RequestRecord:
    moments = {name: getattr(record, name) + by_s for name in ("intended_s", "sent_s", "first_byte_s", "done_s")}
    return replace(record, **moments)


def _join(stretches: Sequence[LoadRun], demand: Demand) -> LoadRun:
    """One run of all stretches, one after another; the time that load was sent, not the pauses."""
    records: list[RequestRecord] = []
    span_s = 0.0
    for stretch in stretches:
        records += [_moved(record, span_s) for record in stretch.records]
        span_s += stretch.planned_s
    busy = sum(stretch.cpu_share * stretch.duration_s for stretch in stretches)
    lasted_s = sum(stretch.duration_s for stretch in stretches)
    return LoadRun(
        records=records,
        duration_s=lasted_s,
        planned_s=span_s,
        offered_per_s=len(records) / span_s if span_s else demand.rate_per_s,
        most_in_flight=max((stretch.most_in_flight for stretch in stretches), default=0),
        cpu_share=busy / lasted_s if lasted_s else 0.0,
    )


def _is_over(record: RequestRecord, limit_ms: float) -> bool:
    return not record.ok or record.latency_ms > limit_ms


def _judge(records: Sequence[RequestRecord], limit_ms: float) -> Judgement:
    latencies = np.array([record.latency_ms if record.ok else math.inf for record in records])
    return judge(len(records), int((latencies > limit_ms).sum()), dependence(latencies))


def _wanted(judgement: Judgement, invalid: bool, most: int) -> int:
    """How many requests there shall be when the rule is asked again; no more than there are where it need not be.

    A generator that was late for a moment gets some more requests to be on time in 99 of 100; one that cannot keep the rate does not.
    """
    so_far = judgement.requests
    if invalid:
        return min(most, max(so_far, PATIENCE))
    if judgement.verdict != "undecided":
        return so_far
    return min(most, math.ceil(min(max(judgement.needed, LEAST_STEP * so_far), LARGEST_STEP * so_far)))


def _counters(subject: Subject) -> Counters | None:
    """TorchServe's counters of the model; None where there are none to be had: they are beside the point."""
    if subject.client is None:
        return None
    try:
        return read_counters(subject.client.metrics(), subject.model)
    except (ServerError, RequestFailed, MeasureError):
        return None


def _wait_ms(before: Counters | None, after: Counters | None) -> float | None:
    if before is None or after is None or not after.requests > before.requests:
        return None
    return max(0.0, after.queue_ms - before.queue_ms) / (after.requests - before.requests)


def _verified(
    subject: Subject, demand: Demand, judgement: Judgement, run: LoadRun, wait_ms: float | None, promised: Promise | None
) -> Verified:
    invalid = tuple(summarise(run).invalid)
    outcome: Outcome = "invalid" if invalid else judgement.verdict
    bounded = ""
    if outcome == "undecided":
        bounded = f"{judgement.requests} requests were all that were to be sent, and {judgement.needed} would be needed with as many over"
    seen = _seen(run, judgement, wait_ms)
    return Verified(
        subject.model, subject.settings, demand.limit_ms, demand.rate_per_s, outcome, judgement, seen, promised, invalid, bounded
    )


def _seen(run: LoadRun, judgement: Judgement, wait_ms: float | None) -> Seen:
    latencies = np.array([record.latency_ms for record in run.records if record.status])
    named: dict[str, float] = {}
    if len(latencies):
        quantiles = zip(PERCENTILES, np.percentile(latencies, PERCENTILES), strict=True)
        named = {"mean": float(latencies.mean()), **{f"p{percent}": float(value) for percent, value in quantiles}}
    batches = sum(1 / record.batch_size for record in run.records if record.batch_size)
    told = sum(1 for record in run.records if record.batch_size)
    return Seen(
        latency_ms=named,
        p99_interval_ms=quantile_interval(latencies, 0.99, judgement.dependence) if len(latencies) else None,
        throughput_per_s=sum(record.ok for record in run.records) / run.planned_s,
        mean_batch_size=told / batches if batches else None,
        queue_wait_ms=wait_ms,
        statuses=dict(sorted(Counter(record.status for record in run.records).items())),
    )
