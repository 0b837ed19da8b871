"""Connections that are dead and do not say so, and links that are only slow."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud, slow
from tests.faults.proxy import Proxy
from tests.faults.scene import ONE, until
from tests.faults.stalling import LIMIT_BYTES, StallingCloud, UplinkSender, decision, sender, serving
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.connection_keepalive import RoundTrips, channel_options
from upwell.edge.uplink.endpoint import Endpoint
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason


@dataclass
class ProxiedCloud:
    """A sender behind a proxy to a cloud."""

    sender: UplinkSender
    proxy: Proxy
    cloud: StallingCloud

    def ask(self, within_s: float = 10.0) -> Reason | None:
        """Why there was no answer; None where there was one."""
        outcome = self.sender.ask(decision(within_s=within_s)).outcome
        assert isinstance(outcome, (CloudReply, CloudFailure))
        return outcome.reason if isinstance(outcome, CloudFailure) else None

    def learn(self) -> None:
        """Know that the link is fast, over a connection that was made with that knowledge."""
        while self.sender.uplink._endpoints[0].round_trips.timeout_s() > RoundTrips.SHORTEST_S:
            assert self.ask() is None
        self.sender.uplink._endpoints[0].renew()
        assert self.ask() is None


@pytest.fixture
def proxied() -> Iterator[ProxiedCloud]:
    cloud = StallingCloud()
    with serving(cloud) as (address,), Proxy(address) as proxy, sender([proxy.address]) as made:
        yield ProxiedCloud(made, proxy, cloud)


def test_after_a_silent_death_the_next_call_uses_a_fresh_connection(proxied: ProxiedCloud) -> None:
    """The proxy keeps a connection that lost bytes dead for good, as a router does that forgot it."""
    assert proxied.ask() is None
    proxied.proxy.blackhole()
    before = proxied.proxy.accepted
    for _ in range(2):  # after one it may be no more than slow
        assert proxied.ask(within_s=0.2) is Reason.CLOUD_DEADLINE
    proxied.proxy.restore()
    until(lambda: proxied.ask() is None)
    assert proxied.proxy.accepted > before


def test_a_call_with_time_learns_of_a_dead_link_by_pings_long_before_its_deadline(proxied: ProxiedCloud) -> None:
    proxied.learn()
    proxied.proxy.blackhole()
    started_s = time.monotonic()
    assert proxied.ask(within_s=60.0) is Reason.CLOUD_UNAVAILABLE
    assert time.monotonic() - started_s < 20.0  # two seconds, on a machine that is not busy
    proxied.proxy.restore()
    assert proxied.ask() is None


@pytest.mark.slow
def test_a_link_that_became_slow_is_soon_not_taken_for_a_dead_one(proxied: ProxiedCloud) -> None:
    proxied.learn()
    proxied.cloud.stalls, proxied.cloud.stall_s = (lambda _: True), 2.0
    proxied.proxy.up.delay(0.7)
    proxied.proxy.down.delay(0.7)
    # The first ping comes back after 1.4 s where 1 s is waited; each try that ends so doubles that.
    assert any(proxied.ask() is None for _ in range(4))
    assert proxied.ask() is None


@pytest.mark.slow
def test_a_large_message_on_a_slow_link_is_not_taken_for_a_dead_connection(proxied: ProxiedCloud) -> None:
    proxied.learn()
    proxied.proxy.up.throttle(400e3)  # five seconds for what follows, over a connection that is given one
    attempt = proxied.sender.send(decision(within_s=60.0), {"fp32": np.ones((1, 500_000), np.float32)})
    attempt.wait(math.inf)
    assert isinstance(attempt.outcome, CloudReply)


def test_an_idle_connection_is_not_pinged(proxied: ProxiedCloud) -> None:
    proxied.sender.uplink._prober.stop()
    proxied.learn()
    time.sleep(0.5)  # what belongs to the last call
    seen_bytes = proxied.proxy.up.received_bytes
    time.sleep(2.5)  # two pings would be due; nothing happens that could be waited for
    assert proxied.proxy.up.received_bytes == seen_bytes


@pytest.mark.slow
def test_a_server_with_default_limits_puts_up_with_the_pings() -> None:
    """More than two pings without data in between offend such a server, which ends the connection."""
    with ScriptedCloud() as cloud:
        cloud.behaviour = slow(8.0)
        client = OipClient(cloud.address, options=channel_options(RoundTrips.SHORTEST_S))
        assert client.infer(InferRequest("digits-large", {"image": ONE}), 30.0).outputs
        client.close()


def test_only_a_call_that_could_outlast_its_connection_gets_a_more_patient_one_for_a_large_message() -> None:
    endpoint = Endpoint("127.0.0.1:1", ClientSecurity(), LIMIT_BYTES)
    first = endpoint.take()
    for _ in range(50):
        endpoint.answered(first, 0.1, 100_000)
    assert endpoint.take(size_bytes=10_000_000, within_s=first.timeout_s) is first
    patient = endpoint.take(size_bytes=10_000_000, within_s=60.0)
    assert patient is not first
    assert patient.timeout_s == 64
    assert endpoint.take(size_bytes=10_000_000, within_s=60.0) is patient
    endpoint.close()


def test_a_connection_made_for_faster_answers_is_replaced_once_they_are_slower() -> None:
    endpoint = Endpoint("127.0.0.1:1", ClientSecurity(), LIMIT_BYTES)
    first = endpoint.take()
    assert endpoint.take() is first
    for _ in range(20):
        endpoint.answered(first, 0.01)
    assert endpoint.take() is first
    for _ in range(20):
        endpoint.answered(first, 3.0)
    slower = endpoint.take()
    assert slower is not first
    assert first.timeout_s == 4
    assert slower.timeout_s >= 4 * 3.0
    assert endpoint.take(apart_from=slower) not in (first, slower)
    endpoint.close()
