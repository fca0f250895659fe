"""What pages quote of results/ is what the files there say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = sorted((ROOT / "results").glob("measure-*.json"))


def told(*command: str) -> str:
    """What a command of the project prints, without blanks at the ends of its lines."""
    environment = {**os.environ, "COLUMNS": "80"}  # as where there is no terminal
    printed = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    return bare(printed)


def bare(text: str) -> str:
    """Without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_tables_of_tuned_are_the_records() -> None:
    records = sorted(map(str, (ROOT / "results").glob("tune-*.json")))
    assert len(records) >= 4
    assert told("benchmarks/showtune.py", *records) in bare((ROOT / "docs" / "tuned.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("record", sorted((ROOT / "results").glob("pace-*.json")), ids=lambda path: path.stem.split("-")[1])
def test_what_tuned_says_of_the_pace_is_the_record(record: Path) -> None:
    assert told("benchmarks/pace.py", "--show", str(record)) in bare((ROOT / "docs" / "tuned.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem.split("-")[1])
def test_the_fits_of_results_are_the_measurements(run: Path) -> None:
    assert told("-m", "batchline", "fit", str(run)) in bare((ROOT / "results" / "README.md").read_text(encoding="utf-8"))
