from __future__ import annotations

import math
import re
import time

import pytest
from batchline.handlers.clock import STAGES, StageClock, queue_seconds
from hypothesis import given
from hypothesis import strategies as st

NOW_S = 1_700_000_000.0
GRAMMAR = re.compile(r'[a-z]+;dur=\d+\.\d{3}(, [a-z]+;dur=\d+\.\d{3})*, batch;desc="\d+"')


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_stage_entered_twice_adds_up_and_the_others_stay_zero() -> None:
    clock = StageClock()
    with clock.stage("inference"):
        spin(0.002)
    first = clock.seconds["inference"]
    with clock.stage("inference"):
        spin(0.002)
    assert first >= 0.002
    assert clock.seconds["inference"] >= first + 0.002
    assert clock.seconds == {**dict.fromkeys(STAGES, 0.0), "inference": clock.seconds["inference"]}


def test_a_stage_that_raises_is_counted() -> None:
    clock = StageClock()
    with pytest.raises(ValueError, match="x"), clock.stage("preprocess"):
        spin(0.001)
        raise ValueError("x")
    assert clock.seconds["preprocess"] >= 0.001


def test_the_header_names_each_stage_in_order() -> None:
    clock = StageClock()
    clock.seconds.update(deserialize=0.0015, preprocess=0.0, inference=1.25, serialize=0.0000004)
    text = clock.server_timing(3)
    assert text == 'deserialize;dur=1.500, preprocess;dur=0.000, inference;dur=1250.000, serialize;dur=0.000, batch;desc="3"'
    assert clock.server_timing(3, 0.5) == "queue;dur=500.000, " + text
    assert GRAMMAR.fullmatch(text)


@given(st.lists(st.floats(0, 1e5), min_size=4, max_size=4), st.none() | st.floats(0, 86400), st.integers(1, 512))
def test_the_header_keeps_its_grammar(seconds: list[float], queue_s: float | None, batch: int) -> None:
    clock = StageClock()
    clock.seconds = dict(zip(STAGES, seconds, strict=True))
    text = clock.server_timing(batch, queue_s)
    assert GRAMMAR.fullmatch(text)
    assert text.isascii()
    assert text.startswith("queue;") is (queue_s is not None)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (f"t={NOW_S - 0.25}", 0.25),
        (f" t={NOW_S - 0.25} ", 0.25),
        (f"{NOW_S - 2}", 2.0),
        (f"t={NOW_S + 0.5}", 0.0),
        (f"t={NOW_S}", 0.0),
        (f"t={NOW_S + 2}", None),
        (f"t={NOW_S - 86401}", None),
        (f"t={NOW_S * 1000}", None),
        ("t=0", None),
        ("t=nan", None),
        ("t=inf", None),
        ("t=-inf", None),
        ("t=1e999", None),
        ("t=", None),
        ("", None),
        ("soon", None),
        ("t=12:30", None),
        ("t=t=1", None),
        (None, None),
    ],
)
def test_queue_seconds(header: str | None, wanted: float | None) -> None:
    found = queue_seconds(header, NOW_S)
    assert found == (wanted if wanted is None else pytest.approx(wanted, abs=1e-6))


@given(st.text(max_size=20) | st.floats().map(lambda value: f"t={value}"))
def test_queue_seconds_takes_any_text(header: str) -> None:
    found = queue_seconds(header, NOW_S)
    assert found is None or (math.isfinite(found) and 0 <= found <= 86400)
