"""Results that come before the pipelines do, or without any."""

from __future__ import annotations

import threading

import pytest

from upwell.edge.spool.result_sinks import TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.run import late_answers
from upwell.pipelines.run.late_answers import LateResults


def result(number: int) -> SpoolResult:
    return SpoolResult(number, str(number), "", "spool", "digits", "large", {}, "hard", 0.0, 1.0, "", b"", b"")


def test_results_without_pipelines_are_put_off_and_those_that_come_before_them_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results, taken = LateResults(), list[int]()
    early = threading.Thread(target=results, args=(result(1),))
    early.start()
    results.bind(lambda one: taken.append(one.sequence))
    early.join()
    results(result(2))
    results.unbind()
    monkeypatch.setattr(late_answers, "_BOUND_S", 0.0)
    with pytest.raises(TakeLater):
        results(result(3))
    assert taken == [1, 2]
