"""Clients that do not go on: none keeps a place of the service for ever."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tests.fleet_service import Service, service
from upwell.fleet.opamp import opamp_endpoint
from upwell.fleet.service import server

LIMIT_S = 20.0
GET = b"GET /healthz HTTP/1.1\r\nHost: fleet\r\n\r\n"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    monkeypatch.setattr(opamp_endpoint, "BODY_S", 0.3)


def connected(fleet: Service) -> ssl.SSLSocket:
    host, port = fleet.server.addresses[0].rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(fleet.ca))
    context.check_hostname = False
    return context.wrap_socket(socket.create_connection((host, int(port)), LIMIT_S), server_hostname=host)


def is_dropped(connection: ssl.SSLSocket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("has_asked", [True, False])
def test_one_that_sends_half_a_head_is_dropped(tmp_path: Path, has_asked: bool) -> None:
    with service(tmp_path) as fleet, connected(fleet) as connection:
        if has_asked:
            connection.sendall(GET)
            assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        assert is_dropped(connection)


@pytest.mark.parametrize(("path", "status"), [("/login", b"401"), ("/api/v1/tokens", b"408")])
def test_one_that_sends_no_body_is_answered(tmp_path: Path, path: str, status: bytes) -> None:
    with service(tmp_path) as fleet, connected(fleet) as connection:
        head = (f"POST {path} HTTP/1.1", "Host: fleet", f"Authorization: Bearer {fleet.operator}", "Content-Length: 9")
        connection.sendall("\r\n".join((*head, "\r\n")).encode())
        assert connection.recv(12) == b"HTTP/1.1 " + status


def test_one_that_reads_nothing_is_dropped(tmp_path: Path) -> None:
    with service(tmp_path) as fleet, connected(fleet) as connection:
        connection.setblocking(False)
        with pytest.raises(OSError, match=r"EOF|reset|Broken pipe"):
            ask_without_end(connection, time.monotonic() + LIMIT_S)


def ask_without_end(connection: ssl.SSLSocket, end_s: float) -> None:
    while time.monotonic() < end_s:
        try:
            connection.send(GET.replace(b"/healthz", b"/api/v1/openapi.json") * 100)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            time.sleep(0.05)


def test_one_whose_request_took_long_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 3600.0)  # the test itself looks at the connection
    asyncio.run(ask_twice())


async def ask_twice() -> None:
    is_done = asyncio.Event()

    async def application(_: Scope, __: Receive, send: Send) -> None:
        await is_done.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    here, there = socket.socketpair()
    _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
        lambda: server.PeerProtocol(config, ServerState(), {}), there
    )
    reader, writer = await asyncio.open_connection(sock=here)
    writer.write(GET)
    while vars(protocol)["cycle"] is None:
        await asyncio.sleep(0)
    protocol._check()
    is_done.set()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    protocol._check()
    writer.write(GET)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
