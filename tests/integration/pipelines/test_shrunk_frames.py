"""Frames that only a model sees: the decoder's process gives them the model's size, within a stated bound."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.photographs import photograph
from tests.pipelines_run import FOLLOWED, READ, pipelines_text, write_agent, write_video
from upwell.edge import Agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.frame import Frame
from upwell.pipelines.frame_outcome import AnsweredFrame
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.source_settings import VideoSettings
from upwell.pipelines.sources.video import VideoSource
from upwell.tools.demo import digit_data

MOST, MOST_ON_AVERAGE = 24, 1.2
"""Of 255: what the decoder's module says of photographs."""
SHRUNK, WHOLE_SHAPE = (240, 320, 3), (480, 640, 3)
COUNT = 12


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = itertools.islice(digit_data.video(digit_data.cards(3, seed=3), 3), 60, 60 + COUNT)
    return write_video(tmp_path_factory.mktemp("video") / "cards.mp4", pictures)


def photographs(path: Path) -> Path:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=5, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = 640, 426, "yuv420p"
        for name in ("china.jpg", "flower.jpg"):
            pixels = np.ascontiguousarray(photograph(name)[:426])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    return path


def frames(path: Path, wanted: Wanted) -> list[Frame]:
    with closing(VideoSource(VideoSettings(str(path)), lambda: wanted)) as source:
        found = [source.next(20), source.next(20)]
        assert (source.status.width, source.status.height) == (640, 426)
    return [frame for frame in found if frame is not None]


@pytest.mark.parametrize("wanted", [Wanted(320, 240), Wanted(224, 224), Wanted(161, 93), Wanted(320, 320, True)])
def test_photographs_that_the_decoder_shrinks_are_near_those_that_the_agent_shrinks(
    wanted: Wanted, tmp_path: Path
) -> None:
    path = photographs(tmp_path / "photographs.mp4")
    size = wanted.size(640, 426)
    for shrunk, whole in zip(frames(path, wanted), frames(path, WHOLE), strict=True):
        resized = np.asarray(Image.fromarray(whole.pixels).resize(size, Image.Resampling.BILINEAR))
        assert shrunk.pixels.shape == resized.shape
        difference = np.abs(shrunk.pixels.astype(int) - resized)
        assert difference.max() <= MOST
        assert difference.mean() <= MOST_ON_AVERAGE
        assert np.array_equal(shrunk.luma, whole.luma)  # what `change` looks at stays whole


def test_no_picture_is_made_larger(tmp_path: Path) -> None:
    path = photographs(tmp_path / "photographs.mp4")
    for wanted in (Wanted(641, 200), Wanted(800, 800, True)):
        assert {frame.pixels.shape for frame in frames(path, wanted)} == {(426, 640, 3)}


@given(st.tuples(*[st.integers(1, 4000)] * 4))
def test_what_fits_into_a_model_s_picture_is_not_scaled_again(sizes: tuple[int, int, int, int]) -> None:
    """The decoder rounds as the agent does, so that the agent only adds the margins."""
    width, height, to_width, to_height = sizes
    given_width, given_height = Wanted(to_width, to_height, True).size(width, height)
    if (given_width, given_height) != (width, height):
        scale = min(to_width / given_width, to_height / given_height)
        assert (round(given_width * scale), round(given_height * scale)) == (given_width, given_height)


def answered(
    folder: Path, section: Mapping[str, Any], policy: Mapping[str, Any] = {}, *, shows_frames: bool = False
) -> list[AnsweredFrame]:
    config, _ = parse_pipelines(pipelines_text(folder, dock=section), folder / "pipelines.yaml", None)
    with (
        Agent.from_config(write_agent(folder, policy)) as agent,
        build_pipelines(config, agent.core, None, LateResults(), shows_frames=shows_frames) as runner,
    ):
        return list(runner.pipelines["dock"])


def test_what_only_a_model_sees_is_shrunk_and_found_as_in_whole_frames(tmp_path: Path, video: Path) -> None:
    section = {"source": {"video": str(video)}, "steps": [{"change": {"above": "0.1%"}}, *FOLLOWED]}
    shrunk = answered(tmp_path, section)
    whole = answered(tmp_path, section, shows_frames=True)
    assert {one.scene.frame.pixels.shape for one in shrunk} == {SHRUNK}
    assert {one.scene.frame.pixels.shape for one in whole} == {WHOLE_SHAPE}
    assert [one.scene.frame.number for one in shrunk] == [one.scene.frame.number for one in whole]
    assert sum(len(one.scene.objects) for one in shrunk) > COUNT / 2
    for ours, theirs in zip(shrunk, whole, strict=True):
        assert len(ours.scene.objects) == len(theirs.scene.objects)
        for mine, same in zip(ours.scene.objects, theirs.scene.objects, strict=True):
            assert (mine.label, mine.track) == (same.label, same.track)
            np.testing.assert_allclose(mine.box, same.box, atol=0.01)


@pytest.mark.parametrize("looks", ["crops", "blur", "pictures", "preview", "another model", "cases"])
def test_whoever_looks_at_the_frames_has_them_whole(looks: str, tmp_path: Path, video: Path) -> None:
    steps: dict[str, list[Mapping[str, Any]]] = {
        "crops": [READ],
        "blur": [{"blur": {"labels": ["card"]}}],
        "another model": [{"infer": {"model": "digits"}}],
    }
    section: dict[str, Any] = {"source": {"video": str(video)}, "steps": [*FOLLOWED, *steps.get(looks, [])]}
    section |= {"preview": looks == "preview"}
    if looks == "pictures":
        section["sinks"] = [{"pictures": {"folder": str(tmp_path / "pictures")}}]
    policy = json.loads('{"models": {"digits": {"collect": {"random": "1%"}}}}') if looks == "cases" else {}
    assert {one.scene.frame.pixels.shape for one in answered(tmp_path, section, policy)} == {WHOLE_SHAPE}
