"""Steps bound to models: conditions that cannot be evaluated, frames like those before, and the keys of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipelines_run import MadeSource, write_agent
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import InferSection
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.run.bound_steps import Where, _infer_settings, bind_steps
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.run.infer_step import FrameDropped, InferSettings
from upwell.pipelines.steps.geometry import Zones

PICTURE = np.zeros((4, 4, 3), np.uint8)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE)


def test_a_condition_that_cannot_be_evaluated_is_not_true_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    where_ = pytest.importorskip("upwell.pipelines.events.where_condition", exc_type=ImportError)
    where = Where(where_.ObjectCondition('object.digits.labl == "7"', ["digits"]), "pipeline dock, step keep")
    found = FoundObject("card", 0.9, (0, 0, 1, 1), answers={"digits": {"label": "7"}})
    assert [where(found, SCENE) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith("pipeline dock, step keep: the condition counts as false")


def test_what_a_frame_without_an_answer_showed_is_shown_by_the_next(tmp_path: Path) -> None:
    """Else whoever came in on a late frame and stands still would be seen `at_least` later."""
    still, other = np.zeros((48, 48, 3), np.uint8), np.full((48, 48, 3), 200, np.uint8)
    pictures = [still, still, other, other, other, other]
    text = "pipelines: {p: {source: {folder: in}, steps: [{change: {at_least: 1h}}]}}"
    section = parse_pipelines(text, tmp_path / "pipelines.yaml")[0].pipelines["p"]
    with embedded_agent(write_agent(tmp_path)) as agent:
        (change,) = bind_steps("p", section, agent).steps

    class Late:
        """A step for which the third frame, and once more the fourth, takes too long."""

        name = "made"

        def take(self, scene: Scene, until_s: float) -> Scene:
            if scene.frame.number in (3, 4):
                raise FrameDropped("late")
            return scene

    with FrameLoop("p", MadeSource(pictures), [change, Late()], EventRules([], Zones({}, {}))) as loop:
        answered = [one.scene.frame.number for one in loop]
    assert answered == [1, 5]
    assert (loop.status.frames["unchanged"], loop.status.frames["late"]) == (2, 2)


def test_a_file_says_all_that_a_model_is_asked_with() -> None:
    about = {"on": "objects", "once": "track", "again": {"better": "50%", "older": "10s"}, "margin": "20%"}
    section = InferSection.model_validate({"model": "digits", **about, "min_size": 8, "tags": {"Camera": "dock"}})
    assert _infer_settings(section) == InferSettings("digits", True, 0.5, 10.0, 0.2, 8, {"camera": "dock"})


def test_a_model_that_two_steps_ask_has_the_tags_of_both(tmp_path: Path) -> None:
    asked = "{infer: {model: digits, on: objects, tags: {who: staff}}}, {infer: {model: digits, on: objects}}"
    text = f"pipelines: {{p: {{source: {{folder: in}}, steps: [{{infer: {{model: cards}}}}, {asked}]}}}}"
    with embedded_agent(write_agent(tmp_path)) as agent:
        bound = bind_steps("p", parse_pipelines(text)[0].pipelines["p"], agent)
    assert bound.tags == {
        "cards": [{"pipeline": "p"}], "digits": [{"pipeline": "p", "who": "staff"}, {"pipeline": "p"}],
    }  # fmt: skip
