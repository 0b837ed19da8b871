"""A budget of the whole fleet, shared out by what each device gains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.fleet.budget.goal_allocation import Curve, Demand, FleetGoal, envelope, share_out, worth_telling

EASY = envelope([(0.0, 0.02), (0.5, 0.0)])
HARD = envelope([(0.0, 0.4), (0.2, 0.2), (0.6, 0.05), (1.0, 0.0)])


def brute_force(demands: Sequence[Demand], budget: float, in_bytes: bool) -> float:
    """The least risk per second of all mixes: each device at a point of its curve or at its limit, but one that takes
    what is left."""
    best = math.inf
    points = [sorted({*(min(s, one.limit) for s in one.curve.shares), one.limit}) for one in demands]
    cost = [one.requests_per_s * (one.request_bytes if in_bytes else 1.0) for one in demands]
    for filler in range(len(demands)):
        others = [points[i] if i != filler else [0.0] for i in range(len(demands))]
        for chosen in itertools.product(*others):
            shares = list(chosen)
            left = budget - sum(c * s for c, s in zip(cost, shares, strict=True))
            if left < -1e-12:
                continue
            shares[filler] = min(demands[filler].limit, left / cost[filler] if cost[filler] else math.inf)
            risk = sum(one.requests_per_s * one.curve.risk(s) for one, s in zip(demands, shares, strict=True))
            best = min(best, risk)
    return best


twentieths = st.integers(0, 20).map(lambda n: n / 20)
curves = st.builds(
    lambda alone, rest: envelope([(0.0, alone), *rest]),
    st.floats(0, 1),
    st.lists(st.tuples(twentieths, st.floats(0, 1)), max_size=4),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Demand]:
    return [
        Demand(
            f"d{number}", draw(curves), draw(st.floats(0.1, 10)), draw(st.floats(1, 1000)),
            draw(twentieths), draw(st.floats(1, 1e5)),
        )
        for number in range(draw(st.integers(1, 4)))
    ]  # fmt: skip


@settings(deadline=None, max_examples=examples(200))
@given(fleets(), st.floats(0, 1), st.booleans())
def test_no_other_shares_have_less_risk_for_the_same_budget(demands: list[Demand], part: float, in_bytes: bool) -> None:
    total = sum(one.requests_per_s for one in demands)
    budget = part * sum(one.requests_per_s * one.request_bytes for one in demands) if in_bytes else part * total
    wish = FleetGoal(bytes_per_s=budget) if in_bytes else FleetGoal(cloud_share=part)
    found = share_out(demands, wish)
    assert found.risk * total == pytest.approx(brute_force(demands, budget, in_bytes), abs=1e-9)
    assert (found.bytes_per_s if in_bytes else found.cloud_share * total) <= budget * (1 + 1e-9) + 1e-9
    for one in demands:
        assert 0.0 <= found.shares[one.device] <= one.limit


@settings(deadline=None, max_examples=examples(200))
@given(fleets(), st.floats(0, 1))
def test_a_risk_is_kept_with_as_few_requests_as_any_budget_needs_for_it(demands: list[Demand], risk: float) -> None:
    found = share_out(demands, FleetGoal(max_risk=risk))
    if found.is_met:
        same = share_out(demands, FleetGoal(cloud_share=found.cloud_share))
        assert same.risk == pytest.approx(found.risk, abs=1e-9)
        assert found.risk <= risk + 1e-9
    else:
        assert found.risk == pytest.approx(share_out(demands, FleetGoal(cloud_share=1.0)).risk)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(st.tuples(twentieths, st.floats(0, 1)), max_size=12), st.floats(0, 1))
def test_an_envelope_lies_below_every_point_and_flattens(rest: list[tuple[float, float]], alone: float) -> None:
    curve = envelope([(0.0, alone), *rest])
    assert all(curve.risk(share) <= risk + 1e-9 for share, risk in [(0.0, alone), *rest])
    gains = [gain for _, gain in curve.segments()]
    assert all(gain > 0 for gain in gains)
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(gains))


def test_hard_cases_get_the_budget_first() -> None:
    found = share_out([Demand("easy", EASY, 8.0), Demand("hard", HARD, 2.0)], FleetGoal(cloud_share=0.1))
    assert found.shares == pytest.approx({"easy": 0.0, "hard": 0.5})
    assert found.slope == pytest.approx(0.375)


def test_a_link_that_gets_worse_leaves_its_part_to_others() -> None:
    two = [Demand("near", HARD, 1.0, 100.0), Demand("far", HARD, 1.0, 100.0)]
    both = share_out(two, FleetGoal(cloud_share=0.3))
    two[1] = Demand("far", HARD, 1.0, 100.0, uplink_bytes_per_s=10.0)
    one = share_out(two, FleetGoal(cloud_share=0.3))
    assert one.shares["far"] == pytest.approx(0.1)
    assert one.shares["near"] > both.shares["near"]
    assert one.cloud_share == pytest.approx(0.3)


def test_a_device_never_gets_more_than_its_own_limit() -> None:
    found = share_out([Demand("own", HARD, 1.0, most_share=0.05)], FleetGoal(max_risk=0.0))
    assert found.shares == {"own": 0.05}
    assert not found.is_met


def test_small_rises_are_not_told_and_falls_are() -> None:
    told = {"a": 0.2, "b": 0.2, "c": 0.2}
    assert worth_telling(told, {"a": 0.205, "b": 0.195, "c": 0.3, "d": 0.1}) == {"b": 0.195, "c": 0.3, "d": 0.1}


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "share 0 is missing"),
        ([(0.1, 0.2)], "share 0 is missing"),
        ([(0.0, 0.2), (0.5, 1.5)], "from 0 to 1"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(points: list[tuple[float, float]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        envelope(points)


def test_two_wishes_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="one non-negative goal"):
        FleetGoal(cloud_share=0.2, max_risk=0.02)


def test_the_risk_between_two_points_is_in_proportion() -> None:
    assert Curve((0.0, 0.5), (0.2, 0.0)).risk(0.25) == pytest.approx(0.1)
