"""Hedges as the policy has them: the router's own decisions and account, against a server that stalls."""

from __future__ import annotations

import pytest

from tests.faults.stalling import StallingCloud, asking

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("after", ["100ms", "p95"])
def test_a_stalled_request_is_hedged_and_the_server_sees_the_loser_leave(after: str) -> None:
    cloud = StallingCloud()
    with asking(cloud, f"{{after: {after}, at_most: 50%}}") as it:
        for _ in range(40):
            it.ask()
        hedges_before = len(cloud.requests) - 40
        cloud.stalls = lambda number: number == 40 + hedges_before
        assert it.ask() < 2.0
        assert cloud.saw_leave(40 + hedges_before)
        assert len(cloud.requests) == 42 + hedges_before


@pytest.mark.parametrize("hedge", ["off", "{after: 50ms, at_most: 1%}"], ids=["off", "over budget"])
def test_no_hedge_where_none_is_written_or_none_is_saved_up(hedge: str) -> None:
    cloud = StallingCloud(lambda number: number >= 20, stall_s=0.2)
    with asking(cloud, hedge) as it:
        for _ in range(23):
            it.ask()
        assert len(cloud.requests) == 23


def test_hedges_are_at_most_the_written_share_though_every_request_stalls() -> None:
    cloud = StallingCloud(lambda _: True, stall_s=0.03)
    with asking(cloud, "{after: 5ms, at_most: 10%}") as it:
        for _ in range(60):
            it.ask()
        assert 60 < len(cloud.requests) <= 66
