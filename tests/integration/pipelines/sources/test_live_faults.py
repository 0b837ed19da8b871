"""Live streams over real sockets that go wrong: seen, said, back when they return, and nothing is left over."""

from __future__ import annotations

import base64
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.integration.pipelines.sources.held import children, held
from tests.pipelines_media import LiveServer, MadeVideo, Script, Viewer, jpeg_part, number_of, play_rtsp, until
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import SourceEnded, SourceState
from upwell.pipelines.sources.source_settings import CameraSettings, Keep, Patience, VideoSettings
from upwell.pipelines.sources.video import VideoSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

QUICKLY = Patience(silent_s=0.3, open_s=1.0, first_pause_s=0.05, longest_pause_s=0.1)
PICTURES = "multipart/x-mixed-replace; boundary=frame"


def good(viewer: Viewer) -> None:
    """JPEG pictures, 50 a second, for ever."""
    viewer.reply(kind=PICTURES)
    for number in itertools.count():
        viewer.play([jpeg_part(number % 4096)], 50)


def silent(viewer: Viewer) -> None:
    """Take the connection and say nothing."""
    viewer.wait()


def drip(viewer: Viewer) -> None:
    """A byte now and then."""
    viewer.reply()
    for byte in itertools.chain.from_iterable(MadeVideo().chunks()):
        viewer.send(bytes([byte]))
        viewer.wait(0.02)


def not_found(viewer: Viewer) -> None:
    """There is no such stream now."""
    viewer.reply("404 Not Found")


def asks_who_it_is(viewer: Viewer) -> None:
    """The stream is for those with a password."""
    viewer.reply("401 Unauthorized\r\nWWW-Authenticate: Basic realm=cam")


def one_picture(viewer: Viewer) -> None:
    """The same picture for ever, as an encoder does whose camera is stuck."""
    viewer.reply(kind=PICTURES)
    viewer.play([jpeg_part(1), jpeg_part(2)], 50)
    while True:
        viewer.play([jpeg_part(3)], 50)


def stops(viewer: Viewer) -> None:
    """Some pictures, and then none, on a connection that stays."""
    viewer.reply(kind=PICTURES)
    viewer.play([jpeg_part(number) for number in range(10)], 50)
    viewer.wait()


