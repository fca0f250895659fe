"""When enough was seen; what was promised; how a plan is corrected by what a server did; what tuning writes. No server is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from batchline import service, showverify, tune, verify
from batchline.errors import ConfigError, MeasureError
from batchline.load import LoadRun, RequestRecord
from batchline.measure import Subject
from batchline.measured import write_measured
from batchline.plan import choose
from batchline.promise import Promise, predict, promised, read_promise
from batchline.properties import read_configuration
from batchline.queueing import Setting
from batchline.recipe import Recipe
from batchline.status import Settings
from batchline.stopping import Judgement, dependence, judge, needed, quantile_interval
from batchline.targets import Limits, Target
from batchline.verify import Demand, Seen, Verified
from tests.known_run import known_run

# queueing.md 3.10, after MLPerf's early_stopping.cc: quantile, over the limit, requests needed.
VECTORS = [(0.99, t, n) for t, n in [(0, 459), (1, 662), (2, 838), (3, 1001), (5, 1307), (10, 2010), (20, 3304), (50, 6898), (100, 12571)]]
VECTORS += [(0.95, t, n) for t, n in [(0, 90), (1, 130), (2, 165)]] + [(0.90, t, n) for t, n in [(0, 44), (1, 64), (2, 81)]]
SETTINGS = Settings(8, 2, 2, 2)


@pytest.mark.parametrize(("quantile", "over", "wanted"), VECTORS)
def test_needed(quantile: float, over: int, wanted: int) -> None:
    assert needed(over, quantile) == wanted


@given(st.integers(0, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]), st.sampled_from([0.9, 0.95, 0.99]))
@settings(max_examples=60)
def test_needed_is_the_least(over: int, quantile: float, confidence: float) -> None:
    """By the definition: one request fewer would not show it."""
    count = needed(over, quantile, confidence)
    assert stats.binom.cdf(over, count, 1 - quantile) <= 1 - confidence < stats.binom.cdf(over, count - 1, 1 - quantile)


def test_the_rule_in_both_directions() -> None:
    """Twice the independent requests, because those that share a batch share its fate."""
    assert [judge(918, 0).verdict, judge(917, 0).verdict] == ["kept", "undecided"]
    assert [judge(1324, 2).verdict, judge(1324, 3).verdict] == ["kept", "undecided"]
    assert judge(306, 306).verdict == "broken" and judge(12, 12).verdict == "broken"
    assert judge(10_000, 100).verdict == "undecided", "exactly 1%: nothing is clear"
    assert [judge(459, 0, dependence=1).verdict, judge(458, 0, dependence=1).verdict] == ["kept", "undecided"]


@given(st.integers(1, 20_000), st.floats(0, 1), st.floats(2, 30))
@settings(max_examples=60)
def test_more_over_the_limit_is_never_better(requests: int, share: float, dependent: float) -> None:
    order = {"kept": 0, "undecided": 1, "broken": 2}
    over = int(share * requests)
    verdicts = [judge(requests, t, dependent).verdict for t in sorted({0, over // 2, over, requests})]
    assert [order[verdict] for verdict in verdicts] == sorted(order[verdict] for verdict in verdicts)
    if judge(requests, over, dependent).verdict == "kept":
        assert over / requests < 0.01
    if judge(requests, over, dependent).verdict == "broken":
        assert over / requests > 0.01


def test_dependence() -> None:
    """Independent requests count half, for one never knows; whole jams count as what they are."""
    chance = np.random.default_rng(1)
    assert np.mean([dependence(chance.exponential(1, 2000)) for _ in range(50)]) == pytest.approx(2, abs=0.1)
    jams = [dependence(np.repeat(chance.exponential(1, 500), 8)) for _ in range(50)]
    assert np.mean(jams) == pytest.approx(8, rel=0.15)
    assert dependence(np.full(5000, 3.0)) == 2 and dependence(np.array([])) == 2 and dependence(np.full(5000, np.inf)) == 2


@pytest.mark.parametrize("jam", [1, 2, 8])
def test_a_limit_that_is_just_not_kept_rarely_passes(jam: int) -> None:
    """1% of the requests over it, in jams, and the rule asked again and again. By a fixed 2 every second run in jams of 8 passes."""
    chance, passed, runs = np.random.default_rng(jam), 0, 60
    for _ in range(runs):
        latencies = np.repeat(chance.random(6000 // jam), jam)
        count, wanted = 0, verify.FIRST
        while count < wanted:
            count = wanted
            seen = latencies[:count]
            judgement = judge(count, int((seen > 0.99).sum()), dependence(seen))
            wanted = verify._wanted(judgement, False, len(latencies))
        passed += judgement.verdict == "kept"
    assert passed <= runs * 0.15


def test_the_interval_holds_the_quantile() -> None:
    """95 of 100 times, of requests that come in jams; without their dependence it is far too narrow."""
    chance, held, held_without = np.random.default_rng(5), 0, 0
    for _ in range(200):
        values = np.repeat(chance.random(1000), 6)
        low, high = quantile_interval(values, 0.99, 6) or (0, 1)
        held += low <= 0.99 <= high
        low, high = quantile_interval(values, 0.99, 1) or (0, 1)
        held_without += low <= 0.99 <= high
    assert held >= 180 > held_without
    assert quantile_interval(np.arange(100.0), 0.99, 2) is None


def test_a_stretch_has_its_rate_and_no_more_order_than_poisson() -> None:
    """The number is exact; gaps are exponential (Kolmogorov-Smirnov)."""
    times, begin_s = verify.arrivals(100.0, 4000, (3,))
    assert np.all(np.diff(times) >= 0) and 0 < begin_s == 1.0
    times = times[times >= begin_s]
    assert len(times) == 4000 and times[-1] < 41
    assert stats.kstest(np.diff(times), "expon", args=(0, 0.01)).pvalue > 0.01


def records(count: int, latency_ms: float = 10.0, status: int = 200, batch: int = 4, begin_s: float = 0.0) -> list[RequestRecord]:
    moments = [begin_s + 0.01 * i for i in range(count)]
    return [RequestRecord(s, s, s + latency_ms / 1e3, s + latency_ms / 1e3, status, batch_size=batch) for s in moments]


def test_the_lead_in_is_not_counted_and_stretches_join() -> None:
    slow_start = records(50, 500.0) + records(100, begin_s=0.5)
    stretch = verify.counted(LoadRun(slow_start, 1.6, 1.5, 100.0, 50, 0.5), 0.5, 100.0)
    assert len(stretch.records) == 100 and stretch.records[0].intended_s == pytest.approx(0) and stretch.offered_per_s == pytest.approx(100)
    joined = verify._join([stretch, stretch], Demand(10, 100))
    assert len(joined.records) == 200 and joined.planned_s == 2.0 and joined.cpu_share == pytest.approx(0.5)
    assert np.all(np.diff([record.intended_s for record in joined.records]) > 0)
    assert {round(record.latency_ms, 6) for record in joined.records} == {10.0}


def test_what_was_not_answered_well_is_over_the_limit() -> None:
    """A refusal is quick, and no kept promise."""
    mixed = records(900) + records(18, latency_ms=1.0, status=503) + records(2, latency_ms=1.0, status=0)
    assert verify._judge(mixed, 50.0).over == 20
    seen = verify._seen(LoadRun(mixed, 9.2, 9.2, 100.0, 10, 0.1), Judgement("undecided", 920, 20, 0, 2.0), None)
    assert seen.statuses == {0: 2, 200: 900, 503: 18} and seen.throughput_per_s == pytest.approx(900 / 9.2)


def test_the_mean_batch_is_of_batches_and_not_of_requests() -> None:
    mixed = records(90, batch=9) + records(10, batch=1)
    seen = verify._seen(LoadRun(mixed, 1.0, 1.0, 100.0, 10, 0.1), Judgement("undecided", 100, 0, 0, 2.0), None)
    assert seen.mean_batch_size == pytest.approx(100 / 20), "10 batches of 9 and 10 of 1"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limit_ms": 0}, "--p99-ms must be above 0"),
        ({"limit_ms": float("nan")}, "--p99-ms"),
        ({"rate_per_s": -5}, "--rate-per-s must be above 0"),
        ({"requests": 917}, "918 are needed even when none is over"),
        ({"duration_s": 1.0}, "100 requests can show nothing"),
        ({"duration_s": float("nan")}, "0 requests can show nothing"),
        ({"duration_s": -1.0}, "0 requests can show nothing"),
        ({"duration_s": 10.0, "requests": 1000}, "not both"),
    ],
)
def test_what_cannot_be_shown(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(MeasureError, match=said) as raised:
        Demand(**{"limit_ms": 10, "rate_per_s": 100, **wrong}).check()  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_how_many_requests() -> None:
    assert Demand(10, 100).first() == 306 and Demand(10, 100).most == 12_000
    assert Demand(10, 100, requests=2000).first() == 2000 == Demand(10, 100, duration_s=20).first()
    assert Demand(10, 1).most == 1324, "what is needed with two over, however long it takes"


def verified(outcome: verify.Outcome = "kept", p99_ms: float = 30.0, over: int = 0, **changed: object) -> Verified:
    latency = {"mean": 12.0, "p50": 10.0, "p90": 20.0, "p95": 25.0, "p99": p99_ms}
    seen = Seen(latency, (p99_ms - 3, p99_ms + 9), 100.0, 3.0, 2.0, {200: 918})
    judgement = Judgement("undecided" if outcome == "invalid" else outcome, 918, over, 918, 2.0)
    made = Verified("known", SETTINGS, 40.0, 100.0, outcome, judgement, seen, Promise(28.0, mean_ms=11.0))
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("outcome", "status"), [("kept", 0), ("broken", 1), ("undecided", 1), ("invalid", 2)])
def test_outcomes(outcome: verify.Outcome, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(outcome, invalid=("sends were late",) if outcome == "invalid" else ())
    assert verify.exit_status(found) == status
    told = json.loads(json.dumps(verify.as_json(found), allow_nan=False))
    assert told["outcome"] == outcome and told["kept"] is (outcome == "kept")
    assert (told["requests"], told["over"], told["needed"]) == (918, 0, 918)
    assert told["promised"]["p99_ms"] == 28.0 and told["seen"]["latency_ms"]["p99"] == 30.0
    showverify.show_verified(Console(width=100), found)
    shown = capsys.readouterr().out
    assert showverify.WORDS[outcome] in shown and "0 of 918 requests over 40 ms" in shown and "+7.1%" in shown
    assert ("sends were late" in shown) is (outcome == "invalid")


PLAN = {"model": "known", "batch_size": 8, "max_batch_delay_ms": 2, "workers": 2, "predicted": {"p99_ms": 30.0, "p50_ms": 12.5}}


def test_a_promise_from_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert read_promise(path, "known", SETTINGS) == Promise(30.0, p50_ms=12.5) == read_promise(path, "known", None)
    path.write_text(json.dumps({"models": {"known": PLAN, "other": {}}}))
    assert read_promise(path, "known", SETTINGS).p99_ms == 30.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps({**PLAN, "batch_size": 4}), "a plan for batch_size 4, and the server runs with 8"),
        (json.dumps({**PLAN, "workers": 1}), "a plan for workers 1"),
        (json.dumps({**PLAN, "model": "other"}), "holds no plan of known"),
        (json.dumps({**PLAN, "predicted": None}), "no plan of known with a prediction"),
        (json.dumps({**PLAN, "predicted": {"p99_ms": True}}), "no plan of known with a prediction"),
        ('{"predicted": {"p99_ms": NaN}, "batch_size": 8, "max_batch_delay_ms": 2, "workers": 2}', "with a prediction"),
        (json.dumps({"models": {"other": PLAN}}), "holds no plan of known"),
        ("[1]", "holds no plan"),
        ("{", "is cut or no JSON"),
        (None, "cannot read"),
    ],
)
def test_what_is_no_promise(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MeasureError, match=said) as raised:
        read_promise(path, "known", SETTINGS)
    assert "\n" not in str(raised.value)


CONFIG = """# mine
inference_address=http://127.0.0.1:8080
# batchline: begin (written by batchline; edits between the markers are lost)
models={\\
  "known": {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 9, "responseTimeout": 33}},\\
  "other": {"1.0": {"minWorkers": 2, "maxWorkers": 2, "batchSize": 1, "maxBatchDelay": 1, "responseTimeout": 60}}\\
}
# batchline: end
# and this
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.properties"
    path.write_text(CONFIG)
    return path


