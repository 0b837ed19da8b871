"""Zones and lines on a picture, what is inside and what crosses; and the boxes of objects.

Every answer about zones and lines is exact: where rounding could decide on which side of a line a point lies, fractions
are used. So a point on the edge between two zones is in exactly one of them, and a path through the point where two
lines meet crosses one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import TypeAlias

from upwell.pipelines.frame import Box, FoundObject, Point

Line: TypeAlias = tuple[Point, Point]
"""A segment with a direction, from its first point to its second."""

Polygon: TypeAlias = Sequence[Point]
"""At least three corners, in either direction; the last one is joined to the first. It may cross itself (even-odd)."""

_ROUNDING = (3 + 16 * 2.0**-53) * 2.0**-53
"""Relative error that the sign of a 2 × 2 determinant may suffer (Shewchuk 1997, `orient2d`, ccwerrboundA)."""

_TINY = 1e-300
"""Products below this may have lost digits, which the bound above does not cover."""

_LAST = math.nextafter(1.0, 0.0)
"""The largest fraction of a side that lies inside a zone which reaches to the end of it."""


def anchor(box: Box) -> Point:
    """The point at which an object stands: the middle of its box's bottom edge."""
    return (box[0] + box[2]) / 2, box[3]


def _turn(start: Point, end: Point, point: Point) -> int:
    """+1, 0, -1: whether `point` is to the right of the line from `start` to `end`, on it, or to its left.

    As seen in the picture, with y pointing down. The sign of (end - start) × (point - start), in floating point if
    its error bound proves that sign, otherwise in fractions.
    """
    first = (end[0] - start[0]) * (point[1] - start[1])
    second = (end[1] - start[1]) * (point[0] - start[0])
    size = abs(first) + abs(second)
    if size > _TINY and abs(first - second) > _ROUNDING * size:
        return 1 if first > second else -1
    (x1, y1), (x2, y2), (x, y) = ((Fraction(a), Fraction(b)) for a, b in (start, end, point))
    exact = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
    return (exact > 0) - (exact < 0)


def contains(polygon: Polygon, point: Point) -> bool:
    """Whether the point is in the polygon: even-odd rule, by the edges that a ray to the right crosses.

    Half open: a point on a left or upper edge is inside, one on a right or lower edge is not, so polygons that share
    an edge share no point. O(corners).
    """
    inside = False
    y = point[1]
    for number, end in enumerate(polygon):
        start = polygon[number - 1]
        if (start[1] > y) != (end[1] > y):
            upper, lower = (start, end) if start[1] < end[1] else (end, start)
            inside ^= _turn(upper, lower, point) > 0  # walking down the edge, the right hand points left
    return inside


def crossing(line: Line, before: Point, after: Point) -> int:
    """+1 or -1 if the step from `before` to `after` crosses the line, 0 if it does not.

    +1 is from the left to the right as seen from the line's first point towards its second: for `[[0, 0.5], [1,
    0.5]]`, downwards. Two segments cross if each has its ends on different sides of the other. An end exactly on the
    other segment counts as on its right, in an order of the ends that depends on neither direction. That makes the
    rule half open: steps that meet on the line, or run along it, cross once in total. Where lines meet, a path
    crosses once, or by +1 and -1 if it only touches them. The way back undoes the way there.
    """
    start, end = sorted(line)
    first, second = sorted((before, after))
    from_right, to_right = _turn(start, end, before) >= 0, _turn(start, end, after) >= 0
    if from_right == to_right or (_turn(first, second, start) >= 0) == (_turn(first, second, end) >= 0):
        return 0
    return 1 if to_right == (start == line[0]) else -1


def line_distance(line: Line, box: Box) -> float:
    """How far the object's anchor is from the infinite line through `line`, in sizes of its box.

    Box widths along x, box heights along y: independent of the picture's shape and the distance from the camera.
    """
    (x1, y1), (x2, y2) = (_in_boxes(point, box) for point in line)
    length = math.hypot(x2 - x1, y2 - y1)
    return abs(x1 * y2 - x2 * y1) / length if length else math.hypot(x1, y1)


