"""One request as a sum: T_total = T_network + w + T_deserialize + T_preprocess + T_inference + T_serialize + front end.

Each part has a source of its own, so that their sum can be held against the total, which the client measures:

    network      a bare TCP connection's round trip, what /ping takes longer with the body than without, and the answer's transfer
    w            TorchServe's counter: until the batch was complete
    four stages  the handler's Server-Timing
    front end    HTTP: what /ping takes beyond the network; hand-over: TorchServe's own time minus w and the four stages, which is the
                 way to the worker and back with the worker's packing

They add up to (the round trip of /ping) + (TorchServe's own time for a request). What is missing from the total, or too much, is a
line of its own and is never shared out among the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from batchline.advice import advise
from batchline.errors import MeasureError
from batchline.journey import Measured
from batchline.load import RequestRecord
from batchline.summary import summarise

HANDLER_STAGES = ("deserialize", "preprocess", "inference", "serialize")  # handlers/clock.py
SYMBOLS = {"network": "T_network", "wait": "w", **{name: f"T_{name}" for name in HANDLER_STAGES}}
COVERED = 0.02  # of the total, that may be missing or too much
STRICT = ConfigDict(strict=True, extra="forbid")
BACK_SHARE = 0.99  # of the requests, whose way back must not have taken less than nothing


@dataclass(frozen=True)
class Part:
    """One stage in the mean; `symbol` is its name in the sum, where it has one, `share` its part of the total."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    symbol: str
    ms: float
    share: float


