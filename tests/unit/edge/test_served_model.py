"""The device's side of a model: one run at a time, and what of the cloud is believed."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.edge.agents import SURE, busy, edge_model, rows_of
from upwell.edge.models.edge_model import EdgeModel, ModelSource
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.shared.errors import DeadlineExceeded, InvalidRequest, ModelFailed
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec, oip_datatype


def test_a_run_takes_the_scheduler_and_gives_it_back() -> None:
    edge = edge_model()
    run = edge.run(rows_of(SURE), math.inf)
    assert run.duration_s > 0
    np.testing.assert_array_equal(run.outputs["fp64"], [[-1.0]])
    assert edge.scheduler.queue.ahead == 0


def test_a_run_that_fails_gives_the_scheduler_back() -> None:
    edge = edge_model(failure="no power")
    with pytest.raises(ModelFailed, match="no power"):
        edge.run(rows_of(SURE), math.inf)
    with pytest.raises(InvalidRequest):
        edge.run({"fp32": np.zeros((1, 4), np.float32)}, math.inf)
    assert edge.scheduler.queue.ahead == 0


def test_a_run_that_gets_no_turn_costs_nothing() -> None:
    edge = edge_model()
    with busy(edge), pytest.raises(DeadlineExceeded):
        edge.run(rows_of(SURE), 0.0)
    assert isinstance(edge.runtime, FakeRuntime)
    assert edge.runtime.runs == 0


def bare(dtype: npt.DTypeLike) -> EdgeModel:
    """A model of its own tensors, without a description."""
    spec = TensorSpec("y", oip_datatype(np.dtype(dtype)), (-1, 2))
    fake = FakeRuntime(lambda inputs: inputs, [spec], [spec])
    return EdgeModel(fake, Processor(None, [spec], [spec], "onnx"), ModelSource(""))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_an_answer_of_the_cloud_that_is_not_finite_is_not_believed(dtype: npt.DTypeLike, bad: float) -> None:
    edge = bare(dtype)
    edge.check_cloud({"y": np.array([[1, 2]]).astype(dtype)}, 1)
    with pytest.raises(ModelFailed, match="not finite"):
        edge.check_cloud({"y": np.array([[1, bad]]).astype(dtype)}, 1)


def test_a_plain_tensor_that_is_described_as_such_may_hold_anything() -> None:
    edge = edge_model()
    edge.check_cloud({"fp32": np.array([SURE], np.float32), "fp64": np.array([[math.nan]])}, 1)
    with pytest.raises(ModelFailed, match="'fp32' contains values that are not finite"):
        edge.check_cloud({"fp32": np.array([[math.nan, 0, 1]], np.float32), "fp64": np.array([[0.0]])}, 1)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_answer_with_other_rows_is_not_believed(rows: int) -> None:
    outputs = {name: np.repeat(array, rows, axis=0) for name, array in rows_of(SURE).items()}
    with pytest.raises(ModelFailed, match=f"expected 2 rows, got {rows}"):
        edge_model().check_cloud(outputs, 2)
