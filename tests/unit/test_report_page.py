"""report.html: whole without anything outside it, and honest about what it lacks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from batchline.errors import MeasureError
from batchline.load import LoadRun, RequestRecord
from batchline.report import page
from batchline.report.data import Evidence, gather
from batchline.report.steps import cautions, decide
from batchline.runfile import content, put
from batchline.verify import FORMAT
from tests.harness import ROOT

RUNS = sorted((ROOT / "results").glob("measure-*.json"))


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evidence, page.Report, str]:
    (evidence,) = gather([path for path in RUNS if "efficientnet" in path.name])
    made = page.write([evidence], tmp_path_factory.mktemp("report"))
    return evidence, made, made.page.read_text()


def elements(text: str, tag: str) -> list[dict[str, Any]]:
    parser = Elements()
    parser.feed(text)
    return [attributes for name, attributes in parser.found if name == tag]


def test_nothing_is_fetched(report: tuple[Evidence, page.Report, str]) -> None:
    _, _, text = report
    sources = [
        each.get("src") or each.get("srcset") for tag in ("img", "source", "script", "link", "iframe") for each in elements(text, tag)
    ]
    assert all(source is None or source.startswith("data:") for source in sources)
    assert not re.search(r"url\(|@import|fetch\(", text)
    assert not elements(text, "link") and "http" not in re.sub(r"data:[^\"]+", "", text).replace("http-equiv", "")


def test_every_picture_has_words_and_both_looks(report: tuple[Evidence, page.Report, str]) -> None:
    _, made, text = report
    images, sources = elements(text, "img"), elements(text, "source")
    assert len(images) == len(sources) > 5
    assert all(len(image["alt"]) > 20 and int(image["width"]) > 100 for image in images)
    assert all(source["media"] == "(prefers-color-scheme: dark)" for source in sources)
    assert len({path.name for path in made.figures}) == 3 * len(images), "an SVG of each look and a PNG"
    assert all(path.stat().st_size > 1000 for path in made.figures)


def test_the_numbers_are_the_measurement_s(report: tuple[Evidence, page.Report, str]) -> None:
    evidence, _, text = report
    assert evidence.fit
    assert f"c = {evidence.fit.server.c_ms:.3g} ms" in text and f"1 + c/m = {evidence.fit.server.ceiling:.2f}" in text
    spots = [each["aria-label"] for each in elements(text, "button")]
    assert any(f"{evidence.fit.server.c_ms:.3g}" in words for words in spots)


def test_what_lacks_says_which_command_supplies_it(report: tuple[Evidence, page.Report, str]) -> None:
    _, made, text = report
    assert made.missing
    for each in made.missing:
        assert each.command.startswith("batchline ")
        assert each.command.replace(">", "&gt;") in text
    assert decide(made_of(report)).outcome == "unknown"


def made_of(report: tuple[Evidence, page.Report, str]) -> Evidence:
    return report[0]


def test_warnings_stand_on_the_page(report: tuple[Evidence, page.Report, str]) -> None:
    (evidence,) = gather([path for path in RUNS if "minilm" in path.name])
    assert any("T(B) is no line" in line for line in cautions(evidence))


def test_a_user_s_words_are_only_words(tmp_path: Path) -> None:
    evil = Evidence("<script>alert(1)</script>")
    text = page.write([evil], tmp_path).page.read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other/1"}', '{"format": "batchline-measure/1"}'])
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(MeasureError, match=r"run\.json"):
        gather([path])


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="at least one file"):
        page.write([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasureError, match="cannot write to"):
        page.write([Evidence("m")], tmp_path / "file")


def test_a_verification_is_a_verdict_and_its_requests(tmp_path: Path) -> None:
    """`verify -o` in one file: the promise's figure has its distribution."""
    seen = {"latency_ms": {"mean": 4.0, "p50": 4.0, "p90": 5.0, "p95": 6.0, "p99": 9.0}, "p99_interval_ms": [8.0, 11.0]}
    seen |= {"throughput_per_s": 50.0, "mean_batch_size": 1.0, "queue_wait_ms": 0.1, "statuses": {"200": 2}}
    verdict = {"model": "m", "limit_ms": 20.0, "rate_per_s": 50.0, "outcome": "kept", "kept": True, "requests": 2, "over": 0, "seen": seen}
    records = [RequestRecord(0.0, 0.0, 0.003, 0.004, 200), RequestRecord(0.02, 0.02, 0.025, 0.026, 200)]
    run = LoadRun(records, 0.03, 0.04, 50.0, 1, 0.1)
    path = tmp_path / "verify.json"
    put(path, {"format": FORMAT, **verdict, **content("m", run)})
    (evidence,) = gather([path])
    assert evidence.kept and evidence.kept.outcome == "kept"
    assert [len(loaded.records) for loaded in evidence.loads] == [2]
