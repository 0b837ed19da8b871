"""Between the parts: results that come before the pipelines do, and conditions that cannot be evaluated."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from upwell.edge.spool.item import SpoolResult
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.run.assembly import LateResults, Where

PICTURE = np.zeros((4, 4, 3), np.uint8)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE)


def result(number: int) -> SpoolResult:
    return SpoolResult(number, str(number), "", "spool", "digits", "large", {}, "hard", 0.0, 1.0, "", b"", b"")


def test_results_that_come_while_pipelines_are_made_are_all_taken() -> None:
    for _ in range(20):
        results, taken = LateResults(), list[int]()

        def come(results: LateResults = results) -> None:
            for number in range(500):
                results(result(number))

        thread = threading.Thread(target=come)
        thread.start()
        results.bind(lambda one, taken=taken: taken.append(one.sequence))  # type: ignore[misc]  # bound now
        thread.join()
        assert sorted(taken) == list(range(500))


def test_a_condition_that_cannot_be_evaluated_is_not_true_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    where_ = pytest.importorskip("upwell.pipelines.events.where", exc_type=ImportError)
    where = Where(where_.ObjectCondition('object.digits.labl == "7"', ["digits"]), "pipeline dock, step keep")
    found = FoundObject("card", 0.9, (0, 0, 1, 1), answers={"digits": {"label": "7"}})
    assert [where(found, SCENE) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith("pipeline dock, step keep: its condition counts as not true")
