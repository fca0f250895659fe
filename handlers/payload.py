"""One request -> its instances, and the protocol to answer in.

A request is a dict of fields as TorchServe hands it over: {"body": ...} for a raw body, one entry a field for a form. A
value may be bytes (always so over gRPC, and over HTTP once the worker has switched TorchServe's own decoding off), or
what TorchServe made of it: parsed JSON, or str for text/*.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import BadInput

try:
    import orjson
except ImportError:  # only faster
    orjson = None  # type: ignore[assignment]

Protocol = Literal["plain", "v1", "v2"]
Raw = Literal["bytes", "text", "json"]

WRAPPERS = ("data", "body", "b64")
JSON_STARTS = (b"{", b"[", b'"')
BLANKS = b"\xef\xbb\xbf \t\r\n"  # the UTF-8 byte order mark and white space
DIGITS = b"0" * 19  # an integer so long may not fit in 64 bits, where orjson makes it a float
DIGITS_AS_ZEROS = bytes(ord("0") if chr(i) in "0123456789" else ord(" ") for i in range(256))
MOST = 4096  # instances in one request
MAX_RANK = 8  # dimensions of a KServe v2 tensor
MAX_SIDE = 2**31 - 1  # values along one of them
INTEGERS = {
    f"{sign}INT{bits}": (0 if sign else -(2 ** (bits - 1)), 2 ** (bits - 1 + bool(sign)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
FLOATS = {"FP16": 65504.0, "FP32": 3.4028235e38, "FP64": sys.float_info.max, "BF16": 3.3895314e38}  # largest finite value


@dataclass(frozen=True)
class Request:
    """What one request asks for.

    Attributes:
        instances: one value each: bytes, str, number, list or dict.
        places: where each instance stood in the request, for messages.
        protocol: how to answer: plain, KServe v1 or KServe v2.
        id: the id of a KServe v2 request, to be echoed.
    """

    instances: list[Any]
    places: list[str]
    protocol: Protocol = "plain"
    id: str | None = None


def lower_headers(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Header names in lower case; TorchServe keeps the client's spelling, and mixes in a dict for each form field, dropped here."""
    texts = {str(name): value for name, value in (headers or {}).items() if isinstance(value, str)}
    lowered = {name.lower(): value for name, value in texts.items()}
    if len(lowered) == len(texts):
        return lowered
    exact = {
        name: value for name, value in texts.items() if name == name.lower()
    }  # TorchServe's own, such as explain, win over a client's Explain
    return lowered | exact


def parse(fields: Mapping[str, Any], headers: Mapping[str, str], raw: Raw, expects: str, most: int = MOST) -> Request:
    """Reads one request.

    Args:
        fields: the request's fields as TorchServe gives them.
        headers: request headers, lower-case names.
        raw: what a body is that is not JSON: an instance of bytes, of text, or nothing (every body is JSON).
        expects: what the model wants, for messages.
        most: instances that one request may hold.

    Raises:
        BadInput: the request is empty, ambiguous, or not what its type or protocol says.
    """
    if "inference-header-content-length" in headers:
        raise BadInput("the binary tensor extension is not supported; send the tensor's data as JSON", 415, kind="unsupported")
    value = _decode(_field(fields, headers, expects), _media_type(headers), raw, expects)
    if isinstance(value, dict):
        return _enveloped(value, expects, most)
    return Request([value], ["body"])


