from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from batchline.handlers.errors import BadInput
from batchline.handlers.payload import MOST, Raw, Request, kind_of, lower_headers, parse
from hypothesis import given, settings
from hypothesis import strategies as st

EXPECTS = "a thing"
JSON_TYPES = ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", " APPLICATION/JSON ;x=y", "text/json", ""]


def read(value: Any, raw: Raw = "json", content_type: str = "", field: str = "body") -> Request:
    headers = {"content-type": content_type} if content_type else {}
    body = json.dumps(value).encode() if isinstance(value, (dict, list)) else value
    return parse({field: body}, headers, raw, EXPECTS)


def v2(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {"inputs": [{key: value for key, value in tensor.items() if value is not ...}]}


def refusal(value: Any, raw: Raw = "json", content_type: str = "application/json") -> BadInput:
    with pytest.raises(BadInput) as caught:
        read(value, raw, content_type)
    return caught.value


# ---- what is accepted


@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
@pytest.mark.parametrize("content_type", JSON_TYPES)
@pytest.mark.parametrize(
    "body", [b'{"data": [1, 2]}', b'{"body": [1, 2]}', b"[1, 2]", b"\xef\xbb\xbf [1, 2]\r\n", b'{"data": {"data": [1, 2]}}']
)
def test_json_under_any_spelling_of_its_type(raw: Raw, content_type: str, body: bytes) -> None:
    assert read(body, raw, content_type).instances == [[1, 2]]


@pytest.mark.parametrize("content_type", ["", "image/jpeg", "application/octet-stream", "text/plain", "nonsense"])
def test_raw_bytes_are_the_instance(content_type: str) -> None:
    assert read(b"\xff\xd8\xff", "bytes", content_type) == Request([b"\xff\xd8\xff"], ["body"])


@pytest.mark.parametrize("content_type", ["", "text/plain", "TEXT/plain; charset=utf-8", "application/octet-stream"])
def test_raw_text_is_the_instance(content_type: str) -> None:
    assert read("\ufeffgr\u00fc\u00dfe".encode(), "text", content_type).instances == ["gr\u00fc\u00dfe"]


def test_text_that_only_begins_like_json_is_a_text() -> None:
    assert read(b"[1] a footnote", "text").instances == ["[1] a footnote"]
    assert read(b'{"data": 1}', "text", "text/plain").instances == ['{"data": 1}']


@pytest.mark.parametrize("field", ["data", "body", "file", "my picture", "content-type"])
def test_a_form_with_one_field_of_any_name(field: str) -> None:
    fields = {field: bytearray(b"\x89PNG")}
    assert parse(fields, {"content-type": "multipart/form-data; boundary=x"}, "bytes", EXPECTS).instances == [b"\x89PNG"]


def test_of_several_fields_data_is_read_before_body() -> None:
    assert parse({"note": b"n", "data": b"1", "body": b"2"}, {}, "bytes", EXPECTS).instances == [b"1"]
    assert parse({"note": b"n", "body": b"2"}, {}, "bytes", EXPECTS).instances == [b"2"]


def test_grpc_has_bytes_and_no_headers() -> None:
    assert parse({"data": bytearray(b"[3]")}, {}, "json", EXPECTS).instances == [[3]]


@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
@pytest.mark.parametrize(
    ("decoded", "instances"), [({"data": [1]}, [[1]]), ([1, 2], [[1, 2]]), ({"instances": [1, 2]}, [1, 2]), (3, [3]), (None, [None])]
)
def test_values_that_torchserve_decoded(raw: Raw, decoded: Any, instances: list[Any]) -> None:
    assert parse({"body": decoded}, {"content-type": "application/json"}, raw, EXPECTS).instances == instances


def test_text_that_torchserve_decoded() -> None:
    assert parse({"body": "a text"}, {"content-type": "text/plain"}, "text", EXPECTS).instances == ["a text"]
    assert parse({"body": "[4]"}, {"content-type": "text/plain"}, "json", EXPECTS).instances == [[4]]
    assert parse({"body": "AAAA"}, {"content-type": "application/json"}, "bytes", EXPECTS).instances == ["AAAA"]


def test_v1_holds_bare_and_wrapped_instances_and_names_their_places() -> None:
    request = read({"instances": [1, {"data": 2}, {"b64": "x"}, {"body": None}]})
    assert request.instances == [1, 2, "x", None]
    assert request.places == ["instances[0]", "instances[1].data", "instances[2].b64", "instances[3].body"]
    assert request.protocol == "v1"


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_v2_data_flat_or_nested(data: list[Any]) -> None:
    request = read({**v2(data=data), "id": "a-1"})
    assert request.instances == [[1, 2], [3, 4]]
    assert (request.protocol, request.id) == ("v2", "a-1")
    assert request.places == ["inputs[0].data[0]", "inputs[0].data[1]"]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_v2_texts_come_in_both_shapes(shape: list[int]) -> None:
    assert read(v2(datatype="BYTES", shape=shape, data=["a", "b"])).instances == ["a", "b"]


def test_v2_numbers_keep_an_inner_dimension_of_one() -> None:
    assert read(v2(shape=[2, 1], data=[1.5, 2.5])).instances == [[1.5], [2.5]]
    assert read(v2(shape=[2], data=[1.5, 2.5])).instances == [1.5, 2.5]


def test_header_names_in_lower_case_and_the_dict_of_a_form_field_dropped() -> None:
    assert lower_headers({"Content-Type": "a", "X": {"content-type": "b"}, "DESCRIBE": "True"}) == {"content-type": "a", "describe": "True"}
    assert lower_headers(None) == {}


@pytest.mark.parametrize("names", [("explain", "Explain", "EXPLAIN"), ("EXPLAIN", "Explain", "explain"), ("Explain", "explain", "EXPLAIN")])
def test_a_name_in_lower_case_wins_over_its_other_spellings(names: tuple[str, ...]) -> None:
    assert lower_headers({name: "mine" if name == "explain" else "theirs" for name in names}) == {"explain": "mine"}


@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
@pytest.mark.parametrize("blanks", [b" " * 63, b" " * 64, b"\r\n\t " * 5000, b"\xef\xbb\xbf" + b"\n" * 200])
def test_json_behind_many_blanks(raw: Raw, blanks: bytes) -> None:
    assert read(blanks + b'{"data": [1, 2]}', raw).instances == [[1, 2]]


@pytest.mark.parametrize(
    ("datatype", "largest", "beyond"),
    [
        ("FP16", 65504, 65505),
        ("FP32", 3.4028234e38, 3.41e38),
        ("BF16", 3.3895e38, 3.4e38),
        ("FP64", 1.7e308, None),
        ("FP32", 2**127, 2**128),
    ],
)
def test_v2_floats_within_the_range_of_their_type(datatype: str, largest: float, beyond: float | None) -> None:
    assert read(v2(shape=[2], datatype=datatype, data=[largest, -largest])).instances == [largest, -largest]
    for number in [] if beyond is None else [beyond, -beyond]:
        error = refusal(v2(shape=[2], datatype=datatype, data=[0, number]))
        assert (error.at, error.kind) == ("inputs[0].data[1]", "datatype")
        assert f"is not {datatype}" in error.message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "a boolean"),
        ("x", "a text"),
        (1, "a number"),
        (1.5, "a number"),
        ({}, "an object"),
        ([], "a list"),
        (b"", "bytes"),
    ],
)
def test_kinds_have_their_article(value: Any, words: str) -> None:
    assert kind_of(value) == words


