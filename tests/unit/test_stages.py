"""The sum of stages as arithmetic: parts whose sizes are known, put into records and counters, come out again."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from rich.console import Console

from batchline.advice import ADVICE, advise
from batchline.counters import Counters, parse, read_counters, requests_in_all
from batchline.errors import LoadError, MeasureError
from batchline.journey import Measured, Offered, Settings
from batchline.load import LoadRun, RequestRecord
from batchline.showstages import show_journey
from batchline.stages import HANDLER_STAGES, Journey, add_up, as_json

SETTINGS = Settings(batch_size=4, max_batch_delay_ms=5, workers=1)
NAMES = ["network", "wait", *HANDLER_STAGES, "front end"]
milliseconds = st.floats(0.0, 500.0)


def record(taken_ms: float, stages_ms: dict[str, float] | None = None, receiving_ms: float = 0.0, status: int = 200) -> RequestRecord:
    done_s = 1.0 + taken_ms / 1e3
    return RequestRecord(1.0, 1.0, done_s - receiving_ms / 1e3, done_s, status, batch_size=1, stages_ms=stages_ms or {})


def measured(
    *,
    round_trip: float = 0.2,
    sending: float = 0.5,
    receiving: float = 0.3,
    http: float = 1.0,
    wait: float = 5.0,
    stages: tuple[float, ...] | None = (0.1, 4.0, 18.0, 0.2),
    handover: float = 2.0,
    unexplained: float = 0.0,
    count: int = 10,
) -> Measured:
    """A run whose every request has these parts, milliseconds."""
    told = dict(zip(HANDLER_STAGES, stages, strict=True)) if stages else {}
    server = wait + sum(stages or ()) + handover
    bare = round_trip + sending + http
    total = bare + receiving + server + unexplained
    queue = {"queue": wait + handover / 2 + bare / 2} if told else {}
    return Measured(
        model="m",
        requests=[record(total, {**queue, **told}, receiving)] * count,
        bare=[record(bare)] * count,
        empty=[record(bare - sending)] * count,
        round_trip_ms=round_trip,
        before=Counters(7, 70, 700, 0),
        after=Counters(7 + count, 70 + wait * count, 700 + server * count, 0),
        settings=SETTINGS,
    )


def of(journey: Journey) -> dict[str, float]:
    return {part.name: part.ms for part in journey.parts}


def test_what_was_put_in_comes_out() -> None:
    found = add_up(measured())
    expected = dict(zip(NAMES, (1.0, 5.0, 0.1, 4.0, 18.0, 0.2, 3.0), strict=True))
    assert of(found) == pytest.approx(expected)
    assert (found.total_ms, found.http_ms, found.handover_ms) == (pytest.approx(31.3), pytest.approx(1.0), pytest.approx(2.0))
    assert found.covered == pytest.approx(1.0) and found.unexplained_ms == pytest.approx(0.0, abs=1e-9)
    assert found.dominant == "inference"
    assert (found.halving_saves_ms, found.halving_saves_share) == (pytest.approx(9.0), pytest.approx(9 / 31.3))
    assert found.doubts == () and found.reports_stages and found.lone and found.requests == 10


@given(*[milliseconds] * 6, st.tuples(*[milliseconds] * 4), st.floats(-0.4, 5.0))
def test_parts_and_what_is_unexplained_are_the_total(
    round_trip: float,
    sending: float,
    http: float,
    receiving: float,
    wait: float,
    handover: float,
    stages: tuple[float, ...],
    unexplained: float,
) -> None:
    given_run = measured(
        round_trip=round_trip,
        sending=sending,
        http=http + 1,
        receiving=receiving,
        wait=wait,
        handover=handover,
        stages=stages,
        unexplained=unexplained,
    )
    found = add_up(given_run)
    assert sum(of(found).values()) + found.unexplained_ms == pytest.approx(found.total_ms)
    assert found.unexplained_ms == pytest.approx(unexplained, abs=1e-6)
    assert max(of(found).values()) == of(found)[found.dominant]
    assert json.loads(json.dumps(as_json(found), allow_nan=False))["stages"].keys() == set(NAMES)


@pytest.mark.parametrize("zero", HANDLER_STAGES)
def test_a_stage_that_is_zero_changes_nothing_else(zero: str) -> None:
    sizes = dict(zip(HANDLER_STAGES, (0.1, 4.0, 18.0, 0.2), strict=True))
    whole, less = add_up(measured()), add_up(measured(stages=tuple({**sizes, zero: 0.0}.values())))
    assert of(less) == pytest.approx({**of(whole), zero: 0.0})
    assert less.total_ms == pytest.approx(whole.total_ms - sizes[zero])


@pytest.mark.parametrize(("missing", "doubted"), [(0.3, False), (-0.3, False), (1.0, True), (-1.0, True)])
def test_parts_that_do_not_add_up_are_said(missing: float, doubted: bool) -> None:
    """Of some 31 ms, two in a hundred are 0.6."""
    doubts = add_up(measured(unexplained=missing)).doubts
    assert bool(doubts) is doubted
    assert all("add up to" in doubt for doubt in doubts)


def test_counters_that_contradict_the_handler_are_said() -> None:
    doubts = add_up(measured(handover=-3.0)).doubts
    assert any("3.00 ms more than TorchServe's whole time" in doubt for doubt in doubts)


def test_other_clients_are_noticed() -> None:
    run = measured()
    more = replace(run, after=replace(run.after, requests=run.after.requests + 3))
    versioned = replace(run, after=replace(run.after, others=2))
    assert any(doubt.startswith("3 requests of other clients") for doubt in add_up(more).doubts)
    assert any(doubt.startswith("2 requests of other clients") for doubt in add_up(versioned).doubts)


def test_a_refusal_by_the_front_end_is_left_out_and_said() -> None:
    """It is counted as a request and adds no time; a refusal by the handler is a journey like any other."""
    run = measured()
    refused = replace(run, requests=[*run.requests, record(1, status=503)], after=replace(run.after, requests=run.after.requests + 1))
    found = add_up(refused)
    assert of(found) == pytest.approx(of(add_up(run)))
    assert any("1 of 11 requests were answered by no worker (503: 1)" in doubt for doubt in found.doubts)
    bad = replace(run, requests=[replace(record_, status=400) for record_ in run.requests])
    assert add_up(bad) == add_up(run)


def test_a_server_that_was_started_anew() -> None:
    run = measured()
    with pytest.raises(MeasureError, match="started anew"):
        add_up(replace(run, before=replace(run.before, requests=100)))


def test_clocks_that_disagree_are_said() -> None:
    run = measured()
    for queue in (0.0, 60.0):
        told = [replace(one, stages_ms={**one.stages_ms, "queue": queue}) for one in run.requests]
        assert any("clocks agree" in doubt for doubt in add_up(replace(run, requests=told)).doubts)


def test_a_handler_that_says_nothing_is_one_part_with_the_worker() -> None:
    found = add_up(measured(stages=None, handover=24.3))
    assert not found.reports_stages and found.doubts == ()
    assert of(found) == pytest.approx({"network": 1.0, "wait": 5.0, "worker": 24.3, "front end": 1.0})
    assert found.dominant == "worker" and "batchline.handlers" in found.advice


def test_stages_of_another_name_are_none_of_ours() -> None:
    run = measured(stages=None)
    named = [replace(one, stages_ms={"db": 3.0}) for one in run.requests]
    assert not add_up(replace(run, requests=named)).reports_stages


def test_what_some_answers_do_not_tell_is_said() -> None:
    run = measured()
    silent = [replace(run.requests[0], stages_ms={}), *run.requests[1:]]
    assert any("1 of 10 answers told no stages" in doubt for doubt in add_up(replace(run, requests=silent)).doubts)


def test_a_generator_that_was_late_is_said() -> None:
    run = measured()
    late = [replace(one, intended_s=one.sent_s - 0.5) for one in run.requests]
    loaded = replace(run, requests=late, load=LoadRun(late, 1.0, 1.0, 10.0, 1, 0.1))
    found = add_up(loaded)
    assert found.total_ms == pytest.approx(add_up(run).total_ms), "from the send, not from when it was due"
    assert not found.lone and any("late" in doubt for doubt in found.doubts)


@pytest.mark.parametrize(
    ("ms", "settings", "lone", "said"),
    [
        (5.2, SETTINGS, True, "pays all of maxBatchDelay, 5 ms"),
        (5.2, replace(SETTINGS, batch_size=1), True, "waits for a worker that serves others"),
        (3.0, SETTINGS, False, "lower maxBatchDelay"),
        (30.0, SETTINGS, False, "raise batchSize (4)"),
        (30.0, replace(SETTINGS, batch_size=1), False, "raise batchSize (1)"),
    ],
)
def test_advice_on_a_wait(ms: float, settings: Settings, lone: bool, said: str) -> None:
    assert said in advise("wait", "m", ms, settings, lone)


def test_every_part_has_its_advice() -> None:
    for run in (measured(), measured(stages=None)):
        for part in add_up(run).parts:
            assert part.name == "wait" or ADVICE[part.name].count(". ") == 0


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (Offered(duration_s=0.5), "1 at least"),
        (Offered(duration_s=float("nan")), "1 at least"),
        (Offered(rate_per_s=5, clients=2), "not both"),
        (Offered(clients=0), "1 at least, not 0"),
    ],
)
def test_a_run_that_cannot_be(offered: Offered, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        offered.check()


def test_one_client_is_alone() -> None:
    assert Offered().lone and Offered(clients=1).lone
    assert not Offered(clients=2).lone and not Offered(rate_per_s=1).lone


# ---- what is printed


def shown(journey: Journey, width: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    show_journey(Console(file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None), journey)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("stages", [(0.0, 0.0, 45.0, 0.0), None])
def test_never_wider_than_the_terminal(width: int, stages: tuple[float, ...] | None) -> None:
    lines = shown(add_up(measured(stages=stages, unexplained=3)), width).splitlines()
    assert max(map(len, lines)) <= width


def test_the_bar_is_in_proportion_and_readable_without_colour() -> None:
    run = measured(round_trip=5, sending=0, receiving=0, http=5, wait=10, stages=(0, 20, 50, 0), handover=5, unexplained=5)
    text = shown(add_up(run), width=101)
    bar = next(line for line in text.splitlines() if set(line) <= set("nwdpisf?") and len(line) > 50)
    assert [bar.count(letter) for letter in "nwdpisf?"] == [5, 10, 0, 20, 50, 0, 10, 5]
    for part in (
        "n network",
        "w wait for the batch",
        "T_inference",
        "50.00 ms",
        "50.0%",
        "<- largest",
        "Half of inference would save 25.00 ms, 25.0%",
    ):
        assert part in text
    assert "\x1b" not in text and "\x1b[" in shown(add_up(run), colour=True)


def test_less_than_nothing_is_shown() -> None:
    text = shown(add_up(measured(unexplained=-2.0)))
    assert "-2.00 ms" in text and "DOUBTFUL" in text and "ADDS UP" not in text


def test_a_silent_handler_is_said() -> None:
    text = " ".join(shown(add_up(measured(stages=None))).split())
    assert "does not report its stages" in text and "worker and handler" in text and "ADDS UP" in text


# ---- Prometheus' text

PAGE = """# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count
# TYPE ts_inference_requests_total counter
ts_inference_requests_total{model_name="m",model_version="default",hostname="h",} 12.0
ts_inference_requests_total{model_name="m",model_version="1.0",hostname="h",} 3.0
ts_inference_requests_total{model_name="mm",model_version="default",hostname="h",} 99.0
ts_queue_latency_microseconds{model_name="m",model_version="default",hostname="h",} 1391695.623
ts_inference_latency_microseconds{model_name="m",model_version="default",hostname="h",} 3128301.5
ts_inference_latency_microseconds{model_name="m",model_version="1.0",hostname="h",} 1.0
"""


def test_the_counters_of_one_model() -> None:
    assert read_counters(PAGE, "m") == Counters(12.0, pytest.approx(1391.695623), pytest.approx(3128.3015), 3.0)
    assert requests_in_all(PAGE) == 12 + 3 + 99 and requests_in_all("") == 0


@pytest.mark.parametrize("name", ["ts_inference_requests_total", "ts_queue_latency_microseconds", "ts_inference_latency_microseconds"])
def test_a_counter_that_is_missing(name: str) -> None:
    page = "\n".join(line for line in PAGE.splitlines() if not line.startswith(f'{name}{{model_name="m",model_version="default"'))
    with pytest.raises(MeasureError, match=f"no {name} of m: set metrics_mode=prometheus"):
        read_counters(page, "m")


@pytest.mark.parametrize("line", ["<html>", "a{b} 1", 'a{b="c} 1', "a one", "a 1 2 3", '{b="c"} 1', 'a{b="c";d="e"} 1'])
def test_what_is_no_metrics_page(line: str) -> None:
    with pytest.raises(MeasureError, match="line 2 of the metrics page"):
        list(parse(f"a 1\n{line}\n"))


@given(st.dictionaries(st.text(), st.floats(0, allow_nan=False, allow_infinity=False), max_size=5))
def test_labels_of_any_text_are_read_back(values: dict[str, float]) -> None:
    """As Prometheus' own library writes them."""
    registry = CollectorRegistry()
    counter = Counter("c", "help", ["label"], registry=registry)
    for label, value in values.items():
        counter.labels(label).inc(value)
    try:
        page = generate_latest(registry).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return
    read = {sample.labels["label"]: sample.value for sample in parse(page) if sample.name == "c_total"}
    assert read == values


def test_a_comma_after_the_last_label() -> None:
    """TorchServe's own lines have a comma before the brace; Python's library writes none."""
    assert len(list(parse(PAGE))) == 6
