"""A measured model and a target -> the setting to run, what it promises, and why.

A pure function of the two, deterministic for a seed: no clock, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batchline import search
from batchline.explain import binding, needs, reason, remedies
from batchline.queueing import Setting
from batchline.replicas import replicas
from batchline.search import CLOSE, MANY, Point, Progress, Trials, keeps
from batchline.service import Model
from batchline.targets import Choice, Goal, Limits, Plan, PlanError, Predicted, Replicas, Target

__all__ = ["Choice", "Goal", "Limits", "Model", "Plan", "PlanError", "Predicted", "Progress", "Replicas", "Target", "as_json", "choose"]

SAME = 0.03  # of the target: settings whose p99 are this close are equals
CARE = 0.98  # of the largest rate that was found is tried first when it is confirmed on many requests


def choose(model: Model, target: Target, limits: Limits | None = None, progress: Progress | None = None, seed: int = 1) -> Plan:
    """The best setting of one model.

    Of settings that are equal, their p99 within 3% of the target or their rates within 1%, the one with the fewest workers, then the
    smallest batch, then the smallest delay. A compute-bound model gets batch size 1 wherever that keeps the target.

    Args:
        model: of service.model_of.
        target: what it must keep.
        limits: what it may use; no limits unless given.
        progress: told what is under way.
        seed: of the arrivals.

    Raises:
        PlanError: not one worker fits into memory, or GPUs are asked for and the model was not measured on one.
    """
    trials = Trials(model, limits or Limits(), seed)
    check_gpus(model, trials.limits)
    among = search.settings(model, trials.limits, target.p99_ms)
    if target.goal == "max-rate":
        return _largest_rate(trials, target, among, progress)
    ways = _fewest_workers if target.goal == "cheapest" else _lowest_p99
    assert target.rate_per_s
    points = ways(trials, target, among, progress)
    kept = [point for point in points if keeps(point[1], target.p99_ms)]
    if not kept:
        return _missed(trials, target, among, points, progress)
    chosen, found = _simplest_equal(trials, kept, target)
    most_per_s = max(target.rate_per_s, trials.most_per_s(chosen, target.p99_ms, target.rate_per_s))
    return _finished(trials, target, among, (chosen, found), most_per_s, _second(points, chosen))


def check_gpus(model: Model, limits: Limits) -> None:
    """Raises PlanError where the plan would be for GPUs that the measurement has not seen."""
    if limits.gpus and not model.gpu:
        raise PlanError(
            f"{model.name} was measured on the CPU, and nothing in that says what a batch costs on a GPU: "
            f"run `batchline measure {model.name}` on the machine with the GPU, or plan without --gpus."
        )


def _lowest_p99(trials: Trials, target: Target, among: Sequence[Setting], progress: Progress | None) -> list[Point]:
    assert target.rate_per_s
    if trials.model.regime == "compute-bound":
        alone = [setting for setting in among if setting.batch_size == 1]
        points = search.lowest_p99(trials, alone, target.rate_per_s, progress)
        if any(keeps(found, target.p99_ms) for _, found in points):
            return points
    return search.lowest_p99(trials, among, target.rate_per_s, progress)


def _fewest_workers(trials: Trials, target: Target, among: Sequence[Setting], progress: Progress | None) -> list[Point]:
    points: list[Point] = []
    for workers in sorted({setting.workers for setting in among}):
        points = _lowest_p99(trials, target, [setting for setting in among if setting.workers == workers], progress) or points
        if any(keeps(found, target.p99_ms) for _, found in points):
            break
    return points


def _simplest_equal(trials: Trials, points: Sequence[Point], target: Target) -> Point:
    """points: lowest p99 first."""
    order = search.simplest(trials.model, trials.limits)
    equals = [point for point in points if point[1].p99_ms <= points[0][1].p99_ms + SAME * target.p99_ms]
    return min(equals, key=lambda point: order(point[0]))


def _second(points: Sequence[Point], chosen: Setting) -> Choice | None:
    return next((Choice(setting, found) for setting, found in points if setting != chosen), None)


def _largest_rate(trials: Trials, target: Target, among: Sequence[Setting], progress: Progress | None) -> Plan:
    led = search.largest_rate(trials, among, target.p99_ms, progress)
    if not led:
        return _missed(trials, target, among, [], progress)
    setting = _simplest_at(trials, target, among, led[0], progress)
    rate = _confirmed(trials, setting, target.p99_ms, dict(led).get(setting, led[0][1] * (1 - CLOSE)))
    found = trials.at(setting, rate, MANY)
    assert found
    second = next(((other, other_per_s) for other, other_per_s in led if other != setting), None)
    runner_up = Choice(second[0], trials.at(*second)) if second else None
    return _finished(trials, target, among, (setting, found), rate, runner_up)


def _simplest_at(
    trials: Trials, target: Target, among: Sequence[Setting], best: tuple[Setting, float], progress: Progress | None
) -> Setting:
    """The simplest setting that keeps p99 at the largest rate less 1%."""
    order, rate = search.simplest(trials.model, trials.limits), best[1] * (1 - CLOSE)
    simpler = sorted((setting for setting in among if order(setting) < order(best[0])), key=order)
    for number, setting in enumerate(simpler):
        search.tell(progress, number, len(simpler), f"as good and simpler? {search.words(setting)}")
        if search.may_beat(trials, setting, rate, target.p99_ms) and trials.keeps(setting, rate, target.p99_ms):
            return setting
    return best[0]


def _confirmed(trials: Trials, setting: Setting, p99_ms: float, rate_per_s: float) -> float:
    """The largest rate on many requests, which is near the one that few requests gave."""
    for share in (CARE, 0.9, 0.75, 0.5):
        if rate := trials.most_per_s(setting, p99_ms, rate_per_s * share, MANY):
            return rate
    return rate_per_s * 0.5


def _missed(trials: Trials, target: Target, among: Sequence[Setting], points: list[Point], progress: Progress | None) -> Plan:
    """No setting keeps the target: the one that comes nearest, and what would have to change."""
    led = search.largest_rate(trials, among, target.p99_ms, progress)
    sound = [point for point in points if point[1].rejected <= search.REJECTED]
    if sound:
        best = _simplest_equal(trials, sound, target)
    elif led:
        best = led[0][0], _at(trials, *led[0])
    else:
        best = _lightest(trials, among)
    plan = _finished(trials, target, among, best, led[0][1] if led else 0.0, _second(sound, best[0]))
    search.tell(progress, 0, 1, "what would have to change")
    changes = remedies(trials, target, best, led[0] if led else None, sound[0][1] if sound else None)
    return replace(plan, remedies=tuple(changes), simulated=trials.simulated)


def _at(trials: Trials, setting: Setting, rate_per_s: float) -> Predicted:
    found = trials.at(setting, rate_per_s)
    assert found
    return found


def _lightest(trials: Trials, among: Sequence[Setting]) -> Point:
    """Where not even a rare request keeps p99: the setting that is quickest for one."""
    slowest = min(trials.capacity_per_s(setting) for setting in among)
    return search.lowest_p99(trials, among, slowest / 100)[0]


def judged(trials: Trials, target: Target, setting: Setting, found: Predicted | None) -> Plan:
    """The plan for a setting that is given: what it promises, what binds it, and what would have to change if it misses.

    Args:
        trials: of the model, beside others where there are any.
        target: with a rate.
        setting: given.
        found: what it does at the target's rate; None where it is not stable at it.
    """
    among = search.settings(trials.model, trials.limits, target.p99_ms)
    assert target.rate_per_s
    if keeps(found, target.p99_ms):
        assert found
        most_per_s = max(target.rate_per_s, trials.most_per_s(setting, target.p99_ms, target.rate_per_s))
        return _finished(trials, target, among, (setting, found), most_per_s, None)
    most_per_s = trials.most_per_s(setting, target.p99_ms)
    at = found or trials.at(setting, most_per_s or trials.capacity_per_s(setting) / 2)
    assert at
    plan = _finished(trials, target, among, (setting, at), most_per_s, None)
    led = (setting, most_per_s) if most_per_s else None
    return replace(plan, remedies=tuple(remedies(trials, target, (setting, at), led, found)))


def _finished(trials: Trials, target: Target, among: Sequence[Setting], best: Point, most_per_s: float, runner_up: Choice | None) -> Plan:
    setting, found = best
    model, limits = trials.model, trials.limits
    feasible = keeps(found, target.p99_ms) and found.rate_per_s >= (target.rate_per_s or 0.0)
    binds = binding(trials, target, among, most_per_s, feasible)
    machines = replicas(trials, target, setting, most_per_s) if feasible or target.rate_per_s else None
    return Plan(
        model=model.name,
        model_version=model.version,
        target=target,
        setting=setting,
        predicted=found,
        feasible=feasible,
        max_rate_per_s=most_per_s,
        binding=binds,
        reason=reason(trials, target, setting, found, binds, feasible),
        runner_up=runner_up,
        needs=needs(model, limits, setting),
        replicas=machines,
        worker_mib=model.worker_mib,
        worker_mib_measured=model.worker_mib_measured,
        simulated=trials.simulated,
        warnings=model.warnings,
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """As `batchline plan --json` prints it; units are in the names."""
    setting = plan.setting
    return {
        "model": plan.model,
        "model_version": plan.model_version,
        "p99_ms": plan.target.p99_ms,
        "rate_per_s": plan.target.rate_per_s,
        "goal": plan.target.goal,
        **_setting(setting),
        "feasible": plan.feasible,
        "predicted": _predicted(plan.predicted),
        "max_rate_per_s": plan.max_rate_per_s,
        "binding": plan.binding,
        "reason": plan.reason,
        "remedies": list(plan.remedies),
        "needs": list(plan.needs),
        "runner_up": {**_setting(plan.runner_up.setting), "predicted": _predicted(plan.runner_up.predicted)} if plan.runner_up else None,
        "replicas": vars(plan.replicas) if plan.replicas else None,
        "memory": {"worker_mib": plan.worker_mib, "measured": plan.worker_mib_measured, "all_mib": plan.worker_mib * setting.workers},
        "simulated": plan.simulated,
        "warnings": list(plan.warnings),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "batch_size": setting.batch_size,
        "max_batch_delay_ms": int(setting.max_batch_delay_ms),
        "workers": setting.workers,
        "threads_per_worker": setting.threads,
    }


def _predicted(found: Predicted | None) -> dict[str, Any] | None:
    return {**vars(found), "intervals": {name: list(ends) for name, ends in found.intervals.items()}} if found else None
