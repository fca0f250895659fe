"""A real tritonserver: the one in nvidia-pytriton's wheel, on free ports, with models loaded as they are asked for.

The wheel keeps a Python stub a version beside the backend instead of in it, and its stubs are built for numpy 1, while the
rest of the tests may run under numpy 2: so it is installed in an environment of its own, build/bench/venv-triton, that
`python benchmarks/environments.py triton` makes. BATCHLINE_TRITON names the Python of another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from batchline.ports import free_ports
from tests.harness import ROOT

PYTHON = Path(os.environ.get("BATCHLINE_TRITON", ROOT / "build" / "bench" / "venv-triton" / "bin" / "python"))
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = PYTHON.parents[1] / "lib" / f"python{HERE}" / "site-packages"
MISSING = f"no tritonserver: {PACKAGES} has no pytriton; make it with `python benchmarks/environments.py triton`"
START_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What came back: status, JSON of the envelope, bytes of each row of `answer`."""

    status: int
    head: dict[str, Any]
    rows: list[bytes]

    @property
    def error(self) -> str:
        return str(self.head.get("error", ""))


@dataclass(frozen=True)
class Triton:
    """A running server."""

    url: str
    repository: Path
    log: Path
    process: subprocess.Popen[bytes]

    def load(self, model: str) -> str:
        """Loads a model of the repository; returns why it could not be, or nothing."""
        reply = requests.post(f"{self.url}/v2/repository/models/{model}/load", timeout=START_S)
        return "" if reply.ok else str(reply.json()["error"])

    def ready(self, model: str) -> bool:
        return requests.get(f"{self.url}/v2/models/{model}/ready", timeout=10).ok

    def get(self, path: str) -> Any:
        return requests.get(f"{self.url}/v2/{path}", timeout=10).json()

    def executions(self, model: str) -> tuple[int, int]:
        """Rows computed, and batches they came in, since the model was loaded."""
        (stats,) = self.get(f"models/{model}/stats")["model_stats"]
        return stats["inference_count"], stats["execution_count"]

    def post(self, model: str, *bodies: bytes, headers: dict[str, str] | None = None, **parameters: Any) -> Answer:
        """One request, a row a body, in the binary form."""
        data = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
        tensor = {"name": "body", "shape": [len(bodies), 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
        answer = {"name": "answer", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [answer], "parameters": parameters}).encode()
        return self.send(model, head + data, {"Inference-Header-Content-Length": str(len(head)), **(headers or {})})

    def send(self, model: str, body: bytes, headers: dict[str, str]) -> Answer:
        """One KServe v2 request as it stands."""
        reply = requests.post(f"{self.url}/v2/models/{model}/infer", body, headers=headers, timeout=60)
        length = reply.headers.get("Inference-Header-Content-Length")
        head = reply.content if length is None else reply.content[: int(length)]
        return Answer(reply.status_code, json.loads(head), list(_rows(reply.content[len(head) :])))

    def post_all(self, model: str, bodies: list[bytes]) -> list[Answer]:
        """All at once, so that they share batches."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.post(model, body), bodies))


def _rows(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack_from("<I", data)
        yield data[4 : 4 + length]
        data = data[4 + length :]


def packages(folder: Path, without: str = "") -> list[Path]:
    """Folders for the stub's path: the wheel's own numpy first, then links to all of this environment but what is named (a pattern)."""
    here = Path(sysconfig.get_path("purelib"))
    folder.mkdir(parents=True)
    for entry in here.iterdir():
        if not re.match(without or "$", entry.name):
            (folder / entry.name).symlink_to(entry)
    return [PACKAGES, folder]


@contextmanager
def serve(repository: Path, home: Path, paths: list[Path], models: list[str]) -> Iterator[Triton]:
    """Starts the server and waits until it answers and `models` are loaded; skips the test where there is no server."""
    wheel = PACKAGES / "pytriton" / "tritonserver"
    if not wheel.is_dir():
        pytest.skip(MISSING)
    backends, log = home / "backends", home / "triton.log"
    shutil.copytree(wheel / "backends", backends)
    shutil.copy(wheel / "python_backend_stubs" / HERE / "triton_python_backend_stub", backends / "python")
    (port,) = free_ports(1)
    command = [str(wheel / "bin" / "tritonserver"), "--model-repository", str(repository), "--backend-directory", str(backends)]
    command += ["--http-address", "127.0.0.1", "--http-port", str(port), "--allow-grpc", "false", "--allow-metrics", "false"]
    command += ["--model-control-mode", "explicit", "--exit-on-error", "false", "--exit-timeout-secs", "5"]
    command += [word for model in models for word in ("--load-model", model)]
    libraries = [str(PACKAGES / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=home)
    triton = Triton(f"http://127.0.0.1:{port}", repository, log, process)
    try:
        _wait(triton)
        yield triton
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(triton: Triton) -> None:
    """Until every model was loaded or refused: the HTTP service opens after that."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and triton.process.poll() is None:
        try:
            requests.get(f"{triton.url}/v2/health/live", timeout=5)
            return
        except requests.ConnectionError:
            time.sleep(0.05)
    raise AssertionError(f"tritonserver did not start:\n{triton.log.read_text()[-5000:]}")
