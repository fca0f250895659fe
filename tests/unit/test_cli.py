"""What every verb does with a mistake: one message on stderr, exit status 1, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batchline import cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["batchline", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_every_verb_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    for verb in ("archive", "check-config", "serve", "status", "stop", "predict"):
        assert verb in shown


def test_status_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "status") == 1
    said = capsys.readouterr()
    assert said.err == "batchline: no server of this checkout runs; start one with `make serve`.\n"
    assert said.out == ""


def test_stop_without_a_server_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "stop") == 0
    assert capsys.readouterr().out == "no server of this checkout runs.\n"


def test_predict_without_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text("[]")
    assert run(monkeypatch, "predict", "digits", "a.json") == 1
    assert capsys.readouterr().err.startswith("batchline: ")


def test_sigterm_lets_a_command_tidy_up() -> None:
    """As Ctrl-C does: a measurement that is ended from outside stops the TorchServe that it started."""
    code = """
import os, signal
from batchline import cli

def command():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("tidied up", flush=True)

cli.app = command
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (143, "tidied up\n"), done.stderr
