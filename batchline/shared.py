"""Several models on the cores of one machine: their settings are chosen together, for each one's busy workers slow the others'.

A model sees the others as so many busy workers more, now and then: with K of theirs busy, its n busy workers take as long as n + K of
its own would. K is binomial for each model, workers and utilisation as simulated, and the slowdown is the mean over K. What the models
do to each other within one batch is not followed; how often they meet is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchline import plan as single
from batchline import search
from batchline.queueing import Service, Setting, Slowdown, slowed
from batchline.search import FEW, MORE, Point, Progress, Trials, keeps
from batchline.service import Model
from batchline.targets import Limits, Plan, PlanError, Predicted, Target

ROUNDS = 3  # each model has its turn so often, unless nothing changes before
SETTLE = 3  # times at most until utilisations agree with each other
AGREED = 0.005  # of the time
SHORTLIST = 6  # settings of one model that are tried beside the others' present ones
SAME = 0.03  # of the worst p99 against its target: equals


@dataclass(frozen=True)
class Together:
    """Plans of several models on one machine.

    Attributes:
        plans: in the order that they were asked for.
        workers: of all.
        memory_mib: of all workers.
        busy_workers: mean number of workers that are busy at once.
        feasible: whether every target is kept.
        rates_factor: all rates together can be so many times what they are, with these settings, to 2%; 0 where that is below 1/16.
    """

    plans: tuple[Plan, ...]
    workers: int
    memory_mib: float
    busy_workers: float
    feasible: bool
    rates_factor: float


@dataclass
class _State:
    """One setting a model, and what all of them do at once."""

    points: dict[str, tuple[Setting, Predicted | None]]

    def busy(self, apart: str = "") -> Iterator[tuple[int, float]]:
        """Workers and utilisation of the models but one; one that is not stable is always busy."""
        for name, (setting, found) in self.points.items():
            if name != apart:
                yield setting.workers, found.utilisation if found else 1.0

    def workers(self, apart: str = "") -> int:
        return sum(setting.workers for name, (setting, _) in self.points.items() if name != apart)


def choose_together(
    models: Sequence[Model], targets: Sequence[Target], limits: Limits | None = None, progress: Progress | None = None, seed: int = 1
) -> Together:
    """The best settings of several models at once.

    Every model in turn tries its best few beside the others' present settings, until none changes. Best is the combination whose worst
    p99, as a part of its target, is lowest; with the goal cheapest, the one with the fewest workers that keeps every target. Workers
    have one thread.

    Args:
        models: measured on one machine, each once.
        targets: one a model, with a rate.
        limits: of all together.
        progress: told what is under way.
        seed: of the arrivals.

    Raises:
        PlanError: a model twice, measurements of different machines, no rate, or not one worker of each fits into memory.
    """
    limits = limits or Limits()
    _check(models, targets, limits)
    party = _Party({model.name: replace(model, services={1: model.services[1]}) for model in models}, targets, limits, seed)
    state = party.first()
    for number in range(ROUNDS):
        before = {name: setting for name, (setting, _) in state.points.items()}
        for name in party.models:
            search.tell(progress, number * len(models), ROUNDS * len(models), f"{name} beside the others")
            state = party.improved(state, name)
        if before == {name: setting for name, (setting, _) in state.points.items()}:
            break
    return party.finished(state)


def _check(models: Sequence[Model], targets: Sequence[Target], limits: Limits) -> None:
    names = [model.name for model in models]
    for model in models:
        single.check_gpus(model, limits)
    if len(set(names)) != len(names):
        raise PlanError(f"{next(name for name in names if names.count(name) > 1)} is measured in two of the files; name each model once.")
    if len({model.cores for model in models}) > 1:
        said = ", ".join(f"{model.name} on {model.cores} cores" for model in models)
        raise PlanError(f"the measurements are of different machines ({said}); measure all of them on the one they will share.")
    if any(target.rate_per_s is None for target in targets):
        raise PlanError(
            "several models share the cores by their rates: give --rate-per-s MODEL=RATE for each; --max-rate is for one model."
        )
    if sum(model.worker_mib for model in models) * (limits.gpus or 1) > limits.memory_mib:
        needed = sum(model.worker_mib for model in models) * (limits.gpus or 1)
        raise PlanError(
            f"one worker of each model takes {needed:.0f} MiB and there are {limits.memory_mib:.0f}: give more with --memory-gib."
        )


def crowded(model: Model, others: Sequence[tuple[int, float]]) -> Model:
    """The model beside others.

    Args:
        model: alone.
        others: workers and utilisation of each other model.
    """
    chance = _number_busy(others)
    return replace(model, services={threads: _crowded(service, chance) for threads, service in model.services.items()})


def _crowded(service: Service, chance: Sequence[float]) -> Service:
    def among(slow: Slowdown) -> Slowdown:
        return tuple(float(sum(p * slowed(slow, n + k) for k, p in enumerate(chance))) for n in range(1, len(slow) + 1))

    return service.reslowed(among)


def _number_busy(others: Sequence[tuple[int, float]]) -> list[float]:
    """P(K = 0), P(K = 1), ..: each other worker is busy by itself."""
    chance = np.ones(1)
    for workers, utilisation in others:
        busy = min(1.0, max(0.0, utilisation))
        for _ in range(workers):
            chance = np.convolve(chance, [1 - busy, busy])
    return [float(p) for p in chance]


class _Party:
    """The models, their targets, and how a combination of settings is judged."""

    def __init__(self, models: Mapping[str, Model], targets: Sequence[Target], limits: Limits, seed: int) -> None:
        self.models, self.limits, self.seed = models, limits, seed
        self.targets = dict(zip(models, targets, strict=True))

    def first(self) -> _State:
        """One worker each, with a batch size in the middle: somewhere to begin."""
        each = self.limits.gpus or 1
        points: dict[str, tuple[Setting, Predicted | None]] = {
            name: (Setting(min(8, model.largest), 1, each, 1, self.limits.queue_limit), None) for name, model in self.models.items()
        }
        return self.settled(_State(points), FEW)

    def trials(self, state: _State, name: str) -> Trials:
        """Of one model beside the others of a state, with the memory that they leave."""
        left_mib = self.limits.memory_mib - sum(
            setting.workers * self.models[other].worker_mib for other, (setting, _) in state.points.items() if other != name
        )
        limits = replace(self.limits, memory_mib=max(left_mib, 1e-9), other_workers=self.limits.other_workers + state.workers(name))
        return Trials(crowded(self.models[name], list(state.busy(name))), limits, self.seed)

    def settled(self, state: _State, requests: int) -> _State:
        """The same settings with utilisations and latencies that agree with each other."""
        for _ in range(SETTLE):
            before = list(state.busy())
            for name, (setting, _) in list(state.points.items()):
                state = _State({**state.points, name: (setting, self.trials(state, name).at(setting, self.rate(name), requests))})
            if all(abs(was - now) <= AGREED for (_, was), (_, now) in zip(before, state.busy(), strict=True)):
                break
        return state

    def rate(self, name: str) -> float:
        rate_per_s = self.targets[name].rate_per_s
        assert rate_per_s
        return rate_per_s

    def improved(self, state: _State, name: str) -> _State:
        """The best of this model's short list beside the others' settings; the present one stays unless another is better."""
        tried = [self.settled(state, MORE)]
        for setting in self._shortlist(state, name):
            if setting != state.points[name][0]:
                tried.append(self.settled(_State({**state.points, name: (setting, state.points[name][1])}), MORE))
        scores = [self.score(each) for each in tried]
        least = min(scores)
        equal = [each for each, score in zip(tried, scores, strict=True) if score[:2] == least[:2] and score[2] <= least[2] * (1 + SAME)]
        return min(equal, key=lambda each: (each.workers(), self._simplest(each, name)))

    def _simplest(self, state: _State, name: str) -> tuple[int, float]:
        setting = state.points[name][0]
        return setting.batch_size, setting.max_batch_delay_ms

    def score(self, state: _State) -> tuple[int, int, float]:
        """Targets missed, workers where they are to be few, and the worst p99 as a part of its target."""
        ratios = [self._ratio(name, found) for name, (_, found) in state.points.items()]
        missed = sum(not keeps(found, self.targets[name].p99_ms) for name, (_, found) in state.points.items())
        few = any(target.goal == "cheapest" for target in self.targets.values())
        return missed, state.workers() if few and not missed else 0, max(ratios)

    def _ratio(self, name: str, found: Predicted | None) -> float:
        return found.p99_ms / self.targets[name].p99_ms if found else 1e9

    def _shortlist(self, state: _State, name: str) -> list[Setting]:
        """Lowest p99 first; then those that leave the others the most, a worker count each."""
        trials = self.trials(state, name)
        among = search.settings(trials.model, trials.limits, self.targets[name].p99_ms)
        found = [(setting, each) for setting in among if (each := trials.at(setting, self.rate(name), FEW))]
        by_p99 = sorted(found, key=lambda point: point[1].p99_ms)
        kept = [point for point in by_p99 if point[1].p99_ms <= self.targets[name].p99_ms] or by_p99
        by_load = sorted(kept, key=lambda point: point[1].utilisation * point[0].workers)
        fewest = [min((p for p in kept if p[0].workers == n), key=_p99) for n in sorted({p[0].workers for p in kept})]
        chosen = [*by_p99[:2], *by_load[:2], *fewest]
        return list(dict.fromkeys(setting for setting, _ in chosen))[:SHORTLIST]

    def finished(self, state: _State) -> Together:
        """The plans, each beside the others as they are now."""
        state = self.settled(state, search.MANY)
        plans = tuple(self._plan(state, name) for name in self.models)
        memory_mib = sum(plan.worker_mib * plan.setting.workers for plan in plans)
        busy = sum(workers * utilisation for workers, utilisation in state.busy())
        return Together(plans, state.workers(), memory_mib, busy, all(plan.feasible for plan in plans), self._factor(state))

    def _plan(self, state: _State, name: str) -> Plan:
        setting, found = state.points[name]
        return single.judged(self.trials(state, name), self.targets[name], setting, found)

    def _factor(self, state: _State) -> float:
        """By halving: the factor on all rates at which every target is still kept."""
        low, high = 1 / 16, 16.0
        if not self._kept(state, low):
            return 0.0
        while high > low * 1.02:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self._kept(state, middle) else (low, middle)
        return low

    def _kept(self, state: _State, factor: float) -> bool:
        scaled = [replace(target, rate_per_s=self.rate(name) * factor) for name, target in self.targets.items()]
        party = _Party(self.models, scaled, self.limits, self.seed)
        return party.score(party.settled(state, FEW))[0] == 0


def _p99(point: Point) -> float:
    return point[1].p99_ms


def as_json(found: Together) -> dict[str, Any]:
    """A plan a model under its name, and the totals."""
    return {
        "models": {plan.model: single.as_json(plan) for plan in found.plans},
        "feasible": found.feasible,
        "workers": found.workers,
        "memory_mib": found.memory_mib,
        "busy_workers": found.busy_workers,
        "rates_factor": found.rates_factor,
    }
