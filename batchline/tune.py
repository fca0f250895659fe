"""From a measured model and a target to settings that were seen to keep it: plan, verify on a server of one's own, correct, again.

The user's server and config.properties are left alone until a promise was kept. Then the file is written, at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from batchline import apply, onserver, search, service, verify
from batchline import measure as measuring
from batchline import plan as planning
from batchline.candidates import Candidates
from batchline.errors import MeasureError
from batchline.measure import Subject
from batchline.measured import Measured, read_measured
from batchline.promise import Promise, predict
from batchline.queueing import Setting, capacity_per_s
from batchline.status import Settings
from batchline.swept import Candidate
from batchline.targets import QUEUE_LIMIT, Limits, Plan, Target
from batchline.turns import JVM_WARM_UP_S
from batchline.verify import Demand, Verified

CORRECTIONS = 2
TRIES = 3  # where the load generator was late, which is nobody's promise
REFUSED = 0.01  # of the requests: beyond it the throughput says what the server can do, and not p99
MOST_FACTOR, FACTOR_STEP = 16.0, 1.01
TRIAL = "tuned"
RESPONSE_TIMEOUT_S = 120  # TorchServe's own


@dataclass(frozen=True)
class Telling:
    """Who hears what is under way: words between the steps, and how far planning and verifying are."""

    say: Callable[[str], None] = lambda words: None
    plan: planning.Progress | None = None
    verify: verify.Progress | None = None


@dataclass(frozen=True)
class Attempt:
    """A plan, and what came of it on a server."""

    plan: Plan
    verified: Verified


@dataclass(frozen=True)
class Tuned:
    """What tuning came to.

    Attributes:
        attempts: in their order; the last one's plan is what is to be written where `kept`.
        kept: whether its promise was.
        why: where not, in a sentence or two.
    """

    model: str
    attempts: tuple[Attempt, ...]
    kept: bool
    why: str = ""


def measured_run(subject: Subject, run: Path | None, home: Path, quick: bool, progress: measuring.Progress | None = None) -> Measured:
    """The measurement to plan from: the one in `run`, else a new one, kept in HOME/.batchline.

    Raises:
        MeasureError: no whole run.json of this model, or a measurement that cannot be made.
        ServerError: TorchServe does not start.
    """
    if run:
        found = read_measured(run)
        if found.model != subject.recipe.name:
            raise MeasureError(f"{run} is a measurement of {found.model}, not of {subject.recipe.name}; give that model's.")
        return found
    output = home / ".batchline" / f"run-{subject.recipe.name}.json"
    output.parent.mkdir(exist_ok=True)
    begun = measuring.begin(subject, output, overwrite=True, quick=quick)
    return measuring.measure(subject, begun, output, progress)


def outdated(subject: Subject, measured: Measured) -> str:
    """A warning where the archive is not the one that was measured, else nothing."""
    if hashlib.sha256(subject.archive.read_bytes()).hexdigest() == measured.archive_sha256:
        return ""
    return f"{subject.archive} is not the archive that was measured: the plan may be off, and what it promises is verified all the same"


def check(subject: Subject) -> None:
    """Raises ConfigError, before minutes are spent, where config.properties does not have the model that is to be written."""
    name, version = subject.recipe.name, subject.recipe.version
    if (name, version) not in {(model.name, model.version) for model in subject.base.models}:
        raise subject.base.error("models", f"has no {name} {version}", "add the model there, in the version of its archive")


def tune(subject: Subject, measured: Measured, target: Target, limits: Limits, telling: Telling | None = None) -> Tuned:
    """Plans and verifies, and does so again with a corrected service, twice at most. Nothing of the user's is touched.

    Args:
        subject: the model, with the user's configuration.
        measured: a complete measurement.
        target: p99 and rate.
        limits: what the model may use, beside the configuration's other models.
        telling: who hears of it.

    Raises:
        MeasureError: what the measurement, the plan or the load cannot be made of.
        ServerError: TorchServe does not start with the planned settings.
        ConfigError: the user's file cannot be written with them.
    """
    telling, name = telling or Telling(), subject.recipe.name
    model, attempts, tried = service.model_of(measured, subject.archive), list[Attempt](), set[Setting]()
    for number in range(1 + CORRECTIONS):
        plan = planning.choose(model, target, limits, telling.plan)
        if why := _no_use(plan, tried):
            return Tuned(name, tuple(attempts), False, why)
        tried.add(plan.setting)
        telling.say(f"{'plan' if number == 0 else f'correction {number}'}: {search.words(plan.setting)}; {_promised(plan)}")
        attempts.append(Attempt(plan, _verified(subject, plan, target, telling)))
        telling.say(_seen(attempts[-1].verified))
        if attempts[-1].verified.outcome == "kept":
            return Tuned(name, tuple(attempts), True)
        if attempts[-1].verified.outcome == "invalid":
            return Tuned(name, tuple(attempts), False, _invalid(attempts[-1].verified))
        model = corrected(model, plan.setting, attempts[-1].verified)
    return Tuned(name, tuple(attempts), False, f"{len(attempts)} settings were tried on a server, and none of them kept the promise.")


def corrected(model: service.Model, setting: Setting, verified: Verified) -> service.Model:
    """The model with which the simulation says of this setting what was seen of it: every batch takes so many times as long.

    What is matched is p99, or its interval's upper end where the limit could not be decided on; where many requests were refused it
    is the throughput, which is then all that the server can do.
    """
    known = model.services[setting.threads]
    good = sum(count for status, count in verified.seen.statuses.items() if 200 <= status < 300)
    if good < (1 - REFUSED) * verified.judgement.requests:
        return service.correct(model, max(1.0, capacity_per_s(known, setting) / max(verified.seen.throughput_per_s, 1e-3)))
    interval = verified.seen.p99_interval_ms
    seen_ms = interval[1] if verified.outcome == "undecided" and interval else verified.seen.latency_ms["p99"]
    low, high = 1.0, MOST_FACTOR
    while high > low * FACTOR_STEP:
        middle = (low * high) ** 0.5
        found = predict(service.correct(model, middle), setting, verified.rate_per_s)
        low, high = (middle, high) if found and found.p99_ms < seen_ms else (low, middle)
    return service.correct(model, high)


def _no_use(plan: Plan, tried: set[Setting]) -> str:
    """Why this plan need not be tried; nothing where it should."""
    if not plan.feasible:
        best = (
            f"the best plan has p99 {plan.predicted.p99_ms:.1f} ms ({search.words(plan.setting)})"
            if plan.predicted
            else "no plan is stable"
        )
        changes = f" What would have to change: {' '.join(plan.remedies)}" if plan.remedies else ""
        seen = "by what was measured" if not tried else "by what was measured and seen on the server"
        return f"{seen} no setting keeps p99 within {plan.target.p99_ms:g} ms at {plan.target.rate_per_s:g} requests/s: {best}.{changes}"
    if plan.setting in tried:
        return "the corrected plan is one that was tried and did not keep its promise."
    return ""


def _verified(subject: Subject, plan: Plan, target: Target, telling: Telling) -> Verified:
    """The plan on a TorchServe of its own, beside the user's."""
    setting = plan.setting
    candidate = Candidate(TRIAL, setting.batch_size, int(setting.max_batch_delay_ms), setting.workers)
    apply.difference(subject.base.path, [plan])  # what could not be written need not be tried
    queue = setting.queue_limit or QUEUE_LIMIT
    server = Candidates(subject.archive, subject.recipe.version, [candidate], subject.base, setting.threads, queue)
    telling.say("a TorchServe of its own starts with it")
    with server:
        server.warm_up(JVM_WARM_UP_S)
        settings = Settings(setting.batch_size, candidate.max_batch_delay_ms, setting.workers, setting.workers)
        name = server.path(0).rpartition("/")[2]
        on = onserver.Subject(name, server.target(candidate, subject.bodies), server.server.client(server.home), settings)
        assert target.rate_per_s
        for seed in range(1, 1 + TRIES):
            found, _ = verify.verify(on, Demand(target.p99_ms, target.rate_per_s, seed=seed), _promise(plan), telling.verify)
            if found.outcome != "invalid":
                break
            telling.say(f"INVALID: {found.invalid[0]}")
    return replace(found, model=subject.recipe.name)


def _promise(plan: Plan) -> Promise | None:
    if not plan.predicted:
        return None
    said = plan.predicted
    return Promise(said.p99_ms, said.p95_ms, said.p50_ms, said.mean_ms, said.throughput_per_s, said.mean_batch_size)


def _promised(plan: Plan) -> str:
    return f"p99 {plan.predicted.p99_ms:.1f} ms promised" if plan.predicted else "nothing promised"


def _seen(verified: Verified) -> str:
    p99 = verified.seen.latency_ms.get("p99")
    return f"{verified.outcome}: p99 {p99:.1f} ms on the server" if p99 else f"{verified.outcome}: no request was answered"


def _invalid(verified: Verified) -> str:
    return f"the load generator could not keep its schedule, so nothing was shown: {'; '.join(verified.invalid)}."
