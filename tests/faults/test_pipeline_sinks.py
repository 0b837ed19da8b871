"""Sinks that are away for a while, and a process that is killed: every event that was kept is delivered, in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from subprocess import PIPE
from typing import IO

import pytest

from tests.integration.pipelines.sinks.brokers import MOSQUITTO, broker, needs_mosquitto, subscriber
from tests.integration.pipelines.sinks.child import PIPELINES, Orders, event
from tests.integration.pipelines.sinks.receivers import Receiver, Reply, receiver
from upwell.pipelines.sinks.base import Message
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.sinks.sink_opening import open_sinks
from upwell.pipelines.sinks.sink_settings import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    SinkSettings,
    WebhookSettings,
)

ROOT = Path(__file__).parents[2]
LIMITS = OutboxLimits(first_pause_s=0.05, longest_pause_s=0.5)
WAIT_S = 60.0
AHEAD = 6  # how many events a program that is to be killed may put before any is heard of


@dataclass
class Said:
    """What the program has said it would put, in order and by key, and which of these it has kept."""

    put: dict[str, tuple[str, int]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    is_idle: bool = False

    def hear(self, lines: Iterable[str]) -> Iterator[str]:
        """Read; yields the key of each event that is kept."""
        for line in lines:
            if not line.endswith("\n"):
                continue  # cut short by the kill: it was said to nobody
            match line.split():
                case ["put", pipeline, sequence, key]:
                    self.put[key] = (pipeline, int(sequence))
                case ["kept", key]:
                    self.kept.add(key)
                    yield key
                case ["idle"]:
                    self.is_idle = True


@contextmanager
def program(orders: Orders, said: Said) -> Iterator[tuple[IO[str], IO[str]]]:
    """Input and output of the program, which is killed at the end of the block and heard to its last word."""
    arguments = [sys.executable, "-m", "tests.integration.pipelines.sinks.child", orders.encode()]
    with subprocess.Popen(arguments, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child.stdin, child.stdout
        finally:
            child.kill()
            deque(said.hear(child.stdout), maxlen=0)


def run_until_killed(orders: Orders, said: Said, kill_after: int) -> None:
    """Kill it when it has kept so many events, while it is putting the next ones: it has leave for a few only."""
    with program(orders, said) as (leave, output):
        leave.write(AHEAD * ".")
        leave.flush()
        for _ in islice(said.hear(output), kill_after):
            leave.write(".")
            leave.flush()


def run_to_the_end(orders: Orders, said: Said) -> None:
    with program(orders, said) as (leave, output):
        leave.close()
        deque(said.hear(output), maxlen=0)


def check(received: list[tuple[str, bytes]], said: Said) -> int:
    """What a sink received by key, against what was said; how many were duplicates."""
    first: dict[str, bytes] = {}
    for key, body in received:
        assert first.setdefault(key, body) == body, "one key, two bodies"
        assert json.loads(body)["id"] == key
    assert said.kept <= first.keys() <= said.put.keys(), "an event is lost, or one was invented"
    for pipeline in PIPELINES:
        sequences = [said.put[key][1] for key in first if said.put[key][0] == pipeline]
        assert sequences == sorted(set(sequences)), f"the order of {pipeline} is not kept"
    return len(received) - len(first)


def lines(path: Path) -> list[tuple[str, bytes]]:
    return [(json.loads(line)["id"], line) for line in path.read_bytes().splitlines()]


def posts(there: Receiver) -> list[tuple[str, bytes]]:
    return [(one.headers["idempotency-key"], one.body) for one in there.taken]


def kill_often(folder: Path, kills: int, last: int) -> None:
    dice = random.Random(kills)
    said = Said()
    with ExitStack() as stack:
        hook = stack.enter_context(receiver())
        # Now and then it fails.
        hook.reply = lambda _: Reply(503 if dice.random() < 0.02 else 200)
        port = stack.enter_context(broker(folder)).port if MOSQUITTO else 0
        listener = stack.enter_context(subscriber(port)) if MOSQUITTO else None
        orders = Orders(str(folder), last, hook.port, port)
        share = len(PIPELINES) * last // kills - AHEAD
        for _ in range(kills):
            run_until_killed(orders, said, dice.randint(share // 2, share))
            assert not said.is_idle
        run_to_the_end(orders, said)
        assert said.is_idle
        assert len(said.kept) >= last
        check(lines(folder / "events.jsonl"), said)
        check(posts(hook), said)
        if listener is not None:
            listener.wait(lambda: said.kept <= {one.key for one in listener.events})
            check([(one.key, one.body) for one in listener.events], said)


def test_no_event_is_lost_or_invented_in_two_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=2, last=60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_event_of_two_thousand_is_lost_or_invented_in_ten_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=10, last=1000)


def put_under_load(box: Outbox, said: Said, ended: threading.Event, rate_per_s: float) -> None:
    while not ended.wait(1 / rate_per_s):
        for pipeline in PIPELINES:
            message: Message = event(pipeline, box.next_sequence(pipeline))
            said.put[message.key] = (pipeline, message.sequence)
            box.put([message])
            said.kept.add(message.key)


class Load:
    """Events of both pipelines at a rate, from a thread, until the end of the block."""

    def __init__(self, box: Outbox, rate_per_s: float) -> None:
        self.said = Said()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=put_under_load, args=(box, self.said, self._ended, rate_per_s))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Return when so many more are kept."""
        target = len(self.said.kept) + count
        while len(self.said.kept) < target:
            time.sleep(0.01)