def cut(viewer: Viewer) -> None:
    """The end within a group of pictures."""
    viewer.reply()
    chunks = MadeVideo(count=20, key_every=8).chunks()
    viewer.play(chunks[:13], 50)
    viewer.send(chunks[13][: len(chunks[13]) // 2])


def reset(viewer: Viewer) -> None:
    """The same without a farewell."""
    viewer.reset()
    cut(viewer)


@contextmanager
def watched(*scripts: Script, keep: Keep = "latest", patience: Patience = QUICKLY) -> Iterator[VideoSource]:
    """A source of a server with these scripts; when it is closed, nothing is left and every number is accounted for."""
    before = held()
    with LiveServer(*scripts) as server:
        source = VideoSource(VideoSettings(server.address, keep=keep, patience=patience))
        try:
            yield source
        finally:
            source.close()
    assert source.status.state is SourceState.ENDED
    until(lambda: held().is_within(before), "nothing is left")


def frames_until(source: VideoSource, is_enough: Callable[[Frame], bool], timeout_s: float = 30.0) -> list[Frame]:
    """The frames up to the first that is enough."""
    frames: list[Frame] = []
    until_s = time.monotonic() + timeout_s
    while not frames or not is_enough(frames[-1]):
        assert time.monotonic() < until_s, source.status
        if (frame := source.next(0.2)) is not None:
            assert not frames or frame.number > frames[-1].number
            frames.append(frame)
    return frames


def first_of(source: VideoSource) -> Frame:
    """The next frame, whenever it comes."""
    frame = None
    while frame is None:
        frame = source.next(10)
    return frame


FAULTS = {
    "silent": (silent, "no frame within 1 s"),
    "not found": (not_found, "Server returned 404 Not Found"),
    "one picture": (one_picture, "the same picture for 0.3 s"),
    "stops": (stops, "no frame for 0.3 s"),
    "drip": (drip, "no frame within 1 s"),
    "cut": (cut, "Input/output error"),  # as FFmpeg has it where an answer without a length ends
    "reset": (reset, "Connection reset by peer"),
}
QUICK = ("not found", "one picture")


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow, id=one) for one in FAULTS]
)
def test_a_fault_is_seen_and_said_and_the_source_is_back_when_it_returns(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    script, why = FAULTS[fault]
    back = threading.Event()

    def again(viewer: Viewer) -> None:
        if not back.is_set():
            return script(viewer)
        return good(viewer)

    with caplog.at_level(logging.WARNING), watched(again) as source:
        seen: list[Frame] = []
        while source.status.state is not SourceState.LOST:
            if (frame := source.next(0.02)) is not None:
                seen.append(frame)
        assert source.status.explained == why
        assert f"is lost: {why}" in caplog.text
        back.set()
        returned_s = time.monotonic()
        until(lambda: source.next(0.1) is not None and source.status.state is SourceState.LIVE, "it is live again")
        until(lambda: source.next(0.1) is not None, "and stays so")
        assert time.monotonic() - returned_s < 5
        assert source.status.explained == ""
    assert source.status.reconnects >= 1
    assert source.status.given >= len(seen) + 2


def test_a_host_without_an_address_is_told_from_other_errors() -> None:
    source = VideoSource(VideoSettings("rtsp://camera.invalid/main", patience=QUICKLY))
    until(lambda: source.next(0.1) is None and source.status.state is SourceState.LOST, "it is lost")
    assert source.status.explained == "its host name cannot be resolved"
    source.close()


def test_an_address_that_the_installed_ffmpeg_cannot_open_is_told() -> None:
    source = VideoSource(VideoSettings("gopher2://127.0.0.1/main", patience=QUICKLY))
    until(lambda: source.next(0.1) is None and source.status.state is SourceState.LOST, "it is lost")
    assert source.status.explained == "the installed PyAV cannot open gopher2 addresses"
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [silent, drip], ids=["silent", "drip"])
def test_a_source_is_back_in_time_though_an_attempt_hangs(fault: Script) -> None:
    """The first attempt may take 30 s here, so that only another one can be back in 5."""
    back = threading.Event()

    def camera(viewer: Viewer) -> None:
        return good(viewer) if back.is_set() else fault(viewer)

    def once(viewer: Viewer) -> None:
        viewer.reply(kind=PICTURES)
        viewer.play([jpeg_part(number) for number in range(10)], 50)

    others = set(children())
    with watched(once, camera, patience=Patience(open_s=30)) as source:
        first_of(source)
        until(lambda: source.next(0.1) is None and source.status.state is SourceState.LOST, "it is lost")
        threading.Event().wait(6)  # several attempts hang by now
        assert source.next(0) is None
        back.set()
        returned_s = time.monotonic()
        first_of(source)
        assert time.monotonic() - returned_s < 5
        until(lambda: source.next(0.1) is not None and source.status.state is SourceState.LIVE, "it is live")
        assert len(set(children()) - others) == 1


@pytest.mark.slow
def test_a_source_that_is_slow_to_begin_is_not_given_up() -> None:
    def slow(viewer: Viewer) -> None:
        viewer.wait(4)
        good(viewer)

    with watched(slow, patience=Patience()) as source:
        first_of(source)
        assert source.status.reconnects == 0


@pytest.mark.slow
def test_other_sources_are_undisturbed_by_one_that_fails() -> None:
    with LiveServer(not_found) as server, watched(good) as calm:
        first_of(calm)
        with closing(VideoSource(VideoSettings(server.address, patience=QUICKLY))) as failing:
            until(lambda: failing.status.reconnects >= 5, "the other has failed five times")
        last = first_of(calm).number + 100
        frames = frames_until(calm, lambda frame: frame.number >= last)
        assert len(frames) > 2
        gaps_s = [after.captured_s - before.captured_s for before, after in itertools.pairwise(frames)]
        assert max(gaps_s) < 2
        assert calm.status.reconnects == 0