def _field(fields: Mapping[str, Any], headers: Mapping[str, str], expects: str) -> Any:
    """The one field that holds the request: data, body, or the only one."""
    name = next((name for name in ("data", "body") if name in fields), None)
    if name is None and _media_type(headers) == "application/x-www-form-urlencoded":
        hint = "which is what curl -d sends: add -H 'Content-Type: application/json' (or text/plain), or use -T FILE"
        raise BadInput(f"the body came as a form without a field called data, {hint}; send {expects}", kind="form")
    if name is None and len(fields) > 1:
        names = ", ".join(sorted(str(name)[:40] for name in fields)[:8])
        raise BadInput(f"several fields ({names}) and none is called data; send one, or JSON instances", kind="ambiguous")
    value = next(iter(fields.values()), None) if name is None else fields[name]
    if (isinstance(value, (bytes, bytearray, str)) and not value) or (value is None and not fields):
        raise BadInput(f"the request is empty; send {expects}", kind="empty")
    return value


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _decode(value: Any, media_type: str, raw: Raw, expects: str) -> Any:
    """A field's value -> bytes, text or parsed JSON."""
    says_json = media_type == "application/json" or media_type.endswith(("+json", "/json"))
    if isinstance(value, str):
        if says_json or (raw == "text" and media_type.startswith("text/")):
            return value  # TorchServe has decoded it already
        value = value.encode("utf-8", "surrogatepass")
    if not isinstance(value, (bytes, bytearray)):
        return value
    if says_json or raw == "json":
        return parse_json(value, expects)
    if media_type.startswith("text/") and raw == "text":
        return _text(value)
    if (value[:64].lstrip(BLANKS) or value.lstrip(BLANKS)).startswith(JSON_STARTS):
        try:
            return parse_json(value, expects)
        except BadInput:
            pass  # a text may begin with a bracket; an image never does, and is refused as one
    return _text(value) if raw == "text" else bytes(value)


def _text(value: bytes | bytearray) -> str:
    try:
        return value.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8: byte {error.start} cannot be read", at="", kind="encoding") from None


def parse_json(body: bytes | bytearray, expects: str) -> Any:
    """Strict JSON: UTF-8, no NaN or Infinity. Raises BadInput naming the place."""
    if orjson and DIGITS not in body.translate(DIGITS_AS_ZEROS):
        try:
            return orjson.loads(body)
        except ValueError:
            pass  # json says what is wrong, and where; it also takes lone surrogates
    try:
        return json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8: byte {error.start} cannot be read; send {expects}", kind="encoding") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"bad JSON at line {error.lineno}, column {error.colno}: {error.msg}; send {expects}", kind="json") from None
    except RecursionError:
        raise BadInput(f"JSON nested too deeply; send {expects}", kind="json") from None
    except ValueError as error:  # an integer of thousands of digits
        raise BadInput(f"bad JSON: {str(error)[:120]}; send {expects}", kind="json") from None


def _no_constant(name: str) -> None:
    raise BadInput(f"{name} is not JSON; send finite numbers", kind="json")


def _enveloped(value: dict[str, Any], expects: str, most: int) -> Request:
    """A JSON object: KServe v1, KServe v2, or {"data": ...}."""
    if "instances" in value:
        return _v1(value["instances"], expects, most)
    if "inputs" in value:
        return _v2(value, most)
    inner, place = unwrap(value, "")
    if inner is value:
        keys = ", ".join(repr(key[:40]) for key in list(value)[:8])
        problem = f"the object has {keys}" if keys else "the object is empty"
        kind = "envelope" if keys else "empty"
        raise BadInput(f'{problem}; send {expects} as {{"data": ...}}, {{"instances": [...]}} or {{"inputs": [...]}}', kind=kind)
    inner, place = unwrap(inner, place)
    return Request([inner], [place])


def unwrap(value: Any, place: str) -> tuple[Any, str]:
    """{"data": x} -> x (also body, b64), with the place of x; anything else comes back as it is."""
    if isinstance(value, dict):
        for key in WRAPPERS:
            if key in value:
                return value[key], f"{place}.{key}".lstrip(".")
    return value, place


def _v1(instances: Any, expects: str, most: int) -> Request:
    if not isinstance(instances, list) or not instances:
        raise BadInput(f"must be a list of at least one instance; send {expects}", at="instances", kind="envelope")
    _check_count(len(instances), most, "instances")
    pairs = [unwrap(value, f"instances[{i}]") for i, value in enumerate(instances)]
    return Request([value for value, _ in pairs], [place for _, place in pairs], "v1")


