"""The arithmetic of the report: errors, agreement, accuracy, and what is added by which layer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.quantize.data_files import FEWEST_TO_HOLD_OUT, MOST_CALIBRATION_ROWS, Samples, read_samples
from upwell.tools.quantize.quantization_error import ErrorSummary, compared
from upwell.tools.quantize.quantizer import FloatModel, Layer, added_error

numbers = arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(-100, 100, width=32))


@given(numbers, st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_a_difference_in_parts_is_that_of_the_whole(expected: Array, seed: int, parts: int) -> None:
    got = expected + np.random.default_rng(seed).standard_normal(expected.shape).astype(np.float32)
    difference = ErrorSummary()
    for one, other in zip(np.array_split(expected, parts), np.array_split(got, parts), strict=True):
        difference.add(one, other)
    norm = np.linalg.norm(expected.astype(np.float64))
    if norm:
        wanted = np.linalg.norm(got.astype(np.float64) - expected.astype(np.float64)) / norm
        assert difference.relative == pytest.approx(wanted, rel=1e-9)
    else:
        assert math.isnan(difference.relative)


def test_zeros_that_stay_zeros_have_no_error() -> None:
    difference = ErrorSummary()
    difference.add(np.zeros(3, np.float32), np.zeros(3, np.float32))
    assert difference.relative == 0


def test_uncorrelated_noise_adds_up_as_the_estimate_says() -> None:
    random = np.random.default_rng(0)
    signal = random.standard_normal(100_000)
    first = signal + 0.03 * random.standard_normal(signal.shape)
    second = first + 0.04 * random.standard_normal(signal.shape)
    errors = [float(np.linalg.norm(one - signal) / np.linalg.norm(signal)) for one in (first, second)]
    assert errors[1] == pytest.approx(0.05, rel=0.02)
    assert added_error(errors[1], [errors[0], 0.0, math.nan]) == pytest.approx(0.04, rel=0.02)
    assert added_error(0.02, [0.03]) == 0


def test_decibels() -> None:
    assert Layer("n", "Conv", "int8", 0.01, 0.0).sqnr_db == pytest.approx(40)
    assert Layer("n", "Conv", "int8", 0.0, 0.0).sqnr_db == math.inf


def model_of(*shapes: tuple[int, ...], path: Path = Path("model.onnx")) -> FloatModel:
    """A model with one input `x` of the first shape and outputs `y0`, `y1`, ... of the others."""
    specs = [TensorSpec(f"y{index}", "FP32", shape) for index, shape in enumerate(shapes[1:])]
    return FloatModel(path, "onnx", 0, [TensorSpec("x", "FP32", shapes[0])], specs, lambda feed: feed)


def samples_of(folder: Path, model: FloatModel, **data: Any) -> Samples:
    np.savez(folder / "data.npz", **data)
    return read_samples(folder / "data.npz", model)


@given(rows=st.integers(1, 3000), choosing=st.booleans())
def test_no_row_serves_two_purposes(rows: int, choosing: bool) -> None:
    samples = object.__new__(Samples)
    samples.count = rows
    first, chosen_on, measured = samples.split(choosing)
    if rows < FEWEST_TO_HOLD_OUT:
        assert list(first) == list(measured) == list(range(rows))
    else:
        assert sorted([*first, *chosen_on, *measured]) == list(range(rows))
        assert len(first) == min(rows // 2, MOST_CALIBRATION_ROWS)
        assert measured
    assert bool(chosen_on) == choosing


@pytest.mark.parametrize(("leading", "runs"), [((-1,), 5), ((1,), 5), ((2,), 5), ((), 5)])
def test_rows_become_runs(tmp_path: Path, leading: tuple[int, ...], runs: int) -> None:
    """A model that fixes two rows and describes none takes [N, 2, 3]: what one run takes, N times."""
    data = np.arange(5 * (2 if leading == (2,) else 1) * 3, dtype=np.float32).reshape(5, -1, 3)
    data = data if leading == (2,) else data[:, 0]
    samples = samples_of(tmp_path, model_of((*leading, 3), (*leading, 3)), x=data)
    feeds = [samples.case(run).feed["x"] for run in samples.runs(range(5))]
    assert len(feeds) == runs
    assert {feed.shape for feed in feeds} == {(*(abs(size) for size in leading), 3)}
    np.testing.assert_array_equal(np.concatenate([feed.ravel() for feed in feeds]), data.ravel())


def test_accuracy_and_agreement_are_counted_by_hand(tmp_path: Path) -> None:
    model = model_of((-1, 3), (-1, 3))
    scores = np.array([[3, 2, 1], [1, 3, 2], [1, 2, 3], [3, 1, 2]], np.float32)
    after = np.array([[3, 2, 1], [3, 1, 2], [1, 2, 3], [1, 3, 2]], np.float32)
    samples = samples_of(tmp_path, model, x=scores, labels=np.array([0, 0, 2, 0]))
    lines = iter(after)
    comparison = compared(
        lambda feed: {"y0": feed["x"]},
        lambda _: {"y0": next(lines)[None]},
        samples,
        map(samples.case, samples.runs(range(4))),
    )
    assert comparison.accuracy is not None
    assert (comparison.accuracy.before, comparison.accuracy.after, comparison.accuracy.count) == (0.75, 0.75, 4)
    (output,) = comparison.outputs
    assert output.agreement == 0.5
    assert output.relative_error == pytest.approx(np.linalg.norm(after - scores) / np.linalg.norm(scores))


def test_a_column_of_numbers_has_no_largest_score(tmp_path: Path) -> None:
    samples = samples_of(tmp_path, model_of((-1, 1), (-1, 1)), x=np.ones((4, 1), np.float32))
    run = lambda feed: {"y0": feed["x"]}  # noqa: E731  as short as what it says
    comparison = compared(run, run, samples, map(samples.case, samples.runs(range(4))))
    assert comparison.outputs[0].agreement is None
    assert comparison.worst_agreement == 1.0


def test_a_probability_of_one_half_is_the_second_class_as_in_answers(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(
        "version: 1\nsignature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 1]}}, "
        "outputs: {y0: {kind: probabilities}}}\n"
    )
    model = model_of((-1, 1), (-1, 1), path=tmp_path / "model.onnx")
    samples = samples_of(tmp_path, model, x=np.array([[0.5], [0.75]], np.float32), labels=np.array([1, 1]))
    comparison = compared(
        lambda feed: {"y0": feed["x"]},
        lambda feed: {"y0": np.full_like(feed["x"], 0.5)},  # INT8 often gives just that
        samples,
        map(samples.case, samples.runs(range(2))),
    )
    assert comparison.accuracy is not None
    assert (comparison.accuracy.before, comparison.accuracy.after) == (1, 1)
    assert comparison.outputs[0].agreement == 1


@pytest.mark.parametrize(
    ("shape", "classes"),
    [((1, 9, 3, 3), 1), ((1, 3, 3, 9), 3), ((1, 9, 1, 1), 1), ((1, 1, 1, 9), 3), ((1, 3, 9, 5), 1)],
)
def test_maps_are_compared_along_their_classes(tmp_path: Path, shape: tuple[int, ...], classes: int) -> None:
    model = model_of((-1, 2), (-1, *shape[1:]))
    samples = samples_of(tmp_path, model, x=np.zeros((1, 2), np.float32))
    before = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    after = np.roll(before, 1, classes)  # another class has the largest score everywhere
    comparison = compared(lambda _: {"y0": before}, lambda _: {"y0": after}, samples, [samples.case([0])])
    assert comparison.outputs[0].agreement == 0


def test_outputs_of_another_size_count_as_lost(tmp_path: Path) -> None:
    samples = samples_of(tmp_path, model_of((-1, 2), (-1, 2)), x=np.ones((1, 2), np.float32))
    comparison = compared(
        lambda feed: {"y0": feed["x"]}, lambda feed: {"y0": feed["x"][:, :1]}, samples, [samples.case([0])]
    )
    assert comparison.worst_error == math.inf


def test_values_that_are_not_finite_before_are_counted_and_left_out(tmp_path: Path) -> None:
    samples = samples_of(tmp_path, model_of((-1, 3), (-1, 3)), x=np.ones((1, 3), np.float32))
    before, after = np.array([[1, np.nan, np.inf]], np.float32), np.array([[1.5, 0, np.inf]], np.float32)
    comparison = compared(lambda _: {"y0": before}, lambda _: {"y0": after}, samples, [samples.case([0])])
    assert comparison.outputs[0].not_finite == 2
    assert comparison.worst_error == 0.5
