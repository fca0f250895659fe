"""The stage clock: where a batch's time went, and how it is told to the client.

The stages are those of one request's journey: T_total = T_network + w + T_deserialize + T_preprocess + T_inference +
T_serialize. A stage's figure is that of the whole batch, for that is how long each request in it waited there.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager

STAGES = ("deserialize", "preprocess", "inference", "serialize")
ONE_DAY_S = 86400.0


class StageClock:
    """Seconds spent in each stage by one batch.

    Attributes:
        seconds: by stage; a stage entered twice adds up.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Counts the time of the block for `name`, also when it raises."""
        return _Stage(self.seconds, name)

    def server_timing(self, batch: int, queue_s: float | None = None) -> str:
        """The Server-Timing header: milliseconds a stage, and the number of requests in the batch."""
        stages = [f"{name};dur={seconds * 1e3:.3f}" for name, seconds in self.seconds.items()]
        return with_queue(", ".join([*stages, f'batch;desc="{batch}"']), queue_s)


class _Stage(AbstractContextManager[None]):
    """A block whose time is counted."""

    __slots__ = ("begin", "name", "seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.begin = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.begin


def with_queue(timing: str, queue_s: float | None) -> str:
    """A Server-Timing header of the batch, as one of its requests gets it: with its own wait where that is known."""
    return timing if queue_s is None else f"queue;dur={queue_s * 1e3:.3f}, {timing}"


def queue_seconds(request_start: str | None, now_s: float) -> float | None:
    """Seconds since `X-Request-Start: t=<unix seconds>`, or None where the header is absent or nonsense.

    Args:
        request_start: the header's value.
        now_s: unix seconds at which the handler got the batch.

    The sender's clock may be a little ahead of ours: up to a second in the future counts as 0.
    """
    if not request_start:
        return None
    try:
        sent_s = float(request_start.strip().removeprefix("t="))
    except ValueError:
        return None
    waited = now_s - sent_s
    if not math.isfinite(waited) or not -1.0 <= waited <= ONE_DAY_S:
        return None
    return max(0.0, waited)
