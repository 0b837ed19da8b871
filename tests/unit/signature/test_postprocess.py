"""Steps after the model, each against what it says it computes."""

from typing import Any

import numpy as np
import pytest

from upwell.shared.errors import ModelFailed
from upwell.shared.signature.model_yaml import Dequantize
from upwell.shared.signature.postprocess import dequantize, label_of, sigmoid, softmax, top_k
from upwell.shared.tensors import Array

INF = np.inf


def f16(values: Any) -> Array:
    return np.array(values, dtype=np.float16)


def f32(values: Any) -> Array:
    return np.array(values, dtype=np.float32)


def test_softmax_is_its_formula() -> None:
    x = np.random.default_rng(0).normal(0, 5, (4, 3, 7)).astype(np.float32)
    e = np.exp(x.astype(np.float64))
    result = softmax(x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, e / e.sum(axis=-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1000.0, 1000.0], [0.5, 0.5]),
        ([-1e30, 0.0], [0, 1]),
        ([3e38, -3e38], [1, 0]),
        ([INF, 0.0, INF], [0.5, 0, 0.5]),
        ([INF, -INF, 1.0], [1, 0, 0]),
        ([-INF, 0.0], [0, 1]),
        ([-INF, -INF], [0.5, 0.5]),
        ([np.nan, 0.0, 1.0], [np.nan] * 3),
        ([np.nan, INF], [np.nan] * 2),
        ([7.0], [1]),
    ],
)
def test_softmax_of_what_is_far_out(row: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(softmax(f32([row])), f32([expected]))


def test_softmax_of_half_floats_sums_to_one() -> None:
    assert abs(softmax(f16([[60_000, 59_000, 1]])).sum() - 1) < 1e-6


def test_softmax_of_nothing() -> None:
    assert softmax(np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_sigmoid() -> None:
    x = f32([-1e30, -INF, -2, 0, 2, INF, 1e30, np.nan])
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(sigmoid(x), expected, atol=1e-7)


def test_dequantize() -> None:
    x = np.array([-128, 0, 127], np.int8)
    np.testing.assert_allclose(dequantize(x, Dequantize(scale=0.5, zero_point=-128)), [0, 64, 127.5])
    assert dequantize(np.array([3], np.uint8), Dequantize(scale=1, zero_point=5)).tolist() == [-2]


def test_top_k_best_first_and_the_lower_class_of_equals() -> None:
    scores, classes = top_k(f32([[0.1, 0.4, 0.4, 0.1], [np.nan, 1, -INF, 3]]), 3)
    assert classes.dtype == np.int64
    assert classes.tolist() == [[1, 2, 0], [3, 1, 2]]
    np.testing.assert_array_equal(scores, f32([[0.4, 0.4, 0.1], [3, 1, -INF]]))
    with pytest.raises(ModelFailed, match="gave 4 scores, but the best 5"):
        top_k(np.zeros((1, 4), np.float32), 5)


def test_labels() -> None:
    result = label_of(np.array([[0, 1], [-1, 1]]), ("cat", "dög"))
    assert result.tolist() == [[b"cat", "dög".encode()], [b"", "dög".encode()]]
    assert label_of(np.zeros((0, 2), np.int64), ("cat",)).shape == (0, 2)
    for wrong in (2, -2):
        with pytest.raises(ModelFailed, match=f"gave class {wrong}, but there are labels for only 2 classes"):
            label_of(np.array([wrong]), ("cat", "dog"))


def test_labels_of_unsigned_classes() -> None:
    assert label_of(np.array([1, 0], np.uint8), ("a", "b")).tolist() == [b"b", b"a"]
