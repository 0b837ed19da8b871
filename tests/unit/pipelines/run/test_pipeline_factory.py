"""Between the parts: results that come before the pipelines do, and conditions that cannot be evaluated."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from upwell.edge.spool.result_sinks import TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.run import pipeline_factory
from upwell.pipelines.run.pipeline_factory import LateResults, Where

PICTURE = np.zeros((4, 4, 3), np.uint8)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE)


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
    monkeypatch.setattr(pipeline_factory, "_BOUND_S", 0.0)
    with pytest.raises(TakeLater):
        results(result(3))
    assert taken == [1, 2]


def test_a_condition_that_cannot_be_evaluated_is_not_true_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    where_ = pytest.importorskip("upwell.pipelines.events.where_condition", exc_type=ImportError)
    where = Where(where_.ObjectCondition('object.digits.labl == "7"', ["digits"]), "pipeline dock, step keep")
    found = FoundObject("card", 0.9, (0, 0, 1, 1), answers={"digits": {"label": "7"}})
    assert [where(found, SCENE) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith("pipeline dock, step keep: the condition counts as false")
