"""The MQTT sink before a real mosquitto."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
from tests.faults.proxy import Proxy
from tests.integration.pipelines.sinks.brokers import (
    WAIT_S,
    Subscriber,
    broker,
    free_port,
    needs_mosquitto,
    subscriber,
    with_password,
)
from tests.pipelines_media import until
from tests.unit.pipelines.sinks.outboxes import message
from upwell.pipelines.sinks.base import Poisonous, SinkUnavailable
from upwell.pipelines.sinks.mqtt import MqttPublisher
from upwell.pipelines.sinks.sink_settings import MqttSettings
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError

TOPIC = "site/dock/{event}"


@contextmanager
def publisher(settings: MqttSettings) -> Iterator[MqttPublisher]:
    with closing(MqttPublisher(settings)) as sink:
        yield sink


def statuses(listener: Subscriber) -> list[str]:
    return [json.loads(one.body)["status"] for one in listener.heard if one.topic == "site/dock/status"]


@needs_mosquitto
def test_each_event_is_acknowledged_in_order_with_its_key_and_the_status_says_who_is_there(tmp_path: Path) -> None:
    with broker(tmp_path) as there, subscriber(there.port) as listener:
        with publisher(MqttSettings(f"mqtt://127.0.0.1:{there.port}", TOPIC)) as sink:
            sink.deliver([message(number) for number in range(50)])
            listener.wait(lambda: len(listener.events) == 50)
            assert statuses(listener) == ["online"]
        listener.wait(lambda: len(statuses(listener)) == 2)
        assert statuses(listener) == ["online", "stopped"]
        assert {one.topic for one in listener.events} == {"site/dock/count"}
        assert [(one.key, one.body) for one in listener.events] == [
            (message(number).key, message(number).body) for number in range(50)
        ]


@needs_mosquitto
def test_names_cannot_add_a_level_or_a_wildcard_to_the_topic(tmp_path: Path) -> None:
    odd = replace(message(0), pipeline="a/b", event="+/#\0ü $x")
    with broker(tmp_path) as there, subscriber(there.port) as listener:
        with publisher(MqttSettings(f"mqtt://127.0.0.1:{there.port}", "x/{pipeline}/{event}/end")) as sink:
            sink.deliver([odd])
        listener.wait(lambda: len(listener.events) == 1)
        assert listener.events[0].topic == "x/a%2Fb/%2B%2F%23%00%C3%BC%20%24x/end"


@needs_mosquitto
def test_the_death_of_the_process_is_said_by_the_broker(tmp_path: Path) -> None:
    program = """
