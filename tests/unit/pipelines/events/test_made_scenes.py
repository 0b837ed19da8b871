"""Tracker, zones and rules on made scenes: how often each thing is found to happen, and in which order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from tests.pipelines_scenes import COLOURS, SCENES, MadeScene, TrueEvent, boxes, draw, objects, scene_of, truth
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.steps.tracker import Tracker

APART_S = 0.5
"""Of events that are closer, the order may be another one: a track is confirmed by its second look, and a line is
crossed when the box is clear of it."""


def found_in(scene: MadeScene) -> list[TrueEvent]:
    """What tracker, zones and rules make of what a detector sees."""
    tracker, zones = Tracker(), scene.zones
    rules = EventRules(scene.rules, zones)
    found = []
    for number in range(scene.looks):
        at_s = number / scene.fps
        seen = scene_of(scene, number, zones.locate(tracker.update(objects(scene, number), 1000.0 + at_s)))
        found += [TrueEvent(at_s, fired.event, fired.direction) for fired in rules.take(seen)]
    end = rules.end(1000.0 + scene.duration_s)
    return found + [TrueEvent(scene.duration_s, fired.event, fired.direction) for fired in end]


def counted(events: list[TrueEvent]) -> Counter[str]:
    return Counter(f"{event.on} {event.direction}".strip() for event in events)


def in_order(expected: list[TrueEvent], found: list[TrueEvent]) -> bool:
    """Whether the n-th event of each kind comes before and after all others that it truly comes before and after."""
    places: dict[str, list[int]] = {}
    for place, event in enumerate(found):
        places.setdefault(f"{event.on} {event.direction}", []).append(place)
    known = []
    for event in expected:
        waiting = places.get(f"{event.on} {event.direction}")
        if waiting:
            known.append((event.at_s, waiting.pop(0)))
    return all(one[1] < other[1] for one, other in combinations(known, 2) if other[0] - one[0] > APART_S)


def right_counts(scenes: list[MadeScene]) -> tuple[int, int, list[str]]:
    """How many counts are right, of how many, and which are not; and all orders are right."""
    right = total = 0
    wrong = []
    for scene in scenes:
        expected, found = truth(scene), found_in(scene)
        assert in_order(expected, found), (scene.name, scene.seed)
        true, seen = counted(expected), counted(found)
        for key in sorted(true.keys() | seen.keys()):
            total += 1
            right += true[key] == seen[key]
            if true[key] != seen[key]:
                wrong.append(f"{scene.name} ({scene.seed}): {key}: {seen[key]} instead of {true[key]}")
    return right, total, wrong


@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_the_truth_of_a_scene_is_what_was_written_by_hand(scene: MadeScene) -> None:
    everybody = {"appear": len(scene.walkers), "leave": len(scene.walkers)}
    assert counted(truth(scene)) == Counter({**everybody, **scene.counts})


def test_a_scene_can_be_drawn_with_its_walkers_where_they_are() -> None:
    crowd = SCENES[-1]
    picture = draw(crowd, 25, height=240, width=320)
    assert picture.shape == (240, 320, 3)
    assert picture.dtype == np.uint8
    for walker, (x1, y1, x2, y2), shows in boxes(crowd, 25):
        part = picture[round(y1 * 240) : round(y2 * 240), round(x1 * 320) : round(x2 * 320)]
        assert (part == COLOURS[walker.label]).all(axis=2).mean() >= shows
    background = picture[:20]
    assert background.max() < 80
    np.testing.assert_array_equal(picture, draw(crowd, 25, height=240, width=320))
    assert (picture != draw(crowd, 26, height=240, width=320)).mean() > 0.5


def test_counts_of_sixteen_scenes_are_right_and_so_is_the_order() -> None:
    right, total, wrong = right_counts(list(SCENES))
    assert len(SCENES) == 16
    assert right / total >= 0.95, wrong


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_counts_of_sixteen_scenes_are_right_for_any_noise() -> None:
    right, total, wrong = right_counts([replace(scene, seed=seed) for scene in SCENES for seed in range(1, 21)])
    assert right / total >= 0.95, wrong
    print(f"{right} of {total} counts are right; not: {wrong}")
