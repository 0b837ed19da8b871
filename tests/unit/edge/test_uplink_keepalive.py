"""How long a silent connection is waited for: from the round trips, generously, and in steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upwell.edge.uplink.connection_keepalive import RoundTrips, channel_options


def after(*network_s: float, size_bytes: int = 0) -> RoundTrips:
    trips = RoundTrips()
    for one_s in network_s:
        trips = trips.answered(one_s, size_bytes)
    return trips


def test_nothing_known_is_taken_for_a_timer_of_one_second() -> None:
    assert RoundTrips().timeout_s() == RoundTrips.TIMES


@pytest.mark.parametrize(
    ("rtt_s", "timeout_s"), [(0.0, 1), (0.001, 1), (0.2, 1), (0.3, 2), (0.8, 4), (0.9, 4), (3.0, 16), (100.0, 64)]
)
def test_a_steady_round_trip_is_given_four_times_itself_and_more(rtt_s: float, timeout_s: float) -> None:
    assert after(*[rtt_s] * 100).timeout_s() == timeout_s


def test_the_timer_is_that_of_rfc_6298() -> None:
    trips = after(0.1)
    assert (trips.mean_s, trips.deviation_s) == (0.1, 0.05)
    trips = trips.answered(0.2)
    assert trips.deviation_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert trips.mean_s == pytest.approx(7 / 8 * 0.1 + 1 / 8 * 0.2)


def test_a_connection_that_broke_in_silence_is_given_twice_as_long_until_the_next_answer() -> None:
    trips = after(*[0.1] * 50)
    seen = []
    for _ in range(10):
        trips = trips.broke(trips.timeout_s())
        seen.append(trips.timeout_s())
    assert seen == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64]
    assert trips.answered(0.1).timeout_s() == 1


def test_twice_what_the_broken_connection_had_which_may_be_more_than_the_timer_asks_for() -> None:
    trips = after(*[0.1] * 50).broke(8.0)
    assert trips.timeout_s() == trips.broke(8.0).timeout_s() == 16


def test_a_message_larger_than_those_before_is_given_longer_in_proportion() -> None:
    trips = after(*[0.1] * 50, size_bytes=100_000)
    assert [trips.timeout_s(size) for size in (0, 100_000, 250_000, 800_000, 10**12)] == [1, 1, 1, 4, 64]


def test_of_an_unknown_link_a_message_is_given_what_a_very_slow_one_takes() -> None:
    assert [RoundTrips().timeout_s(size) for size in (20_000, 100_000, 1_000_000)] == [4, 8, 64]
    empty_calls = after(*[0.1] * 50)
    assert [empty_calls.timeout_s(size) for size in (0, 100_000)] == [1, 8]


def test_the_end_of_its_call_bounds_what_the_size_of_a_message_adds_and_nothing_else() -> None:
    assert [RoundTrips().timeout_s(10**7, within_s) for within_s in (0.0, 3.0, 5.0, 9.0, 60.0)] == [4, 4, 8, 16, 64]
    slow = after(*[3.0] * 50)
    assert slow.timeout_s(10**7, 1.0) == slow.timeout_s()


def test_small_messages_whose_time_is_the_round_trip_make_no_large_one_seem_slower_than_that() -> None:
    trips = after(*[0.1] * 50, size_bytes=100)
    assert trips.timeout_s(100_000) == RoundTrips().timeout_s(100_000)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.one_of(st.floats(0, 1e6), st.none()), st.integers(0, 1 << 40)), max_size=60))
def test_it_is_always_a_step_within_its_bounds_and_never_below_the_timer(
    history: list[tuple[float | None, int]],
) -> None:
    trips = RoundTrips()
    for network_s, size_bytes in history:
        trips = trips.broke(trips.timeout_s()) if network_s is None else trips.answered(network_s, size_bytes)
        timeout_s = trips.timeout_s()
        assert RoundTrips.SHORTEST_S <= timeout_s <= trips.timeout_s(size_bytes) <= RoundTrips.LONGEST_S
        assert trips.timeout_s(size_bytes, 0.0) == timeout_s
        assert math.log2(timeout_s).is_integer()
        assert math.log2(trips.timeout_s(size_bytes)).is_integer()
        if not math.isnan(trips.mean_s):
            assert timeout_s >= min(RoundTrips.LONGEST_S, 4 * trips.mean_s)


def test_the_limit_on_pings_is_set_beside_that_on_keepalive_and_idle_links_are_not_pinged() -> None:
    options = dict(channel_options(2.0))
    assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"] == 2000
    assert options["grpc.keepalive_permit_without_calls"] == 0
