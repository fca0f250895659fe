"""The repository's own configuration and archives on a TorchServe of the tests' own, on free ports."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from batchline import server
from batchline.client import Client
from batchline.ports import free_ports
from tests.harness import ROOT, STORE

PORTS = {"8080": 0, "8081": 1, "8082": 2, "7070": 3, "7071": 4}


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        url: its inference address.
        home: its checkout's stand-in.
        client: a client for it.
        grpc: host:port of its gRPC inference API.
        metrics: its metrics address.
    """

    url: str
    home: Path
    client: Client
    grpc: str
    metrics: str

    def post(self, model: str, body: bytes | None = None, path: str = "/predictions/{}", **kwargs: Any) -> requests.Response:
        return requests.post(self.url + path.format(model), data=body, timeout=120, **kwargs)

    def post_all(self, model: str, bodies: list[bytes], headers: list[dict[str, str]] | None = None) -> list[requests.Response]:
        """All at once, so that they share batches."""
        given = headers or [{}] * len(bodies)
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda pair: self.post(model, pair[0], headers=pair[1]), zip(bodies, given, strict=True)))

    def workers(self, model: str) -> list[int]:
        """Process ids: a worker that died and came back has another."""
        (version,) = self.client.describe(model)
        return sorted(worker["pid"] for worker in version["workers"])


def moved(text: str, ports: list[int]) -> str:
    """Text that names the default ports, with `ports` in their place."""
    return re.sub(r"\b(8080|8081|8082|7070|7071)\b", lambda match: str(ports[PORTS[match[1]]]), text)


def copy_configuration(home: Path) -> tuple[Path, list[int]]:
    """config.properties and what it names, moved to free ports."""
    ports = free_ports(5)
    shutil.copy(ROOT / "metrics.yaml", home)
    config = home / "config.properties"
    config.write_text(moved((ROOT / "config.properties").read_text(), ports))
    return config, ports


def serve(home: Path, store: Path = STORE) -> Served:
    config, ports = copy_configuration(home)
    running = server.start(config, store, home)
    return Served(running.inference, home, running.client(home), f"127.0.0.1:{ports[3]}", running.metrics)


def good_json(response: requests.Response) -> Any:
    """The body as strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert response.headers["content-type"] == "application/json"
    return json.loads(response.content, parse_constant=refuse)
