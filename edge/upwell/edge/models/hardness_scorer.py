"""The hardness of each row of an edge answer, computed from the model's outputs for the router."""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypedDict, get_args

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.routing.box_hardness import (
    OF_BOXES,
    OF_CANDIDATES,
    CandidateGroups,
    box_hardness,
    candidate_hardness,
    object_chances,
)
from upwell.shared.routing.hardness import Measure, as_logits, hardness, pixel_margin, uncalibrated
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.signature.detections import FIELDS, KEYPOINT, as_candidates, grouped, has_keypoints
from upwell.shared.signature.processor import CandidatesByOutput
from upwell.shared.signature.signature import LogicalOutput, Signature
from upwell.shared.signature.step_values import FLOATS
from upwell.shared.tensors import Array

GROUP = "upwell.hardness"
"""The entry-point group for hardness functions."""

HardnessFunction: TypeAlias = Callable[[Mapping[str, Array]], Sequence[float]]
"""Maps outputs by name (read-only, all rows) to one finite number per row, larger for harder rows."""


class LoggedScores(TypedDict):
    """The scores of one row in a request log; None where they do not apply."""

    logits: tuple[float, ...] | None
    chances: tuple[float, ...] | None
    supports: tuple[float, ...] | None


NO_SCORES: LoggedScores = {"logits": None, "chances": None, "supports": None}

_IOU = 0.45
"""Candidates of one class that overlap by more form one group."""
_PARTS = 10_000
"""The precision of chances in logs."""
_MEASURES: tuple[Measure, ...] = get_args(Measure)

_log = logging.getLogger(__name__)


@functools.cache
def hardness_function(name: str) -> HardnessFunction:
    """Load the function of that name from the entry-point group `upwell.hardness`. Raises `ConfigError`."""
    from importlib.metadata import entry_points  # other measures do without it, and it takes long

    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError.at(None, f"there is no hardness function {name!r}; the group {GROUP} has: {known}")
    try:
        function = found[name].load()
    except Exception as error:  # noqa: BLE001  somebody else's module, which may fail in any way
        raise ConfigError.at(None, f"the hardness function {name!r} cannot be loaded: {error}") from None
    if not callable(function):
        raise ConfigError.at(None, f"the hardness function {name!r} is {found[name].value}, which is not callable")
    result: HardnessFunction = function
    return result


