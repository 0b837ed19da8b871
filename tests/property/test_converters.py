"""Any request or answer survives the wire, and no bytes whatever do more than raise `InvalidRequest`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.converters import read_cached
from upwell.shared.oip.codec.tensor_contents import MIN_SPLIT_BYTES, TYPED_FIELDS, split_raw_contents
from upwell.shared.oip.codec.tensor_messages import write_parameters, write_tensor
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.tensors import DTYPES, Array

SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NAMES = st.text(max_size=8)
NUMBERS = [name for name in DTYPES if name not in ("BYTES", "BOOL")]
LARGE = np.zeros(MIN_SPLIT_BYTES, np.uint8)


def arrays_of(datatype: str) -> st.SearchStrategy[Array]:
    if datatype == "BYTES":
        return npst.arrays(np.object_, SHAPES, elements=st.binary(max_size=9), fill=st.nothing())
    if datatype in ("FP16", "BF16"):
        bits = npst.arrays(np.uint16, SHAPES)
        return bits.map(lambda array: array.view(DTYPES[datatype]))
    return npst.arrays(DTYPES[datatype], SHAPES)


ARRAYS = st.sampled_from(list(DTYPES)).flatmap(arrays_of)
TENSORS = st.dictionaries(NAMES, ARRAYS, max_size=4)
PARAMETERS = st.dictionaries(
    NAMES, st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | NAMES, max_size=4
)


def assert_same(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        # As bytes, for a NaN must keep its payload and is not equal to itself.
        assert (
            found[name].tolist() == array.tolist()
            if array.dtype == object
            else found[name].tobytes() == array.tobytes()
        )


@settings(deadline=None, max_examples=examples(150))
@given(NAMES, TENSORS, NAMES, NAMES, st.lists(NAMES, unique=True, max_size=3), PARAMETERS)
def test_requests_come_back(
    model: str, inputs: dict[str, Array], version: str, id_: str, outputs: list[str], parameters: dict[str, Any]
) -> None:
    request = InferRequest(model, inputs, version, id_, tuple(outputs), parameters)
    found = converters.parse_infer_request(converters.serialize_infer_request(request))
    assert_same(found.inputs, inputs)
    assert (found.model, found.version, found.id, found.outputs) == (model, version, id_, tuple(outputs))
    assert found.parameters == parameters
    assert {name: type(value) for name, value in found.parameters.items()} == {
        name: type(value) for name, value in parameters.items()
    }


@settings(deadline=None, max_examples=examples(100))
@given(NAMES, TENSORS, NAMES, NAMES, PARAMETERS)
def test_responses_come_back(
    model: str, outputs: dict[str, Array], version: str, id_: str, parameters: dict[str, Any]
) -> None:
    response = InferResponse(model, outputs, version, id_, parameters)
    found = converters.parse_infer_response(converters.serialize_infer_response(response))
    assert_same(found.outputs, outputs)
    assert (found.model, found.version, found.id, found.parameters) == (model, version, id_, parameters)


@settings(deadline=None, max_examples=examples(100))
@given(st.sampled_from(list(TYPED_FIELDS)).flatmap(lambda name: st.tuples(st.just(name), arrays_of(name))))
def test_typed_contents_are_the_same_as_raw_ones(case: tuple[str, Array]) -> None:
    datatype, array = case
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    getattr(tensor.contents, TYPED_FIELDS[datatype]).extend(array.ravel().tolist())
    found = converters.parse_infer_request(message.SerializeToString()).inputs["x"]
    if array.dtype.kind == "f":
        np.testing.assert_array_equal(found, array)
    else:
        assert_same({"x": found}, {"x": array})


PARSERS: list[Callable[[bytes], Any]] = [
    converters.parse_infer_request,
    converters.parse_infer_response,
    converters.parse_model_metadata,
    converters.parse_server_metadata,
    converters.parse_model_name,
    converters.parse_flag,
    converters.parse_empty,
]


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from(PARSERS), st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(parse: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse(data)


@settings(deadline=None, max_examples=examples(300))
@given(TENSORS, st.data())
def test_a_damaged_request_raises_nothing_else(inputs: dict[str, Array], data: st.DataObject) -> None:
    good = bytearray(converters.serialize_infer_request(InferRequest("model", inputs, id="id")))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(good[: data.draw(st.integers(0, len(good)))])
    with contextlib.suppress(InvalidRequest):
        converters.parse_infer_request(damaged)


@settings(deadline=None, max_examples=examples(100))
@given(TENSORS, st.integers(0, 9), st.data())
def test_large_requests_come_back_whatever_their_alignment(
    inputs: dict[str, Array], id_length: int, data: st.DataObject
) -> None:
    large = np.arange(MIN_SPLIT_BYTES // 8 + 1, dtype=np.float64)
    tensors = [*inputs.items(), ("large", large)]
    request = InferRequest("m", dict(data.draw(st.permutations(tensors))), id="i" * id_length)
    found = converters.parse_infer_request(converters.serialize_infer_request(request))
    assert_same(found.inputs, request.inputs)
    assert all(array.flags.aligned for array in found.inputs.values())


@settings(deadline=None, max_examples=examples(300))
@given(TENSORS, st.data())
def test_a_large_message_taken_apart_is_read_as_protobuf_reads_it(
    inputs: dict[str, Array], data: st.DataObject
) -> None:
    good = converters.serialize_infer_request(InferRequest("model", {**inputs, "large": LARGE}, id="id"))
    spoilt = bytearray(good)
    head = len(good) - LARGE.nbytes
    for _ in range(data.draw(st.integers(0, 3))):
        spoilt[data.draw(st.integers(0, head - 1))] = data.draw(st.integers(0, 255))
    split = split_raw_contents(bytes(spoilt), pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER)
    if split is None:
        return
    description, raws = split
    try:
        whole = pb.ModelInferRequest.FromString(bytes(spoilt))
    except DecodeError:
        with pytest.raises(DecodeError):
            pb.ModelInferRequest.FromString(description)
        return
    part = pb.ModelInferRequest.FromString(description)
    assert [bytes(raw) for raw in raws] == list(whole.raw_input_contents)
    whole.ClearField("raw_input_contents")
    assert part == whole


@settings(deadline=None, max_examples=examples(150))
@given(TENSORS, PARAMETERS, st.lists(NAMES, unique=True, max_size=2), NAMES, st.data())
def test_a_familiar_request_is_read_as_protobuf_reads_it(
    inputs: dict[str, Array], parameters: dict[str, Any], outputs: list[str], id_: str, data: st.DataObject
) -> None:
    request = InferRequest("model", inputs, "", id_, tuple(outputs), parameters)
    whole = converters.serialize_infer_request(request)
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(spoilt[: data.draw(st.just(len(spoilt)) | st.integers(0, len(spoilt)))])
    moved = data.draw(st.integers(0, 8))  # fields may come in any order, and the last id counts
    between = b"\x1a\x02an"
    message = cut if moved else cut + between + cut
    try:
        read_cached(whole if moved else whole + between + whole)  # one of the same size, which is remembered
        remembered = read_cached(message)
    except InvalidRequest:
        remembered = None
    if remembered is not None:
        expected = converters.parse_unfamiliar_request(message)
        assert_same(remembered.inputs, expected.inputs)
        assert all(array.flags.aligned for array in remembered.inputs.values())
        for field in ("model", "version", "id", "outputs"):
            assert getattr(remembered, field) == getattr(expected, field)
        told = [repr(sorted(one.parameters.items())) for one in (remembered, expected)]  # NaN is no number's equal
        assert told[0] == told[1]


@settings(deadline=None, max_examples=examples(200))
@given(NAMES, st.dictionaries(NAMES, st.sampled_from(NUMBERS).flatmap(arrays_of), min_size=1, max_size=4), NAMES)
def test_plain_requests_are_familiar(model: str, inputs: dict[str, Array], id_: str) -> None:
    data = converters.serialize_infer_request(InferRequest(model, inputs, id=id_))
    assert (read_cached(data) is not None) == all(array.size for array in inputs.values())


@settings(deadline=None, max_examples=examples(200))
@given(NAMES, TENSORS, NAMES, NAMES, PARAMETERS)
def test_answers_are_what_generated_code_writes(
    model: str, outputs: dict[str, Array], version: str, id_: str, parameters: dict[str, Any]
) -> None:
    answer = InferResponse(model, outputs, version, id_, parameters)
    message = pb.ModelInferResponse(model_name=model, model_version=version, id=id_)
    write_parameters(message.parameters, parameters)
    message.raw_output_contents.extend(
        bytes(write_tensor(message.outputs.add(), name, array)) for name, array in outputs.items()
    )
    assert pb.ModelInferResponse.FromString(converters.serialize_infer_response(answer)) == message
    streamed = stream_pb.ModelStreamInferResponse.FromString(converters.serialize_stream_response(answer))
    message.parameters["triton_final_response"].bool_param = True
    assert streamed.infer_response == message or "triton_final_response" in parameters
    assert streamed.error_message == ""


SHAPE = st.lists(st.integers(-2, 3) | st.integers(-(2**63), 2**63 - 1), max_size=6)


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from([*DTYPES, "FLOAT", ""]), SHAPE, st.binary(max_size=64), st.booleans())
@example("FP32", [0, 2**62, 2**62], b"", True)
@example("BYTES", [2**62], b"", True)
@example("INT8", [1] * 40, b"a", True)
@example("BOOL", [2**31, 2**31, 0], b"", False)
def test_any_shape_is_read_or_refused(datatype: str, shape: list[int], data: bytes, raw: bool) -> None:
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    if raw:
        message.raw_input_contents.append(data)
    else:
        tensor.contents.bytes_contents.extend(data[at : at + 3] for at in range(0, len(data), 3))
    try:
        array = converters.parse_infer_request(message.SerializeToString()).inputs["x"]
    except InvalidRequest:
        return
    assert array.shape == tuple(shape)
