"""The settings of each kind of sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from upwell.shared.config.security import TlsFiles


@dataclass(frozen=True)
class JsonlSettings:
    """Lines of JSON in the file at `path` and its predecessor `<name>.1`, together at most `limit_bytes`."""

    path: Path
    limit_bytes: int = 256 << 20


@dataclass(frozen=True)
class WebhookSettings:
    """A POST of each event to `url`.

    `secret_file` holds the key of the signature in one line and is read again when it changes. `ca` holds the issuers
    of the server's certificate (PEM; None for the system's). A POST may take `timeout_s`, including the reply.
    """

    url: str
    secret_file: Path | None = None
    ca: Path | None = None
    timeout_s: float = 10.0


TOPIC_PLACES = re.compile(r"\{(pipeline|event)\}")
"""The placeholders of a topic."""


@dataclass(frozen=True)
class MqttSettings:
    """MQTT 5 to `broker`, `mqtt://HOST[:PORT]`, or `mqtts://HOST[:PORT]` with `tls`.

    `topic` may have `{pipeline}` and `{event}`. The file at `password_file` holds the password and nothing else.
    Messages that are not acknowledged within `timeout_s` are sent again.
    """

    broker: str
    topic: str
    tls: TlsFiles = field(default_factory=TlsFiles)
    user: str | None = None
    password_file: Path | None = None
    timeout_s: float = 10.0

    def topic_of(self, pipeline: str, event: str) -> str:
        """Where such an event is published. Names are percent-encoded, so that none adds a level or a wildcard."""
        names = {"pipeline": pipeline, "event": event}
        return TOPIC_PLACES.sub(lambda place: quote(names[place[1]], safe=""), self.topic)

    @property
    def status_topic(self) -> str:
        """`status` under the levels of the topic before the first placeholder."""
        before, place, _ = self.topic.partition("{")
        return f"{(before.rpartition('/')[0] if place else self.topic) or 'upwell'}/status"


@dataclass(frozen=True)
class KafkaSettings:
    """Kafka at `brokers`, each HOST:PORT, into `topic`, with TLS unless that is None.

    With a `user` (SASL/PLAIN), the file at `password_file` holds the password and nothing else.
    """

    brokers: tuple[str, ...]
    topic: str
    tls: TlsFiles | None = None
    user: str | None = None
    password_file: Path | None = None
    timeout_s: float = 10.0


@dataclass(frozen=True)
class PicturesSettings:
    """The events' pictures in a folder, together at most `limit_bytes`."""

    folder: Path
    limit_bytes: int = 1 << 30


@dataclass(frozen=True)
class PluginSettings:
    """A custom sink: the entry point `name` of the group `upwell.sinks`, called with `options`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


SinkSettings: TypeAlias = (
    JsonlSettings | WebhookSettings | MqttSettings | KafkaSettings | PicturesSettings | PluginSettings
)
