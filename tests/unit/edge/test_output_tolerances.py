"""When two answers say the same: by class, by what was found, by relative error, each with its traps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.edge.bundle.output_tolerances import Agreement, Tolerances, compare
from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array, TensorSpec, oip_datatype


def output(kind: Any, like: Array, name: str = "y") -> LogicalOutput:
    return LogicalOutput(name, kind, TensorSpec(name, oip_datatype(like.dtype), (-1, *like.shape[1:])))


def judged(kind: Any, answer: Array, reference: Array, **limits: float) -> Agreement:
    return compare([output(kind, reference)], {"y": answer}, {"y": reference}, Tolerances(**limits))


def one_hot(classes: Array, of: int = 4, high: float = 0.97) -> Array:
    low = (1 - high) / (of - 1)
    return np.where(np.eye(of)[classes] > 0, high, low).astype(np.float32)


SEVERAL = one_hot(np.arange(100) % 4)


@pytest.mark.parametrize(("wrong", "passed"), [(0, True), (5, True), (6, False), (88, False)])
def test_classes_agree_by_argmax(wrong: int, passed: bool) -> None:
    answer = SEVERAL.copy()
    answer[:wrong] = np.roll(answer[:wrong], 1, axis=1)
    verdict = judged("probabilities", answer, SEVERAL)
    assert verdict == Agreement(passed, f"y: argmax agrees in {100 - wrong} of 100 rows, 95 % needed")


def test_scores_may_differ_while_the_classes_agree() -> None:
    assert judged("probabilities", one_hot(np.arange(100) % 4, high=0.5), SEVERAL).passed


@pytest.mark.parametrize(("margin", "decides"), [(2.1, True), (1.9, False)])
def test_a_row_that_rounding_may_turn_decides_nothing(margin: float, decides: bool) -> None:
    reference = SEVERAL.copy()
    reference[50:] = [0.1, 0.4, 0.4 + margin / 255, 0.1]
    turned = reference.copy()
    turned[50:, 2] = 0.39
    verdict = judged("probabilities", turned, reference)
    assert verdict.passed is not decides
    assert f"of {100 if decides else 50} rows" in verdict.text


def test_logits_are_measured_by_their_own_range() -> None:
    reference = np.array([[0, 1], [255, 0], [0, 255.0]] * 10, np.float32)  # one step is 1: the first decides nothing
    turned = reference.copy()
    turned[::3] = [1, 0]
    assert judged("logits", turned, reference).text.startswith("y: argmax agrees in 20 of 20 rows")
    assert not judged("logits", turned * [1, 0], reference).passed


@pytest.mark.parametrize("classes", [np.zeros(100, int), np.r_[np.zeros(96, int), 1, 2, 3, 1]])
def test_a_constant_answer_never_passes_for_a_classifier(classes: Array) -> None:
    reference = one_hot(classes)
    constant = np.tile(np.array([0.4, 0.2, 0.2, 0.2], np.float32), (100, 1))
    verdict = judged("probabilities", constant, reference)
    assert not verdict.passed
    assert "a constant answer would pass too" in verdict.text
    assert judged("probabilities", reference * np.float32(1.02), reference).passed


def test_where_no_row_decides_the_numbers_do() -> None:
    flat = np.full((10, 4), 0.25, np.float32)
    assert judged("probabilities", flat, flat).passed
    verdict = judged("probabilities", flat + np.array([0.5, 0, 0, 0], np.float32), flat)
    assert not verdict.passed
    assert "no row is decided clearly enough" in verdict.text


def test_a_single_score_is_that_of_the_second_class() -> None:
    reference = np.array([[0.9], [0.1]] * 50, np.float32)
    assert judged("probabilities", np.abs(reference - 0.05), reference).passed
    assert not judged("probabilities", 1 - reference, reference).passed
    logits = np.array([[3.0], [-2.0]] * 50, np.float32)
    assert judged("logits", logits / 2, logits).passed
    assert not judged("logits", -logits, logits).passed


@pytest.mark.parametrize("kind", ["tensor", "embedding"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
def test_numbers_agree_by_relative_error(kind: str, dtype: Any) -> None:
    reference = np.full((4, 5), 100).astype(dtype)
    near, far = reference.copy(), reference.copy()
    near[0] -= 10  # sqrt(5 * 100) / sqrt(20 * 10000) = 5 %
    far[0] -= 11
    assert judged(kind, near, reference, tolerance=0.0501).passed
    assert judged(kind, far, reference) == Agreement(False, "y: relative error 5.5 %, at most 5 % allowed")


def test_a_reference_of_zeros_allows_nothing_else() -> None:
    zeros = np.zeros((2, 3), np.float32)
    assert judged("tensor", zeros, zeros).passed
    assert not judged("tensor", zeros + 1, zeros).passed


@pytest.mark.parametrize("kind", ["probabilities", "logits", "embedding", "tensor", "detections"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails(kind: str, bad: float) -> None:
    reference = np.ones((20, 2, 6), np.float32)
    answer = reference.copy()
    answer[3, 1, 0] = bad
    assert judged(kind, answer, reference) == Agreement(False, "y: 1 of 240 values are not finite")


@pytest.mark.parametrize("kind", ["probabilities", "tensor"])
def test_another_shape_or_dtype_or_none_fails(kind: str) -> None:
    for answer in (SEVERAL[:99], SEVERAL.astype(np.float64), SEVERAL.reshape(-1)):
        assert not judged(kind, answer, SEVERAL).passed
    missing = compare([output("tensor", SEVERAL)], {}, {"y": SEVERAL}, Tolerances())
    assert missing == Agreement(False, "y: expected float32 [100, 4], got nothing")


@pytest.mark.parametrize("reference", [np.arange(100), np.array([b"%d" % n for n in range(100)], np.object_)])
def test_classes_and_labels_agree_by_equality(reference: Array) -> None:
    answer = reference.copy()
    answer[:5] = answer[50]
    assert judged("tensor", answer, reference).passed
    answer[5] = answer[50]
    assert judged("tensor", answer, reference) == Agreement(False, "y: 94 % of the values are equal, 95 % needed")


def test_every_output_that_fails_is_named_and_no_other() -> None:
    outputs = [output("tensor", SEVERAL, name) for name in "abc"]
    answers = {"a": SEVERAL, "b": SEVERAL * 2, "c": -SEVERAL}
    verdict = compare(outputs, answers, dict.fromkeys("abc", SEVERAL), Tolerances())
    assert (verdict.passed, verdict.text.count(";")) == (False, 1)
    assert "b: relative error 100 %" in verdict.text
    assert "c: relative error 200 %" in verdict.text


def found(*detections: tuple[float, ...]) -> Array:
    slots = np.zeros((1, 10, 6), np.float32)
    slots[..., 5] = -1
    slots[0, : len(detections)] = np.array(detections).reshape(-1, 6)
    return slots


CAT = (0.1, 0.1, 0.5, 0.5, 0.9, 2)
DOG = (0.5, 0.5, 0.9, 0.9, 0.8, 3)


def moved(one: tuple[float, ...], by: float = 0.0, score: float = 0.0, kind: float = 0) -> tuple[float, ...]:
    return (one[0] + by, one[1], one[2] + by, one[3], one[4] + score, one[5] + kind)


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        (found(CAT, DOG), True),
        (found(DOG, CAT), True),
        (found(moved(CAT, 0.05), moved(DOG, score=-0.1)), True),
        (found(CAT, DOG, (0, 0, 0.2, 0.2, 0.26, 1)), True),  # at the threshold: it comes and goes
        (found(CAT, DOG, (0, 0, 0.2, 0.2, 0.7, 1), (0, 0, 0.2, 0.2, 0.26, 1)), False),
        (found(CAT), False),
        (found(), False),
        (found(moved(CAT, 0.3), DOG), False),
        (found(moved(CAT, kind=1), DOG), False),
        (found(CAT, CAT, CAT, DOG), False),
    ],
)
def test_detections_agree_by_what_is_found(answer: Array, passed: bool) -> None:
    assert judged("detections", answer, found(CAT, DOG)).passed is passed


def test_of_equal_scores_each_counts() -> None:
    assert judged("detections", found(CAT), found(CAT)).passed
    assert not judged("detections", found((0.6, 0.6, 0.7, 0.7, 0.9, 2)), found(CAT)).passed
    assert not judged("detections", found((0.9, 0.9, 1.0, 1.0, 0.9, 2)), found(CAT)).passed
    assert not judged("detections", found(CAT), found(CAT, CAT)).passed


def test_a_reference_that_finds_nothing_checks_nothing() -> None:
    verdict = judged("detections", found(), found())
    assert (verdict.passed, "nothing to compare" in verdict.text) == (False, True)


@given(
    st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(0.5, 1.0), st.floats(0.5, 1.0)
)  # fmt: skip
def test_argmax_agreement_is_what_counting_says(seed: int, classes: int, agree: float, kept: float) -> None:
    random = np.random.default_rng(seed)
    reference = random.dirichlet(np.ones(classes), 40).astype(np.float32)
    answer = np.where(random.random((40, 1)) < kept, reference, random.dirichlet(np.ones(classes), 40))
    decided = agreed = 0
    seen: dict[int, int] = {}
    for mine, theirs in zip(answer.astype(np.float32), reference, strict=True):
        first, second = sorted(theirs.astype(float).tolist(), reverse=True)[:2]
        if first - second > 2 / 255:
            decided += 1
            wanted = theirs.tolist().index(max(theirs.tolist()))
            seen[wanted] = seen.get(wanted, 0) + 1
            agreed += mine.tolist().index(max(mine.tolist())) == wanted
    verdict = judged("probabilities", answer.astype(np.float32), reference, agree=agree, tolerance=0.0)
    if max(seen.values(), default=0) < agree * decided:
        assert verdict.passed is (agreed >= agree * decided)
        assert f"{agreed} of {decided} rows" in verdict.text
    else:
        assert verdict.passed is bool(
            agreed >= agree * decided and np.array_equal(answer.astype(np.float32), reference)
        )


@pytest.mark.parametrize(("kind", "last"), [("masks", ()), ("segments", (2,))])
def test_pixels_agree_by_what_they_name(kind: str, last: tuple[int, ...]) -> None:
    reference = np.ones((1, 10, 10, *last), np.uint8)
    answer = reference.copy()
    for wrong, passed in ((5, True), (6, False)):
        answer[0, 0, :wrong] = 2
        assert judged(kind, answer, reference).passed is passed
    if last:
        assert judged(kind, np.stack((reference[..., 0], reference[..., 1] * 9), axis=-1), reference).passed
