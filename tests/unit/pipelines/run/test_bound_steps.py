"""Steps bound to models: conditions that cannot be evaluated."""

from __future__ import annotations

import numpy as np
import pytest

from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.run.bound_steps import Where

PICTURE = np.zeros((4, 4, 3), np.uint8)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE)


def test_a_condition_that_cannot_be_evaluated_is_not_true_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    where_ = pytest.importorskip("upwell.pipelines.events.where_condition", exc_type=ImportError)
    where = Where(where_.ObjectCondition('object.digits.labl == "7"', ["digits"]), "pipeline dock, step keep")
    found = FoundObject("card", 0.9, (0, 0, 1, 1), answers={"digits": {"label": "7"}})
    assert [where(found, SCENE) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith("pipeline dock, step keep: the condition counts as false")
