"""Servers and clients that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.oip.harness import Connect, Serve
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import RunningServer, start_server


@pytest.fixture
def fake() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def serve(fake: FakeDataplane) -> Iterator[Serve]:
    """Start a server (of `fake` on a free port of 127.0.0.1, unless told otherwise)."""
    with ExitStack() as stack:

        def start(listen: str = "127.0.0.1:0", dataplane: Dataplane = fake, **options: Any) -> RunningServer:
            server = start_server(dataplane, [listen], **{"max_workers": 8, **options})
            stack.callback(server.stop, 0)
            return server

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Make a client of a server or of an address."""
    with ExitStack() as stack:

        def make(where: RunningServer | str, *args: Any, **options: Any) -> OipClient:
            client = OipClient(where if isinstance(where, str) else where.addresses[0], *args, **options)
            stack.callback(client.close)
            return client

        yield make
