"""What callers may send and get: checks, rows, and sizes on the wire."""

import re

import numpy as np
import pytest

from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, Signature, own_signature
from upwell.shared.tensors import Array, TensorSpec

IMAGE = LogicalInput("image", "image", TensorSpec("image", "BYTES", (-1,)))
X = LogicalInput("x", "tensor", TensorSpec("x", "FP32", (-1, 3)))
SCORES = LogicalOutput("scores", "probabilities", TensorSpec("scores", "FP32", (-1, 4)))
BOXES = LogicalOutput("boxes", "detections", TensorSpec("boxes", "FP32", (-1, 100, 6)))
PICTURES = Signature((IMAGE,), (SCORES,), has_rows=True)
TENSORS = Signature((X,), (BOXES, SCORES), has_rows=True)


def texts(*elements: bytes) -> Array:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def test_rows_are_counted() -> None:
    assert TENSORS.check_inputs({"x": np.zeros((5, 3), np.float32)}) == 5
    assert PICTURES.check_inputs({"image": texts(b"a", b"b")}) == 2
    assert PICTURES.check_inputs({"image": np.zeros((3, 9, 7, 1), np.uint8)}) == 3
    assert PICTURES.check_inputs({"image": np.zeros((1, 9, 7, 3), np.uint8)}) == 1


@pytest.mark.parametrize("shape", [(1 << 31, 0), (1, 0, 1 << 31), (1 << 18, 2, 0)])
def test_an_input_without_elements_has_no_millions_of_rows(shape: tuple[int, ...]) -> None:
    spec = TensorSpec("x", "FP32", (-1,) * len(shape))
    free = Signature((LogicalInput("x", "tensor", spec),), (), has_rows=True)
    with pytest.raises(InvalidRequest, match="no elements, and its other dimensions multiply to"):
        free.check_inputs({"x": np.zeros(shape, np.float32)})
    fine = tuple(min(size, 8) for size in shape)
    assert free.check_inputs({"x": np.zeros(fine, np.float32)}) == fine[0]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "input 'x' is missing; expected FP32 [-1, 3]"),
        ({"y": np.zeros((1, 3), np.float32)}, "input 'x' is missing"),
        ({"x": np.zeros((1, 3), np.float32), "y": np.zeros(1)}, "unknown input 'y'; this model takes x"),
        ({"x": np.zeros((1, 3))}, "input 'x': expected FP32 [-1, 3], got FP64 [1, 3]"),
        ({"x": np.zeros((1, 4), np.float32)}, "expected FP32 [-1, 3], got FP32 [1, 4]"),
        ({"x": np.zeros(3, np.float32)}, "expected FP32 [-1, 3], got FP32 [3]"),
        ({"x": np.float32(1)}, "got float32 instead of a numpy array"),
        ({"x": [[1.0, 2.0, 3.0]]}, "got list instead of a numpy array"),
        ({"x": np.zeros((1, 3), ">f4")}, "got numpy dtype >f4 [1, 3]"),
        ({"x": np.zeros((1, 3), np.complex64)}, "got numpy dtype complex64 [1, 3]"),
        ({"x": np.zeros((0, 3), np.float32)}, "input 'x' has no rows; expected at least one"),
    ],
)
def test_wrong_inputs(inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        TENSORS.check_inputs(inputs)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, 9, 7, 2), np.uint8),
        np.zeros((1, 0, 7, 3), np.uint8),
        np.zeros((9, 7, 3), np.uint8),
        np.zeros((1, 9, 7, 3), np.float32),
        np.array([b"abc"]),
        np.array(["abc"]),
        np.zeros((1, 1), np.object_),
        np.array(["text"], np.object_),
    ],
)
def test_what_is_no_picture(array: Array) -> None:
    with pytest.raises(InvalidRequest, match=r"one encoded picture per row as BYTES \[-1\], or pixels as UINT8"):
        PICTURES.check_inputs({"image": array})


def test_bytes_that_numpy_would_cut_are_refused_with_a_hint() -> None:
    words = Signature((LogicalInput("t", "tensor", TensorSpec("t", "BYTES", (-1,))),), (), has_rows=True)
    with pytest.raises(InvalidRequest, match=r"numpy dtype object, each element bytes\), got numpy dtype \|S2 \[1\]"):
        words.check_inputs({"t": np.array([b"a\0b"[:2]])})


def test_what_is_no_bytes_in_an_array_of_objects_is_named() -> None:
    with pytest.raises(InvalidRequest, match=re.escape("got numpy objects, among them str, [2]")):
        PICTURES.check_inputs({"image": np.array([b"a", "b"], np.object_)})


def test_inputs_must_have_the_same_rows() -> None:
    both = Signature((X, IMAGE), (), has_rows=True)
    with pytest.raises(InvalidRequest, match="input 'image' has 1 rows, but 'x' has 2"):
        both.check_inputs({"x": np.zeros((2, 3), np.float32), "image": texts(b"a")})


