"""Zones and lines by name: what is refused, what an object is in, and which way is in."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from upwell.pipelines.frame import Box, FoundObject
from upwell.pipelines.steps.geometry import (
    Line,
    Polygon,
    Zones,
    anchor,
    contains,
    crossing,
    edge_distance,
    line_distance,
)

SQUARE = ((0.2, 0.2), (0.6, 0.2), (0.6, 0.6), (0.2, 0.6))


def test_an_object_is_where_the_middle_of_its_bottom_edge_is() -> None:
    zones = Zones({"a": SQUARE, "b": [(0.5, 0.5), (0.9, 0.5), (0.9, 0.9)]}, {})
    stands = FoundObject("person", 0.9, (0.3, 0.0, 0.5, 0.5))
    reaches_in = FoundObject("person", 0.9, (0.3, 0.3, 0.5, 0.7))
    nowhere = FoundObject("person", 0.9, (math.nan, 0.3, 0.5, math.inf))
    assert anchor(stands.box) == (0.4, 0.5)
    assert [found.zones for found in zones.locate((stands, reaches_in, nowhere))] == [{"a"}, set(), set()]
    assert zones.around((0.58, 0.55)) == {"a", "b"}


@pytest.mark.parametrize(
    ("box", "zone"),
    [
        ((0.3, 0.6, 0.5, 1.0), "left"),  # whoever stands nearer than the picture reaches
        ((0.5, 0.6, 0.7, 1.3), "right"),  # as a model of one's own may say it
        ((0.9, 0.2, 1.4, 0.6), "right"),
        ((-0.4, 0.2, 0.1, 0.6), "left"),
        ((1.0, 0.5, 1.0, 1.0), "right"),
    ],
)
def test_who_is_cut_off_by_the_picture_is_in_the_zone_that_reaches_to_its_edge(box: Box, zone: str) -> None:
    halves = {"left": ((0, 0), (0.5, 0), (0.5, 1), (0, 1)), "right": ((0.5, 0), (1, 0), (1, 1), (0.5, 1))}
    (located,) = Zones(halves, {}).locate([FoundObject("person", 0.9, box)])
    assert located.zones == {zone}


def test_a_zone_has_its_left_edge_and_its_upper_one_but_not_the_others() -> None:
    assert contains(SQUARE, (0.2, 0.4))
    assert contains(SQUARE, (0.4, 0.2))
    assert not contains(SQUARE, (0.6, 0.4))
    assert not contains(SQUARE, (0.4, 0.6))


@pytest.mark.parametrize(
    ("polygons", "lines", "said"),
    [
        ({"a": SQUARE[:2]}, {}, "the zone a needs at least three different corners"),
        ({"a": (*SQUARE[:2], SQUARE[0])}, {}, "the zone a needs at least three different corners"),
        ({}, {"g": ((0.1, 0.2), (0.1, 0.2))}, "the line g needs two different points"),
        ({}, {"g": SQUARE}, "the line g needs two different points"),
        ({"a": ((0, 0), (1, 0), (0, math.nan))}, {}, "a has a corner that is not finite"),
        ({"a": SQUARE}, {"a": ((0, 0), (1, 0))}, "a names both a zone and a line; expected different names"),
    ],
)
def test_what_is_no_zone_and_no_line_is_refused(
    polygons: dict[str, Polygon], lines: dict[str, Line], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Zones(polygons, lines)


def test_in_is_from_the_left_hand_to_the_right() -> None:
    """Along [[0, 0.5], [1, 0.5]] that is downwards; the other way round it is upwards."""
    gate: Line = ((0.0, 0.5), (1.0, 0.5))
    assert crossing(gate, (0.3, 0.4), (0.4, 0.6)) == 1
    assert crossing(gate, (0.3, 0.6), (0.4, 0.4)) == -1
    assert crossing((gate[1], gate[0]), (0.3, 0.4), (0.4, 0.6)) == -1
    assert crossing(gate, (0.3, 0.4), (0.4, 0.49)) == crossing(gate, (1.3, 0.4), (1.4, 0.6)) == 0


def test_who_stops_on_the_line_or_walks_along_it_crosses_it_once() -> None:
    gate: Line = ((0.1, 0.5), (0.9, 0.5))
    along = [(0.3, 0.4), (0.3, 0.5), (0.5, 0.5), (0.6, 0.5), (0.6, 0.6)]
    assert sum(crossing(gate, *step) for step in pairwise(along)) == 1
    back = [*along[:-1], (0.6, 0.4)]
    assert sum(crossing(gate, *step) for step in pairwise(back)) == 0


def test_where_two_lines_meet_one_of_them_is_crossed() -> None:
    first, second = ((0.0, 0.5), (0.5, 0.5)), ((0.5, 0.5), (1.0, 0.5))
    for x in (0.4, 0.5, 0.6):
        assert crossing(first, (x, 0.4), (0.5, 0.5)) + crossing(second, (x, 0.4), (0.5, 0.5)) in (0, 1)
        through = [crossing(line, (x, 0.4), (1 - x, 0.6)) for line in (first, second)]
        assert sum(through) == 1


def test_distances_are_in_sizes_of_the_box() -> None:
    box = (0.45, 0.3, 0.55, 0.7)  # 0.1 wide, 0.4 high, anchor (0.5, 0.7)
    assert line_distance(((0.0, 0.5), (1.0, 0.5)), box) == pytest.approx(0.5)
    assert line_distance(((0.7, 0.0), (0.7, 1.0)), box) == pytest.approx(2.0)
    assert edge_distance(SQUARE, box) == pytest.approx(0.25)
    assert edge_distance(((0.6, 0.7), (0.9, 0.7), (0.9, 0.9)), box) == pytest.approx(1.0)