def test_a_promise_from_a_run(config: Path, tmp_path: Path) -> None:
    """At next to no load a lone request's time; near capacity more; beyond it nothing can be promised."""
    run = tmp_path / "run.json"
    write_measured(run, known_run(20, 2))
    alone = promised(config, "known", SETTINGS, 1.0, None, run)
    loaded = promised(config, "known", SETTINGS, 300.0, None, run)
    assert alone and loaded and alone.p50_ms == pytest.approx(20 + 2 + 2 + 2, rel=0.03), "c, m, the front end, and the delay"
    assert loaded.p99_ms > loaded.p50_ms > alone.p50_ms  # type: ignore[operator]
    assert promised(config, "known", SETTINGS, 1.0, None, None) is None
    for settings_, rate, said in ((SETTINGS, 5000.0, "cannot do 5000 requests/s"), (Settings(64, 2, 1, 1), 1.0, "up to batches of 32")):
        with pytest.raises(MeasureError, match=said):
            promised(config, "known", settings_, rate, None, run)
    with pytest.raises(MeasureError, match="a measurement of known, not of other"):
        promised(config, "other", SETTINGS, 1.0, None, run)
    with pytest.raises(MeasureError, match="not both"):
        promised(config, "known", SETTINGS, 1.0, run, run)


