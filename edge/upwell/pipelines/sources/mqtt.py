"""Messages of an MQTT 5 topic as frames: each one a picture, or samples of a series that is cut into windows."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, error_string
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from upwell.pipelines.frame import Frame
from upwell.pipelines.mqtt_broker import client_context, new_client_id, parse_broker, read_password
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.capture_time import FrameRate, PublisherClock
from upwell.pipelines.sources.series import samples_of
from upwell.pipelines.sources.source_settings import MqttPicturesSettings, MqttTopicSettings, SeriesTopicSettings
from upwell.pipelines.sources.video import Pauses
from upwell.pipelines.sources.windows import SampleWindow, Windows
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.signature import picture_codec

UNACKNOWLEDGED = 1
"""With `keep: all`, the number of unacknowledged messages that the broker may send (Receive Maximum).

One, because mosquitto 2.0 answers each acknowledgement with as many messages as this says instead of one: with 8 and
a slow reader there were soon 50 in flight. This costs a round trip between two messages, most of which overlaps with
the work on the first.
"""

_WAITING = 16
"""With `keep: all`, maximum number of waiting frames, for QoS 0 and for brokers that ignore the limit above."""

_WAITING_BYTES = 64 << 20
"""Maximum size of more waiting windows than that: a single message may complete many."""

_WINDOW_BYTES = 1 << 10
"""What a waiting window takes besides its numbers: a window of one point is not eight bytes."""

_SESSION_S = 300
"""How long the broker keeps unacknowledged messages while the link is down."""

_LOOK_S = 0.1
_CLOSE_S = 2.0
_MAX_EXPLAINED = 300
_KEEPALIVE_S = (5, 30)
_PACKET_BYTES = 128 << 10
"""Maximum size of a message beyond its body: topic and properties."""

_log = logging.getLogger(__name__)


Content = TypeVar("Content")
"""The content of a frame once somebody takes it."""

CAPTURED = "captured_unix_s"
"""The user property with the capture time of the picture, as decimal seconds since 1970 (UTC)."""


@dataclass(frozen=True, eq=False)
class Arrived:
    """A message, its arrival by both clocks, and its claimed capture time; empty if it claims none."""

    body: bytes
    arrival_s: float
    arrival_unix_s: float
    properties: dict[str, str]


@dataclass(frozen=True, eq=False)
class PendingFrame(Generic[Content]):
    """A frame that nobody has taken yet. `mid` is 0 if nothing is to be acknowledged."""

    content: Content
    captured_s: float
    captured_unix_s: float
    client: Client
    mid: int


class MqttTopic(ABC, Generic[Content]):
    """A `Source` of the messages of one topic. Subclasses turn messages into frames.

    **QoS.** `keep: latest` subscribes with QoS 0: a lost message would be too old when sent again, and a duplicate
    would be a second frame. `keep: all` subscribes with QoS 1 and acknowledges a message when `next` has taken its
    last frame, never before. The broker sends one message ahead and keeps the others, up to a limit of its own
    (mosquitto: 1000 messages), beyond which it drops them uncounted. It keeps them for five minutes while the link is
    down and sends unacknowledged messages again; a message whose acknowledgement was lost arrives twice. Messages
    *published* with QoS 0 cannot be held back: if too many wait, the oldest frame is dropped and counts as
    superseded. `close` ends the session.

    **Retained messages** may have any age and are not requested. One published as retained while this source listens
    is handled like any other.

    **Lost.** The source is lost without the broker, and if no message has differed from the one before for
    `silent_s`. In the latter case `latest` keeps the connection as long as the broker answers: a new one might miss a
    message. `all` reconnects, since it misses nothing, and since mosquitto 2.0 sends nothing more after a message
    that was too large until then. Reconnections wait for the pauses of `Patience`; the keepalive breaks a half-open
    connection within a minute.

    **Memory.** The broker is told the largest packet to send (Maximum Packet Size) and drops larger ones. At most 16
    frames wait with `keep: all`, windows up to 64 MiB, and one with `latest`. A broker that ignores the limit can
    send up to 256 MiB, MQTT's maximum; such a message counts as undecodable.

    One thread talks to the broker. `_change` guards all mutable state. Raises `ConfigError`.
    """

    CARRIED: ClassVar[str]
    """What a message holds, in the singular."""
    COMES_AGAIN: ClassVar[bool]
    """Whether a message that is sent again yields the same frame that waited when the link broke."""

    def __init__(self, settings: MqttTopicSettings) -> None:
        self._settings = settings
        self._host, self._port, self._is_tls = parse_broker(settings.broker)
        if not settings.topic or any(character in "+#\0" for character in settings.topic):
            raise ConfigError.at(None, "expected the topic of one camera or sensor, without wildcards", "topic")
        _check_files(settings, is_tls=self._is_tls)
        self._shown = f"{self._host}:{self._port} {settings.topic}"
        self._client_id = new_client_id()
        self._keeps_all = settings.keep == "all"
        self._change = threading.Condition()
        self._status = SourceStatus(SourceState.CONNECTING, decoder="mqtt")
        self._client: Client | None = None
        self._waiting: deque[PendingFrame[Content]] = deque()
        self._held: list[PendingFrame[Content]] = []
        self._refusal = ""
        self._live_s = 0.0
        self._changed_s = 0.0
        self._clock = PublisherClock()
        self._last = b""
        self._is_readable = True
        self._is_closed = False
        self._thread = BackgroundThread("pipeline source", self._run, lambda: self._is_closed)
        self._thread.start()

    def next(self, timeout_s: float) -> Frame | None:
        """The next frame; None if none came in that time. Raises `SourceEnded`."""
        until_s = time.monotonic() + timeout_s
        while True:
            with self._change:
                self._change.wait_for(lambda: self._is_closed or self._waiting, until_s - time.monotonic())
                if self._is_closed:
                    raise SourceEnded(f"{self._shown} has ended: it was closed")
                if not self._waiting:
                    return None
                waiting = self._waiting.popleft()
            frame = self._frame(waiting)
            self._acknowledge(waiting.client, waiting.mid)
            if frame is not None:
                return frame

    def done(self, frame: Frame) -> None:
        """Do nothing."""

    @property
    def status(self) -> SourceStatus:
        """The current state."""
        with self._change:
            return self._status

    def close(self) -> None:
        """Leave the broker, and count waiting frames as lost. Harmless twice.

        Waits two seconds for a broker that does not answer; the thread then ends by itself.
        """
        with self._change:
            self._is_closed = True
            lost = self._status.source_lost + len(self._waiting) + len(self._held)
            self._waiting.clear()
            self._held.clear()
            self._status = replace(self._status, state=SourceState.ENDED, explained="", source_lost=lost)
            self._change.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    @abstractmethod
    def _arrived(self, message: Arrived) -> Sequence[tuple[Content, float, float]]:
        """The frames of a message, perhaps none, each with its capture by both clocks. Raises `InvalidRequest`."""

    @abstractmethod
    def _frame(self, waiting: PendingFrame[Content]) -> Frame | None:
        """The frame to return; None if it cannot be decoded, which is counted."""

    @property
    def _most_waiting(self) -> int:
        """Maximum number of waiting frames."""
        return _WAITING if self._keeps_all else 1

    def _count_undecodable(self, why: str) -> None:
        self._status = replace(self._status, undecodable=self._status.undecodable + 1)
        if self._is_readable:  # log once until one is readable: a publisher must not fill the log
            _log.warning("source %s: skipped a message: %s", self._shown, why)
        self._is_readable = False

    def _acknowledge(self, client: Client, mid: int) -> None:
        """Acknowledge the message if it came over the current connection. From any thread."""
        with self._change:
            is_current = mid and client is self._client
        if is_current:
            client.ack(mid, 1)

    def _run(self) -> None:
        pauses = Pauses(self._settings.patience)
        while not self._is_closed:
            began_s = time.monotonic()
            live_for_s = self._connect_once()
            # An attempt that hung counts as a pause.
            tried_s = 0.0 if live_for_s else time.monotonic() - began_s
            with self._change:
                self._change.wait_for(lambda: self._is_closed, pauses.next_s(live_for_s) - tried_s)

    def _connect_once(self) -> float:
        """Open one connection and use it until it ends; return for how many seconds it was subscribed."""
        self._live_s, self._refusal = 0.0, ""
        try:
            client = self._new_client()
        except ConfigError as error:  # a certificate or the password was removed
            self._lose(None, str(error))
            return 0.0
        why = "the source failed"
        try:
            why = self._follow(client)
        except (OSError, ValueError) as error:  # ValueError if a name cannot be looked up
            why = getattr(error, "strerror", None) or str(error)
        except Exception as error:  # noqa: BLE001 (a broken packet raises anything from paho)
            why = f"a message of the broker cannot be read: {type(error).__name__}"
        finally:
            self._lose(client, why)
        return time.monotonic() - self._live_s if self._live_s else 0.0

    def _new_client(self) -> Client:
        settings = self._settings
        client = Client(
            CallbackAPIVersion.VERSION2, self._client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=True
        )
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        # This makes paho send only within `loop`; another thread that acknowledges just wakes it.
        client.on_socket_register_write = _ignore
        client.connect_timeout = settings.patience.rival_s
        if self._is_tls:
            client.tls_set_context(client_context(settings.tls))
        if settings.user is not None:
            password = read_password(settings.password_file) if settings.password_file else None
            client.username_pw_set(settings.user, password)
        return client

    def _follow(self, client: Client) -> str:
        """Connect and receive until the connection ends; return why. Raises `OSError` and whatever paho raises."""
        patience = self._settings.patience
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no types there
        properties.MaximumPacketSize = self._settings.max_bytes + _PACKET_BYTES
        if self._keeps_all:
            properties.ReceiveMaximum = UNACKNOWLEDGED
            properties.SessionExpiryInterval = _SESSION_S
        with self._change:
            self._client = client
        least_s, most_s = _KEEPALIVE_S
        keepalive_s = int(min(max(patience.silent_s, least_s), most_s))
        began_s = time.monotonic()
        # Never clean if there is a session: mosquitto does not persist one that began clean.
        client.connect(
            self._host, self._port, keepalive_s, clean_start=not self._keeps_all, properties=properties
        )  # fmt: skip
        look_s = min(_LOOK_S, patience.silent_s / 4)
        while not self._is_closed:
            if code := client.loop(look_s):
                return self._refusal or error_string(code)
            if self._refusal:
                return self._refusal
            now_s = time.monotonic()
            if not self._live_s and now_s - began_s > patience.rival_s:
                return f"no answer from the broker within {patience.rival_s:g} s"
            with self._change:
                silence = self._silence(now_s)
                if silence and not self._keeps_all:
                    self._set_state(SourceState.LOST, silence)
                    silence = ""
            if silence:
                return silence
        return "closed"

    def _silence(self, now_s: float) -> str:
        """What is wrong with the messages; empty if nothing is."""
        if self._keeps_all and self._waiting:
            self._changed_s = now_s  # the broker waits for the reader: the publisher is not silent
        silent_s = self._settings.patience.silent_s
        is_silent = self._live_s and now_s - max(self._changed_s, self._live_s) > silent_s
        return f"no new {self.CARRIED} for {silent_s:g} s" if is_silent else ""

    def _lose(self, client: Client | None, why: str) -> None:
        """Leave the broker; the source is lost, or closed."""
        if client is not None:
            client.on_connect = client.on_subscribe = client.on_disconnect = client.on_message = None
            with suppress(OSError, ValueError):
                _hang_up(client, ends_session=self._is_closed)
        with self._change:
            self._client = None
            if self._is_closed:
                return
            if self.COMES_AGAIN:  # held back until the broker says whether it sends them again: none is given twice
                self._held += [one for one in self._waiting if one.mid]
                self._waiting = deque(one for one in self._waiting if not one.mid)
            self._status = replace(self._status, reconnects=self._status.reconnects + 1)
            self._set_state(SourceState.LOST, why)

    def _set_state(self, state: SourceState, explained: str = "") -> None:
        before, explained = self._status, explained[:_MAX_EXPLAINED]
        if self._is_closed or (before.state, before.explained) == (state, explained):
            return
        self._status = replace(before, state=state, explained=explained)
        if state is SourceState.LOST:
            _log.warning("source %s is lost: %s", self._shown, explained)
        else:
            _log.info("source %s is %s", self._shown, state)

    def _on_connect(
        self, client: Client, _: Any, flags: ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        del properties
        if code.is_failure:
            self._refusal = f"the broker answered: {code}"
            return
        with self._change:
            if not flags.session_present:  # the broker lost its session, so nothing is sent again
                self._waiting.extendleft(replace(one, mid=0) for one in reversed(self._held))
                self._change.notify_all()
            self._held.clear()
        options = SubscribeOptions(qos=int(self._keeps_all), retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        client.subscribe(self._settings.topic, options=options)

    def _on_subscribe(self, client: Client, _: Any, mid: int, codes: list[ReasonCode], properties: Any) -> None:
        del client, mid, properties
        if any(code.is_failure for code in codes):
            self._refusal = f"the broker answered: {codes[0]}"
        else:
            self._live_s = time.monotonic()

    def _on_disconnect(
        self, client: Client, _: Any, flags: DisconnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        del client, properties
        if flags.is_disconnect_packet_from_server:
            self._refusal = self._refusal or f"the broker disconnected: {code}"

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        arrived = Arrived(
            bytes(message.payload), time.monotonic(), time.time(), dict(getattr(message.properties, "UserProperty", []))
        )
        mid = message.mid if message.qos else 0
        with self._change:
            # A broker that ignores the option sends retained messages, whose age is unknown.
            gone = [mid] if self._is_closed or message.retain else self._taken_in(client, arrived, mid)
        for one in gone:
            self._acknowledge(client, one)

    def _taken_in(self, client: Client, message: Arrived, mid: int) -> list[int]:
        """Queue the frames of a message; return the messages to acknowledge, this one or older ones."""
        if len(message.body) > self._settings.max_bytes:
            self._count_undecodable(f"{len(message.body)} bytes; at most {self._settings.max_bytes} are allowed")
            return [mid]
        try:
            frames = self._arrived(message)
        except InvalidRequest as error:
            self._count_undecodable(str(error))
            return [mid]
        if message.body != self._last:
            self._last, self._changed_s = message.body, message.arrival_s
            self._set_state(SourceState.LIVE)
        self._waiting += [PendingFrame(*one, client, 0) for one in frames]
        if not frames:
            return [mid]
        self._waiting[-1] = replace(self._waiting[-1], mid=mid)
        self._change.notify_all()
        gone = [self._waiting.popleft() for _ in range(len(self._waiting) - self._most_waiting)]
        self._status = replace(self._status, superseded=self._status.superseded + len(gone))
        return [one.mid for one in gone if one.client is client]


def _check_files(settings: MqttTopicSettings, *, is_tls: bool) -> None:
    """Raise `ConfigError` for files that cannot be used. They are read again for each connection."""
    if settings.password_file is not None:
        read_password(settings.password_file)
    if is_tls:
        client_context(settings.tls)


def _hang_up(client: Client, *, ends_session: bool) -> None:
    """Send a DISCONNECT if that is possible at once, and close the socket."""
    properties = None
    if ends_session:
        properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0
    client.disconnect(properties=properties)
    client.loop_write()
    if (connected := client.socket()) is not None:
        connected.close()


def _ignore(*_: Any) -> None:
    """Do nothing: `loop` polls by itself."""


class MqttPictures(MqttTopic[bytes]):
    """A `Source` of pictures, one per message.

    The size of a picture is read from its header before it is decoded, in the thread that takes it.
    """

    CARRIED = "picture"
    COMES_AGAIN = True

    def __init__(self, settings: MqttPicturesSettings) -> None:
        self._max_pixels = settings.max_pixels
        self._rate = FrameRate(settings.fps)
        super().__init__(settings)

    def _arrived(self, message: Arrived) -> Sequence[tuple[bytes, float, float]]:
        said = message.properties.get(CAPTURED)
        captured_s, unix_s = self._clock.captured(said, message.arrival_s, message.arrival_unix_s)
        return [(message.body, captured_s, unix_s)] if self._rate.keeps(captured_s) else []

    def _frame(self, waiting: PendingFrame[bytes]) -> Frame | None:
        try:
            pixels = picture_codec.decode(waiting.content, "rgb", self._max_pixels)
        except InvalidRequest as error:
            with self._change:
                self._count_undecodable(str(error))
            return None
        luma = picture_codec.recolored(pixels, "gray")[:, :, 0]
        height, width = luma.shape
        with self._change:
            self._is_readable = True
            number = self._status.captured + 1
            self._status = replace(self._status, given=self._status.given + 1, width=width, height=height)
        return Frame(number, waiting.captured_s, waiting.captured_unix_s, pixels, luma)


class MqttSeries(MqttTopic[SampleWindow]):
    """A `Source` of windows of a series: a message holds a sample as a JSON object, or a list of samples.

    A window is captured at the time of its last point if `PublisherClock` accepts that, otherwise when the
    message that completes it arrives. A repeated message adds nothing, since its samples are not later than those
    already there. An unreadable one counts as undecodable and leaves a gap.
    """

    CARRIED = "sample"
    COMES_AGAIN = False

    def __init__(self, settings: SeriesTopicSettings) -> None:
        self._shape = settings.shape
        self._windows = Windows(settings.shape.cut)
        super().__init__(settings.topic)

    @property
    def _most_waiting(self) -> int:
        window_bytes = 8 * self._shape.cut.size * len(self._shape.fields) + _WINDOW_BYTES
        return max(_WAITING, _WAITING_BYTES // window_bytes) if self._keeps_all else 1

    def _arrived(self, message: Arrived) -> Sequence[tuple[SampleWindow, float, float]]:
        samples = samples_of(message.body, self._shape)
        self._is_readable = True
        gap = whole = 0
        kept: deque[SampleWindow] = deque(maxlen=self._most_waiting)
        for window in (window for sample in samples for window in self._windows.take(*sample)):
            if window.missing and not self._shape.fills:
                gap += 1
            else:
                whole += 1
                kept.append(window)
        superseded = self._status.superseded + whole - len(kept)
        self._status = replace(self._status, gap=self._status.gap + gap, superseded=superseded)
        return [(one, *self._clock.captured(str(one.end_s), message.arrival_s, message.arrival_unix_s)) for one in kept]

    def _frame(self, waiting: PendingFrame[SampleWindow]) -> Frame | None:
        with self._change:
            number = self._status.captured + 1
            self._status = replace(self._status, given=self._status.given + 1)
        captured = (waiting.captured_s, waiting.captured_unix_s)
        return Frame.of_window(number, captured, waiting.content.values, waiting.content.missing)