import sys
from upwell.pipelines.sinks.mqtt import MqttPublisher
from upwell.pipelines.sinks.sink_settings import MqttSettings
sink = MqttPublisher(MqttSettings(sys.argv[1], sys.argv[2]))
sys.stdin.read()
"""
    with broker(tmp_path) as there, subscriber(there.port) as listener:
        arguments = [sys.executable, "-c", program, f"mqtt://127.0.0.1:{there.port}", TOPIC]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE) as process:
            listener.wait(lambda: statuses(listener) == ["online"])
            process.send_signal(signal.SIGKILL)
        listener.wait(lambda: statuses(listener) == ["online", "died"])
        with subscriber(there.port, "later") as later:  # who comes later is told as well
            later.wait(lambda: statuses(later) == ["died"])


@needs_mosquitto
def test_a_connection_that_a_router_forgot_does_not_say_later_that_the_sink_died(tmp_path: Path) -> None:
    """The broker ends it when the sink is back, and its will comes before the sink says that it is online."""
    with (
        broker(tmp_path) as there,
        subscriber(there.port) as listener,
        Proxy(f"127.0.0.1:{there.port}") as proxy,
        publisher(MqttSettings(f"mqtt://{proxy.address}", TOPIC, timeout_s=1.0)) as sink,
    ):
        until(lambda: _is_taken(sink), "the broker is there")
        received_bytes = proxy.up.received_bytes
        proxy.blackhole()
        losing = threading.Thread(target=_is_taken, args=(sink,))
        losing.start()
        until(lambda: proxy.up.received_bytes > received_bytes, "an event is lost")
        proxy.restore()  # for new connections
        losing.join()
        until(lambda: _is_taken(sink), "the sink has connected again")
        listener.wait(lambda: len(statuses(listener)) == 3)
        assert statuses(listener) == ["online", "died", "online"]


@needs_mosquitto
def test_user_and_password_come_from_a_file_over_tls(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("broker")
    port = free_port()
    lines = [
        *with_password(tmp_path), f"listener {port} 127.0.0.1", f"cafile {authority.ca}", f"certfile {pair.cert}",
        f"keyfile {pair.key}",
    ]  # fmt: skip
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = MqttSettings(f"mqtts://localhost:{port}", TOPIC, TlsFiles(ca=authority.ca), "dock", password)
    with broker(tmp_path, lines):
        with publisher(settings) as sink:
            sink.deliver([message(0)])
        password.write_text("wrong\n")
        with (
            publisher(replace(settings, timeout_s=0.3)) as sink,
            pytest.raises(SinkUnavailable, match="Not authorized") as refused,
        ):
            sink.deliver([message(0)])
        with publisher(replace(settings, tls=TlsFiles(), timeout_s=0.3)) as sink, pytest.raises(SinkUnavailable):
            sink.deliver([message(0)])
    assert "hunter2" not in str(refused.value) + sink.name


@needs_mosquitto
def test_a_password_that_was_replaced_is_used_without_a_restart(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of-yesterday\n")
    with broker(tmp_path, with_password(tmp_path)) as there:
        address = f"mqtt://127.0.0.1:{there.port}"
        with publisher(MqttSettings(address, TOPIC, user="dock", password_file=password, timeout_s=0.5)) as sink:
            assert not _is_taken(sink)
            password.unlink()
            assert not _is_taken(sink)
            password.write_text("hunter2\n")
            until(lambda: _is_taken(sink), "the new password is used")


def _is_taken(sink: MqttPublisher) -> bool:
    try:
        sink.deliver([message(0)])
    except SinkUnavailable:
        return False
    return True


@needs_mosquitto
def test_what_the_broker_has_taken_counts_even_if_there_is_no_password_for_a_new_connection(tmp_path: Path) -> None:
    """Else it would be sent twice."""
    password, rights = tmp_path / "password", tmp_path / "rights"
    password.write_text("hunter2\n")
    rights.write_text("user dock\ntopic write site/dock/count\ntopic write site/dock/status\n")
    with broker(tmp_path, [*with_password(tmp_path), f"acl_file {rights}"]) as there:
        address = f"mqtt://127.0.0.1:{there.port}"
        with publisher(MqttSettings(address, TOPIC, user="dock", password_file=password)) as sink:
            sink.deliver([message(0)])
            password.unlink()
            with pytest.raises(SinkUnavailable, match="the broker answered: Not authorized") as refused:
                sink.deliver([message(1), replace(message(2), event="secret")])
    assert refused.value.taken == 1


@needs_mosquitto
def test_what_is_too_large_for_the_broker_is_poisonous_and_those_before_it_are_taken(tmp_path: Path) -> None:
    with (
        broker(tmp_path, ["allow_anonymous true", "max_packet_size 2000"]) as there,
        subscriber(there.port) as listener,
        publisher(MqttSettings(f"mqtt://127.0.0.1:{there.port}", TOPIC)) as sink,
    ):
        with pytest.raises(Poisonous) as caught:
            sink.deliver([message(0), message(1, padding_bytes=3000), message(2)])
        assert caught.value.index == 1
        sink.deliver([message(2)])
        listener.wait(lambda: len(listener.events) == 2)
        assert [one.key for one in listener.events] == ["dock-0", "dock-2"]


class StrictBroker:
    """Acknowledges only when nothing more comes, and hangs up if more than `most` messages are unacknowledged."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.bodies: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> StrictBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listening.accept()[0] as connection, suppress(OSError, EOFError):
                    connection.settimeout(WAIT_S)
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        waiting: list[bytes] = []
        while True:
            if waiting and not select.select([connection], [], [], 0.05)[0]:
                connection.sendall(b"".join(b"\x40\x02" + mid for mid in waiting))  # PUBACK
                waiting.clear()
            kind, body = _packet(connection)
            if kind == 0x10:  # CONNECT, answered by CONNACK with Receive Maximum
                connection.sendall(b"\x20\x06\0\0\x03\x21" + self._most.to_bytes(2, "big"))
            elif kind & 0xF0 == 0x30:  # PUBLISH
                end = 2 + int.from_bytes(body[:2], "big")
                waiting.append(body[end : end + 2])
                if len(waiting) > self._most:
                    return
                if not body[:end].endswith(b"/status"):
                    self.bodies.append(body[body.index(b"{", end) :])
            elif kind == 0xC0:  # PINGREQ
                connection.sendall(b"\xd0\0")


def _packet(connection: socket.socket) -> tuple[int, bytes]:
    """The next packet: its first byte, and what follows its length. Raises `EOFError`."""

    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := connection.recv(size - len(data))):
                raise EOFError
            data += more
        return data

    kind, length, shift = read(1)[0], 0, 0
    while True:
        byte = read(1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return kind, read(length)


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_messages_are_unacknowledged_than_the_broker_allows(most: int) -> None:
    """As MQTT 5 demands (3.3.4): a broker that allows 10 would hang up on a batch after an outage, again and again."""
    events = [message(number) for number in range(8)]
    with StrictBroker(most) as there, publisher(MqttSettings(f"mqtt://127.0.0.1:{there.port}", TOPIC)) as sink:
        sink.deliver(events)
        assert there.bodies == [one.body for one in events]


def test_without_a_broker_it_is_tried_again() -> None:
    settings = MqttSettings(f"mqtt://127.0.0.1:{free_port()}", TOPIC, timeout_s=0.05)
    with publisher(settings) as sink, pytest.raises(SinkUnavailable, match="no connection"):
        sink.deliver([message(0)])


@pytest.mark.parametrize("topic", ["", "a/+/b", "a/#", "$SYS/x", "a/{camera}", "a{", "a\0b"])
def test_a_topic_that_cannot_be_published_to_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match="without wildcards"):
        MqttPublisher(MqttSettings("mqtt://localhost", topic))


@pytest.mark.parametrize(
    "address", ["localhost", "http://localhost", "mqtt://", "mqtts://dock:hunter2@host", "mqtt://h/x"]
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(ConfigError, match="expected mqtts://") as caught:
        MqttPublisher(MqttSettings(address, TOPIC))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n", b"hunter2\nmore", b"hunter2\xff"])
def test_a_file_that_has_no_password_is_refused_without_showing_it(tmp_path: Path, data: bytes) -> None:
    password = tmp_path / "password"
    password.write_bytes(data)
    with pytest.raises(ConfigError, match="expected a single line with the password") as caught:
        MqttPublisher(MqttSettings("mqtts://localhost", TOPIC, user="dock", password_file=password))
    assert "hunter2" not in str(caught.value)


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.pem: cannot be used for TLS"):
        MqttPublisher(MqttSettings("mqtts://localhost", TOPIC, TlsFiles(ca=tmp_path / "none.pem")))