def test_a_correction_says_what_was_seen() -> None:
    """The corrected model predicts the p99 that the server had; a server that refuses has its throughput as its capacity."""
    model, setting = service.model_of(known_run(20, 2)), Setting(8, 1, 2)
    before = predict(model, setting, 100.0)
    assert before
    found = tune.corrected(model, setting, verified("broken", p99_ms=before.p99_ms * 1.5, over=200))
    again = predict(found, setting, 100.0)
    assert again and again.p99_ms == pytest.approx(before.p99_ms * 1.5, rel=0.03)
    undecided = tune.corrected(model, setting, verified("undecided", p99_ms=before.p99_ms, over=5))
    more = predict(undecided, setting, 100.0)
    assert more and more.p99_ms == pytest.approx(before.p99_ms + 9, rel=0.03), "the interval's upper end"
    seen = replace(verified("broken").seen, throughput_per_s=80.0, statuses={200: 500, 503: 418})
    refusing = tune.corrected(model, setting, verified("broken", over=418, seen=seen))
    assert predict(refusing, setting, 100.0) is None
    assert predict(refusing, setting, 70.0)


@given(st.floats(1.0, 4.0))
@settings(max_examples=5)
def test_a_correction_never_makes_a_server_faster(factor: float) -> None:
    model, setting = service.model_of(known_run(20, 2)), Setting(8, 1, 2)
    found = tune.corrected(model, setting, verified("broken", p99_ms=30 * factor))
    assert found.services[1].batch_ms[0] >= model.services[1].batch_ms[0]


