"""The end of a service while clients hold connections open: it takes a moment, and nothing fails."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.fleet_service import service
from upwell.fleet.service.server import _DRAIN_S


@pytest.mark.parametrize("wish", ["keep-alive", "close"])
def test_a_client_that_says_no_last_word_delays_it_by_a_moment(tmp_path: Path, wish: str) -> None:
    with service(tmp_path) as fleet:
        host, port = fleet.server.addresses[0].rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(fleet.fleet.section.authority.cert))
        context.check_hostname = False
        with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: {wish}\r\n\r\n".encode())
            assert connection.recv(12).startswith(b"HTTP/1.1 ")  # and reads no more, so it never hears the end of TLS
            time.sleep(0.2)  # the service has closed its side by now, where that was the wish
            began_s = time.monotonic()
            fleet.stop()
            assert time.monotonic() - began_s < _DRAIN_S
