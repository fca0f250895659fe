"""Triton from nvidia-pytriton's wheel, which carries the real tritonserver: a Python model with dynamic batching.

PyTriton's own Python layer is not used. The wheel keeps one Python stub a version beside the backend instead of in it.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from work import Settings, hand_down, settings

HERE = Path(__file__).resolve().parent
EXPORTED = "BENCH_REPOSITORY"  # environment variable: a model repository of `batchline export triton`

CONFIG = """
name: "{model}"
backend: "python"
max_batch_size: {batch_size}
input [ {{ name: "input", data_type: {kind}, dims: [ {size} ] }} ]
output [ {{ name: "answer", data_type: TYPE_STRING, dims: [ 1 ] }} ]
instance_group [ {{ count: {processes}, kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""


def repository(given: Settings, folder: Path) -> Path:
    """What was exported, else folder/models/MODEL with its configuration and the Python model."""
    if EXPORTED in os.environ:
        return Path(os.environ[EXPORTED])
    home = folder / "models" / given.model
    (home / "1").mkdir(parents=True)
    kind, size = ("TYPE_FP32", 64) if given.model == "digits" else ("TYPE_STRING", 1)
    numbers = {"batch_size": given.batch_size, "processes": given.processes, "delay_us": round(given.delay_ms * 1000)}
    (home / "config.pbtxt").write_text(CONFIG.format(model=given.model, kind=kind, size=size, **numbers))
    shutil.copy(HERE / "triton_model.py", home / "1" / "model.py")
    return home.parent


def backends(wheel: Path, folder: Path) -> Path:
    """A copy of the backend folder with this Python's stub in it."""
    copied = folder / "backends"
    shutil.copytree(wheel / "tritonserver" / "backends", copied)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(wheel / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub", copied / "python")
    return copied


def main() -> None:
    """Writes the repository and becomes tritonserver."""
    given = settings()
    packages = Path(sysconfig.get_path("purelib"))
    wheel, folder = packages / "pytriton", Path(tempfile.mkdtemp(prefix="bench-triton-", dir=Path.cwd()))
    libraries = [str(packages / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    paths = [str(HERE), str(packages), *(packages / "zz_batchline.pth").read_text().split()]
    environment = hand_down(given) | {"LD_LIBRARY_PATH": ":".join(libraries), "BENCH_PATHS": ":".join(paths)}
    environment |= {"PYTHONPATH": ":".join(paths)}  # for an exported model, whose adapter reads it
    server = str(wheel / "tritonserver" / "bin" / "tritonserver")
    command = [server, "--model-repository", str(repository(given, folder)), "--backend-directory", str(backends(wheel, folder))]
    command += [
        "--http-address",
        "127.0.0.1",
        "--http-port",
        str(given.port),
        "--allow-grpc",
        "false",
        "--allow-metrics",
        "false",
        "--exit-timeout-secs",
        "3",
    ]
    os.execve(server, command, environment)


if __name__ == "__main__":
    main()
