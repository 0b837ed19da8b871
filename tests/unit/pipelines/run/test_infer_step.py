"""What a track is said to be, and which late answer may change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pipelines_run import MadeSource, write_agent
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.run import infer_step
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.run.infer_step import Inference, InferFrame, InferObjects, InferSettings
from upwell.pipelines.steps.geometry import Zones

PICTURE = np.zeros((40, 40, 3), np.uint8)
FOUND = FoundObject("card", 0.9, (0.1, 0.1, 0.9, 0.9), track=1)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE, (FOUND,))


def test_a_late_answer_holds_for_the_track_only_while_its_case_is_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the same number is another object's; and a track may have been asked about again."""
    monkeypatch.setattr(infer_step, "case_of", lambda _, row: {"case": f"now/{row}"})
    with embedded_agent(write_agent(tmp_path)) as agent:
        step = InferObjects(Inference(agent, InferSettings("digits", once_per_track=True), "dock"))
        asked = step.take(SCENE, float("inf")).objects[0].answers["digits"]
        step.amend(1, "before/0", {"label": "another"})
        assert step.take(SCENE, float("inf")).objects[0].answers["digits"] == asked
        step.amend(1, "now/0", {"label": "later"})
        step.amend(2, "now/0", {"label": "nobody"})
        later = replace(SCENE, objects=(FOUND, replace(FOUND, track=None)))
        first, second = step.take(later, float("inf")).objects
    assert first.answers["digits"] == {"label": "later"}
    assert second.answers["digits"]["label"] == asked["label"]


def test_a_request_that_fails_is_named_with_the_step_that_made_it(tmp_path: Path) -> None:
    with embedded_agent(write_agent(tmp_path)) as agent:
        step = InferFrame(Inference(agent, InferSettings("cards"), "dock"))
    told: list[AnsweredFrame | DroppedFrame] = []
    with FrameLoop(
        "dock", MadeSource([PICTURE]), [step], EventRules([], Zones({}, {})), publish=told.append
    ) as pipeline:
        assert list(pipeline) == []
    (dropped,) = told
    assert isinstance(dropped, DroppedFrame)
    assert (dropped.reason, [run.step for run in dropped.steps]) == ("refused", ["infer cards"])
    (request,) = dropped.steps[0].requests
    assert len(request) == 32