def cut_webhook(folder: Path, outage_s: float, rate_per_s: float) -> None:
    hook = Receiver()
    settings: list[SinkSettings] = [
        WebhookSettings(f"http://127.0.0.1:{hook.port}/"),
        JsonlSettings(folder / "events.jsonl"),
    ]
    box = Outbox(folder / "outbox.db", open_sinks(dict.fromkeys(PIPELINES, settings)), LIMITS, lambda _: True)
    try:
        with Load(box, rate_per_s) as load:
            load.wait_for(20)
            cut = threading.Event()
            hook.reply = lambda _: Reply(503 if cut.is_set() else 200)
            cut.set()
            time.sleep(outage_s / 2)  # first it answers that it cannot,
            hook.hang_up()
            time.sleep(outage_s / 2)  # and then nobody listens there
            before = hook
            hook = Receiver(before.port)
            load.wait_for(20)
        assert box.flush(WAIT_S)
        counts = box.counts()
    finally:
        box.close()
        hook.close()
    assert all(one.delivered == one.put == len(load.said.kept) for one in counts.values())
    assert max(one.failures for one in counts.values()) > 0
    check(posts(before) + posts(hook), load.said)
    assert check(lines(folder / "events.jsonl"), load.said) == 0


def test_a_webhook_that_is_away_gets_all_events_when_it_is_back(tmp_path: Path) -> None:
    cut_webhook(tmp_path, outage_s=0.4, rate_per_s=100.0)


@pytest.mark.slow
def test_a_webhook_that_is_away_for_a_minute_gets_all_events_when_it_is_back(tmp_path: Path) -> None:
    cut_webhook(tmp_path, outage_s=60.0, rate_per_s=100.0)


def cut_broker(folder: Path, outage_s: float, rate_per_s: float) -> None:
    with broker(folder) as there, subscriber(there.port) as listener:
        settings = [MqttSettings(f"mqtt://127.0.0.1:{there.port}", "{pipeline}/{event}", timeout_s=1.0)]
        box = Outbox(folder / "outbox.db", open_sinks(dict.fromkeys(PIPELINES, settings)), LIMITS, lambda _: True)
        try:
            with Load(box, rate_per_s) as load:
                listener.wait(lambda: len(listener.events) >= 20)
                there.stop()
                time.sleep(outage_s)
                there.start()
                load.wait_for(20)
            assert box.flush(WAIT_S)
            [counts] = box.counts().values()
        finally:
            box.close()
        listener.wait(lambda: load.said.kept <= {one.key for one in listener.events})
        assert counts.delivered == counts.put == len(load.said.kept)
        check([(one.key, one.body) for one in listener.events], load.said)


@needs_mosquitto
def test_a_broker_that_is_away_gets_all_events_when_it_is_back(tmp_path: Path) -> None:
    cut_broker(tmp_path, outage_s=0.5, rate_per_s=100.0)


@needs_mosquitto
@pytest.mark.slow
def test_a_broker_that_is_away_for_a_minute_gets_all_events_when_it_is_back(tmp_path: Path) -> None:
    cut_broker(tmp_path, outage_s=60.0, rate_per_s=100.0)


@pytest.mark.slow
def test_a_kafka_cluster_that_is_silent_for_a_minute_gets_all_events_when_it_is_back(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")
    from tests.integration.pipelines.sinks.clusters import cluster

    with cluster() as there:
        settings = [KafkaSettings((there.address,), "events", timeout_s=2.0)]
        box = Outbox(tmp_path / "outbox.db", open_sinks(dict.fromkeys(PIPELINES, settings)), LIMITS, lambda _: True)
        try:
            with Load(box, 100.0) as load:
                load.wait_for(20)
                there.freeze()
                time.sleep(60.0)
                there.thaw()
                load.wait_for(20)
            assert box.flush(WAIT_S)
        finally:
            box.close()
        check([(one.key, one.body) for one in there.consume("events", len(load.said.kept))], load.said)
