"""A Kafka cluster of librdkafka's mock brokers in a process of its own, and what has come there.

As a program: keeps such a cluster until its standard input ends, and prints its address.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_S = 20.0


@dataclass(frozen=True)
class Consumed:
    """A message of a topic."""

    partition: int
    offset: int
    pipeline: str
    key: str
    body: bytes


class Cluster:
    """The child process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address

    def freeze(self) -> None:
        """Let it be silent, with all connections open, as after a cut of the network."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # the signal alone stops its threads a moment later

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.thaw()
        self._process.kill()
        self._process.communicate()

    def consume(self, topic: str, number: int) -> list[Consumed]:
        """The messages of the topic, at least so many, in the order of each partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "test", "auto.offset.reset": "earliest",
             "fetch.wait.max.ms": 20, "enable.partition.eof": True}
        )  # fmt: skip
        found: list[Consumed] = []
        try:
            partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            ends: set[int] = set()
            until_s = time.monotonic() + WAIT_S
            while (len(found) < number or ends != set(partitions)) and time.monotonic() < until_s:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    ends.add(int(message.partition() or 0))
                    continue
                key = dict(message.headers() or [])["idempotency-key"]
                found.append(
                    Consumed(
                        int(message.partition() or 0), int(message.offset() or 0), (message.key() or b"").decode(),
                        key.decode() if isinstance(key, bytes) else "", message.value() or b"",
                    )
                )  # fmt: skip
        finally:
            consumer.close()
        return found


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster, ended at the end."""
    found = Cluster()
    try:
        yield found
    finally:
        found.close()


if __name__ == "__main__":
    holder = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = holder.list_topics(timeout=WAIT_S).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    sys.stdin.read()
