"""Without any helper of ours: TorchServe's own commands on what `make archive` built."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from batchline.ports import free_ports
from tests import checkout
from tests.server.served import moved


@pytest.fixture
def short_tmp() -> object:
    """TorchServe's sockets lie in its temp folder, and a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="bl-") as folder:
        yield folder


def test_torchserve_start_curl_stop(tmp_path: Path, short_tmp: str) -> None:
    home, ports = checkout.copy(tmp_path), free_ports(5)
    config = home / "config.properties"
    config.write_text(moved(config.read_text(), ports))
    env = {"TMPDIR": short_tmp, "TEMP": short_tmp, "PATH": f"{home / '.venv/bin'}:{os.environ['PATH']}"}

    def run(command: str) -> str:
        return checkout.run(moved(command, ports), home, **env).stdout

    run("make archive")
    run("torchserve --start --ncs --model-store model_store --ts-config config.properties > console.log 2>&1")
    try:
        run("curl --silent --retry 60 --retry-delay 1 --retry-connrefused --retry-all-errors --fail http://127.0.0.1:8080/ping")
        output = run("curl --silent http://127.0.0.1:8080/predictions/efficientnet_lite0 -T models/efficientnet_lite0/samples/coffee.jpg")
        assert json.loads(output)[0]["label"] == "espresso"
        assert (
            len(json.loads(run("curl --silent http://127.0.0.1:8080/predictions/minilm -T models/minilm/samples/eating.txt"))["embedding"])
            == 384
        )
        assert (
            json.loads(run("curl --silent http://127.0.0.1:8080/predictions/digits -T models/digits/samples/seven.json"))[0]["label"] == "7"
        )
    finally:
        stopped = run("torchserve --stop")
    assert "has stopped" in stopped
