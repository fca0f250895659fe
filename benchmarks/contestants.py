"""Every server that takes part: how it is started and ended, what a request to it looks like, how its answer is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import prepare
import psutil
import ts
import wire
from running import Job, NotRun, Running, script, set_group_niceness
from stock import free_ports

from batchline import server
from batchline.errors import BatchlineError
from batchline.load import Target
from batchline.properties import ModelSettings, read_configuration, write_models
from batchline.triton import export

ROOT, PEERS = prepare.ROOT, prepare.PEERS
OUR_LINES = (  # as in config.properties; a longer queue; and what spares a JVM on few cores: one thread for each end, the plain collector
    *("job_queue_size=1000", "decode_input_request=false", "metrics_mode=prometheus", f"metrics_config={ROOT / 'metrics.yaml'}"),
    *("number_of_netty_threads=1", "netty_client_threads=1", "vmargs=-XX:+UseSerialGC"),
)
JVM_WARM_S = 8.0
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Contestant:
    """One server.

    Attributes:
        title: what the table calls it.
        start: starts it; raises NotRun.
        tries: process counts that tuning chooses from.
        batches: whether it makes batches, whose size is tuned then.
        shortest_delay_ms: that it takes, or that makes a difference.
        warm_s: of load after each start, before anything is kept; a JVM compiles what it has run often.
        kind: "server", or "bare" for the loop without one.
        exact: whether its answers must agree with ours; False where its preprocessing is its own.
        packages: whose versions are told.
    """

    title: str
    start: Callable[[Job], Running]
    tries: tuple[int, ...] = (1, 2)
    batches: bool = True
    shortest_delay_ms: float = 0.0
    warm_s: float = 1.5
    kind: str = "server"
    exact: bool = True
    packages: tuple[str, ...] = ()


def torchserve(handler: str, defaults: bool) -> Callable[[Job], Running]:
    """TorchServe with our archive, the plain handler's, or its own image_classifier's.

    With `defaults` its configuration holds nothing but ports and the archive's name: one request a batch, a worker for each
    core, and as many threads in each as PyTorch takes.
    """

    def start(job: Job) -> Running:
        home = Path(tempfile.mkdtemp(prefix="bench-torchserve-"))
        store, scratch = home / "model_store", home / "scratch"
        store.mkdir()
        scratch.mkdir()
        name = archive_for(handler, job, store, scratch)
        config = home / "config.properties"
        config.write_text("\n".join(torchserve_lines(name, defaults, home)) + "\n")
        if not defaults:
            write_models(config, [settings_of(job, name)])
        fixed = "BATCHLINE_THREADS" if handler == "ours" else "OMP_NUM_THREADS"
        threads = {} if defaults else {fixed: str(job.threads)}

        def preferred(*_: object) -> None:
            if starting := server.running(home):
                set_group_niceness([starting.pid], job.niceness)

        def end() -> None:
            server.stop(home)
            shutil.rmtree(home, ignore_errors=True)

        try:
            up = server.launch(read_configuration(config), store, home, preferred, environment=threads)
        except BatchlineError as error:
            end()
            raise NotRun(str(error)) from None

        read = wire.read_stock if name == prepare.stock.STOCK else json.loads
        return Running(Target(f"{up.inference}/predictions/{name}", list(job.bodies)), read, [psutil.Process(up.pid)], end, job)

    return start


def archive_for(handler: str, job: Job, store: Path, scratch: Path) -> str:
    """Puts the archive into the store; returns the model's name."""
    if handler == "ours":
        prepare.our_archive(job.model, job.runtime, store)
        return job.model
    if handler == "stock" and job.model == "efficientnet_lite0":
        return prepare.stock_archive(store, scratch)
    prepare.plain_archive(job.model, job.runtime, store, scratch)
    return job.model


def torchserve_lines(name: str, defaults: bool, home: Path) -> list[str]:
    """A configuration on free ports: TorchServe's own settings, logs included, or those of the checkout's config.properties."""
    ports = free_ports(5)
    lines = [f"{kind}_address=http://127.0.0.1:{port}" for kind, port in zip(("inference", "management", "metrics"), ports, strict=False)]
    lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}", "disable_token_authorization=true"]
    lines += [f"load_models={name}.mar"]
    if not defaults:
        return [*lines, *OUR_LINES]
    with zipfile.ZipFile(Path(ts.__file__).parent / "frontend" / "model-server.jar") as jar:
        (home / "log4j2.xml").write_bytes(jar.read("log4j2.xml"))  # server.launch would give it batchline's
    return [*lines, f"vmargs=-Dlog4j2.configurationFile={home / 'log4j2.xml'}"]