def subject(config: Path, name: str = "known") -> Subject:
    recipe = Recipe(name, config.parent, {})
    return Subject(recipe, config.parent / f"{name}.mar", [b"[1]"], read_configuration(config))


def test_a_model_that_is_not_in_the_file_is_named_before_it_is_measured(config: Path) -> None:
    tune.check(subject(config))
    with pytest.raises(ConfigError, match=r"has no new 1\.0") as raised:
        tune.check(subject(config, "new"))
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_written_starts_no_server(config: Path) -> None:
    """Found before a server starts, for there is no archive to start one with."""
    broken = CONFIG.replace('"batchSize": 1, ', "")
    config.write_text(broken)
    with pytest.raises(ConfigError, match=r"other 1\.0: batchSize is None"):
        tune.tune(subject(config), known_run(20, 2), Target(400.0, 50.0), Limits())
    assert config.read_text() == broken and [path.name for path in config.parent.iterdir()] == [config.name]


def test_a_run_of_another_model(config: Path, tmp_path: Path) -> None:
    write_measured(tmp_path / "run.json", known_run(20, 2, name="other"))
    with pytest.raises(MeasureError, match="a measurement of other, not of known"):
        tune.measured_run(subject(config), tmp_path / "run.json", tmp_path, quick=True)


def test_an_unreachable_target_starts_no_server(config: Path) -> None:
    """There is no archive to start one with."""
    found = tune.tune(subject(config), known_run(60, 1), Target(30.0, 50.0), Limits())
    assert not found.kept and not found.attempts
    assert "no setting keeps p99 within 30 ms" in found.why and "What would have to change" in found.why


def test_how_a_tuning_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Kept or not is the last line that counts, and a failure says that nothing was written."""
    plan = choose(service.model_of(known_run(20, 2)), Target(400, 50))
    attempts = (tune.Attempt(replace(plan, needs=("threads: set them",)), verified()),)
    showverify.show_tuned(Console(width=120), tune.Tuned("known", attempts, True), Path("config.properties"))
    shown = capsys.readouterr().out
    assert "KEPT" in shown and "careful: threads: set them" in shown and "NOT TUNED" not in shown
    failed = tune.Tuned("known", (tune.Attempt(plan, verified("broken", over=400)),), False, "three were tried.")
    showverify.show_tuned(Console(width=120), failed, Path("config.properties"))
    shown = capsys.readouterr().out
    assert "BROKEN: 400 of 918 requests over 40 ms" in shown and "NOT TUNED: three were tried." in shown
    assert shown.endswith("config.properties is as it was\n")