def test_a_model_without_rows_takes_its_own_shape_only() -> None:
    whole = own_signature([TensorSpec("x", "FP32", (4, 3))], [TensorSpec("y", "FP32", (4,))])
    assert not whole.has_rows
    x = np.zeros((4, 3), np.float32)
    assert whole.check_inputs({"x": x}) == 1
    assert whole.row_sizes_bytes({"x": x}) == (48,)
    assert whole.select_rows({"x": x}, [0])["x"] is x
    assert whole.merge_rows([([0], {"y": x[:, 0]})], 1)["y"] is not None
    with pytest.raises(InvalidRequest, match=re.escape("expected FP32 [4, 3], got FP32 [5, 3]")):
        whole.check_inputs({"x": np.zeros((5, 3), np.float32)})
    whole.check_outputs({"y": np.zeros(4, np.float32)}, 1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "has_rows"),
    [
        ([(-1, 3)], [(-1, 4)], True),
        ([(1, 3)], [(1, 4)], True),
        ([(1, 3), (1, 2)], [(1,)], True),
        ([(-1, 3)], [(7, 4)], False),
        ([(-1, 3)], [(1, 4)], False),
        ([(-1, 3), (1,)], [(-1, 4)], False),
        ([(2, 3)], [(2, 4)], False),
        ([()], [()], False),
        ([(1, 3)], [()], False),
    ],
)
def test_whose_own_tensors_have_rows(
    inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], has_rows: bool
) -> None:
    signature = own_signature(
        [TensorSpec(f"x{n}", "FP32", shape) for n, shape in enumerate(inputs)],
        [TensorSpec(f"y{n}", "FP32", shape) for n, shape in enumerate(outputs)],
    )
    assert signature.has_rows is has_rows
    assert all(one.spec.shape[0] == -1 for one in signature.inputs if has_rows)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, "the answer lacks output 'boxes'; expected FP32 [-1, 100, 6]"),
        ({"boxes": np.zeros((2, 100, 6))}, "output 'boxes': expected FP32 [-1, 100, 6], got FP64 [2, 100, 6]"),
        ({"boxes": np.zeros((2, 99, 6), np.float32)}, "got FP32 [2, 99, 6]"),
        ({"boxes": np.zeros((3, 100, 6), np.float32)}, "output 'boxes': expected 2 rows, got 3"),
    ],
)
def test_wrong_answers(outputs: dict[str, Array], words: str) -> None:
    with pytest.raises(ModelFailed, match=re.escape(words)):
        TENSORS.check_outputs(outputs, 2)


def test_an_answer_may_hold_more() -> None:
    answer: dict[str, Array] = {
        "boxes": np.zeros((2, 100, 6), np.float32),
        "scores": np.zeros((2, 4), np.float32),
        "more": np.zeros(1),
    }
    TENSORS.check_outputs(answer, 2)


def test_sizes_are_those_of_the_raw_form() -> None:
    assert PICTURES.row_sizes_bytes({"image": texts(b"abc", b"")}) == (7, 4)
    assert PICTURES.row_sizes_bytes({"image": np.zeros((2, 4, 5, 3), np.uint8)}) == (60, 60)
    assert TENSORS.row_sizes_bytes({"x": np.zeros((2, 3), np.float32)}) == (12, 12)
    both = Signature((X, IMAGE), (), has_rows=True)
    assert both.row_sizes_bytes({"x": np.zeros((2, 3), np.float32), "image": texts(b"abc", b"")}) == (19, 16)
    nested = Signature((LogicalInput("t", "tensor", TensorSpec("t", "BYTES", (-1, 2))),), (), has_rows=True)
    assert nested.row_sizes_bytes({"t": texts(b"a", b"bb", b"", b"cccc").reshape(2, 2)}) == (11, 12)


def test_rows_answered_apart_must_agree() -> None:
    parts: list[tuple[list[int], dict[str, Array]]] = [
        ([0], {"scores": np.zeros((1, 4), np.float32)}),
        ([1], {"scores": np.zeros((1, 5), np.float32)}),
    ]
    with pytest.raises(ModelFailed, match=re.escape("answered as FP32 [1, 5] and as FP32 [1, 4]")):
        PICTURES.merge_rows(parts, 2)
    with pytest.raises(ValueError, match="each of 3 rows exactly once"):
        PICTURES.merge_rows(parts, 3)
    with pytest.raises(ModelFailed, match="cannot be merged"):
        PICTURES.merge_rows([([0, 1], {"scores": np.zeros((1, 4), np.float32)}), ([], {"scores": np.zeros((0, 4))})], 2)


def test_scores_are_the_first_probabilities_or_logits() -> None:
    assert TENSORS.scores is SCORES
    assert Signature((X,), (BOXES,), has_rows=True).scores is None
