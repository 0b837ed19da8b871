"""Tracks over time: who keeps an id, for how long, and who never gets one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from upwell.pipelines.frame import Box, FoundObject
from upwell.pipelines.steps.geometry import keep
from upwell.pipelines.steps.tracker import MAX_OBJECTS, Tracker


def box_at(x: float, y: float = 0.5, width: float = 0.1, height: float = 0.2) -> Box:
    return x - width / 2, y - height, x + width / 2, y


def person(x: float, y: float = 0.5, score: float = 0.9, label: str = "person") -> FoundObject:
    return FoundObject(label, score, box_at(x, y))


def always(*objects: FoundObject) -> Callable[[float], list[FoundObject]]:
    return lambda _: list(objects)


def watch(
    tracker: Tracker, looks: int, shown: Callable[[float], list[FoundObject]], start_s: float = 0.0
) -> list[tuple[int | None, ...]]:
    """The ids on each of that many looks, ten a second, at what `shown` says is there."""
    times = [start_s + number / 10 for number in range(looks)]
    return [tuple(found.track for found in tracker.update(shown(at_s), at_s)) for at_s in times]


def test_the_second_look_confirms_a_track_and_ids_count_from_1() -> None:
    tracker = Tracker()
    assert watch(tracker, 3, lambda at_s: [person(0.2 + at_s / 5), person(0.8)]) == [(), (1, 2), (1, 2)]
    found = tracker.update([person(0.8), person(0.26)], 0.3)
    assert [(one.track, one.box) for one in found] == [(2, box_at(0.8)), (1, box_at(0.26))]


def test_what_is_seen_in_one_look_alone_or_with_a_low_score_begins_no_track() -> None:
    tracker = Tracker()
    assert watch(tracker, 4, lambda at_s: [person(0.2)] if round(at_s * 10) % 2 else []) == [()] * 4
    assert watch(Tracker(), 4, always(person(0.2, score=0.4))) == [()] * 4


def test_a_new_object_may_have_gone_as_far_as_the_time_allows() -> None:
    """Most of its width in a fifth of a second, but not in a thirtieth: that is something else."""
    for fps, ids in ((5, [1]), (30, [])):
        tracker = Tracker()
        tracker.update([person(0.5)], 0.0)
        assert [found.track for found in tracker.update([person(0.59)], 1 / fps)] == ids
    tracker = Tracker()
    tracker.update([person(0.5)], 0.0)
    assert tracker.update([person(0.75)], 10.0) == ()  # after a long time it is as likely another one


def test_a_low_score_goes_on_with_a_track_but_finds_none_that_is_lost() -> None:
    tracker = Tracker()
    watch(tracker, 3, always(person(0.2)))
    assert watch(tracker, 2, always(person(0.2, score=0.2)), 0.3) == [(1,), (1,)]
    assert watch(tracker, 1, always(person(0.2, score=0.05)), 0.5) == [()]
    assert watch(tracker, 2, always(person(0.2, score=0.2)), 0.6) == [(), ()]
    assert watch(tracker, 1, always(person(0.2)), 0.8) == [(1,)]


@pytest.mark.parametrize(("hidden_s", "again"), [(0.5, 1), (1.9, 1), (2.4, 2)])
def test_who_walks_on_while_hidden_keeps_the_id_for_as_long_as_was_said(hidden_s: float, again: int) -> None:
    def shown(at_s: float) -> list[FoundObject]:
        return [] if 2.0 <= at_s < 2.0 + hidden_s else [person(0.1 + at_s / 8)]

    seen = watch(Tracker(lost_s=2.0), 50, shown)
    assert seen[19] == (1,)
    assert seen[-1] == (again,)


def test_who_stops_while_hidden_is_found_where_he_was_last_seen() -> None:
    def shown(at_s: float) -> list[FoundObject]:
        return [] if 2.0 <= at_s < 3.5 else [person(0.1 + min(at_s, 2.0) / 5)]

    assert watch(Tracker(), 40, shown)[-1] == (1,)


def test_a_gap_without_any_look_ends_no_track() -> None:
    """Frames alike are left out for as long as nothing changes: who was there then is there now."""
    tracker = Tracker(lost_s=2.0)
    watch(tracker, 20, lambda at_s: [person(0.1 + at_s / 5), person(0.7)])
    assert [found.track for found in tracker.update([person(0.48), person(0.7)], 60.0)] == [1, 2]


def test_who_stopped_before_a_gap_is_not_taken_for_who_stands_where_he_was_going() -> None:
    tracker = Tracker()
    watch(tracker, 50, lambda at_s: [person(0.4 + at_s / 50), person(0.69)])
    assert [found.track for found in tracker.update([person(0.5), person(0.7)], 15.0)] == [1, 2]


def test_who_is_hidden_keeps_his_size() -> None:
    """Else a box that became smaller last would be next to nothing when it is seen again."""

    def shown(at_s: float) -> list[FoundObject]:
        x, half = 0.2 + at_s / 10, 0.2 - 0.1 * min(max(at_s - 1, 0), 0.8)
        return [] if 1.85 <= at_s < 3.0 else [FoundObject("person", 0.9, (x - 0.05, 0.5 - half, x + 0.05, 0.5 + half))]

    assert watch(Tracker(), 40, shown)[-1] == (1,)


def test_the_same_path_is_followed_at_any_rate_of_frames() -> None:
    for fps in (8, 10, 30, 100):
        tracker = Tracker()
        ids = set()
        for number in range(fps * 4):
            hidden = 1.5 <= number / fps < 2.2
            shown = [] if hidden else [person(0.1 + number / fps / 5)]
            ids |= {found.track for found in tracker.update(shown, number / fps)}
        assert ids == {1}, fps


def test_two_who_pass_each_other_keep_their_ids_though_one_is_hidden() -> None:
    def shown(at_s: float) -> list[FoundObject]:
        right, left = person(0.1 + at_s / 5, 0.5), person(0.9 - at_s / 5, 0.55)
        return [left] if abs(right.box[0] - left.box[0]) < 0.06 else [right, left]

    seen = watch(Tracker(), 40, shown)
    assert (2,) in seen
    assert seen[-1] == (1, 2)


def test_labels_are_not_mixed_up() -> None:
    tracker = Tracker()
    watch(tracker, 3, always(person(0.5), person(0.5, label="truck")))
    assert watch(tracker, 1, always(person(0.5, label="truck")), 0.3) == [(2,)]
    assert watch(tracker, 2, always(person(0.5, label="bicycle")), 0.4) == [(), (3,)]


def test_an_id_is_never_used_again() -> None:
    tracker = Tracker(lost_s=0.3)
    assert watch(tracker, 3, always(person(0.5)))[-1] == (1,)
    watch(tracker, 6, always(), 1.0)
    assert watch(tracker, 3, always(person(0.5)), 2.0)[-1] == (2,)


def test_boxes_that_are_none_and_clocks_that_go_back_do_no_harm() -> None:
    tracker = Tracker()
    broken = [
        FoundObject("person", 0.9, (math.nan, 0, 1, 1)),
        FoundObject("person", 0.9, (0.5, 0.5, 0.5, 0.9)),
        FoundObject("person", 0.9, (0.6, 0.5, 0.5, 0.9)),
        FoundObject("person", 0.9, (0.1, 0.1, math.inf, 0.9)),
        FoundObject("person", math.nan, (0.1, 0.1, 0.2, 0.9)),
    ]
    for at_s in (5.0, 5.1, 4.0, 5.2):
        found = tracker.update([*broken, person(0.3)], at_s)
    assert [(one.track, one.box) for one in found] == [(1, box_at(0.3))]
    tracker.update([], 0.0)  # missed since 5.2
    tracker.update([], 5.3)
    assert [one.track for one in tracker.update([person(0.3)], 5.4)] == [1]


def test_a_detector_gone_mad_takes_no_more_than_so_much() -> None:
    tracker = Tracker()
    wall = [FoundObject("a", 0.6 + number / 1e5, (number, 0.0, number + 0.5, 1.0)) for number in range(MAX_OBJECTS + 9)]
    assert [len(tracker.update(wall, at_s)) for at_s in (0.0, 0.1)] == [0, MAX_OBJECTS]
    for look in range(1, 4):  # others each time, so that all of those before are lost
        others = [replace(found, label=f"label-{look}") for found in wall]
        found = [tracker.update(others, look + part) for part in (0.0, 0.1)]
        assert [len(some) for some in found] == [0, MAX_OBJECTS]
    assert tracker.update([replace(wall[-1], label="label-3")], 4.0)[0].track == found[-1][-1].track
    assert tracker.update([wall[-1]], 4.1) == ()


def test_keep_takes_labels_and_scores() -> None:
    objects = (person(0.1, score=0.5), person(0.2, label="truck"), person(0.3, score=math.nan))
    assert keep(objects, None, 0.5) == objects[:2]
    assert keep(objects, ["person"], 0.0) == objects[:1]
    assert keep(objects, (), 0.0) == ()
