"""How a call over either transport ends without an answer: of the same kind, with the same words and the same hint."""

from __future__ import annotations

import math
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from tests.contract.clients.harness import REQUEST, TIMEOUT_S, Connect, Output, Serve, Transport, error_of
from tests.faults.raw_servers import RawServer
from upwell.shared.errors import ModelFailed, Refused, UpwellError
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.error_statuses import STATUSES
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import KINDS, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.open_client import Client

LARGE = InferRequest("echo", {"uint8": np.zeros(5 << 20, np.uint8)})
SHORT_S = 0.2
"""For calls that last until their deadline."""


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes what comes and never says a word."""
    with RawServer(lambda _: None) as server:
        yield server.address


@pytest.fixture
def hanging_up() -> Iterator[str]:
    """The address of a server that closes the connection once something has come."""

    def hang_up(connection: socket.socket) -> None:
        connection.recv(1)
        connection.shutdown(socket.SHUT_RDWR)

    with RawServer(hang_up) as server:
        yield server.address


@pytest.mark.parametrize("kind", list(STATUSES))
def test_each_error_has_its_kind_and_its_sentence(
    serve: Serve, connect: Connect, fake: FakeDataplane, kind: type[UpwellError]
) -> None:
    fake.failure = kind("what was wrong, with ünïcode")
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    for _ in range(2):
        error = error_of(pending.result)
        assert error.kind is KINDS.get(STATUSES[kind], RemoteErrorKind.INTERNAL)
        assert str(error) == f"{STATUSES[kind].name}: what was wrong, with ünïcode"
        assert error.retry_after_s is None
    assert (pending.done(), pending.received_bytes) == (True, 0)


def test_a_bug_is_internal_and_not_shown(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.failure = KeyError("a secret of the inside")
    error = error_of(lambda: connect(serve()).infer(REQUEST, TIMEOUT_S))
    assert (error.kind, str(error)) == (RemoteErrorKind.INTERNAL, "INTERNAL: internal error")


def test_a_long_sentence_is_cut(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.failure = ModelFailed("x" * 100_000)
    assert len(str(error_of(lambda: connect(serve()).infer(REQUEST, TIMEOUT_S)))) == len("INTERNAL: ") + 1000


HINTS = [
    (0.25, 0.25), (0.0401, 0.041), (1.0, 1.0), (2.5, 2.5), (3600.0, 3600.0),
    (1e-9, 0.001), (0.0, 0.001), (-1.0, 0.001), (1e9, 86400.0), (math.inf, 86400.0),
]  # fmt: skip


@pytest.mark.parametrize(("said_s", "told_s"), HINTS)
def test_a_refusal_says_when_to_come_back(
    serve: Serve, connect: Connect, fake: FakeDataplane, said_s: float, told_s: float
) -> None:
    fake.failure = Refused("the queue is full", retry_after_s=said_s)
    error = error_of(lambda: connect(serve()).infer(REQUEST, TIMEOUT_S))
    assert error.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
    assert error.retry_after_s == told_s


def test_a_call_too_many_is_refused_without_a_hint(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve(max_workers=2))
    held = [client.infer_async(REQUEST, TIMEOUT_S) for _ in range(2)]
    assert fake.arrived(2, TIMEOUT_S)
    error = error_of(lambda: client.infer(REQUEST, TIMEOUT_S))
    assert (error.kind, error.retry_after_s) == (RemoteErrorKind.RESOURCE_EXHAUSTED, None)
    fake.release()
    assert [pending.result(TIMEOUT_S).id for pending in held] == ["request-1"] * 2


def test_wrong_requests_are_named(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    wrong = {
        "the input 'fp32' is FP32, got FP64": InferRequest("echo", {"fp32": np.zeros(1)}),
        "has no input 'other'": InferRequest("echo", {"other": np.zeros(1)}),
        "the request has no inputs": InferRequest("echo", {}),
        "gives the output 'int8' only if": InferRequest("echo", EXAMPLE, outputs=("int8",)),
        "the id has 1001 characters": InferRequest("echo", EXAMPLE, id="x" * 1001),
    }
    for words, request in wrong.items():
        error = error_of(partial(client.infer, request, TIMEOUT_S))
        assert error.kind is RemoteErrorKind.INVALID_ARGUMENT
        assert words in str(error)
    for name in ("other", "a/b ?", "..", "größer", "", "x" * 5000):
        error = error_of(partial(client.infer, InferRequest(name, EXAMPLE), TIMEOUT_S))
        assert error.kind is RemoteErrorKind.NOT_FOUND, name
    assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def test_a_late_answer_is_waited_for_by_neither_side(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    pending = client.infer_async(REQUEST, SHORT_S)
    ended = threading.Event()
    pending.add_done_callback(lambda _: ended.set())
    error = error_of(pending.result)
    assert (error.kind, error.retry_after_s) == (RemoteErrorKind.DEADLINE, None)
    assert str(error).startswith("DEADLINE_EXCEEDED: ")
    assert ended.wait(TIMEOUT_S)
    assert (pending.done(), pending.received_bytes) == (True, 0)
    assert error_of(lambda: client.infer(REQUEST, SHORT_S)).kind is RemoteErrorKind.DEADLINE
    fake.release()
    assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def test_nothing_is_sent_before_the_first_call_nor_without_time(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = connect(f"127.0.0.1:{listener.getsockname()[1]}")
        for timeout_s in (0.0, -1.0):
            for call in (
                partial(client.infer, REQUEST, timeout_s),
                partial(client.infer_async, REQUEST, timeout_s),
                partial(client.server_live, timeout_s),
                partial(client.metadata, "echo", timeout_s),
                partial(client.warm_up, timeout_s, lambda _: None),
            ):
                assert error_of(call).kind is RemoteErrorKind.DEADLINE
        assert not select.select([listener], [], [], 0.1)[0]
        client.infer_async(REQUEST, SHORT_S)
        assert select.select([listener], [], [], TIMEOUT_S)[0]


def test_a_call_that_is_given_up_is_seen_by_the_server(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    pending = client.infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    pending.cancel()
    pending.cancel()
    assert error_of(lambda: pending.result(TIMEOUT_S)).kind is RemoteErrorKind.CANCELLED
    assert (pending.done(), pending.received_bytes) == (True, 0)
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)
    fake.release()
    assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def test_a_client_that_is_closed_ends_what_is_under_way(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lambda: error_of(lambda: client.infer(REQUEST, TIMEOUT_S)).kind) for _ in range(2)]
        pending = client.infer_async(REQUEST, TIMEOUT_S)
        assert fake.arrived(3, TIMEOUT_S)
        client.close()
        client.close()
        assert [one.result(TIMEOUT_S) for one in waiting] == [RemoteErrorKind.CANCELLED] * 2
    calls: list[Callable[[], object]] = [
        pending.result,
        lambda: client.infer(REQUEST, TIMEOUT_S),
        lambda: client.infer_async(REQUEST, TIMEOUT_S),
        lambda: client.server_live(TIMEOUT_S),
        lambda: client.ready(TIMEOUT_S, "echo"),
        lambda: client.warm_up(TIMEOUT_S, lambda _: None),
    ]
    for call in calls:
        assert error_of(call).kind is RemoteErrorKind.CANCELLED
    assert all(call.cancelled.wait(TIMEOUT_S) for call in fake.calls)


QUESTIONS: dict[str, Callable[[Client, float], object]] = {
    "infer": lambda client, timeout_s: client.infer(REQUEST, timeout_s),
    "live": lambda client, timeout_s: client.server_live(timeout_s),
    "ready": lambda client, timeout_s: client.ready(timeout_s),
    "model ready": lambda client, timeout_s: client.ready(timeout_s, "echo"),
    "server": lambda client, timeout_s: client.server_metadata(timeout_s),
    "model": lambda client, timeout_s: client.metadata("echo", timeout_s),
    "config": lambda client, timeout_s: client.config_parameters("echo", timeout_s),
}
each = pytest.mark.parametrize("question", QUESTIONS)


@each
def test_a_closed_port_is_unavailable(connect: Connect, question: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert error_of(lambda: QUESTIONS[question](connect(address), TIMEOUT_S)).kind is RemoteErrorKind.UNAVAILABLE


@each
def test_a_server_that_hangs_up_is_unavailable(connect: Connect, hanging_up: str, question: str) -> None:
    assert error_of(lambda: QUESTIONS[question](connect(hanging_up), TIMEOUT_S)).kind is RemoteErrorKind.UNAVAILABLE


@each
def test_a_server_that_never_answers_does_not_outlast_the_deadline(
    connect: Connect, silent: str, question: str
) -> None:
    assert error_of(lambda: QUESTIONS[question](connect(silent), SHORT_S)).kind is RemoteErrorKind.DEADLINE


def test_a_server_that_goes_in_the_middle_is_unavailable_and_used_again_once_it_is_back(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    fake.hold()
    server = serve()
    client = connect(server)
    pending = client.infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    server.stop(0)
    assert error_of(lambda: pending.result(TIMEOUT_S)).kind in (RemoteErrorKind.UNAVAILABLE, RemoteErrorKind.CANCELLED)
    assert error_of(lambda: client.infer(REQUEST, TIMEOUT_S)).kind is RemoteErrorKind.UNAVAILABLE
    fake.release()
    serve(server.addresses[0])
    pause = threading.Event()
    while not answers(client):  # gRPC waits a moment before it tries to connect again
        pause.wait(0.02)
    assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def answers(client: Client) -> bool:
    told: queue.Queue[bool] = queue.Queue()
    client.warm_up(TIMEOUT_S, told.put)
    return told.get(timeout=TIMEOUT_S)


def test_messages_that_are_too_large_either_way(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    class Amplifier(FakeDataplane):
        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            return InferResponse("echo", LARGE.inputs)

    limits, small_messages = {"max_message_bytes": 1 << 20}, Connections(max_message_bytes=1 << 20)
    small, wide, amplifier = serve(connections=small_messages), serve(), serve(dataplane=Amplifier())
    for server, options, request in (
        (wide, limits, LARGE),  # not sent
        (small, {}, LARGE),  # not taken
        (amplifier, limits, REQUEST),  # the answer is not taken
        (serve(dataplane=Amplifier(), connections=small_messages), {}, REQUEST),  # the answer is not sent
    ):
        client = connect(server, **options)
        error = error_of(partial(client.infer, request, TIMEOUT_S))
        assert (error.kind, error.retry_after_s) == (RemoteErrorKind.RESOURCE_EXHAUSTED, None)
        assert client.server_live(TIMEOUT_S)
    assert fake.requests == []
    assert connect(wide).infer(LARGE, TIMEOUT_S).outputs["uint8"].nbytes == 5 << 20


PLAIN = b"\0" * 8
GARBLED: dict[str, list[Output]] = {
    "too little": [Output("y", "FP32", [3], PLAIN)],
    "too much": [Output("y", "FP32", [1], PLAIN)],
    "contents of nothing": [Output("y", "FP32", [0], PLAIN)],
    "another datatype's size": [Output("y", "FP64", [2], PLAIN)],
    "a negative dimension": [Output("y", "FP32", [-2], PLAIN)],
    "two negative ones": [Output("y", "FP32", [-1, -2], PLAIN)],
    "as many bytes as there are addresses": [Output("y", "FP32", [2**31, 2**31], PLAIN)],
    "a product that overflows": [Output("y", "FP32", [2**62, 4], PLAIN)],
    "an empty tensor that cannot be": [Output("y", "FP32", [0, 2**40, 2**40], b"")],
    "2 GB of texts": [Output("y", "BYTES", [2**31], PLAIN)],
    "a text beyond the end": [Output("y", "BYTES", [1], b"\xff\xff\xff\x7fabcd")],
    "texts and a rest": [Output("y", "BYTES", [1], b"\1\0\0\0ab\0\0")],
    "a truth of two": [Output("y", "BOOL", [1], b"\2")],
    "33 dimensions": [Output("y", "FP32", [1] * 33, b"\0" * 4)],
    "a million dimensions": [Output("y", "FP32", [1] * 1_000_000, b"\0" * 4)],
    "no such datatype": [Output("y", "FP12", [2], PLAIN)],
    "no datatype": [Output("y", "", [2], PLAIN)],
    "one twice": [Output("y", "FP32", [2], PLAIN), Output("y", "FP32", [2], PLAIN)],
}


@pytest.mark.parametrize("how", GARBLED)
def test_an_answer_that_garbles_its_tensors_is_garbage(connect: Connect, transport: Transport, how: str) -> None:
    with transport.replying(transport.answer(GARBLED[how])) as address:
        client = connect(address)
        pending = client.infer_async(REQUEST, TIMEOUT_S)
        error = error_of(pending.result)
        assert error.kind is RemoteErrorKind.GARBAGE
        assert str(error).startswith("the server's answer cannot be used: ")
        client.close()


def test_a_good_answer_of_the_same_making_is_none(connect: Connect, transport: Transport) -> None:
    with transport.replying(transport.answer([Output("y", "FP32", [2], PLAIN), Output("z", "INT8", [0], b"")])) as at:
        client = connect(at)
        assert [one.shape for one in client.infer(REQUEST, TIMEOUT_S).outputs.values()] == [(2,), (0,)]
        client.close()


def test_a_model_is_described_as_its_server_names_things(connect: Connect, transport: Transport) -> None:
    """What a caller has no use for is no reason to know nothing of the rest."""
    for datatype, shape in (("FP32", (-1, 3)), ("FP12", ()), ("", (-5, 2**40))):
        with transport.replying(transport.model(datatype, shape)) as address:
            client = connect(address)
            (spec,) = client.metadata("echo", TIMEOUT_S).inputs
            assert (spec.name, spec.datatype, spec.shape) == ("x", datatype, shape)
            client.close()


@each
def test_any_answer_may_be_garbage(connect: Connect, transport: Transport, question: str) -> None:
    noise = b"\xff\xff"
    if transport.name == "http":
        noise = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + noise
    with transport.replying(noise) as address:
        client = connect(address)
        if transport.name == "http" and question in ("live", "ready", "model ready"):
            assert QUESTIONS[question](client, TIMEOUT_S)  # the status says it all: Triton has no body there
        else:
            assert error_of(lambda: QUESTIONS[question](client, TIMEOUT_S)).kind is RemoteErrorKind.GARBAGE
        client.close()
