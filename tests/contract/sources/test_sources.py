"""What every source must do, run on each of them; one of your own belongs into `KINDS` too."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from PIL import Image

from tests.integration.pipelines.sinks.brokers import WAIT_S, broker, needs_mosquitto
from tests.integration.pipelines.sources.held import held
from tests.pipelines_media import LiveServer, MadeVideo, Viewer, jpeg_part, numbered, until
from tests.pipelines_run import MadeSource
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources import source_opening as opening
from upwell.pipelines.sources.base import Source, SourceEnded, SourceState
from upwell.pipelines.sources.gstreamer import PROGRAM
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.sources.source_settings import (
    CustomSettings,
    FolderSettings,
    MqttPicturesSettings,
    MqttTopicSettings,
    SeriesFileSettings,
    SeriesShape,
    SeriesTopicSettings,
    SourceSettings,
    VideoSettings,
)
from upwell.pipelines.sources.windows import WindowShape

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
COUNT = 6
SHAPE = SeriesShape(("x",), WindowShape(10.0, 2, 2, 0.25))
TOPIC = "source/7"


@dataclass(frozen=True)
class There:
    """What a source is to be opened with, which has or will have `COUNT` frames once somebody asks for `more`."""

    settings: SourceSettings
    more: Callable[[], None] = lambda: None
    is_live: bool = False


def samples() -> list[dict[str, float]]:
    return [{"time": 1_795_000_000 + index / 10, "x": index} for index in range(2 * COUNT)]


@contextmanager
def video(folder: Path) -> Iterator[There]:
    yield There(VideoSettings(str(MadeVideo(count=COUNT).write(folder / "a.mp4"))))


@contextmanager
def gstreamer(folder: Path) -> Iterator[There]:
    path = MadeVideo(count=COUNT).write(folder / "a.mp4")
    yield There(VideoSettings(str(path), decoder=f"{PROGRAM} filesrc location={{address}} ! decodebin"))


@contextmanager
def stream(folder: Path) -> Iterator[There]:
    def camera(viewer: Viewer) -> None:
        viewer.reply(kind="multipart/x-mixed-replace; boundary=frame")
        for number in range(4096):
            viewer.play([jpeg_part(number)], 50)

    with LiveServer(camera) as server:
        yield There(VideoSettings(server.address), is_live=True)


@contextmanager
def pictures(folder: Path) -> Iterator[There]:
    for number in range(COUNT):
        Image.fromarray(numbered(number)).save(folder / f"{number}.png")
    yield There(FolderSettings(folder, watch=False))


@contextmanager
def series(folder: Path) -> Iterator[There]:
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples()))
    yield There(SeriesFileSettings(folder / "a.jsonl", SHAPE))


@contextmanager
def plugin(folder: Path) -> Iterator[There]:
    yield There(CustomSettings("made", {"count": COUNT}))


def made(options: Mapping[str, Any]) -> Source:
    """What the entry point of `plugin` names."""
    return MadeSource([numbered(number) for number in range(options["count"])])


@contextmanager
def published(folder: Path, bodies: list[bytes], settings: Callable[[str], SourceSettings]) -> Iterator[There]:
    with broker(folder, ["allow_anonymous true", "log_type all"]) as there:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect("127.0.0.1", there.port)
        client.loop_start()

        def more() -> None:
            until(lambda: "Sending SUBACK to upwell" in there.log_text(), "subscribed")
            for body in bodies:
                client.publish(TOPIC, body, 1).wait_for_publish(WAIT_S)

        try:
            yield There(settings(f"mqtt://127.0.0.1:{there.port}"), more, is_live=True)
        finally:
            client.disconnect()
            client.loop_stop()


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(numbered(number)).save(out, "PNG")
    return out.getvalue()


def mqtt(folder: Path) -> Any:
    bodies = [png(number) for number in range(COUNT)]
    return published(folder / "broker", bodies, lambda at: MqttPicturesSettings(at, TOPIC, keep="all"))


def mqtt_series(folder: Path) -> Any:
    bodies = [json.dumps(one).encode() for one in samples()]
    return published(
        folder / "broker", bodies, lambda at: SeriesTopicSettings(MqttTopicSettings(at, TOPIC, keep="all"), SHAPE)
    )


no_gstreamer = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="GStreamer is not installed")
KINDS = [
    video, stream, pictures, series, plugin, pytest.param(gstreamer, marks=no_gstreamer),
    pytest.param(mqtt, marks=needs_mosquitto), pytest.param(mqtt_series, marks=needs_mosquitto),
]  # fmt: skip


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    entry = EntryPoint("made", f"{__name__}:made", opening.GROUP)
    monkeypatch.setattr(opening, "entry_points", lambda group: [entry] * (group == opening.GROUP))
    monkeypatch.setattr(EntryPoint, "load", lambda _: made)
    with request.param(tmp_path) as found:
        yield found


def some_of(source: Source, there: There) -> list[Frame]:
    """The first frames, in a thread of its own those that are published meanwhile."""
    thread = threading.Thread(target=there.more)
    thread.start()
    frames: list[Frame] = []
    until_s = time.monotonic() + WAIT_S
    while len(frames) < COUNT and time.monotonic() < until_s:
        if (frame := source.next(0.2)) is not None:
            frames.append(frame)
            source.done(frame)
    thread.join()
    return frames


def test_frames_are_numbered_timed_and_accounted_for(there: There) -> None:
    source = open_source(there.settings)
    frames = some_of(source, there)
    now_s, now_unix_s = time.monotonic(), time.time()
    assert len(frames) == COUNT
    numbers = [frame.number for frame in frames]
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 1
    captured = [frame.captured_s for frame in frames]
    assert captured == sorted(captured)
    assert max(captured) <= now_s
    assert max(frame.captured_unix_s for frame in frames) <= now_unix_s + 1
    for frame in frames:
        assert frame.window is not None or frame.pixels.shape == (*frame.luma.shape, 3)
    source.close()
    status = source.status
    assert status.given == COUNT
    assert status.captured >= numbers[-1]
    assert status.decoder != ""


def test_a_file_ends_and_what_is_live_only_waits(there: There) -> None:
    source = open_source(there.settings)
    some_of(source, there)
    began_s = time.monotonic()
    with nullcontext() if there.is_live else pytest.raises(SourceEnded):
        for _ in range(20):
            source.next(0.05)
    assert time.monotonic() - began_s < WAIT_S
    source.close()


def test_a_closed_source_is_over_and_leaves_nothing(there: There) -> None:
    before = held()
    source = open_source(there.settings)
    source.next(0.2)
    source.close()
    source.close()
    with pytest.raises(SourceEnded):
        source.next(1)
    status = source.status
    assert status.state is SourceState.ENDED
    assert status.captured == status.given + status.superseded + status.undecodable + status.gap + status.source_lost
    until(lambda: held().is_within(before), "nothing is left")


def test_closing_wakes_whoever_waits(there: There) -> None:
    source = open_source(there.settings)
    over = threading.Event()

    def take() -> None:
        try:
            while True:
                source.next(30)
        except SourceEnded:
            over.set()

    thread = threading.Thread(target=take)
    thread.start()
    time.sleep(0.1)  # it may wait by now, or be over
    source.close()
    assert over.wait(WAIT_S)
    thread.join()