# ---- what is refused, with the place


@pytest.mark.parametrize("fields", [{}, {"body": b""}, {"data": bytearray()}, {"file": ""}])
@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
def test_an_empty_request_is_told_what_to_send(fields: dict[str, Any], raw: Raw) -> None:
    with pytest.raises(BadInput, match=f"empty; send {EXPECTS}") as caught:
        parse(fields, {}, raw, EXPECTS)
    assert (caught.value.status, caught.value.kind) == (400, "empty")


def test_curl_d_is_told_of_its_content_type() -> None:
    with pytest.raises(BadInput, match="curl -d"):
        parse({}, {"content-type": "application/x-www-form-urlencoded"}, "json", EXPECTS)


FORM = {"content-type": "Application/x-www-form-urlencoded; charset=utf-8"}


@pytest.mark.parametrize("fields", [{"x": b"1"}, {'{"instances": [1]}': b""}, {"a": b"1", "b": b"2"}, {}])
@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
def test_a_urlencoded_form_without_data_is_told_what_to_do(fields: dict[str, Any], raw: Raw) -> None:
    with pytest.raises(BadInput, match=r"Content-Type: application/json.*-T FILE.*send a thing") as caught:
        parse(fields, FORM, raw, EXPECTS)
    assert (caught.value.status, caught.value.kind) == (400, "form")


