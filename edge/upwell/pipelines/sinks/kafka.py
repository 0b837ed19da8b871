"""Sends events to Kafka."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from upwell.pipelines.mqtt_broker import read_password
from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.sink_settings import KafkaSettings
from upwell.shared.errors import ConfigError

_POISONOUS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG})
_SILENCE = KafkaError(KafkaError._TIMED_OUT, "the brokers do not acknowledge")
_log = logging.getLogger(__name__)


class KafkaPublisher:
    """Produces each message's body with an idempotent producer. A message counts once all in-sync replicas have it.

    The key is the pipeline, so that its events share a partition and keep their order. The headers `idempotency-key`
    and `event` hold the message's own. After a failure the password is read again. Raises `ConfigError`.
    """

    leaves_device = True
    sends_together = True

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Producer | None = _connecting(settings)
        self._is_known_there = False
        self._brokers = ",".join(settings.brokers)
        self.name = f"kafka:{self._brokers}:{settings.topic}"

    def get_ready(self) -> None:
        """Wait for the brokers, at most `timeout_s`, before the first message and after a failure. Raises
        `SinkUnavailable`.
        """
        if self._is_known_there:
            return
        try:
            self._connected().list_topics(self._settings.topic, self._settings.timeout_s)
        except KafkaException as away:
            self.close()
            raise SinkUnavailable(f"{self._brokers}: {away.args[0].str()}") from None
        self._is_known_there = True

    def deliver(self, messages: Sequence[Message]) -> None:
        """Produce these messages and wait for the brokers, at most `timeout_s` unless one is too large."""
        taken, error = self._produce(messages)
        if _is_poisonous(error) and len(messages) > 1:  # said of a whole batch because of one message
            error = None
            while error is None and taken < len(messages):
                try:
                    one, error = self._produce(messages[taken : taken + 1])
                except SinkUnavailable as away:
                    raise SinkUnavailable(str(away), taken=taken) from None
                taken += one
        if error is None:
            return
        if _is_poisonous(error):
            raise Poisonous(taken, f"the broker answered: {error.str()}")
        raise SinkUnavailable(f"{self._brokers}: {error.str()}", taken=taken)

    def close(self) -> None:
        """Discard what is not sent yet, which is still in the outbox, and disconnect."""
        producer, self._producer, self._is_known_there = self._producer, None, False
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def _produce(self, messages: Sequence[Message]) -> tuple[int, KafkaError | None]:
        """How many messages from the start the brokers have, and the first error."""
        producer = self._connected()
        outcomes: dict[int, KafkaError | None] = {}
        for index, message in enumerate(messages):
            try:
                producer.produce(
                    self._settings.topic,
                    message.body,
                    message.pipeline.encode(),
                    headers=[("idempotency-key", message.key.encode()), ("event", message.event.encode())],
                    on_delivery=partial(_note, outcomes, index),
                )
            except KafkaException as refused:  # too large for the client itself
                outcomes[index] = refused.args[0]
                break
        producer.flush(self._settings.timeout_s)
        for index in range(len(messages)):
            error = outcomes.get(index, _SILENCE)
            if error is not None:
                # The producer would still send later what it holds, whatever the policy says by then. And nothing may
                # overtake the message that failed.
                self.close()
                return index, error
        return len(messages), None

    def _connected(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = _connecting(self._settings)
            except ConfigError as wrong:  # a certificate or the password was removed
                raise SinkUnavailable(str(wrong)) from None
        return self._producer


def _note(outcomes: dict[int, KafkaError | None], index: int, error: KafkaError | None, _: object) -> None:
    outcomes[index] = error


def _is_poisonous(error: KafkaError | None) -> bool:
    return error is not None and error.code() in _POISONOUS


def _connecting(settings: KafkaSettings) -> Producer:
    """A producer that connects when it has something to send. Raises `ConfigError`."""
    try:
        return Producer(_options(settings), logger=_log)
    except KafkaException as error:
        raise ConfigError.at(None, error.args[0].str()) from None


def _options(settings: KafkaSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(settings.brokers),
        "client.id": "upwell",
        "enable.idempotence": True,
        "message.timeout.ms": 0,  # `deliver` times out: the next message would overtake one timed out here
        "socket.timeout.ms": max(1000, round(1e3 * settings.timeout_s)),
        "security.protocol": "plaintext" if settings.tls is None else "ssl",
    }
    if settings.tls is not None:
        files = {"ca": settings.tls.ca, "certificate": settings.tls.cert, "key": settings.tls.key}
        options |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
    if settings.user is not None and settings.password_file is not None:
        options |= {
            "security.protocol": f"sasl_{options['security.protocol']}",
            "sasl.mechanism": "PLAIN",
            "sasl.username": settings.user,
            "sasl.password": read_password(settings.password_file),
        }
    return options
