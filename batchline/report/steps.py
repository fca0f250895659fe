"""The walkthrough of one model: every step's sentence with the model's own numbers in it, and its figure.

The order and the thoughts are those of the two walkthroughs that this project makes true: what a batch costs, and where a request's
time goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchline.report import batching, decisions, dials, offered, queueing, requests, speedups
from batchline.report.captions import counted
from batchline.report.data import Evidence
from batchline.report.style import Figure, Missing

Drawn = Figure | Missing
REGIMES = {
    "overhead-bound": "Nearly all of a lone request is the fixed overhead: batching pays several times over.",
    "balanced": "Batching pays, within its ceiling.",
    "compute-bound": "A request costs its own compute: batching wins little.",
}


@dataclass(frozen=True)
class Step:
    """One step: what is said, and what is drawn or missing."""

    sentence: str
    figure: Drawn


@dataclass(frozen=True)
class Chapter:
    """Steps that belong together."""

    title: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Decision:
    """What stands at the top. A part that nothing is known of is empty.

    Attributes:
        settings: what to run.
        promise: what is promised of it.
        kept: whether it was, or by which command that is found out.
        outcome: kept, broken, undecided, invalid, or unknown.
        fix: "fix this one".
    """

    settings: str
    promise: str
    kept: str
    outcome: str
    fix: str


def chapters(evidence: Evidence) -> list[Chapter]:
    """All steps of one model, in order."""
    return [
        Chapter(title, tuple(Step(say(evidence), draw(evidence)) for say, draw in steps))
        for title, steps in (("The decision, drawn", DECIDING), ("What a batch costs", BATCHING), ("Where a request's time goes", JOURNEY))
    ]


def comparison(everything: Sequence[Evidence]) -> list[Step]:
    """Figures of all models together."""
    return [
        Step("The ceiling 1 + c/m says how much a model can win by batching.", speedups.regimes(everything)),
        Step("The largest part of a request is what to mend; halving a sliver wins a sliver.", requests.dominant(everything)),
        Step("A stage may have no width at all, and the rest is still the sum.", requests.at_zero(everything)),
    ]


def decide(evidence: Evidence) -> Decision:
    """The settings, the promise, whether it was kept, and what to mend."""
    return Decision(_settings(evidence), _promise(evidence), *_kept(evidence), _fix(evidence))


def cautions(evidence: Evidence) -> list[str]:
    """What the analyses say against themselves, each once."""
    said = list(evidence.fit.warnings) if evidence.fit else []
    said += [evidence.unfit] if evidence.measured and evidence.unfit else []
    said += [doubt for staged in evidence.staged for doubt in staged.journey.doubts]
    said += [f"the verification was INVALID: {reason}" for reason in (evidence.kept.invalid if evidence.kept else [])]
    return list(dict.fromkeys(said))


def _settings(evidence: Evidence) -> str:
    plan = evidence.plan
    if plan is None:
        return ""
    where = "" if plan.feasible else " (the best that can be had; the target is out of reach)"
    return (
        f"batchSize {plan.batch_size}, maxBatchDelay {plan.max_batch_delay_ms:g} ms, {counted(plan.workers, 'worker')} of "
        f"{counted(plan.threads_per_worker, 'thread')}{where}. {plan.reason}"
    )


def _promise(evidence: Evidence) -> str:
    plan = evidence.plan
    if plan is None or plan.predicted is None:
        return ""
    low, high = plan.predicted.intervals.get("p99_ms", (plan.predicted.p99_ms, plan.predicted.p99_ms))
    return (
        f"p99 {plan.predicted.p99_ms:.1f} ms ({low:.1f} to {high:.1f}) at {plan.predicted.rate_per_s:.4g} requests/s, where "
        f"{plan.p99_ms:g} ms are asked for; up to {plan.max_rate_per_s:.4g} requests/s within the target"
    )


def _kept(evidence: Evidence) -> tuple[str, str]:
    kept = evidence.kept
    if kept is None:
        target, rate = (plan.p99_ms, plan.rate_per_s or plan.max_rate_per_s) if (plan := evidence.plan) else (100.0, 50.0)
        return f"not held against a server yet: `batchline verify {evidence.model} --p99-ms {target:g} --rate-per-s {rate:.4g}`", "unknown"
    over = f"{kept.over} of {kept.requests} requests over {kept.limit_ms:g} ms"
    seen = f"p99 {kept.seen.latency_ms['p99']:.1f} ms, {over} at {kept.rate_per_s:g} requests/s"
    words = {
        "kept": "kept",
        "broken": "not kept",
        "undecided": "undecided, which is not kept",
        "invalid": "nothing was shown, the run was INVALID",
    }
    return f"{words[kept.outcome]}: {seen}", kept.outcome


def _fix(evidence: Evidence) -> str:
    if not evidence.staged:
        return ""
    journey = evidence.staged[-1].journey
    part = next((part for part in journey.parts if part.name == journey.dominant), None)
    share = f", {part.share:.0%} of {journey.total_ms:.3g} ms" if part else ""
    return f"{journey.dominant}{share}; half of it would win {journey.halving_saves_share:.0%}. {journey.advice}"


# ---- sentences


def _say_prediction(evidence: Evidence) -> str:
    fit = evidence.fit
    if fit is None:
        return "One request is a bar of time: a fixed cost c and the work m."
    if not fit.server.linear:
        return (
            f"One request takes T(1) = {fit.server.table[0].batch_ms:.3g} ms of its worker. For this model T(B) is no line, so the fixed c "
            "and the work m cannot be told apart."
        )
    return (
        f"One request takes {fit.server.table[0].batch_ms:.3g} ms of its worker: c = {fit.server.c_ms:.3g} ms that are paid once, however "
        f"many requests come, and m = {fit.server.m_ms:.3g} ms for the work of each."
    )


def _say_serial(evidence: Evidence) -> str:
    bars = batching.bars_of(evidence)
    if bars is None:
        return "One by one, every request pays for everything."
    return f"{bars.batch_size} requests one by one: {bars.batch_size} · T(1) = {bars.serial_ms:.3g} ms. Each pays the fixed cost again."


def _say_batch(evidence: Evidence) -> str:
    bars = batching.bars_of(evidence)
    if bars is None:
        return "As one batch they pay the fixed cost once."
    return f"The same {bars.batch_size} requests as one batch: T({bars.batch_size}) = {bars.batch_ms:.3g} ms. The fixed cost is paid once."


def _say_both(evidence: Evidence) -> str:
    bars = batching.bars_of(evidence)
    if bars is None:
        return "The speedup is the ratio of the two lengths."
    return f"The speedup is the ratio of the two lengths: S({bars.batch_size}) = {bars.speedup:.2f}."


def _say_speedup(evidence: Evidence) -> str:
    fit = evidence.fit
    if fit is None:
        return "The larger the batch, the closer to the ceiling 1 + c/m."
    if not fit.server.ceiling:
        return f"{REGIMES[fit.server.regime]} No ceiling is claimed, because the line does not fit; the measured points are what counts."
    sizes = f"80% of the throughput limit 1/m is reached from B = {fit.server.size_for(0.8)}, 90% from B = {fit.server.size_for(0.9)}"
    return f"No batch wins more than 1 + c/m = {fit.server.ceiling:.2f} times. {REGIMES[fit.server.regime]} {sizes[0].upper()}{sizes[1:]}."


def _say_dials(evidence: Evidence) -> str:
    fit = evidence.fit
    if fit is None or fit.scaling is None:
        return "Batch size and workers are two dials: N · B / T(B)."
    return f"Batch size and workers are two dials: N · B / T(B) as long as there are cores. {_up(fit.scaling.peak.note)}."


def _say_workers(evidence: Evidence) -> str:
    fit = evidence.fit
    if fit is None or fit.scaling is None:
        return "Throughput is N / T while there are cores for N workers."
    rows = max(fit.scaling.curves, key=lambda curve: (len(curve.rows), curve.batch_size)).rows
    best = max(rows, key=lambda row: row.per_s)
    reached = f"{counted(best.workers, 'worker')} reach {best.per_s:.4g}, {best.efficiency:.0%} of the ideal"
    return f"N workers answer N / T requests a second, while there are cores: {reached}."


def _say_total(evidence: Evidence) -> str:
    if not evidence.staged:
        return "The latency a client feels is the sum of the stages."
    journey = evidence.staged[-1].journey
    return f"The latency a client feels is the sum: {journey.total_ms:.3g} ms, of which the parts account for {journey.covered:.1%}."


def _say_named(evidence: Evidence) -> str:
    if not evidence.staged:
        return "Each stage is a different kind of work, with a time of its own."
    journey = evidence.staged[-1].journey
    largest = max(journey.parts, key=lambda part: part.ms)
    return f"Each stage is a different kind of work. The largest here is {largest.name}: {largest.ms:.3g} ms."


def _say(sentence: str) -> Callable[[Evidence], str]:
    return lambda evidence: sentence


def _up(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


BATCHING: tuple[tuple[Callable[[Evidence], str], Callable[[Evidence], Drawn]], ...] = (
    (_say_prediction, batching.prediction),
    (_say_serial, batching.serial),
    (_say_batch, batching.batch),
    (_say_both, batching.both),
    (_say_speedup, speedups.speedup),
    (
        _say(
            "Requests do not come as batches. A free worker takes the first and waits for more, until the batch is full "
            "or the delay is over: w."
        ),
        queueing.queue,
    ),
    (_say_dials, dials.dials),
    (_say("All of it on one canvas."), dials.summary),
)
JOURNEY: tuple[tuple[Callable[[Evidence], str], Callable[[Evidence], Drawn]], ...] = (
    (_say("A request is in one stage at a time, so that its time is a sum and nothing fancier."), requests.timeline),
    (_say_named, requests.named),
    (_say_total, requests.total),
    (_say("Different requests are in different workers at the same time: lanes overlap where stages cannot."), requests.lanes),
    (_say("One request is a sum; many are a rate."), requests.summary),
)
DECIDING: tuple[tuple[Callable[[Evidence], str], Callable[[Evidence], Drawn]], ...] = (
    (_say("Latency against offered load: near what the workers can do, a queue appears and grows."), offered.load),
    (_say_workers, decisions.workers),
    (
        _say("Every batch size with every delay, as simulated: what keeps the target is outlined, the choice is framed."),
        decisions.settings_map,
    ),
    (_say("What was promised, and what the server did."), decisions.promise),
)
