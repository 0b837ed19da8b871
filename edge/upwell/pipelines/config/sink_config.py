"""`sinks` in `pipelines.yaml`, and the brokers of sources and sinks. Unencrypted network connections are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from upwell.pipelines.config.one_key_section import OneKeySection
from upwell.pipelines.sinks.sink_settings import (
    TOPIC_PLACES,
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    PluginSettings,
    SinkSettings,
    WebhookSettings,
)
from upwell.shared.config.addresses import Address, TcpAddress, parse_address
from upwell.shared.config.located_errors import Location, located
from upwell.shared.config.security import TlsFiles
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.errors import ConfigError
from upwell.shared.units import Bytes, Seconds

MAX_TOPIC_BYTES = 1000
_MQTT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_WEB_PORTS = {"http": 80, "https": 443}
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def _plain_url(text: str, ports: Mapping[str, int], instead: str) -> tuple[str, Address]:
    """Scheme and address of a URL. Raises `ValueError`, which never shows the URL, since it may hold a password."""
    secure = next(scheme for scheme in ports if scheme.endswith("s"))
    expected = f"expected {secure}://HOST, optionally with :PORT"
    scheme, _, rest = text.partition("://")
    if scheme not in ports or not rest or not text.isprintable() or " " in text:
        raise ValueError(f"the address cannot be read; {expected}")
    if "@" in re.split(r"[/?#]", rest, maxsplit=1)[0]:
        raise ValueError(f"an address must not contain a user or password; expected {instead}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        address = parse_address(
            f"[{host}]:{port or ports[scheme]}" if ":" in host else f"{host}:{port or ports[scheme]}"
        )
    except (ValueError, ConfigError):
        raise ValueError(f"the address cannot be read; {expected}") from None
    return scheme, address


def _broker(text: str) -> str:
    _plain_url(text, _MQTT_PORTS, "them in `user` and `password_file`")
    if len(re.split(r"[/?#]", text.rstrip("/"))) > 3:
        raise ValueError("a broker's address has no path; expected mqtts://HOST, optionally with :PORT")
    return text


def _url(text: str) -> str:
    _plain_url(text, _WEB_PORTS, "`secret_file`, which signs each message")
    if "#" in text:
        raise ValueError("the address has a part after #; expected none")
    if not text.isascii():
        raise ValueError("the address is not in ASCII; expected %-encoded letters, and a host name in its xn-- form")
    return text


def _topic(text: str) -> str:
    """An MQTT topic with fields in braces. Raises `ValueError`."""
    for place in re.findall(r"\{[^{}]*\}", text):
        if not TOPIC_PLACES.fullmatch(place):
            raise ValueError(f"unknown field {place} in a topic; expected {{pipeline}} and {{event}}")
    if re.search(r"[{}]", TOPIC_PLACES.sub("", text)):
        raise ValueError("a brace has no partner; expected fields such as {event}")
    if not text or len(text.encode(errors="replace")) > MAX_TOPIC_BYTES:
        raise ValueError(f"expected a topic of 1 to {MAX_TOPIC_BYTES} bytes")
    if re.search(r"[+#]", text) or text.startswith("$") or not text.isprintable():
        raise ValueError("a topic to send to has no +, no #, no control character and no $ at its beginning")
    return text


def _pictures_topic(text: str) -> str:
    if not text or len(text.encode(errors="replace")) > MAX_TOPIC_BYTES:
        raise ValueError(f"expected a topic of 1 to {MAX_TOPIC_BYTES} bytes")
    if re.search(r"[+#]", text) or text.startswith("$") or not text.isprintable():
        raise ValueError(
            "one camera's or sensor's topic has no +, no #, no control character and no $ at its beginning"
        )
    return text


def _kafka_topic(text: str) -> str:
    if not _KAFKA_TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError("expected a topic of up to 249 letters, digits, dots, - and _")
    return text


class JsonlSection(FilePart):
    """A file with a JSON object per line; `jsonl: events.jsonl` is enough."""

    path: RelativePath = Field(description="The file.")
    limit: Bytes = Field(256 << 20, gt=0, description="Maximum size of it and its predecessor, `.1`.")


class PicturesSection(FilePart):
    """A folder of annotated pictures."""

    folder: RelativePath = Field(description="The folder, created if missing.")
    limit: Bytes = Field(
        1 << 30, gt=0, description="Maximum size of the folder; the oldest pictures are deleted first."
    )


class BrokerSection(FilePart):
    """An MQTT 5 broker."""

    _carried: ClassVar[str]

    broker: Annotated[str, AfterValidator(_broker)] = Field(
        description="`mqtts://HOST`, optionally with `:PORT` (8883); on loopback `mqtt://HOST` (1883)."
    )
    topic: str
    ca: RelativePath | None = Field(None, description="Issuers of the broker's certificate; default: the system's.")
    cert: RelativePath | None = Field(None, description="The device's certificate chain, sent to the broker.")
    key: RelativePath | None = Field(None, description="The device's private key.")
    user: str | None = Field(None, min_length=1, description="User name.")
    password_file: RelativePath | None = Field(None, description="A file with the password.")
    insecure: bool = Field(False, description="Allow a broker off loopback without TLS.")

    @property
    def address(self) -> Address:
        """Host and port."""
        return _plain_url(self.broker, _MQTT_PORTS, "")[1]

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.broker.startswith("mqtts:")

    @model_validator(mode="after")
    def _protected(self) -> BrokerSection:
        found: dict[Location, str] = _login_problems(self)
        if not (self.is_encrypted or self.insecure or self.address.is_loopback):
            text = f"{self._carried} would cross the network in clear: write mqtts://, or `insecure: true`"
            found["broker",] = text
        if not self.is_encrypted:
            found |= _needless(self, ("ca", "cert", "key"), "write mqtts://")
        _raise_for(found)
        return self


class MqttSection(BrokerSection):
    """An MQTT 5 broker; QoS is 1."""

    _carried = "events"

    topic: Annotated[str, AfterValidator(_topic)] = Field(
        description="Where events are published; `{event}` and `{pipeline}` are replaced by the names."
    )

    @property
    def settings(self) -> MqttSettings:
        """The settings to open the sink with."""
        tls = TlsFiles(self.cert, self.key, self.ca)
        return MqttSettings(self.broker, self.topic, tls, self.user, self.password_file)


class MqttPicturesSection(BrokerSection):
    """An MQTT 5 topic; each message is a picture (JPEG, PNG, WebP).

    The user property `captured_unix_s` gives the capture time, by default that of arrival. Retained messages are
    ignored.
    """

    _carried = "pictures"

    topic: Annotated[str, AfterValidator(_pictures_topic)] = Field(description="The topic of one camera; no wildcards.")


class MqttSamplesSection(BrokerSection):
    """An MQTT 5 topic; each message is a sample, as a JSON object, or a list of samples."""

    _carried = "samples"

    topic: Annotated[str, AfterValidator(_pictures_topic)] = Field(description="The topic of one sensor; no wildcards.")


class WebhookSection(FilePart):
    """A web server that gets events by POST, signed with HMAC-SHA256."""

    url: Annotated[str, AfterValidator(_url)] = Field(description="`https://…`; `http://…` on loopback.")
    secret_file: RelativePath = Field(description="A file with the signing secret.")
    timeout: Seconds = Field(10.0, gt=0, description="How long one try may take.")
    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")
    insecure: bool = Field(False, description="Allow an address off loopback without TLS.")

    @property
    def address(self) -> Address:
        """Host and port."""
        return _plain_url(self.url, _WEB_PORTS, "")[1]

    @model_validator(mode="after")
    def _protected(self) -> WebhookSection:
        found: dict[Location, str] = {}
        if self.url.startswith("http:"):
            found |= _needless(self, ("ca",), "write https://")
            if not (self.insecure or self.address.is_loopback):
                found["url",] = "events would cross the network in clear: write https://, or `insecure: true`"
        _raise_for(found)
        return self


class KafkaSection(FilePart):
    """A Kafka topic; needs the extra `kafka`. Users log in by SASL/PLAIN."""

    brokers: tuple[TcpAddress, ...] = Field(min_length=1, description="Some brokers of the cluster, each HOST:PORT.")
    topic: Annotated[str, AfterValidator(_kafka_topic)] = Field(description="The topic for events.")
    tls: bool = Field(False, description="TLS; required off loopback unless `insecure`.")
    ca: RelativePath | None = Field(None, description="Issuers of the broker's certificate; default: the system's.")
    cert: RelativePath | None = Field(None, description="The device's certificate chain, sent to the broker.")
    key: RelativePath | None = Field(None, description="The device's private key.")
    user: str | None = Field(None, min_length=1, description="User name.")
    password_file: RelativePath | None = Field(None, description="A file with the password.")
    insecure: bool = Field(False, description="Allow a broker off loopback without TLS.")

    @model_validator(mode="after")
    def _protected(self) -> KafkaSection:
        found: dict[Location, str] = _login_problems(self)
        if not self.tls:
            found |= _needless(self, ("ca", "cert", "key"), "write `tls: true`")
            if not (self.insecure or all(parse_address(one).is_loopback for one in self.brokers)):
                found["brokers",] = "events would cross the network in clear: write `tls: true`, or `insecure: true`"
        _raise_for(found)
        return self


class SinkPluginSection(FilePart):
    """A custom sink: an entry point of the group `upwell.sinks`."""

    name: str = Field(min_length=1, description="The entry point's name.")
    options: dict[str, Any] = Field({}, description="Its keyword arguments.")


def _login_problems(section: BrokerSection | KafkaSection) -> dict[Location, str]:
    """Report a setting whose counterpart is missing."""
    found: dict[Location, str] = {}
    for one, other in (("cert", "key"), ("user", "password_file")):
        written = [key for key in (one, other) if getattr(section, key) is not None]
        # MQTT allows a user without a password.
        if len(written) == 1 and not (isinstance(section, BrokerSection) and written == ["user"]):
            found[(written[0],)] = f"`{one}` and `{other}` go together; write both or neither"
    return found


def _needless(section: FilePart, keys: Sequence[str], instead: str) -> dict[Location, str]:
    """Report TLS files that are set although TLS is off."""
    return {
        (key,): f"{key} needs TLS, but the address has none; {instead}"
        for key in keys
        if getattr(section, key) is not None
    }


def _raise_for(problems: Mapping[Location, str]) -> None:
    if problems:
        raise located(problems)


def _file(value: object) -> object:
    if not isinstance(value, (str, dict)):
        raise ValueError("expected the path of a file, or keys and values")
    return {"path": value} if isinstance(value, str) else value


class SinkSection(OneKeySection):
    """Where events go; each sink has one key and gets all events."""

    WORD = "sink"

    jsonl: Annotated[JsonlSection | None, BeforeValidator(_file, json_schema_input_type=str | JsonlSection)] = None
    mqtt: MqttSection | None = None
    webhook: WebhookSection | None = None
    kafka: KafkaSection | None = None
    pictures: PicturesSection | None = None
    plugin: SinkPluginSection | None = None


def sink_settings(section: SinkSection) -> SinkSettings:
    """The settings to open the sink with."""
    if section.jsonl is not None:
        return JsonlSettings(section.jsonl.path, section.jsonl.limit)
    if section.pictures is not None:
        return PicturesSettings(section.pictures.folder, section.pictures.limit)
    if section.webhook is not None:
        hook = section.webhook
        return WebhookSettings(hook.url, hook.secret_file, hook.ca, hook.timeout)
    if section.mqtt is not None:
        return section.mqtt.settings
    if section.plugin is not None:
        return PluginSettings(section.plugin.name, section.plugin.options)
    assert section.kafka is not None  # noqa: S101  one of them, as the file was checked
    kafka = section.kafka
    files = TlsFiles(kafka.cert, kafka.key, kafka.ca) if kafka.tls else None
    return KafkaSettings(kafka.brokers, kafka.topic, files, kafka.user, kafka.password_file)
