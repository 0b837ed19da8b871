"""HTTP servers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.oip_http.harness import PictureModel, Serve
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server


@pytest.fixture
def fake() -> PictureModel:
    return PictureModel()


@pytest.fixture
def serve(fake: PictureModel) -> Iterator[Serve]:
    """Start a server (of `fake` on a free port of 127.0.0.1, unless told otherwise)."""
    with ExitStack() as stack:

        def start(listen: str = "127.0.0.1:0", dataplane: Dataplane = fake, **options: Any) -> RunningHttpServer:
            server = start_http_server(dataplane, [listen], **{"max_workers": 4, **options})
            stack.callback(server.stop, 0)
            return server

        yield start


@pytest.fixture
def server(serve: Serve) -> RunningHttpServer:
    return serve()
