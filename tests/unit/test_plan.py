"""The choice: as good as brute force, honest where a target is out of reach, and written at once or not at all."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from batchline import apply, search
from batchline.asked import make_limits, make_targets, parse_each
from batchline.cli import app
from batchline.cost import Regime
from batchline.errors import BatchlineError, ConfigError, MeasureError
from batchline.measured import read_measured, write_measured
from batchline.plan import as_json, choose
from batchline.properties import read_configuration
from batchline.queueing import Service, Setting
from batchline.search import Trials, delays_ms
from batchline.service import Model, model_of
from batchline.shared import as_json as together_json
from batchline.shared import choose_together, crowded
from batchline.showplan import show_plan, show_together
from batchline.simulate import simulate
from batchline.targets import Limits, Plan, PlanError, Target
from tests.harness import ROOT

RUNS = {path.stem.split("-")[1]: path for path in (ROOT / "results").glob("measure-*.json")}
GRID = [(b, d, n) for b in (1, 2, 4, 8, 16, 32) for d in (1, 2, 5, 10, 20, 50, 100) for n in (1, 2, 3) if b > 1 or d == 1]
CONFIG = """# mine
inference_address=http://127.0.0.1:8080
models={"a": {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 32, "maxBatchDelay": 9, "responseTimeout": 60}},\\
"other": {"2.0": {"minWorkers": 3, "maxWorkers": 3, "batchSize": 2, "maxBatchDelay": 2, "responseTimeout": 7, "startupTimeout": 5}}}
job_queue_size=50
"""


def model(
    c: float = 10.0,
    m: float = 1.0,
    slowdown: Sequence[float] = (1.0, 1.05, 1.6),
    noise: Sequence[float] = (),
    cores: int = 2,
    name: str = "a",
    regime: Regime = "overhead-bound",
    largest: int = 8,
) -> Model:
    service = Service.line(c, m, largest, slowdown, noise, 0.5)
    stages = {"inference": tuple(0.8 * ms for ms in service.batch_ms)}
    most = largest * (c + m) / (c + largest * m)
    return Model(name, "1.0", cores, {1: service}, regime, most, 700.0, stages_ms=stages, measured_workers=len(slowdown))


def most_per_s(service: Service, setting: Setting, p99_ms: float, least_per_s: float = 0.0, seed: int = 3, requests: int = 12_000) -> float:
    """Largest rate within p99, to 1%, on arrivals that the plan has not seen; 0 where least_per_s is too much."""

    def keeps(rate_per_s: float) -> bool:
        found = simulate(service, setting, rate_per_s, requests=requests, replications=4, seed=seed)
        return found.stable and found.latency_ms.p99 <= p99_ms and found.rejected <= search.REJECTED * requests

    low, high = least_per_s, 0.995 * search.capacity(service, setting)
    if low and (low >= high or not keeps(low)):
        return 0.0
    while not low and high > 1e-3:
        low, high = (0.8 * high, high) if keeps(0.8 * high) else (0.0, 0.8 * high)
    while high > low * 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def brute_force(service: Service, p99_ms: float) -> Setting:
    """The best of the whole grid; a setting that fails at the best rate so far cannot be it."""
    grid = [Setting(b, d, n) for b, d, n in GRID if b <= len(service.batch_ms)]
    best, best_per_s = grid[0], 0.0
    for setting in sorted(grid, key=lambda setting: -search.capacity(service, setting)):
        if per_s := most_per_s(service, setting, p99_ms, best_per_s * 1.001):
            best, best_per_s = setting, per_s
    return best


@pytest.mark.parametrize(
    ("kind", "p99_ms"),
    [("overhead", 80), ("compute", 120), ("noisy", 10), ("digits", 20), ("efficientnet_lite0", 150), ("minilm", 60)],
)
def test_as_good_as_brute_force_over_the_whole_grid(kind: str, p99_ms: float) -> None:
    synthetic = {
        "overhead": model(10, 1, largest=32),
        "compute": model(1, 12, regime="compute-bound", largest=32),
        "noisy": model(0.8, 0.06, noise=(0.9, 1.0, 1.0, 1.1, 1.6), largest=32),
    }
    known = synthetic[kind] if kind in synthetic else model_of(read_measured(RUNS[kind]))
    chosen = choose(known, Target(p99_ms, None, "max-rate"))
    best = brute_force(known.services[1], p99_ms)
    ours, theirs = (
        most_per_s(known.services[setting.threads], setting, p99_ms, seed=9, requests=60_000) for setting in (chosen.setting, best)
    )
    assert ours >= 0.97 * theirs, f"{search.words(chosen.setting)} does {ours:.1f}, {search.words(best)} {theirs:.1f}"
    assert chosen.feasible
    assert chosen.predicted
    assert chosen.predicted.intervals["p99_ms"][1] <= p99_ms
    assert chosen.max_rate_per_s == chosen.predicted.rate_per_s


@settings(max_examples=8, deadline=None)
@given(st.floats(0.2, 30), st.floats(0.05, 8), st.floats(0.1, 0.9))
def test_one_worker_never_waits_for_a_batch(c: float, m: float, share: float) -> None:
    known, limits = model(c, m), Limits(memory_mib=1000)
    alone = Setting(8, 1, 1)
    rate_per_s = share * search.capacity(known.services[1], alone)
    plan = choose(known, Target(40 * (c + m), rate_per_s), limits)
    assert (plan.setting.workers, plan.setting.max_batch_delay_ms) == (1, 1)
    assert delays_ms(known, 8, 1, 1e6) == [1]
    waiting = [
        simulate(known.services[1], Setting(8, d * (c + m), 1), rate_per_s, requests=6_000, replications=3, clock_ms=0)
        for d in (0.0, 0.5, 1.0)
    ]
    assert waiting[0].latency_ms.mean <= min(each.latency_ms.mean for each in waiting[1:])


def test_several_workers_under_load_may_wait() -> None:
    """queueing.md 3.8: N = 4, c = 10, m = 1, b = 8 at 90%: with 5 ms p99 falls from 34.8 to 29.1."""
    service = Service.line(10, 1, 8, (1.0, 1.0, 1.0, 1.0, 1.0))
    known = replace(model(cores=4), services={1: service}, stages_ms={})
    plan = choose(known, Target(60, 0.9 * 4 * 8 / 18 * 1e3), Limits(memory_mib=4 * 700))
    assert (plan.setting.workers, plan.setting.batch_size) == (4, 8)
    assert 2 <= plan.setting.max_batch_delay_ms <= 12
    assert plan.predicted
    hasty = simulate(service, replace(plan.setting, max_batch_delay_ms=1), plan.predicted.rate_per_s)
    assert plan.predicted.p99_ms < 0.95 * hasty.latency_ms.p99
    assert f"Waiting {plan.setting.max_batch_delay_ms} ms" in plan.reason


def test_a_compute_bound_model_gets_batch_size_1_and_is_told_why() -> None:
    known, target = model_of(read_measured(RUNS["efficientnet_lite0"])), Target(250, 120)
    assert choose(replace(known, regime="balanced"), target).setting.batch_size > 1  # near capacity a small batch would have a lower p99
    plan = choose(known, target)
    assert plan.setting.batch_size == 1
    assert plan.feasible
    assert "compute-bound" in plan.reason
    assert "at most 1.13 times" in plan.reason


def test_cheapest_takes_the_fewest_workers_that_keep_it() -> None:
    limits = Limits()
    plan = choose(model(), Target(60, 150, "cheapest"), limits)
    assert (plan.setting.workers, plan.feasible) == (1, True)
    more = choose(model(), Target(60, 700, "cheapest"), limits)
    assert (more.setting.workers, more.feasible) == (2, True)
    assert not any(Trials(model(), limits).keeps(Setting(b, 1, 1), 700, 60) for b in (1, 4, 8))


def test_the_same_seed_gives_the_same_plan() -> None:
    known, target = model(noise=(0.9, 1.1)), Target(60, 300)
    assert choose(known, target) == choose(known, target)


def test_among_equals_the_simplest() -> None:
    plan = choose(model(slowdown=(1.0, 1.0, 1.0)), Target(100, 0.1))  # hardly any request meets another
    assert (plan.setting.workers, plan.setting.batch_size, plan.setting.max_batch_delay_ms) == (1, 1, 1)
    assert plan.binding == "none"


def test_memory_bounds_the_workers_and_says_so() -> None:
    known = model(slowdown=(1.0, 1.0, 1.5))
    plan = choose(known, Target(60, None, "max-rate"), Limits(memory_mib=1000))
    assert (plan.setting.workers, plan.binding) == (1, "memory")
    assert "700 MiB" in plan.reason
    with pytest.raises(PlanError, match=r"one worker of a takes 700 MiB and there are 600"):
        choose(known, Target(60, 10), Limits(memory_mib=600))


def test_latency_or_cores_bind() -> None:
    known = model()
    assert choose(known, Target(20, None, "max-rate")).binding == "latency"
    full = search.capacity(known.services[1], Setting(8, 1, 2))
    loose = choose(known, Target(2000, None, "max-rate"), Limits(queue_limit=10_000))
    assert loose.binding == "cores"
    assert loose.max_rate_per_s >= 0.9 * full


def test_a_rate_out_of_reach_says_the_best_what_would_do_and_how_many_machines() -> None:
    known = model()
    plan = choose(known, Target(60, 20_000))
    assert not plan.feasible
    assert plan.predicted
    assert plan.predicted.rate_per_s == plan.max_rate_per_s > 0  # the best that can be had
    assert any(remedy.startswith("the rate: ") for remedy in plan.remedies)
    assert any("inference" in remedy for remedy in plan.remedies)
    assert plan.replicas
    each = plan.max_rate_per_s * 0.8
    assert plan.replicas.machines == math.ceil(20_000 / each)
    assert plan.replicas.with_one_spare == plan.replicas.machines + 1
    at_share = Trials(known, Limits()).at(plan.setting, plan.replicas.rate_each_per_s)
    assert at_share
    assert plan.replicas.concurrency_target == pytest.approx(plan.replicas.rate_each_per_s * at_share.mean_ms / 1e3)


def test_a_target_out_of_reach_says_what_would_do_and_that_does() -> None:
    known = model()
    plan = choose(known, Target(8, 100))  # one batch takes 11
    assert not plan.feasible
    assert plan.max_rate_per_s == 0
    (said,) = [remedy for remedy in plan.remedies if remedy.startswith("the target: ")]
    assert choose(known, Target(float(said.split()[4]), 100)).feasible
    never = choose(known, Target(8, None, "max-rate"))
    assert (never.feasible, never.binding) == (False, "latency")


def test_threads_come_with_the_workers() -> None:
    known = model_of(read_measured(RUNS["minilm"]))
    plan = choose(known, Target(8, 5), Limits(memory_mib=1000))  # one worker
    assert (plan.setting.threads, plan.needs) == (2, ())  # 4.2 ms become 3.4, and the handlers give it 2 threads by themselves
    beside = choose(known, Target(8, 5), Limits(memory_mib=1000, other_workers=2))
    assert beside.setting.threads == 2
    assert "BATCHLINE_THREADS=2" in beside.needs[0]


def test_gpus_count_workers_on_each_and_want_a_measurement_of_one() -> None:
    with pytest.raises(PlanError, match="was measured on the CPU"):
        choose(model(), Target(60, 100), Limits(gpus=1))
    known = replace(model(slowdown=(1.0, 1.9)), gpu=True)
    one, two = (choose(known, Target(60, None, "max-rate"), Limits(gpus=gpus)) for gpus in (1, 2))
    assert one.setting.workers in (1, 2)
    assert two.setting.workers in (2, 4)
    assert two.max_rate_per_s > 1.9 * one.max_rate_per_s  # a GPU's workers slow each other, not another's


def test_triton_has_its_own_rule() -> None:
    ours, theirs = (choose(model(), Target(60, None, "max-rate"), Limits(server=server)) for server in ("torchserve", "triton"))
    assert ours.feasible
    assert theirs.feasible
    assert ours.predicted != theirs.predicted


# ---- several models


def test_others_slow_a_model_as_often_as_they_are_busy() -> None:
    known = model(slowdown=(1.0, 1.5, 2.0))
    assert crowded(known, []).services[1].slowdown == pytest.approx((1.0, 1.5, 2.0))
    assert crowded(known, [(1, 1.0)]).services[1].slowdown == pytest.approx((1.5, 2.0, 2 * 4 / 3))
    assert crowded(known, [(2, 0.5)]).services[1].slowdown[0] == pytest.approx(0.25 * 1 + 0.5 * 1.5 + 0.25 * 2)


def test_several_models_share_the_cores() -> None:
    known = [model(name="a"), model(2, 6, name="b")]
    found = choose_together(known, [Target(100, 40), Target(120, 20)], Limits(memory_mib=4 * 700))
    assert found.feasible
    assert found.workers == sum(plan.setting.workers for plan in found.plans) <= 4
    assert found.memory_mib == 700 * found.workers
    assert found.rates_factor > 1
    alone = choose(known[0], Target(100, 40))
    assert alone.predicted
    assert found.plans[0].predicted
    assert found.plans[0].predicted.p99_ms > alone.predicted.p99_ms  # the other is felt
    content = together_json(found)
    assert json.loads(json.dumps(content, allow_nan=False))["models"]["b"]["workers"] == found.plans[1].setting.workers
    few = choose_together(known, [Target(100, 40, "cheapest"), Target(120, 20, "cheapest")])
    assert (few.workers, few.feasible) == (2, True)


def test_too_much_for_the_cores_together_is_said() -> None:
    known = [model(name="a"), model(2, 6, name="b")]
    assert all(choose(each, Target(120, rate)).feasible for each, rate in zip(known, (700, 150), strict=True))
    found = choose_together(known, [Target(120, 700), Target(120, 150)])
    assert not found.feasible
    assert found.rates_factor < 1
    show_together(Console(width=80), found)


def test_several_models_that_cannot_be_planned_together() -> None:
    targets = [Target(100, 10), Target(100, 10)]
    with pytest.raises(PlanError, match="a is measured in two of the files"):
        choose_together([model(), model()], targets)
    with pytest.raises(PlanError, match="different machines"):
        choose_together([model(), model(name="b", cores=4)], targets)
    with pytest.raises(PlanError, match="--max-rate is for one model"):
        choose_together([model(), model(name="b")], [Target(9, None, "max-rate")] * 2)
    with pytest.raises(PlanError, match="takes 1400 MiB and there are 1000"):
        choose_together([model(), model(name="b")], targets, Limits(memory_mib=1000))


# ---- what is asked


@given(st.dictionaries(st.sampled_from(["a", "b.c", "d-1"]), st.floats(1e-3, 1e6), min_size=1))
def test_a_number_for_each_model_is_read(numbers: dict[str, float]) -> None:
    assert parse_each("--p99-ms", [f"{name}={number!r}" for name, number in numbers.items()], list(numbers)) == numbers
    assert set(parse_each("--p99-ms", ["7"], list(numbers)).values()) == {7.0}


@given(st.lists(st.one_of(st.text(max_size=8), st.floats().map(str), st.sampled_from(["a=1", "1", "a=", "=1", "b=2"])), max_size=3))
def test_whatever_is_asked_is_a_target_or_one_sentence(texts: list[str]) -> None:
    try:
        (target,) = make_targets(["a"], texts, ["5"])
    except PlanError as error:
        assert "\n" not in str(error) or any("\n" in text for text in texts)
    else:
        assert 0 < target.p99_ms < math.inf


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_limits_that_cannot_be(value: float, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="--memory-gib"):
        make_limits(tmp_path / "none", [], value)
    with pytest.raises(PlanError, match="--headroom"):
        Limits(headroom=value or 1.0)
    with pytest.raises(PlanError, match="--p99-ms"):
        Target(value, 1)


def test_limits_come_from_the_machine_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(CONFIG)
    limits = make_limits(path, [("a", "1.0")], 2.0)
    assert (limits.memory_mib, limits.queue_limit, limits.other_workers) == (2048, 50, 3)
    assert make_limits(tmp_path / "none", [], None).memory_mib > 100


# ---- what is written


def a_plan(batch_size: int = 4, name: str = "a", version: str = "1.0") -> Plan:
    return Plan(name, version, Target(10, 1), Setting(batch_size, 5, 2), None, True, 1.0, "none", "")


def test_the_plan_is_written_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(CONFIG)
    before = read_configuration(path)
    difference = apply.difference(path, [a_plan()])
    assert path.read_text() == CONFIG
    apply.apply(path, [a_plan()])
    after = read_configuration(path)
    assert {key: value for key, value in after.values.items() if key != "models"} == {
        key: value for key, value in before.values.items() if key != "models"
    }
    assert after.model_settings["other"] == before.model_settings["other"]
    own = {"minWorkers": 2, "maxWorkers": 2, "batchSize": 4, "maxBatchDelay": 5, "responseTimeout": 60}
    assert after.model_settings["a"]["1.0"] == own
    assert any(line.startswith("+") and '"batchSize": 4' in line for line in difference)
    assert apply.difference(path, [a_plan()]) == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("plan", [a_plan(name="b"), a_plan(version="1.1")])
def test_a_model_that_is_not_there_is_not_written(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(CONFIG)
    for act in (apply.difference, apply.apply):
        with pytest.raises(ConfigError, match=r"not written: `models` has no"):
            act(path, [plan])
    assert path.read_text() == CONFIG


def test_killed_at_any_moment_the_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path, plans = tmp_path / "config.properties", [a_plan(4), a_plan(8)]
    path.write_text(CONFIG)
    apply.apply(path, plans[:1])
    whole, chance, seen = set(), random.Random(1), set()
    for plan in plans:
        apply.apply(path, [plan])
        whole.add(path.read_bytes())
    kills = 0
    while kills < 25 or (len(seen) < 2 and kills < 500):  # a slow disk needs more of them to be killed amid work
        began, begun = os.pipe()
        child = os.fork()
        if not child:
            os.write(begun, b"1")
            while True:
                for plan in plans:
                    apply.apply(path, [plan])
        os.read(began, 1)
        time.sleep(chance.uniform(0.0, 0.02))  # the moment is what varies
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(began)
        os.close(begun)
        kills += 1
        seen.add(path.read_bytes())
        assert path.read_bytes() in whole
    assert seen == whole  # it was killed amid work


# ---- the command


def run_command(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", *words])
    if isinstance(done.exception, BatchlineError):
        return 1, done.stdout, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.properties"
    path.write_text(CONFIG.replace('"a"', '"minilm"'))
    return path


def test_the_command_prints_the_promised_keys_and_writes(config: Path) -> None:
    code, out, said = run_command(
        str(RUNS["minilm"]), "--p99-ms", "60", "--rate-per-s", "150", "--memory-gib", "8", "--json", "--write", "--config", str(config)
    )
    content = json.loads(out)
    assert code == 0
    keys = {"batch_size", "max_batch_delay_ms", "workers", "threads_per_worker", "predicted", "binding", "reason", "feasible"}
    assert keys <= content.keys()
    assert {"p50_ms", "p95_ms", "p99_ms", "throughput_per_s", "utilisation", "mean_batch_size"} <= content["predicted"].keys()
    assert content["feasible"] is True
    written = read_configuration(config).model_settings["minilm"]["1.0"]
    assert (written["batchSize"], written["maxWorkers"]) == (content["batch_size"], content["workers"])
    assert "+++" in said


def test_a_target_out_of_reach_is_exit_1_and_writes_nothing(config: Path) -> None:
    before = config.read_bytes()
    code, out, said = run_command(str(RUNS["minilm"]), "--p99-ms", "1", "--rate-per-s", "10", "--write", "--config", str(config))
    assert code == 1
    assert "out of reach" in out
    assert "left as it is" in said
    assert config.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--p99-ms", "0", "--rate-per-s", "1"], "above 0"),
        (["--p99-ms", "nan", "--rate-per-s", "1"], "above 0"),
        (["--p99-ms", "9", "--rate-per-s", "-3"], "above 0"),
        (["--p99-ms", "9", "--rate-per-s", "1e10"], "at most"),
        (["--p99-ms", "9"], "--max-rate"),
        (["--p99-ms", "9", "--rate-per-s", "1", "--max-rate"], "looks for the rate itself"),
        (["--p99-ms", "9", "--rate-per-s", "b=1"], "no run of a model 'b'"),
        (["--p99-ms", "9", "--rate-per-s", "1", "--gpus", "1"], "on the CPU"),
        (["--p99-ms", "9", "--rate-per-s", "1", "--server", "x"], "torchserve or triton"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], said: str, config: Path) -> None:
    code, _, error = run_command(str(RUNS["minilm"]), *words, "--config", str(config))
    assert code == 1
    assert said in error
    assert "\n" not in error


def test_a_run_that_is_not_whole_is_one_sentence(tmp_path: Path) -> None:
    half = read_measured(RUNS["efficientnet_lite0"])
    half.complete = False
    write_measured(tmp_path / "half.json", half)
    (tmp_path / "cut.json").write_text('{"format": "batchline-meas')
    for name, said in (("half", "complete: false"), ("cut", "is cut"), ("none", "cannot read")):
        code, _, error = run_command(str(tmp_path / f"{name}.json"), "--p99-ms", "9", "--rate-per-s", "1")
        assert (code, said in error) == (1, True)
    assert issubclass(PlanError, MeasureError)


def test_what_a_person_reads_fits_80_columns() -> None:
    console = Console(width=80, record=True)
    plan = choose(model(), Target(60, 300))
    show_plan(console, plan)
    text = console.export_text()
    tables = [line for line in text.splitlines() if "█" in line or "choice" in line]
    assert tables
    assert all(len(line) <= 80 for line in tables)
    for word in ("batchSize", "p95", "utilisation", "runner-up", "binding", "Little's law"):
        assert word in text
    assert as_json(plan)["runner_up"]
