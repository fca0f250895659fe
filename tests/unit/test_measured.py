"""run.json and the plan: read back as written, refused where it is none; and `batchline fit` on it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.errors import MeasureError
from batchline.fit import as_json, compare, fit
from batchline.measure import BATCH_SIZES, Subject, begin, make_plan, parse_sizes
from batchline.measure import subject as find_subject
from batchline.measured import FORMAT, BatchTime, Measured, Plan, RequestTime, SettingRun, read_measured, write_measured
from batchline.properties import Configuration
from batchline.recipe import Recipe
from batchline.runfile import Machine
from batchline.turns import Turn, turns_of

MACHINE = Machine("a CPU", 2, "Linux", 0.1)


def plan(samples: int = 1, rounds: int = 4) -> Plan:
    return Plan(
        batch_sizes=(1, 2, 4, 8),
        samples=samples,
        rounds=rounds,
        warm_up_s=1,
        slot_s=0.5,
        least_batches=2,
        settings=((1, 1), (2, 1), (3, 1)),
        setting_batch_size=8,
        setting_s=1,
        setting_visits=2,
    )


def measured(c: float = 4, m: float = 1, samples: int = 1) -> Measured:
    made = Measured("digits", "1.0", "0" * 64, plan(samples), machine=MACHINE, versions={}, complete=True)
    for number in range(4):
        for place, extra in (("server", 1.0), ("handler", 0.0)):
            for size in (1, 2, 4, 8):
                made.batches.append(BatchTime(place, size, number, 1e4, warm_up=True))
                made.batches += [BatchTime(place, size, number, c + extra + m * size, warm_up=False) for _ in range(3)]
        made.requests.append(RequestTime(number, 7.0, warm_up=False))
    made.settings += [SettingRun(w, 1, 8, visit, 100.0 * min(w, 2) + visit, 400) for w in (1, 2, 3) for visit in (0, 1)]
    return made


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_measured(tmp_path / "run.json", measured())
    assert asdict(read_measured(tmp_path / "run.json")) == asdict(measured())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_warm_ups_are_kept_and_not_fitted() -> None:
    found = fit(measured())
    assert (found.server.c_ms, found.server.m_ms) == (pytest.approx(5), pytest.approx(1))
    assert any(batch.warm_up for batch in measured().batches)


def test_the_keys_that_programs_read() -> None:
    found = as_json(fit(measured()))
    assert {"c_ms", "m_ms", "c_ms_interval", "m_ms_interval", "ceiling", "ceiling_interval", "linear", "regime", "table", "scaling"} <= set(
        found
    )
    assert found["linear"] is True and found["regime"] == "overhead-bound" and found["ceiling"] == pytest.approx(6)
    assert [set(row) for row in found["table"]] == [{"batch_size", "batch_ms", "speedup", "speedup_predicted"}] * 4
    assert found["overhead"] == {"batch_ms": pytest.approx(1), "request_ms": pytest.approx(0, abs=1e-9)}
    assert found["handler"]["c_ms"] == pytest.approx(4) and found["request_ms"] == 7
    assert found["scaling"]["peak"]["workers"] == 2
    json.dumps(found, allow_nan=False)


def test_samples_of_different_sizes_are_averaged_over_their_turn() -> None:
    """Alternating requests of 1 and 3 ms: a batch of one is a mean request, or T(1) would be one or the other."""
    made = Measured("two", "1.0", "0" * 64, plan(samples=2), machine=MACHINE, versions={}, complete=True)
    for number in range(4):
        for size in (1, 2, 4, 8):
            times = [5 + (1.0, 3.0)[i % 2] for i in range(7)] if size == 1 else [5 + 2.0 * size] * 3
            made.batches += [BatchTime("server", size, number, time, warm_up=False) for time in times]
    assert made.times_ms("server")[1][0] == [7.0, 7.0, 7.0]
    line = fit(made).server
    assert line.linear and (line.c_ms, line.m_ms) == (pytest.approx(5), pytest.approx(2))


def test_half_a_measurement_is_fitted_and_says_so() -> None:
    made = measured()
    made.complete, made.settings, made.requests = False, [], []
    made.batches = [batch for batch in made.batches if batch.round < 1 and batch.place == "server"]
    found = fit(made)
    assert found.scaling is None and found.handler is None and found.overhead_ms is None and found.request_ms is None
    assert any("--resume" in warning for warning in found.warnings)
    made.batches = [batch for batch in made.batches if batch.batch_size < 4]
    with pytest.raises(MeasureError, match="three batch sizes"):
        fit(made)
    made.batches = []
    with pytest.raises(MeasureError, match="--resume"):
        fit(made)


def spoil(text: str, **changes: Any) -> str:
    return json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (lambda text: text[: len(text) // 2], "cut"),
        (lambda text: "", "cut"),
        (lambda text: "[1, 2]", "names no format"),
        (lambda text: spoil(text, format="batchline-measure/2"), "'batchline-measure/2'"),
        (lambda text: spoil(text, format="batchline-load/1"), "'batchline-load/1'"),
        (lambda text: spoil(text, batches=7), "no whole"),
        (lambda text: spoil(text, plan={}), "no whole"),
        (lambda text: spoil(text, batches=[{"place": "server"}]), "no whole"),
        (lambda text: spoil(text, requests=[{"round": 0, "latency_ms": -1, "warm_up": False}]), "latency_ms"),
        (lambda text: spoil(text, requests=[{"round": 0, "latency_ms": "7", "warm_up": False}]), "latency_ms"),
        (lambda text: text.replace("7.0", "NaN"), "batch_ms"),
        (lambda text: "\udcff", "UTF-8"),
    ],
)
def test_what_is_no_measurement_is_one_clear_line(tmp_path: Path, spoiled: Any, said: str) -> None:
    path = tmp_path / "run.json"
    write_measured(path, measured())
    path.write_bytes(spoiled(path.read_text()).encode("utf-8", "surrogateescape"))
    with pytest.raises(MeasureError) as raised:
        read_measured(path)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_the_command_says_so_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{")
    ran = subprocess.run([sys.executable, "-m", "batchline", "fit", str(path)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert ran.stderr.startswith(f"batchline: {path} is cut")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["format", "plan", "batches", "rounds", "model"]), inner)
        ),
    )
)
def test_no_json_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "run.json"
    for text in (content, {"format": FORMAT, "plan": content}, {"format": FORMAT, **(content if isinstance(content, dict) else {})}):
        path.write_text(json.dumps(text))
        with pytest.raises(MeasureError):
            read_measured(path)


PLACES = [
    "plan.samples",
    "plan.batch_sizes",
    "plan.settings",
    "machine",
    "complete",
    "model",
    "requests.0.latency_ms",
    "settings.0.workers",
]
PLACES += [f"batches.1.{name}" for name in ("round", "batch_size", "place", "batch_ms", "stages_ms")] + ["settings.1.per_s", "plan.rounds"]
VALUES = st.none() | st.booleans() | st.floats() | st.integers(-3, 10**12) | st.just("x") | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(PLACES), VALUES)
def test_a_spoiled_value_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, where: str, value: Any) -> None:
    path = tmp_path_factory.mktemp("spoiled") / "run.json"
    write_measured(path, measured())
    content = json.loads(path.read_text())
    *parents, last = [int(part) if part.isdigit() else part for part in where.split(".")]
    inner = content
    for part in parents:
        inner = inner[part]
    inner[last] = value
    path.write_text(json.dumps(content))
    try:
        json.dumps(as_json(fit(read_measured(path))), allow_nan=False)
    except MeasureError as error:
        assert "\n" not in str(error)


def test_no_file() -> None:
    with pytest.raises(MeasureError, match="batchline measure"):
        read_measured(Path("/nowhere/run.json"))


def test_fit_as_a_person_and_as_a_program_read_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_measured(path, measured())
    command = [sys.executable, "-m", "batchline", "fit", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "c = 5.00 ms a batch" in shown and "ceiling 1 + c/m = 6.00 times" in shown and "TorchServe adds 1.00 ms a batch" in shown
    assert max(map(len, shown.splitlines()[:8])) <= 80
    assert json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)["c_ms"] == pytest.approx(5)


@pytest.fixture
def model(tmp_path: Path) -> Subject:
    """A model folder and an archive; neither is ever opened."""
    folder = tmp_path / "models" / "digits"
    (folder / "samples").mkdir(parents=True)
    for name in ("handler.py", "model-config.yaml", "samples/one"):
        (folder / name).write_text("")
    (tmp_path / "digits.mar").write_bytes(b"archive")
    return find_subject("digits", tmp_path / "models", tmp_path, Configuration(Path("c"), {}, {}))


def test_an_earlier_measurement_is_kept_unless_told(model: Subject, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("precious")
    for resume, said in ((False, "--overwrite"), (True, "no JSON")):
        with pytest.raises(MeasureError, match=said):
            begin(model, path, resume=resume)
        assert path.read_text() == "precious"
    assert begin(model, path, overwrite=True).batches == []
    assert path.read_text() == "precious", "not before there is something to put in its place"


def test_resume_goes_on_with_its_own_plan_only(model: Subject, tmp_path: Path) -> None:
    path, begun = tmp_path / "run.json", measured()
    for changed, said in (("archive_sha256", "has changed"), ("model", "is a measurement of other")):
        write_measured(path, replace(begun, **{changed: "other"}))
        with pytest.raises(MeasureError, match=said):
            begin(model, path, resume=True)
    write_measured(path, replace(begun, archive_sha256=hashlib.sha256(b"archive").hexdigest()))
    assert begin(model, path, resume=True, quick=True).plan == begun.plan


@pytest.mark.parametrize(("missing", "said"), [("digits.mar", "make archive"), ("models/digits/samples/one", "put real ones there")])
def test_nothing_to_measure(model: Subject, tmp_path: Path, missing: str, said: str) -> None:
    (tmp_path / missing).unlink()
    with pytest.raises(MeasureError, match=said):
        find_subject("digits", tmp_path / "models", tmp_path, model.base)


def test_a_folder_that_is_not_there_is_said_before_anything_starts(model: Subject, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="no folder"):
        begin(model, tmp_path / "nowhere" / "run.json")


def test_two_measurements_agree_or_the_machine_is_named() -> None:
    assert compare(fit(measured()), fit(measured()))[-1].startswith("they agree")
    said = compare(fit(measured()), fit(measured(c=9)))
    assert said[0].startswith("c: 5.00 ms") and "10.00 ms" in said[0] and "too noisy" in said[-1]
    bent = fit(measured(c=9))
    assert "compare the tables" in compare(fit(measured()), replace(bent, server=replace(bent.server, linear=False)))[-1]


def subject(threads: int | None = None) -> Subject:
    config = {} if threads is None else {"threads": threads}
    return Subject(Recipe("m", Path("m"), config), Path("m.mar"), [b"x"], Configuration(Path("c"), {}, {}))


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 64, 192])
@pytest.mark.parametrize("quick", [True, False])
def test_plans_for_all_machines(cores: int, quick: bool) -> None:
    made = make_plan(subject(), cores, quick)
    alone = [workers for workers, threads in made.settings if threads == 1]
    assert alone[0] == 1 and alone[-2:] == [cores, cores + 1]
    assert all(workers * threads <= cores for workers, threads in made.settings if threads > 1)
    assert all((1, threads) in made.settings for _, threads in made.settings), "every thread count has its one worker"
    assert len(made.settings) <= 60
    assert quick or (1, cores) in made.settings


def test_threads_that_the_model_does_not_allow_are_not_measured() -> None:
    assert {threads for _, threads in make_plan(subject(threads=1), 8).settings} == {1}


def test_an_older_plan_has_its_turns_as_they_were() -> None:
    made = make_plan(subject(), 2)
    old = list(turns_of(replace(made, pauses=0, settings_of_one=False)))
    assert len(old) == made.rounds * (2 * len(BATCH_SIZES) + 1) + len(made.settings) * made.setting_visits
    assert not any(turn.kind == "rested" for turn in old)


def test_every_turn_stands_in_the_plan_once_and_places_take_turns() -> None:
    made = make_plan(subject(), 2)
    turns = list(turns_of(made))
    settings = [turn for turn in turns if turn.kind == "setting"]
    assert len(turns) == len(set(turns)) == made.rounds * (2 * len(BATCH_SIZES) + 2) + len(settings)
    small = [(turn.workers, turn.threads) for turn in settings if turn.batch_size == 1 and turn.round == 0]
    assert small == [(1, 1), (2, 1), (3, 1)], "batches of one with as many threads as T(B) was measured with"
    assert len(settings) == (len(made.settings) + len(small)) * made.setting_visits
    assert turns == list(turns_of(made)), "the plan is fixed"
    first = [turn for turn in turns if turn.kind in ("server", "handler") and turn.round == 0]
    second = [turn for turn in turns if turn.kind in ("server", "handler") and turn.round == 1]
    assert [turn._replace(round=0) for turn in second] != first, "each round has its own order"
    assert turns[-1] == Turn("setting", made.setting_batch_size, made.setting_visits - 1, 1, 2)


@pytest.mark.parametrize("sizes", [[1, 2], [2, 4, 8], [1], [1, 1, 1, 2]])
def test_batch_sizes_that_give_no_line(sizes: list[int]) -> None:
    with pytest.raises(MeasureError, match="three batch sizes, 1 among them"):
        make_plan(subject(), 2, batch_sizes=sizes)


@pytest.mark.parametrize("text", ["a", "1,,4", "1,0,4", "-1,2,3", "1.5,2,3", "1,2,99999", "²,1,3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(MeasureError, match="whole numbers"):
        parse_sizes(text)


def test_sizes() -> None:
    assert parse_sizes("1, 4,16") == [1, 4, 16] and parse_sizes("") is None