def _v2(body: dict[str, Any], most: int) -> Request:
    """One input tensor, its first dimension the instances."""
    inputs, request_id = body["inputs"], body.get("id")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadInput("must be a list of exactly one tensor {name, shape, datatype, data}", at="inputs", kind="envelope")
    if request_id is not None and not isinstance(request_id, str):
        raise BadInput("must be a string", at="id", kind="envelope")
    tensor = inputs[0]
    missing = [key for key in ("shape", "datatype", "data") if key not in tensor]
    if missing:
        raise BadInput(f"has no {' and no '.join(missing)}", at="inputs[0]", kind="envelope")
    shape, datatype = _shape(tensor["shape"]), tensor["datatype"]
    _check_count(shape[0], most, "inputs[0]")
    flat = _flat(tensor["data"], shape, datatype)
    step = math.prod(shape[1:])
    inner = [] if datatype == "BYTES" and shape[1:] == [1] else shape[1:]  # BYTES tensors come as (B) and as (B, 1)
    instances = [_nest(flat[i * step : (i + 1) * step], inner) for i in range(shape[0])]
    return Request(instances, [f"inputs[0].data[{i}]" for i in range(shape[0])], "v2", request_id)


def _check_count(count: int, most: int, place: str) -> None:
    if count > most:
        raise BadInput(
            f"holds {count} instances, more than the {most} that one request may; send several requests", 413, place, "too_large"
        )


def _shape(shape: Any) -> list[int]:
    good = isinstance(shape, list) and 0 < len(shape) <= MAX_RANK and all(type(n) is int and 0 < n <= MAX_SIDE for n in shape)
    if not good:
        raise BadInput(
            f"must be a list of 1 to {MAX_RANK} positive integers, the first the number of instances", at="inputs[0].shape", kind="envelope"
        )
    return list(shape)


def _flat(data: Any, shape: list[int], datatype: Any) -> list[Any]:
    """Row-major values; `data` may be flat or nested as `shape` says."""
    if not isinstance(data, list):
        raise BadInput("must be a list", at="inputs[0].data", kind="envelope")
    flat = data
    for _ in shape[1:]:
        if not flat or not all(isinstance(part, list) for part in flat):
            break
        flat = [value for part in flat for value in part]
    wanted = math.prod(shape)
    if len(flat) != wanted or _shape_differs(data, shape, flat is data):
        raise BadInput(f"holds {len(flat)} values where shape {shape} wants {wanted}", at="inputs[0].data", kind="shape")
    _check_datatype(flat, datatype)
    return flat


def _shape_differs(data: Any, shape: list[int], is_flat: bool) -> bool:
    """True for nested data whose lists have other lengths than the shape's (ragged or transposed)."""
    if is_flat:
        return False
    level = [data]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            return True
        level = [value for part in level for value in part]
    return False


def _check_datatype(flat: list[Any], datatype: Any) -> None:
    for i, value in enumerate(flat):
        if not _fits(value, datatype):
            raise BadInput(f"{_shown(value)} is not {datatype}", at=f"inputs[0].data[{i}]", kind="datatype")


def _shown(value: Any) -> str:
    """A value for a message; a list or an object by its kind only, for it may be long or deep."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return repr(str(value)[:40])


def _fits(value: Any, datatype: Any) -> bool:
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype == "BOOL":
        return isinstance(value, bool)
    if isinstance(datatype, str) and datatype in FLOATS:
        return type(value) in (int, float) and -FLOATS[datatype] <= value <= FLOATS[datatype]
    if isinstance(datatype, str) and datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        return type(value) is int and low <= value <= high
    names = ", ".join(["BYTES", "BOOL", *INTEGERS, *FLOATS])
    raise BadInput(f"must be one of {names}", at="inputs[0].datatype", kind="datatype")


def _nest(flat: list[Any], shape: list[int]) -> Any:
    """Row-major values -> lists nested as `shape`; [] gives the value itself."""
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat


def kind_of(value: Any) -> str:
    """JSON's word for a value's kind, with its article."""
    words = {type(None): "null", bool: "a boolean", str: "a text", dict: "an object", list: "a list", int: "a number", float: "a number"}
    return words.get(type(value), type(value).__name__)
