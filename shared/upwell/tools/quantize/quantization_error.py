"""Compares a model's outputs before and after quantizing, row by row, without holding all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.signature.answer_agreement import matched_boxes
from upwell.shared.tensors import Array
from upwell.tools.quantize.data_files import LABELS, SampleRow, Samples
from upwell.tools.quantize.quantizer import Run


@dataclass
class ErrorSummary:
    """Sums up ‖got − expected‖ / ‖expected‖ over any number of arrays."""

    squares: float = 0.0
    differences: float = 0.0

    def add(self, expected: Array, got: Array) -> None:
        """Add two arrays of one shape."""
        wide = expected.astype(np.float64)
        self.squares += float((wide**2).sum())
        self.differences += float(((got.astype(np.float64) - wide) ** 2).sum())

    @property
    def relative(self) -> float:
        """The relative error; NaN if only zeros were expected and something else came."""
        if self.squares == 0:
            return 0.0 if self.differences == 0 else math.nan
        return math.sqrt(self.differences / self.squares)


@dataclass(frozen=True)
class OutputChange:
    """One output before and after: relative error, and the share of score vectors with the same largest score.

    `agreement` is None for outputs that are not scores: embeddings, and those of one column or none but for the
    probability of the second of two classes. For integers it is the share of equal values, and `relative_error` is
    None. `not_finite` counts the float model's own values that are not finite; they are left out of the error.
    """

    name: str
    relative_error: float | None
    agreement: float | None
    not_finite: int = 0


@dataclass(frozen=True)
class Accuracy:
    """Accuracy before and after: the share of `count` labels that have the largest score."""

    output: str
    before: float
    after: float
    count: int


SCORE_ERROR = 0.02
"""Maximum difference of two scores of the same box that count as equal."""


@dataclass(frozen=True)
class DetectionChange:
    """A detector's findings after `post`, before and after quantizing. `boxes` counts those found before. Then the
    share of either side's boxes with a partner on the other (same class, overlap of at least half), and of the
    partners the share whose scores differ by at most `SCORE_ERROR`, and the 99th percentile and the root mean square of
    that difference.
    """

    boxes: int
    matched: float
    scores_within: float
    score_error_p99: float
    score_error_rms: float


@dataclass
class _Boxes:
    """The counts for detections."""

    before: int = 0
    after: int = 0
    errors: list[float] = field(default_factory=list)

    def add(self, before: Array, after: Array) -> None:
        """Add the detections [n, 6] of one row."""
        ours, theirs = (boxes[boxes[:, 5] >= 0].astype(np.float64) for boxes in (after, before))
        pairs = matched_boxes(ours, theirs)
        self.before += len(theirs)
        self.after += len(ours)
        self.errors.extend(abs(float(ours[one, 4] - theirs[other, 4])) for one, other in pairs)

    def change(self) -> DetectionChange:
        """The result. If neither side found anything, nothing changed."""
        errors = np.array(self.errors or [0.0])
        both = self.before + self.after
        matched = 2 * len(self.errors) / both if both else 1.0
        return DetectionChange(
            boxes=self.before,
            matched=matched,
            scores_within=float((errors <= SCORE_ERROR).mean()),
            score_error_p99=float(np.quantile(errors, 0.99)),
            score_error_rms=float(np.sqrt(np.mean(errors**2))),
        )


def found_boxes(run: Run, samples: Samples, cases: Iterable[SampleRow]) -> list[Array]:
    """The detections [n, 6] of each row."""
    found: list[Array] = []
    for case in cases:
        boxes = samples.detections(run(case.feed), case)
        found.extend(() if boxes is None else boxes)
    return found


def box_count(found: Iterable[Array]) -> int:
    """How many boxes rows of detections have; what has no class is padding."""
    return sum(int((boxes[:, 5] >= 0).sum()) for boxes in found)


def detection_change(before: Iterable[Array], after: Iterable[Array]) -> DetectionChange:
    """The change of detections, row by row."""
    boxes = _Boxes()
    for row in zip(before, after, strict=True):
        boxes.add(*row)
    return boxes.change()


@dataclass
class _Tally:
    """The sums for one output."""

    difference: ErrorSummary
    is_integer: bool = False
    not_finite: int = 0
    same: int = 0
    vectors: int = 0
    right_before: int = 0
    right_after: int = 0
    labelled: int = 0


@dataclass(frozen=True)
class OutputComparison:
    """All outputs, the accuracy if there are labels, and the detections if `model.yaml` makes some."""

    outputs: tuple[OutputChange, ...]
    accuracy: Accuracy | None
    detections: DetectionChange | None = None

    @property
    def worst_error(self) -> float:
        """The largest relative error of an output."""
        errors = [one.relative_error for one in self.outputs if one.relative_error is not None]
        return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)

    @property
    def worst_agreement(self) -> float:
        """The smallest agreement of an output, 1 if none has any."""
        return min((one.agreement for one in self.outputs if one.agreement is not None), default=1.0)


def compared(before: Run, after: Run, samples: Samples, cases: Iterable[SampleRow]) -> OutputComparison:
    """Run both models on all cases. Raises `ConfigError` if the labels fit no output."""
    tallies: dict[str, _Tally] = {}
    boxes = _Boxes()
    scores = ""
    for case in cases:
        expected, got = before(case.feed), after(case.feed)
        found = [samples.detections(outputs, case) for outputs in (expected, got)]
        for row in zip(*(one for one in found if one is not None), strict=True):
            boxes.add(*row)
        if samples.has_rows:
            count = len(case.rows)
            expected = {name: array[:count] for name, array in expected.items()}
            got = {name: array[:count] for name, array in got.items()}
        expected, got = ({name: _classes_last(array) for name, array in one.items()} for one in (expected, got))
        labels = _labels_of(samples, case)
        if labels is not None and not scores:
            scores = _scores_output(samples, expected, labels)
        for name, array in expected.items():
            tally = tallies.setdefault(name, _Tally(ErrorSummary()))
            of_second = name in samples.of_second
            _count(tally, array, got[name], labels if name == scores else None, of_second)
    outputs = tuple(_change(name, tally, name in samples.embeddings) for name, tally in tallies.items())
    accuracy = _accuracy(scores, tallies[scores]) if scores else None
    if samples.detector is None:
        return OutputComparison(outputs, accuracy)
    # Where box coordinates and scores share an output, the largest value names no class.
    outputs = tuple(replace(one, agreement=None) for one in outputs)
    return OutputComparison(outputs, accuracy, boxes.change())


def _labels_of(samples: Samples, case: SampleRow) -> Array | None:
    if samples.labels is None:
        return None
    return samples.labels[list(case.rows)] if samples.has_rows else samples.labels[case.rows[0]]


def _scores_output(samples: Samples, outputs: Mapping[str, Array], labels: Array) -> str:
    """The first output with one score vector for each label."""
    assert samples.labels is not None  # noqa: S101  `labels` come from there
    for name, array in outputs.items():
        classes = 2 if name in samples.of_second else array.shape[-1] if array.ndim else 0
        if array.dtype.kind == "f" and array.shape[:-1] == labels.shape and classes > 1:
            highest = int(samples.labels.max())
            if highest >= classes:
                problem = f"label {highest} is not a class: {name!r} has {classes} classes"
                raise ConfigError.at(samples.path, problem, "--data")
            return name
    shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in outputs.items())
    raise ConfigError.at(
        samples.path,
        f"labels {list(samples.labels.shape)} need an output with a vector of scores for each; a run gives {shapes}. "
        f"Without {LABELS!r} in the file, only the outputs are compared",
        "--data",
    )


def _count(tally: _Tally, expected: Array, got: Array, labels: Array | None, of_second: bool) -> None:
    if expected.dtype.kind != "f":
        tally.is_integer = True
        tally.same += int((expected == got).sum()) if expected.shape == got.shape else 0
        tally.vectors += expected.size
        return
    if expected.shape != got.shape:  # for example boxes, of which another number is left
        tally.difference.differences = math.inf
        return
    finite = np.isfinite(expected)
    tally.not_finite += int((~finite).sum())
    tally.difference.add(expected[finite], got[finite])
    if of_second or (expected.ndim and expected.shape[-1] > 1):
        chosen, now = (one[..., 0] >= 0.5 if of_second else one.argmax(-1) for one in (expected, got))
        tally.same += int((chosen == now).sum())
        tally.vectors += chosen.size
        if labels is not None:
            tally.right_before += int((chosen == labels).sum())
            tally.right_after += int((now == labels).sum())
            tally.labelled += labels.size


def _classes_last(array: Array) -> Array:
    """Maps of scores with the classes last. Of four dimensions, height and width are neighbours of one size; where that
    decides nothing, the classes are those after the rows if fewer than columns.
    """
    if array.ndim != 4:
        return array
    _, first, middle, last = array.shape
    is_first = middle == last if (first == middle) != (middle == last) else first < last
    return np.moveaxis(array, 1, -1) if is_first else array


def _change(name: str, tally: _Tally, is_embedding: bool) -> OutputChange:
    agreement = tally.same / tally.vectors if tally.vectors and not is_embedding else None
    return OutputChange(name, None if tally.is_integer else tally.difference.relative, agreement, tally.not_finite)


def _accuracy(name: str, tally: _Tally) -> Accuracy:
    count = tally.labelled
    return Accuracy(name, tally.right_before / count, tally.right_after / count, count)
