"""Results -> bytes: plain values of any kind, in the protocol that was asked for.

No NaN or Infinity leaves: JSON has no such number, so they become null. Numbers, arrays and tensors of every library
become JSON's; bytes become base64; a value that contains itself, or that nothing here knows, fails its own request.

With orjson the same values come sooner; small numbers are then written 1e-7 instead of 1e-07.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import itertools
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ServerFault
from .payload import Request

try:
    import orjson
except ImportError:  # only faster
    orjson = None  # type: ignore[assignment]

JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"
MAX_DEPTH = 64
Tensor = dict[str, Any]
_AS_THEY_ARE = {bool, int, str, type(None)}


def to_jsonable(value: Any, depth: int = 0) -> Any:
    """A value that json.dumps takes. Raises ServerFault for one that has no JSON form."""
    if depth > MAX_DEPTH:
        raise ServerFault(f"the answer is nested more than {MAX_DEPTH} deep, or contains itself")
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is dict and all(type(key) is str for key in value):
        return {key: to_jsonable(inner, depth + 1) for key, inner in value.items()}
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): to_jsonable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(inner, depth + 1) for inner in value]
    return to_jsonable(_unfold(value), depth + 1)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key.value if isinstance(key, enum.Enum) else key)


def _unfold(value: Any) -> Any:
    """One step from a library's type towards JSON's."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "detach"):  # a tensor, perhaps on a GPU, perhaps bfloat16, which numpy does not know
        return value.detach().cpu().tolist()
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise ServerFault(f"the answer holds a {type(value).__name__}, which has no JSON form")


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON of what to_jsonable gives. A lone surrogate, which UTF-8 cannot hold, becomes '?'."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# What orjson would write in its own way, or faster than to_jsonable looks at it, is left to to_jsonable.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS if orjson else None


def to_json(value: Any) -> bytes:
    """dump(to_jsonable(value)), at once where orjson knows all that is in it. Raises ServerFault."""
    if orjson:
        try:
            text: bytes = orjson.dumps(value, option=_OPTIONS)
        except TypeError:
            return dump(to_jsonable(value))
        if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:  # else it may be too deep
            return text
    return dump(to_jsonable(value))


def annotate(answer: Any, notes: Mapping[str, Any]) -> Any:
    """Adds what preprocess had to say of an instance ("truncated": true) to its answer: to each entry where that is a list."""
    if not notes:
        return answer
    if isinstance(answer, Mapping):
        return {**answer, **notes}
    if isinstance(answer, (list, tuple)) and all(isinstance(entry, Mapping) for entry in answer):
        return [{**entry, **notes} for entry in answer]
    return answer


def encode(request: Request, answers: list[Any], model_name: str, model_version: str) -> tuple[bytes, str]:
    """Body and content type of one request's answer.

    Args:
        request: the request, for its protocol and id.
        answers: one result an instance.
        model_name: for KServe v2.
        model_version: for KServe v2.
    """
    if request.protocol == "v1":
        return to_json({"predictions": answers}), JSON_TYPE
    if request.protocol == "v2":
        head = {"model_name": model_name, "model_version": model_version}
        echoed = {} if request.id is None else {"id": request.id}
        return to_json({**head, **echoed, "outputs": tensors(to_jsonable(answers))}), JSON_TYPE
    (answer,) = answers
    if isinstance(answer, (bytes, bytearray)):  # a handler's own picture or file goes out as it is
        return bytes(answer), BYTES_TYPE
    return to_json(answer), JSON_TYPE


def tensors(answers: list[Any]) -> list[Tensor]:
    """KServe v2 outputs: one tensor a field, the first dimension the instances.

    Answers that have no common rectangular form (the boxes of an object detector) come as one BYTES tensor of JSON texts.
    """
    columns = _columns(answers)
    named = {name: _tensor(name, column) for name, column in columns.items()}
    found = [tensor for tensor in named.values() if tensor is not None]
    if not found or len(found) != len(named):
        texts = [dump(answer).decode("utf-8") for answer in answers]
        return [{"name": "predictions", "datatype": "BYTES", "shape": [len(answers)], "data": texts}]
    return found


def _columns(answers: list[Any]) -> dict[str, list[Any]]:
    """Field name -> its value an instance; [{...}, {...}] entries are taken apart too."""
    if all(isinstance(answer, dict) for answer in answers):
        return _by_field(answers)
    if all(isinstance(answer, list) and answer and all(isinstance(entry, dict) for entry in answer) for answer in answers):
        columns = _by_field([entry for answer in answers for entry in answer])
        return {name: _cut(values, [len(answer) for answer in answers]) for name, values in columns.items()}
    return {"predictions": answers}


def _by_field(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns of records; a flag that only some records carry is false in the others."""
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for entry in entries for name in entry):
        is_flag = all(entry[name] is True for entry in entries if name in entry)
        columns[name] = [entry.get(name, False if is_flag else None) for entry in entries]
    return columns


def _cut(values: list[Any], lengths: list[int]) -> list[list[Any]]:
    """[a, b, c] and lengths [2, 1] -> [[a, b], [c]]."""
    remaining = iter(values)
    return [list(itertools.islice(remaining, length)) for length in lengths]


def _tensor(name: str, column: list[Any]) -> Tensor | None:
    """A rectangular column as a tensor, or None."""
    shape, flat = [len(column)], list(column)
    while flat and all(isinstance(value, list) and value for value in flat):
        size = len(flat[0])
        if any(len(value) != size for value in flat):
            return None
        shape.append(size)
        flat = [inner for value in flat for inner in value]
    for datatype, fits in DATATYPES.items():
        if flat and all(fits(value) for value in flat):
            return {"name": name, "datatype": datatype, "shape": shape, "data": flat}
    return None


DATATYPES: dict[str, Callable[[Any], bool]] = {
    "BOOL": lambda value: isinstance(value, bool),
    "INT64": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "FP32": lambda value: type(value) in (int, float),
    "BYTES": lambda value: isinstance(value, str),
}
