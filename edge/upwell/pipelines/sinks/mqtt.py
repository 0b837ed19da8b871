"""Publishes events by MQTT 5."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from upwell.pipelines.mqtt_broker import client_context, new_client_id, parse_broker, read_password
from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.sink_settings import TOPIC_PLACES, MqttSettings
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import Fingerprint

_KEEPALIVE_S = 30
_CLOSE_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 20.0
_QUICK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only
_HEADERS_BYTES = 128
"""Maximum size of a packet beyond its topic, its key and its body, in bytes."""

_UNLIMITED = 65_535
"""Receive Maximum of a broker that states none (MQTT 5, 3.2.2.3.3)."""

_POISONOUS = frozenset({0x90, 0x95, 0x99})
"""Reason codes that concern the message alone: topic name invalid, packet too large, payload format invalid."""


class MqttPublisher:
    """Publishes each message's body with QoS 1. A message counts once the broker has acknowledged it.

    In the topic `{pipeline}` and `{event}` are percent-encoded, so that neither can add a level or a wildcard. The
    user property `idempotency-key` has the message's key. A retained message at `<prefix>/status` says `{"status":
    "online"}`, after `close` `"stopped"`, and after the process or its link died `"died"` (the broker sends that
    one). The prefix is the levels of the topic before the first placeholder. A thread of its own connects and
    reconnects. A new password or certificate is used for the next connection. Raises `ConfigError`.
    """

    leaves_device = True
    sends_together = True

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings
        self._host, self._port, self._is_tls = parse_broker(settings.broker)
        _check_topic(settings.topic)
        self._status_topic = settings.status_topic
        # With an id for each connection the broker would hold a dropped one until its keepalive runs out, and then say
        # "died" of a sink that is online again.
        self._client_id = new_client_id()
        self._files = [*settings.tls.paths, *([settings.password_file] if settings.password_file else [])]
        self._changed = threading.Condition()
        self._answers: dict[int, ReasonCode] = {}
        self._is_online = False
        self._limit_bytes = 0
        self._most_in_flight = _UNLIMITED
        self._status_mid = 0
        self._refusal = ""
        self._state_of_files: list[Fingerprint] = []
        self._client = self._connecting()
        self.name = f"mqtt:{self._host}:{self._port}:{settings.topic}"

    def get_ready(self) -> None:
        """Wait for the connection, at most `timeout_s`. Raises `SinkUnavailable`."""
        if not self._wait_online():
            text = f"no connection to the broker {self._host}:{self._port}{self._refusal}"
            if self._look() != self._state_of_files:  # a certificate or the password was replaced
                self._begin_anew()
            raise SinkUnavailable(text)

    def deliver(self, messages: Sequence[Message]) -> None:
        """Publish these messages and wait for the broker, at most `timeout_s`."""
        self.get_ready()
        fitting = self._fitting(messages)
        try:
            taken = self._publish(messages[:fitting])
        except BaseException:  # even an interrupt
            # The client would still send later what it holds, whatever the policy says by then. This error stays the
            # one that is told: it says what the broker has taken.
            with suppress(SinkUnavailable):
                self._begin_anew()
            raise
        if fitting < len(messages):
            raise Poisonous(taken, f"the broker accepts at most {self._limit_bytes} bytes")

    def close(self) -> None:
        """Publish that the end is intended, and disconnect."""
        self._end_client(says_goodbye=True)

    def _look(self) -> list[Fingerprint]:
        return [Fingerprint.of(path) for path in self._files]

    def _begin_anew(self) -> None:
        """Connect with the files of now."""
        self._end_client(says_goodbye=False)
        try:
            self._client = self._connecting()
        except ConfigError as error:  # tried again when they change
            raise SinkUnavailable(str(error)) from None

    def _connecting(self) -> Client:
        self._state_of_files = self._look()
        client = Client(CallbackAPIVersion.VERSION2, self._client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.will_set(self._status_topic, _status("died"), qos=1, retain=True)
        share = random.uniform(0.5, 1.0)  # noqa: S311 (spreads load; keeps no secret)
        client.reconnect_delay_set(_FIRST_PAUSE_S * share, _LONGEST_PAUSE_S * share)  # type: ignore[arg-type]  # any number
        client.connect_timeout = self._settings.timeout_s
        if self._is_tls:
            client.tls_set_context(client_context(self._settings.tls))
        if self._settings.user is not None:
            path = self._settings.password_file
            client.username_pw_set(self._settings.user, read_password(path) if path else None)
        client.connect_async(self._host, self._port, _KEEPALIVE_S, clean_start=True)
        client.loop_start()
        return client

    def _end_client(self, *, says_goodbye: bool) -> None:
        client = self._client
        if says_goodbye and self._is_online:
            stopped = client.publish(self._status_topic, _status("stopped"), qos=1, retain=True)
            with suppress(ValueError, RuntimeError):  # the connection was lost just then
                stopped.wait_for_publish(_CLOSE_S)
        client.disconnect()
        client.loop_stop()
        client.on_connect = client.on_disconnect = client.on_publish = None
        with self._changed:
            self._is_online = False
            self._answers.clear()

    def _wait_online(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_online, self._settings.timeout_s)

    def _fitting(self, messages: Sequence[Message]) -> int:
        """How many messages come before the first one that is too large for the broker."""
        for index, message in enumerate(messages):
            size_bytes = len(message.body) + len(message.key) + len(self._topic(message)) + _HEADERS_BYTES
            if 0 < self._limit_bytes < size_bytes:
                return index
        return len(messages)

    def _publish(self, messages: Sequence[Message]) -> int:
        with self._changed:
            self._answers.clear()  # those to the status message
        until_s = time.monotonic() + self._settings.timeout_s
        sent: deque[int] = deque()
        for number, message in enumerate(messages):
            if len(sent) == self._most_in_flight:
                self._await(sent.popleft(), number - self._most_in_flight, until_s)
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has no types there
            properties.ContentType = "application/json"
            properties.UserProperty = [("idempotency-key", message.key)]
            info = self._client.publish(self._topic(message), message.body, qos=1, properties=properties)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise SinkUnavailable(f"the connection to the broker {self._host}:{self._port} was lost")
            sent.append(info.mid)
        for taken, mid in enumerate(sent, len(messages) - len(sent)):
            self._await(mid, taken, until_s)
        return len(messages)

    def _await(self, mid: int, taken: int, until_s: float) -> None:
        """Wait for the acknowledgement of a message; `taken` are those before it."""
        with self._changed:
            self._changed.wait_for(lambda: mid in self._answers or not self._is_online, until_s - time.monotonic())
            answer = self._answers.pop(mid, None)
        if answer is None:
            raise SinkUnavailable(f"the broker {self._host}:{self._port} does not acknowledge", taken=taken)
        if answer.value in _POISONOUS:
            raise Poisonous(taken, f"the broker answered: {answer}")
        if answer.is_failure:
            raise SinkUnavailable(f"the broker answered: {answer}", taken=taken)

    def _topic(self, message: Message) -> str:
        return self._settings.topic_of(message.pipeline, message.event)

    def _on_connect(
        self, client: Client, _: Any, flags: ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        del flags
        self._refusal = f": {code}" if code.is_failure else ""
        if code.is_failure:
            return
        self._limit_bytes = getattr(properties, "MaximumPacketSize", 0)
        self._most_in_flight = getattr(properties, "ReceiveMaximum", _UNLIMITED)
        # Its acknowledgement, which comes on this thread, makes the connection free for events.
        self._status_mid = client.publish(self._status_topic, _status("online"), qos=1, retain=True).mid

    def _on_disconnect(
        self, client: Client, _: Any, flags: DisconnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        del client, flags, code, properties
        with self._changed:
            self._is_online = False
            self._changed.notify_all()

    def _on_publish(self, client: Client, _: Any, mid: int, code: ReasonCode, properties: Properties) -> None:
        del properties
        if _QUICK and (connected := client.socket()) is not None:
            # A broker with Nagle's algorithm on holds its next answer back until our kernel has acknowledged this
            # one, which would take up to 40 ms.
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, _QUICK, 1)  # type: ignore[attr-defined]  # paho leaves it out
        with self._changed:
            self._answers[mid] = code
            self._is_online = self._is_online or mid == self._status_mid
            self._changed.notify_all()


def _status(word: str) -> bytes:
    return json.dumps({"status": word}).encode()


def _check_topic(topic: str) -> None:
    rest = TOPIC_PLACES.sub("", topic)
    if not topic or topic.startswith("$") or any(character in "+#{}\0" for character in rest):
        expected = "expected a topic without wildcards; it may contain {pipeline} and {event}"
        raise ConfigError.at(None, f"cannot publish to {topic!r}; {expected}", "topic")
