"""Pictures by MQTT before a real mosquitto: order, bursts, silence, the broker's absence, and hostile messages."""

from __future__ import annotations

import io
import logging
import socket
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from PIL import Image

from tests.faults.certificates import Authority
from tests.integration.pipelines.sinks.brokers import (
    MOSQUITTO,
    WAIT_S,
    Broker,
    broker,
    free_port,
    needs_mosquitto,
    with_password,
)
from tests.pipelines_media import number_of, numbered, until
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.source_config import source_settings
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources import mqtt
from upwell.pipelines.sources.base import SourceEnded, SourceState
from upwell.pipelines.sources.mqtt import CAPTURED, UNACKNOWLEDGED, MqttPictures
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.sources.source_settings import MqttPicturesSettings, Patience
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError

TOPIC = "cams/7"
QUICK = Patience(first_pause_s=0.02, longest_pause_s=0.1)


def picture(number: int, kind: str = "JPEG", size: tuple[int, int] = (160, 120)) -> bytes:
    out = io.BytesIO()
    Image.fromarray(numbered(number, *size)).save(out, kind)
    return out.getvalue()


def settings_for(port: int, **keys: object) -> MqttPicturesSettings:
    return replace(MqttPicturesSettings(f"mqtt://127.0.0.1:{port}", TOPIC, patience=QUICK), **keys)  # type: ignore[arg-type]


class Camera:
    """Publishes, and knows when the broker has it."""

    def __init__(self, port: int) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def say(self, body: bytes, captured: str | None = None, qos: int = 1, retain: bool = False) -> bool:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if captured is not None:
            properties.UserProperty = [(CAPTURED, captured)]
        self._client.publish(TOPIC, body, qos, retain, properties).wait_for_publish(WAIT_S)
        return False

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def watched(there: Broker, **keys: object) -> Iterator[tuple[MqttPictures, Camera]]:
    """A source that is subscribed, and a camera."""
    with closing(MqttPictures(settings_for(there.port, **keys))) as source, closing(Camera(there.port)) as camera:
        until_subscribed(source, there)
        yield source, camera


def until_subscribed(source: MqttPictures, there: Broker, times: int = 1) -> None:
    until(lambda: there.log_text().count("Sending SUBACK to upwell") >= times, f"subscribed: {source.status}")


def taken(source: MqttPictures) -> Frame:
    frame = source.next(WAIT_S)
    assert frame is not None, source.status
    return frame


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path, ["allow_anonymous true", "log_type all"]) as found:
        yield found


@needs_mosquitto
@pytest.mark.parametrize("keep", ["latest", "all"])
def test_each_message_is_a_frame_whatever_its_format(there: Broker, keep: str) -> None:
    with watched(there, keep=keep) as (source, camera):
        for number, kind in enumerate(["JPEG", "PNG", "WEBP"], start=1):
            camera.say(picture(number, kind))
            frame = taken(source)
            assert (number_of(frame.pixels), frame.number) == (number, number)
            assert (frame.pixels.shape, frame.luma.shape) == ((120, 160, 3), (120, 160))
            assert abs(time.time() - frame.captured_unix_s) < WAIT_S
        status = source.status
        assert (status.state, status.decoder, status.width, status.height) == (SourceState.LIVE, "mqtt", 160, 120)
        assert (status.captured, status.given) == (3, 3)
    with pytest.raises(SourceEnded):
        source.next(0)


@needs_mosquitto
def test_of_a_burst_the_latest_is_given_and_the_others_are_superseded(there: Broker) -> None:
    with watched(there) as (source, camera):
        for number in range(20):
            camera.say(picture(number))
        until(lambda: source.status.superseded == 19, "all have come")
        frame = taken(source)
        assert (number_of(frame.pixels), frame.number) == (19, 20)
        assert source.next(0) is None
        assert (source.status.captured, source.status.given) == (20, 1)


@needs_mosquitto
def test_of_a_burst_all_are_given_in_order_and_the_broker_keeps_what_does_not_fit(there: Broker) -> None:
    with watched(there, keep="all") as (source, camera):
        for number in range(50):
            camera.say(picture(number))
        assert there.log_text().count("Sending PUBLISH to upwell") <= UNACKNOWLEDGED  # none was taken yet
        assert [number_of(taken(source).pixels) for _ in range(50)] == list(range(50))
        assert source.next(0) is None
        assert (source.status.captured, source.status.given) == (50, 50)


