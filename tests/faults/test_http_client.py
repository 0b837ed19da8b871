"""What the client over HTTP/1.1 alone has: framing that lies, connections that are kept, names that are looked up."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.raw_http import BROKEN_HTTP, CHUNKED, OK
from tests.faults.raw_servers import RawServer
from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http.client.client import HttpClient
from upwell.shared.oip.http.client.connection_pool import Pool
from upwell.shared.oip.http.client.environment_proxy import ProxyRoute
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server

TIMEOUT_S = 10.0
"""For calls that should end long before."""
LIMIT_BYTES = 2 << 20
REQUEST = InferRequest("echo", EXAMPLE, id="request-1")
Serve = Callable[..., RunningHttpServer]
Connect = Callable[..., HttpClient]


@pytest.fixture
def fake() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def serve(fake: FakeDataplane) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(listen: str = "127.0.0.1:0", **options: Any) -> RunningHttpServer:
            server = start_http_server(fake, [listen], **{"max_workers": 8, **options})
            stack.callback(server.stop, 0)
            return server

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(where: RunningHttpServer | str, *args: Any, **options: Any) -> HttpClient:
            scheme = "https" if args and args[0].tls else "http"
            address = where if isinstance(where, str) else where.addresses[0]
            client = HttpClient(f"{scheme}://{address}", *args, **{"max_message_bytes": LIMIT_BYTES, **options})
            stack.callback(client.close)
            return client

        yield make


def kind_of(call: Callable[[], object]) -> RemoteErrorKind:
    with pytest.raises(RemoteError) as error:
        call()
    return error.value.kind


@pytest.mark.parametrize("name", BROKEN_HTTP)
def test_a_server_that_is_none(connect: Connect, name: str) -> None:
    speech, kind = BROKEN_HTTP[name]
    timeout_s = 0.3 if kind is RemoteErrorKind.DEADLINE else TIMEOUT_S
    with RawServer(speech) as server:
        client = connect(server.address)
        assert kind_of(lambda: client.infer(REQUEST, timeout_s)) is kind
        client.close()


@pytest.mark.parametrize("start", [b"", OK, OK + b"Content-Length: 1000000\r\n\r\n", CHUNKED + b"f4240\r\n"])
def test_a_server_that_dribbles_does_not_outlast_the_deadline(connect: Connect, start: bytes) -> None:
    """There is always something to read, so that no single wait is long."""

    def dribble(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(b"H" if not start else b"a: b\r\n" if start == OK else b"x")
            time.sleep(0.02)

    with RawServer(dribble) as server:
        client = connect(server.address)
        pending = client.infer_async(REQUEST, 0.2)
        ended = threading.Event()
        pending.add_done_callback(lambda _: ended.set())
        assert ended.wait(TIMEOUT_S)
        assert kind_of(pending.result) is RemoteErrorKind.DEADLINE
        client.close()


def test_a_name_service_that_is_silent_does_not_outlast_the_deadline(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = threading.Event(), []
    real = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        if args[0] != "localhost" or options.get("flags"):
            return real(*args, **options)
        asked.append(args)
        answered.wait(TIMEOUT_S)
        return real(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = connect("localhost:1")
    pending = [client.infer_async(REQUEST, 0.1) for _ in range(4)]
    ended = threading.Semaphore(0)
    for one in pending:
        one.add_done_callback(lambda _: ended.release())
    assert all(ended.acquire(timeout=TIMEOUT_S) for _ in pending)
    assert not answered.is_set()
    assert [kind_of(one.result) for one in pending] == [RemoteErrorKind.DEADLINE] * 4
    assert len(asked) == 1  # all wait for the one question
    answered.set()


def test_a_name_that_nobody_knows_is_unavailable(connect: Connect) -> None:
    client = HttpClient("https://nobody.invalid")
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE
    client.close()


def test_a_connection_that_the_server_gave_up_is_not_used_again(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    server = serve()
    client = connect(server)
    assert client.infer(REQUEST, TIMEOUT_S).outputs
    server.stop(0)
    serve(server.addresses[0])
    assert client.infer(REQUEST, TIMEOUT_S).outputs


def test_connections_that_are_ended_by_age_lose_no_request(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve(connections=Connections(age_s=0.05)))

    def ask() -> int:
        return sum(client.infer(REQUEST, TIMEOUT_S).id == "request-1" for _ in range(100))

    with ThreadPoolExecutor(4) as callers:
        assert sum(callers.map(lambda _: ask(), range(4))) == 400
    assert len(fake.calls) == 400


def test_a_dead_connection_is_looked_for_while_somebody_waits(serve: Serve) -> None:
    address = parse_endpoint(f"http://{serve().addresses[0]}")
    held: list[socket.socket] = []
    wire = ProxyRoute(address, None, silence_s=4.0).dial(None, time.monotonic() + TIMEOUT_S, held.append)
    pool = Pool()

    def asks() -> int:
        return wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert asks()
    if sys.platform == "linux":
        assert wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        assert wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 4
    assert pool.put(wire, None)
    assert not asks()
    assert pool.take(None) is wire
    assert asks()
    wire.close()


def test_bytes_that_nobody_asked_for_end_a_connection(connect: Connect) -> None:
    body = b'{"live":true}'
    answer = OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    accepted: list[socket.socket] = []

    def speak(connection: socket.socket) -> None:
        accepted.append(connection)
        connection.recv(65536)
        connection.sendall(answer + answer)

    with RawServer(speak) as server:
        client = connect(server.address)
        assert client.server_live(TIMEOUT_S)
        assert client.server_live(TIMEOUT_S)
        assert len(accepted) == 2
        client.close()


def test_paths_are_behind_the_prefix(connect: Connect) -> None:
    heads: list[bytes] = []

    def speak(connection: socket.socket) -> None:
        heads.append(connection.recv(65536))
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")

    with RawServer(speak) as server:
        client = connect(f"{server.address}/team/vision")
        assert client.ready(TIMEOUT_S, "a/b")
        client.close()
    head = heads[0].decode()
    assert head.startswith("GET /team/vision/v2/models/a%2Fb/ready HTTP/1.1\r\n")
    assert f"\r\nHost: {server.address}\r\n" in head


def test_requests_do_not_cross_a_network_in_clear() -> None:
    with pytest.raises(ConfigError, match="would cross the network in clear: write https://"):
        HttpClient("http://infer.example.com")
    with pytest.raises(ConfigError, match="does not use TLS"):
        HttpClient("http://127.0.0.1:1", ClientSecurity(TlsFiles()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's list of connections")
@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_a_call_that_is_given_up_frees_the_link_though_the_kernel_has_its_message(connect: Connect, how: str) -> None:
    """The server reads nothing, so that an end in good order would wait in the kernel behind the message."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        listening.settimeout(TIMEOUT_S)
        client = connect(f"127.0.0.1:{listening.getsockname()[1]}")
        request = InferRequest("echo", {"x": np.zeros(LIMIT_BYTES // 8, np.float32)}, id="large")
        pending = client.infer_async(request, TIMEOUT_S if how == "cancelled" else 0.3)
        connection, (_, ours) = listening.accept()
        theirs = listening.getsockname()[1]
        with connection:
            connection.recv(1)  # it has begun to leave
            if how == "cancelled":
                pending.cancel()
            ended = RemoteErrorKind.CANCELLED if how == "cancelled" else RemoteErrorKind.DEADLINE
            assert kind_of(pending.result) is ended
            limit_s = time.monotonic() + TIMEOUT_S
            while is_known_to_the_kernel(ours, theirs):
                assert time.monotonic() < limit_s


def is_known_to_the_kernel(ours: int, theirs: int) -> bool:
    """Whether a connection on loopback between these ports is there, closed by its program or not.

    Other connections may have the same port at one end.
    """
    ends = [f"0100007F:{port:04X}" for port in (ours, theirs)]
    return any(line.split()[1:3] == ends for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:])
