"""What a worker tells TorchServe's metrics: stage durations, batch sizes, bad inputs by kind.

TorchServe parses one log line an observation. Its histograms have fixed buckets from 5 ms to 10 s, so values are in
seconds, and its pattern for numbers knows no exponent with a plus sign.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("ts.metrics.caching_metric")  # TorchServe's own for such lines

STAGE = "batchline_stage_duration_seconds"
BATCH = "batchline_batch_size"
BAD = "batchline_bad_input_total"
# name -> (type, unit, dimensions); the same stands in metrics.yaml, which the front end reads
DEFINED = {
    STAGE: ("histogram", "s", ["ModelName", "stage"]),
    BATCH: ("histogram", "count", ["ModelName"]),
    BAD: ("counter", "count", ["ModelName", "kind"]),
}


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

    def batch(self, seconds: Mapping[str, float], requests: int) -> None:
        """One batch: seconds by stage, and how many requests it held. One write to the log, a line an observation."""
        if self.series:
            now_s = int(time.time())
            observed = [self._line(STAGE, f"{duration_s:f}", now_s, stage) for stage, duration_s in seconds.items()]
            logger.info("\n".join([*observed, self._line(BATCH, requests, now_s)]))

    def bad_input(self, kind: str) -> None:
        """One request answered 4xx."""
        if self.series:
            logger.info(self._line(BAD, 1, int(time.time()), re.sub(r"\W", "_", kind)))  # a comma or colon would split the line

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
