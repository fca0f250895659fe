"""What a worker tells TorchServe's metrics: stage durations, batch sizes, requests, bad inputs by kind.

TorchServe parses one log line an observation, which for a quick model would cost more than the model. So at most some PER_S
batches a second of a worker are told: the histograms hold every k-th batch then, while the counters lack nothing that is a
second old. Histograms have fixed buckets from 5 ms to 10 s, so values are in seconds, and TorchServe's pattern for numbers
knows no exponent with a plus sign.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("ts.metrics.caching_metric")  # TorchServe's own for such lines

STAGE = "batchline_stage_duration_seconds"
BATCH = "batchline_batch_size"
BAD = "batchline_bad_input_total"
REQUESTS = "batchline_requests_total"
BUSY = "batchline_busy_seconds_total"
# name -> (type, unit, dimensions); the same stands in metrics.yaml, which the front end reads
DEFINED = {
    STAGE: ("histogram", "s", ["ModelName", "stage"]),
    BATCH: ("histogram", "count", ["ModelName"]),
    BAD: ("counter", "count", ["ModelName", "kind"]),
    REQUESTS: ("counter", "count", ["ModelName"]),
    BUSY: ("counter", "s", ["ModelName"]),
}
PER_S = 20.0  # batches told a second, about
WINDOW_S = 1.0  # over which batches are counted to say which are told


class Share:
    """Which batches are told: all while they are few, every k-th while they are many.

    k comes from the batches of a window before, never from the batch itself: the told ones are a fair sample, long or short.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.every = self.left = 1
        self.seen, self.begin_s = 0, clock()

    def due(self) -> bool:
        """Counts a batch, and says whether it is one that is told."""
        now_s = self.clock()
        if now_s - self.begin_s >= WINDOW_S:
            self.every = max(1, math.ceil(self.seen / (now_s - self.begin_s) / PER_S))
            self.left = min(self.left, self.every)
            self.seen, self.begin_s = 0, now_s
        self.seen += 1
        self.left -= 1
        if self.left > 0:
            return False
        self.left = self.every
        return True


class Metrics:
    """Observations of one worker.

    Args:
        cache: TorchServe's metrics cache (context.metrics); None outside a server, where observations go nowhere.
        model_name: the label of every observation.
    """

    def __init__(self, cache: Any, model_name: str) -> None:
        self.model_name = model_name
        self.series = {name: _series(cache, name) for name in DEFINED} if hasattr(cache, "get_metric") else {}
        self.ends: dict[tuple[str, ...], tuple[str, str]] = {}
        self.share = Share()
        self.counted: dict[tuple[str, ...], float] = {}
        self.lock = threading.Lock()  # for what is counted: the rest is told by a thread of its own
        self.rest: threading.Timer | None = None

    def batch(self, seconds: Mapping[str, float], requests: int) -> None:
        """One batch: seconds by stage, and how many requests it held. One write to the log, a line an observation."""
        if not self.series:
            return
        with self.lock:
            self._count(requests, REQUESTS)
            self._count(sum(seconds.values()), BUSY)
        if self.share.due():
            now_s = int(time.time())
            observed = [self._line(STAGE, f"{duration_s:f}", now_s, stage) for stage, duration_s in seconds.items()]
            logger.info("\n".join([*observed, self._line(BATCH, requests, now_s), *self._counters(now_s)]))
        elif self.rest is None:
            self.rest = threading.Timer(WINDOW_S, self._tell_rest)
            self.rest.daemon = True
            self.rest.start()

    def bad_input(self, kind: str) -> None:
        """One request answered 4xx, of the batch that is told next."""
        if self.series:
            with self.lock:
                self._count(1, BAD, re.sub(r"\W", "_", kind))  # a comma or colon would split the line

    def _tell_rest(self) -> None:
        self.rest = None
        if lines := self._counters(int(time.time())):
            logger.info("\n".join(lines))

    def _count(self, value: float, *series: str) -> None:
        self.counted[series] = self.counted.get(series, 0) + value

    def _counters(self, now_s: int) -> list[str]:
        """What was counted since this was last asked."""
        with self.lock:
            counted, self.counted = self.counted, {}
        return [self._line(name, f"{value:.6f}".rstrip("0").rstrip("."), now_s, *labels) for (name, *labels), value in counted.items()]

    def _line(self, name: str, value: object, now_s: int, *labels: str) -> str:
        """As TorchServe's emit_metrics has it."""
        ends = self.ends.get((name, *labels))
        if ends is None:
            series, dimensions = self.series[name], _dimensions(DEFINED[name][2], (self.model_name, *labels))
            head = f"[METRICS]{series.metric_name}.{series.unit}:"
            ends = head, f"|#{dimensions}|#type:{series.metric_type.name}|#hostname:{socket.gethostname()},"
            self.ends[(name, *labels)] = ends
        return f"{ends[0]}{value}{ends[1]}{now_s}"


def _dimensions(names: list[str], values: tuple[str, ...]) -> str:
    return ",".join(f"{name}:{value}" for name, value in zip(names, values, strict=True))


def _series(cache: Any, name: str) -> Any:
    """The metric that metrics.yaml defines; a server with another metrics.yaml gets it defined here and drops it in the front end."""
    from ts.metrics.metric_type_enum import MetricTypes

    kind, unit, dimensions = DEFINED[name]
    try:
        return cache.get_metric(name, MetricTypes(kind))
    except Exception:
        return cache.add_metric_to_cache(name, unit, dimensions, MetricTypes(kind))
