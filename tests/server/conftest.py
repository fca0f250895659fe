"""A scratch checkout for lifecycle tests: archives of a few lines, free ports, a temp folder of its own; and a module's shared servers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from batchline import server
from batchline.ports import free_ports
from tests.server.served import Served, serve

GOOD = """
class Handler:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [{"ok": True} for _ in data]
"""


@dataclass
class Home:
    """One checkout: a folder, a model store, a configuration."""

    folder: Path
    ports: list[int] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "model_store"

    @property
    def config(self) -> Path:
        return self.folder / "config.properties"

    def archive(self, name: str, handler: str, config: str = "") -> None:
        source, staging = self.folder / "src" / f"{name}.py", self.folder / "staging" / name
        for folder in (source.parent, staging, self.store):
            folder.mkdir(parents=True, exist_ok=True)
        source.write_text(handler)
        command = [str(Path(sys.executable).parent / "torch-model-archiver"), "--model-name", name, "--version", "1.0"]
        command += ["--handler", str(source), "--export-path", str(self.store), "--force"]
        if config:
            (source.parent / "model-config.yaml").write_text(config)
            command += ["--config-file", str(source.parent / "model-config.yaml")]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TMPDIR": str(staging)})

    def configure(self, *names: str, token_auth: bool = False, workers: int = 1, more: str = "") -> Path:
        self.ports = free_ports(5)
        keys = ("inference_address", "management_address", "metrics_address")
        lines = [f"{key}=http://127.0.0.1:{port}" for key, port in zip(keys, self.ports, strict=False)]
        lines += [f"grpc_inference_port={self.ports[3]}", f"grpc_management_port={self.ports[4]}"]
        lines += [f"disable_token_authorization={str(not token_auth).lower()}", "enable_model_api=false"]
        lines += ["allowed_urls=file://.*", f"load_models={','.join(f'{name}.mar' for name in names)}"]
        numbers = {"batchSize": 2, "maxBatchDelay": 5, "minWorkers": workers, "maxWorkers": workers, "responseTimeout": 60}
        models = {name: {"1.0": {"marName": f"{name}.mar", **numbers}} for name in names}
        self.config.write_text("\n".join([*lines, f"models={json.dumps(models)}", more]) + "\n")
        return self.config

    def start(self, **kwargs: object) -> server.RunningServer:
        return server.start(self.config, self.store, self.folder, **kwargs)  # type: ignore[arg-type]

    def processes(self) -> list[psutil.Process]:
        """Every process whose command line names this home's temp folder: the JVM and its workers."""
        name = self.temp_name()
        found = []
        for process in psutil.process_iter():
            try:
                if any(name in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def temp_name(self) -> str:
        import hashlib

        return f"batchline-{os.getuid()}-{hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:8]}"

    def nothing_left(self) -> bool:
        temp = Path(tempfile.gettempdir()) / self.temp_name()
        return not self.processes() and not temp.exists() and not (self.folder / ".batchline" / "server.json").exists()


@pytest.fixture(scope="module")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Home]]:
    """Makes homes, and ends what still runs in them."""
    homes: list[Home] = []

    def make() -> Home:
        homes.append(Home(tmp_path_factory.mktemp("home")))
        return homes[-1]

    yield make
    for home in homes:
        server.stop(home.folder)
        shutil.rmtree(home.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The repository's own configuration and archives on one server, for the tests of a module that only ask it."""
    folder = tmp_path_factory.mktemp("served")
    try:
        yield serve(folder)
    finally:
        server.stop(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """`good` with two workers and TorchServe's own settings for everything else, on one server."""
    made = Home(tmp_path_factory.mktemp("plain"))
    made.archive("good", GOOD)
    made.configure("good", workers=2)
    try:
        made.start()
        yield made
    finally:
        server.stop(made.folder)


@pytest.fixture
def home(new_home: Callable[[], Home]) -> Iterator[Home]:
    """A home of one's own with the archive `good`."""
    made = new_home()
    made.archive("good", GOOD)
    yield made
    server.stop(made.folder)
