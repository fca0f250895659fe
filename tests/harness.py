"""A handler in this process, fed exactly as TorchServe's worker feeds it: its own Service, its own wire format, no server."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ts
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.service import Service

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "model_store"


@dataclass(frozen=True)
class Reply:
    """One request's answer as the front end would read it off the socket."""

    status: int
    body: bytes
    headers: dict[str, str]
    content_type: str

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def request(body: Any = None, content_type: str = "", headers: dict[str, str] | None = None, field: str = "body") -> dict[str, Any]:
    """A request in the form that the worker reads from its socket."""
    sent = dict(headers or {})
    if content_type:
        sent.setdefault("Content-Type", content_type)
    value = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    parameters = [] if value is None else [{"name": field, "contentType": content_type, "value": bytearray(value)}]
    return wire(parameters, sent)


def wire(parameters: list[dict[str, Any]], headers: dict[str, str]) -> dict[str, Any]:
    encoded = [{"name": k.encode(), "value": v.encode("utf-8", "surrogateescape")} for k, v in headers.items()]
    return {"requestId": b"test-id", "headers": encoded, "parameters": parameters}


class Worker:
    """A loaded handler behind TorchServe's own Service.predict."""

    def __init__(self, service: Service, handler: Any) -> None:
        self.service = service
        self.handler = handler
        self.service.set_cl_socket(None)

    def send(self, *requests: dict[str, Any]) -> list[Reply]:
        """One batch of requests, as many replies."""
        batch = [{**r, "requestId": f"r{i}".encode()} for i, r in enumerate(requests)]
        code, replies = read_replies(self.service.predict(batch))
        assert code == 200, f"the whole batch failed with {code}"
        assert len(replies) == len(requests)
        return replies

    def one(self, *args: Any, **kwargs: Any) -> Reply:
        return self.send(request(*args, **kwargs))[0]


def load(
    handler_class: type,
    model_dir: Path,
    model: str = "test",
    batch_size: int = 4,
    config: dict[str, Any] | None = None,
    manifest: Any = None,
) -> Worker:
    """A handler class on an unpacked archive."""
    manifest = manifest or json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text())
    metrics = MetricsCacheYamlImpl(config_file_path=str(ROOT / "metrics.yaml"))
    metrics.initialize_cache()
    metrics.model_name = model
    handler = handler_class()
    service = Service(model, str(model_dir), manifest, handler.handle, None, batch_size, True, metrics)
    if config is not None:
        service.context.model_yaml_config = {**service.context.model_yaml_config, **config}
    handler.initialize(service.context)
    return Worker(service, handler)


def unpack(name: str, into: Path) -> Path:
    folder = into / name
    with zipfile.ZipFile(STORE / f"{name}.mar") as archive:
        archive.extractall(folder)
    return folder


def entry_class(name: str) -> type:
    """The class of models/NAME/handler.py."""
    spec = importlib.util.spec_from_file_location(f"entry_{name}", ROOT / "models" / name / "handler.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Handler  # type: ignore[no-any-return]


def read_replies(message: bytearray) -> tuple[int, list[Reply]]:
    """TorchServe's predict response, parsed as its front end does."""
    reader = _Reader(bytes(message))
    code, _ = reader.integer(), reader.text()
    replies = []
    while (length := reader.integer()) != -1:
        reader.take(length)  # request id
        content_type, status, _ = reader.text(), reader.integer(), reader.text()
        headers = {reader.text(): reader.text() for _ in range(reader.integer())}
        replies.append(Reply(status, reader.take(reader.integer()), headers, content_type))
    assert reader.at == len(message), "bytes after the end: a length was wrong"
    assert ts.__version__ == "0.12.0"
    return code, replies


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        assert length >= 0
        self.at += length
        return self.data[self.at - length : self.at]

    def integer(self) -> int:
        return int(struct.unpack("!i", self.take(4))[0])

    def text(self) -> str:
        return self.take(self.integer()).decode("utf-8")