def test_the_resolution_may_change_within_a_stream() -> None:
    sizes = [(160, 120), (320, 240), (96, 64)]
    chunks = [
        chunk
        for index, (width, height) in enumerate(sizes)
        for chunk in MadeVideo(count=25, first=25 * index, width=width, height=height, start_s=index / 2).chunks()
    ]

    def changing(viewer: Viewer) -> None:
        viewer.reply()
        viewer.play(chunks, 50)
        viewer.wait()

    with watched(changing, keep="all", patience=Patience()) as source:
        frames = frames_until(source, lambda frame: number_of(frame.pixels) >= 70)  # a demuxer holds the last ones back
        for frame in frames:
            width, height = sizes[number_of(frame.pixels) // 25]
            assert frame.pixels.shape == (height, width, 3)
            assert frame.luma.shape == (height, width)
        assert {frame.luma.shape for frame in frames} == {(height, width) for width, height in sizes}
        assert source.status.reconnects == 0


def test_a_stream_that_is_sent_by_udp_is_followed() -> None:
    """As a Raspberry Pi sends what its ribbon camera sees: MPEG-TS to a port on which the source listens."""
    chunks = MadeVideo(count=100).chunks()
    stopping = threading.Event()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def send() -> None:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            for chunk in itertools.cycle(chunks):
                for start in range(0, len(chunk), 7 * 188):
                    sender.sendto(chunk[start : start + 7 * 188], ("127.0.0.1", port))
                if stopping.wait(1 / 50):
                    return

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    with closing(VideoSource(VideoSettings(f"udp://127.0.0.1:{port}"))) as source:
        frames = frames_until(source, lambda frame: number_of(frame.pixels) >= 40)
        assert {frame.pixels.shape for frame in frames} == {(120, 160, 3)}
        assert (source.status.state, source.status.decoder, source.status.reconnects) == (SourceState.LIVE, "h264", 0)
    stopping.set()
    sending.join()


def test_a_port_to_which_nobody_sends_is_not_said_to_be_in_use(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing may listen beside the decoder that does, or take its place before that has ended."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    patience = Patience(open_s=1.0, rival_s=0.2, first_pause_s=0.05, longest_pause_s=0.1)
    with closing(VideoSource(VideoSettings(f"udp://127.0.0.1:{port}", patience=patience))) as source:
        until(lambda: source.status.reconnects >= 3, "it is tried again")
    assert "is lost: no frame within 1 s" in caplog.text
    assert "Address already in use" not in caplog.text


@pytest.mark.slow
def test_a_camera_of_rtsp_is_read_over_tcp_and_found_again_after_its_restart(caplog: pytest.LogCaptureFixture) -> None:
    frames = MadeVideo(count=100).frames()

    def camera(viewer: Viewer) -> None:
        # Times begin just before the 32 bits of RTP overflow.
        play_rtsp(viewer, frames[:60], 50, start_ticks=(1 << 32) - 45_000)

    before = held()
    with LiveServer(camera) as server:
        address = server.address.replace("http://", "rtsp://root:Tr0ub4dor@")
        source = VideoSource(VideoSettings(address, patience=QUICKLY))
        ages_s: list[float] = []

        def has_come_again(frame: Frame) -> bool:
            ages_s.append(time.monotonic() - frame.captured_s)
            return source.status.reconnects >= 1 and number_of(frame.pixels) < 50

        seen = frames_until(source, has_come_again)
        status = source.status
        source.close()
    assert status.decoder == "h264"
    assert max(ages_s) < 5  # where the overflow was taken for a jump back, it would be hours
    assert max(number_of(frame.pixels) for frame in seen) >= 50
    assert "Tr0ub4dor" not in caplog.text
    assert "is lost" in caplog.text
    until(lambda: held().is_within(before), "nothing is left")


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [-5.0, 1000.0])
def test_a_jump_of_the_streams_time_leaves_frames_fresh(jump_s: float) -> None:
    chunks = [
        *MadeVideo(count=50, start_s=10).chunks(),
        *MadeVideo(count=50, first=50, start_s=11 + jump_s).chunks(),
    ]

    def jumping(viewer: Viewer) -> None:
        viewer.reply()
        viewer.play(chunks, 50)
        viewer.wait()

    ages_s = []
    with watched(jumping, patience=Patience()) as source:

        def is_last(frame: Frame) -> bool:
            ages_s.append(time.monotonic() - frame.captured_s)
            return number_of(frame.pixels) >= 95

        frames = frames_until(source, is_last)
        assert source.status.reconnects == 0
    assert max(ages_s) < 4
    assert any(number_of(frame.pixels) < 50 for frame in frames)


@pytest.mark.slow
def test_of_a_burst_the_newest_frame_is_given_and_the_others_are_counted() -> None:
    chunks = MadeVideo(count=120).chunks()

    def bursting(viewer: Viewer) -> None:
        viewer.reply()
        viewer.play(chunks[:30], 50)
        viewer.send(b"".join(chunks[30:100]))
        viewer.play(chunks[100:], 50)
        viewer.wait()

    with watched(bursting, patience=Patience()) as source:
        first = first_of(source)
        until(lambda: source.status.superseded >= 80 - number_of(first.pixels), "the burst has been decoded")
        last = frames_until(source, lambda frame: number_of(frame.pixels) >= 100)[-1]
        # What is written into the pictures is the truth: each number between the two had a frame of its own.
        assert last.number - first.number == number_of(last.pixels) - number_of(first.pixels)
        status = source.status
    assert status.given + status.superseded >= last.number
    assert source.status.captured == status.given + source.status.superseded + source.status.source_lost


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["all", "latest"])
def test_a_slow_reader_is_no_silence_of_the_source(keep: Keep) -> None:
    with watched(good, keep=keep) as source:
        first_of(source)
        for _ in range(3):
            threading.Event().wait(2 * QUICKLY.silent_s)  # this is how slow it is
            assert source.next(1) is not None
        assert source.status.reconnects == 0


