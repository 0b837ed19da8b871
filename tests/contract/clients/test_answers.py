"""What a client of either transport sends, gets back and tells, where all goes well."""

from __future__ import annotations

import math
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.contract.clients.harness import REQUEST, TIMEOUT_S, Connect, Serve, Transport, error_of
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest, InferResponse, Parameter
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.triton_extensions import add_introspection_methods
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.introspection import ModelConfig
from upwell.shared.oip.open_client import Pending
from upwell.shared.tensors import DTYPES, Array

SHAPES = [(), (1,), (0,), (2, 0, 3), (2, 3), (1, 20_000)]
TEXTS = (b"", b"a", b"\0\xff", "größer".encode(), b"x" * 300)


def tensor(datatype: str, shape: tuple[int, ...]) -> Array:
    """Values of that datatype that differ."""
    count = math.prod(shape)
    if datatype == "BYTES":
        array = np.empty(count, np.object_)
        array[:] = [TEXTS[index % len(TEXTS)] for index in range(count)]
        return array.reshape(shape)
    return (np.arange(count) % 2).astype(DTYPES[datatype]).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tensors_of_every_datatype_go_there_and_back(
    serve: Serve, connect: Connect, fake: FakeDataplane, shape: tuple[int, ...]
) -> None:
    inputs = {datatype.lower(): tensor(datatype, shape) for datatype in DTYPES}
    answer = connect(serve()).infer(InferRequest("echo", inputs), TIMEOUT_S)
    for found in (fake.requests[0].inputs, answer.outputs):
        assert list(found) == list(inputs)
        for name, array in inputs.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, shape)
            np.testing.assert_array_equal(found[name], array)


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 65504.0])
ODDLY_LAID: dict[str, Array] = {
    "every second": np.arange(20, dtype=np.float32).reshape(4, 5)[::2, ::2],
    "by columns": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "the other byte order": np.arange(6, dtype=np.float32).astype(np.dtype("float32").newbyteorder("S")),
    "no finite numbers": SPECIAL.astype(np.float32),
    "read only": np.broadcast_to(np.float32(2.5), (3, 4)),
}


@pytest.mark.parametrize("how", ODDLY_LAID)
def test_however_it_lies_in_memory(serve: Serve, connect: Connect, how: str) -> None:
    array = ODDLY_LAID[how]
    inputs: dict[str, Array] = {"fp32": array, "bytes": np.array(["è", "b"])}
    answer = connect(serve()).infer(InferRequest("echo", inputs), TIMEOUT_S)
    np.testing.assert_array_equal(answer.outputs["fp32"], array)
    assert answer.outputs["fp32"].dtype == np.float32
    assert answer.outputs["bytes"].tolist() == ["è".encode(), b"b"]


