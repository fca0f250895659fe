"""What workers share: cores, and batches."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

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
    """Says how many threads torch has, in which process, and on which cores."""

    def postprocess(self, outputs):
        import os

        threads = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        return [{"threads": torch.get_num_threads(), "pid": os.getpid(), "cores": sorted(set.union(*threads))} for _ in outputs]
'''


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("sharing")
    folder = home / "models" / "tell"
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("responseTimeout: 60\nstartupTimeout: 60\npin_cores: true\n")
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


def tell(client: Client) -> dict[str, Any]:
    answer = client.predict("tell", json.dumps(SHAPE[0]).encode())
    assert answer.status == 200, answer.body
    return json.loads(answer.body)  # type: ignore[no-any-return]


def test_a_lone_request_waits_the_whole_delay(client: Client) -> None:
    """TorchServe's rule, which every plan of batch size and delay must count with."""
    answer = client.predict("tell", json.dumps(SHAPE[0]).encode())
    assert answer.batch == 1
    assert answer.stages["queue"] >= DELAY_MS * 0.95  # its clock counts whole milliseconds


def test_workers_share_the_cores(client: Client) -> None:
    """Also when the workers are made more while the server runs; and each stays on a part of the cores, as its model-config.yaml asks."""
    import os

    cores = len(os.sched_getaffinity(0))
    told = tell(client)
    assert told["threads"] == len(told["cores"]) == cores, "one worker has all of them"
    reply = requests.put(f"{client.management}/models/tell", params={"min_worker": cores, "synchronous": "true"}, timeout=120)
    assert reply.status_code == 200
    seen: dict[int, int] = {}
    pinned: dict[int, list[int]] = {}
    until = time.monotonic() + 60
    while time.monotonic() < until and not (len(seen) == cores and sum(seen.values()) <= cores and sum(map(len, pinned.values())) <= cores):
        told = tell(client)
        seen[told["pid"]], pinned[told["pid"]] = told["threads"], told["cores"]
    assert len(seen) == cores and sum(seen.values()) <= cores, seen
    assert sorted(itertools.chain(*pinned.values())) == sorted(os.sched_getaffinity(0)), "every worker has a core of its own"
