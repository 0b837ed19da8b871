"""A real mosquitto, and one who subscribes to all of it and remembers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

WAIT_S = 20.0
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")

needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed: apt-get install mosquitto")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Broker:
    """A mosquitto in a folder of its own, which keeps what it has over a stop and a start on the same port."""

    def __init__(self, folder: Path, lines: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        self._settings = folder / "mosquitto.conf"
        self._log = folder / "log"
        self._settings.write_text(
            "\n".join(
                [
                    f"listener {self.port} 127.0.0.1",
                    "persistence true",
                    f"persistence_location {folder}/",
                    "max_queued_messages 0",
                    "user root",
                    *(lines or ["allow_anonymous true"]),
                    "",
                ]
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and return when it listens."""
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([MOSQUITTO, "-c", str(self._settings)], stdout=log, stderr=log)
        while True:
            assert self._process.poll() is None, self._log.read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                continue

    def stop(self) -> None:
        """End it in good order, all it has written down."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Have a broker that is stopped lose its sessions and messages."""
        for path in self._log.parent.glob("*.db"):
            path.unlink()

    def log_text(self) -> str:
        """What it has logged, for which `log_type all` must be set."""
        return self._log.read_text()


def with_password(folder: Path) -> list[str]:
    """Lines of a broker that asks for the password `hunter2` of the user `dock`."""
    path, tool = folder / "passwords", Path(str(MOSQUITTO)).with_name("mosquitto_passwd")
    path.write_text("")
    command = [str(tool if tool.exists() else "/usr/bin/mosquitto_passwd"), "-b", str(path), "dock", "hunter2"]
    subprocess.run(command, check=True, capture_output=True)
    return ["allow_anonymous false", f"password_file {path}"]


@contextmanager
def broker(folder: Path, lines: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker, stopped at the end."""
    found = Broker(folder / "broker", lines)
    try:
        yield found
    finally:
        found.stop()


@dataclass(frozen=True)
class Heard:
    """A message that the broker has passed on."""

    topic: str
    body: bytes
    key: str
    is_retained: bool


class Subscriber:
    """Hears all topics, with a session that survives the broker's absence and its own."""

    def __init__(self, port: int, name: str) -> None:
        self.heard: list[Heard] = []
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = self._note
        self._client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.reconnect_delay_set(1, 1)
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self._client.loop_start()
        assert self._subscribed.wait(WAIT_S)

    def _note(self, _: Client, __: Any, message: MQTTMessage) -> None:
        properties = dict(getattr(message.properties, "UserProperty", []))
        key = properties.get("idempotency-key", "")
        with self._changed:
            self.heard.append(Heard(message.topic, bytes(message.payload), key, message.retain))
            self._changed.notify_all()

    @property
    def events(self) -> list[Heard]:
        """What it has heard, apart from `status`."""
        return [one for one in self.heard if not one.topic.endswith("/status")]

    def wait(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Return when the condition holds of what has been heard."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), self.heard[-5:]

    def close(self) -> None:
        """Hear no more."""
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def subscriber(port: int, name: str = "listener") -> Iterator[Subscriber]:
    """A subscriber, closed at the end."""
    found = Subscriber(port, name)
    try:
        yield found
    finally:
        found.close()
