"""Shares one goal of the whole fleet among its devices, by what each gains from its next offloaded request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Operating points of a device: `shares` of its requests that are offloaded, ascending, and the `risks` there. A
    risk is the share of all requests that the device keeps and gets wrong although the cloud is right.

    Made by `envelope`, so it is convex: the next request never gains more than the one before it.
    """

    shares: tuple[float, ...]
    risks: tuple[float, ...]

    def risk(self, share: float) -> float:
        """The risk at a share, interpolated between two points: a device that mixes two thresholds reaches it."""
        for index in range(1, len(self.shares)):
            left, right = self.shares[index - 1], self.shares[index]
            if share <= right:
                part = (share - left) / (right - left)
                return self.risks[index - 1] + part * (self.risks[index] - self.risks[index - 1])
        return self.risks[-1]

    def segments(self) -> list[tuple[float, float]]:
        """Width in share, and gain per share, of each segment between two points; the gains descend."""
        pairs = zip(self.shares, self.shares[1:], self.risks, self.risks[1:])  # noqa: B905  neighbours
        return [(right - left, (high - low) / (right - left)) for left, right, high, low in pairs]


def envelope(points: Sequence[tuple[float, float]]) -> Curve:
    """The lower convex hull of (share, risk) points, in any order: Shoham & Gersho 1988, "Efficient bit allocation
    for an arbitrary set of quantizers". Points above it are never worth their share. It ends at the least risk.
    Raises `ValueError` without a point at share 0, and for a share or a risk outside 0 to 1.
    """
    if not points or min(share for share, _ in points) > 0.0:
        raise ValueError("a curve starts with the device alone, but the point at share 0 is missing")
    for share, risk in points:
        if not (0.0 <= share <= 1.0 and 0.0 <= risk <= 1.0):
            raise ValueError(f"expected a share and a risk from 0 to 1, got {share}, {risk}")
    hull: list[tuple[float, float]] = []
    for share, risk in sorted(points):
        if hull and share == hull[-1][0]:
            continue  # sorted: the first has the lower risk
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], (share, risk)):
            hull.pop()
        hull.append((share, risk))
    while len(hull) > 1 and hull[-1][1] >= hull[-2][1]:
        hull.pop()
    return Curve(tuple(share for share, _ in hull), tuple(risk for _, risk in hull))


def _is_above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether `middle` lies on or above the line through the other two."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])


_WORTH_TELLING = 0.01


@dataclass(frozen=True, slots=True)
class Demand:
    """A device as the budget sees it.

    `requests_per_s` and `request_bytes` are recent averages. `most_share` is the device's own limit (policy,
    budgets), 1 without one; `uplink_bytes_per_s` is what its link can carry beside all other traffic, infinite if
    unknown.
    """

    device: str
    curve: Curve
    requests_per_s: float
    request_bytes: float = 0.0
    most_share: float = 1.0
    uplink_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        """Raises `ValueError` for impossible values."""
        if not (0 <= self.requests_per_s < math.inf and 0 <= self.request_bytes < math.inf):
            raise ValueError(f"device {self.device}: requests and bytes must be finite and not negative")
        if not (0.0 <= self.most_share <= 1.0 and self.uplink_bytes_per_s >= 0.0):
            raise ValueError(f"device {self.device}: its own limits must be a share and a rate")

    @property
    def limit(self) -> float:
        """The maximum share under its own limit and its link."""
        needs = self.requests_per_s * self.request_bytes
        return min(self.most_share, self.uplink_bytes_per_s / needs if needs > 0 else math.inf)


@dataclass(frozen=True, slots=True)
class FleetGoal:
    """The goal of the fleet. Exactly one of the three is given; the others are infinite or NaN.

    `cloud_share` of all requests; `bytes_per_s` of all uplinks together; or `max_risk`, the share of all requests
    that may be kept and wrong where the cloud is right, with as few offloaded requests as possible.
    """

    cloud_share: float = math.inf
    bytes_per_s: float = math.inf
    max_risk: float = math.nan

    def __post_init__(self) -> None:
        """Raises `ValueError` unless exactly one goal is given."""
        given = [value for value in (self.cloud_share, self.bytes_per_s, self.max_risk) if math.isfinite(value)]
        if len(given) != 1 or given[0] < 0:
            raise ValueError("expected one non-negative goal: cloud_share, bytes_per_s or max_risk")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Device -> the share of its requests that it may offload, and the total. `slope` is the gain of the last
    offloaded request, per request or per byte: the price λ at which every device alone would choose the same.

    `is_met` is False if even every device at its own limit misses a `max_risk`.
    """

    shares: Mapping[str, float]
    cloud_share: float
    bytes_per_s: float
    risk: float
    slope: float
    is_met: bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A segment of a device's curve: its requests per second, and the gain and cost of each."""

    device: str
    requests_per_s: float
    gain: float
    cost: float


