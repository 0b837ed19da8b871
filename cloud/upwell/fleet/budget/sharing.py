"""Shares one wish of the whole fleet out among its devices, by what each gains from the next request that goes up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Operating points of a device: `shares` of its requests that go up, ascending, and the `risks` there, the shares
    of all its requests that it keeps and gets wrong though the cloud is right.

    Made by `envelope`, so that the risk falls ever more slowly: what the next request gains is never more than what the
    one before it did.
    """

    shares: tuple[float, ...]
    risks: tuple[float, ...]

    def risk(self, share: float) -> float:
        """The risk at a share, between two points in proportion: a device that mixes two thresholds reaches it."""
        for index in range(1, len(self.shares)):
            left, right = self.shares[index - 1], self.shares[index]
            if share <= right:
                part = (share - left) / (right - left)
                return self.risks[index - 1] + part * (self.risks[index] - self.risks[index - 1])
        return self.risks[-1]

    def segments(self) -> list[tuple[float, float]]:
        """Width in share, and gain per share, of each stretch between two points; the gains descend."""
        pairs = zip(self.shares, self.shares[1:], self.risks, self.risks[1:])  # noqa: B905  neighbours
        return [(right - left, (high - low) / (right - left)) for left, right, high, low in pairs]


def envelope(points: Sequence[tuple[float, float]]) -> Curve:
    """The lower convex hull of (share, risk) points, which need not be in order: Shoham & Gersho 1988, "Efficient bit
    allocation for an arbitrary set of quantizers". Points above it are never worth their share. It ends where the risk
    is least. Raises `ValueError` without a point at share 0, and for a share or a risk outside 0 to 1.
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

    `requests_per_s` and `request_bytes` are what it has had lately. `most_share` is its own limit (policy, budgets), 1
    where it has none; `uplink_bytes_per_s` what its link carries beside everything else, infinite where nobody knows.
    """

    device: str
    curve: Curve
    requests_per_s: float
    request_bytes: float = 0.0
    most_share: float = 1.0
    uplink_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        """Raises `ValueError` for what cannot be."""
        if not (0 <= self.requests_per_s < math.inf and 0 <= self.request_bytes < math.inf):
            raise ValueError(f"device {self.device}: requests and bytes must be finite and not negative")
        if not (0.0 <= self.most_share <= 1.0 and self.uplink_bytes_per_s >= 0.0):
            raise ValueError(f"device {self.device}: its own limits must be a share and a rate")

    @property
    def limit(self) -> float:
        """The share that neither its own limit nor its link lets it exceed."""
        needs = self.requests_per_s * self.request_bytes
        return min(self.most_share, self.uplink_bytes_per_s / needs if needs > 0 else math.inf)


@dataclass(frozen=True, slots=True)
class FleetGoal:
    """What the fleet is to keep to; one of the three is given, the others are infinite or NaN.

    `cloud_share` of all requests; `bytes_per_s` in the uplinks together; `max_risk`, the share of all requests that may
    be kept and wrong where the cloud is right, with as few requests up as possible.
    """

    cloud_share: float = math.inf
    bytes_per_s: float = math.inf
    max_risk: float = math.nan

    def __post_init__(self) -> None:
        """Raises `ValueError` unless it is one wish."""
        given = [value for value in (self.cloud_share, self.bytes_per_s, self.max_risk) if math.isfinite(value)]
        if len(given) != 1 or given[0] < 0:
            raise ValueError("expected one non-negative goal: cloud_share, bytes_per_s or max_risk")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Device -> the share of its requests that may go up, and what it comes to. `slope` is the gain of the last request
    that still went up, per request or per byte: the price λ at which every device alone would choose the same.

    `is_met` is False where not even every device at its own limit reaches a `max_risk`.
    """

    shares: Mapping[str, float]
    cloud_share: float
    bytes_per_s: float
    risk: float
    slope: float
    is_met: bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Part of a device's curve: so many requests per second, each of which gains and costs so much."""

    device: str
    requests_per_s: float
    gain: float
    cost: float


def share_out(demands: Sequence[Demand], wish: FleetGoal) -> Allocation:
    """The shares with the least risk over the whole fleet that keep to `wish`, or for a `max_risk` the fewest requests.

    With curves r_d that fall ever more slowly, minimize Σ n_d r_d(s_d) subject to Σ c_d n_d s_d ≤ B and s_d ≤ limit_d:
    the stretches of all curves are taken in the order of what they gain per unit of cost, until B is used up. By
    Lagrange (Everett 1963, "Generalized Lagrange multiplier method for solving problems of optimum allocation of
    resources"; the greedy order: Fox 1966, "Discrete optimization via marginal analysis") this is exact: every stretch
    taken gains λ per unit or more and every one left λ or less, and since a curve's own gains descend, none is taken
    before the one below it. One device at most ends within a stretch.

    n_d requests/s, c_d 1 or bytes per request. It takes O(S log S) for S stretches.
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
    """Those of all devices within their limits, the most gain per cost first; of equals in the devices' order."""
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
    """The shares that differ by more than a point from what the device was told last: links change all the time, and a
    device is not to hear of every flicker. Those that fall are always told, so that what was promised is kept."""
    return {
        device: share
        for device, share in now.items()
        if device not in told or share < told[device] - 1e-9 or share > told[device] + _WORTH_TELLING
    }