def edge_distance(polygon: Polygon, box: Box) -> float:
    """How far the object's anchor is from the nearest edge of the polygon, in sizes of its box as above."""
    corners = [_in_boxes(point, box) for point in polygon]
    return min(_from_origin(corners[number - 1], end) for number, end in enumerate(corners))


def _in_boxes(point: Point, box: Box) -> Point:
    """The point in sizes of the box, from its anchor."""
    x, y = anchor(box)
    return (point[0] - x) / max(box[2] - box[0], 1e-9), (point[1] - y) / max(box[3] - box[1], 1e-9)


def _from_origin(start: Point, end: Point) -> float:
    """Distance of the segment from (0, 0)."""
    x, y = end[0] - start[0], end[1] - start[1]
    square = x * x + y * y
    share = 0.0 if square == 0 else min(1.0, max(0.0, -(start[0] * x + start[1] * y) / square))
    return math.hypot(start[0] + share * x, start[1] + share * y)


class Zones:
    """The polygons and the lines of a pipeline, by name. Immutable.

    Raises `ValueError` for an invalid polygon or line, and for a name that is used twice.
    """

    def __init__(self, polygons: Mapping[str, Polygon], lines: Mapping[str, Line]) -> None:
        for name in polygons.keys() & lines.keys():
            raise ValueError(f"{name} names both a zone and a line; expected different names")
        for name, corners in (*polygons.items(), *lines.items()):
            if not all(math.isfinite(part) for corner in corners for part in corner):
                raise ValueError(f"{name} has a corner that is not finite")
        for name, polygon in polygons.items():
            if len(set(map(tuple, polygon))) < 3:
                raise ValueError(f"the zone {name} needs at least three different corners")
        for name, line in lines.items():
            if len(line) != 2 or line[0] == line[1]:
                raise ValueError(f"the line {name} needs two different points")
        self.polygons: Mapping[str, Polygon] = MappingProxyType(
            {name: tuple((float(x), float(y)) for x, y in polygon) for name, polygon in polygons.items()}
        )
        self.lines: Mapping[str, Line] = MappingProxyType(
            {name: ((float(x1), float(y1)), (float(x2), float(y2))) for name, ((x1, y1), (x2, y2)) in lines.items()}
        )

    def locate(self, objects: Iterable[FoundObject]) -> tuple[FoundObject, ...]:
        """The objects, each with the zones that contain its anchor."""
        return tuple(replace(found, zones=self.around(anchor(found.box))) for found in objects)

    def around(self, point: Point) -> frozenset[str]:
        """The names of the zones that contain the point; none if it is not finite.

        One on or beyond an edge of the picture counts as just inside it: there stands what the picture cuts off.
        """
        if not (math.isfinite(point[0]) and math.isfinite(point[1])):
            return frozenset()
        x, y = (min(max(part, 0.0), _LAST) for part in point)
        return frozenset(name for name, polygon in self.polygons.items() if contains(polygon, (x, y)))


LOST_S = 2.0
"""Default time for which a lost track is searched."""


def keep(
    objects: Iterable[FoundObject], labels: Collection[str] | None = None, min_score: float = 0.0
) -> tuple[FoundObject, ...]:
    """The objects with one of these labels (None: any) and at least this score. A score that is NaN never passes."""
    return tuple(found for found in objects if (labels is None or found.label in labels) and found.score >= min_score)


def has_area(found: FoundObject) -> bool:
    """Whether its box is finite and not empty, so that overlaps with it are defined."""
    x1, y1, x2, y2 = found.box
    return x1 < x2 and y1 < y2 and math.isfinite(x2 - x1) and math.isfinite(y2 - y1)