@needs_mosquitto
def test_of_a_burst_that_nobody_can_hold_back_the_oldest_give_way(there: Broker) -> None:
    with watched(there, keep="all") as (source, camera):
        for number in range(40):
            camera.say(picture(number), qos=0)
        until(lambda: source.status.superseded == 24, "all have come")
        assert [number_of(taken(source).pixels) for _ in range(16)] == list(range(24, 40))
        assert source.status.captured == 40


@needs_mosquitto
def test_what_was_not_taken_when_the_source_is_closed_is_lost(there: Broker) -> None:
    with watched(there, keep="all") as (source, camera):
        for number in range(3):
            camera.say(picture(number), qos=0)
        camera.say(picture(3))
        taken(source)
        until(lambda: there.log_text().count("Sending PUBLISH to upwell") == 4, "all were sent")
        # Once the last is there, so are those before it.
        until(lambda: len(source._waiting) == 3, "all have come")
    status = source.status
    assert (status.state, status.given, status.source_lost, status.captured) == (SourceState.ENDED, 1, 3, 4)
    source.close()
    assert source.status == status


@needs_mosquitto
@pytest.mark.parametrize("keep", ["latest", "all"])
def test_it_is_back_when_the_broker_is(there: Broker, keep: str) -> None:
    with closing(MqttPictures(settings_for(there.port, keep=keep))) as source:
        until_subscribed(source, there)
        with closing(Camera(there.port)) as camera:
            camera.say(picture(1))
            assert number_of(taken(source).pixels) == 1
            if keep == "all":
                # Else the broker would send it again, as it may.
                until(lambda: "Received PUBACK from upwell" in there.log_text(), "the broker knows that it was taken")
                camera.say(picture(2))
                camera.say(picture(3))
        there.stop()
        until(lambda: source.status.state is SourceState.LOST, "lost")
        until(lambda: "refused" in source.status.explained, "tried again")
        there.start()
        until_subscribed(source, there, 2)
        with closing(Camera(there.port)) as camera:
            camera.say(picture(4))
            expected = [2, 3, 4] if keep == "all" else [4]
            assert [number_of(taken(source).pixels) for _ in expected] == expected
        assert source.next(0) is None
        assert source.status.state is SourceState.LIVE
        assert source.status.reconnects >= 2
        assert (source.status.captured, source.status.given) == (1 + len(expected), 1 + len(expected))


@needs_mosquitto
@pytest.mark.slow
def test_it_is_back_in_time_where_an_attempt_to_connect_hangs(there: Broker) -> None:
    """Who answers on the broker's port takes connections and says nothing, and keeps those that it has."""
    there.stop()
    silent = socket.create_server(("127.0.0.1", there.port))
    with closing(MqttPictures(settings_for(there.port, patience=Patience()))) as source:
        until(lambda: source.status.explained == "no answer from the broker within 2 s", "the first attempt hung")
        held, _ = silent.accept()
        hanging, _ = silent.accept()  # another one hangs by now
        silent.close()
        there.start()
        returned_s = time.monotonic()
        until_subscribed(source, there)
        assert time.monotonic() - returned_s < 5
        held.close()
        hanging.close()


@needs_mosquitto
def test_none_is_missing_and_none_comes_twice_after_the_link_was_cut(there: Broker) -> None:
    with watched(there, keep="all") as (source, camera):
        began = time.time() - 100
        for number in range(5):
            camera.say(picture(number), captured=f"{began + 10 * number}")
        assert number_of(taken(source).pixels) == 0
        until(lambda: there.log_text().count("Received PUBACK from upwell") == 1, "it is acknowledged")
        until(lambda: len(source._waiting) == 1, "the next is here")
        assert source._client is not None
        cut = source._client.socket()
        assert cut is not None
        cut.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # paho says less of it than it is
        until(lambda: source.status.reconnects == 1, "the link is cut")
        frames = [taken(source) for _ in range(4)]
        assert [number_of(frame.pixels) for frame in frames] == [1, 2, 3, 4]
        ages_s = [frame.captured_unix_s - began for frame in frames]
        assert ages_s == pytest.approx([10, 20, 30, 40], abs=1e-3), "those that came twice are no younger"
        assert (source.next(0), source.status.captured) == (None, 5)


