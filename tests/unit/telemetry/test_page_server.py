"""The page of metrics stays there, whatever the machine is short of, and whoever else reads it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry

from upwell.shared.telemetry import page_server
from upwell.shared.telemetry.page_server import serve_pages

LIMIT_S = 10.0
"""For what should end long before."""

TOO_MANY_BYTES = 1 << 47
"""More than a process can address."""


@pytest.fixture
def server() -> Iterator[WSGIServer]:
    server = serve_pages("127.0.0.1", 0, CollectorRegistry(), "agent.metrics")
    yield server
    server.shutdown()
    server.server_close()


def status(server: WSGIServer) -> int:
    with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT_S)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().status


def test_a_request_for_which_no_thread_is_left_takes_no_place_for_good(server: WSGIServer) -> None:
    before = threading.stack_size(TOO_MANY_BYTES)  # so that no thread can be started
    try:
        for _ in range(page_server._MAX_CONNECTIONS):
            with pytest.raises(ConnectionError):
                status(server)
    finally:
        threading.stack_size(before)
    assert status(server) == 200


def test_clients_that_trickle_take_no_place_for_long(server: WSGIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_WHOLE_S", 0.5)
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), LIMIT_S))
            for _ in range(page_server._MAX_CONNECTIONS)
        ]
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        eventually, found = time.monotonic() + LIMIT_S, 0
        while found != 200:
            assert time.monotonic() < eventually
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"a")
            with suppress(OSError):
                found = status(server)
            time.sleep(0.05)
