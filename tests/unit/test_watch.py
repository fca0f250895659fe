"""Two looks at a server become a view: rates, means, quantiles; and what is drawn of it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from batchline.errors import MeasureError, ServerError
from batchline.showwatch import lines, picture, watch
from batchline.watch import Histogram, Quantile, Scrape, View, as_json, view

LE = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf)  # TorchServe's, in all its histograms
SECONDS = {"deserialize": 0.001, "preprocess": 0.004, "inference": 0.04, "serialize": 0.002}
DEFINED = (
    "ts_inference_requests_total",
    "ts_queue_latency_microseconds",
    "ts_inference_latency_microseconds",
    "Requests2XX",
    "Requests5XX",
)
OURS = (
    "batchline_stage_duration_seconds",
    "batchline_batch_size",
    "batchline_bad_input_total",
    "batchline_requests_total",
    "batchline_busy_seconds_total",
)
WIDTHS = [20, 40, 80, 200]


def histogram(name: str, labels: str, values: list[float]) -> str:
    text = "".join(f'{name}_bucket{{{labels},le="{"+Inf" if math.isinf(le) else le}",}} {sum(v <= le for v in values)}\n' for le in LE)
    return f"{text}{name}_count{{{labels},}} {len(values)}\n{name}_sum{{{labels},}} {sum(values)}\n"


def page(batches: list[int], model: str = "m", failed: int = 0, ours: bool = True) -> str:
    """As TorchServe 0.12.0 writes it: each request waited 5 ms of its 60."""
    requests = sum(batches)
    text = "".join(f"# HELP {name} x\n# TYPE {name} counter\n" for name in (*DEFINED, *(OURS if ours else ())))
    text += f'Requests2XX{{Level="Host",Hostname="vm",}} {requests}.0\n' + f'Requests5XX{{Level="Host",Hostname="vm",}} {failed}.0\n'
    for version, share in (("default", 0.75), ("1.0", 0.25)):
        labels = f'{{model_name="{model}",model_version="{version}",hostname="vm",}}'
        for name, value in zip(DEFINED, (requests, 5e3 * requests, 6e4 * requests), strict=False):
            text += f"{name}{labels} {value * share}\n"
    if ours and batches:
        text += histogram(OURS[1], f'ModelName="{model}",Hostname="vm"', [float(size) for size in batches])
        for stage in reversed(SECONDS):
            text += histogram(OURS[0], f'ModelName="{model}",stage="{stage}",Hostname="vm"', [SECONDS[stage]] * len(batches))
        text += f'{OURS[2]}{{ModelName="{model}",kind="json",Hostname="vm",}} 2.0\n'
        text += f'{OURS[3]}{{ModelName="{model}",Hostname="vm",}} {requests}.0\n'
        text += f'{OURS[4]}{{ModelName="{model}",Hostname="vm",}} {len(batches) * sum(SECONDS.values())}\n'
    return text


def version(model: str = "m", **changes: Any) -> dict[str, Any]:
    worker = {"status": "READY", "memoryUsage": 500 * 2**20}
    queue = {"pendingRequests": 3, "remainingCapacity": 97}
    entry = {
        "modelName": model,
        "modelVersion": "1.0",
        "batchSize": 8,
        "maxBatchDelay": 5,
        "workers": [worker] * 2,
        "jobQueueStatus": queue,
    }
    return entry | changes


def looks(before: str | None, after: str | None, *entries: dict[str, Any], seconds: float = 2.0) -> View:
    given_ = entries or (version(),)
    return view(Scrape(10.0, before, given_), Scrape(10.0 + seconds, after, given_))


BUSY = looks(page([1, 2]), page([1, 2, *[1] * 5, *[2] * 3, 4, 8, 8, 8]))


def test_rates_means_and_stages() -> None:
    (model,) = BUSY.models
    assert (model.offered_per_s, model.handled_per_s, model.refused_per_s) == (19.5, 19.5, 0.0)
    assert (model.latency_ms, model.queue_ms) == (pytest.approx(60), pytest.approx(5))
    assert [(stage.name, stage.mean_ms) for stage in model.stages] == [(name, pytest.approx(1e3 * s)) for name, s in SECONDS.items()]
    assert model.rest_ms == pytest.approx(60 - 5 - 47)
    assert model.slowest is not None and model.slowest.name == "inference"
    assert model.slowest.p50_ms == Quantile(pytest.approx(37.5), 25.0, 50.0)
    assert model.batches is not None and model.batches.mean == 39 / 12
    assert model.busy == pytest.approx(12 * 0.047 / 2 / 2)
    assert (model.waiting, model.capacity, model.workers, model.ready) == (3, 100, 2, 2)
    assert model.missing == BUSY.missing == () and BUSY.failed_per_s == 0


def test_two_versions_are_one_model() -> None:
    seen = looks(page([]), page([4]), version(), version(modelVersion="2.0", workers=[]))
    assert seen.models[0].versions == ("1.0", "2.0") and seen.models[0].waiting == 6 and seen.models[0].workers == 2


def test_a_model_that_nobody_asked_is_idle() -> None:
    (model,) = looks(page([]), page([])).models
    assert model.offered_per_s == 0 and model.latency_ms is None and model.stages == () and model.missing == ()


def test_after_a_restart_only_what_came_since_counts() -> None:
    (model,) = looks(page([8] * 9), page([1, 1])).models
    assert model.handled_per_s == model.offered_per_s == 1 and model.latency_ms == pytest.approx(60)
    assert binned([0.1]).since(binned([1.0, 2.0])).counts == binned([0.1]).counts


def test_answers_of_the_interval_decide_a_mean() -> None:
    """Twenty requests arrived and one batch of four was answered: their time is divided by four."""
    more = page([4]).replace('model_version="default",hostname="vm",} 3.0', 'model_version="default",hostname="vm",} 19.0')
    (model,) = looks(page([]), more).models
    assert model.offered_per_s == 10 and model.handled_per_s == 2 and model.latency_ms == pytest.approx(60)


def test_5xx_are_the_servers() -> None:
    assert looks(page([1]), page([1, 1], failed=3)).failed_per_s == 1.5


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (page([2]), None, "metrics port does not answer"),
        (None, None, "metrics port does not answer"),
        ("", "", "set metrics_mode=prometheus"),
        (page([2], ours=False), page([2, 2], ours=False), "name batchline's metrics.yaml there"),
        (page([2]), page([1]), "TorchServe was restarted"),
    ],
)
def test_what_is_missing_is_said(before: str | None, after: str | None, said: str) -> None:
    seen = looks(before, after)
    assert said in " ".join(seen.missing)
    assert seen.models[0].waiting == 3 and seen.models[0].ready == 2, "the management API tells that"
    assert said in " ".join(shown(seen, 500).split())


def test_a_handler_that_is_not_ours() -> None:
    other = page([4]).replace('ModelName="m"', 'ModelName="another"')
    (model,) = looks(page([]), other).models
    assert "handler of m reports no batches" in model.missing[0] and model.busy is None
    assert model.latency_ms == pytest.approx(60), "out of TorchServe's own counters"


def test_a_page_that_is_not_prometheus() -> None:
    with pytest.raises(MeasureError, match="line 1 of the metrics page"):
        looks("<html>", "<html>")
    with pytest.raises(MeasureError, match="some time apart"):
        looks(page([]), page([]), seconds=0.0)


def binned(values: list[float]) -> Histogram:
    counts = np.diff([0.0, *(sum(value <= bound for value in values) for bound in LE)])
    return Histogram(LE, tuple(counts.tolist()), sum(values))


@given(st.lists(st.floats(0.0001, 20), min_size=1), st.floats(0.01, 1))
def test_a_quantile_lies_in_its_bucket_and_so_does_the_true_one(values: list[float], share: float) -> None:
    found = binned(values).quantile(share)
    assert found is not None
    true = sorted(values)[max(math.ceil(share * len(values) - 1e-9), 1) - 1]
    assert found.low <= found.value <= found.high
    assert found.low < true <= found.high


def test_linear_within_a_bucket_as_prometheus_has_it() -> None:
    """The example of its documentation's rule: a rank of 3 of the 4 in (10, 20] is three quarters of the way."""
    assert Histogram((10.0, 20.0, math.inf), (0.0, 4.0, 0.0), 60.0).quantile(0.75) == Quantile(17.5, 10.0, 20.0)
    assert Histogram((10.0, 20.0, math.inf), (4.0, 0.0, 0.0), 60.0).quantile(0.5) == Quantile(5.0, 0.0, 10.0)
    assert Histogram((10.0, 20.0, math.inf), (1.0, 0.0, 9.0), 60.0).quantile(0.5) == Quantile(20.0, 20.0, math.inf)
    assert Histogram((10.0, math.inf), (0.0, 0.0), 0.0).quantile(0.5) is None


