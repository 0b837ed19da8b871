"""The client over HTTP/1.1 by itself: deadlines, sizes, kept connections, certificates, and servers that lie."""

from __future__ import annotations

import http.client
import io
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.certificates import Authority
from tests.faults.raw_http import BROKEN_HTTP, CHUNKED, OK, answering
from tests.faults.raw_servers import RawServer
from upwell.shared.errors import ConfigError, Refused
from upwell.shared.oip import converters
from upwell.shared.oip.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake import EXAMPLE, FakeDataplane
from upwell.shared.oip.http.client import HttpClient, HttpPendingInfer
from upwell.shared.oip.http.pool import Pool
from upwell.shared.oip.http.server import RunningHttpServer, start_http_server
from upwell.shared.oip.http.wires import Route
from upwell.shared.oip.security import ClientSecurity, ServerSecurity, TlsFiles, parse_endpoint
from upwell.shared.oip.server import Connections

TIMEOUT_S = 10.0
"""For calls that should end long before."""
LIMIT_BYTES = 2 << 20
REQUEST = InferRequest("echo", EXAMPLE, id="request-1")
CERTIFICATES: dict[str, dict[str, Any]] = {
    "expired": {"starts_in": timedelta(days=-3)},
    "not yet valid": {"starts_in": timedelta(days=1)},
    "of another name": {"host": "other.example"},
}
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
    with RawServer(speech) as server:
        client = connect(server.address)
        assert kind_of(lambda: client.infer(REQUEST, 0.3)) is kind
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


