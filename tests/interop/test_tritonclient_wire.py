"""tritonclient and our own client in one process, both made from the same protocol, calling one server."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import service_pb2 as triton_pb
from tritonclient.utils import InferenceServerException

from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.tensors import DTYPES, Array

TIMEOUT_S = 10.0
RANDOM = np.random.default_rng(7)


@pytest.fixture
def fake() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def address(fake: FakeDataplane) -> Iterator[str]:
    server = start_server(fake, ["127.0.0.1:0"], max_workers=4)
    yield server.addresses[0]
    server.stop(0)


@pytest.fixture
def theirs(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as client:
        yield client


@pytest.fixture
def ours(address: str) -> Iterator[OipClient]:
    client = OipClient(address)
    yield client
    client.close()


def example(datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array([[b"", b"\0\xff"], ["é".encode(), b"x" * 1000]], dtype=np.object_)
    return RANDOM.integers(0, 2, (2, 3)).astype(DTYPES[datatype])


def triton_input(name: str, datatype: str, array: Array) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    # tritonclient takes BF16 as float32 values and packs them itself.
    tensor.set_data_from_numpy(array.astype(np.float32) if datatype == "BF16" else array)
    return tensor


def test_health_and_metadata_agree(theirs: Any, ours: OipClient) -> None:
    assert theirs.is_server_live() is ours.server_live(TIMEOUT_S) is True
    assert theirs.is_server_ready() is ours.ready(TIMEOUT_S) is True
    for model in ("echo", "no-such-model"):
        assert theirs.is_model_ready(model) is ours.ready(TIMEOUT_S, model) is (model == "echo")
    server, mine = theirs.get_server_metadata(), ours.server_metadata(TIMEOUT_S)
    assert (server.name, server.version, tuple(server.extensions)) == (mine.name, mine.version, mine.extensions)
    model_metadata, our_metadata = theirs.get_model_metadata("echo"), ours.metadata("echo", TIMEOUT_S)
    assert (model_metadata.platform, tuple(model_metadata.versions)) == (our_metadata.platform, our_metadata.versions)
    assert [(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in model_metadata.inputs] == [
        (spec.name, spec.datatype, spec.shape) for spec in our_metadata.inputs
    ]


@pytest.mark.parametrize("datatype", list(DTYPES))
def test_both_get_the_same_tensor_back(theirs: Any, ours: OipClient, fake: FakeDataplane, datatype: str) -> None:
    name, array = datatype.lower(), example(datatype)
    answer = theirs.infer("echo", [triton_input(name, datatype, array)], request_id="t-1")
    response = ours.infer(InferRequest("echo", {name: array}), TIMEOUT_S)
    assert answer.get_response().id == "t-1"
    assert answer.get_output(name).datatype == datatype
    for found in (response.outputs[name], *(request.inputs[name] for request in fake.requests)):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    expected = array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
    np.testing.assert_array_equal(answer.as_numpy(name), expected)


def test_several_tensors_parameters_and_chosen_outputs(theirs: Any) -> None:
    wanted = ["int64", "bytes"]
    answer = theirs.infer(
        "echo",
        [triton_input(name.lower(), name, example(name)) for name in ("INT64", "BYTES", "FP16")],
        outputs=[triton.InferRequestedOutput(name) for name in wanted],
        parameters={"upwell.tag.camera": "dock"},
    )
    assert [tensor.name for tensor in answer.get_response().outputs] == wanted
    assert answer.get_response().parameters["upwell.tag.camera"].string_param == "dock"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors(theirs: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    found = theirs.infer("echo", [triton_input("fp32", "FP32", array)]).as_numpy("fp32")
    assert found.shape == shape


def test_asynchronous_inference(theirs: Any) -> None:
    array = example("FP32")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def note(result: Any, error: Any) -> None:
        answers.put((result, error))

    theirs.async_infer("echo", [triton_input("fp32", "FP32", array)], note)
    result, error = answers.get(timeout=TIMEOUT_S)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("fp32"), array)


@pytest.mark.parametrize(
    ("model", "name", "status"),
    [("no-such-model", "fp32", "StatusCode.NOT_FOUND"), ("echo", "no-such-input", "StatusCode.INVALID_ARGUMENT")],
)
def test_errors_arrive_with_status_and_sentence(theirs: Any, model: str, name: str, status: str) -> None:
    with pytest.raises(InferenceServerException, match="no-such") as error:
        theirs.infer(model, [triton_input(name, "FP32", np.zeros(1, np.float32))])
    assert error.value.status() == status


def test_what_would_be_answered_wrongly_is_refused(theirs: Any) -> None:
    ranked = triton.InferRequestedOutput("bool", class_count=3)
    with pytest.raises(InferenceServerException, match="'bool' has no numbers, so 'classification' does not apply"):
        theirs.infer("echo", [triton_input("bool", "BOOL", np.zeros(1, np.bool_))], outputs=[ranked])
    shared = triton.InferInput("fp32", [1], "FP32")
    shared.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="'shared_memory_region' is not supported"):
        theirs.infer("echo", [shared])


def test_what_the_protocol_does_not_have_is_unimplemented(theirs: Any) -> None:
    with pytest.raises(InferenceServerException) as error:
        theirs.get_model_repository_index()
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"


def test_a_late_answer_ends_at_the_client_s_timeout(theirs: Any, fake: FakeDataplane) -> None:
    fake.hold()
    with pytest.raises(InferenceServerException) as error:
        theirs.infer("echo", [triton_input("fp32", "FP32", np.zeros(1, np.float32))], client_timeout=0.05)
    assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_a_stream_of_requests(theirs: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    theirs.start_stream(lambda result, error: answers.put((result, error)))
    arrays = [np.full((2, 3), number, np.float32) for number in range(6)]
    for number, array in enumerate(arrays):
        model = "no-such-model" if number == 3 else "echo"
        given = [triton_input("fp32", "FP32", array)]
        theirs.async_stream_infer(model, given, request_id=f"r{number}", enable_empty_final_response=True)
    for number, array in enumerate(arrays):
        result, error = answers.get(timeout=TIMEOUT_S)
        if number == 3:
            assert "no-such-model" in error.message()
            continue
        assert error is None
        assert result.get_response().id == f"r{number}"
        assert result.get_response().parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("fp32"), array)
    theirs.stop_stream()
    assert answers.empty()


def test_a_stream_that_is_given_up(theirs: Any, fake: FakeDataplane) -> None:
    fake.hold()
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    theirs.start_stream(lambda result, error: answers.put((result, error)))
    theirs.async_stream_infer("echo", [triton_input("fp32", "FP32", np.zeros(1, np.float32))])
    assert fake.arrived(1, TIMEOUT_S)
    theirs.stop_stream(cancel_requests=True)
    result, error = answers.get(timeout=TIMEOUT_S)
    assert result is None
    assert error.status() == "StatusCode.CANCELLED"
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_triton_s_generated_stub_calls_our_server(address: str) -> None:
    from tritonclient.grpc import service_pb2_grpc as triton_grpc

    with grpc.insecure_channel(address) as channel:
        stub = triton_grpc.GRPCInferenceServiceStub(channel)
        contents = triton_pb.InferTensorContents(fp32_contents=[1.5, 2.5])
        request = triton_pb.ModelInferRequest(model_name="echo")
        request.inputs.add(name="fp32", datatype="FP32", shape=[2], contents=contents)
        response = stub.ModelInfer(request, timeout=TIMEOUT_S)
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [1.5, 2.5]


def fields(message: Descriptor) -> dict[int, tuple[Any, ...]]:
    return {field.number: (field.name, field.type, _is_repeated(field)) for field in message.fields}


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def test_every_field_of_ours_is_theirs() -> None:
    """On the wire a field is its number and type; Triton has more of them, and none that differs."""
    compared = []
    stack = [message for file in (pb, stream_pb) for message in file.DESCRIPTOR.message_types_by_name.values()]
    while stack:
        message = stack.pop()
        path = message.full_name.removeprefix("upwell.rpc.oip.v2.").split(".")
        other = triton_pb.DESCRIPTOR.message_types_by_name[path[0]]
        for name in path[1:]:
            other = other.nested_types_by_name[name]
        assert fields(message).items() <= fields(other).items(), path
        compared.append(path)
        stack.extend(message.nested_types)
    assert len(compared) > 20
