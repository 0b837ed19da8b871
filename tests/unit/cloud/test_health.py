"""The health service: who watches and reads nothing keeps nobody else from an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health_pb2

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
        request: Any = health_pb2.HealthCheckRequest(service=service)
        context: Any = self
        self.thread = threading.Thread(target=health.watch, args=(request, context, self._send), daemon=True)
        self.thread.start()

    def add_callback(self, end: Callable[[], object]) -> bool:
        self.end = end
        return True

    def saw(self, *states: Any) -> bool:
        with self.news:
            return self.news.wait_for(lambda: self.seen == list(states), LIMIT_S)

    def _send(self, response: Any) -> None:
        self.sends.set()
        assert self.reads.wait(LIMIT_S)
        with self.news:
            self.seen.append(response.status)
            self.news.notify_all()


def test_a_client_that_reads_nothing_keeps_nobody_waiting() -> None:
    health = Health({"m": True})
    silent = Call(health, "m", reads=False)
    assert silent.sends.wait(LIMIT_S)
    other = Call(health, "m")
    assert other.saw(STATES.SERVING)
    request: Any = health_pb2.HealthCheckRequest(service="m")
    context: Any = None
    assert health.check(request, context).status == STATES.SERVING
    health.show("m", False)
    health.show("m", True)
    health.show("m", False)
    with other.news:
        assert other.news.wait_for(lambda: other.seen[-1] == STATES.NOT_SERVING, LIMIT_S)
    ends = threading.Thread(target=other.end, daemon=True)
    ends.start()
    ends.join(LIMIT_S)
    assert not ends.is_alive()  # gRPC's thread of events is the only one
    silent.reads.set()
    assert silent.saw(STATES.SERVING, STATES.NOT_SERVING)  # what it missed is replaced


def test_a_model_that_comes_is_told_to_who_watched_before() -> None:
    health = Health({})
    watch = Call(health, "late")
    assert watch.saw(STATES.SERVICE_UNKNOWN)
    health.show("late", True)
    assert watch.saw(STATES.SERVICE_UNKNOWN, STATES.SERVING)
    watch.end()
    health.show("late", False)
    assert watch.seen == [STATES.SERVICE_UNKNOWN, STATES.SERVING]


def test_the_end_is_told_before_it_begins_and_nothing_is_ready_after_it() -> None:
    health = Health({"m": True})
    watch = Call(health, "m")
    assert watch.saw(STATES.SERVING)
    health.enter_graceful_shutdown()
    assert watch.seen == [STATES.SERVING, STATES.NOT_SERVING]
    health.show("m", True)
    request: Any = health_pb2.HealthCheckRequest(service="m")
    context: Any = None
    assert health.check(request, context).status == STATES.NOT_SERVING
