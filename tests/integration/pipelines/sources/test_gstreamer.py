"""GStreamer in place of the decoder: the program that is installed, and programs of its name that go wrong."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.pipelines.sources.held import children, held, is_running
from tests.pipelines_media import MadeVideo, number_of, until
from upwell.pipelines.sources.base import SourceEnded, SourceState
from upwell.pipelines.sources.gstreamer import PROGRAM, command_of
from upwell.pipelines.sources.source_settings import CameraSettings, Patience, VideoSettings
from upwell.pipelines.sources.video import VideoSource

needs_gstreamer = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason="not installed: apt-get install gstreamer1.0-tools gstreamer1.0-plugins-good"
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
QUICKLY = Patience(silent_s=0.5, open_s=2.0, first_pause_s=0.05, longest_pause_s=0.1)
CLOCK = "videotestsrc is-live=true pattern=snow ! video/x-raw,width=64,height=48,framerate=30/1"


@contextmanager
def camera(command: str) -> Iterator[VideoSource]:
    """A live source of the program, of which nothing is left."""
    before = held()
    source = VideoSource(CameraSettings("/dev/video7", decoder=command, patience=QUICKLY))
    try:
        yield source
    finally:
        source.close()
    until(lambda: held().is_within(before), "nothing is left")


def decoder_and_program(others: set[int]) -> tuple[int, int]:
    """The process of the only source and the one that it started; `others` are children of the tests before."""
    (decoder,) = set(children()) - others
    (program,) = children(decoder)
    return decoder, program


@needs_gstreamer
@pytest.mark.parametrize(
    ("elements", "decoder"),
    [("filesrc location={address} ! decodebin", "avdec_h264"), ("videotestsrc num-buffers=20", PROGRAM)],
)
def test_frames_of_a_file_come_in_order_and_the_decoder_is_said(tmp_path: Path, elements: str, decoder: str) -> None:
    path = MadeVideo(count=20).write(tmp_path / "a video.mp4")
    source = VideoSource(VideoSettings(str(path), decoder=f"{PROGRAM} {elements}"))
    frames = [frame for _ in range(20) if (frame := source.next(10)) is not None]
    with pytest.raises(SourceEnded):
        source.next(10)
    source.close()
    assert (source.status.explained, source.status.decoder) == ("", decoder)
    assert [frame.number for frame in frames] == list(range(1, 21))
    if decoder != PROGRAM:
        assert [number_of(frame.pixels) for frame in frames] == list(range(20))
        assert {frame.luma.shape for frame in frames} == {(120, 160)}


@needs_gstreamer
def test_an_odd_size_becomes_the_nearest_that_has_no_padding(tmp_path: Path) -> None:
    path = MadeVideo(count=3, width=170, height=126).write(tmp_path / "a.mp4")
    source = VideoSource(VideoSettings(str(path), decoder=f"{PROGRAM} filesrc location={{address}} ! decodebin"))
    frames = [frame for _ in range(3) if (frame := source.next(10)) is not None]
    source.close()
    assert [number_of(frame.pixels) for frame in frames] == [0, 1, 2]
    assert {frame.luma.shape for frame in frames} <= {(126, 168), (126, 176)}


@needs_gstreamer
def test_ctrl_c_at_the_terminal_does_not_end_the_program_before_its_pipeline() -> None:
    others = set(children())  # of the tests before
    with camera(f"{PROGRAM} {CLOCK}") as source:
        until(lambda: source.next(0.1) is not None, "it is live")
        decoder, program = decoder_and_program(others)
        assert os.getpgid(0) not in (os.getpgid(decoder), os.getpgid(program))


@needs_gstreamer
def test_a_program_that_is_killed_is_started_again_and_ends_with_its_decoder() -> None:
    others = set(children())  # of the tests before
    with camera(f"{PROGRAM} {CLOCK}") as source:
        until(lambda: source.next(0.1) is not None, "it is live")
        _, program = decoder_and_program(others)
        os.kill(program, signal.SIGKILL)
        until(lambda: source.next(0.01) is None and source.status.reconnects == 1, "its end is seen")
        until(lambda: source.next(0.1) is not None and source.status.state is SourceState.LIVE, "it is live again")
        _, program = decoder_and_program(others)
    until(lambda: not is_running(program), "it has ended")


@needs_gstreamer
@pytest.mark.parametrize(
    ("elements", "why"),
    [
        ("filesrc location=/nowhere ! decodebin", "Resource not found"),
        ("filesrc location={address} ! nosuchelement", 'no element "nosuchelement"'),
    ],
)
def test_what_the_program_says_is_said(elements: str, why: str) -> None:
    with camera(f"{PROGRAM} {elements}") as source:
        until(lambda: source.status.state is SourceState.LOST, "lost")
        assert why in source.status.explained


HEAD = "YUV4MPEG2 W64 H48 F30:1 Ip A1:1 C420\\n"
FAULTS = {
    "half a frame": (f"put(b'{HEAD}' + (b'FRAME\\n' + bytes(4608)) * 2 + b'FRAME\\n' + bytes(2000))", ""),
    "silent": ("time.sleep(60)", "no frame within 2 s"),
    "stops": (f"put(b'{HEAD}' + b'FRAME\\n' + bytes(4608)); time.sleep(60)", "no frame for 0.5 s"),
    "one picture": (f"put(b'{HEAD}'); [put(b'FRAME\\n' + bytes(4608)) or time.sleep(0.02) for _ in iter(int, 1)]",
                    "the same picture for 0.5 s"),
    "too large": ("put(b'YUV4MPEG2 W60000 H60000 F30:1 Ip A1:1 C420\\nFRAME\\n'); time.sleep(60)", ""),
    "no video": ("put(b'nothing of the kind' * 1000)", "the program produced no video"),
    "exit 3": ("sys.exit(3)", f"{PROGRAM}: "),
}  # fmt: skip


@pytest.mark.parametrize("fault", [pytest.param(one, marks=pytest.mark.slow) for one in FAULTS])
def test_a_program_that_goes_wrong_is_seen_and_started_again(tmp_path: Path, fault: str) -> None:
    script, why = FAULTS[fault]
    program = tmp_path / PROGRAM
    program.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nout = int(sys.argv[-1].removeprefix('fd='))\n"
        f"put = lambda data: os.write(out, data) and None\n{script}\n"
    )
    program.chmod(0o755)
    with camera(f"{program} x ! y") as source:
        until(lambda: source.next(0.02) is None and source.status.reconnects >= 1, "it is seen")
        until(
            lambda: source.status.state is SourceState.LOST and why in source.status.explained, source.status.explained
        )
        until(lambda: source.next(0.02) is None and source.status.reconnects >= 2, "and started again")
        status = source.status
    assert status.captured <= 100_000


def test_a_program_that_is_not_there_is_said() -> None:
    with camera(f"/nowhere/{PROGRAM} x ! y") as source:
        until(lambda: source.status.state is SourceState.LOST, "lost")
        assert source.status.explained == f"there is no program /nowhere/{PROGRAM}"


@pytest.mark.parametrize(
    "text", ["gst-launch-1.0", "ffmpeg -i {address}", "gst-launch-1.0 'a", "gst-launch-1.0 a ! fdsink"]
)
def test_a_command_line_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|cannot be read"):
        command_of(text)
