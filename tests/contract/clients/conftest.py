"""Servers and clients of either transport, which end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.clients.harness import TRANSPORTS, Connect, Running, Serve, Transport
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.open_client import Client, open_client


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    """Each test runs over both."""
    found: Transport = request.param
    return found


@pytest.fixture
def fake() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def serve(transport: Transport, fake: FakeDataplane) -> Iterator[Serve]:
    """Start a server (of `fake` on a free port of 127.0.0.1, unless told otherwise)."""
    with ExitStack() as stack:

        def start(listen: str = "127.0.0.1:0", dataplane: Dataplane = fake, **options: Any) -> Running:
            server = transport.start(dataplane, [listen], **{"max_workers": 32, **options})
            stack.callback(server.stop, 0)
            return server

        yield start


@pytest.fixture
def connect(transport: Transport) -> Iterator[Connect]:
    """Make a client of a server or of an address."""
    with ExitStack() as stack:

        def make(where: Running | str, security: ClientSecurity | None = None, **options: Any) -> Client:
            address = where if isinstance(where, str) else where.addresses[0]
            security = security or ClientSecurity()
            endpoint = transport.endpoint(address, is_secure=security.tls is not None)
            client = open_client(endpoint, security, **options)
            stack.callback(client.close)
            return client

        yield make
