"""Requests of an agent that compete for its link, with threads: who waits, who is woken, and what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.edge.agents import MODEL, UNSURE, Scene, policy, rows_of, scene, sides
from upwell.edge import Answer
from upwell.edge.observe.explain_text import tell
from upwell.edge.observe.flight_recorder import FlightRecorder
from upwell.edge.policy.router_service import RouterService
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudDropped, CloudSent
from upwell.shared.routing.scheduling.send_queue import QueuedMessage

LIMIT_S = 20.0
UP = "defaults: {deadline: 60s}\nrules: [{name: up, match: {}, route: cloud}]"
ROWS = 500
"""With the bytes of so many, a message keeps a link of 1 kB a second for longer than any test lasts."""


@contextmanager
def on_a_slow_link(text: str = UP) -> Iterator[Scene]:
    with scene(text) as at:
        for size_bytes in (100, 4100) * 4:
            at.agent.router.observe(CloudAnswered(MODEL, 1, size_bytes, 0.05 + size_bytes / 1000, 0.0))
        yield at


def asked(at: Scene, id: str) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(at.infer(rows_of(*[UNSURE] * ROWS), id=id)), daemon=True)
    thread.start()
    return thread, answers


def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    done = threading.Event()
    for _ in range(int(LIMIT_S * 200)):
        if holds():
            return
        done.wait(0.005)
    raise AssertionError("it does not come to that")


def test_a_message_waits_for_the_link_and_the_answer_to_the_one_before_it_wakes_it(tmp_path: Path) -> None:
    with on_a_slow_link() as at:
        recorder = at.agent.flight_recorder = FlightRecorder(tmp_path)
        at.cloud.hold()
        first, first_answers = asked(at, "one")
        until(lambda: len(at.cloud.requests) == 1)
        second, second_answers = asked(at, "two")
        until(lambda: bool(at.agent.router.state.queue.waiting))
        assert len(at.cloud.requests) == 1
        at.cloud.release()
        for thread in (first, second):
            thread.join(LIMIT_S)
        assert [sides(answers[0]) for answers in (first_answers, second_answers)] == ["c" * ROWS] * 2
        assert [request.id for request in at.cloud.requests] == ["one", "two"]
        assert not at.agent.router.state.queue.waiting
        assert recorder.find("one")["link_wait"] is None
        trace = recorder.find("two")
        size_bytes = at.agent.router.state.link.samples[-1].sent_bytes
        assert trace["link_wait"]["messages"] == 1
        assert trace["link_wait"]["size_bytes"] == size_bytes
        assert 0 < trace["link_wait"]["wait_s"] < trace["took_s"]
        said = [text for _, lines in tell(trace) for text in lines]
        assert any(f"behind 1 message of {size_bytes} bytes" in text for text in said)


def message(call: str, gain: float = 0.5) -> QueuedMessage:
    return QueuedMessage(call, "m", 1, 1000, gain, 0.05, float("inf"))


def test_whoever_goes_next_is_woken_by_each_outcome_until_its_own_is_told() -> None:
    woken: list[str] = []
    router = RouterService(policy(UP))
    for name, gain in (("low", 0.1), ("high", 0.9)):
        router.enqueue(message(name, gain), lambda name=name: woken.append(name))  # type: ignore[misc]  # mypy cannot tell what a default makes of a lambda
    router.observe(CloudSent("m", "another", 1, 1000))
    router.observe(CloudDropped("m", call="another"))
    assert woken == ["high", "high"]
    router.observe(CloudSent("m", "high", 1, 1000))
    assert woken[2:] == ["low"]
    router.observe(CloudDropped("m", call="low"))
    router.observe(CloudDropped("m", call="high"))
    assert woken[3:] == []
    assert not router.state.queue.waiting
