"""Detectors in pipelines: with outputs besides their boxes, two of them, and what is hidden before it has a track."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipelines_run import pipelines_text, write_agent, write_video
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.frame_outcome import AnsweredFrame
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.tools.demo import digit_data
from upwell.tools.demo.digit_data import ASSETS

FRAMES = 3
X, Y = 200, 110
"""The middle of the card that the video shows."""


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card that does not move."""
    return write_video(tmp_path_factory.mktemp("video") / "still.mp4", [still()] * FRAMES)


def still() -> Any:
    card = digit_data.cards(1)[0]
    standing = digit_data.Card(card.ink, card.label, float(Y), -1.0, float(X) + digit_data.FRAME_PX)
    return next(digit_data.video([standing]))


def answered(folder: Path, video: Path, *steps: Mapping[str, Any]) -> list[AnsweredFrame]:
    """The frames of the video. The model `twins` finds cards as `cards` does, and says how sure it is."""
    shutil.copytree(ASSETS / "edge" / "cards", folder / "twins")
    description = folder / "twins" / "model.yaml"
    outputs = "outputs: {cards: {kind: detections, labels: labels.txt}"
    text = description.read_text()
    assert outputs in text
    description.write_text(text.replace(outputs, outputs + ", scores: {kind: tensor}"))
    agent = write_agent(folder)
    document = json.loads(agent.read_text())
    document["models"]["twins"] = {"edge": {"bundle": "twins", "runtime": "onnx"}}
    agent.write_text(json.dumps(document))
    section = {"source": {"video": str(video)}, "steps": list(steps)}
    config, _ = parse_pipelines(pipelines_text(folder, dock=section), folder / "pipelines.yaml")
    with (
        embedded_agent(agent) as core,
        build_pipelines(config, core, None, LateResults(), shows_frames=True) as runner,
    ):
        return list(runner.pipelines["dock"])


def test_a_detector_may_say_more_than_boxes(tmp_path: Path, video: Path) -> None:
    frames = answered(tmp_path, video, {"infer": {"model": "twins"}})
    assert [[found.label for found in one.scene.objects] for one in frames] == [["card"]] * FRAMES
    for one in frames:
        said = one.scene.answers["twins"]
        assert max(said["scores"]["values"]) == pytest.approx(one.scene.objects[0].score, abs=1e-3)
        assert "cards" not in said  # its boxes are objects of the frame


def test_what_two_detectors_find_are_all_objects_of_the_frame(tmp_path: Path, video: Path) -> None:
    frames = answered(tmp_path, video, {"infer": {"model": "cards"}}, {"infer": {"model": "twins"}})
    assert [len(one.scene.objects) for one in frames] == [2] * FRAMES
    assert [sorted(one.scene.answers) for one in frames] == [["cards", "twins"]] * FRAMES


def test_blur_hides_what_was_found_before_it_has_a_track(tmp_path: Path, video: Path) -> None:
    """A tracker speaks of an object from its second look on; at the first it must be hidden too."""
    frames = answered(
        tmp_path, video, {"infer": {"model": "cards"}}, {"track": {}}, {"blur": {"labels": ["card"]}}
    )  # fmt: skip
    assert [len(one.scene.objects) for one in frames] == [0, 1, 1]
    half = digit_data.FRAME_PX // 2
    card = np.s_[Y - half : Y + half, X - half : X + half]
    for one in frames:
        before, shown = (pixels[card].astype(float) for pixels in (one.scene.frame.pixels, one.scene.pixels))
        assert np.abs(shown - before).mean() > 10