def test_a_call_that_is_given_up_is_seen_by_the_server(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    pending = connect(serve()).infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    pending.cancel()
    assert kind_of(pending.result) is RemoteErrorKind.CANCELLED
    assert pending.done()
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_a_late_answer_is_not_waited_for_by_either_side(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    assert kind_of(lambda: client.infer(REQUEST, 0.1)) is RemoteErrorKind.DEADLINE
    assert fake.calls[0].deadline_s <= time.monotonic() + 0.1
    fake.release()
    assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def test_a_pending_call_tells_how_it_ended_and_what_it_moved(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    fake.hold()
    data = converters.serialize_infer_request(REQUEST)
    pending = connect(serve()).infer_async(data, TIMEOUT_S, "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    told: queue.Queue[HttpPendingInfer] = queue.Queue()
    pending.add_done_callback(told.put)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        pending.result(0.01)
    assert (pending.done(), pending.received_bytes) == (False, 0)
    fake.release()
    assert pending.result(TIMEOUT_S).outputs["fp32"].tolist() == EXAMPLE["fp32"].tolist()
    assert told.get(timeout=TIMEOUT_S) is pending
    assert pending.sent_bytes > EXAMPLE["fp32"].nbytes
    assert pending.received_bytes > EXAMPLE["fp32"].nbytes
    assert fake.calls[0].traceparent.startswith("00-aaaa")
    pending.cancel()
    assert pending.result(TIMEOUT_S).id == "request-1"


def test_a_closed_client(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve())
    pending = client.infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    client.close()
    client.close()
    for call in (pending.result, lambda: client.infer(REQUEST, TIMEOUT_S), lambda: client.server_live(TIMEOUT_S)):
        assert kind_of(call) is RemoteErrorKind.CANCELLED
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_without_time_nothing_is_sent(connect: Connect) -> None:
    with RawServer(answering(b"")) as server:
        client = connect(server.address)
        assert kind_of(lambda: client.infer(REQUEST, 0.0)) is RemoteErrorKind.DEADLINE


def test_every_question_has_its_answer(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    assert client.server_live(TIMEOUT_S)
    assert client.ready(TIMEOUT_S)
    assert client.ready(TIMEOUT_S, "echo", "1")
    assert not client.ready(TIMEOUT_S, "other")
    found, said = client.server_metadata(TIMEOUT_S), fake.server_metadata()
    assert (found.name, found.version) == (said.name, said.version)
    assert set(found.extensions) == {*said.extensions, "binary_tensor_data"}
    assert client.metadata("echo", TIMEOUT_S) == fake.metadata("echo")
    assert kind_of(lambda: client.metadata("a/b ?", TIMEOUT_S)) is RemoteErrorKind.NOT_FOUND
    warm: queue.Queue[bool] = queue.Queue()
    client.warm_up(TIMEOUT_S, warm.put)
    assert warm.get(timeout=TIMEOUT_S)
    fake.is_ready = False
    assert not client.ready(TIMEOUT_S)


def test_a_refusal_is_told_with_the_servers_words(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.failure = Refused("the queue is full")
    with pytest.raises(RemoteError, match="RESOURCE_EXHAUSTED: the queue is full") as error:
        connect(serve()).infer(REQUEST, TIMEOUT_S)
    assert error.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED


def test_what_is_too_large_is_not_sent_and_what_the_server_finds_too_large_is_told(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    server = serve(max_message_bytes=1 << 20)
    large = InferRequest("echo", {"fp32": np.zeros((4 << 20,), np.float32)})
    assert kind_of(lambda: connect(server).infer(large, TIMEOUT_S)) is RemoteErrorKind.RESOURCE_EXHAUSTED
    trusting = connect(server, max_message_bytes=64 << 20)
    assert kind_of(lambda: trusting.infer(large, TIMEOUT_S)) is RemoteErrorKind.RESOURCE_EXHAUSTED
    assert fake.requests == []


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


def test_many_that_give_up_and_many_that_do_not_get_each_their_own_answer(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    """A connection that somebody gave up is never another's."""
    fake.delay_s = 0.002
    client = connect(serve(max_workers=32), silence_s=4.0)

    def ask(number: int) -> bool:
        tensor = np.full((1, 10_000 if number % 3 else 4), number, np.float32)
        pending = client.infer_async(InferRequest("echo", {"fp32": tensor}, id=str(number)), TIMEOUT_S)
        if number % 2:
            pending.cancel()
        try:
            answer = pending.result()
        except RemoteError as error:
            return error.kind is RemoteErrorKind.CANCELLED and number % 2 == 1
        return answer.id == str(number) and bool((answer.outputs["fp32"] == tensor).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(ask, range(400)))


def test_a_dead_connection_is_looked_for_while_somebody_waits(serve: Serve) -> None:
    address = parse_endpoint(f"http://{serve().addresses[0]}")
    held: list[socket.socket] = []
    wire = Route(address, None, silence_s=4.0).dial(None, time.monotonic() + TIMEOUT_S, held.append)
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


@pytest.mark.parametrize("how", CERTIFICATES)
def test_a_certificate_that_is_not_to_be_believed(
    serve: Serve, connect: Connect, authority: Authority, fake: FakeDataplane, how: str
) -> None:
    pair = authority.sign("web", **CERTIFICATES[how])
    server = serve(security=ServerSecurity(TlsFiles(pair.cert, pair.key)))
    client = connect(server, ClientSecurity(TlsFiles(ca=authority.ca)))
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.CERTIFICATE
    assert fake.requests == []


def test_an_authority_that_nobody_here_knows(serve: Serve, connect: Connect, authority: Authority) -> None:
    pair = authority.sign("web")
    server = serve(security=ServerSecurity(TlsFiles(pair.cert, pair.key)))
    client = connect(server, ClientSecurity(TlsFiles()))
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.CERTIFICATE


def test_a_device_shows_its_certificate_and_the_next_one_after_it(
    serve: Serve, connect: Connect, authority: Authority, fake: FakeDataplane
) -> None:
    pair, device = authority.sign("web"), authority.sign("device")
    server = serve(security=ServerSecurity(TlsFiles(pair.cert, pair.key, authority.ca)))
    files = TlsFiles(device.cert, device.key, authority.ca)
    client = connect(server, ClientSecurity(files))
    for _ in range(2):
        assert client.infer(REQUEST, TIMEOUT_S).outputs
    other = authority.sign("another")
    other.key.replace(device.key)
    other.cert.replace(device.cert)
    assert client.infer(REQUEST, TIMEOUT_S).outputs
    assert [call.client for call in fake.calls] == ["device", "device", "another"]
    nobody = connect(server, ClientSecurity(TlsFiles(ca=authority.ca)))
    assert kind_of(lambda: nobody.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE


def test_a_server_without_tls_is_no_server_to_https(serve: Serve, connect: Connect, authority: Authority) -> None:
    client = connect(serve(), ClientSecurity(TlsFiles(ca=authority.ca)))
    assert kind_of(lambda: client.infer(REQUEST, TIMEOUT_S)) is RemoteErrorKind.UNAVAILABLE


def test_the_token_is_read_again(connect: Connect, tmp_path: Path) -> None:
    tokens: list[str] = []

    def speak(connection: socket.socket) -> None:
        request = connection.recv(65536)
        tokens.append(http.client.parse_headers(_lines(request))["Authorization"])
        connection.sendall(OK + b"Content-Length: 0\r\nConnection: close\r\n\r\n")

    path = tmp_path / "token"
    path.write_text("first")
    with RawServer(speak) as server:
        client = connect(server.address, ClientSecurity(token_file=path))
        assert client.server_live(TIMEOUT_S)
        (tmp_path / "new").write_text("second-one")
        (tmp_path / "new").replace(path)
        assert client.server_live(TIMEOUT_S)
        client.close()
    assert tokens == ["Bearer first", "Bearer second-one"]


def _lines(request: bytes) -> Any:
    return io.BytesIO(request.partition(b"\r\n")[2])


def test_requests_do_not_cross_a_network_in_clear() -> None:
    with pytest.raises(ConfigError, match="would cross the network in clear: write https://"):
        HttpClient("http://infer.example.com")
    with pytest.raises(ConfigError, match="is without TLS"):
        HttpClient("http://127.0.0.1:1", ClientSecurity(TlsFiles()))
