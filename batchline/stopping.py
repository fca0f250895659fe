"""When enough requests were seen to say that a latency limit is kept, or that it is not: MLPerf's early stopping, both ways.

With t of n requests over the limit, p99 is within it, and one such result in a hundred is luck, when

    n >= n(t) = min n: P(Bin(n, 1%) <= t) <= 1%      n(0) = 459, n(1) = 662, n(2) = 838, ...

(MLCommons inference rules, appendix on early stopping; early_stopping.cc of LoadGen.) It is not within it when
P(Bin(n, 1%) >= t) <= 1%. In between nothing is clear yet.

The binomial is of independent requests, and those of a server that batches are not: one slow batch makes all of its requests late, one
jam several batches. So n and t are both divided by the dependence d: how much more the number of slow requests varies from block to
block of the run than it would if each were slow by its own luck. It is counted at the run's own p95, which every run has enough of, and
never taken below 2: without any request over the limit 918 are needed, and 1,324 with up to two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

Verdict = Literal["kept", "broken", "undecided"]
Values = np.ndarray[Any, np.dtype[np.float64]]
QUANTILE, CONFIDENCE = 0.99, 0.99
LEAST_DEPENDENCE = 2.0
BLOCKS = 20
LEVEL = 0.95  # of the run itself, where the dependence is counted
INTERVAL = 0.95


@dataclass(frozen=True)
class Judgement:
    """What a number of requests says about a limit.

    Attributes:
        verdict: kept, broken, or undecided: too few requests to say.
        requests: n.
        over: t, those that took longer than the limit or were not answered well.
        needed: how many requests would have to be there, with so many over, to be kept.
        dependence: d, by which n and t were divided.
    """

    verdict: Verdict
    requests: int
    over: int
    needed: int
    dependence: float


def needed(over: int, quantile: float = QUANTILE, confidence: float = CONFIDENCE) -> int:
    """n(t): the least number of independent requests with which `over` of them beyond the limit still show the quantile to be within it."""
    low, high = over, over + 1
    while not _is_shown(high, over, quantile, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_shown(middle, over, quantile, confidence) else (middle, high)
    return high


def judge(
    requests: int, over: int, dependence: float = LEAST_DEPENDENCE, quantile: float = QUANTILE, confidence: float = CONFIDENCE
) -> Judgement:
    """n, t and d -> the verdict. Where n/d or t/d is no whole number, it is rounded against the verdict."""
    wanted = math.ceil(dependence * needed(math.ceil(over / dependence), quantile, confidence))
    verdict: Verdict = "undecided"
    if requests >= wanted:
        verdict = "kept"
    elif _is_refuted(math.ceil(requests / dependence), math.floor(over / dependence), quantile, confidence):
        verdict = "broken"
    return Judgement(verdict, requests, over, wanted, dependence)


def dependence(latencies_ms: Values) -> float:
    """The dependence of a run: how much the number of slow requests varies from block to block, over what independent ones would.

    Latencies are in the order of arrival. The run is cut into 20 blocks of equal length (batch means), so a jam that is much shorter
    than a twentieth of the run is seen whole.
    """
    length = len(latencies_ms) // BLOCKS
    if length < BLOCKS:
        return LEAST_DEPENDENCE
    slow = latencies_ms[: length * BLOCKS] > np.quantile(latencies_ms, LEVEL, method="lower")
    share = float(slow.mean())
    if not 0 < share < 1:
        return LEAST_DEPENDENCE
    counts = slow.reshape(BLOCKS, length).sum(axis=1)
    return max(LEAST_DEPENDENCE, float(counts.var(ddof=1)) / (length * share * (1 - share)))


def quantile_interval(values: Values, quantile: float, dependence: float) -> tuple[float, float] | None:
    """A 95% interval of a quantile from order statistics, as of n/d independent values; None where n/d is too small for one."""
    count = len(values)
    independent = int(count / dependence)
    tails = ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
    low, high = (int(stats.binom.ppf(tail, independent, quantile)) for tail in tails) if independent else (0, 0)
    if high >= independent:
        return None
    ordered = np.sort(values)
    return float(ordered[max(int(low * dependence) - 1, 0)]), float(ordered[min(math.ceil((high + 1) * dependence), count) - 1])


def _is_shown(requests: int, over: int, quantile: float, confidence: float) -> bool:
    """Whether so few over the limit would be luck if the share beyond it were all that is allowed."""
    return float(stats.binom.cdf(over, requests, 1 - quantile)) <= 1 - confidence


def _is_refuted(requests: int, over: int, quantile: float, confidence: float) -> bool:
    """Whether so many over it would be."""
    return over > 0 and float(stats.binom.sf(over - 1, requests, 1 - quantile)) <= 1 - confidence
