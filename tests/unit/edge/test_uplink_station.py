"""Connections that are replaced: made at once, dropped where they come to nothing, and never in the way of a call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from upwell.edge.uplink.station import Link, Station
from upwell.shared.oip.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake import FakeDataplane
from upwell.shared.oip.security import ClientSecurity
from upwell.shared.oip.server import start_server

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
    station = Station(silent, ClientSecurity(), LIMIT_BYTES)
    for _ in range(5):
        link = station.take()
        station.give_back(link)
        assert done_within(lambda link=link: station.retire(link, at_once=True))  # type: ignore[misc]  # a default binds it
    assert done_within(station.close)


def test_the_next_call_finds_its_connection_made() -> None:
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=4)
    station = Station(server.addresses[0], ClientSecurity(), LIMIT_BYTES)
    try:
        first = station.take()
        assert not first.answered
        station.give_back(first)
        station.retire(first, at_once=True)
        fresh = station.take()
        assert fresh is not first
        assert fresh.client.server_live(5.0)
        ready = threading.Event()
        fresh.client.warm_up(5.0, lambda answered: ready.set() if answered else None)
        assert ready.wait(5.0)
        assert fresh.answered
        station.give_back(fresh)
    finally:
        station.close()
        server.stop(0)


def test_a_connection_that_cannot_be_made_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    station = Station(address, ClientSecurity(), LIMIT_BYTES)
    made: list[Link] = []
    new_link = station._new_link

    def noted() -> Link:
        made.append(new_link())
        return made[-1]

    monkeypatch.setattr(station, "_new_link", noted)
    first = station.take()
    station.give_back(first)
    station.retire(first, at_once=True)
    fresh = made[0]

    def until_another() -> None:
        link = fresh
        while link is fresh:
            link = station.take()
            station.give_back(link)
            threading.Event().wait(0.005)  # spinning would keep gRPC's threads from doing what is waited for

    assert done_within(until_another)
    station.close()


def test_a_call_on_a_connection_that_was_replaced_ends_with_the_station(silent: str) -> None:
    station = Station(silent, ClientSecurity(), LIMIT_BYTES)
    link = station.take()
    call = link.client.infer_async(serialize_infer_request(InferRequest("digits", {})), 60.0)
    station.retire(link, at_once=True)
    assert not call.done()
    station.close()
    with pytest.raises(RemoteError) as caught:
        call.result(10.0)
    assert caught.value.kind is RemoteErrorKind.CANCELLED
    station.give_back(link)
