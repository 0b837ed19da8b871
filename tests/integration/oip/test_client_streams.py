"""Streams of the client: many inferences over one call."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.integration.oip.harness import TIMEOUT_S
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.converters import StreamFailure, parse_stream_response
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import start_server


@pytest.fixture
def client() -> Iterator[OipClient]:
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=4)
    client = OipClient(server.addresses[0])
    yield client
    client.close()
    server.stop(0)


def request(number: int, elements: int = 4) -> InferRequest:
    return InferRequest("echo", {"fp32": np.full((1, elements), number, np.float32)}, id=f"r{number}")


def test_answers_come_in_order_and_one_that_fails_is_an_answer(client: OipClient) -> None:
    asked = [request(0), replace(request(1), model="none"), request(2, 200_000)]
    first, failed, last = client.infer_stream(iter(asked), TIMEOUT_S)
    assert [first.id, failed.id, last.id] == ["r0", "r1", "r2"]
    assert first.result().outputs["fp32"].tolist() == [[0] * 4]
    np.testing.assert_array_equal(last.result().outputs["fp32"], asked[2].inputs["fp32"])
    with pytest.raises(RemoteError, match="no model 'none'") as caught:
        failed.result()
    assert caught.value.kind is RemoteErrorKind.NOT_FOUND


def test_requests_are_taken_as_answers_come(client: OipClient) -> None:
    said: list[int] = []

    def questions() -> Iterator[InferRequest]:
        for number in range(3):
            yield request(number)
            said.append(number)

    for number, answer in enumerate(client.infer_stream(questions(), TIMEOUT_S)):
        assert answer.id == f"r{number}"
    assert said == [0, 1, 2]


def test_what_the_requests_raise_reaches_the_caller(client: OipClient) -> None:
    def breaking() -> Iterator[InferRequest]:
        yield request(0)
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(client.infer_stream(breaking(), TIMEOUT_S))
    unknown = replace(request(0), inputs={"x": np.array([1j])})
    with pytest.raises(InvalidRequest):
        list(client.infer_stream([unknown], TIMEOUT_S))
    assert client.infer(request(1), TIMEOUT_S).id == "r1"


def test_a_stream_ends_with_its_time_its_iterator_or_its_client(client: OipClient) -> None:
    def endless() -> Iterator[InferRequest]:
        while True:
            yield request(0)

    with pytest.raises(RemoteError) as caught:
        for _ in client.infer_stream(endless(), 0.2):
            pass
    assert caught.value.kind is RemoteErrorKind.DEADLINE
    answers = client.infer_stream(endless(), TIMEOUT_S)
    next(answers)
    answers.close()
    client.close()
    with pytest.raises(RemoteError, match="the client is closed"):
        next(client.infer_stream([request(0)], TIMEOUT_S))


@pytest.mark.parametrize("data", [b"\x0a\x01", b"\x12\x05abc", b"\xff" * 9])
def test_a_message_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read as a ModelStreamInferResponse"):
        parse_stream_response(data)


def test_another_server_s_error_has_no_status() -> None:
    assert parse_stream_response(b"\x0a\x04late") == StreamFailure("", "late", "")
