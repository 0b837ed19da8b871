"""What every `Dataplane` owes its callers, checked through a real server, a real socket and our client.

class TestMine(DataplaneContract):
    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        with my_dataplane() as dataplane:
            yield Subject(dataplane, "digits", {"image": pixels}, misshapen={"image": pixels[0]})
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from upwell.rpc.oip.v2.model_stream_pb2 import ModelStreamInferResponse
from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, ModelNotFound, Refused
from upwell.shared.oip.codec.converters import parse_infer_response, serialize_infer_request
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.model_stream import METHOD as STREAM_METHOD
from upwell.shared.oip.grpc.server.server import RunningServer, start_server
from upwell.shared.oip.grpc.server.servicer import SERVICE
from upwell.shared.tensors import Array, oip_datatype

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ContractSubject:
    """A dataplane and one of its models.

    `inputs` are all of the model's inputs and are answered the same way each time. `misshapen` are inputs of
    the right names and dtypes and a wrong shape; None for a model that takes every shape.
    """

    dataplane: Dataplane
    model: str
    inputs: Mapping[str, Array]
    misshapen: Mapping[str, Array] | None


class DataplaneContract:
    @pytest.fixture
    def subject(self) -> ContractSubject | Iterator[ContractSubject]:
        raise NotImplementedError("each suite gives its own")

    @pytest.fixture
    def server(self, subject: ContractSubject) -> Iterator[RunningServer]:
        server = start_server(subject.dataplane, ["127.0.0.1:0"], max_workers=16)
        yield server
        server.stop(grace_s=0)

    @pytest.fixture
    def client(self, server: RunningServer) -> Iterator[OipClient]:
        client = OipClient(server.addresses[0])
        yield client
        client.close()

    def test_is_live_and_ready(self, client: OipClient, subject: ContractSubject) -> None:
        assert client.server_live(TIMEOUT_S)
        assert client.ready(TIMEOUT_S)
        assert client.ready(TIMEOUT_S, subject.model)

    def test_says_who_it_is(self, client: OipClient) -> None:
        metadata = client.server_metadata(TIMEOUT_S)
        assert metadata.name
        assert metadata.version

    def test_describes_the_inputs_it_takes(self, client: OipClient, subject: ContractSubject) -> None:
        metadata = client.metadata(subject.model, TIMEOUT_S)
        assert metadata.name == subject.model
        assert metadata.versions
        assert {spec.name for spec in metadata.inputs} == set(subject.inputs)
        for spec in metadata.inputs:
            array = subject.inputs[spec.name]
            assert oip_datatype(array.dtype) == spec.datatype
            assert len(array.shape) == len(spec.shape)
            assert all(want in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True))

    def test_answers_with_the_outputs_it_describes(self, client: OipClient, subject: ContractSubject) -> None:
        specs = {spec.name: spec for spec in client.metadata(subject.model, TIMEOUT_S).outputs}
        response = client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S)
        assert response.model == subject.model
        assert set(response.outputs) == set(specs)
        for name, array in response.outputs.items():
            assert oip_datatype(array.dtype) == specs[name].datatype
            assert len(array.shape) == len(specs[name].shape)

    def test_the_id_comes_back_and_one_is_made_if_there_is_none(
        self, client: OipClient, subject: ContractSubject
    ) -> None:
        assert client.infer(InferRequest(subject.model, subject.inputs, id="a-1"), TIMEOUT_S).id == "a-1"
        first = client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).id
        second = client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).id
        assert first
        assert first != second

    def test_only_the_outputs_asked_for_are_sent(self, client: OipClient, subject: ContractSubject) -> None:
        name = client.metadata(subject.model, TIMEOUT_S).outputs[-1].name
        response = client.infer(InferRequest(subject.model, subject.inputs, outputs=(name,)), TIMEOUT_S)
        assert list(response.outputs) == [name]

    def test_many_callers_at_once_get_the_same_answer(self, client: OipClient, subject: ContractSubject) -> None:
        request = InferRequest(subject.model, subject.inputs)
        expected = client.infer(request, TIMEOUT_S).outputs
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: client.infer(request, TIMEOUT_S), range(12)))
        for answer in answers:
            for name, array in expected.items():
                np.testing.assert_array_equal(answer.outputs[name], array)

    def test_an_unknown_model_is_not_found(self, client: OipClient, subject: ContractSubject) -> None:
        assert not client.ready(TIMEOUT_S, "no-such-model")
        for kind, version in (("no-such-model", ""), (subject.model, "no-such-version")):
            assert not client.ready(TIMEOUT_S, kind, version)
            with pytest.raises(RemoteError) as metadata:
                client.metadata(kind, TIMEOUT_S, version)
            with pytest.raises(RemoteError) as infer:
                client.infer(InferRequest(kind, subject.inputs, version=version), TIMEOUT_S)
            assert metadata.value.kind is infer.value.kind is RemoteErrorKind.NOT_FOUND

    def test_the_same_errors_are_raised_in_process(self, subject: ContractSubject) -> None:
        with pytest.raises(ModelNotFound, match="no-such-model"):
            subject.dataplane.metadata("no-such-model")
        with pytest.raises(InvalidRequest):
            subject.dataplane.infer(InferRequest(subject.model, {}), Call())

    def test_requests_that_do_not_fit_are_invalid_and_harm_nobody(
        self, client: OipClient, subject: ContractSubject
    ) -> None:
        name, array = next(iter(subject.inputs.items()))
        other = np.zeros(array.shape, np.float64 if array.dtype != np.float64 else np.int8)
        wrong: list[InferRequest] = [
            InferRequest(subject.model, {}),
            InferRequest(subject.model, {**subject.inputs, "no-such-input": array}),
            InferRequest(subject.model, {**subject.inputs, name: other}),
            InferRequest(subject.model, subject.inputs, outputs=("no-such-output",)),
        ]
        if subject.misshapen is not None:
            wrong.append(InferRequest(subject.model, subject.misshapen))
        for request in wrong:
            with pytest.raises(RemoteError) as error:
                client.infer(request, TIMEOUT_S)
            assert error.value.kind is RemoteErrorKind.INVALID_ARGUMENT, (request, error.value)
        assert client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).outputs

    def test_an_unreadable_message_is_invalid_and_harms_nobody(
        self, server: RunningServer, client: OipClient, subject: ContractSubject
    ) -> None:
        with grpc.insecure_channel(server.addresses[0]) as channel:
            infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            with pytest.raises(grpc.RpcError) as error:
                infer(b"\x0a\x05ech", timeout=TIMEOUT_S)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).outputs

    def test_a_deadline_that_has_passed_is_not_worked_on(self, subject: ContractSubject) -> None:
        with pytest.raises((DeadlineExceeded, Refused)):
            subject.dataplane.infer(InferRequest(subject.model, subject.inputs), Call(deadline_s=time.monotonic() - 1))

    def test_a_caller_who_has_left_is_not_worked_for(self, subject: ContractSubject) -> None:
        gone = threading.Event()
        gone.set()
        with pytest.raises(CallerLeft):
            subject.dataplane.infer(InferRequest(subject.model, subject.inputs), Call(cancelled=gone))


class StreamedContract(DataplaneContract):
    """The same, and over a stream, which gRPC alone has."""

    def test_a_stream_answers_as_single_calls_do(
        self, server: RunningServer, client: OipClient, subject: ContractSubject
    ) -> None:
        expected = client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).outputs
        good = serialize_infer_request(InferRequest(subject.model, subject.inputs, id="streamed"))
        unknown = serialize_infer_request(InferRequest("no-such-model", subject.inputs, id="unknown"))
        with grpc.insecure_channel(server.addresses[0]) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/{STREAM_METHOD}")
            found = [
                ModelStreamInferResponse.FromString(data) for data in call(iter([unknown, good]), timeout=TIMEOUT_S)
            ]
        assert [one.infer_response.id for one in found] == ["unknown", "streamed"]
        assert "no-such-model" in found[0].error_message
        assert found[1].error_message == ""
        answered = parse_infer_response(found[1].infer_response.SerializeToString())
        assert set(answered.outputs) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(answered.outputs[name], array)
