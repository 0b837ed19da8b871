"""Frames through steps: each has one fate, and the sums agree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines_run import MadeSource
from upwell.pipelines.events.event_rules import EventRule, EventRules
from upwell.pipelines.frame import FoundObject, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.run.infer_step import FrameDropped
from upwell.pipelines.steps.geometry import Zones

PICTURE = np.zeros((8, 8, 3), np.uint8)
FATES = ("answered", "unchanged", "late", "refused", "denied", "failed")
NO_ZONES = Zones({}, {})


class Scripted:
    """A step that lets each frame end as it is told."""

    name = "made"

    def __init__(self, fates: Sequence[str]) -> None:
        self._fates = iter(fates)

    def take(self, scene: Scene, until_s: float) -> Scene:
        fate = next(self._fates)
        if fate != "answered":
            raise FrameDropped(fate)
        found = FoundObject("card", 0.9, (0.1, 0.1, 0.2, 0.2), track=1)
        return replace(scene, objects=(found,), route="edge", reason="easy")


@given(st.lists(st.sampled_from(FATES), max_size=30))
def test_every_frame_has_one_fate(fates: list[str]) -> None:
    published: list[AnsweredFrame | DroppedFrame] = []
    rules = EventRules([EventRule("seen", "frame")], NO_ZONES)
    with FrameLoop(
        "dock", MadeSource([PICTURE] * len(fates)), [Scripted(fates)], rules, publish=published.append
    ) as one:
        answered = list(one)
    status = one.status
    assert status.captured == len(fates) == sum(status.frames.values())
    assert {fate: status.frames.get(fate, 0) for fate in FATES} == {fate: fates.count(fate) for fate in FATES}
    assert len(answered) == len(status.latencies_s) == fates.count("answered") == status.events.get("seen", 0)
    assert [one for one in published if isinstance(one, AnsweredFrame)][: len(answered)] == answered
    dropped = [one for one in published if isinstance(one, DroppedFrame)]
    assert [one.reason for one in dropped] == [fate for fate in fates if fate != "answered"]
    assert all([run.step for run in one.steps] == ["made"] for one in published)


def test_a_frame_that_takes_too_long_is_late_and_has_no_events() -> None:
    class Slow:
        name = "made"

        def take(self, scene: Scene, until_s: float) -> Scene:
            assert until_s == pytest.approx(scene.frame.captured_s + 0.01)
            time.sleep(0.02)
            return scene

    rules = EventRules([EventRule("seen", "frame")], NO_ZONES)
    with FrameLoop("dock", MadeSource([PICTURE] * 3), [Slow()], rules, 0.01) as one:
        assert list(one) == []
    assert (one.status.frames["late"], one.status.events) == (3, {})


def test_objects_leave_when_the_source_is_over() -> None:
    published: list[AnsweredFrame | DroppedFrame] = []
    rules = EventRules([EventRule("left", "leave")], NO_ZONES)
    with FrameLoop(
        "dock", MadeSource([PICTURE] * 3), [Scripted(FATES[:1] * 3)], rules, publish=published.append
    ) as one:
        assert len(list(one)) == 3
    assert [len(one.fired) for one in published if isinstance(one, AnsweredFrame)] == [0, 0, 0, 1]
    assert one.status.events == {"left": 1}
    assert sum(one.status.frames.values()) == 3  # told once more, but no frame of its own


def test_a_defect_in_a_step_is_raised_and_its_frame_counted() -> None:
    class Broken:
        name = "made"

        def take(self, scene: Scene, until_s: float) -> Scene:
            raise RuntimeError("a defect")

    with FrameLoop("dock", MadeSource([PICTURE] * 2), [Broken()], EventRules([], NO_ZONES)) as one:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a defect"):
                next(iter(one))
        assert list(one) == []
    assert (one.status.frames["failed"], one.status.captured) == (2, 2)


def test_why_a_frame_has_no_answer_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    fates = ["late"] * 5 + ["refused"] * 5 + ["unchanged"] * 5
    with FrameLoop("dock", MadeSource([PICTURE] * 15), [Scripted(fates)], EventRules([], NO_ZONES)) as one:
        list(one)
    assert [record.getMessage() for record in caplog.records] == [
        "pipeline dock: a frame has no answer: late",
        "pipeline dock: a frame has no answer: refused",
    ]
    assert one.status.last_failure == "refused"


def test_a_source_is_told_of_frames_that_need_no_answer_any_more() -> None:
    source = MadeSource([PICTURE] * 6)
    fates = ["answered", "late", "unchanged", "failed", "denied", "answered"]
    with FrameLoop("dock", source, [Scripted(fates)], EventRules([], NO_ZONES)) as one:
        list(one)
    assert source.finished == [1, 3, 6]


def test_a_source_keeps_a_frame_whose_events_cannot_be_stored() -> None:
    """A picture of a folder is read again by the next start."""
    source = MadeSource([PICTURE] * 3)
    kept = iter([True, False, True])
    with FrameLoop("dock", source, [], EventRules([], NO_ZONES), publish=lambda _: next(kept, True)) as one:
        list(one)
    assert source.finished == [1, 3]


def test_a_pipeline_that_is_stopped_ends_after_the_frame_under_way() -> None:
    with FrameLoop("dock", MadeSource([PICTURE] * 9), [Scripted(["answered"] * 9)], EventRules([], NO_ZONES)) as one:
        for number, _ in enumerate(one):
            if number == 3:
                one.stop()
    assert one.status.frames["answered"] == 4


def test_the_sums_agree_while_a_frame_is_under_way() -> None:
    seen: list[tuple[int, int]] = []

    class Looks:
        name = "made"

        def take(self, scene: Scene, until_s: float) -> Scene:
            seen.append((one.status.captured, sum(one.status.frames.values())))
            return scene

    with FrameLoop("dock", MadeSource([PICTURE] * 3), [Looks()], EventRules([], NO_ZONES)) as one:
        list(one)
    assert seen == [(0, 0), (1, 1), (2, 2)]
    assert one.status.captured == 3
