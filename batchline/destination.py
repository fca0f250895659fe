"""Where a model's load goes and what it carries: its own samples, to the server of a configuration or to a Triton."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import requests

from batchline.client import ANYWHERE, Client, base_url
from batchline.errors import LoadError, RequestFailed, ServerError
from batchline.load import Target
from batchline.properties import Configuration
from batchline.recipe import read_recipe

PROTOCOLS = ("rest", "grpc")
SERVERS = ("torchserve", "triton")


def target(
    configuration: Configuration, model: str, models: Path, home: Path = Path(), protocol: str = "rest", channels: int = 1
) -> Target:
    """The model's own samples, to the server of a configuration.

    Raises:
        LoadError: the model has no samples, or the protocol is none or has no channels.
        ServerError, RequestFailed: no server answers, or it does not know the model: said before the first request.
    """
    if protocol not in PROTOCOLS:
        raise LoadError(f"the protocol is rest or grpc, not {protocol!r}.")
    if protocol == "rest" and channels != 1:
        raise LoadError("channels are for gRPC (--protocol grpc); over REST each request in flight has a connection of its own.")
    bodies = _samples(model, models)
    client = Client.of(configuration, home)
    client.describe(model)
    url = _grpc_url(configuration, model) if protocol == "grpc" else f"{base_url(configuration, 'inference')}/predictions/{model}"
    return Target(url, bodies, client.inference_headers(), channels=channels)


def _grpc_url(configuration: Configuration, model: str) -> str:
    if configuration.flag("enable_grpc_ssl"):
        raise configuration.error("enable_grpc_ssl", "load over gRPC goes in plain text only", "set it to false, or use --protocol rest")
    host, port = configuration.get("grpc_inference_address", "127.0.0.1"), configuration.grpc_ports[0]
    return f"grpc://{'127.0.0.1' if host == ANYWHERE else host}:{port}/{quote(model, safe='')}"


def check_server(name: str) -> None:
    """Raises LoadError for a server that load knows no way to."""
    if name not in SERVERS:
        raise LoadError(f"the server is {' or '.join(SERVERS)}, not {name!r}.")


def triton_target(url: str, model: str, models: Path, protocol: str = "rest") -> Target:
    """The model's own samples, to the same model exported to a Triton.

    Args:
        url: where its HTTP service is, such as http://127.0.0.1:8000.
        model: its name.
        models: the folder of model folders.
        protocol: rest, which is all that is done for Triton.

    Raises:
        LoadError: the model has no samples, or the protocol is another.
        ServerError, RequestFailed: no Triton answers there, or the model is not READY on it.
    """
    if protocol != "rest":
        raise LoadError(f"load on Triton goes over rest, not {protocol!r}.")
    place = f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}"
    bodies = _samples(model, models)
    with requests.Session() as session:
        session.trust_env = False
        try:
            status = session.get(f"{place}/ready", timeout=10).status_code
        except requests.RequestException as error:
            raise ServerError(f"no Triton answers at {url} ({type(error).__name__}); start one, or say where it is with --url.") from None
    if status != 200:
        raise RequestFailed(status, f"the server at {url} has no model {model!r} that is READY; batchline export triton {model}")
    wrapped, headers = binary_tensors(bodies)
    return Target(f"{place}/infer", wrapped, headers)


def binary_tensors(bodies: Sequence[bytes]) -> tuple[list[bytes], dict[str, str]]:
    """Request bodies -> requests of KServe v2 with one BYTES tensor `body` in the binary form, and the headers of all of them.

    Where the JSON ends stands in a header, which is the same for every request; so blanks bring all JSONs to one length.
    """
    heads = [_tensor_head(len(body) + 4) for body in bodies]
    length = max(map(len, heads))
    wrapped = [head.ljust(length) + struct.pack("<I", len(body)) + body for head, body in zip(heads, bodies, strict=True)]
    return wrapped, {"Inference-Header-Content-Length": str(length), "Content-Type": "application/octet-stream"}


def _tensor_head(size: int) -> bytes:
    tensor = {"name": "body", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    answer = {"name": "answer", "parameters": {"binary_data": True}}
    return json.dumps({"inputs": [tensor], "outputs": [answer]}).encode()


def _samples(model: str, models: Path) -> list[bytes]:
    bodies = [path.read_bytes() for path in read_recipe(model, models).samples]
    if not bodies:
        raise LoadError(f"{models / model / 'samples'} holds no request to send; put real ones there, one a file.")
    return bodies