@dataclass(frozen=True)
class Journey:
    """A request in the mean. Times are milliseconds, shares are of the total.

    Attributes:
        model: its name.
        requests: that were answered by a worker, and are what the means are of.
        lone: whether they came one at a time.
        mean_batch_size: None where the handler does not say.
        total_ms: from the send to the last byte.
        parts: in the order of the journey; "worker" stands for the handler's stages and the hand-over where it does not report them.
        http_ms, handover_ms: the two halves of the front end.
        unexplained_ms: total minus the parts; negative where they are more.
        covered: the parts' sum as a share of the total.
        dominant: the name of the largest part.
        halving_saves_ms, halving_saves_share: what half of it would win.
        advice: one sentence to act on.
        reports_stages: whether the handler does.
        doubts: why the figures are not to be relied on; empty where they are.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: str
    requests: int
    lone: bool
    mean_batch_size: float | None
    total_ms: float
    parts: tuple[Part, ...]
    http_ms: float
    handover_ms: float
    unexplained_ms: float
    covered: float
    dominant: str
    halving_saves_ms: float
    halving_saves_share: float
    advice: str
    reports_stages: bool
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class _Means:
    """Milliseconds a request."""

    total: float
    bare: float
    network_of_bare: float
    receiving: float
    wait: float
    server: float
    stages: dict[str, float]

    @property
    def http(self) -> float:
        return self.bare - self.network_of_bare

    @property
    def handover(self) -> float:
        return self.server - self.wait - sum(self.stages.values())


def add_up(measured: Measured) -> Journey:
    """A run -> the sum. A pure function of the run.

    Raises:
        MeasureError: the server was started anew during the run, or counted none of its requests.
    """
    served = [record for record in measured.requests if record.ok or record.stages_ms]
    means = _means(measured, served)
    parts = tuple(Part(name, SYMBOLS.get(name, ""), ms, ms / means.total) for name, ms in _named(means))
    largest = max(parts, key=lambda part: part.ms)
    unexplained = means.total - sum(part.ms for part in parts)
    sizes = [record.batch_size for record in served if record.batch_size]
    return Journey(
        model=measured.model,
        requests=len(served),
        lone=measured.load is None,
        mean_batch_size=float(np.mean(sizes)) if sizes else None,
        total_ms=means.total,
        parts=parts,
        http_ms=means.http,
        handover_ms=means.handover,
        unexplained_ms=unexplained,
        covered=1 - unexplained / means.total,
        dominant=largest.name,
        halving_saves_ms=largest.ms / 2,
        halving_saves_share=largest.share / 2,
        advice=advise(largest.name, measured.model, largest.ms, measured.settings, measured.load is None),
        reports_stages=bool(means.stages),
        doubts=tuple(_doubts(measured, served, means, unexplained)),
    )


def as_json(journey: Journey) -> dict[str, Any]:
    """The journey for another program: `stages` by name, everything else as in Journey."""
    whole = asdict(journey)
    whole["stages"] = {part.pop("name"): part for part in whole.pop("parts")}
    return whole


def _means(measured: Measured, served: Sequence[RequestRecord]) -> _Means:
    answered = _answered(measured, len(served))
    before, after = measured.before, measured.after
    bare_ms = [_taken_ms(record) for record in measured.bare]
    sending = max(0.0, float(np.median(bare_ms) - np.median([_taken_ms(record) for record in measured.empty])))
    bare = float(np.mean(bare_ms))
    receiving = max(0.0, _receiving_ms(served) - _receiving_ms(measured.bare))
    telling = [stages for record in served if (stages := _handler_stages(record))]
    return _Means(
        total=float(np.mean([_taken_ms(record) for record in served])),
        bare=bare,
        network_of_bare=min(bare, measured.round_trip_ms + sending),
        receiving=receiving,
        wait=(after.queue_ms - before.queue_ms) / answered,
        server=(after.latency_ms - before.latency_ms) / answered,
        stages={name: float(np.mean([stages.get(name, 0.0) for stages in telling])) for name in HANDLER_STAGES if telling},
    )


def _answered(measured: Measured, served: int) -> float:
    """How many requests the two latency counters are of: all that came, less ours that no worker answered."""
    counted = measured.after.requests - measured.before.requests
    answered = counted - (len(measured.requests) - served)
    if counted < 0 or answered <= 0:
        raise MeasureError(
            f"TorchServe counted {counted:g} requests to {measured.model} where {len(measured.requests)} were sent: was it started anew?"
        )
    return answered


def _named(means: _Means) -> Iterator[tuple[str, float]]:
    """The parts in the order of the journey; the front end, which is at both ends, last."""
    yield "network", means.network_of_bare + means.receiving
    yield "wait", means.wait
    yield from means.stages.items()
    if means.stages:
        yield "front end", means.http + means.handover
    else:
        yield "worker", means.handover
        yield "front end", means.http


def _doubts(measured: Measured, served: Sequence[RequestRecord], means: _Means, unexplained: float) -> Iterator[str]:
    yield from summarise(measured.load).invalid if measured.load else ()
    yield from _strangers(measured, served)
    if means.handover < 0:
        yield f"w and the handler's stages are {-means.handover:.2f} ms more than TorchServe's whole time for a request"
    yield from _clocks(served, means.wait)
    if abs(unexplained) > COVERED * means.total:
        yield (
            f"the parts add up to {1 - unexplained / means.total:.1%} of the total, not to within {COVERED:.0%}: "
            "repeat it on a quieter machine, or with a longer --duration-s"
        )


def _strangers(measured: Measured, served: Sequence[RequestRecord]) -> Iterator[str]:
    """Requests that are not of this run, and those of it that failed."""
    before, after, sent = measured.before, measured.after, len(measured.requests)
    others = max(0.0, after.requests - before.requests - sent) + after.others - before.others
    if others:
        yield f"{others:.0f} requests of other clients reached {measured.model} meanwhile: the means are of theirs too; keep them off"
    if len(served) < sent:
        statuses = Counter(record.status for record in measured.requests if not record.ok and not record.stages_ms)
        named = ", ".join(f"{status or 'no answer'}: {count}" for status, count in sorted(statuses.items()))
        yield f"{sent - len(served)} of {sent} requests were answered by no worker ({named}) and are left out: lower the load"
    silent = sum(not _handler_stages(record) for record in served)
    if 0 < silent < len(served):
        yield f"{silent} of {len(served)} answers told no stages: the handler's figures are the others'"


def _clocks(served: Sequence[RequestRecord], wait_ms: float) -> Iterator[str]:
    """`queue` spans the client's clock and the worker's: it holds w, and leaves time for the way back."""
    timed = [record for record in served if "queue" in record.stages_ms and _handler_stages(record)]
    if not timed:
        return
    queue_ms = float(np.mean([record.stages_ms["queue"] for record in timed]))
    back_ms = np.array([_taken_ms(record) - record.stages_ms["queue"] - sum(_handler_stages(record).values()) for record in timed])
    if np.mean(back_ms >= 0) < BACK_SHARE or not 0 <= wait_ms <= queue_ms:
        yield (
            f"{queue_ms:.2f} ms from the send to the handler do not fit w = {wait_ms:.2f} ms and {float(back_ms.mean()):.2f} ms "
            "for the way back: do the client's and the server's clocks agree?"
        )


def _handler_stages(record: RequestRecord) -> dict[str, float]:
    return {name: ms for name, ms in record.stages_ms.items() if name in HANDLER_STAGES}


def _taken_ms(record: RequestRecord) -> float:
    """From the send, not from when it was due: how late the generator was is no part of the journey."""
    return (record.done_s - record.sent_s) * 1e3


def _receiving_ms(records: Sequence[RequestRecord]) -> float:
    return float(np.mean([(record.done_s - record.first_byte_s) * 1e3 for record in records]))
