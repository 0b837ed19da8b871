"""`upwell pipeline test` with recordings that are odd or none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from tests.pipelines_media import MadeVideo
from tests.pipelines_run import FOLLOWED, pipelines_text, write_agent
from upwell.shared.errors import ConfigError
from upwell.tools.pipeline_test_cli import trial


def tried(folder: Path, recording: Path, **more: Any) -> Result:
    """What came of the recording; results go to `out`."""
    events = [{"name": "seen", "on": "frame"}]
    pipeline = {"source": {"video": "rtsp://camera"}, "steps": [*FOLLOWED], "events": events, **more}
    (folder / "pipelines.yaml").write_text(pipelines_text(folder, belt=pipeline))
    words = [str(folder / "pipelines.yaml"), "-c", str(write_agent(folder)), "--out", str(folder / "out"), "--json"]
    app = typer.Typer()
    app.command()(trial)
    return CliRunner().invoke(app, [*words, "--video", str(recording)])


def write_grey(path: Path, height: int, width: int) -> Path:
    """Three frames without loss, of any size."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "gray"
        for level in (0, 100, 200):
            picture = np.full((height, width), level, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray")))
        file.mux(stream.encode())
    return path


def test_pictures_of_one_row_or_one_pixel_are_answered_and_shown(tmp_path: Path) -> None:
    for height, width in ((1, 1), (1, 3)):
        result = tried(tmp_path, write_grey(tmp_path / "small.mkv", height, width))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["events"] == {"seen": 3}
        with av.open(str(tmp_path / "out" / "annotated.mp4")) as file:
            shapes = [frame.to_ndarray(format="rgb24").shape for frame in file.decode(video=0)]
        assert shapes == [(2, width + 1, 3)] * 3


def test_the_annotated_video_has_each_answered_frame_though_the_recording_changes_its_size(tmp_path: Path) -> None:
    large, small = MadeVideo(10), MadeVideo(10, first=10, width=80, height=60, start_s=0.2)
    (tmp_path / "made.ts").write_bytes(b"".join(large.chunks() + small.chunks()))
    document = json.loads(tried(tmp_path, tmp_path / "made.ts").stdout)
    assert document["frames"] == {"answered": 20}
    with av.open(str(tmp_path / "out" / "annotated.mp4")) as file:
        assert [(one.width, one.height) for one in file.decode(video=0)] == [(160, 120)] * 20


def test_files_that_nothing_was_written_to_are_not_named(tmp_path: Path) -> None:
    recording = write_grey(tmp_path / "small.mkv", 16, 16)
    never = {"video": "rtsp://camera", "deadline": "0.001ms"}
    assert json.loads(tried(tmp_path, recording, source=never).stdout)["files"] == []
    quiet = json.loads(tried(tmp_path, recording, events=[]).stdout)
    assert quiet["files"] == [str(tmp_path / "out" / "annotated.mp4")]


def test_a_recording_is_never_replaced_by_its_own_results(tmp_path: Path) -> None:
    """Who tries the annotated video of before again must not lose it."""
    (tmp_path / "out").mkdir()
    recording = write_grey(tmp_path / "small.mkv", 4, 4).rename(tmp_path / "out" / "annotated.mp4")
    refused = tried(tmp_path, recording).exception
    assert str(refused) == f"{recording}: --out: the results would replace it; expected another folder"
    assert recording.stat().st_size > 0


def test_what_is_no_video_is_refused_and_former_results_stay(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "events.jsonl").write_text("of before")
    (tmp_path / "text.mp4").write_text("no video")
    with av.open(str(tmp_path / "sound.mp4"), "w") as file:
        sound: Any = file.add_stream("aac", rate=44100)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.rate, silence.pts = 44100, 0
        file.mux([*sound.encode(silence), *sound.encode()])
    for name, why in (
        ("text.mp4", "cannot be read as a video: Invalid data found when processing input"),
        ("sound.mp4", "it contains no video; expected a recording"),
    ):
        with pytest.raises(ConfigError) as refused:
            raise tried(tmp_path, tmp_path / name).exception or AssertionError("it was taken")
        assert str(refused.value) == f"{tmp_path / name}: --video: {why}"
    assert (tmp_path / "out" / "events.jsonl").read_text() == "of before"


def test_what_the_pipelines_write_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    events = tmp_path / "out" / "events.jsonl"
    events.write_text("of today")
    recording = write_grey(tmp_path / "small.mkv", 16, 16)
    result = tried(tmp_path, recording, sinks=[{"jsonl": str(events)}])
    assert f"{events}: --out: the results would replace it" in str(result.exception)
    assert events.read_text() == "of today"


def test_a_former_part_of_what_the_pipelines_write_is_not_deleted(tmp_path: Path) -> None:
    """Between two events `events.jsonl` may have become `events.jsonl.1`."""
    (tmp_path / "out").mkdir()
    events = tmp_path / "out" / "events.jsonl"
    former = events.with_name("events.jsonl.1")
    former.write_text("of yesterday")
    result = tried(tmp_path, write_grey(tmp_path / "small.mkv", 16, 16), sinks=[{"jsonl": str(events)}])
    assert f"{events}: --out: the results would replace it" in str(result.exception)
    assert former.read_text() == "of yesterday"


def test_what_the_pipelines_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = tmp_path / "out" / "annotated.mp4"
    source.write_bytes(b"of today")
    result = tried(tmp_path, write_grey(tmp_path / "small.mkv", 16, 16), source={"video": str(source)})
    assert f"{source}: --out: the results would replace it" in str(result.exception)
    assert source.read_bytes() == b"of today"


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = write_grey(tmp_path / "small.mkv", 16, 16)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "pip install 'upwell[pipelines]'" in str(tried(tmp_path, recording).exception)