@pytest.mark.parametrize("field", ["data", "body"])
def test_a_urlencoded_form_with_data_is_read(field: str) -> None:
    assert parse({"note": b"n", field: b"[5]"}, FORM, "json", EXPECTS).instances == [[5]]


@pytest.mark.parametrize("most", [1, 7, MOST])
def test_more_instances_than_a_request_may_hold(most: int) -> None:
    def sent(count: int) -> list[tuple[str, dict[str, Any]]]:
        return [("instances", {"instances": [0] * count}), ("inputs[0]", v2(shape=[count], data=[0] * count))]

    for _, body in sent(most):
        assert len(parse({"body": body}, {}, "json", EXPECTS, most).instances) == most
    for place, body in sent(most + 1):
        with pytest.raises(BadInput, match=f"holds {most + 1} instances, more than the {most}") as caught:
            parse({"body": body}, {}, "json", EXPECTS, most)
        assert (caught.value.status, caught.value.kind, caught.value.at) == (413, "too_large", place)


def test_too_many_instances_are_known_from_the_shape() -> None:
    """The data is not looked at: what would be refused there is not."""
    error = refusal(v2(shape=[2**31 - 1, 2**31 - 1], datatype="nonsense", data="nonsense"))
    assert (error.status, error.at) == (413, "inputs[0]")


