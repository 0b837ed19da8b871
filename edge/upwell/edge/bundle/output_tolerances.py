"""Whether two sets of outputs of one model agree, judged by the kind of each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class

INT8_STEPS = 2.0
"""Each kernel may round a score by one int8 step (1/255 of the range), so scores closer than this may swap places."""

Floats = npt.NDArray[np.float64]

_COUNTED = frozenset({"BOOL", "INT32", "INT64", "UINT32", "UINT64", "BYTES"})
"""Datatypes of classes, indexes and labels, compared for equality; narrower integers are quantized values."""


@value_class
class Tolerances:
    """How far answers may differ: the largest relative error, and the smallest share of rows that agree."""

    tolerance: float = 0.05
    agree: float = 0.95


@value_class
class Agreement:
    """Whether a check passed, and its figures in words."""

    passed: bool
    text: str


def compare(
    outputs: Sequence[LogicalOutput], answers: Mapping[str, Array], reference: Mapping[str, Array], limits: Tolerances
) -> Agreement:
    """Compare `answers` with `reference`, output by output; the text names those that fail, or sums up all.

    - `probabilities` and `logits` agree by argmax, row by row. A row whose two best reference scores are less than
      `INT8_STEPS` apart does not count. Where one constant answer would pass, since nearly all rows that count have one
      class, the relative error must be small enough as well.
    - `detections` agree by the objects found: see `_found_alike`.
    - `masks` and `segments` agree by the share of equal pixels.
    - 32-bit and 64-bit integers, booleans and bytes must be equal.
    - Everything else agrees by ‖answer − reference‖ / ‖reference‖ over the whole output.

    A different shape or dtype fails, and so does a value that is not finite.
    """
    verdicts = [_compare_one(one, answers.get(one.name), reference[one.name], limits) for one in outputs]
    counted = [one for one in verdicts if not one.passed] or verdicts
    return Agreement(all(one.passed for one in verdicts), "; ".join(one.text for one in counted))


def _compare_one(output: LogicalOutput, answer: Array | None, reference: Array, limits: Tolerances) -> Agreement:
    name = output.name
    if answer is None or answer.shape != reference.shape or answer.dtype != reference.dtype:
        shown = "nothing" if answer is None else f"{answer.dtype} {list(answer.shape)}"
        return Agreement(False, f"{name}: expected {reference.dtype} {list(reference.shape)}, got {shown}")
    if output.spec.datatype in _COUNTED:
        share = float(np.mean(answer == reference)) if reference.size else 1.0
        return _judged(name, "of the values are equal", share, limits)
    if output.kind in ("masks", "segments"):
        which = (answer, reference) if output.kind == "masks" else (answer[..., 0], reference[..., 0])
        return _judged(
            name, "of the pixels agree", float(np.mean(which[0] == which[1])) if answer.size else 1.0, limits
        )
    got, wanted = answer.astype(np.float64), reference.astype(np.float64)
    wild = int(np.count_nonzero(~np.isfinite(got)))
    if wild:
        return Agreement(False, f"{name}: {wild} of {got.size} values are not finite")
    if output.kind == "detections":
        return _found_alike(name, got, wanted, limits)
    if output.kind in ("probabilities", "logits"):
        return _decides_alike(output, got, wanted, limits)
    return _near(name, got, wanted, limits)


def relative_error(answer: Floats, reference: Floats) -> float:
    """‖answer − reference‖ / ‖reference‖, Euclidean; where the reference is all zeros, ‖answer‖."""
    norm = float(np.linalg.norm(reference))
    return float(np.linalg.norm(answer - reference)) / (norm or 1.0)


def _near(name: str, answer: Floats, reference: Floats, limits: Tolerances) -> Agreement:
    error = relative_error(answer, reference)
    text = f"{name}: relative error {_percent(error)}, at most {_percent(limits.tolerance)} allowed"
    return Agreement(error <= limits.tolerance, text)


def _judged(name: str, what: str, share: float, limits: Tolerances) -> Agreement:
    return Agreement(share >= limits.agree, f"{name}: {_percent(share)} {what}, {_percent(limits.agree)} needed")


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _decides_alike(output: LogicalOutput, answer: Floats, reference: Floats, limits: Tolerances) -> Agreement:
    chosen, _ = _decisions(output, answer)
    wanted, margin = _decisions(output, reference)
    counts = margin > INT8_STEPS * _step(output, reference)
    decided = int(counts.sum())
    agreed = int(np.count_nonzero((chosen == wanted) & counts))
    text = f"{output.name}: argmax agrees in {agreed} of {decided} rows, {_percent(limits.agree)} needed"
    passed = agreed >= limits.agree * decided
    most_of_one_class = int(np.unique(wanted[counts], return_counts=True)[1].max()) if decided else 0
    if not passed or most_of_one_class < limits.agree * decided:
        return Agreement(passed, text)
    error = _near(output.name, answer, reference, limits)
    why = "a constant answer would pass too" if decided else "no row is decided clearly enough"
    return error if error.passed else Agreement(False, f"{error.text} ({why}: argmax proves nothing)")


def _decisions(output: LogicalOutput, scores: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
    """Each row's class and its score's lead over the second; a single score is that of the second of two classes."""
    rows = scores.reshape(-1, scores.shape[-1])
    if rows.shape[1] == 1:
        rest = 1.0 - rows if output.kind == "probabilities" else np.zeros_like(rows)
        rows = np.concatenate([rest, rows], axis=1)
    best = np.sort(rows, axis=1)[:, -2:]
    return rows.argmax(axis=1), best[:, 1] - best[:, 0]


def _step(output: LogicalOutput, reference: Floats) -> float:
    """One int8 step of the output's range: 0 to 1 for probabilities, the reference's range for logits."""
    spread = 1.0 if output.kind == "probabilities" or not reference.size else float(np.ptp(reference))
    return spread / 255


def _found_alike(name: str, answer: Floats, reference: Floats, limits: Tolerances) -> Agreement:
    """The share of detections that both sides found: the same class, and boxes that overlap by half (`matched_boxes`).

    A detection counts by the square of its score, since rounding decides about one at the threshold. Pairs are matched
    greedily, best reference first. A reference without detections proves nothing, and fails.
    """
    from upwell.shared.signature.answer_agreement import matched_boxes

    if not (reference[..., 5] >= 0).any():
        return Agreement(False, f"{name}: the reference finds nothing in any row, so there is nothing to compare")
    whole = same = 0.0
    for mine, theirs in zip(answer.reshape(-1, *answer.shape[-2:]), reference.reshape(-1, *reference.shape[-2:])):  # noqa: B905  compared shapes
        mine, theirs = mine[mine[:, 5] >= 0], theirs[theirs[:, 5] >= 0]
        pairs = matched_boxes(mine, theirs)
        whole += float((mine[:, 4] ** 2).sum() + (theirs[:, 4] ** 2).sum())
        same += sum(float(mine[one, 4] ** 2 + theirs[other, 4] ** 2) for one, other in pairs)
    return _judged(name, "of the detections agree", same / (whole or 1.0), limits)
