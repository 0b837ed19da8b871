"""Zones and lines beside those of supervision, which others count with."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from upwell.pipelines.steps.geometry import anchor, contains, crossing, edge_distance
from upwell.shared.tensors import Array

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "OpenCV", UserWarning)  # it has a way without
    supervision: Any = pytest.importorskip(
        "supervision", reason="not in the sets for numpy 1 and for the lowest versions"
    )

WIDTH, HEIGHT = 640, 480
CLEAR_PX = 3
"""It draws a zone on pixels and rounds anchors to them; nearer to an edge than that, both may be right."""


def detections(boxes: Array, tracks: Array | None = None) -> Any:
    return supervision.Detections(xyxy=boxes, class_id=np.zeros(len(boxes), int), tracker_id=tracks)


def test_what_is_in_a_zone_is_in_the_zone_of_supervision() -> None:
    random = np.random.default_rng(7)
    compared = inside = 0
    for _ in range(40):
        corners = random.integers(3, 9)
        turns = np.sort(random.uniform(0, 2 * np.pi, corners))
        radii = random.uniform(40, 200, corners)  # any star, convex or not
        polygon = np.stack([320 + radii * np.cos(turns), 240 + radii * np.sin(turns)], axis=1).astype(int)
        zone = supervision.PolygonZone(polygon, triggering_anchors=[supervision.Position.BOTTOM_CENTER])
        tops = random.uniform((20, 20), (WIDTH - 40, HEIGHT - 40), (100, 2))
        boxes = np.concatenate([tops, tops + random.uniform(5, 19, (100, 2))], axis=1)
        points = [(float(x), float(y)) for x, y in polygon]
        for box, theirs in zip(boxes, zone.trigger(detections(boxes)), strict=True):
            x, y = anchor(tuple(box))
            if (
                edge_distance(points, (x - 0.5, y - 1, x + 0.5, y)) < CLEAR_PX
            ):  # a box of one pixel: its sizes are pixels
                continue
            assert contains(points, (x, y)) == theirs
            compared, inside = compared + 1, inside + bool(theirs)
    assert compared > 3000
    assert inside > 300


def test_lines_are_crossed_as_often_and_the_same_way_as_those_of_supervision() -> None:
    random = np.random.default_rng(11)
    counts = {1: 0, -1: 0}
    for _ in range(30):
        (y1, y2), across = random.uniform(100, 380, 2), bool(random.integers(2))
        ends = ((-5000.0, y1), (5000.0, y2)) if across else ((y1, -5000.0), (y2, 5000.0))
        line = supervision.LineZone(
            supervision.Point(*ends[0]), supervision.Point(*ends[1]),
            triggering_anchors=[supervision.Position.BOTTOM_CENTER],
        )  # fmt: skip
        walks = np.cumsum(random.normal(0, 25, (60, 10, 2)), axis=0) + np.array([320, 240])
        ours = {1: 0, -1: 0}
        for number, centres in enumerate(walks):
            line.trigger(detections(np.concatenate([centres - 10, centres + 10], axis=1), np.arange(10)))
            if number:
                for before, after in zip(walks[number - 1], centres, strict=True):
                    sign = crossing(ends, (before[0], before[1] + 10), (after[0], after[1] + 10))
                    if sign:
                        ours[sign] += 1
        theirs = {1: line.out_count, -1: line.in_count}
        assert ours == theirs, math.hypot(y1, y2)
        counts = {sign: counts[sign] + ours[sign] for sign in counts}
    assert min(counts.values()) > 100
