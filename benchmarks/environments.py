"""Makes an environment of its own for every peer: `make bench-setup`, or `python benchmarks/environments.py [PEER ...]`.

A peer's packages go to build/bench/venv-PEER. torch, torchvision, numpy and onnxruntime are not downloaded again: a .pth file
appends the main environment's site-packages after the peer's own, so every peer computes with the same torch. A peer that
cannot be installed is named with pip's own words, and the others go on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "build" / "bench"

# What pip is asked for. Not pinned: each peer at its best today; results.json names the versions that ran.
PEERS = {
    "fastapi": ["fastapi", "uvicorn[standard]"],
    "flask": ["flask", "gunicorn"],
    "litserve": ["litserve"],
    "bentoml": ["bentoml"],
    "ray": ["ray[serve]"],
    "mlserver": ["mlserver", "uvloop<0.22"],  # its workers ask for an event loop in a way that newer ones refuse
    "triton": ["nvidia-pytriton", "numpy<2"],  # under numpy 2 its stub makes tensors whose answers fail
}
NO_DEPENDENCIES = {"triton"}  # only the tritonserver in the wheel is used


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return BENCH / f"venv-{peer}" / "bin" / "python"


def make(peer: str) -> str:
    """Makes or completes one environment; returns why it failed, or nothing."""
    python = python_of(peer)
    if not python.exists():
        run([sys.executable, "-m", "venv", str(python.parents[1])])
    own = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    (own / "zz_batchline.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--no-deps"] if peer in NO_DEPENDENCIES else []
    done = run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *PEERS[peer]], check=False)
    if done.returncode:
        return last_words(done.stderr)
    return "" if peer != "triton" else last_words(run([str(python), "-c", "import torch"], check=False).stderr)


def run(command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command with its output kept."""
    return subprocess.run(command, check=check, capture_output=True, text=True)


def last_words(text: str) -> str:
    """The line of an error output that says what is wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "")


def main(wanted: list[str]) -> None:
    """Every peer, or those that were named."""
    for peer in wanted or PEERS:
        if peer not in PEERS:
            raise SystemExit(f"there is no peer {peer}; known are {', '.join(PEERS)}")
        problem = make(peer)
        print(f"{peer}: {problem or 'ready'}", flush=True)
    if not shutil.which("wrk"):
        print("wrk is not here: the digits benchmark then uses batchline's own generator (Debian: apt-get install wrk)")


if __name__ == "__main__":
    main(sys.argv[1:])
