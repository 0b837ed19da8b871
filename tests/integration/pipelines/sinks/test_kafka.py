"""The Kafka sink before librdkafka's mock brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")

from confluent_kafka import KafkaError

from tests.integration.pipelines.sinks.clusters import Cluster, Consumed, cluster
from tests.unit.pipelines.sinks.outboxes import message
from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.kafka import KafkaPublisher
from upwell.pipelines.sinks.sink_settings import KafkaSettings
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError


@pytest.fixture(scope="module")
def there() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


@contextmanager
def publisher(settings: KafkaSettings) -> Iterator[KafkaPublisher]:
    with closing(KafkaPublisher(settings)) as sink:
        yield sink


def numbers(found: list[Consumed], pipeline: str) -> list[int]:
    return [json.loads(one.body)["sequence"] for one in found if one.pipeline == pipeline]


def test_after_a_failure_the_password_is_read_again(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = KafkaSettings(("127.0.0.1:9",), "events", user="dock", password_file=password, timeout_s=0.2)
    with publisher(settings) as sink:
        with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:9: "):
            sink.deliver([message(0)])
        password.unlink()
        with pytest.raises(SinkUnavailable, match=r"password: cannot read a password"):
            sink.deliver([message(0)])


def test_what_the_brokers_have_taken_counts_even_if_there_is_no_password_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch with a message that is too large each is sent by itself; else those before it would be sent twice."""
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = KafkaSettings(("127.0.0.1:9",), "events", user="dock", password_file=password)
    produce = KafkaPublisher._produce

    def refused(sink: KafkaPublisher, messages: Sequence[Message]) -> tuple[int, KafkaError | None]:
        monkeypatch.setattr(KafkaPublisher, "_produce", produce)
        sink.close()
        password.unlink()
        return 2, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)

    with publisher(settings) as sink:
        monkeypatch.setattr(KafkaPublisher, "_produce", refused)
        with pytest.raises(SinkUnavailable, match="cannot read a password") as away:
            sink.deliver([message(number) for number in range(4)])
    assert away.value.taken == 2


def test_a_pipeline_s_events_are_in_one_partition_in_order_with_their_keys(there: Cluster) -> None:
    with publisher(KafkaSettings((there.address,), "events")) as sink:
        for first in range(0, 60, 20):
            sink.deliver([message(number, pipeline) for number in range(first, first + 20) for pipeline in "ab"])
    found = there.consume("events", 120)
    for pipeline in "ab":
        assert numbers(found, pipeline) == list(range(60))
        assert len({one.partition for one in found if one.pipeline == pipeline}) == 1
    assert {one.key for one in found} == {f"{pipeline}-{number}" for number in range(60) for pipeline in "ab"}


def test_a_message_that_is_too_large_is_poisonous_and_those_before_it_are_taken(there: Cluster) -> None:
    with publisher(KafkaSettings((there.address,), "large")) as sink:
        with pytest.raises(Poisonous, match="too large") as caught:
            sink.deliver([message(0), message(1), message(2, padding_bytes=2_000_000), message(3)])
        assert caught.value.index == 2
        sink.deliver([message(3)])
    assert [*dict.fromkeys(numbers(there.consume("large", 3), "dock"))] == [0, 1, 3]


def test_brokers_that_fall_silent_are_given_up_in_time_and_order_is_kept_when_they_are_back() -> None:
    with cluster() as there, publisher(KafkaSettings((there.address,), "silent", timeout_s=3.0)) as sink:
        sink.deliver([message(0)])
        there.freeze()
        with pytest.raises(SinkUnavailable, match="do not acknowledge") as caught:
            sink.deliver([message(1), message(2)])
        assert caught.value.taken == 0
        there.thaw()
        sink.deliver([message(1), message(2)])
        assert [*dict.fromkeys(numbers(there.consume("silent", 3), "dock"))] == [0, 1, 2]


def test_after_a_failure_the_brokers_are_waited_for_before_anything_is_given_to_them() -> None:
    """So that the policy can be asked once they are back."""
    with cluster() as there, publisher(KafkaSettings((there.address,), "ready", timeout_s=2.0)) as sink:
        sink.get_ready()
        sink.deliver([message(0)])
        there.freeze()
        sink.get_ready()  # costs nothing as long as nothing has failed
        with pytest.raises(SinkUnavailable):
            sink.deliver([message(1)])
        with pytest.raises(SinkUnavailable, match=there.address):
            sink.get_ready()
        there.thaw()
        sink.get_ready()
        sink.deliver([message(1)])
        assert [*dict.fromkeys(numbers(there.consume("ready", 2), "dock"))] == [0, 1]


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        KafkaPublisher(KafkaSettings(("localhost:9092",), "events", TlsFiles(ca=tmp_path / "none.pem")))


def test_a_password_is_in_no_name_and_no_error(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2")
    settings = KafkaSettings(("127.0.0.1:9",), "events", None, "dock", password, timeout_s=0.1)
    with publisher(settings) as sink, pytest.raises(SinkUnavailable) as caught:
        sink.deliver([message(0)])
    assert "hunter2" not in sink.name + str(caught.value)
