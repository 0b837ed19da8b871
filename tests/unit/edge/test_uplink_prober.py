"""Link probes: only after an allowed call, while requests that may leave are seen, and while the cloud answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.faults.scene import until
from tests.faults.stalling import LIMIT_BYTES, UplinkSender, allowed, decision, sender, serving
from upwell.edge.uplink.probe_timing import Prober
from upwell.edge.uplink.uplink import Uplink, UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import Refused
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.routing.decide.router_state import LinkProbed
from upwell.shared.routing.flow.flow_actions import CloudFailure


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without long waits."""
    for name, value_s in {"POLL_S": 0.02, "SEEN_S": 0.5}.items():
        monkeypatch.setattr(Prober, name, value_s)


@pytest.fixture
def cloud() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def it(cloud: FakeDataplane) -> Iterator[UplinkSender]:
    with serving(cloud) as addresses, Proxy(addresses[0]) as proxy, sender([proxy.address]) as made:
        made.cell.probes = True
        made.proxy = proxy  # type: ignore[attr-defined]  # for the tests that break the link
        yield made


def probes(it: UplinkSender) -> list[LinkProbed]:
    return [one for one in it.cell.outcomes if isinstance(one, LinkProbed)]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "uplink-prober"}


def test_after_a_call_the_link_is_probed_while_requests_are_seen_and_then_left_alone(it: UplinkSender) -> None:
    it.ask(decision())
    until(lambda: len(probes(it)) >= 3)
    assert all(0 < one.total_s < 1.0 for one in probes(it))
    until(lambda: it.uplink._prober._is_dormant)
    count = len(probes(it))
    it.uplink.note_candidate(allowed)
    until(lambda: len(probes(it)) > count)


def test_nothing_leaves_before_the_first_call_that_is_allowed(it: UplinkSender) -> None:
    before = threads()
    it.uplink.note_candidate(allowed)
    it.cell.deny()
    assert isinstance(it.send(decision()).outcome, CloudFailure)
    assert threads() <= before
    assert it.proxy.accepted == 0  # type: ignore[attr-defined]  # set by the fixture


def test_after_a_failure_the_cloud_is_left_to_the_breaker(it: UplinkSender, cloud: FakeDataplane) -> None:
    it.ask(decision())
    until(lambda: bool(probes(it)))
    cloud.failure = Refused("full")
    it.ask(decision())
    count = len(probes(it))
    it.uplink.note_candidate(allowed)
    until(lambda: it.uplink._prober._is_dormant)
    assert len(probes(it)) <= count + 1  # one may have been under way


def test_a_probe_under_way_while_a_call_fails_starts_no_others(
    it: UplinkSender, cloud: FakeDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_go_on, server_live = threading.Event(), threading.Event(), OipClient.server_live

    def ask_later(client: OipClient, timeout_s: float) -> bool:
        asked.set()
        assert may_go_on.wait(20.0)
        return server_live(client, timeout_s)

    it.ask(decision())
    until(lambda: bool(probes(it)))
    monkeypatch.setattr(OipClient, "server_live", ask_later)
    assert asked.wait(20.0)
    cloud.failure = Refused("full")
    it.ask(decision())
    count = len(probes(it))
    may_go_on.set()
    it.uplink.note_candidate(allowed)
    until(lambda: it.uplink._prober._is_dormant)
    assert len(probes(it)) == count + 1


def test_a_probe_that_fails_says_nothing_and_is_not_repeated(it: UplinkSender) -> None:
    it.ask(decision())
    until(lambda: bool(probes(it)))
    it.proxy.refuse()  # type: ignore[attr-defined]  # set by the fixture
    until(lambda: not it.uplink.wants_probe)
    told = len(it.cell.outcomes)
    until(lambda: it.uplink._prober._is_dormant)
    assert len(it.cell.outcomes) == told


def test_it_ends_at_once_though_a_probe_is_under_way(it: UplinkSender) -> None:
    before = threads()
    it.ask(decision())
    until(lambda: bool(probes(it)))
    it.proxy.blackhole()  # type: ignore[attr-defined]  # set by the fixture
    count = len(probes(it))
    seen = it.proxy.up.received_bytes  # type: ignore[attr-defined]  # set by the fixture
    until(lambda: it.proxy.up.received_bytes > seen)  # type: ignore[attr-defined]  # set by the fixture
    started_s = time.monotonic()
    it.uplink.close()
    it.uplink.close()
    assert time.monotonic() - started_s < 1.0
    assert threads() <= before
    assert len(probes(it)) <= count + 1


def test_an_uplink_that_is_never_used_has_no_thread() -> None:
    before = threads()
    uplink = Uplink(UplinkSettings("127.0.0.1:1", ClientSecurity(), LIMIT_BYTES), lambda _: None, lambda: True)
    assert threads() <= before
    uplink.close()


def test_a_link_that_the_router_knows_well_is_not_probed(it: UplinkSender) -> None:
    it.cell.probes = False
    it.ask(decision())
    until(lambda: it.uplink._prober._is_dormant)
    assert probes(it) == []


def test_a_call_needs_no_thread_that_probes_and_the_next_one_starts_it(
    it: UplinkSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: BackgroundThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundThread, "start", fail)
        assert not isinstance(it.ask(decision()).outcome, CloudFailure)
    assert probes(it) == []
    it.ask(decision())
    until(lambda: bool(probes(it)))