class Scorer:
    """Measures the outputs of one model. Thread-safe."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._boxes = next((output for output in signature.outputs if output.kind == "detections"), None)
        self._segments = next((output for output in signature.outputs if output.kind == "segments"), None)
        self._problems: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}

    @property
    def failures(self) -> int:
        """How often a hardness function failed or did not return one number per row."""
        return sum(self._failures.copy().values())

    def can(self, hard: HardSettings) -> bool:
        """Whether these settings can measure this model's outputs."""
        return not self.problem(hard)

    def problem(self, hard: HardSettings) -> str:
        """Why these settings cannot measure this model, as a sentence; empty if they can."""
        key = (hard.measure, hard.output, hard.function)
        if key not in self._problems:
            self._problems[key] = self._problem(hard)
        return self._problems[key]

    def score(
        self,
        outputs: Mapping[str, Array],
        hard: HardSettings,
        rows: int,
        candidates: CandidatesByOutput | None = None,
    ) -> tuple[float, ...]:
        """The hardness of each of the `rows` rows in `outputs`; NaN, which counts as hard, if it cannot be computed.

        `candidates` are those of detection outputs. Call it only if `can` is true.
        """
        values = self._values(outputs, hard, rows, candidates)
        if len(values) != rows:
            return (math.nan,) * rows
        possible = (candidates or {}).get(self._boxes.name) if self._boxes else None
        if possible and (hard.measure in OF_BOXES or self._measures_boxes(hard.measure)):
            return tuple(math.nan if one.has_nan else value for one, value in zip(possible, values, strict=False))
        return values

    def score_all(
        self,
        outputs: Mapping[str, Array],
        hard: HardSettings,
        rows: int,
        candidates: CandidatesByOutput | None = None,
    ) -> tuple[dict[str, float], ...]:
        """Every measure that applies to each row, without any calibration, for request logs.

        `output`, `function` and `box_score` are those of `hard`. A measure without a numeric value is left out.
        """
        # To look for a function without a name would read files of all installed packages.
        measures = [measure for measure in _MEASURES if measure != "function" or hard.function]
        asked = [replace(hard, measure=measure, **uncalibrated(measure)._asdict()) for measure in measures]
        columns = {one.measure: self.score(outputs, one, rows, candidates) for one in asked if self.can(one)}
        return tuple(
            {name: column[row] for name, column in columns.items() if math.isfinite(column[row])} for row in range(rows)
        )

    def logged(
        self, outputs: Mapping[str, Array], hard: HardSettings, row: int, candidates: CandidatesByOutput | None
    ) -> LoggedScores:
        """What a request log keeps of one row, so that a later calibration can measure it anew."""
        chances, supports = self._objects(outputs, hard, row, candidates)
        return {"logits": self.logits(outputs, row), "chances": chances, "supports": supports}

    def logits(self, outputs: Mapping[str, Array], row: int) -> tuple[float, ...] | None:
        """The logits of one row, ln p for probabilities; a single score as those of "no" and "yes".

        None if the model gives no scores, or if the row has several vectors or invalid scores.
        """
        scores = self._signature.scores
        if scores is None:
            return None
        array = self._rows(outputs, scores)[row : row + 1]
        if array.size == 0 or array.size != array.shape[-1]:
            return None
        found = as_logits(array.reshape(1, -1), logits=scores.kind == "logits")[0]
        return tuple(found.tolist()) if np.isfinite(found).all() else None

    def _objects(
        self, outputs: Mapping[str, Array], hard: HardSettings, row: int, candidates: CandidatesByOutput | None
    ) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """The chances of objects in one row of detections, before any calibration, and their supports.

        Both are None for a model without detections, or if a box or a score is not finite.
        """
        if self._boxes is None:
            return None, None
        found = self._rows(outputs, self._boxes)[row : row + 1]
        if len(found) == 0 or not np.isfinite(found).all():
            return None, None
        possible = (candidates or {}).get(self._boxes.name)
        one = possible[row] if possible else as_candidates(found)[0]
        if one.has_nan:
            return None, None
        objects = object_chances(CandidateGroups(*grouped(one, _IOU), one.min_score), hard.box_score)
        chances = np.floor(objects.chances * _PARTS) / _PARTS  # rounded down, so that none becomes 1/2
        supports = np.maximum(objects.supports, 1.0).round(2)
        return tuple(chances.tolist()), tuple(supports.tolist())

    def _problem(self, hard: HardSettings) -> str:
        if hard.measure in OF_CANDIDATES and self._measures_boxes(hard.measure):
            return ""
        if hard.measure in OF_BOXES | (OF_CANDIDATES - {"margin"}):
            return "" if self._boxes else f"{hard.measure} needs an output of kind detections, but the model has none"
        if hard.measure == "output":
            return self._output_problem(hard.output)
        if hard.measure == "function":
            try:
                hardness_function(hard.function)
            except ConfigError as error:
                return str(error)
            return ""
        return self._scores_problem(hard.measure)

    def _output_problem(self, name: str) -> str:
        output = self._output(name)
        if output is None:
            known = ", ".join(one.name for one in self._signature.outputs)
            return f"there is no output {name!r} to read hardness from; this model gives {known}"
        if output.spec.datatype not in FLOATS:
            return f"hardness must be floating point, but {name!r} is {output.spec.datatype}; add a dequantize step"
        return ""

    def _scores_problem(self, measure: Measure) -> str:
        scores = self._signature.scores
        if self._measures_pixels(measure):
            return ""
        if scores is None:
            also = ", or detections or segments" if measure == "margin" else ""
            return f"{measure} needs an output of kind probabilities or logits{also}, but the model has none"
        if measure == "energy" and scores.kind != "logits":
            return "energy needs logits, but the model gives probabilities"
        if measure == "logit_norm" and 0 < scores.spec.shape[-1] < 3:
            return "logit_norm needs at least three classes; with two it is constant"
        return ""

    def _values(
        self, outputs: Mapping[str, Array], hard: HardSettings, rows: int, candidates: CandidatesByOutput | None
    ) -> tuple[float, ...]:
        if hard.measure == "function":
            return self._called(hard.function, outputs, rows)
        if hard.measure == "output":
            output = self._output(hard.output)
            return _hardest(self._rows(outputs, output)) if output else ()
        if self._boxes is not None and hard.measure in OF_BOXES:
            found = self._rows(outputs, self._boxes)
            counted = _keypoints(found) if hard.measure == "low_share" and has_keypoints(found.shape[2]) else found
            return box_hardness(counted, hard.measure, box_score=hard.box_score)
        if self._boxes is not None and self._measures_boxes(hard.measure):
            found = self._rows(outputs, self._boxes)
            possible = (candidates or {}).get(self._boxes.name) or as_candidates(found)
            groups = [CandidateGroups(*grouped(one, _IOU), one.min_score) for one in possible[: len(found)]]
            return candidate_hardness(
                found,
                groups,
                hard.measure,
                box_score=hard.box_score,
                fit=hard.fit,
            )
        if self._segments is not None and self._measures_pixels(hard.measure):
            return pixel_margin(self._rows(outputs, self._segments))
        scores = self._signature.scores
        if scores is None:
            return ()
        array = self._rows(outputs, scores)
        return hardness(array, hard.measure, logits=scores.kind == "logits", temperature=hard.temperature)

    def _measures_boxes(self, measure: Measure) -> bool:
        """Whether this measure applies to boxes here; the margin applies to classes if there are class scores."""
        has_scores = measure == "margin" and self._signature.scores is not None
        return self._boxes is not None and measure in OF_CANDIDATES and not has_scores

    def _measures_pixels(self, measure: Measure) -> bool:
        is_only = self._boxes is None and self._signature.scores is None
        return measure == "margin" and is_only and self._segments is not None

    def _output(self, name: str) -> LogicalOutput | None:
        return next((output for output in self._signature.outputs if output.name == name), None)

    def _rows(self, outputs: Mapping[str, Array], output: LogicalOutput) -> Array:
        array = outputs[output.name]
        return array if self._signature.has_rows else array[None]

    def _called(self, name: str, outputs: Mapping[str, Array], rows: int) -> tuple[float, ...]:
        try:
            given = hardness_function(name)({key: _read_only(array) for key, array in outputs.items()})
            values = tuple(float(value) for value in given)
        except Exception as error:  # noqa: BLE001  somebody else's code, which may fail in any way
            self._note_failure(name, f"{type(error).__name__}: {error}")
            return ()
        if len(values) != rows:
            self._note_failure(name, f"it returned {len(values)} values for {rows} rows")
        elif not all(map(math.isfinite, values)):
            self._note_failure(name, "it returned a value that is not finite")
        return tuple(value if math.isfinite(value) else math.nan for value in values)

    def _note_failure(self, name: str, why: str) -> None:
        with self._lock:
            self._failures[name] = self._failures.get(name, 0) + 1
            is_first = self._failures[name] == 1
        if is_first:
            _log.warning("the hardness function %r failed, so the rows count as hard: %s", name, why)


def _keypoints(found: Array) -> Array:
    """The keypoints of detections as detections of their own, [rows, boxes · keypoints, 6].

    A confident box says nothing about hidden limbs, so the share of low scores is counted among the keypoints.
    """
    points = found[:, :, FIELDS:].reshape(*found.shape[:2], -1, KEYPOINT)
    made = np.repeat(found[:, :, None, :FIELDS], points.shape[2], axis=2)
    made[..., 4] = points[..., 2]
    return made.reshape(len(found), -1, FIELDS)


def _hardest(array: Array) -> tuple[float, ...]:
    """The largest value of each row; NaN if a value is not finite or there is none."""
    if array.size == 0:
        return (math.nan,) * len(array)
    values = array.reshape(len(array), -1).astype(np.float64)
    worst = values.max(axis=1)
    worst[~np.isfinite(values).all(axis=1)] = np.nan
    return tuple(worst.tolist())


def _read_only(array: Array) -> Array:
    """A read-only view of the array, which belongs to the answer."""
    view: Array = array.view()
    view.flags.writeable = False
    return view
