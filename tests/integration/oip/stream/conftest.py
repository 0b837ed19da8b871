"""Servers of streams, each in the three ways in which these learn what comes and goes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.integration.oip.harness import Serve
from tests.integration.oip.stream.harness import Limited, Open
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.grpc.fastpath.switch import switch_off, switch_on
from upwell.shared.oip.grpc.server.model_stream import StreamLimits
from upwell.shared.oip.grpc.server.open_streams import Streams
from upwell.shared.oip.grpc.server.slow_clients import UnreadAnswers
from upwell.shared.platform.call_threads import CallThreads


@pytest.fixture(params=["told", "told in threads that poll", "waited for"], autouse=True)
def at_work(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """How streams learn what comes and goes; how many threads of a server are at work at once."""
    if request.param != "waited for":
        assert switch_on()
    yield 1 if "poll" in request.param else None
    switch_off()


@pytest.fixture
def serve(serve: Serve, at_work: int | None) -> Serve:
    return functools.partial(serve, at_work=at_work)


@pytest.fixture
def limited(at_work: int | None) -> Limited:
    """See `_limited`."""
    return functools.partial(_limited, at_work)


@pytest.fixture
def stream(serve: Serve) -> Iterator[Open]:
    with grpc.insecure_channel(serve().addresses[0]) as channel:
        opened = Open(channel)
        yield opened
        opened.put(None)


@contextmanager
def _limited(
    at_work: int | None,
    dataplane: Dataplane,
    limits: StreamLimits,
    interceptors: list[grpc.ServerInterceptor] | None = None,
    most_unread_bytes: int = 1 << 30,
) -> Iterator[tuple[grpc.Channel, str, Streams]]:
    """A channel to a server that has nothing but streams, with these limits; its address, and the streams."""
    threads = CallThreads(4 + limits.threads, "test", at_work)
    streams = Streams(dataplane, threads, UnreadAnswers(most_unread_bytes), limits)
    server = grpc.server(threads, interceptors=interceptors)
    streams.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        # What a client takes unread must not depend on how fast this machine is just now.
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.http2.bdp_probe", 0)]) as channel:
            yield channel, f"127.0.0.1:{port}", streams
    finally:
        streams.end()
        server.stop(0).wait()
        threads.shutdown()
