"""What a worker tells TorchServe's metrics: stage durations, batch sizes, bad inputs by kind.

TorchServe parses one log line an observation. Its histograms have fixed buckets from 5 ms to 10 s, so values are in
seconds, and its pattern for numbers knows no exponent with a plus sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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

    def batch(self, seconds: Mapping[str, float], requests: int) -> None:
        """One batch: seconds by stage, and how many requests it held."""
        for stage, duration_s in seconds.items():
            self._observe(STAGE, round(duration_s, 6), stage)
        self._observe(BATCH, requests)

    def bad_input(self, kind: str) -> None:
        """One request answered 4xx."""
        self._observe(BAD, 1, re.sub(r"\W", "_", kind))  # a comma or colon would split TorchServe's log line

    def _observe(self, name: str, value: float, *labels: str) -> None:
        if name in self.series:
            text = f"{value:f}" if isinstance(value, float) else value
            self.series[name].emit_metrics("", text, _dimensions(DEFINED[name][2], (self.model_name, *labels)))


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
