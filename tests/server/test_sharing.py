"""What workers share: cores, and batches."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator

import pytest
import requests

from batchline import server
from batchline.archive import build
from batchline.client import Client
from batchline.properties import ModelSettings, read_configuration, write_models
from tests.harness import ROOT
from tests.server.served import copy_configuration

DELAY_MS = 300
SHAPE = [[0.0] * 64]
HANDLER = '''
import torch
from batchline.handlers import BatchHandler


class Handler(BatchHandler):
    """Says how many threads torch has, and in which process."""

    def postprocess(self, outputs):
        import os

        return [{"threads": torch.get_num_threads(), "pid": os.getpid()} for _ in outputs]
'''


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("sharing")
    folder = home / "models" / "tell"
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("responseTimeout: 60\nstartupTimeout: 60\n")
    shutil.copy(ROOT / "build" / "digits" / "model.pt2", folder)
    build("tell", home / "models", home / "model_store", home / "build")
    config, _ = copy_configuration(home)
    config.write_text(config.read_text().replace("digits.mar,efficientnet_lite0.mar,minilm.mar", "tell.mar"))
    write_models(config, [ModelSettings("tell", "1.0", 4, DELAY_MS, 1, 1, 60)])
    server.start(config, home / "model_store", home)
    try:
        yield Client.of(read_configuration(config), home)
    finally:
        server.stop(home)


def tell(client: Client) -> dict[str, int]:
    answer = client.predict("tell", json.dumps(SHAPE[0]).encode())
    assert answer.status == 200, answer.body
    return json.loads(answer.body)  # type: ignore[no-any-return]


def test_a_lone_request_waits_the_whole_delay(client: Client) -> None:
    """TorchServe's rule, which every plan of batch size and delay must count with."""
    answer = client.predict("tell", json.dumps(SHAPE[0]).encode())
    assert answer.batch == 1
    assert answer.stages["queue"] >= DELAY_MS * 0.95  # its clock counts whole milliseconds


def test_threads_of_all_workers_together_stay_within_the_cores(client: Client) -> None:
    """Also when the workers are made more while the server runs."""
    import os

    cores = len(os.sched_getaffinity(0))
    assert tell(client)["threads"] == cores
    reply = requests.put(f"{client.management}/models/tell", params={"min_worker": cores, "synchronous": "true"}, timeout=120)
    assert reply.status_code == 200
    seen: dict[int, int] = {}
    until = time.monotonic() + 60
    while time.monotonic() < until and not (len(seen) == cores and sum(seen.values()) <= cores):
        told = tell(client)
        seen[told["pid"]] = told["threads"]
    assert len(seen) == cores and sum(seen.values()) <= cores, seen
