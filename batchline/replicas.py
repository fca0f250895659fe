"""How many machines like the measured one a rate takes, and what an autoscaler is told."""

from __future__ import annotations

import math

from batchline.queueing import Setting
from batchline.search import Trials
from batchline.targets import Replicas, Target


def replicas(trials: Trials, target: Target, setting: Setting, capacity_per_s: float) -> Replicas | None:
    """Machines for the target's rate, each with its headroom free; None without a rate, or where one machine keeps p99 at none.

    Args:
        trials: to ask for the latency at a machine's share of the rate.
        target: its rate is for all machines together.
        setting: of every machine.
        capacity_per_s: the largest rate at which one machine keeps p99.
    """
    if not target.rate_per_s or capacity_per_s <= 0:
        return None
    machines = math.ceil(target.rate_per_s / (capacity_per_s * (1 - trials.limits.headroom)) - 1e-9)
    each_per_s = target.rate_per_s / machines
    found = trials.at(setting, each_per_s)
    return Replicas(
        machines=machines,
        with_one_spare=machines + 1,
        capacity_per_s=capacity_per_s,
        utilisation=each_per_s / capacity_per_s,
        headroom=trials.limits.headroom,
        rate_each_per_s=each_per_s,
        concurrency_target=each_per_s * found.mean_ms / 1e3 if found else 0.0,
    )
