"""benchmarks/builds.py changes what it is told to, and nothing else of an archive."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import yaml

from tests.harness import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from builds import build_with


def test_the_last_line_counts_and_the_rest_stays(tmp_path: Path) -> None:
    archive, made = tmp_path / "a.mar", tmp_path / "made"
    made.mkdir()
    content = {"handler.py": b"pass", "model-config.yaml": b"top_k: 5\npin_cores: true", "weights.pt2": bytes(range(256))}
    with zipfile.ZipFile(archive, "w") as packed:
        for name, each in content.items():
            packed.writestr(name, each)
    one, other = build_with(archive, made, "pin_cores: false"), build_with(archive, made, "metrics: false")
    assert one != other
    with zipfile.ZipFile(one) as packed:
        assert yaml.safe_load(packed.read("model-config.yaml")) == {"top_k": 5, "pin_cores": False}
        assert {name: packed.read(name) for name in packed.namelist() if name != "model-config.yaml"} == {
            name: each for name, each in content.items() if name != "model-config.yaml"
        }
    with zipfile.ZipFile(other) as packed:
        assert yaml.safe_load(packed.read("model-config.yaml")) == {"top_k": 5, "pin_cores": True, "metrics": False}
