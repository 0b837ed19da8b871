"""A kept connection that the server closes just as the next call takes it: what it has not read is sent once more."""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.faults.certificates import Authority
from tests.faults.raw_http import OK
from tests.faults.raw_servers import RawServer
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.http.client.client import HttpClient
from upwell.shared.oip.http.client.connection import HttpConnection
from upwell.shared.oip.http.client.connection_pool import Pool

TIMEOUT_S = 10.0
REQUEST = InferRequest("echo", {"fp32": EXAMPLE["fp32"]}, id="request-1")
ANSWER = b'{"model_name":"echo","id":"request-1","outputs":[]}'
Talk = Callable[[socket.socket, "Script"], None]


class Script:
    """A server that answers the first request, and does `second` to the second one on that connection; it answers each
    on a later one. `requests` counts those that it has read."""

    def __init__(self, second: Talk, authority: Authority | None) -> None:
        self.requests = self.connections = 0
        self.is_taken = threading.Event()
        """Another call has taken the kept connection, and has not sent anything yet."""
        self.is_done = threading.Event()
        self._second = second
        self._context: ssl.SSLContext | None = None
        if authority is not None:
            pair = authority.sign("kept")
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.cert, pair.key)

    def __call__(self, connection: socket.socket) -> None:
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            self.connections += 1
            if self.connections > 1:
                while self._answers(connection):
                    pass
            elif self._answers(connection) and self.is_taken.wait(TIMEOUT_S):
                self._second(connection, self)
        self.is_done.set()

    def read(self, connection: socket.socket) -> bool:
        """Read one whole request; whether there is one."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        left = size - len(body)
        while left > 0:
            left -= len(connection.recv(65536))
        self.requests += 1
        return True

    def _answers(self, connection: socket.socket) -> bool:
        if not self.read(connection):
            return False
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
        return True


@contextmanager
def kept(second: Talk, monkeypatch: pytest.MonkeyPatch, authority: Authority | None) -> Iterator[tuple[Script, Any]]:
    """The script and a client with a connection to it that is kept, and will be at `second`'s mercy."""
    script = Script(second, authority)
    real = Pool.take

    def take(pool: Pool, context: ssl.SSLContext | None) -> HttpConnection | None:
        """The moment for which there is no other way to wait: the connection has been found good, and is closed."""
        wire = real(pool, context)
        if wire is not None:
            script.is_taken.set()
            if second is close:
                assert script.is_done.wait(TIMEOUT_S)
        return wire

    monkeypatch.setattr(Pool, "take", take)
    security = ClientSecurity(TlsFiles(ca=authority.ca)) if authority else ClientSecurity()
    with RawServer(script) as server:
        client = HttpClient(f"{'https' if authority else 'http'}://{server.address}", security)
        try:
            assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"
            yield script, client
        finally:
            client.close()


def close(connection: socket.socket, script: Script) -> None:
    """Nothing more: it is closed at once."""


def read_and_close(connection: socket.socket, script: Script) -> None:
    script.read(connection)


def die_with_it_unread(connection: socket.socket, script: Script) -> None:
    """The kernel has it, and no program does: nobody can tell that from one that has read it."""
    while not socket.socket.recv(connection, 1, socket.MSG_PEEK):
        pass


def read_and_reset(connection: socket.socket, script: Script) -> None:
    """A reset acknowledges nothing."""
    script.read(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture(params=["http", "https"])
def signed(request: pytest.FixtureRequest, authority: Authority) -> Authority | None:
    return authority if request.param == "https" else None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what the other end's kernel has taken")
@pytest.mark.parametrize("size", [4, 4_000_000])  # one packet, and more than the kernel takes at once
def test_what_was_certainly_not_read_is_sent_once_more(
    monkeypatch: pytest.MonkeyPatch, signed: Authority | None, size: int
) -> None:
    with kept(close, monkeypatch, signed) as (script, client):
        tensors = {"fp32": np.zeros(size // 4, np.float32)}
        assert client.infer(InferRequest("echo", tensors, id="request-1"), TIMEOUT_S).id == "request-1"
        assert (script.requests, script.connections) == (2, 2)


@pytest.mark.parametrize("second", [read_and_close, read_and_reset, die_with_it_unread])
def test_what_may_have_been_read_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, signed: Authority | None, second: Talk
) -> None:
    with kept(second, monkeypatch, signed) as (script, client):
        with pytest.raises(RemoteError) as error:
            client.infer(REQUEST, TIMEOUT_S)
        assert error.value.kind is RemoteErrorKind.UNAVAILABLE
        assert script.connections == 1
        assert client.infer(REQUEST, TIMEOUT_S).id == "request-1"


def test_a_new_connection_that_is_closed_at_once_is_not_tried_again() -> None:
    accepted: list[socket.socket] = []

    def speak(connection: socket.socket) -> None:
        accepted.append(connection)
        connection.close()

    with RawServer(speak) as server:
        client = HttpClient(f"http://{server.address}")
        with pytest.raises(RemoteError) as error:
            client.infer(REQUEST, TIMEOUT_S)
        assert error.value.kind is RemoteErrorKind.UNAVAILABLE
        client.close()
    assert len(accepted) == 1
