"""Polygons that cross themselves, beside a count of the crossings of their edges that shares no code with the check."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.pipelines.config.zone_shapes import MAX_POINTS, parse_polygon

GRID = 8
CORNERS = st.tuples(st.integers(0, GRID), st.integers(0, GRID))


def have_a_point_in_common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> set[tuple[Fraction, Fraction]]:
    """The points that two segments share, by solving for them; of an overlap some corners."""
    (ax, ay), (bx, by) = one
    (cx, cy), (dx, dy) = other
    determinant = (bx - ax) * (dy - cy) - (by - ay) * (dx - cx)
    if determinant:
        along = Fraction((cx - ax) * (dy - cy) - (cy - ay) * (dx - cx), determinant)
        across = Fraction((cx - ax) * (by - ay) - (cy - ay) * (bx - ax), determinant)
        inside = 0 <= along <= 1 and 0 <= across <= 1
        return {(ax + along * (bx - ax), ay + along * (by - ay))} if inside else set()
    shared = set()
    for (px, py), ((sx, sy), (ex, ey)) in [(p, other) for p in one] + [(p, one) for p in other]:
        is_on_line = (ex - sx) * (py - sy) == (ey - sy) * (px - sx)
        if is_on_line and min(sx, ex) <= px <= max(sx, ex) and min(sy, ey) <= py <= max(sy, ey):
            shared.add((Fraction(px), Fraction(py)))
    return shared


def is_simple(corners: list[tuple[int, int]]) -> bool:
    """Whether edges meet at the corners that neighbours share and nowhere else."""
    edges = [[corner, corners[(index + 1) % len(corners)]] for index, corner in enumerate(corners)]
    for one, other in combinations(edges, 2):
        shared = {(Fraction(x), Fraction(y)) for x, y in {*one} & {*other}}
        if have_a_point_in_common(one, other) != shared:
            return False
    return True


@given(st.lists(CORNERS, min_size=3, max_size=7, unique=True))
def test_a_polygon_is_right_where_its_edges_meet_at_its_corners_alone(corners: list[tuple[int, int]]) -> None:
    written = [[x / GRID, y / GRID] for x, y in corners]
    if is_simple(corners):
        assert parse_polygon(written) == tuple((x, y) for x, y in written)
    else:
        with pytest.raises(ValueError, match=r"crosses itself|on one line"):
            parse_polygon(written)


def test_a_point_that_is_written_on_an_edge_is_on_it() -> None:
    """0.1, 0.3 and 0.7 are no binary fractions; what counts is what is written."""
    with pytest.raises(ValueError, match="crosses itself"):
        parse_polygon([[0.1, 0.1], [0.7, 0.7], [0.7, 0.9], [0.3, 0.3], [0.1, 0.9]])


def test_a_polygon_has_so_many_points_at_most() -> None:
    with pytest.raises(ValueError, match="has 101 points; expected at most 100"):
        parse_polygon([[0.5, 0.5]] * (MAX_POINTS + 1))