@needs_mosquitto
def test_what_waits_is_given_where_the_broker_comes_back_without_its_sessions(there: Broker) -> None:
    with watched(there, keep="all") as (source, camera):
        camera.say(picture(7))
        until(lambda: len(source._waiting) == 1, "it has come")
        there.stop()
        until(lambda: source.status.state is SourceState.LOST, "lost")
        assert source.next(0) is None  # not before it is known whether they come again
        there.forget()
        there.start()
        assert number_of(taken(source).pixels) == 7
        until_subscribed(source, there, 2)
        assert (source.next(0), source.status.captured) == (None, 1)


@needs_mosquitto
def test_a_publisher_that_says_nothing_new_is_lost_and_the_connection_stays(there: Broker) -> None:
    with watched(there, patience=replace(QUICK, silent_s=0.2)) as (source, camera):
        until(lambda: source.status.explained == "no new picture for 0.2 s", "nothing came")
        camera.say(picture(1))
        taken(source)
        until(lambda: camera.say(picture(1)) or source.status.state is SourceState.LOST, "the same picture is no news")
        camera.say(picture(2))
        until(lambda: source.status.state is SourceState.LIVE, "another picture")
        assert source.status.reconnects == 0
        assert there.log_text().count("Sending SUBACK to upwell") == 1