def test_several_fields_without_data_are_ambiguous() -> None:
    with pytest.raises(BadInput, match=r"several fields \(a, b\)"):
        parse({"b": b"1", "a": b"2"}, {}, "bytes", EXPECTS)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"data": [1,\n 2', "line 2, column 3"),
        (b"[1] 2", "column 5"),
        (b'{"data": NaN}', "NaN is not JSON"),
        (b"[Infinity]", "Infinity is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b'"\xff"', "not UTF-8: byte 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "bad JSON"),
        ('{"data": 1}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_bad_json(body: bytes, words: str) -> None:
    error = refusal(body)
    assert words in error.message
    assert error.status == 400


@pytest.mark.parametrize(
    ("value", "at", "words"),
    [
        ({}, "", "the object is empty"),
        ({"x": 1, "y": 2}, "", "the object has 'x', 'y'"),
        ({"instances": []}, "instances", "at least one"),
        ({"instances": {"a": 1}}, "instances", "must be a list"),
        ({"inputs": []}, "inputs", "exactly one tensor"),
        ({"inputs": [{}, {}]}, "inputs", "exactly one tensor"),
        ({"inputs": [1]}, "inputs", "exactly one tensor"),
        ({**v2(), "id": 7}, "id", "must be a string"),
        (v2(shape=...), "inputs[0]", "no shape"),
        (v2(shape=..., data=...), "inputs[0]", "no shape and no data"),
        (v2(datatype=...), "inputs[0]", "no datatype"),
        (v2(shape=[]), "inputs[0].shape", "positive integers"),
        (v2(shape=[0, 2]), "inputs[0].shape", "positive integers"),
        (v2(shape=[True, 4]), "inputs[0].shape", "positive integers"),
        (v2(shape=[-2, -2]), "inputs[0].shape", "positive integers"),
        (v2(shape=[1] * 9), "inputs[0].shape", "1 to 8"),
        (v2(shape=[10**4000, 10**4000]), "inputs[0].shape", "positive integers"),
        (v2(shape="2,2"), "inputs[0].shape", "positive integers"),
        (v2(data="1234"), "inputs[0].data", "must be a list"),
        (v2(data=[1, 2, 3]), "inputs[0].data", "holds 3 values where shape [2, 2] wants 4"),
        (v2(data=[[1, 2, 3], [4]]), "inputs[0].data", "shape [2, 2]"),
        (v2(shape=[2, 3], data=[[1, 2], [3, 4], [5, 6]]), "inputs[0].data", "shape [2, 3]"),
        (v2(data=[[1, 2], 3, 4]), "inputs[0].data", "holds 3"),
        (v2(data=[]), "inputs[0].data", "holds 0"),
        (v2(datatype="INT8", data=[1, 2, 3, 128]), "inputs[0].data[3]", "is not INT8"),
        (v2(datatype="UINT8", data=[-1, 2, 3, 4]), "inputs[0].data[0]", "is not UINT8"),
        (v2(datatype="INT64", data=[1, 2.5, 3, 4]), "inputs[0].data[1]", "is not INT64"),
        (v2(datatype="UINT64", data=[0, 2**64 - 1, 0, 2**64]), "inputs[0].data[3]", "is not UINT64"),
        (v2(data=[1, True, 3, 4]), "inputs[0].data[1]", "is not FP32"),
        (v2(data=[1, 2, "3", 4]), "inputs[0].data[2]", "is not FP32"),
        (v2(data=[1, 2, None, 4]), "inputs[0].data[2]", "is not FP32"),
        (v2(shape=[1], data=[json.loads("[" * 900 + "]" * 900)]), "inputs[0].data[0]", "a list is not FP32"),
        (v2(datatype="BOOL", data=[True, False, 0, True]), "inputs[0].data[2]", "is not BOOL"),
        (v2(datatype="BYTES", data=["a", "b", 3, "d"]), "inputs[0].data[2]", "is not BYTES"),
        (v2(datatype="FLOAT"), "inputs[0].datatype", "must be one of BYTES"),
        (v2(datatype=[]), "inputs[0].datatype", "must be one of BYTES"),
        (v2(datatype={}), "inputs[0].datatype", "must be one of BYTES"),
        (v2(datatype=None), "inputs[0].datatype", "must be one of BYTES"),
    ],
)
@pytest.mark.parametrize("raw", ["bytes", "text", "json"])
def test_refused_with_the_place(value: dict[str, Any], at: str, words: str, raw: Raw) -> None:
    error = refusal(value, raw)
    assert error.at == at
    assert words in error.message
    assert error.status == 400


def test_binary_tensors_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match="binary tensor") as caught:
        parse({"body": b"{}"}, {"inference-header-content-length": "2"}, "json", EXPECTS)
    assert caught.value.status == 415


def test_raw_text_that_is_not_utf8() -> None:
    error = refusal(b"caf\xe9 au lait", "text", "text/plain")
    assert (error.kind, error.message) == ("encoding", "not UTF-8: byte 3 cannot be read")


# ---- anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["data", "instances", "inputs", "shape", "datatype", "id", "b64", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
TENSORS = st.fixed_dictionaries(
    {
        "shape": st.just([2]) | JSON,
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8"]) | JSON | st.just([]),
        "data": st.sampled_from([[1, 2], ["a", "b"], [[1], [2]]]) | JSON,
    },
    optional={"name": JSON},
)
BODIES = st.one_of(
    st.binary(max_size=64),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.lists(TENSORS, min_size=1, max_size=1).map(lambda inputs: json.dumps({"inputs": inputs}).encode()),
    st.sampled_from([b"[" * 2000, b'{"a":' * 500, b'{"inputs":[', b"\xef\xbb\xbf", b"9" * 6000, b"NaN", b'"\\ud800"']),
)
VALUES = st.one_of(BODIES, BODIES.map(bytearray), st.text(max_size=20), JSON, st.none())
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "inference-header-content-length", "x", ""]),
    st.text(max_size=20) | st.sampled_from(JSON_TYPES),
    max_size=3,
)


@settings(max_examples=500)
@given(
    st.dictionaries(st.sampled_from(["data", "body", "a", ""]) | st.text(max_size=5), VALUES, max_size=3),
    HEADERS,
    st.sampled_from(["bytes", "text", "json"]),
)
def test_parse_raises_nothing_but_bad_input(fields: Mapping[str, Any], headers: Mapping[str, str], raw: Raw) -> None:
    try:
        request = parse(fields, headers, raw, EXPECTS)
    except BadInput as error:
        assert 400 <= error.status < 500
        assert error.message
    else:
        assert len(request.instances) == len(request.places) >= 1


def nest(flat: list[Any], shape: list[int]) -> list[Any]:
    step = math.prod(shape[1:])
    parts = [flat[i * step : (i + 1) * step] for i in range(shape[0])]
    return flat if len(shape) == 1 else [nest(part, shape[1:]) for part in parts]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
def test_v2_round_trip(shape: list[int], nested: bool) -> None:
    flat = list(range(math.prod(shape)))
    request = read(v2(shape=shape, datatype="INT32", data=nest(flat, shape) if nested else flat))
    assert request.instances == nest(flat, shape)
    assert len(request.places) == shape[0]
