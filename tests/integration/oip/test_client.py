"""What the client over gRPC alone has: each status, a silent start of HTTP/2, reconnecting, proxies."""

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
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.servicer import METHODS, SERVICE

REQUEST = InferRequest("echo", EXAMPLE, id="request-1")
Answer = Callable[[bytes, grpc.ServicerContext], bytes]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Accepts connections (by its backlog) and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def replying_server() -> Iterator[Callable[[Answer], str]]:
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


def test_each_client_makes_a_connection_of_its_own(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    server = serve()
    first, second = connect(server), connect(server)
    for client in (first, second, first):
        client.infer(REQUEST, TIMEOUT_S)
    peers = [call.client for call in fake.calls]
    assert peers[0] == peers[2] != peers[1]


def test_a_silent_server_is_unavailable_after_the_time_to_connect(listener: socket.socket, connect: Connect) -> None:
    started_s = time.monotonic()
    assert kind_of(lambda: connect(address_of(listener)).infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE
    assert time.monotonic() - started_s < 3.0


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


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x05ech", b"\x32\x04abcd"])
def test_an_answer_that_cannot_be_used_is_garbage(
    replying_server: Callable[[Answer], str], connect: Connect, data: bytes
) -> None:
    client = connect(replying_server(lambda _, __: data))
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.GARBAGE
    assert kind_of(lambda: client.infer_async(REQUEST, TIMEOUT_S).result(TIMEOUT_S)) is RemoteErrorKind.GARBAGE


def test_metadata_without_end_are_garbage_before_they_cost_thirty_times_their_size(
    replying_server: Callable[[Answer], str], connect: Connect
) -> None:
    client = connect(replying_server(lambda _, __: b"\x22\0" * (1 << 20)))  # so many inputs without a name
    for ask in (lambda: client.metadata("m", TIMEOUT_S), lambda: client.server_metadata(TIMEOUT_S)):
        with pytest.raises(RemoteError, match="takes 2097152 bytes; at most 1048576 are taken for") as error:
            ask()
        assert error.value.kind is RemoteErrorKind.GARBAGE


KINDS = {code: RemoteErrorKind(code.name.lower()) for code in grpc.StatusCode if code.name.lower() in
         {kind.value for kind in RemoteErrorKind}} | {
    grpc.StatusCode.DEADLINE_EXCEEDED: RemoteErrorKind.DEADLINE,
    grpc.StatusCode.OUT_OF_RANGE: RemoteErrorKind.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS: RemoteErrorKind.INTERNAL,
    grpc.StatusCode.DATA_LOSS: RemoteErrorKind.GARBAGE,
    grpc.StatusCode.UNKNOWN: RemoteErrorKind.INTERNAL,
}  # fmt: skip


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_each_status_has_its_kind(
    replying_server: Callable[[Answer], str], connect: Connect, code: grpc.StatusCode
) -> None:
    def abort(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "why")

    client = connect(replying_server(abort))
    with pytest.raises(RemoteError, match=f"{code.name}: why") as error:
        client.infer(REQUEST, TIMEOUT_S)
    assert error.value.kind is KINDS[code]


def test_a_server_that_does_not_know_the_model_says_not_ready(
    replying_server: Callable[[Answer], str], connect: Connect
) -> None:
    def abort(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such model")

    client = connect(replying_server(abort))
    assert not client.ready(TIMEOUT_S, "echo")
    assert kind_of(lambda: client.ready(TIMEOUT_S)) is RemoteErrorKind.NOT_FOUND


def test_a_server_without_the_protocol_is_unimplemented(connect: Connect) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert kind_of(lambda: connect(f"127.0.0.1:{port}").infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNIMPLEMENTED
    server.stop(None).wait()