@needs_mosquitto
def test_hostile_messages_are_counted_and_the_next_picture_is_given(
    there: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    ihdr = struct.pack(">II5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + ihdr + struct.pack(">I", zlib.crc32(b"IHDR" + ihdr))
    hostile = [b"", b"no picture", bomb, picture(1)[:400], picture(1, "PNG", (400, 300)), bytes(30_000)]
    # The broker's own drop stalls it, which the new connection after the silence ends.
    patience = replace(QUICK, silent_s=0.5)
    with watched(there, keep="all", max_pixels=100_000, max_bytes=20_000, patience=patience) as (source, camera):
        for one in hostile:
            camera.say(one)
        camera.say(bytes(1 << 20))  # more than the broker may send: it drops that itself
        camera.say(picture(9))
        frame = taken(source)
        assert (number_of(frame.pixels), frame.number) == (9, 7)
        assert (source.status.undecodable, source.status.given, source.status.captured) == (6, 1, 7)
    assert len([one for one in caplog.records if "skipped a message" in one.getMessage()]) == 1


@needs_mosquitto
def test_a_retained_picture_is_not_taken_and_the_same_one_is_when_it_is_published(there: Broker) -> None:
    with closing(Camera(there.port)) as camera:
        camera.say(picture(1), retain=True)
        with closing(MqttPictures(settings_for(there.port))) as source:
            until_subscribed(source, there)
            camera.say(picture(2), retain=True)
            assert number_of(taken(source).pixels) == 2
            assert source.status.captured == 1


@needs_mosquitto
def test_the_time_that_a_message_says_is_mapped_to_the_monotonic_clock(there: Broker) -> None:
    with watched(there) as (source, camera):
        said = time.time() - 60
        camera.say(picture(1), captured=f"{said}")
        frame = taken(source)
        assert frame.captured_unix_s == pytest.approx(said, abs=1e-3)
        assert time.monotonic() - frame.captured_s == pytest.approx(time.time() - said, abs=0.1)
        camera.say(picture(2), captured=f"{said - 1}")  # time does not run backwards
        assert taken(source).captured_s == frame.captured_s
        camera.say(picture(3), captured=f"{said - 5}")  # a clock was set, so the arrival counts
        assert taken(source).captured_s > frame.captured_s + 50


@needs_mosquitto
def test_fewer_frames_are_taken_where_so_many_are_wanted(there: Broker) -> None:
    with watched(there, keep="all", fps=1.0) as (source, camera):
        began = time.time() - 30
        for number in range(20):
            camera.say(picture(number), captured=f"{began + number / 5}")
        camera.say(picture(20), captured=f"{began + 20}")
        assert [number_of(taken(source).pixels) for _ in range(6)] == [0, 3, 8, 13, 18, 20]
        assert source.status.captured == 6


@needs_mosquitto
def test_user_and_password_come_from_a_file_over_tls_and_are_never_shown(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pair, passwords, port = authority.sign("broker"), tmp_path / "passwords", free_port()
    passwords.write_text("")
    tool = str(Path(str(MOSQUITTO)).with_name("mosquitto_passwd"))
    tool = tool if Path(tool).exists() else "/usr/bin/mosquitto_passwd"
    subprocess.run([tool, "-b", str(passwords), "dockuser", "hunter2"], check=True, capture_output=True)
    lines = [
        "allow_anonymous false", f"password_file {passwords}", f"listener {port} 127.0.0.1", f"cafile {authority.ca}",
        f"certfile {pair.cert}", f"keyfile {pair.key}", "log_type all",
    ]  # fmt: skip
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("hunter2\n")
    wrong.write_text("hunter3\n")
    settings = settings_for(
        port, broker=f"mqtts://localhost:{port}", tls=TlsFiles(ca=authority.ca), user="dockuser", password_file=right
    )
    with broker(tmp_path, lines) as found:
        with closing(open_source(settings)) as source:
            assert isinstance(source, MqttPictures)
            until_subscribed(source, found)
        for refused, why in (
            (replace(settings, password_file=wrong), "Not authorized"),
            (replace(settings, tls=TlsFiles()), "CERTIFICATE_VERIFY_FAILED"),
        ):
            with closing(MqttPictures(refused)) as source:
                until(lambda why=why, source=source: why in source.status.explained, why)  # type: ignore[misc]
                shown = f"{source.status} {source!r}"
                assert not any(secret in shown + caplog.text for secret in ("hunter", "dockuser"))
    assert "is lost" in caplog.text


def test_without_a_broker_it_is_lost_and_closes_at_once() -> None:
    with closing(MqttPictures(settings_for(free_port()))) as source:
        until(lambda: source.status.reconnects >= 2, "tried again")
        assert (source.status.state, source.status.explained) == (SourceState.LOST, "Connection refused")
        assert source.next(0) is None
    assert str(source.status.state) == "ended"


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\xff\xff\xff\xff\x7f", b"\x20\x03\x00\x00\x09"]
)
def test_a_broker_that_speaks_something_else_is_lost(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with closing(MqttPictures(settings_for(listening.getsockname()[1]))) as source:
            until(lambda: source.status.reconnects >= 2, "tried again")
            assert source.status.state is SourceState.LOST
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@needs_mosquitto
def test_a_password_that_was_replaced_is_used_for_the_next_connection(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of-yesterday\n")
    with (
        broker(tmp_path, with_password(tmp_path)) as there,
        closing(MqttPictures(settings_for(there.port, user="dock", password_file=password))) as source,
    ):
        until(lambda: "Not authorized" in source.status.explained, f"refused: {source.status}")
        password.write_text("hunter2\n")
        until(lambda: source._live_s > 0, f"subscribed: {source.status}")


def test_a_file_says_all_that_the_source_is_opened_with(tmp_path: Path) -> None:
    said = "broker: 'mqtts://b:1', topic: cams/7, ca: ca.pem, cert: c.pem, key: k.pem, user: u, password_file: p"
    text = f"pipelines: {{p: {{source: {{mqtt: {{{said}}}, fps: 5, keep: all, silent: 7s}}}}}}"
    section = parse_pipelines(text, tmp_path / "pipelines.yaml", {})[0].pipelines["p"].source
    tls = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem")
    assert source_settings(section) == MqttPicturesSettings(
        "mqtts://b:1", "cams/7", tls, "u", tmp_path / "p", "all", patience=Patience(silent_s=7), fps=5.0
    )
    assert section.place == "mqtts://b:1 cams/7"


def test_wrong_settings_are_refused_at_once(tmp_path: Path) -> None:
    right = settings_for(1)
    for wrong in (
        replace(right, topic="cams/+"), replace(right, topic=""), replace(right, broker="mqtt://u:hunter2@b"),
        replace(right, password_file=tmp_path / "none"),
        replace(right, broker="mqtts://b", tls=TlsFiles(ca=tmp_path / "none")),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as refused:
            mqtt.MqttPictures(wrong)
        assert "hunter2" not in str(refused.value)
