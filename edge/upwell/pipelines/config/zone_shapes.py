"""Polygons and lines of `pipelines.yaml`: points as fractions of the picture. Shapes without an area are refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, TypeAlias, TypeGuard

from pydantic import Field, PlainValidator, WithJsonSchema

from upwell.pipelines.frame import Point
from upwell.shared.config.located_errors import Location, located
from upwell.shared.config.yaml import FilePart

MAX_POINTS = 100
"""Maximum number of points of a polygon."""

_Exact: TypeAlias = tuple[Fraction, Fraction]


def parse_polygon(value: object) -> tuple[Point, ...]:
    """A list of 3 or more points in order along the edge, which does not cross itself. Raises `ValueError`."""
    if not isinstance(value, list):
        raise ValueError("expected a polygon: a list of 3 or more points [x, y]")
    if len(value) > MAX_POINTS:
        raise ValueError(f"the polygon has {len(value)} points; expected at most {MAX_POINTS}")
    points = _points(value)
    if len(points) < 3:
        raise ValueError(f"the polygon has {len(points)} points; expected 3 or more")
    _check_edges(points)
    return points


def parse_line(value: object) -> tuple[Point, Point]:
    """Two different points. Raises `ValueError`."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("expected the two ends of a line, [[x, y], [x, y]]")
    start, end = _points(value)
    if start == end:
        raise ValueError("both ends of the line are the same point; expected two different ones")
    return start, end


_POINT_SCHEMA: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "number", "minimum": 0, "maximum": 1},
    "minItems": 2,
    "maxItems": 2,
}
_POLYGON_SCHEMA = {"type": "array", "items": _POINT_SCHEMA, "minItems": 3, "maxItems": MAX_POINTS}
_LINE_SCHEMA = {"type": "array", "items": _POINT_SCHEMA, "minItems": 2, "maxItems": 2}

Polygon: TypeAlias = Annotated[tuple[Point, ...], PlainValidator(parse_polygon), WithJsonSchema(_POLYGON_SCHEMA)]
"""A pydantic field for a polygon; see `parse_polygon`."""


def check_several(value: object) -> object:
    """`value` unchanged, unless it is a polygon where a list of polygons is expected. Raises `ValueError`."""
    if isinstance(value, list) and value and all(_is_pair(one) for one in value):
        raise ValueError("this is one polygon; expected a list of polygons, [[[x, y], [x, y], [x, y]]]")
    return value


class LineSection(FilePart):
    """A line that objects cross."""

    line: Annotated[tuple[Point, Point], PlainValidator(parse_line), WithJsonSchema(_LINE_SCHEMA)] = Field(
        description="The line's two ends, `[[x, y], [x, y]]`."
    )


def parse_zone(value: object) -> tuple[Point, ...] | LineSection:
    """A polygon, or `{line: ...}`. Raises `ValueError`."""
    if isinstance(value, dict):
        if set(value) != {"line"}:
            raise ValueError("expected a line, {line: [[x, y], [x, y]]}, or a polygon, a plain list of points")
        return LineSection.model_validate(value)
    if not isinstance(value, list):
        raise ValueError("expected a polygon, a list of points [x, y], or a line, {line: [[x, y], [x, y]]}")
    return parse_polygon(value)


Zone: TypeAlias = Annotated[
    tuple[Point, ...] | LineSection,
    PlainValidator(parse_zone),
    WithJsonSchema(
        {
            "anyOf": [
                _POLYGON_SCHEMA,
                {
                    "type": "object",
                    "properties": {"line": _LINE_SCHEMA},
                    "required": ["line"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""A pydantic field for a zone (a tuple of points) or a line (a `LineSection`)."""


def _points(values: Iterable[object]) -> tuple[Point, ...]:
    """The points. Raises `ValidationError`, which names each wrong one and its place."""
    found: dict[Location, str] = {}
    points: list[Point] = []
    for index, value in enumerate(values):
        if not _is_pair(value):
            found[(index,)] = "expected a point [x, y], two numbers from 0 to 1"
        elif not all(0 <= one <= 1 for one in value):
            found[(index,)] = (
                f"the point [{value[0]}, {value[1]}] is outside the picture; expected fractions from 0 to 1 of its "
                "width and height"
            )
        else:
            points.append((float(value[0]), float(value[1])))
    if found:
        raise located(found)
    return tuple(points)


def _is_pair(value: object) -> TypeGuard[list[float]]:
    """Whether this is a list of two numbers."""
    return isinstance(value, list) and len(value) == 2 and all(_is_number(one) for one in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _check_edges(points: tuple[Point, ...]) -> None:
    """Raise `ValueError` if an edge has no length, or if two edges meet anywhere but at a shared end.

    Computed on the decimals as written, so that a point meant to lie on an edge does.
    """
    exact = [(Fraction(repr(x)), Fraction(repr(y))) for x, y in points]
    if len(set(exact)) < len(exact):
        x, y = next(point for point, one in zip(points, exact, strict=True) if exact.count(one) > 1)
        raise ValueError(
            f"the point [{x}, {y}] is repeated; expected different points (the last edge closes the polygon)"
        )
    if all(_turn(exact[0], exact[1], point) == 0 for point in exact[2:]):
        raise ValueError("the points are on one line; expected a polygon with an area")
    count = len(exact)
    edges = [(exact[one], exact[(one + 1) % count]) for one in range(count)]
    for first in range(count):
        for second in range(first + 1, count):
            is_next = second == first + 1 or (first == 0 and second == count - 1)
            if _folds_back(edges[first], edges[second]) if is_next else _meet(edges[first], edges[second]):
                raise ValueError(
                    f"the polygon crosses itself: the edges after points {first + 1} and {second + 1} meet; "
                    "expected the points in order along the edge"
                )


def _turn(start: _Exact, end: _Exact, point: _Exact) -> int:
    """1 if `point` is on the left of the line from `start` to `end`, -1 on the right, 0 on the line."""
    product = (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])
    return (product > 0) - (product < 0)


def _meet(one: tuple[_Exact, _Exact], other: tuple[_Exact, _Exact]) -> bool:
    """Whether two segments have a point in common."""
    turns = [_turn(*one, other[0]), _turn(*one, other[1]), _turn(*other, one[0]), _turn(*other, one[1])]
    if turns[0] * turns[1] < 0 and turns[2] * turns[3] < 0:
        return True
    ends = [(one, other[0]), (one, other[1]), (other, one[0]), (other, one[1])]
    return any(
        orientation == 0 and _spans(segment, end) for orientation, (segment, end) in zip(turns, ends, strict=True)
    )


def _spans(segment: tuple[_Exact, _Exact], point: _Exact) -> bool:
    """Whether a point on the line through a segment lies between its ends."""
    return all(min(ends) <= value <= max(ends) for value, *ends in zip(point, *segment, strict=True))


def _folds_back(one: tuple[_Exact, _Exact], other: tuple[_Exact, _Exact]) -> bool:
    """Whether two edges that share an end lie on each other."""
    (shared,) = set(one) & set(other)
    (first,), (second,) = set(one) - {shared}, set(other) - {shared}
    if _turn(shared, first, second) != 0:
        return False
    return sum((a - s) * (b - s) for a, b, s in zip(first, second, shared, strict=True)) > 0
