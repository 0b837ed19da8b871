from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.errors import InvalidRequest, NotOffered
from upwell.shared.oip.dataplane import InferResponse
from upwell.shared.oip.http import body_converters
from upwell.shared.oip.http.body_converters import (
    ReadRequest,
    RequestedOutput,
    load_object,
    parse_infer_request,
    write_infer_response,
)
from upwell.shared.oip.http.server.request import with_tags
from upwell.shared.tensors import Array

TENSOR = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5]}


def parse(message: object, binary: bytes = b"") -> ReadRequest:
    head = message if isinstance(message, bytes) else json.dumps(message).encode()
    return parse_infer_request("m", "3", memoryview(head), memoryview(binary))


def sized(name: str, size: object, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": size}, **more}


def test_a_request_says_all_that_it_says_over_grpc() -> None:
    read = parse(
        {
            "id": "a-1",
            "inputs": [TENSOR],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
            "parameters": {"upwell.tag.camera": "dock", "timeout": 250_000, "priority": 2, "on": True, "p": 0.5},
        }
    )
    assert (read.request.model, read.request.version, read.request.id) == ("m", "3", "a-1")
    assert read.request.inputs["x"].tolist() == [1.0, 2.5]
    assert read.request.inputs["x"].dtype == np.float32
    assert read.request.outputs == ("y", "z")
    assert read.request.parameters == {"upwell.tag.camera": "dock", "priority": 2, "on": True, "p": 0.5}
    assert read.timeout_s == 0.25
    assert [read.wanted.is_binary(name) for name in ("y", "z", "other")] == [True, False, False]


def test_the_same_json_again_has_its_own_contents_and_tags() -> None:
    message = {"inputs": [sized("a", 2), sized("b", 2)], "parameters": {"timeout": 5000, "binary_data_output": True}}
    for contents, tag in ((b"\1\2\3\4", "dock"), (b"\5\6\7\x08", "gate")):
        read = parse(message, contents)
        assert {name: array.tobytes() for name, array in read.request.inputs.items()} == {
            "a": contents[:2], "b": contents[2:],
        }  # fmt: skip
        assert (read.timeout_s, read.wanted.default, read.request.parameters) == (0.005, True, {})
        assert with_tags(read.request.parameters, {"upwell-tag-camera": tag}) == {"upwell.tag.camera": tag}
    with pytest.raises(InvalidRequest, match="take 4 bytes of binary data, got 5"):
        parse(message, bytes(5))


def test_one_parameter_asks_for_all_outputs_in_binary_but_for_those_that_say_otherwise() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    wanted = parse({"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}}).wanted
    assert [wanted.is_binary(name) for name in ("y", "z", "other")] == [False, True, True]


def test_binary_data_is_cut_in_the_order_of_the_inputs_and_mixes_with_json() -> None:
    read = parse({"inputs": [sized("a", 2), TENSOR, sized("b", 2)]}, b"\1\2\3\4")
    assert {name: array.tolist() for name, array in read.request.inputs.items()} == {
        "a": [1, 2], "x": [1.0, 2.5], "b": [3, 4],
    }  # fmt: skip


def numbers(two: str) -> bytes:
    """A request for a tensor with two numbers as JSON writes them."""
    return b'{"inputs": [{"name": "a", "datatype": "FP64", "shape": [2], "data": [%s]}]}' % two.encode()


def test_what_is_named_infinite_is_so_and_a_number_beyond_floats_is_not() -> None:
    assert parse(numbers("-Infinity, 1e-400"), b"").request.inputs["a"].tolist() == [-math.inf, 0.0]
    assert np.isnan(parse(numbers("NaN, 1"), b"").request.inputs["a"][0])


@pytest.mark.parametrize(
    ("message", "binary", "what"),
    [
        ({"inputs": [sized("a", 3)]}, b"\1\2", "ends inside the input 'a'"),
        ({"inputs": [sized("a", 2)]}, b"\1\2\3", "take 2 bytes of binary data, got 3"),
        ({"inputs": [sized("a", 1)]}, b"\1", "takes 2 bytes of raw contents, got 1"),
        ({"inputs": [sized("a", -1)]}, b"", "number of bytes"),
        ({"inputs": [sized("a", 2**70)]}, b"", "64-bit"),
        ({"inputs": [sized("a", 1.5)]}, b"", "number of bytes"),
        ({"inputs": [sized("a", True)]}, b"", "number of bytes"),
        ({"inputs": [sized("a", 2, data=[1, 2])]}, b"\1\2", "has both"),
        ({"inputs": [TENSOR, TENSOR]}, b"", "repeated"),
        ({"inputs": [{**TENSOR, "shape": [True]}]}, b"", "list of integers"),
        ({"inputs": [{**TENSOR, "shape": [2.0]}]}, b"", "list of integers"),
        ({"inputs": [{**TENSOR, "shape": [10**30]}]}, b"", "list of integers"),
        ({"inputs": [{**TENSOR, "shape": [1] * 40}]}, b"", "40 dimensions"),
        ({"inputs": [{**TENSOR, "datatype": "FP31"}]}, b"", "FP31"),
        ({"inputs": [{**TENSOR, "datatype": ["FP32"]}]}, b"", "to be a string"),
        ({"inputs": [{"datatype": "FP32"}]}, b"", "`name` of an input"),
        ({"inputs": [{**TENSOR, "parameters": {"shared_memory_region": "r"}}]}, b"", "not supported"),
        (
            {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": "3"}}]},
            b"",
            "whole number of classes",
        ),
        ({"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}, b"", "repeated"),
        ({"inputs": [], "outputs": {}}, b"", "list of objects"),
        ({"inputs": [7]}, b"", "list of objects"),
        ({}, b"", "list of objects"),
        ({"inputs": [], "id": 7}, b"", "`id` to be a string"),
        ({"inputs": [], "parameters": []}, b"", "to be an object"),
        ({"inputs": [], "parameters": {"a": None}}, b"", "true, false"),
        ({"inputs": [], "parameters": {"a": {}}}, b"", "true, false"),
        ({"inputs": [], "parameters": {"timeout": "1"}}, b"", "microseconds"),
        ({"inputs": [], "parameters": {"timeout": -1}}, b"", "microseconds"),
        ({"inputs": [], "parameters": {"binary_data_output": 1}}, b"", "true or false"),
        ({"inputs": [TENSOR] * 300}, b"", "at most 256"),
        ([], b"", "not a JSON object"),
        (b"{", b"", r"cannot be read as JSON \(line 1, column 2\)"),
        (b"\xff", b"", "not UTF-8"),
        (b"[" * 200_000, b"", "nested too deeply"),
        (b'{"a":' * 200_000, b"", "nested too deeply"),
        (b'{"id": ' + b"1" * 5000 + b"}", b"", "cannot be read as JSON"),
        (b'{"id": "\\ud800", "inputs": []}', b"", "not valid Unicode"),
        (b'{"inputs": [], "parameters": {"a": 1e400}}', b"", "64-bit number"),
        (numbers("1e400, 1"), b"", "too large for FP64"),
        (numbers(f"-Infinity, -{'9' * 400}.0"), b"", "too large for FP64"),
    ],
)
def test_a_request_that_does_not_fit_says_why(message: object, binary: bytes, what: str) -> None:
    with pytest.raises((InvalidRequest, NotOffered), match=what):
        parse(message, binary)


def test_a_long_json_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_converters, "MAX_JSON_BYTES", 10)
    with pytest.raises(InvalidRequest, match="at most 10 are allowed"):
        parse(b"not json at all")


def test_an_answer_is_json_with_the_raw_contents_of_the_binary_outputs_behind() -> None:
    outputs: dict[str, Array] = {"y": np.array([1.0, 2.0], np.float32), "z": np.array([[3]], np.int8)}
    response = InferResponse("m", outputs, "1", "a", {"upwell.route": "edge", "upwell.edge_ms": float("nan")})
    pieces, raws = write_infer_response(response, RequestedOutput(False, {"y": True}))
    text = b"".join(pieces)
    assert b"NaN" not in text
    assert json.loads(text) == {
        "model_name": "m",
        "model_version": "1",
        "id": "a",
        "parameters": {"upwell.route": "edge", "upwell.edge_ms": None},
        "outputs": [
            {"name": "y", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            {"name": "z", "shape": [1, 1], "datatype": "INT8", "data": [3]},
        ],
    }
    assert [bytes(raw) for raw in raws] == [outputs["y"].tobytes()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["name", "datatype", "shape", "data", "parameters"]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "id": JSON,
            "parameters": JSON,
            "outputs": JSON
            | st.lists(st.fixed_dictionaries({"name": st.text(max_size=4)}, optional={"parameters": JSON})),
            "inputs": JSON
            | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON).map(lambda given: {**TENSOR, **given}), max_size=3),
        },
    ),
    st.binary(max_size=12),
)
def test_whatever_is_sent_is_read_or_refused(message: dict[str, Any], binary: bytes) -> None:
    try:
        read = parse(message, binary)
    except InvalidRequest:
        pass
    else:
        assert set(read.request.inputs) == {tensor["name"] for tensor in message["inputs"]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [], "parameters": {"upwell.tag.privacy": "device", "upwell.tag.privacy": "x"}}',
        b'{"parameters": {"upwell.tag.privacy": "device"}, "inputs": [], "parameters": {}}',
    ],
)
def test_a_key_that_stands_twice_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="is repeated"):
        load_object(memoryview(body))


def test_the_key_that_stands_twice_is_found_without_comparing_each_with_all() -> None:
    """Else a body of half a megabyte, with its last key repeated, would keep a processor busy for a minute."""
    comparisons = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    pairs = [(Key(f"k{number}"), number) for number in range(500)]
    with pytest.raises(InvalidRequest, match="'k499' is repeated"):
        body_converters._without_doubles([*pairs, (Key("k499"), 0)])
    assert comparisons < 100


@pytest.mark.parametrize("value", ["cloud", True, ""])
def test_a_tag_that_header_and_body_give_differently_is_refused(value: str | bool) -> None:
    with pytest.raises(InvalidRequest, match="different values"):
        with_tags({"upwell.tag.privacy": value}, {"upwell-tag-privacy": "device"})
    assert with_tags({"upwell.tag.privacy": "device", "n": 1}, {"upwell-tag-privacy": "device"}) == {
        "upwell.tag.privacy": "device",
        "n": 1,
    }
