"""How each kind of sink is set, as values; a pipeline's file is read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from upwell.shared.config.security import TlsFiles


@dataclass(frozen=True)
class JsonlSettings:
    """Lines of JSON in the file at `path` and its one predecessor, `<name>.1`, of `limit_bytes` together at most."""

    path: Path
    limit_bytes: int = 256 << 20


@dataclass(frozen=True)
class WebhookSettings:
    """A POST of each event to `url`.

    `secret_file` has the key of the signature, one line, read again when it changes. `ca` has the issuers of the
    server's certificate (PEM; the system's where None). A POST may take `timeout_s`, its answer included.
    """

    url: str
    secret_file: Path | None = None
    ca: Path | None = None
    timeout_s: float = 10.0


@dataclass(frozen=True)
class MqttSettings:
    """MQTT 5 to `broker`, `mqtt://HOST[:PORT]` or `mqtts://HOST[:PORT]`, the latter with `tls`.

    `topic` may have `{pipeline}` and `{event}`. The file at `password_file` has the password, and nothing else.
    Messages that are not acknowledged within `timeout_s` are sent again.
    """

    broker: str
    topic: str
    tls: TlsFiles = field(default_factory=TlsFiles)
    user: str | None = None
    password_file: Path | None = None
    timeout_s: float = 10.0


@dataclass(frozen=True)
class KafkaSettings:
    """Kafka at `brokers`, each HOST:PORT, into `topic`, with TLS unless that is None.

    With a `user` (SASL/PLAIN) the file at `password_file` has the password, and nothing else.
    """

    brokers: tuple[str, ...]
    topic: str
    tls: TlsFiles | None = None
    user: str | None = None
    password_file: Path | None = None
    timeout_s: float = 10.0


@dataclass(frozen=True)
class PicturesSettings:
    """The events' pictures in a folder, of `limit_bytes` together at most."""

    folder: Path
    limit_bytes: int = 1 << 30


@dataclass(frozen=True)
class PluginSettings:
    """A sink of somebody else: the entry point `name` of the group `upwell.sinks`, which is called with `options`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


SinkSettings: TypeAlias = (
    JsonlSettings | WebhookSettings | MqttSettings | KafkaSettings | PicturesSettings | PluginSettings
)
