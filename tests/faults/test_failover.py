"""Several endpoints: the first that works is used, the router hears of moves, and the preferred one is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.faults.proxy import Proxy
from tests.faults.scene import until
from tests.faults.stalling import LIMIT_BYTES, RecordingCell, UplinkSender, decision, sender, serving, uplink_of
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ConfigError, Refused, Unauthenticated
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.routing.decide.router_state import CloudMoved
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason


@dataclass
class Pair:
    """A sender to two clouds, each behind a proxy."""

    sender: UplinkSender
    clouds: tuple[FakeDataplane, FakeDataplane]
    proxies: tuple[Proxy, Proxy]

    def ask(self, within_s: float = 20.0) -> Reason | None:
        """Why there was no answer; None where there was one."""
        outcome = self.sender.ask(decision(within_s=within_s)).outcome
        assert isinstance(outcome, (CloudReply, CloudFailure))
        return outcome.reason if isinstance(outcome, CloudFailure) else None

    @property
    def moves(self) -> int:
        return self.sender.cell.outcomes.count(CloudMoved())

    @property
    def asked(self) -> tuple[int, int]:
        """Requests that came to each."""
        return len(self.clouds[0].requests), len(self.clouds[1].requests)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with two() as made:
        yield made


@contextmanager
def two() -> Iterator[Pair]:
    clouds = FakeDataplane(), FakeDataplane()
    with (
        serving(*clouds) as (one, other),
        Proxy(one) as first,
        Proxy(other) as second,
        sender([first.address, second.address]) as made,
    ):
        yield Pair(made, clouds, (first, second))


def test_while_the_preferred_one_answers_the_other_hears_nothing(pair: Pair) -> None:
    for _ in range(5):
        assert pair.ask() is None
    assert pair.asked == (5, 0)
    assert (pair.moves, pair.proxies[1].accepted) == (0, 0)


def test_one_that_refuses_connections_is_left_at_once_and_taken_back_when_it_is_back(pair: Pair) -> None:
    assert pair.ask() is None
    pair.proxies[0].refuse()
    assert pair.ask() is Reason.CLOUD_UNAVAILABLE
    for _ in range(5):
        assert pair.ask() is None
    assert (pair.asked, pair.moves) == ((1, 5), 1)
    pair.proxies[0].restore()
    until(lambda: pair.ask() is None and pair.asked[0] > 1, pace_s=0.05)
    assert pair.moves == 2
    assert pair.sender.uplink.endpoint == pair.proxies[0].address


def test_one_that_is_not_ready_is_not_taken_back(pair: Pair) -> None:
    pair.clouds[0].is_ready = False
    pair.proxies[0].refuse()
    pair.ask()
    pair.proxies[0].restore()
    accepted = pair.proxies[0].accepted
    until(lambda: pair.ask() is None and pair.proxies[0].accepted > accepted, pace_s=0.05)
    for _ in range(3):
        assert pair.ask() is None
    assert (pair.asked[0], pair.moves) == (0, 1)


def test_one_that_stays_silent_is_left_after_a_few_late_calls(pair: Pair) -> None:
    assert pair.ask() is None
    pair.proxies[0].blackhole()
    late = [pair.ask(within_s=0.15) for _ in range(3)]
    assert late == [Reason.CLOUD_DEADLINE] * 3
    assert pair.ask() is None
    assert pair.moves == 1


def test_a_refused_credential_moves_on_and_a_full_queue_does_not(pair: Pair) -> None:
    pair.clouds[0].failure = Refused("full")
    assert [pair.ask() for _ in range(5)] == [Reason.CLOUD_EXHAUSTED] * 5
    assert pair.moves == 0
    pair.clouds[0].failure = Unauthenticated("the token is unknown")
    assert pair.ask() is Reason.CLOUD_UNAUTHENTICATED
    assert pair.ask() is None
    assert pair.moves == 1


def test_where_none_works_every_call_fails_and_the_first_that_comes_back_is_used(pair: Pair) -> None:
    for proxy in pair.proxies:
        proxy.refuse()
    assert {pair.ask() for _ in range(4)} == {Reason.CLOUD_UNAVAILABLE}
    pair.proxies[1].restore()
    until(lambda: pair.ask() is None)
    assert pair.sender.uplink.endpoint == pair.proxies[1].address


def test_an_endpoint_named_twice_and_one_in_clear_off_this_machine_are_refused() -> None:
    with pytest.raises(ConfigError, match="named twice"):
        uplink_of(RecordingCell(), UplinkSettings("127.0.0.1:1", ClientSecurity(), LIMIT_BYTES, ["127.0.0.1:1"]))
    with pytest.raises(ConfigError, match="in clear"):
        uplink_of(RecordingCell(), UplinkSettings("127.0.0.1:1", ClientSecurity(), LIMIT_BYTES, ["192.0.2.1:1"]))


def test_a_closed_uplink_fails_its_calls_and_makes_no_new_connection(pair: Pair) -> None:
    pair.sender.uplink.close()
    assert pair.ask() is Reason.CLOUD_UNAVAILABLE
    assert pair.proxies[0].accepted == 0
