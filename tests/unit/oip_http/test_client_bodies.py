"""What a client writes is what the server reads, and the other way round; everything else is refused."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.http.body_converters import (
    RequestedOutput,
    error_text,
    parse_infer_request,
    parse_infer_response,
    write_infer_request,
    write_infer_response,
)
from upwell.shared.tensors import DTYPES, Array

TENSORS: dict[str, Array] = {name.lower(): np.ones((2, 3)).astype(dtype) for name, dtype in DTYPES.items()}
TENSORS["bytes"] = np.array([b"", b"\xff\0"], dtype=np.object_)
TENSORS["nan"] = np.array([np.nan, np.inf], np.float32)
TENSORS["empty"] = np.zeros((0, 4), np.float32)


def assert_same(found: Any, tensors: dict[str, Array]) -> None:
    assert list(found) == list(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_request_is_read_as_it_was_meant() -> None:
    request = InferRequest(
        "m", TENSORS, id="a", outputs=("x", "y"), parameters={"b": True, "n": 2**60, "f": 0.5, "t": "é"}
    )
    head, raws = write_infer_request(request)
    read = parse_infer_request("m", "", memoryview(head), memoryview(b"".join(raws)))
    assert (read.request.id, read.request.outputs, read.request.parameters) == ("a", ("x", "y"), request.parameters)
    assert read.wanted.is_binary("x")
    assert_same(read.request.inputs, TENSORS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_parameter_that_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest):
        write_infer_request(InferRequest("m", {}, parameters={"f": value}))


@pytest.mark.parametrize("binary", [True, False])
def test_an_answer_is_read_as_it_was_meant(binary: bool) -> None:
    tensors = {name: array for name, array in TENSORS.items() if binary or name != "nan"}
    response = InferResponse("m", tensors, "3", "a", {"upwell.route": "cloud", "lost": math.inf})
    pieces, raws = write_infer_response(response, RequestedOutput(binary, {}))
    head = b"".join(pieces)
    found = parse_infer_response(b"".join([head, *raws]), len(head))
    assert (found.model, found.version, found.id) == ("m", "3", "a")
    assert found.parameters == {"upwell.route": "cloud"}
    assert_same(found.outputs, tensors)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_comes_is_read_or_refused(body: bytes, at: int) -> None:
    whole = json.dumps(
        {"model_name": "m", "outputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    )
    mixed = whole.encode()[:at] + body
    for data in (body, mixed):
        with contextlib.suppress(InvalidRequest):
            parse_infer_response(data, min(at, len(data)))
        assert error_text(data).isprintable()
