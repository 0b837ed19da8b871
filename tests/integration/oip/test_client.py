"""The client against servers that answer, do not answer, or answer nonsense."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest

from tests.integration.oip.harness import TIMEOUT_S, Connect, Serve
from upwell.shared.errors import ConfigError
from upwell.shared.oip import converters
from upwell.shared.oip.client import OipClient, PendingInfer, RemoteError, RemoteErrorKind
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.fake import EXAMPLE, FakeDataplane
from upwell.shared.oip.servicer import METHODS, SERVICE

REQUEST = InferRequest("echo", EXAMPLE, id="request-1")
Answer = Callable[[bytes, grpc.ServicerContext], bytes]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Accepts connections (by its backlog) and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def answering() -> Iterator[Callable[[Answer], str]]:
    """Start a server whose every method is the given function; gives its address."""
    servers: list[grpc.Server] = []

    def start(answer: Answer) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(METHODS, handler)),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


def address_of(listening: socket.socket) -> str:
    return f"127.0.0.1:{listening.getsockname()[1]}"


def kind_of(call: Callable[[], object]) -> RemoteErrorKind:
    with pytest.raises(RemoteError) as error:
        call()
    return error.value.kind


def test_every_question_has_its_answer(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    assert client.server_live(TIMEOUT_S)
    assert client.ready(TIMEOUT_S)
    assert client.ready(TIMEOUT_S, "echo")
    assert client.ready(TIMEOUT_S, "echo", "1")
    assert not client.ready(TIMEOUT_S, "other")
    assert client.server_metadata(TIMEOUT_S) == fake.server_metadata()
    assert client.metadata("echo", TIMEOUT_S) == fake.metadata("echo")
    fake.is_ready = False
    assert not client.ready(TIMEOUT_S)


def test_nothing_is_sent_before_the_first_call(listener: socket.socket, connect: Connect) -> None:
    client = connect(address_of(listener))
    assert not select.select([listener], [], [], 0.1)[0]
    client.infer_async(REQUEST, 0.5)
    assert select.select([listener], [], [], TIMEOUT_S)[0]


def test_each_client_makes_a_connection_of_its_own(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    server = serve()
    first, second = connect(server), connect(server)
    for client in (first, second, first):
        client.infer(REQUEST, TIMEOUT_S)
    peers = [call.client for call in fake.calls]
    assert peers[0] == peers[2] != peers[1]


def test_a_pending_call_tells_how_it_ended_and_what_it_moved(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    fake.hold()
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    ended: list[PendingInfer] = []
    told = threading.Event()

    def note(which: PendingInfer) -> None:
        ended.append(which)
        told.set()

    pending.add_done_callback(note)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        pending.result(0.01)
    assert not pending.done()
    assert pending.received_bytes == 0
    fake.release()
    assert pending.result(TIMEOUT_S).outputs["fp32"].tolist() == EXAMPLE["fp32"].tolist()
    assert told.wait(TIMEOUT_S)
    assert ended == [pending]
    assert pending.done()
    assert pending.sent_bytes == len(converters.serialize_infer_request(REQUEST))
    answer = InferResponse("echo", EXAMPLE, "1", "request-1")
    assert pending.received_bytes == len(converters.serialize_infer_response(answer))
    pending.cancel()
    assert pending.result(TIMEOUT_S).id == "request-1"


def test_a_pending_call_can_be_given_up(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    pending.cancel()
    assert kind_of(lambda: pending.result(TIMEOUT_S)) is RemoteErrorKind.CANCELLED
    assert pending.done()
    assert pending.received_bytes == 0


def test_a_late_answer_is_not_waited_for(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    started_s = time.monotonic()
    assert kind_of(lambda: client.infer(REQUEST, 0.05)) is RemoteErrorKind.DEADLINE
    pending = client.infer_async(REQUEST, 0.05)
    assert kind_of(lambda: pending.result(TIMEOUT_S)) is RemoteErrorKind.DEADLINE
    assert time.monotonic() - started_s < 2.0


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_without_time_nothing_is_sent(listener: socket.socket, connect: Connect, timeout_s: float) -> None:
    client = connect(address_of(listener))
    assert kind_of(lambda: client.infer(REQUEST, timeout_s)) is RemoteErrorKind.DEADLINE
    assert kind_of(lambda: client.infer_async(REQUEST, timeout_s)) is RemoteErrorKind.DEADLINE
    assert not select.select([listener], [], [], 0.05)[0]


def test_a_closed_port_is_unavailable_at_once(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = address_of(free)
    started_s = time.monotonic()
    assert kind_of(lambda: connect(address).infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE
    assert time.monotonic() - started_s < 1.0


def test_a_silent_server_is_unavailable_after_the_time_to_connect(listener: socket.socket, connect: Connect) -> None:
    started_s = time.monotonic()
    assert kind_of(lambda: connect(address_of(listener)).infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE
    assert time.monotonic() - started_s < 3.0


def test_a_connection_that_breaks_is_unavailable(listener: socket.socket, connect: Connect) -> None:
    pending = connect(address_of(listener)).infer_async(REQUEST, TIMEOUT_S)
    accepted, _ = listener.accept()
    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    accepted.close()
    assert kind_of(lambda: pending.result(TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE


def test_a_server_that_comes_back_is_used_again_soon(serve: Serve, connect: Connect) -> None:
    server = serve()
    address = server.addresses[0]
    client = connect(address)
    assert client.server_live(TIMEOUT_S)
    server.stop(0)
    assert kind_of(lambda: client.server_live(TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE
    serve(address)
    back_s = time.monotonic()
    pause = threading.Event()
    while True:
        try:
            assert client.server_live(TIMEOUT_S)
            break
        except RemoteError:
            assert time.monotonic() - back_s < 3.0
            pause.wait(0.02)


def test_a_proxy_is_not_asked_for_this_machine(
    serve: Serve, connect: Connect, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{address_of(listener)}")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert connect(serve()).server_live(TIMEOUT_S)
    assert not select.select([listener], [], [], 0)[0]


def test_a_closed_client(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    pending = client.infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    client.close()
    client.close()
    assert kind_of(lambda: pending.result(TIMEOUT_S)) is RemoteErrorKind.CANCELLED
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.CANCELLED
    assert kind_of(lambda: client.infer_async(REQUEST, TIMEOUT_S)) is RemoteErrorKind.CANCELLED


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x05ech", b"\x32\x04abcd"])
def test_an_answer_that_cannot_be_used_is_garbage(
    answering: Callable[[Answer], str], connect: Connect, data: bytes
) -> None:
    client = connect(answering(lambda _, __: data))
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.GARBAGE
    assert kind_of(lambda: client.infer_async(REQUEST, TIMEOUT_S).result(TIMEOUT_S)) is RemoteErrorKind.GARBAGE


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.server_live(TIMEOUT_S),
        lambda client: client.ready(TIMEOUT_S),
        lambda client: client.ready(TIMEOUT_S, "echo"),
        lambda client: client.server_metadata(TIMEOUT_S),
        lambda client: client.metadata("echo", TIMEOUT_S),
    ],
)
def test_other_answers_may_be_garbage_too(
    answering: Callable[[Answer], str], connect: Connect, call: Callable[[OipClient], object]
) -> None:
    client = connect(answering(lambda _, __: b"\xff"))
    assert kind_of(lambda: call(client)) is RemoteErrorKind.GARBAGE


KINDS = {code: RemoteErrorKind(code.name.lower()) for code in grpc.StatusCode if code.name.lower() in
         {kind.value for kind in RemoteErrorKind}} | {
    grpc.StatusCode.DEADLINE_EXCEEDED: RemoteErrorKind.DEADLINE,
    grpc.StatusCode.OUT_OF_RANGE: RemoteErrorKind.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS: RemoteErrorKind.INTERNAL,
    grpc.StatusCode.DATA_LOSS: RemoteErrorKind.GARBAGE,
    grpc.StatusCode.UNKNOWN: RemoteErrorKind.INTERNAL,
}  # fmt: skip


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_each_status_has_its_kind(answering: Callable[[Answer], str], connect: Connect, code: grpc.StatusCode) -> None:
    def abort(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "why")

    client = connect(answering(abort))
    with pytest.raises(RemoteError, match=f"{code.name}: why") as error:
        client.infer(REQUEST, TIMEOUT_S)
    assert error.value.kind is KINDS[code]


def test_a_server_that_does_not_know_the_model_says_not_ready(
    answering: Callable[[Answer], str], connect: Connect
) -> None:
    def abort(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such model")

    client = connect(answering(abort))
    assert not client.ready(TIMEOUT_S, "echo")
    assert kind_of(lambda: client.ready(TIMEOUT_S)) is RemoteErrorKind.NOT_FOUND


def test_a_server_without_the_protocol_is_unimplemented(connect: Connect) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert kind_of(lambda: connect(f"127.0.0.1:{port}").infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNIMPLEMENTED
    server.stop(None).wait()


def test_requests_do_not_cross_a_network_in_clear() -> None:
    with pytest.raises(ConfigError, match="would cross the network in clear"):
        OipClient("infer.example.com:8001")
