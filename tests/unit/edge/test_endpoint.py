"""Connections that are replaced: made at once, dropped where they come to nothing, and never in the way of a call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.faults.scene import until
from upwell.edge.uplink.endpoint import Connection, Endpoint
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import start_server

LIMIT_BYTES = 1 << 20


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def done_within(action: Callable[[], object], timeout_s: float = 10.0) -> bool:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def test_a_connection_that_is_still_being_made_can_be_replaced_in_turn(silent: str) -> None:
    endpoint = Endpoint(silent, ClientSecurity(), LIMIT_BYTES)
    for _ in range(5):
        link = endpoint.take()
        endpoint.give_back(link)
        assert done_within(lambda link=link: endpoint.retire(link, at_once=True))  # type: ignore[misc]  # a default binds it
    assert done_within(endpoint.close)


def test_the_next_call_finds_its_connection_made() -> None:
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=4)
    endpoint = Endpoint(server.addresses[0], ClientSecurity(), LIMIT_BYTES)
    try:
        first = endpoint.take()
        assert not first.answered
        endpoint.give_back(first)
        endpoint.retire(first, at_once=True)
        fresh = endpoint.take()
        assert fresh is not first
        assert fresh.client.server_live(5.0)
        until(lambda: fresh.answered, 5.0)  # gRPC's thread tells it
        endpoint.give_back(fresh)
    finally:
        endpoint.close()
        server.stop(0)


def test_a_connection_that_cannot_be_made_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    endpoint = Endpoint(address, ClientSecurity(), LIMIT_BYTES)
    made: list[Connection] = []
    new_link = endpoint._new_link

    def noted(timeout_s: float) -> Connection:
        made.append(new_link(timeout_s))
        return made[-1]

    monkeypatch.setattr(endpoint, "_new_link", noted)
    first = endpoint.take()
    endpoint.give_back(first)
    endpoint.retire(first, at_once=True)
    fresh = made[0]

    def until_another() -> None:
        link = fresh
        while link is fresh:
            link = endpoint.take()
            endpoint.give_back(link)
            threading.Event().wait(0.005)  # spinning would keep gRPC's threads from doing what is waited for

    assert done_within(until_another)
    endpoint.close()


def test_a_call_on_a_connection_that_was_replaced_ends_with_the_endpoint(silent: str) -> None:
    endpoint = Endpoint(silent, ClientSecurity(), LIMIT_BYTES)
    link = endpoint.take()
    call = link.client.infer_async(serialize_infer_request(InferRequest("digits", {})), 60.0)
    endpoint.retire(link, at_once=True)
    assert not call.done()
    endpoint.close()
    with pytest.raises(RemoteError) as caught:
        call.result(10.0)
    assert caught.value.kind is RemoteErrorKind.CANCELLED
    endpoint.give_back(link)
