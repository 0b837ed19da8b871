"""The page of metrics stays there, whatever the machine is short of."""

from __future__ import annotations

import socketserver
from contextlib import closing
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from upwell.shared.telemetry import page_server
from upwell.shared.telemetry.page_server import serve_pages


def test_a_request_for_which_no_thread_is_left_takes_no_place_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("can't start new thread")

    server = serve_pages("127.0.0.1", 0, CollectorRegistry(), "agent.metrics")

    def status() -> int:
        with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().status

    try:
        with monkeypatch.context() as patch:
            patch.setattr(socketserver, "threading", SimpleNamespace(Thread=fail))
            for _ in range(page_server._MAX_CONNECTIONS):
                with pytest.raises(ConnectionError):
                    status()
        assert status() == 200
    finally:
        server.shutdown()
        server.server_close()
