"""The device's own address towards the cloud: read from the routing table, with nothing sent."""

from __future__ import annotations

import pytest

from tests.faults.stalling import LIMIT_BYTES, allowed, decision, serving
from upwell.edge.uplink import uplink as module
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.endpoint import source_addresses
from upwell.edge.uplink.uplink import Uplink, UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.routing.decide.router_state import CloudMoved, Outcome


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x.sock"])
def test_this_machine_needs_no_way(endpoint: str) -> None:
    assert source_addresses([endpoint]) == ()


def test_a_name_is_not_looked_up_and_counts_once_as_the_default_route() -> None:
    assert len(source_addresses(["no.such.host.invalid:1", "999.0.0.1:2"])) == 2  # IPv4 and IPv6


@pytest.mark.parametrize("endpoint", ["192.0.2.7:1", "[2001:db8::7]:1"])
def test_a_number_is_looked_up_as_it_is_and_no_way_is_an_answer_too(endpoint: str) -> None:
    assert len(source_addresses([endpoint])) == 1


def test_after_a_move_every_connection_is_made_anew_and_the_router_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETWORK_CHECK_S", 0.0)
    here, told = ["10.0.0.1"], list[Outcome]()
    with serving(FakeDataplane()) as (address,):
        settings = UplinkSettings(address, ClientSecurity(), LIMIT_BYTES)
        uplink = Uplink(settings, told.append, lambda: False, look=lambda *_: tuple(here))

        def is_first() -> bool:
            at = decision()
            reply = uplink.start(InferRequest("echo", EXAMPLE, id="1"), allowed, at.give_up_s).wait(at.give_up_s)
            assert isinstance(reply, CloudReply), reply
            return reply.is_first

        assert [is_first(), is_first()] == [True, False]
        assert CloudMoved() not in told
        here[0] = "10.0.0.2"
        assert [is_first(), is_first()] == [True, False]
        assert told.count(CloudMoved()) == 1
        uplink.close()