def test_a_decoder_that_is_killed_is_started_again() -> None:
    others = set(children())
    with watched(good) as source:
        first = first_of(source)
        (decoder,) = set(children()) - others
        os.kill(decoder, signal.SIGKILL)
        until(lambda: (status := source.status).state is SourceState.LOST and status.reconnects == 1, "its end is seen")
        status = source.status
        assert status.explained == "the decoder was killed by signal 9"
        after = first_of(source)
        assert after.number > status.captured >= first.number
        assert decoder not in children()


def test_credentials_are_given_to_the_camera_and_to_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    heads: list[bytes] = []
    others = set(children())
    scripts = (asks_who_it_is, good, not_found, asks_who_it_is, good)
    with caplog.at_level(logging.DEBUG), LiveServer(*scripts, heads=heads) as server:
        address = server.address.replace("http://", "http://admin:Tr0ub4dor@") + "?token=c0rrecth0rse"
        source = VideoSource(VideoSettings(address, patience=QUICKLY))
        first_of(source)
        (decoder,) = set(children()) - others
        lines = Path(f"/proc/{decoder}/cmdline").read_bytes() + Path(f"/proc/{decoder}/environ").read_bytes()
        os.kill(decoder, signal.SIGKILL)
        said = []
        while len(heads) < len(scripts):
            said.append(repr(source.status))
            source.next(0.01)
        source.close()
    with pytest.raises(SourceEnded) as ended:
        source.next(0)
    shown = "".join((*said, caplog.text, str(ended.value), repr(source.status), lines.decode()))
    assert "404 Not Found" in shown
    for secret in ("Tr0ub4dor", "c0rrecth0rse", "admin"):
        assert secret not in shown
    assert base64.b64encode(b"admin:Tr0ub4dor") in heads[1]
    assert b"token=c0rrecth0rse" in heads[-1]


@pytest.mark.parametrize("times", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_nothing_leaks_over_many_reconnects(times: int) -> None:
    def one_and_off(viewer: Viewer) -> None:
        viewer.reply(kind=PICTURES)
        viewer.send(jpeg_part(1) + jpeg_part(2) + jpeg_part(3))

    before = held()
    hasty = Patience(first_pause_s=0.001, longest_pause_s=0.002)
    with watched(one_and_off, patience=hasty) as source:
        numbers: list[int] = []
        until(lambda: take(source, numbers) and source.status.reconnects >= 3, "it connects again", 60)
        early = held()
        until(lambda: take(source, numbers) and bool(numbers) and source.status.reconnects >= times, "and again", 300)
        late = held()
        assert numbers == sorted(set(numbers))
    # At any instant there is one decoder with its pipes and its slot, or none; and a thread of the server per viewer.
    assert late.children <= before.children + 1
    assert abs(late.descriptors - early.descriptors) <= 10
    assert late.shared_files == early.shared_files
    assert source.status.captured >= numbers[-1]
    assert source.status.given == len(numbers)


def take(source: VideoSource, numbers: list[int]) -> bool:
    """Take a frame if there is one."""
    if (frame := source.next(0.05)) is not None:
        numbers.append(frame.number)
    return True


@pytest.mark.slow
def test_a_camera_that_is_not_there_is_said_and_looked_for_again() -> None:
    before = held()
    source = VideoSource(CameraSettings("/dev/video-of-nobody", patience=QUICKLY))
    until(lambda: source.status.reconnects >= 2, "it is looked for again")
    assert (source.status.state, source.status.explained) == (SourceState.LOST, "No such file or directory")
    source.close()
    until(lambda: held().is_within(before), "nothing is left")
