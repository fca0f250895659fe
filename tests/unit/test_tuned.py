"""docs/tuned.md holds what results/tune-*.json say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_the_records() -> None:
    records = sorted((ROOT / "results").glob("tune-*.json"))
    command = [sys.executable, str(ROOT / "benchmarks" / "showtune.py"), *map(str, records)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    page = (ROOT / "docs" / "tuned.md").read_text(encoding="utf-8")
    assert len(records) >= 4 and told in page
