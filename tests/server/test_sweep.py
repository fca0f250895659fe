"""A sweep on a real TorchServe: the settings it starts are in effect, more load costs more, and beyond capacity it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from batchline.swept import points, read_sweep
from tests.harness import ROOT, STORE


def test_two_settings_take_turns_up_to_refusal(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    command = [sys.executable, "-m", "batchline", "sweep", "efficientnet_lite0", "-o", str(path), "--visits", "1", "--step-s", "0.5"]
    command += ["--setting", "one=1,1,1", "--setting", "four=4,20,1", "--rates", "10,400", "--p99-ms", "5000"]
    folders = ["--config", str(ROOT / "config.properties"), "--model-store", str(STORE), "--models", str(ROOT / "models")]
    done = subprocess.run([*command, *folders], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = read_sweep(path)
    assert found.complete and len(found.steps) == 4
    for name, size in (("one", 1), ("four", 4)):
        light, heavy = points(found, name)
        assert heavy.p50_ms > light.p50_ms
        assert heavy.refused_share > 0.2 and light.refused_share == 0
        assert heavy.mean_batch_size and round(heavy.mean_batch_size) == size
        assert found.capacity_per_s[name] < 400
    assert str(path) in done.stdout.replace("\n", "") and "refused" in done.stdout
