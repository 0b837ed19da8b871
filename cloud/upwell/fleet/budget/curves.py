"""What a device gains from each share of its requests that goes to the cloud, as its calibration knows it."""

from __future__ import annotations

from collections.abc import Sequence
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
        raise ValueError("a curve begins with what the device does alone: a point at share 0 is missing")
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
