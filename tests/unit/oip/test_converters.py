"""Messages, as other implementations write them, to values and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from upwell.rpc.oip.v2 import model_stream_pb2
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest, NotOffered
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.tensor_contents import MAX_MESSAGE_BYTES, MIN_SPLIT_BYTES, refuse_larger
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.tensors import TensorSpec


def request(**fields: Any) -> pb.ModelInferRequest:
    """A readable request with one FP32 input of two elements, changed by `fields`."""
    message = pb.ModelInferRequest(model_name="m", model_version="3", id="7")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    message.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    message.MergeFrom(pb.ModelInferRequest(**fields))
    return message


def parse(message: pb.ModelInferRequest) -> InferRequest:
    return converters.parse_infer_request(message.SerializeToString())


def test_a_request_as_generated_code_writes_it() -> None:
    message = request(outputs=[{"name": "b"}, {"name": "a"}])
    message.inputs.add(name="s", datatype="BYTES", shape=[2])
    message.raw_input_contents.append(b"\1\0\0\0a\0\0\0\0")
    message.parameters["flag"].bool_param = True
    message.parameters["count"].int64_param = -5
    message.parameters["huge"].uint64_param = 2**64 - 1
    message.parameters["ratio"].double_param = 0.25
    message.parameters["text"].string_param = "ü"
    found = parse(message)
    assert (found.model, found.version, found.id, found.outputs) == ("m", "3", "7", ("b", "a"))
    assert found.parameters == {"flag": True, "count": -5, "huge": 2**64 - 1, "ratio": 0.25, "text": "ü"}
    assert list(found.inputs) == ["x", "s"]
    assert found.inputs["x"].tolist() == [[1, 2]]
    assert found.inputs["s"].tolist() == [b"a", b""]


def test_typed_inputs() -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT16", shape=[2], contents=pb.InferTensorContents(int_contents=[1, -1]))
    message.inputs.add(name="s", datatype="BYTES", shape=[], contents=pb.InferTensorContents(bytes_contents=[b"\0"]))
    message.inputs.add(name="none", datatype="FP16", shape=[0])
    found = parse(message)
    assert found.inputs["x"].dtype == np.int16
    assert found.inputs["x"].tolist() == [1, -1]
    assert found.inputs["s"].item() == b"\0"
    assert found.inputs["none"].dtype == np.float16


def test_empty_typed_contents_beside_raw_ones_are_no_contradiction() -> None:
    message = request()
    message.inputs[0].contents.SetInParent()
    assert parse(message).inputs["x"].tolist() == [[1, 2]]


def _twice(message: pb.ModelInferRequest) -> None:
    message.inputs.add(name="x", datatype="FP32", shape=[0])
    message.raw_input_contents.append(b"")


def _same_output_twice(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="y")
    message.outputs.add(name="y")


def _both_forms(message: pb.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.append(1)


def _too_few(message: pb.ModelInferRequest) -> None:
    message.inputs.add(name="z", datatype="FP32", shape=[1])


def _raw_alone(message: pb.ModelInferRequest) -> None:
    del message.inputs[:]


def _shared_memory(message: pb.ModelInferRequest) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"


def _one_in_shared_memory(message: pb.ModelInferRequest) -> None:
    _too_few(message)
    message.inputs[1].parameters["shared_memory_region"].string_param = "r"


def _classification(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="y").parameters["classification"].int64_param = -3


def _output_in_shared_memory(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="y").parameters["shared_memory_region"].string_param = "r"


def _in_a_sequence(message: pb.ModelInferRequest) -> None:
    message.parameters["sequence_id"].int64_param = 7


def _empty_parameter(message: pb.ModelInferRequest) -> None:
    message.parameters["p"].SetInParent()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_twice, "the input 'x' is repeated"),
        (_same_output_twice, "the requested output 'y' is repeated"),
        (_both_forms, "tensor 'x' has both typed and raw contents"),
        (_too_few, "2 input tensors need as many raw contents, got 1"),
        (_raw_alone, "0 input tensors need as many raw contents, got 1"),
        (_shared_memory, "'x': the parameter 'shared_memory_region' is not supported"),
        (_one_in_shared_memory, "'z': the parameter 'shared_memory_region' is not supported"),
        (_output_in_shared_memory, "'y': the parameter 'shared_memory_region' is not supported"),
        (_in_a_sequence, "the parameter 'sequence_id' is not supported"),
        (_classification, "'y': expected 'classification' to be a whole number of classes"),
        (_empty_parameter, "the parameter 'p' has no value"),
    ],
)
def test_requests_that_contradict_themselves(spoil: Callable[[pb.ModelInferRequest], None], error: str) -> None:
    message = request()
    spoil(message)
    with pytest.raises((InvalidRequest, NotOffered), match=error):
        parse(message)


def test_a_request_of_no_sequence_is_read() -> None:
    message = request()
    message.parameters["sequence_id"].int64_param = 0
    message.parameters["sequence_start"].bool_param = False
    assert parse(message).parameters == {"sequence_id": 0, "sequence_start": False}


@pytest.mark.parametrize("data", [b"\x0a\x05ech", b"\xff" * 20, b"\x0a\x02\xff\xfe", b"\x3a\xff\xff\xff\xff\x7f"])
def test_unreadable_messages(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the message cannot be read as a ModelInferRequest"):
        converters.parse_infer_request(data)
    with pytest.raises(InvalidRequest, match="cannot be read as a ModelInferResponse"):
        converters.parse_infer_response(data)


def test_what_we_write_is_read_by_generated_code() -> None:
    values = InferRequest(
        "m",
        {"x": np.ones((2, 0, 1), np.uint8), "y": np.array(2.5, ml_dtypes.bfloat16), "z": np.zeros(100_000, np.int8)},
        version="1",
        id="i",
        outputs=("a",),
        parameters={"t": True, "i": 3, "f": 0.5, "s": "x", "u": 2**63},
    )
    message = pb.ModelInferRequest.FromString(converters.serialize_infer_request(values))
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in message.inputs] == [
        ("x", "UINT8", [2, 0, 1]),
        ("y", "BF16", []),
        ("z", "INT8", [100_000]),
    ]
    assert list(message.raw_input_contents) == [b"", b"\x20\x40", b"\0" * 100_000]
    assert [output.name for output in message.outputs] == ["a"]
    assert message.parameters["t"].WhichOneof("parameter_choice") == "bool_param"
    assert message.parameters["i"].int64_param == 3
    assert message.parameters["f"].double_param == 0.5
    assert message.parameters["s"].string_param == "x"
    assert message.parameters["u"].uint64_param == 2**63


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_a_parameter_that_fits_no_integer(value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"the parameter 'p' is {value}, which does not fit 64 bits"):
        converters.serialize_infer_request(InferRequest("m", {}, parameters={"p": value}))


def test_tensors_larger_than_a_message_are_refused_before_memory_is_taken() -> None:
    huge = np.broadcast_to(np.zeros(1, np.uint8), (2**40,))
    refuse_larger("a message of the largest size", MAX_MESSAGE_BYTES)
    with pytest.raises(InvalidRequest, match="tensor 'x' would take 1099511627776 bytes; a message can have at most"):
        converters.serialize_infer_request(InferRequest("m", {"x": huge}))


def test_tensors_that_are_too_large_together_are_refused_before_they_are_joined() -> None:
    # Untouched zeros take no memory, and neither does a view of them.
    part = np.zeros(2**30, np.uint8)
    with pytest.raises(InvalidRequest, match=r"the message would take 21474837\d\d bytes"):
        converters.serialize_infer_request(InferRequest("m", {"x": part, "y": part}))


def test_a_response_comes_back() -> None:
    response = InferResponse(
        "m",
        {"y": np.eye(2), "n": np.zeros((0, 4), np.float16), "big_endian": np.array([2.5], ">f4")},
        "2",
        "i",
        {"upwell.route": "edge"},
    )
    found = converters.parse_infer_response(converters.serialize_infer_response(response))
    assert (found.model, found.version, found.id, found.parameters) == ("m", "2", "i", {"upwell.route": "edge"})
    np.testing.assert_array_equal(found.outputs["y"], np.eye(2))
    assert found.outputs["n"].shape == (0, 4)
    assert found.outputs["big_endian"].tolist() == [2.5]


def test_a_large_response_is_a_view_of_its_message() -> None:
    data = converters.serialize_infer_response(InferResponse("m", {"y": np.zeros(MIN_SPLIT_BYTES, np.uint8)}))
    assert np.shares_memory(converters.parse_infer_response(data).outputs["y"], np.frombuffer(data, np.uint8))


def test_typed_answers_of_other_servers_are_read() -> None:
    message = pb.ModelInferResponse(model_name="m")
    message.outputs.add(name="y", datatype="FP64", shape=[1], contents=pb.InferTensorContents(fp64_contents=[0.5]))
    assert converters.parse_infer_response(message.SerializeToString()).outputs["y"].tolist() == [0.5]


def test_metadata_comes_back() -> None:
    server = ServerMetadata("s", "1", ("a", "b"))
    assert converters.parse_server_metadata(converters.serialize_server_metadata(server)) == server
    specs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("s", "BYTES", ()))
    model = ModelMetadata("m", ("1", "2"), "onnx", specs, specs[:1])
    assert converters.parse_model_metadata(converters.serialize_model_metadata(model)) == model
    assert converters.parse_model_name(converters.serialize_model_name("m", "2")) == ("m", "2")
    assert [converters.parse_flag(converters.serialize_flag(flag)) for flag in (True, False)] == [True, False]


def test_messages_read_in_one_another_s_place_have_the_same_fields() -> None:
    """`converters` reads live, ready and named requests by one type each; that holds only while they are alike."""

    def layout(kind: Any) -> list[tuple[int, int]]:
        return [(field.number, field.type) for field in kind.DESCRIPTOR.fields]

    assert layout(pb.ModelReadyRequest) == layout(pb.ModelMetadataRequest)
    assert layout(pb.ServerLiveResponse) == layout(pb.ServerReadyResponse) == layout(pb.ModelReadyResponse)
    assert [] == layout(pb.ServerLiveRequest) == layout(pb.ServerReadyRequest) == layout(pb.ServerMetadataRequest)


def test_an_error_in_a_stream_names_its_status_and_the_request_it_is_of() -> None:
    asked = parse(request())
    for of, told in ((asked, ("7", "m", "3")), (None, ("", "", ""))):
        data = converters.serialize_stream_error("too late", "DEADLINE_EXCEEDED", of)
        message = model_stream_pb2.ModelStreamInferResponse.FromString(data)
        answer = message.infer_response
        assert message.error_message == "too late"
        assert (answer.id, answer.model_name, answer.model_version) == told
        assert answer.parameters[converters.STATUS].string_param == "DEADLINE_EXCEEDED"
        assert answer.parameters[converters.FINAL].bool_param
