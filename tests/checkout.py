"""A copy of this checkout as a user would have it: the tracked files, this environment as .venv, what was built kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT


def files() -> list[Path]:
    """What git tracks or would track, relative to the checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy(to: Path) -> Path:
    """Copies the checkout, times included, so that make sees what it sees here; what mypy and ruff know of it goes along."""
    stamp = f"{sys.prefix}/.batchline-setup"
    fresh = subprocess.run(["make", "-q", f"VENV={sys.prefix}", stamp], cwd=ROOT, check=False).returncode == 0
    assert fresh, "`make setup` first: a copy shares this environment, and make would install the copy into it"
    for name in files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    for folder in ("build", "model_store", ".mypy_cache", ".ruff_cache"):
        if (ROOT / folder).is_dir():
            # copytree keeps times too; no command that is run in a copy uses the environments of other servers
            shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("venv-*"), dirs_exist_ok=True)
    (to / ".venv").symlink_to(sys.prefix)
    return to


def run(command: str, cwd: Path, check: bool = True, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
    """A shell command as a person in that folder would type it; its output is one text."""
    environment = (
        {key: value for key, value in os.environ.items() if not re.match("PYTEST|MAKE|MFLAGS|COLUMNS", key)} | {"COLUMNS": "100"} | env
    )
    done = subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    assert not check or done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}"
    return done
