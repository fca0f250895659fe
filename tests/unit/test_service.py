"""run.json -> what a plan knows of a model."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.cost import fit_cost_line
from batchline.errors import MeasureError
from batchline.measured import SERVER, BatchTime, Measured, Plan, RequestTime, RestedTime, SettingRun, read_measured, write_measured
from batchline.queueing import Setting, capacity_per_s
from batchline.runfile import Machine
from batchline.service import correct, estimated_mib, halve, model_of
from batchline.simulate import simulate
from tests.harness import ROOT

RUNS = sorted((ROOT / "results").glob("measure-*.json"))
PLAN = Plan((1, 2, 4, 8), 1, 3, 1.0, 0.5, 2, ((1, 1), (2, 1), (3, 1), (1, 2)), 8, 1.0, 2)


def measured(c: float = 4.0, m: float = 1.0, per_s: tuple[float, ...] = (100.0, 180.0, 180.0), lone_ms: float = 6.5) -> Measured:
    made = Measured("a", "1.0", "0" * 64, PLAN, Machine("a CPU", 2, "Linux", 0.1), {}, complete=True)
    for number in range(3):
        for size in (1, 2, 4, 8):
            stages = {"preprocess": 0.5, "inference": c / 2 + m * size / 2}
            made.batches.append(BatchTime(SERVER, size, number, 1e4, True, stages))
            made.batches += [BatchTime(SERVER, size, number, (c + m * size) * noise, False, stages) for noise in (0.9, 1.0, 1.3)]
        made.requests += [RequestTime(number, 99.0, True), RequestTime(number, lone_ms, False)]
    for workers, each in enumerate(per_s, 1):
        made.settings += [SettingRun(workers, 1, 8, visit, each * factor, 400) for visit, factor in enumerate((0.98, 1.0, 1.05))]
    made.settings.append(SettingRun(1, 2, 8, 0, 125.0, 400))
    return made


def test_batch_times_are_the_medians_and_lines_between() -> None:
    service = model_of(measured()).services[1]
    assert service.batch_ms == pytest.approx([4 + size for size in range(1, 9)])
    bent = measured()
    bent.batches = [replace(b, batch_ms=b.batch_ms / 2) if b.batch_size == 4 else b for b in bent.batches]  # 5, 6, 4, 12 ms
    assert model_of(bent).services[1].batch_ms == pytest.approx([5, 6, 6, 6, 7.5, 9, 10.5, 12])  # never falling


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem.split("-")[1])
def test_a_committed_run_gives_its_own_medians_at_its_own_sizes(run: Path) -> None:
    found = read_measured(run)
    line = fit_cost_line(found.times_ms(SERVER))
    model = model_of(found)
    assert model.largest == max(found.plan.batch_sizes)
    for row in line.table:
        assert model.services[1].batch_ms[row.batch_size - 1] == pytest.approx(row.batch_ms)
    assert list(model.services[1].batch_ms) == sorted(model.services[1].batch_ms)
    assert model.stages_ms.keys() >= {"preprocess", "inference"}


def test_busy_workers_slow_each_other_as_measured() -> None:
    assert model_of(measured()).services[1].slowdown == pytest.approx([1.0, 2 * 100 / 180, 3 * 100 / 180])
    faster_than_ideal = measured(per_s=(100.0, 230.0, 240.0))
    assert model_of(faster_than_ideal).services[1].slowdown == pytest.approx([1.0, 1.0, 1.25])


def test_a_gap_in_the_worker_counts_is_bridged() -> None:
    made = measured()
    made.settings = [SettingRun(n, 1, 8, 0, per_s, 400) for n, per_s in ((1, 100.0), (3, 150.0))]
    assert model_of(made).services[1].slowdown == pytest.approx([1.0, 1.5, 2.0])


def test_small_batches_have_a_slowdown_of_their_own() -> None:
    """Of one request 100, 125, 125/s with 1, 2, 3 workers, of eight 100, 180, 180/s; of two a third of the way between."""
    made = measured()
    made.plan = replace(made.plan, settings_of_one=True)
    made.settings += [SettingRun(n, 1, 1, visit, per_s, 400) for n, per_s in ((1, 100.0), (2, 125.0), (3, 125.0)) for visit in range(3)]
    service = model_of(made).services[1]
    assert service.slowdown == pytest.approx([1.0, 2 * 100 / 180, 3 * 100 / 180])
    assert service.slowdown_of_one == pytest.approx([1.0, 1.6, 2.4])
    assert service.slow(2, 1) == pytest.approx(1.6) and service.slow(2, 8) == service.slow(2, 32) == pytest.approx(2 * 100 / 180)
    assert service.slow(2, 2) == pytest.approx(1.6 + (2 * 100 / 180 - 1.6) / 3)
    assert capacity_per_s(service, Setting(1, 1, 2)) == pytest.approx(2e3 / (service.batch_ms[0] * 1.6 * np.mean(service.noise)))


def test_more_threads_are_the_same_service_at_their_own_pace() -> None:
    services = model_of(measured()).services
    assert set(services) == {1, 2}
    assert services[2].batch_ms == pytest.approx([ms * 100 / 125 for ms in services[1].batch_ms])
    assert services[2].slowdown == (1.0,)  # beyond what was measured, in proportion


def test_noise_is_each_batch_over_its_median_without_warm_ups() -> None:
    noise = model_of(measured()).services[1].noise
    assert len(noise) == 36
    assert sorted({round(value, 6) for value in noise}) == [0.9, 1.0, 1.3]


def test_a_lone_request_is_predicted_right() -> None:
    service = model_of(measured(lone_ms=6.5)).services[1]
    assert service.front_end_ms == pytest.approx(1.5)
    alone = simulate(service, Setting(1, 1, 1), 0.5, requests=2000, replications=2)
    assert alone.latency_ms.p50 == pytest.approx(6.5, rel=0.01)
    assert model_of(measured(lone_ms=3.0)).services[1].front_end_ms == 0.0


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem.split("-")[1])
def test_a_lone_request_of_a_committed_run(run: Path) -> None:
    found = read_measured(run)
    seen = median(request.latency_ms for request in found.requests if not request.warm_up)
    service = replace(model_of(found).services[1], noise=())
    back_to_back = replace(service, rested=tuple((1e-9, more_ms, outside_ms) for _, more_ms, outside_ms in service.rested[:1]))
    alone = simulate(back_to_back, Setting(1, 1, 1), 0.05, requests=4000, replications=2)
    assert alone.latency_ms.p50 == pytest.approx(seen, rel=0.05)


def rested(*seen: tuple[float, float, float], samples: int = 1) -> Measured:
    """T(1) = 5 ms, 3 of them the handler's; a lone request 6.5 ms, 3.4 the handler's; after each pause what is given."""
    made = measured(lone_ms=6.5)
    made.plan = replace(made.plan, samples=samples, pauses=len(seen) * samples)
    made.requests = [replace(request, stages_ms={"inference": 3.4}) for request in made.requests]
    for number in range(3):
        made.rested.append(RestedTime(number, 1.0, 99.0, True, {}))
        for pause_ms, latency_ms, handler_ms in seen:
            made.rested += [
                RestedTime(number, pause_ms, latency_ms * (1 + odd), False, {"inference": handler_ms * (1 + odd)}) for odd in ODD[samples]
            ]
    return made


ODD = {1: (0.0,), 2: (-0.5, 0.5)}  # samples of unlike size


@pytest.mark.parametrize("samples", [1, 2])
def test_what_rest_costs_is_split_between_worker_and_front_end(samples: int) -> None:
    service = model_of(rested((1.0, 6.6, 3.5), (10.0, 7.5, 4.0), (100.0, 9.0, 5.0), samples=samples)).services[1]
    outside_ms = 6.5 - service.batch_ms[0] - 0.4  # the handler takes 0.4 ms more between two lone requests
    assert service.front_end_ms == pytest.approx(outside_ms)
    assert [more for _, *both in service.rested for more in both] == pytest.approx([0.4, 0.0, 0.5, 0.0, 1.0, 0.4, 2.0, 0.9])
    assert [rest_ms - outside_ms for rest_ms, *_ in service.rested] == pytest.approx([0.0, 1.0, 10.4, 100.9])


def test_a_request_after_a_pause_is_predicted_right() -> None:
    service = replace(model_of(rested((1.0, 6.6, 3.5), (10.0, 7.5, 4.0), (100.0, 9.0, 5.0))).services[1], noise=())
    for pause_ms, latency_ms in ((0.0, 6.5), (10.0, 7.5), (100.0, 9.0), (5000.0, 9.0)):
        apart = simulate(service, Setting(1, 1, 1), 1e3 / (pause_ms + latency_ms), requests=2000, arrivals="constant")
        assert apart.latency_ms.p50 == pytest.approx(latency_ms, rel=0.03)


def test_a_slow_model_has_fewer_requests_than_samples() -> None:
    made = rested((10.0, 7.5, 4.0), samples=2)
    made.plan = replace(made.plan, samples=5)
    service = model_of(made).services[1]
    assert service.front_end_ms > 0 and len(service.rested) == 2


def test_rest_never_makes_quicker() -> None:
    service = model_of(rested((1.0, 5.0, 2.0), (10.0, 9.0, 5.0), (100.0, 7.0, 3.0))).services[1]
    assert [list(column) for column in zip(*service.rested, strict=True)] == [
        sorted(column) for column in zip(*service.rested, strict=True)
    ]


def test_a_handler_that_tells_no_stages_rests_in_the_front_end() -> None:
    made = rested((1.0, 6.6, 0.0), (100.0, 9.0, 0.0))
    for kept in (made.batches, made.requests, made.rested):
        kept[:] = [replace(one, stages_ms={}) for one in kept]  # type: ignore[type-var]
    service = model_of(made).services[1]
    assert service.front_end_ms == pytest.approx(1.5)
    assert [more_ms for _, more_ms, _ in service.rested] == [0.0] * len(service.rested)
    assert service.rested[-1][2] == pytest.approx(2.5)


def test_memory_is_measured_or_an_estimate_that_says_so(tmp_path: Path) -> None:
    made = measured()
    archive = tmp_path / "a.mar"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("weights", bytes(10 << 20))
    assert (model_of(made, archive).worker_mib, model_of(made, archive).worker_mib_measured) == (pytest.approx(710), False)
    made.worker_mib, made.gpu = 512.5, True
    write_measured(tmp_path / "run.json", made)
    model = model_of(read_measured(tmp_path / "run.json"), archive)
    assert (model.worker_mib, model.worker_mib_measured, model.gpu) == (512.5, True, True)
    assert estimated_mib(tmp_path / "none.mar") == 700
    (tmp_path / "cut.mar").write_bytes(b"PK")
    with pytest.raises(MeasureError, match=r"cannot read .*cut\.mar"):
        estimated_mib(tmp_path / "cut.mar")


def test_half_a_measurement_says_so() -> None:
    made = measured()
    made.complete = False
    with pytest.raises(MeasureError, match=r"complete: false.*--resume"):
        model_of(made)


@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_a_correction_scales_batches_and_moves_the_front_end(factor: float, more_ms: float) -> None:
    model = model_of(measured())
    corrected = correct(model, factor, more_ms)
    for threads, service in model.services.items():
        assert corrected.services[threads].batch_ms == pytest.approx([ms * factor for ms in service.batch_ms])
        assert corrected.services[threads].front_end_ms == pytest.approx(max(0.0, 1.5 + more_ms))
        assert corrected.services[threads].slowdown == service.slowdown
    assert correct(model) == model


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_correction_that_no_server_gives_is_refused(factor: float) -> None:
    with pytest.raises(MeasureError, match="cannot come from a server"):
        correct(model_of(measured()), factor)


def test_half_a_stage_is_gone_from_every_batch() -> None:
    model = model_of(measured())
    whole, inference = model.services[1].batch_ms, model.stages_ms["inference"]
    assert halve(model, "inference").services[1].batch_ms == pytest.approx([t - i / 2 for t, i in zip(whole, inference, strict=True)])
