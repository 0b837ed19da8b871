"""Videos in files: order, replacement, rate, limits, and what becomes of every frame."""

from __future__ import annotations

import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.integration.pipelines.sources.held import children, held, is_running
from tests.pipelines_media import LiveServer, MadeVideo, Viewer, jpeg_part, number_of, until
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import Source, SourceEnded, SourceState
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.source_settings import VideoSettings
from upwell.pipelines.sources.video import VideoSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 frames, 50 a second."""
    return MadeVideo(count=40).write(tmp_path_factory.mktemp("videos") / "made.mp4")


def frames_of(source: Source) -> Iterator[Frame]:
    """Every frame until the source ends."""
    while True:
        try:
            frame = source.next(10)
        except SourceEnded:
            return
        assert frame is not None
        yield frame
        source.done(frame)


def test_a_file_is_given_whole_and_in_order(video: Path) -> None:
    before = held()
    source = VideoSource(VideoSettings(str(video)))
    frames = list(frames_of(source))
    assert [number_of(frame.pixels) for frame in frames] == list(range(40))
    assert [frame.number for frame in frames] == list(range(1, 41))
    assert all(frame.pixels.shape == (120, 160, 3) and frame.luma.shape == (120, 160) for frame in frames)
    assert all(frame.pixels.dtype == frame.luma.dtype == np.uint8 for frame in frames)
    bright = [(frame.luma > 120) == (frame.pixels[:, :, 1] > 120) for frame in frames]
    assert np.mean(bright) > 0.95
    captured = [frame.captured_s for frame in frames]
    assert captured == sorted(captured)
    times = [frame.at_s - frames[0].at_s for frame in frames]
    np.testing.assert_allclose(times, np.arange(40) / 50, atol=1e-3)  # as recorded, however fast it was read
    status = source.status
    assert (status.state, status.explained, status.decoder) == (SourceState.ENDED, "", "h264")
    assert (status.captured, status.given, status.width, status.height) == (40, 40, 160, 120)
    source.close()
    source.close()
    assert held().is_within(before)


def test_a_frame_of_a_file_is_no_older_than_its_reader_makes_it(video: Path) -> None:
    """The decoder is ahead; a frame that waits there for a slow model must not be late for its deadline."""
    source = VideoSource(VideoSettings(str(video)))
    for _ in range(3):
        until(lambda: _is_ahead(source), "the decoder has more")
        before_s, before_unix_s = time.monotonic(), time.time()
        frame = source.next(10)
        assert frame is not None
        assert frame.captured_s >= before_s
        assert frame.captured_unix_s >= before_unix_s - 0.1
    source.close()


def _is_ahead(source: VideoSource) -> bool:
    connection = source._connection
    return connection is not None and connection.decoder.counts.decoded > source.status.given


def test_of_a_file_that_keeps_the_latest_what_is_replaced_is_counted(video: Path) -> None:
    source = VideoSource(VideoSettings(str(video), keep="latest"))
    frames = []
    for frame in frames_of(source):
        frames.append(frame)
        until(lambda: source.status.superseded > 40 - 5 or source.status.state is SourceState.ENDED, "it runs ahead")
    source.close()
    assert [number_of(frame.pixels) + 1 for frame in frames] == [frame.number for frame in frames]
    assert frames[-1].number == 40
    assert source.status.superseded == 40 - len(frames) > 30
    assert source.status.captured == 40


def test_what_is_closed_early_is_counted_as_lost(video: Path) -> None:
    source = VideoSource(VideoSettings(str(video)))
    taken = [source.next(10) for _ in range(3)]
    source.close()
    assert [frame.number for frame in taken if frame is not None] == [1, 2, 3]
    status = source.status
    assert status.given == 3
    assert 0 <= status.source_lost <= 3  # one in the slot, one that waits, one on its way
    assert status.captured == 3 + status.source_lost
    with pytest.raises(SourceEnded):
        source.next(0)


@pytest.mark.slow
def test_a_rate_leaves_every_fifth_frame_and_captures_no_other(video: Path) -> None:
    source = VideoSource(VideoSettings(str(video), fps=10))
    numbers = [number_of(frame.pixels) for frame in frames_of(source)]
    source.close()
    assert len(numbers) in (8, 9)
    assert set(np.diff(numbers)) <= {3, 4, 5, 6, 7}
    assert source.status.captured == len(numbers)


def odd_video(path: Path, count: int, size: tuple[int, int], times_ms: Sequence[int] = ()) -> Path:
    """Frames that are red at the top left, without loss; at these times, else ten a second."""
    (width, height), picture = size, np.zeros((size[1], size[0], 3), np.uint8)
    picture[: (height + 1) // 2, : (width + 1) // 2] = (255, 0, 0)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1" if path.suffix == ".mkv" else "libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p"
        stream.codec_context.time_base = Fraction(1, 1000 if times_ms else 10)
        file.start_encoding()
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times_ms:
                frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def test_where_recordings_were_joined_time_goes_on(tmp_path: Path) -> None:
    """Else nothing would leave and no period would end until the second one has caught up."""
    path = tmp_path / "joined.ts"
    parts = MadeVideo(count=40, fps=10), MadeVideo(count=40, first=40, fps=10)
    path.write_bytes(b"".join(chunk for part in parts for chunk in part.chunks()))
    source = VideoSource(VideoSettings(str(path)))
    frames = list(frames_of(source))
    source.close()
    assert {number_of(frame.pixels) // 40 for frame in frames} == {0, 1}
    times = [frame.at_s - frames[0].at_s for frame in frames]
    assert times == sorted(times)
    assert 7.0 <= times[-1] <= 8.0


def test_a_video_that_was_held_upright_is_given_upright(tmp_path: Path) -> None:
    """As a phone records: the pictures lie on their side, and a matrix says so (ISO/IEC 14496-12, 8.3.2)."""
    path = odd_video(tmp_path / "phone.mp4", 3, (64, 48))
    whole, lies = path.read_bytes(), struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    stands = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    track = whole.index(lies, whole.index(b"tkhd"))
    path.write_bytes(whole[:track] + stands + whole[track + len(lies) :])
    for wanted, size in ((WHOLE, (48, 64)), (Wanted(12, 16), (12, 16))):
        source = VideoSource(VideoSettings(str(path)), lambda wanted=wanted: wanted)  # type: ignore[misc]  # bound now
        frames = list(frames_of(source))
        assert {frame.pixels.shape[1::-1] for frame in frames} == {size}
        assert {frame.luma.shape for frame in frames} == {(64, 48)}
        red = frames[0].pixels[:, :, 0] > 128
        assert [bool(red[y, x]) for y, x in ((2, 2), (2, -3), (-3, 2), (-3, -3))] == [False, True, False, False]
        assert (source.status.width, source.status.height) == (48, 64)
        source.close()


def test_odd_videos_are_given_or_refused_and_never_hang(tmp_path: Path) -> None:
    times_ms = [0, 10, 500, 3000, 9000]
    source = VideoSource(VideoSettings(str(odd_video(tmp_path / "varies.mp4", 5, (64, 48), times_ms))))
    assert [round(1e3 * frame.at_s) for frame in frames_of(source)] == times_ms
    source.close()
    source = VideoSource(VideoSettings(str(odd_video(tmp_path / "tiny.mkv", 3, (1, 1)))))
    assert [frame.pixels.shape for frame in frames_of(source)] == [(1, 1, 3)] * 3
    source.close()
    with av.open(str(tmp_path / "sound.m4a"), "w") as file:
        sound = file.add_stream("aac", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.rate = 8000
        file.mux(sound.encode(silence))
        file.mux(sound.encode())
    whole = (tmp_path / "varies.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nothing.mp4").write_bytes(b"")
    odd_video(tmp_path / "none.mp4", 0, (64, 48))
    for name in ("sound.m4a", "cut.mp4", "nothing.mp4", "none.mp4"):
        source = VideoSource(VideoSettings(str(tmp_path / name)))
        with pytest.raises(SourceEnded, match="has ended: "):
            source.next(10)
        assert source.status.captured == 0
        source.close()


def test_a_picture_over_the_limit_and_a_file_that_is_none_are_refused(video: Path, tmp_path: Path) -> None:
    refused = {
        VideoSettings(str(video), max_pixels=160 * 119): "160 x 120 pixels; at most 19040",
        VideoSettings(str(tmp_path / "none.mp4")): "No such file or directory",
    }
    for settings, why in refused.items():
        source = VideoSource(settings)
        with pytest.raises(SourceEnded, match=why):
            source.next(10)
        assert why in source.status.explained
        assert (source.status.state, source.status.captured) == (SourceState.ENDED, 0)
        source.close()


@pytest.mark.slow
def test_damage_within_a_file_costs_the_frame_that_it_hits_which_is_counted(tmp_path: Path) -> None:
    path = MadeVideo(count=40, key_every=1).write(tmp_path / "made.mp4")
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    middle = start + int.from_bytes(data[start - 8 : start - 4], "big") // 2
    data[middle : middle + 600] = b"\xff" * 600
    path.write_bytes(data)
    source = VideoSource(VideoSettings(str(path)))
    frames = list(frames_of(source))
    source.close()
    numbers = [frame.number for frame in frames]
    assert numbers == sorted(set(numbers))
    status = source.status
    assert (status.captured, status.given, status.undecodable) == (40, len(frames), 40 - len(frames))
    assert 1 <= status.undecodable <= 3


def test_a_jpeg_picture_that_breaks_off_is_undecodable_and_not_grey_from_there_on(tmp_path: Path) -> None:
    parts = [jpeg_part(number) for number in range(6)]
    head, body = parts[3].split(b"\r\n\r\n", 1)
    kept = body[: (body.index(b"\xff\xda") + len(body)) // 2]  # half of the scan
    parts[3] = head.replace(b"%d" % (len(body) - 2), b"%d" % len(kept)) + b"\r\n\r\n" + kept + b"\r\n"
    path = tmp_path / "made.mjpg"
    path.write_bytes(b"".join(parts))
    source = VideoSource(VideoSettings(str(path)))
    assert [number_of(frame.pixels) for frame in frames_of(source)] == [0, 1, 2, 4, 5]
    assert (source.status.given, source.status.undecodable) == (5, 1)
    source.close()


def test_a_file_that_is_cut_off_does_not_end_as_a_whole_one(tmp_path: Path) -> None:
    path = MadeVideo().write(tmp_path / "made.avi")
    os.truncate(path, path.stat().st_size // 2)
    source = VideoSource(VideoSettings(str(path)))
    assert 0 < len(list(frames_of(source))) < 20
    assert source.status.explained == "the video is cut off"
    source.close()


@pytest.mark.slow
def test_pictures_that_grow_over_the_limit_end_a_file(tmp_path: Path) -> None:
    small, large = MadeVideo(count=25), MadeVideo(count=25, first=25, width=320, height=240, start_s=0.5)
    path = tmp_path / "growing.ts"
    path.write_bytes(b"".join((*small.chunks(), *large.chunks())))
    source = VideoSource(VideoSettings(str(path), max_pixels=160 * 120))
    frames = list(frames_of(source))
    source.close()
    assert [number_of(frame.pixels) for frame in frames] == list(range(len(frames)))
    assert 20 <= len(frames) == source.status.captured  # some are lost between two streams in one file
    assert source.status.explained == "the pictures have 320 x 240 pixels; at most 19200 are decoded"


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["h264_v4l2m2m", "v4l2m2m", "hevc", "nonsense"])
def test_a_decoder_that_cannot_be_used_is_named_and_another_decodes(
    video: Path, decoder: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source = VideoSource(VideoSettings(str(video), decoder=decoder))
        assert len(list(frames_of(source))) == 40
        source.close()
    assert source.status.decoder == "h264"
    assert decoder in caplog.text
    assert "h264 decodes" in caplog.text
    assert "Error" not in caplog.text, "no name of a class"


@pytest.mark.slow
def test_the_decoder_asked_for_is_used(tmp_path: Path) -> None:
    path = MadeVideo(codec="libvpx").write(tmp_path / "made.webm")
    for asked, used in (("", "vp8"), ("libvpx", "libvpx")):
        source = VideoSource(VideoSettings(str(path), decoder=asked))
        assert [number_of(frame.pixels) for frame in frames_of(source)] == list(range(20))
        source.close()
        assert source.status.decoder == used


def endless(viewer: Viewer) -> None:
    """JPEG pictures, 50 a second, for ever."""
    viewer.reply(kind="multipart/x-mixed-replace; boundary=frame")
    number = 0
    while True:
        viewer.play([jpeg_part(number % 4096)], 50)
        number += 1


PARENT = """
import sys
from upwell.pipelines.sources.source_settings import VideoSettings
from upwell.pipelines.sources.video import VideoSource
source = VideoSource(VideoSettings(sys.argv[1]))
while source.next(1) is None:
    pass
print("live", flush=True)
sys.stdin.read()
"""


def test_when_the_process_is_killed_its_decoder_ends() -> None:
    shared = held().shared_files
    with LiveServer(endless) as server, subprocess.Popen(
        [sys.executable, "-c", PARENT, server.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"live\n"
        decoders = children(parent.pid)
        assert len(decoders) == 1
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: not any(is_running(pid) for pid in decoders), "the decoder ends")
    assert held().shared_files == shared


def test_close_wakes_whoever_waits_for_a_frame() -> None:
    def silent(viewer: Viewer) -> None:
        viewer.wait()

    with LiveServer(silent) as server:
        source = VideoSource(VideoSettings(server.address))
        until(lambda: server.served > 0, "it connects")
        closing = threading.Thread(target=source.close)
        closing.start()
        with pytest.raises(SourceEnded):
            source.next(60)
        closing.join()
