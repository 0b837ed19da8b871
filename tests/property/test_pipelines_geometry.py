"""Zones and lines beside oracles in exact fractions, and what must hold of them whatever they are."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.pipelines.frame import Point
from upwell.pipelines.steps.geometry import contains, crossing, edge_distance, line_distance

# A coarse grid makes points lie on corners, edges and lines all the time; tenths are no exact floats, thirds neither.
GRID = st.integers(0, 6).map(lambda number: number / 10) | st.integers(0, 6).map(lambda number: number / 3)
ANY = st.floats(-2, 2, allow_subnormal=True) | GRID
GRID_POINTS, POINTS = st.tuples(GRID, GRID), st.tuples(ANY, ANY)
POLYGONS = st.lists(POINTS, min_size=3, max_size=7)


def cross(start: Point, end: Point, point: Point) -> Fraction:
    (x1, y1), (x2, y2), (x, y) = ((Fraction(a), Fraction(b)) for a, b in (start, end, point))
    return (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)


def is_on_an_edge(polygon: list[Point], point: Point) -> bool:
    """Whether the point lies on an edge, by fractions."""
    return any(
        cross(start, end, point) == 0
        and min(start[0], end[0]) <= point[0] <= max(start[0], end[0])
        and min(start[1], end[1]) <= point[1] <= max(start[1], end[1])
        for start, end in zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    )


def winds_oddly(polygon: list[Point], point: Point) -> bool:
    """Whether a ray upwards meets an odd number of edges; where each is met is computed as a fraction."""
    x, y = Fraction(point[0]), Fraction(point[1])
    met = 0
    for start, end in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        (x1, y1), (x2, y2) = ((Fraction(a), Fraction(b)) for a, b in (start, end))
        if min(x1, x2) <= x < max(x1, x2):
            met += y1 + (x - x1) / (x2 - x1) * (y2 - y1) < y
    return met % 2 == 1


@settings(max_examples=examples(500), deadline=None)
@given(POLYGONS, POINTS)
def test_a_point_off_the_edges_is_inside_as_a_ray_in_fractions_says(polygon: list[Point], point: Point) -> None:
    if not is_on_an_edge(polygon, point):
        assert contains(polygon, point) == winds_oddly(polygon, point)


@settings(max_examples=examples(300), deadline=None)
@given(POLYGONS, POINTS, st.integers(0, 6))
def test_neither_the_first_corner_nor_the_direction_matters(polygon: list[Point], point: Point, shift: int) -> None:
    turned = polygon[shift % len(polygon) :] + polygon[: shift % len(polygon)]
    assert contains(polygon, point) == contains(turned, point) == contains(turned[::-1], point)


@settings(max_examples=examples(500), deadline=None)
@given(GRID_POINTS, GRID_POINTS, GRID_POINTS, GRID_POINTS, GRID_POINTS)
def test_two_triangles_that_share_an_edge_share_no_point(
    first: Point, second: Point, left: Point, right: Point, point: Point
) -> None:
    sides = cross(first, second, left), cross(first, second, right)
    if sides[0] > 0 > sides[1]:
        inside = contains((first, second, left), point), contains((first, second, right), point)
        assert inside != (True, True)
        # With the edge between them taken away, what was in one of them is in the whole.
        assert contains((first, right, second, left), point) == any(inside)


def truly_crosses(line: tuple[Point, Point], before: Point, after: Point) -> int | None:
    """Sign of the crossing by Cramer's rule in fractions; None where an end of one is on the other's straight."""
    signs = (
        cross(*line, before), cross(*line, after), cross(before, after, line[0]), cross(before, after, line[1]),
    )  # fmt: skip
    if 0 in signs:
        return None
    if (signs[0] > 0) == (signs[1] > 0) or (signs[2] > 0) == (signs[3] > 0):
        return 0
    return 1 if signs[1] > 0 else -1


@settings(max_examples=examples(500), deadline=None)
@given(st.tuples(POINTS, POINTS), POINTS, POINTS)
def test_a_crossing_is_what_fractions_say(line: tuple[Point, Point], before: Point, after: Point) -> None:
    expected = truly_crosses(line, before, after)
    if expected is not None:
        assert crossing(line, before, after) == expected


@settings(max_examples=examples(400), deadline=None)
@given(st.tuples(GRID_POINTS, GRID_POINTS), GRID_POINTS, GRID_POINTS)
def test_the_way_back_and_the_line_the_other_way_are_the_opposite(
    line: tuple[Point, Point], before: Point, after: Point
) -> None:
    there = crossing(line, before, after)
    assert crossing(line, after, before) == -there
    assert crossing((line[1], line[0]), before, after) == -there


@settings(max_examples=examples(400), deadline=None)
@given(GRID, GRID, st.lists(GRID_POINTS, min_size=2, max_size=8), st.floats(-1, 3))
def test_a_path_over_a_line_that_spans_the_picture_crosses_as_often_as_it_changes_sides(
    left: float, right: float, path: list[Point], over: float
) -> None:
    """Also where it stops on the line, runs along it, or turns back on it."""
    line = ((-5.0, left), (5.0, right))
    total = sum(crossing(line, before, after) for before, after in pairwise(path))
    first, last = (cross(*line, path[number]) >= 0 for number in (0, -1))
    assert total == int(last) - int(first)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(GRID_POINTS, min_size=2, max_size=6), POINTS, POINTS)
def test_a_chain_of_lines_is_crossed_once_where_two_of_them_meet(
    corners: list[Point], before: Point, after: Point
) -> None:
    """A closed one, made of lines, is left as often as it is entered by who ends where he began."""
    chain = list(zip(corners, [*corners[1:], corners[0]], strict=True))
    x, y = -7.25, 9.5  # far outside, on no straight through points of the grid
    total = sum(
        crossing(line, *step) for line in chain if line[0] != line[1] for step in ((before, after), (after, before))
    )
    assert total == 0
    if len(set(corners)) > 2 and not is_on_an_edge(corners, before):
        net = sum(crossing(line, (x, y), before) for line in chain if line[0] != line[1])
        assert (net % 2 == 1) == contains(corners, before)


@settings(max_examples=examples(100), deadline=None)
@given(POLYGONS, POINTS)
def test_the_distance_to_an_edge_is_0_on_it_and_positive_off_it(polygon: list[Point], point: Point) -> None:
    box = (point[0] - 0.5, point[1] - 1.0, point[0] + 0.5, point[1])
    away = edge_distance(polygon, box)
    corners = [((x - point[0]) ** 2 + (y - point[1]) ** 2) ** 0.5 for x, y in polygon]
    assert -1e-9 <= away <= min(corners) + 1e-6
    line = (polygon[0], polygon[1])
    assert line_distance(line, box) <= min(corners[:2]) + 1e-6
