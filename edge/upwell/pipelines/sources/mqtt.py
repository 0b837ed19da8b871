"""Pictures that somebody publishes to a topic of MQTT 5, each of which is a frame."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, error_string
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from upwell.pipelines.broker import client_context, parse_broker, read_password
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import MqttPicturesSettings, SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.capture_time import FrameRate, published_capture_time
from upwell.pipelines.sources.video import Pauses
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.signature import image_codec

CAPTURED = "captured_unix_s"
"""The user property that says when the picture was captured, in seconds since 1970 (UTC), as a decimal number."""

UNACKNOWLEDGED = 1
"""With `keep: all`, how many messages the broker may send ahead of what was taken (Receive Maximum).

One, as mosquitto 2.0 answers each acknowledgement with as many messages as this says instead of one: with 8 and a slow
reader there were soon 50 under way. Its price is a round trip between two pictures, most of which passes while the one
before is worked on.
"""

_WAITING = 16
"""With `keep: all`, most messages that wait here: of QoS 0, and where a broker does not keep to the above."""

_SESSION_S = 300
"""How long the broker keeps what was not acknowledged while the link is down."""

_LOOK_S = 0.1
_CLOSE_S = 2.0
_MAX_EXPLAINED = 300
_KEEPALIVE_S = (5, 30)
_PACKET_BYTES = 128 << 10
"""What a message may have beside its picture: a topic and properties."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Waiting:
    """An encoded picture that nobody has taken. `mid` is 0 where nothing is to be acknowledged."""

    data: bytes
    captured_s: float
    captured_unix_s: float
    client: Client
    mid: int


