"""What is printed, at widths from narrow to wide, with colour and without."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from batchline.client import Answer
from batchline.server import RunningServer
from batchline.show import show_answer, show_progress, show_running, show_status
from batchline.status import ModelStatus, Settings, WorkerStatus

STAGES = {"queue": 5.0, "deserialize": 1.0, "preprocess": 4.0, "inference": 80.0, "serialize": 1.0}
RANKING = [{"label": "espresso", "index": 967, "score": 0.951}, {"label": "cup" * 40, "index": 968, "score": 0.01}]
WIDTHS = [20, 40, 80, 200]


def answer(value: object, status: int = 200, stages: dict[str, float] | None = None) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer(status, body, {"content-type": "image/png"}, 0.1, STAGES if stages is None else stages, 3)


def shown(one: Answer, width: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    show_answer(Console(file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None), one)
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value", [RANKING, {"embedding": [0.6, 0.8] * 30}, {"a": {"b": "c" * 300}}, "plain", b"\x89PNG\xff"])
def test_never_wider_than_the_terminal(value: object, width: int) -> None:
    assert max(map(len, shown(answer(value), width).splitlines())) <= width


def test_ranking_has_label_score_and_bar() -> None:
    first = shown(answer(RANKING)).splitlines()[0]
    assert first.startswith("espresso")
    assert "0.951" in first
    assert first.count("█") + first.count("#") > 30


def test_embedding_is_length_and_first_numbers() -> None:
    text = shown(answer({"embedding": [0.6, 0.8], "truncated": True}))
    assert "2 numbers, length 1.0000: 0.6000, 0.8000" in text
    assert '"truncated": true' in text


def test_error_is_one_line() -> None:
    text = shown(answer({"code": 400, "type": "BadInput", "message": "empty body"}, status=400))
    assert text.startswith("400 BadInput: empty body\n")


def test_bytes_that_are_no_text() -> None:
    assert "5 bytes of image/png" in shown(answer(b"\x89PNG\xff"))


def test_stage_bar_fills_the_line_in_proportion() -> None:
    bar = next(line for line in shown(answer("x"), width=101).splitlines() if set(line) <= set("qdpis.") and len(line) > 50)
    assert (len(bar), bar.count("q"), bar.count("p"), bar.count("i"), bar.count(".")) == (100, 5, 4, 80, 9)


def test_stage_legend_names_every_part_and_the_rest() -> None:
    text = " ".join(shown(answer("x")).split())
    for part in ("queue 5.0 ms", "inference 80.0 ms", "network and front end 9.0 ms", "total 100.0 ms, in a batch of 3"):
        assert part in text


def test_no_stages_no_division() -> None:
    assert "no stage times" in shown(answer("x", stages={}))
    assert shown(answer("x", stages={"inference": 500.0}))  # clocks that disagree


def test_a_server_cannot_steer_the_terminal() -> None:
    evil = [{"label": "\x1b[2Jgone\x9b", "score": 0.5}]
    for value in (evil, {"message": "\x1b]0;title\x07"}, b"\x1b[31mred"):
        for status in (200, 400):
            text = shown(answer(value, status))
            assert "\x1b" not in text
            assert "\x9b" not in text


def test_colour_only_where_there_is_colour() -> None:
    assert "\x1b[" in shown(answer(RANKING), colour=True)
    assert "\x1b[" not in shown(answer(RANKING))


def status_text(*models: ModelStatus, width: int = 120) -> str:
    out = io.StringIO()
    show_status(Console(file=out, width=width), models)
    return out.getvalue()


def test_status_shows_wanted_beside_effective() -> None:
    worker = WorkerStatus("9000", 12, "READY", 300 * 2**20)
    same = ModelStatus("digits", "1.0", Settings(32, 1, 1, 1), Settings(32, 1, 1, 1), (worker,), 4)
    other = ModelStatus("minilm", "1.0", Settings(8, 5, 2, 2), Settings(1, 100, 1, 1), (worker,))
    absent = ModelStatus("gone", "1.0", Settings(8, 5, 2, 2), None)
    text = status_text(same, other, absent)
    assert [m.matches for m in (same, other, absent)] == [True, False, False]
    for part in ("8 -> 1", "5 -> 100", "2 -> 1", "8 -> absent", "300", "READY"):
        assert part in text
    assert max(map(len, status_text(same, other, absent, width=50).splitlines())) <= 50


def test_unset_numbers_are_not_a_difference() -> None:
    worker = WorkerStatus("9000", 12, "READY", None)
    assert ModelStatus("m", "1.0", Settings(None, None, None, None), Settings(1, 100, 1, 1), (worker,)).matches
    assert not ModelStatus("m", "1.0", None, Settings(1, 100, 1, 1), (worker,)).matches
    assert not ModelStatus("m", "1.0", Settings(1, 100, 2, 2), Settings(1, 100, 2, 2), (worker,)).matches


def test_progress_says_once_when_a_model_is_ready() -> None:
    out = io.StringIO()
    with show_progress(Console(file=out, width=80)) as update:
        update({}, 0.2)
        update({"digits": (0, 1)}, 1.0)
        update({"digits": (1, 1)}, 2.0)
        update({"digits": (1, 1)}, 3.0)
    assert out.getvalue().count("digits: 1 of 1 workers READY after 2.0 s") == 1


def test_running_prints_a_curl_line_a_model(tmp_path: Path) -> None:
    sample = tmp_path / "digits" / "samples" / "three.json"
    sample.parent.mkdir(parents=True)
    sample.write_text("[]")
    (sample.parent / ".hidden").write_text("")
    out = io.StringIO()
    server = RunningServer(1, 0.0, "config.properties", "http://127.0.0.1:18080", "m", "x", "t", True)
    show_running(Console(file=out, width=60), server, tmp_path, ["digits", "other"])
    assert f"curl http://127.0.0.1:18080/predictions/digits -T {sample}\n" in out.getvalue()
    assert "predictions/other -T FILE\n" in out.getvalue()
    assert "Authorization: Bearer" in out.getvalue()
