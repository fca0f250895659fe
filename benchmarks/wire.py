"""What a request to each kind of server looks like, and how its answer is read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

Bodies = tuple[list[bytes], dict[str, str]]  # what is sent, and the headers that go with it
Form = Callable[[str, tuple[bytes, ...]], Bodies]  # model, bodies as batchline takes them
Read = Callable[[bytes], Any]  # an answer's body -> the answer as batchline gives it


def plain(model: str, bodies: tuple[bytes, ...]) -> Bodies:
    """The bytes themselves."""
    return list(bodies), {}


def value_of(model: str, body: bytes) -> Any:
    """What stands in JSON for a body: 64 numbers, base64 of a picture, a text."""
    if model == "digits":
        value = json.loads(body)
        return np.array(value["data"] if isinstance(value, dict) else value).ravel().tolist()
    return base64.b64encode(body).decode() if model == "efficientnet_lite0" else body.decode()


def as_json(wrap: Callable[[Any], Any]) -> Form:
    """JSON around a value."""

    def made(model: str, bodies: tuple[bytes, ...]) -> Bodies:
        return [json.dumps(wrap(value_of(model, body))).encode() for body in bodies], {"Content-Type": "application/json"}

    return made


def v2(model: str, bodies: tuple[bytes, ...]) -> Bodies:
    """KServe v2 in JSON, one instance a request."""
    digits = model == "digits"

    def tensor(value: Any) -> dict[str, Any]:
        data = value if digits else [value]
        return {"name": "input", "shape": [1, 64] if digits else [1, 1], "datatype": "FP32" if digits else "BYTES", "data": data}

    return as_json(lambda value: {"inputs": [tensor(value)]})(model, bodies)


def triton(model: str, bodies: tuple[bytes, ...]) -> Bodies:
    """KServe v2 with Triton's binary extension, so that pictures travel as bytes and answers come as such."""
    parts = []
    for body in bodies:
        digits = model == "digits"
        raw = np.array(value_of(model, body), "<f4").tobytes() if digits else len(body).to_bytes(4, "little") + body
        tensor = {"name": "input", "shape": [1, 64] if digits else [1, 1], "datatype": "FP32" if digits else "BYTES"}
        tensor["parameters"] = {"binary_data_size": len(raw)}
        head = {"inputs": [tensor], "outputs": [{"name": "answer", "parameters": {"binary_data": True}}]}
        parts.append((json.dumps(head), raw))
    return _padded(parts)


def exported(model: str, bodies: tuple[bytes, ...]) -> Bodies:
    """What `batchline export triton` takes: the body that TorchServe would get, as one BYTES row in the binary form."""
    parts = []
    for body in bodies:
        raw = len(body).to_bytes(4, "little") + body
        tensor = {"name": "body", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        parts.append((json.dumps({"inputs": [tensor], "outputs": [{"name": "answer", "parameters": {"binary_data": True}}]}), raw))
    return _padded(parts)


def _padded(parts: list[tuple[str, bytes]]) -> Bodies:
    """JSON and binary parts as bodies; one header goes with all of them, so their JSON parts are padded to one length."""
    longest = max(len(head) for head, _ in parts)
    headers = {"Inference-Header-Content-Length": str(longest), "Content-Type": "application/octet-stream"}
    return [head.ljust(longest).encode() + raw for head, raw in parts], headers


def read_triton(body: bytes) -> Any:
    """The first row of a binary BYTES tensor, after the JSON that goes before it."""
    _, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return json.loads(body[end + 4 :])


def read_v2(body: bytes) -> Any:
    """The first row of the tensor, which is JSON again."""
    return json.loads(json.loads(body)["outputs"][0]["data"][0])


def read_stock(body: bytes) -> Any:
    """image_classifier's {label: score}."""
    return [{"label": label, "score": score} for label, score in json.loads(body).items()]
