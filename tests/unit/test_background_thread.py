"""A background thread goes on after a failure, says so without the failure's text, and is counted."""

from __future__ import annotations

import logging
import threading

import pytest

from upwell.edge.observe.agent_metrics import AgentMetrics
from upwell.shared.platform.background_thread import BackgroundThread, restarts
from upwell.shared.routing.decide.router_state import RouterState


def test_a_loop_that_fails_is_begun_again_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    went_on, ends = threading.Event(), threading.Event()
    failures = iter([ValueError("SECRET"), TypeError("SECRET")])

    def loop() -> None:
        for failure in failures:
            raise failure
        went_on.set()
        ends.wait()

    with caplog.at_level(logging.ERROR):
        thread = BackgroundThread("test-loop", loop)
        thread.start()
        assert went_on.wait(10.0)
    assert thread.is_alive()
    ends.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert restarts()["test-loop"] == 2
    assert "ValueError" in caplog.text
    assert "test_background_thread.py" in caplog.text  # where it was
    assert "SECRET" not in caplog.text
    metrics = AgentMetrics(RouterState).registry
    assert metrics.get_sample_value("upwell_thread_restarts_total", {"thread": "test-loop"}) == 2


def test_a_loop_that_is_over_is_not_begun_again() -> None:
    runs: list[int] = []

    def loop() -> None:
        runs.append(1)
        raise ValueError

    thread = BackgroundThread("test-over", loop, lambda: True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert len(runs) == 1