def test_ids_versions_parameters_and_wanted_outputs_arrive(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    parameters: dict[str, Parameter] = {
        "text": "größer\n", "empty": "", "yes": True, "no": False, "low": -(2**63), "high": 2**64 - 1, "half": 0.5,
        "whole": 2.0, "small": 5e-324,
    }  # fmt: skip
    inputs: dict[str, Array] = {"fp32": np.ones(2, np.float32), "int8": np.zeros(1, np.int8)}
    request = InferRequest("echo", inputs, "1", "id-ü", ("int8",), parameters)
    answer = client.infer(request, TIMEOUT_S)
    seen = fake.requests[0]
    assert (seen.model, seen.version, seen.id, seen.outputs) == ("echo", "1", "id-ü", ("int8",))
    assert (answer.model, answer.version, answer.id, list(answer.outputs)) == ("echo", "1", "id-ü", ["int8"])
    for found in (seen.parameters, answer.parameters):
        assert dict(found) == parameters
        assert {key: type(value) for key, value in found.items()} == {
            key: type(value) for key, value in parameters.items()
        }
    first, second = (client.infer(InferRequest("echo", EXAMPLE), TIMEOUT_S).id for _ in range(2))
    assert first
    assert first != second


WRONG: dict[str, InferRequest] = {
    "a number of no datatype": InferRequest("echo", {"fp32": np.zeros(1, complex)}),
    "an object that is no text": InferRequest("echo", {"bytes": np.array([1, None], np.object_)}),
    "a parameter of 65 bits": InferRequest("echo", EXAMPLE, parameters={"n": 2**64}),
    "a negative one": InferRequest("echo", EXAMPLE, parameters={"n": -(2**63) - 1}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_the_protocol_cannot_carry_is_not_sent(
    serve: Serve, connect: Connect, fake: FakeDataplane, what: str
) -> None:
    client = connect(serve())
    for ask in (client.infer, client.infer_async):
        with pytest.raises(InvalidRequest):
            ask(WRONG[what], TIMEOUT_S)
    assert fake.requests == []


def test_every_question_has_its_answer(
    serve: Serve, connect: Connect, fake: FakeDataplane, transport: Transport
) -> None:
    client = connect(serve())
    assert client.server_live(TIMEOUT_S)
    assert client.ready(TIMEOUT_S)
    for name, version, expected in (
        ("echo", "", True),
        ("echo", "1", True),
        ("echo", "2", False),
        ("a/b ?", "", False),
    ):
        assert client.ready(TIMEOUT_S, name, version) is expected
    found, said = client.server_metadata(TIMEOUT_S), fake.server_metadata()
    added = {"binary_tensor_data"} if transport.name == "http" else set()
    assert (found.name, found.version, set(found.extensions)) == (said.name, said.version, {*said.extensions, *added})
    assert client.metadata("echo", TIMEOUT_S) == client.metadata("echo", TIMEOUT_S, "1") == fake.metadata("echo")
    for name, version in (("a/b ?", ""), ("größer", ""), ("..", ""), ("echo", "2")):
        assert error_of(partial(client.metadata, name, TIMEOUT_S, version)).kind is RemoteErrorKind.NOT_FOUND
    fake.is_ready = False
    assert not client.ready(TIMEOUT_S)
    assert not client.ready(TIMEOUT_S, "echo")
    assert client.server_live(TIMEOUT_S)


def test_the_parameters_of_a_model_s_configuration_are_read(
    serve: Serve, connect: Connect, fake: FakeDataplane, transport: Transport
) -> None:
    class Told:
        def config(self, model: str, version: str = "") -> ModelConfig:
            found = fake.metadata(model, version)
            sides = (found.inputs, found.outputs)
            return ModelConfig(model, found.versions, "", "", *sides, parameters={"upwell.digest": "sha256:ü"})

    told: Any = Told()
    beside: dict[str, Any] = (
        {"extensions": Extensions(told)}
        if transport.name == "http"
        else {"extra": [lambda server: add_introspection_methods(server, told)]}
    )
    client = connect(serve(**beside))
    assert client.config_parameters("echo", TIMEOUT_S) == {"upwell.digest": "sha256:ü"}
    assert error_of(lambda: client.config_parameters("none", TIMEOUT_S)).kind is RemoteErrorKind.NOT_FOUND
    silent = connect(serve())
    kinds = (RemoteErrorKind.NOT_FOUND, RemoteErrorKind.UNIMPLEMENTED)
    assert error_of(lambda: silent.config_parameters("echo", TIMEOUT_S)).kind in kinds, "an extension"


def test_warming_up_tells_whether_it_was_answered(serve: Serve, connect: Connect) -> None:
    server = serve()
    told: queue.Queue[bool] = queue.Queue()
    connect(server).warm_up(TIMEOUT_S, told.put)
    assert told.get(timeout=TIMEOUT_S) is True
    server.stop(0)
    connect(server).warm_up(TIMEOUT_S, told.put)
    assert told.get(timeout=TIMEOUT_S) is False


def test_a_pending_call_tells_how_it_ended_and_what_it_moved(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    fake.hold()
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    told: queue.Queue[Pending] = queue.Queue()
    pending.add_done_callback(told.put)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        pending.result(0.01)
    assert (pending.done(), pending.received_bytes) == (False, 0)
    fake.release()
    assert pending.result(TIMEOUT_S).outputs["fp32"].tolist() == EXAMPLE["fp32"].tolist()
    assert told.get(timeout=TIMEOUT_S) is pending
    assert pending.done()
    for size_bytes in (pending.sent_bytes, pending.received_bytes):
        assert EXAMPLE["fp32"].nbytes < size_bytes < 1000
    pending.cancel()
    assert pending.result().id == "request-1"
    pending.add_done_callback(told.put)
    assert told.get_nowait() is pending


def test_bytes_are_counted_with_the_tensors_in_them(serve: Serve, connect: Connect) -> None:
    pending = connect(serve()).infer_async(InferRequest("echo", {"uint8": np.zeros(300_000, np.uint8)}), TIMEOUT_S)
    pending.result(TIMEOUT_S)
    assert 300_000 < pending.sent_bytes < 301_000
    assert 300_000 < pending.received_bytes < 301_000


def test_a_request_is_serialized_once_and_sent_twice(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    data = serialize_infer_request(REQUEST)
    place = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    for pending in [client.infer_async(data, TIMEOUT_S, place) for _ in range(2)]:
        assert pending.result(TIMEOUT_S).id == "request-1"
    client.infer_async(REQUEST, TIMEOUT_S).result()
    assert sorted(call.traceparent for call in fake.calls) == ["", place, place]


def test_the_callers_deadline_is_passed_on(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    before_s = time.monotonic()
    client.infer(REQUEST, 60.0)
    client.infer(REQUEST, math.inf)
    # gRPC sends a deadline in few digits and rounds it up.
    assert before_s + 59.0 < fake.calls[0].deadline_s < time.monotonic() + 61.0
    assert fake.calls[1].deadline_s == math.inf


def test_many_threads_share_one_client(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    barrier = threading.Barrier(8)

    def ask(number: int) -> list[bool]:
        barrier.wait(TIMEOUT_S)
        sent = [np.full((3, 5), 100 * number + turn, np.int32) for turn in range(5)]
        answers = [client.infer(InferRequest("echo", {"int32": one}), TIMEOUT_S) for one in sent]
        return [bool((one.outputs["int32"] == two).all()) for one, two in zip(answers, sent, strict=True)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [[True] * 5] * 8


def test_many_wait_for_one_answer(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(pending.result, TIMEOUT_S) for _ in range(4)]
        assert fake.arrived(1, TIMEOUT_S)
        fake.release()
        answers: list[InferResponse] = [one.result(TIMEOUT_S) for one in waiting]
    assert [answer.id for answer in answers] == ["request-1"] * 4


def test_many_that_give_up_and_many_that_do_not_get_each_their_own_answer(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    """What somebody gave up is never another's."""
    fake.delay_s = 0.002
    client = connect(serve(), silence_s=4.0)

    def ask(number: int) -> bool:
        """Whether it was given up in time: an answer that came before stays."""
        sent = np.full((1, 10_000 if number % 3 else 4), number, np.float32)
        pending = client.infer_async(InferRequest("echo", {"fp32": sent}, id=str(number)), TIMEOUT_S)
        may_be_cancelled = number % 2 == 1 and not pending.done()
        if number % 2:
            pending.cancel()
        try:
            answer = pending.result()
        except RemoteError as error:
            if not may_be_cancelled or error.kind is not RemoteErrorKind.CANCELLED:
                raise
            return True
        assert (answer.model, answer.id, list(answer.outputs)) == ("echo", str(number), ["fp32"])
        np.testing.assert_array_equal(answer.outputs["fp32"], sent, strict=True)
        return False

    with ThreadPoolExecutor(8) as callers:
        assert sum(callers.map(ask, range(200))) > 50