def exported(job: Job) -> Running:
    """Triton with what `batchline export triton` makes of our archive: our handler on its Python backend."""
    home = Path(tempfile.mkdtemp(prefix="bench-export-"))
    config, repository = home / "config.properties", home / "repository"
    prepare.our_archive(job.model, job.runtime, home)
    config.write_text(f"load_models={job.model}.mar\n")
    write_models(config, [settings_of(job, job.model)])
    export(job.model, read_configuration(config), home, repository, device="cpu")
    added = {"BENCH_REPOSITORY": str(repository), "BATCHLINE_THREADS": str(job.threads)}
    start = script("peers/serve_triton.py", "triton", wire.exported, wire.read_triton, "/v2/models/{model}/infer", added)
    try:
        running = start(job)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    stop = running.end

    def end() -> None:
        stop()
        shutil.rmtree(home, ignore_errors=True)

    return replace(running, end=end)


def settings_of(job: Job, name: str) -> ModelSettings:
    """A job's numbers as config.properties has them."""
    return ModelSettings(name, "1.0", job.batch_size, max(1, round(job.delay_ms)), job.processes, job.processes, 120)


def bare(job: Job) -> Running:
    """The loop without a server: started anew for each measurement."""
    raise NotRun("has no server")


def naive(path: str, peer: str) -> Callable[[Job], Running]:
    """Threads as PyTorch chooses them: nobody set any."""
    started = script(path, peer)
    return lambda job: started(replace(job, threads=0))


TORCHSERVE: dict[str, Any] = {"packages": ("torchserve",), "warm_s": JVM_WARM_S, "shortest_delay_ms": 1.0}
CONTESTANTS = {
    "ours": Contestant("batchline on TorchServe", torchserve("ours", False), **TORCHSERVE),
    "ours-triton": Contestant("batchline exported to Triton", exported, shortest_delay_ms=1.0, packages=("nvidia-pytriton",)),
    "torchserve-defaults": Contestant(
        "TorchServe, its defaults", torchserve("stock", True), (CORES,), batches=False, exact=False, **TORCHSERVE
    ),
    "torchserve-tuned": Contestant(
        "TorchServe, stock or plain handler, our settings", torchserve("stock", False), exact=False, **TORCHSERVE
    ),
    "torchserve-plain": Contestant("TorchServe, plain handler, our settings", torchserve("plain", False), **TORCHSERVE),
    "fastapi": Contestant(
        "FastAPI, uvicorn", script("peers/serve_fastapi.py", "fastapi"), (1, 2, 3), batches=False, packages=("fastapi", "uvicorn")
    ),
    "flask": Contestant(
        "Flask, gunicorn", script("peers/serve_flask.py", "flask"), (1, 2, 3), batches=False, packages=("flask", "gunicorn")
    ),
    "litserve": Contestant(
        "LitServe", script("peers/serve_litserve.py", "litserve", wire.as_json(lambda value: {"input": value})), packages=("litserve",)
    ),
    "bentoml": Contestant(
        "BentoML",
        script("peers/serve_bentoml.py", "bentoml", wire.as_json(lambda value: {"inputs": [value]}), lambda body: json.loads(body)[0]),
        shortest_delay_ms=1.0,  # its dispatcher decides by itself
        packages=("bentoml",),
    ),
    "ray": Contestant("Ray Serve", script("peers/serve_ray.py", "ray"), packages=("ray",)),
    "mlserver": Contestant(
        "MLServer",
        script("peers/serve_mlserver.py", "mlserver", wire.v2, wire.read_v2, "/v2/models/{model}/infer"),
        (1, 2, 3),
        packages=("mlserver",),
    ),
    "triton": Contestant(
        "Triton, hand-written Python model",
        script("peers/serve_triton.py", "triton", wire.triton, wire.read_triton, "/v2/models/{model}/infer"),
        packages=("nvidia-pytriton",),
    ),
    "naive-flask": Contestant(
        "naive: Flask, one at a time", naive("naive/flask_server.py", "flask"), (1,), batches=False, packages=("flask",)
    ),
    "naive-fastapi": Contestant(
        "naive: FastAPI, one at a time", naive("naive/fastapi_server.py", "fastapi"), (1,), batches=False, packages=("fastapi",)
    ),
    "bare": Contestant("bare loop, no server", bare, (CORES,), kind="bare"),
}


def bare_per_s(job: Job, seconds: float) -> dict[str, Any]:
    """The loop without a server, once: requests a second on all cores."""
    with tempfile.TemporaryDirectory(prefix="bench-bare-") as folder:
        paths = []
        for number, body in enumerate(job.bodies):
            paths.append(Path(folder, str(number)))
            paths[-1].write_bytes(body)
        command = [sys.executable, str(PEERS / "bare.py"), "--model", job.model, "--runtime", job.runtime, "--seconds", str(seconds)]
        command += ["--processes", str(job.processes), "--batch-size", str(job.batch_size), *map(str, paths)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout.splitlines()[-1])
