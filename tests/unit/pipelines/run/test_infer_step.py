"""What a track is said to be, and which late answer may change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.helper
import pytest

from tests.pipelines_run import MadeSource, write_agent
from tests.unit import models_for_tests as models
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.model_loader import Loader
from upwell.edge.server.agent_assembly import embedded_agent, warm_up
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.run import infer_step
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.run.infer_step import Inference, InferFrame, InferObjects, InferSettings, crop_of
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.signature.signature import LogicalInput, Signature, in_rgb
from upwell.shared.tensors import TensorSpec

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


def write_model(folder: Path, channels: str, names: str = "image most red, green, blue") -> Path:
    """The bundle of a model that says which of three colours a picture has most of."""
    picture, most, labels = names.split(maxsplit=2)
    bundle = folder / "colours"
    bundle.mkdir(parents=True)
    nodes = [onnx.helper.make_node("ReduceMean", ["x"], [most], axes=[1, 2], keepdims=0)]
    pictures, scores = [models.tensor("x", ["rows", 8, 8, 3])], [models.tensor(most, ["rows", 3])]
    models.save(bundle / "model.onnx", nodes, pictures, scores)
    (bundle / "model.yaml").write_text(
        f"signature: {{inputs: {{{picture}: {{kind: image, channels: {channels}}}}}, "
        f"outputs: {{{most}: {{kind: logits, labels: [{labels}]}}}}}}\n"
        f"pre: [{{decode: {picture}}}, {{resize: {{to: [8, 8]}}}}, {{normalize: {{scale: 0.01}}}}]\n"
    )
    return bundle


def write_colours(folder: Path, channels: str) -> Path:
    """An agent with that model."""
    write_model(folder, channels)
    path = folder / "agent.yaml"
    path.write_text("models: {colours: {edge: {bundle: colours, runtime: onnx}}}\n")
    return path


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_a_model_sees_the_colours_that_there_are_whatever_order_its_callers_have(tmp_path: Path, channels: str) -> None:
    red = PICTURE + np.array([255, 0, 0], np.uint8)
    scene = Scene(Frame(1, 1.0, 2.0, red, red[:, :, 0]), red, (FOUND,))
    with embedded_agent(write_colours(tmp_path, channels)) as agent:
        inference = Inference(agent, InferSettings("colours"), "dock")
        assert InferFrame(inference).take(scene, float("inf")).answers["colours"]["label"] == "red"
        (found,) = InferObjects(inference).take(scene, float("inf")).objects
    assert found.answers["colours"]["label"] == "red"


def test_a_new_version_is_asked_and_read_by_its_own_names_and_colours(tmp_path: Path) -> None:
    red = PICTURE + np.array([255, 0, 0], np.uint8)
    scene = Scene(Frame(1, 1.0, 2.0, red, red[:, :, 0]), red, (FOUND,))
    new = write_model(tmp_path / "new", "bgr", "picture mean rot, gelb, blau")
    with embedded_agent(write_colours(tmp_path, "rgb")) as agent:
        inference = Inference(agent, InferSettings("colours"), "dock")
        whole, crops = InferFrame(inference), InferObjects(inference)
        assert whole.take(scene, float("inf")).answers["colours"]["label"] == "red"
        edge = Loader("colours", EdgeSide(bundle=new, runtime="onnx")).load()
        warm_up("colours", edge)
        assert agent.replace_edge("colours", edge)
        assert whole.take(scene, float("inf")).answers["colours"]["label"] == "rot"
        (found,) = crops.take(scene, float("inf")).objects
    assert found.answers["colours"]["label"] == "rot"
    assert [one.name for one in inference.reader.signature.outputs] == ["mean"]  # late answers are read by it too


def test_a_second_picture_that_is_missing_is_left_to_the_check_of_the_inputs() -> None:
    """A new version may take two: the request is refused with a reason, and no thread fails."""
    spec = TensorSpec("", "BYTES", (-1,))
    left, right = (LogicalInput(name, "image", spec, is_bgr=True) for name in ("left", "right"))
    assert set(in_rgb(Signature((left, right), (), has_rows=True), {"left": PICTURE})) == {"left"}


def test_a_track_is_asked_about_again_when_it_is_seen_better_or_its_answer_is_old(tmp_path: Path) -> None:
    settings = InferSettings("digits", once_per_track=True, better=0.5, older_s=10.0)
    with embedded_agent(write_agent(tmp_path)) as agent:
        step = InferObjects(Inference(agent, settings, "dock"))

        def is_asked(at_s: float, side: float) -> bool:
            found = replace(FOUND, box=(0.1, 0.1, 0.1 + side, 0.1 + side))
            frame = Frame(1, at_s, 2.0, PICTURE, PICTURE[:, :, 0])
            return step.take(Scene(frame, PICTURE, (found,)), float("inf")).requests != ()

        assert is_asked(0.0, 0.5)
        assert not is_asked(1.0, 0.6)  # 44 % larger
        assert is_asked(2.0, 0.62)  # 54 %
        assert not is_asked(11.9, 0.62)
        assert is_asked(12.1, 0.62)
        assert not is_asked(13.0, 0.62)


def test_a_crop_has_its_margin_and_one_that_is_too_small_is_left_out(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 100, 3), np.uint8)
    np.testing.assert_array_equal(crop_of(pixels, (0.2, 0.2, 0.4, 0.6), 0.1), pixels[8:32, 18:42])
    np.testing.assert_array_equal(crop_of(pixels, (0.95, -0.1, 1.2, 0.5), 0.0), pixels[0:25, 95:100])
    with embedded_agent(write_agent(tmp_path)) as agent:
        for min_size, requests in ((20, 1), (21, 0)):
            step = InferObjects(Inference(agent, InferSettings("digits", margin=0.0, min_size=min_size), "dock"))
            scene = replace(SCENE, objects=(replace(FOUND, box=(0.1, 0.1, 0.6, 0.9)),))
            assert len(step.take(scene, float("inf")).requests) == requests


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