@given(st.lists(st.floats(0, 20)), st.lists(st.floats(0, 20)))
def test_an_interval_is_what_came_after(first: list[float], then: list[float]) -> None:
    assert binned(first + then).since(binned(first)).counts == binned(then).counts


def shown(seen: View, width: int = 80, rows: int | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(picture(console, seen, "http://127.0.0.1:8080", rows))
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("after", [None, "", page([1, 2, *range(1, 30)]), page([1, 2]), page([1])])
def test_never_wider_than_the_terminal(after: str | None, width: int) -> None:
    seen = looks(page([1, 2]), after, version(), version("a_model_with_a_name_that_is_long" * 3))
    assert max(map(len, shown(seen, width).splitlines())) <= width
    assert max(map(len, shown(seen, width, rows=5).splitlines())) <= width


def test_what_is_drawn() -> None:
    text = shown(BUSY, 100)
    assert "19.5/s offered, 19.5/s handled" in text
    assert "3 of 100 jobs waiting, queue time 5.0 ms mean" in text
    assert "p50 37.5, p99 49.8 ms a batch, of 12 batches" in text
    assert "2 of 2 READY, 14% busy, 500 + 500 MiB" in text
    assert "mean 3.25:  1 ##### 42%  2 ### 25%  3-5 # 8%  6-7 0%  8 ### 25%" in text
    bar = next(line for line in text.splitlines() if "iii" in line).removeprefix("  stages").strip()
    assert (len(bar), bar.count("i")) == (84, pytest.approx(84 * 40 / 60, abs=1))


def test_a_quantile_below_the_first_bucket_is_not_made_up() -> None:
    """digits' stages take 0.2 ms; Prometheus' rule would say 2.5."""
    (model,) = BUSY.models
    first = Quantile(2.5, 0.0, 5.0)
    quick = replace(model, stages=(replace(model.stages[0], mean_ms=0.2, p50_ms=first, p99_ms=Quantile(1e4, 1e4, math.inf)),))
    assert "p50 <5, p99 >10000 ms a batch" in shown(replace(BUSY, models=(quick,)))


def test_a_row_a_model_where_the_terminal_is_too_low() -> None:
    many = replace(BUSY, models=BUSY.models * 6)
    head, names, *rows = shown(many, 80, rows=24).splitlines()
    assert "6 models" in head and "req/s mean queue slowest p50/p99 batch wait ready busy" in " ".join(names.split())
    assert [row.split() for row in rows] == [["m", "19.5", "60.0", "5.0", "inference", "37.5/49.8", "3.25", "3", "2/2", "14%"]] * 6
    assert "waiting 3, 2 of 2 READY" in " ".join(shown(many, 40, rows=24).split()), "too narrow for columns"
    assert lines(BUSY) == [
        "m 19.5/s offered, latency 60.0 ms, queue 5.0 ms, inference p50 37.5 p99 49.8 ms, batch 3.25, waiting 3, "
        "2 of 2 READY, 14% busy, 500 + 500 MiB"
    ]


def endless(*seen: View, then: BaseException) -> Iterator[View]:
    yield from seen
    raise then


def test_without_a_terminal_a_line_an_interval() -> None:
    out = io.StringIO()
    lacking = replace(BUSY, missing=("no port",))
    watch(Console(file=out, width=40), endless(lacking, lacking, then=KeyboardInterrupt()), "here")
    missing, *rest = out.getvalue().splitlines()
    assert missing == "no port", "once"
    assert len(rest) == 2 and all(" m 19.5/s offered" in line for line in rest)


def test_the_last_view_stays_when_the_server_goes() -> None:
    out = io.StringIO()
    with pytest.raises(ServerError):
        watch(Console(file=out, force_terminal=True, width=80, height=40), endless(BUSY, then=ServerError("gone")), "here")
    assert "19.5/s offered" in out.getvalue() and out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")


def test_json_is_strict() -> None:
    (model,) = json.loads(json.dumps(as_json(BUSY), allow_nan=False))["models"]
    assert model["batches"]["bounds"][-1] is None and model["batches"]["counts"][-1] == 0
    assert model["mean_batch_size"] == 3.25 and model["rest_ms"] == pytest.approx(8)
