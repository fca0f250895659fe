"""What TorchServe counts for a model, out of the Prometheus text on its metrics port.

Three counters, cumulative since the server started (seen on TorchServe 0.12.0): `ts_inference_requests_total` counts a request when
it arrives; `ts_queue_latency_microseconds` and `ts_inference_latency_microseconds` add a request's microseconds, with fractions, when
its answer is written, from the moment its body had been read: the first until its batch was complete, the second until its
answer's first byte. A request that never reached a worker (503) is in the first counter only. All three carry the version as the
URL named it, "default" where it named none, and none is on the page before the model's first request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from batchline.errors import MeasureError

REQUESTS = "ts_inference_requests_total"
QUEUE = "ts_queue_latency_microseconds"
LATENCY = "ts_inference_latency_microseconds"
UNVERSIONED = "default"
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Counters:
    """One model's counters at one moment.

    Attributes:
        requests: that named no version, answered or not.
        queue_ms: milliseconds that those answered by a worker waited for their batch, all together.
        latency_ms: milliseconds from their bodies' last byte to their answers' first, all together.
        others: requests that named a version.
    """

    requests: float
    queue_ms: float
    latency_ms: float
    others: float


def read_counters(page: str, model: str) -> Counters:
    """The three counters of a model that has been asked at least once.

    Raises:
        MeasureError: the page is no Prometheus text, or lacks one of the three.
    """
    found: dict[str, float] = {}
    others = 0.0
    for sample in parse(page):
        if sample.labels.get("model_name") != model:
            continue
        if sample.labels.get("model_version") == UNVERSIONED:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
        elif sample.name == REQUESTS:
            others += sample.value
    for name in (REQUESTS, QUEUE, LATENCY):
        if name not in found:
            raise MeasureError(
                f"the metrics port shows no {name} of {model}: set metrics_mode=prometheus, keep it in metrics_config, start again."
            )
    return Counters(found[REQUESTS], found[QUEUE] / 1e3, found[LATENCY] / 1e3, others)


def requests_in_all(page: str) -> float:
    """Requests to all models, answered or not, since the server started. Raises MeasureError where the page is no Prometheus text."""
    return sum(sample.value for sample in parse(page) if sample.name == REQUESTS)


def parse(page: str) -> Iterator[Sample]:
    """Every sample of Prometheus' text format 0.0.4; raises MeasureError with the number of a line that is none."""
    for number, line in enumerate(page.split("\n"), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield _sample(text, number)


def _sample(text: str, number: int) -> Sample:
    match = _SAMPLE.fullmatch(text)
    try:
        if match:
            return Sample(match[1], _labels(match[2] or ""), float(match[3]))
    except ValueError:
        pass
    raise MeasureError(f"line {number} of the metrics page is no Prometheus text: {text[:80]!r}; is metrics_address TorchServe's?")


def _labels(text: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if not match:
            raise ValueError(text)
        labels[match[1]] = re.sub(r"\\.", lambda pair: _ESCAPED.get(pair[0], pair[0]), match[2])
        at = match.end()
    return labels
