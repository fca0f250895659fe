"""Records of a load run -> the batches that were in a worker, and lanes that they can be laid into without overlap.

A batch's requests tell the same stage times (the figures are the batch's) and the same moment at which the handler got them. Which
worker it was is told nowhere: a lane is a worker only as far as batches that overlap in time cannot have shared one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchline.load import RequestRecord
from batchline.stages import HANDLER_STAGES

SAME_S = 0.001  # moments of one batch: `queue` is told to the microsecond, the clocks read a little apart
TOUCH_S = 0.0002


@dataclass(frozen=True)
class Batch:
    """Requests that were in a worker together. Times are seconds since the run began.

    Attributes:
        records: they, in the order they were sent.
        begin_s, end_s: when the handler got the batch, and when its last stage ended.
        stages_ms: the handler's, in their order.
    """

    records: tuple[RequestRecord, ...]
    begin_s: float
    end_s: float
    stages_ms: dict[str, float]

    @property
    def size(self) -> int:
        """Requests in it."""
        return len(self.records)

    @property
    def sent_s(self) -> float:
        """When the first of them was sent."""
        return min(record.sent_s for record in self.records)

    @property
    def done_s(self) -> float:
        """When the last of them had its answer."""
        return max(record.done_s for record in self.records)


def batches(records: Sequence[RequestRecord]) -> list[Batch]:
    """All batches whose requests told their stages and their queue, in the order they began."""
    usable = [record for record in records if record.ok and "queue" in record.stages_ms]
    told = sorted(((_begin_s(record), key, record) for record in usable if (key := _key(record))), key=lambda each: each[:2])
    found: list[list[RequestRecord]] = []
    last: dict[tuple[int, tuple[float, ...]], int] = {}
    for begin_s, key, record in told:
        at = last.get(key)
        if at is not None and begin_s - _begin_s(found[at][0]) < SAME_S and len(found[at]) < key[0]:
            found[at].append(record)
        else:
            last[key] = len(found)
            found.append([record])
    return [_batch(each) for each in found]


def lanes(found: Sequence[Batch]) -> list[int]:
    """A lane for each batch, the lowest that is free; as many as were ever busy at once."""
    ends: list[float] = []
    chosen = []
    for batch in found:
        lane = next((number for number, end_s in enumerate(ends) if batch.begin_s >= end_s - TOUCH_S), len(ends))
        ends[lane : lane + 1] = [batch.end_s]
        chosen.append(lane)
    return chosen


def together(found: Sequence[Batch], chosen: Sequence[int], skip: float = 0.2) -> int:
    """Where to look: the batch from which on all lanes begin one each, sent closest to each other in time.

    Of those only the ones that took no longer than half of them do are looked at; the first `skip` of the run is left out.
    """
    count = max(chosen) + 1
    starts = [n for n in range(int(skip * len(found)), len(found) - count + 1) if len(set(chosen[n : n + count])) == count]
    if not starts:
        return 0
    groups = {n: found[n : n + count] for n in starts}
    took = {n: max(batch.done_s for batch in group) - min(batch.sent_s for batch in group) for n, group in groups.items()}
    usual = sorted(took.values())[(len(took) - 1) // 2]
    sent = {n: [batch.sent_s for batch in group] for n, group in groups.items() if took[n] <= usual}
    return min(sent, key=lambda n: max(sent[n]) - min(sent[n]))


@dataclass(frozen=True)
class Window:
    """A stretch of a run. Milliseconds count from `zero_s`, the first send of the batches that begin it.

    Attributes:
        rows: (batch, its lane), of those that are not over before it and begin within it.
        count: lanes that were ever busy at once in the run.
        total_ms: until all that began it together had their answer.
        mean_ms: a request's time from its send to its last byte, the mean of the run.
        end_ms: how long it is.
    """

    rows: tuple[tuple[Batch, int], ...]
    count: int
    zero_s: float
    total_ms: float
    mean_ms: float
    end_ms: float

    def at_ms(self, moment_s: float) -> float:
        """A moment of the run on this axis."""
        return (moment_s - self.zero_s) * 1e3

    def finished(self) -> int:
        """Requests sent in it whose answer came within total_ms."""
        records = (record for batch, _ in self.rows for record in batch.records)
        return sum(record.sent_s >= self.zero_s - TOUCH_S and self.at_ms(record.done_s) <= self.total_ms + TOUCH_S for record in records)


def window(found: Sequence[Batch], length: float = 3.2) -> Window:
    """The stretch that begins where all lanes begin closest together, `length` times as long as those batches take."""
    chosen = lanes(found)
    first, count = together(found, chosen), max(chosen) + 1
    records = [record for batch in found for record in batch.records]
    mean_s = sum(record.done_s - record.sent_s for record in records) / len(records)
    zero_s = min(batch.sent_s for batch in found[first : first + count])
    total_s = max(batch.done_s for batch in found[first : first + count]) - zero_s
    end_s = zero_s + length * total_s
    rows = tuple((batch, lane) for batch, lane in zip(found, chosen, strict=True) if batch.done_s > zero_s and batch.sent_s < end_s)
    return Window(rows, count, zero_s, total_s * 1e3, mean_s * 1e3, length * total_s * 1e3)


def _begin_s(record: RequestRecord) -> float:
    return record.sent_s + record.stages_ms["queue"] / 1e3


def _key(record: RequestRecord) -> tuple[int, tuple[float, ...]] | None:
    if not any(name in record.stages_ms for name in HANDLER_STAGES):
        return None
    return record.batch_size or 1, tuple(record.stages_ms.get(name, 0.0) for name in HANDLER_STAGES)


def _batch(records: Sequence[RequestRecord]) -> Batch:
    begin_s = min(map(_begin_s, records))
    stages_ms = {name: records[0].stages_ms.get(name, 0.0) for name in HANDLER_STAGES}
    ordered = tuple(sorted(records, key=lambda record: record.sent_s))
    return Batch(ordered, begin_s, begin_s + sum(stages_ms.values()) / 1e3, stages_ms)
