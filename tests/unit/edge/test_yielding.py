"""The agent among threads of which one is at work at a time: while a request waits, others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.unit.edge.agents import MODEL, SURE, UNSURE, busy, edge_model, rows_of, scene
from upwell.edge.server.core import AgentCore
from upwell.edge.server.dataplane import AgentDataplane
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.platform.call_threads import CallThreads

LIMIT_S = 10.0
DEADLINE = "defaults: {deadline: 60s}"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallThreads]:
    """Threads that find out of none that it waits, unless it says so."""
    monkeypatch.setattr(CallThreads, "watch", lambda _: None)
    pool = CallThreads(8, "test", at_work=1)
    yield pool
    pool.shutdown(wait=False)


def asking(threads: CallThreads, agent: AgentCore, row: tuple[float, ...]) -> Future[None]:
    """A request on its way; its future ends with it."""
    ended: Future[None] = Future()

    def ask() -> None:
        try:
            AgentDataplane(agent).infer(InferRequest(MODEL, rows_of(row)), Call())
        finally:
            ended.set_result(None)

    threads.submit(ask)
    return ended


def another_runs(threads: CallThreads) -> bool:
    """Whether one more task begins."""
    begun = threading.Event()
    threads.submit(begun.set)
    return begun.wait(LIMIT_S)


def test_while_one_waits_for_the_cloud(threads: CallThreads) -> None:
    with scene(DEADLINE) as at:
        for _ in range(20):  # from then on its run is known to be short
            asking(threads, at.agent, SURE).result(LIMIT_S)
        at.cloud.hold()
        waits = asking(threads, at.agent, UNSURE)
        assert at.cloud.arrived(1, LIMIT_S)
        assert another_runs(threads)
        assert not waits.done()
        at.cloud.release()
        waits.result(LIMIT_S)


def test_while_one_waits_for_the_device(threads: CallThreads) -> None:
    edge = edge_model()
    with scene(DEADLINE, edge=edge) as at:
        for _ in range(20):
            asking(threads, at.agent, SURE).result(LIMIT_S)
        with busy(edge):
            waits = asking(threads, at.agent, SURE)
            assert another_runs(threads)
            assert not waits.done()
        waits.result(LIMIT_S)


def test_while_one_runs_for_long(threads: CallThreads) -> None:
    gate = threading.Event()
    with scene(DEADLINE, edge=edge_model(gate=gate)) as at:
        runs = asking(threads, at.agent, SURE)
        assert another_runs(threads)
        assert not runs.done()
        gate.set()
        runs.result(LIMIT_S)