def share_out(demands: Sequence[Demand], wish: FleetGoal) -> Allocation:
    """The shares that minimize the risk of the whole fleet under the goal, or for a `max_risk` the offloaded
    requests.

    With convex curves r_d, minimize Σ n_d r_d(s_d) subject to Σ c_d n_d s_d ≤ B and s_d ≤ limit_d: the segments of
    all curves are taken in the order of their gain per unit of cost until B is used up. By Lagrange (Everett 1963,
    "Generalized Lagrange multiplier method for solving problems of optimum allocation of resources"; the greedy
    order: Fox 1966, "Discrete optimization via marginal analysis") this is exact: every segment taken gains λ per
    unit or more, every other one λ or less, and since a curve's own gains descend, none is taken before the one below
    it. At most one device ends within a segment.

    n_d is in requests/s; c_d is 1 or bytes per request. Takes O(S log S) for S segments.
    """
    in_bytes = math.isfinite(wish.bytes_per_s)
    total_per_s = sum(one.requests_per_s for one in demands)
    left = wish.bytes_per_s if in_bytes else wish.cloud_share * total_per_s
    risk_per_s = sum(one.requests_per_s * one.curve.risk(0.0) for one in demands)
    least_risk_per_s = wish.max_risk * total_per_s if not math.isnan(wish.max_risk) else -math.inf
    sent = {one.device: 0.0 for one in demands}
    slope = 0.0
    for stretch in _stretches(demands, in_bytes):
        amount = stretch.requests_per_s
        if stretch.cost > 0:
            amount = min(amount, left / stretch.cost)
        amount = min(amount, max(0.0, (risk_per_s - least_risk_per_s) / stretch.gain))
        if amount <= 0.0:
            break
        sent[stretch.device] += amount
        left -= amount * stretch.cost
        risk_per_s -= amount * stretch.gain
        slope = stretch.gain / stretch.cost if stretch.cost > 0 else math.inf
        if amount < stretch.requests_per_s:
            break
    shares = {
        one.device: min(sent[one.device] / one.requests_per_s, one.limit) if one.requests_per_s else one.most_share
        for one in demands
    }
    bytes_per_s = sum(sent[one.device] * one.request_bytes for one in demands)
    all_per_s = total_per_s or 1.0
    risk = risk_per_s / all_per_s
    is_met = math.isnan(wish.max_risk) or risk <= wish.max_risk + 1e-9
    return Allocation(shares, sum(sent.values()) / all_per_s, bytes_per_s, risk, slope, is_met)


def _stretches(demands: Sequence[Demand], in_bytes: bool) -> list[_Stretch]:
    """The segments of all devices within their limits, the most gain per cost first, ties in the devices' order."""
    found = []
    for one in demands:
        room = one.limit
        for width, gain in one.curve.segments():
            width = min(width, room)
            room -= width
            if width * one.requests_per_s > 0 and gain > 0:
                cost = one.request_bytes if in_bytes else 1.0
                found.append(_Stretch(one.device, width * one.requests_per_s, gain, cost))
    return sorted(found, key=lambda one: -math.inf if one.cost == 0 else -one.gain / one.cost)


def worth_telling(told: Mapping[str, float], now: Mapping[str, float]) -> Mapping[str, float]:
    """The shares that differ from the last ones sent by more than a percentage point: links change all the time, and
    devices need not hear of every fluctuation. A lower share is always sent, so that the goal is kept.
    """
    return {
        device: share
        for device, share in now.items()
        if device not in told or share < told[device] - 1e-9 or share > told[device] + _WORTH_TELLING
    }