class MqttPictures:
    """A `Source` of the messages of one topic.

    **Which QoS.** `keep: latest` subscribes with QoS 0: a picture that was lost on its way is too old to be sent again,
    and one that came twice would be two frames. `keep: all` subscribes with QoS 1 and acknowledges a message when
    `next` has taken it, never before. The broker sends one ahead and keeps the others, up to a limit of its own
    (mosquitto: 1000 messages), beyond which it drops them where nobody here can count them. It keeps them for five
    minutes while the link is down, and sends again what was not acknowledged; a picture whose acknowledgement was lost
    with the link comes twice. Messages that are *published* with QoS 0 cannot be made to wait: where too many do,
    the oldest gives way and counts as superseded. `close` ends the session.

    **What is retained** is of any age, and is not asked for; a picture that is published as retained while this
    listens comes as any other.

    **Lost** is the source without the broker, and where no picture came that differs from the one before for
    `silent_s`. Then with `latest` the connection stays as long as the broker answers: a new one may miss a picture.
    With `all` it is made again, as nothing is missed, and mosquitto 2.0 sends no more after a message that was too
    large until then. Connections are made again after the pauses of `Patience`; a half-open one breaks by the
    keepalive, within a minute.

    **Memory.** The broker is told the largest packet to send (Maximum Packet Size), and drops larger ones unseen. The
    size of a picture is read from its header before it is decoded, in the thread that takes it. So at most 16 messages
    of `max_bytes` wait with `keep: all`, and one with `latest`. A broker that does not keep to its word can send 256
    MiB, which MQTT allows at most; that counts as undecodable.

    One thread talks to the broker. What changes is under `_change`. Raises `ConfigError`.
    """

    def __init__(self, settings: MqttPicturesSettings) -> None:
        self._settings = settings
        self._host, self._port, self._is_tls = parse_broker(settings.broker)
        if not settings.topic or any(character in "+#\0" for character in settings.topic):
            raise ConfigError.at(None, "expected the topic of one camera, without wildcards", "topic")
        self._password = read_password(settings.password_file) if settings.password_file else None
        if self._is_tls:
            client_context(settings.tls)  # to say now what is wrong with its files
        self._shown = f"{self._host}:{self._port} {settings.topic}"
        self._client_id = f"upwell{secrets.token_hex(8)}"  # 22 characters: all brokers take 23
        self._keeps_all = settings.keep == "all"
        self._rate = FrameRate(settings.fps)
        self._change = threading.Condition()
        self._status = SourceStatus(SourceState.CONNECTING, decoder="mqtt")
        self._client: Client | None = None
        self._waiting: deque[_Waiting] = deque()
        self._held: list[_Waiting] = []
        self._refusal = ""
        self._live_s = 0.0
        self._changed_s = 0.0
        self._captured_s = -math.inf
        self._last = b""
        self._is_readable = True
        self._is_closed = False
        self._thread = BackgroundThread("pipeline source", self._run, lambda: self._is_closed)
        self._thread.start()

    def next(self, timeout_s: float) -> Frame | None:
        """The next picture; None where none came in that time. Raises `SourceEnded`."""
        until_s = time.monotonic() + timeout_s
        while True:
            with self._change:
                self._change.wait_for(lambda: self._is_closed or self._waiting, until_s - time.monotonic())
                if self._is_closed:
                    raise SourceEnded(f"{self._shown} is over: it was closed")
                if not self._waiting:
                    return None
                waiting = self._waiting.popleft()
            frame = self._decoded(waiting)
            self._acknowledge(waiting)
            if frame is not None:
                return frame

    def done(self, frame: Frame) -> None:
        """Nothing is to be done."""

    @property
    def status(self) -> SourceStatus:
        """What it is doing now."""
        with self._change:
            return self._status

    def close(self) -> None:
        """Leave the broker, and count what was waiting as lost. Twice is harmless.

        It waits for a broker that does not answer for two seconds; the thread ends by itself then.
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

    def _decoded(self, waiting: _Waiting) -> Frame | None:
        """The frame of a message; None where that is no picture, which is counted."""
        try:
            pixels = image_codec.decode(waiting.data, "rgb", self._settings.max_pixels)
        except InvalidRequest as error:
            with self._change:
                self._count_undecodable(str(error))
            return None
        luma = image_codec.recolored(pixels, "gray")[:, :, 0]
        height, width = luma.shape
        with self._change:
            self._is_readable = True
            number = self._status.captured + 1
            self._status = replace(self._status, given=self._status.given + 1, width=width, height=height)
        return Frame(number, waiting.captured_s, waiting.captured_unix_s, pixels, luma)

    def _count_undecodable(self, why: str) -> None:
        self._status = replace(self._status, undecodable=self._status.undecodable + 1)
        if self._is_readable:  # once until there is another: a publisher must not fill the log
            _log.warning("source %s: a message is skipped: %s", self._shown, why)
        self._is_readable = False

    def _acknowledge(self, waiting: _Waiting) -> None:
        """Tell the broker, where the message is from the connection that there is; any thread may."""
        with self._change:
            client = self._client if waiting.mid else None
        if client is waiting.client:
            client.ack(waiting.mid, 1)

    def _run(self) -> None:
        pauses = Pauses(self._settings.patience)
        while not self._is_closed:
            live_for_s = self._connect_once()
            with self._change:
                self._change.wait_for(lambda: self._is_closed, pauses.next_s(live_for_s))

    def _connect_once(self) -> float:
        """Have one connection from its beginning to its end; for how many seconds it was subscribed."""
        self._live_s, self._refusal = 0.0, ""
        try:
            client = self._new_client()
        except ConfigError as error:  # a certificate was taken away
            self._lose(None, str(error))
            return 0.0
        why = "the source failed"
        try:
            why = self._follow(client)
        except (OSError, ValueError) as error:  # a name that cannot be looked up is the latter
            why = str(error)
        except Exception as error:  # noqa: BLE001 (a broken packet raises anything from paho)
            why = f"what the broker sends cannot be read: {type(error).__name__}"
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
        # With it paho sends in `loop` alone, which another thread that acknowledges only wakes.
        client.on_socket_register_write = _ignore
        client.connect_timeout = settings.patience.open_s
        if self._is_tls:
            client.tls_set_context(client_context(settings.tls))
        if settings.user is not None:
            client.username_pw_set(settings.user, self._password)
        return client

    def _follow(self, client: Client) -> str:
        """Connect and receive until the connection is over; why. Raises `OSError` and whatever paho does."""
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
        # Never clean where there is a session: mosquitto does not write down one that began so.
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
            if not self._live_s and now_s - began_s > patience.open_s:
                return f"no answer from the broker within {patience.open_s:g} s"
            with self._change:
                silence = self._silence(now_s)
                if silence and not self._keeps_all:
                    self._set_state(SourceState.LOST, silence)
                    silence = ""
            if silence:
                return silence
        return "closed"

    def _silence(self, now_s: float) -> str:
        """What is wrong with what comes; empty while nothing is."""
        if self._keeps_all and self._waiting:
            self._changed_s = now_s  # the broker waits for whoever takes it: that is no silence of the publisher
        silent_s = self._settings.patience.silent_s
        is_silent = self._live_s and now_s - max(self._changed_s, self._live_s) > silent_s
        return f"no new picture for {silent_s:g} s" if is_silent else ""

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
            # Held back until the broker says whether it sends them again: none is to be given twice.
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
            if not flags.session_present:  # what it had is forgotten there, and wanted here
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
            self._refusal = self._refusal or f"the broker left: {code}"

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        arrival_s, arrival_unix_s = time.monotonic(), time.time()
        mid = message.mid if message.qos else 0
        said = dict(getattr(message.properties, "UserProperty", [])).get(CAPTURED)
        captured_s, captured_unix_s = published_capture_time(said, arrival_s, arrival_unix_s)
        with self._change:
            gone = self._taken_in(client, message, mid, (captured_s, captured_unix_s), arrival_s)
        if gone is not None:
            self._acknowledge(gone)

    def _taken_in(
        self, client: Client, message: MQTTMessage, mid: int, captured: tuple[float, float], arrival_s: float
    ) -> _Waiting | None:
        """Have the picture wait; what does not wait any more, this one or an older one."""
        captured_s = max(captured[0], self._captured_s)  # trackers know no time that runs backwards
        captured_unix_s = captured[1] + captured_s - captured[0]
        too_large = len(message.payload) > self._settings.max_bytes
        waiting = _Waiting(b"" if too_large else bytes(message.payload), captured_s, captured_unix_s, client, mid)
        if self._is_closed or message.retain:  # a broker that does not know better: nobody knows its age
            return waiting
        if too_large:
            self._count_undecodable(f"{len(message.payload)} bytes; at most {self._settings.max_bytes} are taken")
            return waiting
        self._captured_s = captured_s
        if waiting.data != self._last:
            self._last, self._changed_s = waiting.data, arrival_s
            self._set_state(SourceState.LIVE)
        if not self._rate.keeps(captured_s):
            return waiting
        self._waiting.append(waiting)
        self._change.notify_all()
        if len(self._waiting) <= (_WAITING if self._keeps_all else 1):
            return None
        self._status = replace(self._status, superseded=self._status.superseded + 1)
        return self._waiting.popleft()


def _hang_up(client: Client, *, ends_session: bool) -> None:
    """Say goodbye where that can be sent at once, and close the socket."""
    properties = None
    if ends_session:
        properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0
    client.disconnect(properties=properties)
    client.loop_write()
    if (connected := client.socket()) is not None:
        connected.close()


def _ignore(*_: Any) -> None:
    """Nothing: `loop` looks by itself."""
