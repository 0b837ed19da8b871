"""The health service: who watches and reads nothing keeps nobody else from an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from upwell.cloud.workers import health_and_reflection
from upwell.cloud.workers.health_and_reflection import Health

STATES = health_pb2.HealthCheckResponse
LIMIT_S = 10.0


class Call:
    """A watch whose client takes messages while it `reads`; it ends with `end`, as gRPC's thread of events does it."""

    def __init__(self, health: Health, service: str, *, reads: bool = True) -> None:
        self.seen: list[Any] = []
        self.reads = threading.Event()
        self.sends = threading.Event()
        self.news = threading.Condition()
        self.end: Callable[[], object] = lambda: None
        if reads:
            self.reads.set()
        context: Any = self
        responses = health.watch(asking(service), context)
        self.thread = threading.Thread(target=self._send, args=(responses,), daemon=True)
        self.thread.start()

    def add_callback(self, end: Callable[[], object]) -> bool:
        self.end = end
        return True

    def saw(self, *states: Any) -> bool:
        with self.news:
            return self.news.wait_for(lambda: self.seen == list(states), LIMIT_S)

    def _send(self, responses: Iterator[Any]) -> None:
        for response in responses:
            self.sends.set()
            if not self.reads.wait(LIMIT_S):
                return  # this client never reads
            with self.news:
                self.seen.append(response.status)
                self.news.notify_all()


def asking(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


def state(health: Health, service: str) -> Any:
    context: Any = None
    return health.check(asking(service), context).status


def has_ended(thread: threading.Thread) -> bool:
    thread.join(LIMIT_S)
    return not thread.is_alive()


def test_a_client_that_reads_nothing_keeps_nobody_waiting() -> None:
    health = Health({"m": True})
    silent = Call(health, "m", reads=False)
    assert silent.sends.wait(LIMIT_S)
    other = Call(health, "m")
    assert other.saw(STATES.SERVING)
    assert state(health, "m") == STATES.SERVING
    health.show("m", False)
    health.show("m", True)
    health.show("m", False)
    with other.news:
        assert other.news.wait_for(lambda: other.seen[-1] == STATES.NOT_SERVING, LIMIT_S)
    ends = threading.Thread(target=other.end, daemon=True)
    ends.start()
    assert has_ended(ends)  # gRPC's thread of events is the only one
    silent.reads.set()
    assert silent.saw(STATES.SERVING, STATES.NOT_SERVING)  # what it missed is replaced


def test_a_model_that_comes_is_told_to_who_watched_before() -> None:
    health = Health({})
    watch = Call(health, "late")
    assert watch.saw(STATES.SERVICE_UNKNOWN)
    health.show("late", True)
    assert watch.saw(STATES.SERVICE_UNKNOWN, STATES.SERVING)
    watch.end()
    assert has_ended(watch.thread)
    health.show("late", False)
    assert watch.seen == [STATES.SERVICE_UNKNOWN, STATES.SERVING]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "leaves"])
def test_the_end_waits_for_all_who_watch_and_nothing_is_ready_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(health_and_reflection, "_TELLING_S", 10 * LIMIT_S)
    health = Health({"m": True})
    slow, watch = Call(health, "m", reads=False), Call(health, "m")
    assert slow.sends.wait(LIMIT_S)
    assert watch.saw(STATES.SERVING)
    ends = threading.Thread(target=health.enter_graceful_shutdown, daemon=True)
    ends.start()
    assert watch.saw(STATES.SERVING, STATES.NOT_SERVING)
    health.show("m", True)
    assert state(health, "m") == state(health, "") == STATES.NOT_SERVING
    assert ends.is_alive()
    if reads:
        slow.reads.set()
    else:
        watch.end()
        assert has_ended(watch.thread)
        slow.end()
    assert has_ended(ends)
    assert watch.seen == [STATES.SERVING, STATES.NOT_SERVING]
    assert slow.seen == (watch.seen if reads else [])


def test_the_end_does_not_wait_for_ever_for_a_client_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_and_reflection, "_TELLING_S", 0.01)
    health = Health({"m": True})
    silent = Call(health, "m", reads=False)
    assert silent.sends.wait(LIMIT_S)
    health.enter_graceful_shutdown()
    assert silent.seen == []
    silent.reads.set()
    assert silent.saw(STATES.SERVING, STATES.NOT_SERVING)
