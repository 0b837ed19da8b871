"""Turns a model's answer into objects of a frame and into the facts that events write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from upwell.pipelines.frame import FoundObject
from upwell.shared.signature.answer_rows import best_class, found_boxes, label_of
from upwell.shared.signature.signature import LogicalOutput, Signature
from upwell.shared.tensors import Array

MAX_VALUES = 16
"""Maximum length of a vector in an event; longer ones are left out."""

_DIGITS = 4


class AnswerReader:
    """Reads the outputs of one model, row by row."""

    def __init__(self, signature: Signature) -> None:
        self._has_rows = signature.has_rows
        self._outputs = signature.outputs
        self._boxes = next((one for one in signature.outputs if one.kind == "detections"), None)

    @property
    def finds_objects(self) -> bool:
        """Whether the model gives boxes."""
        return self._boxes is not None

    def objects(self, outputs: Mapping[str, Array], row: int = 0) -> tuple[FoundObject, ...]:
        """The boxes of a row as objects; empty for a model that gives none."""
        if self._boxes is None:
            return ()
        found = found_boxes(self._row(outputs[self._boxes.name], row))
        return tuple(_object(one, self._boxes.labels) for one in found)

    def facts(self, outputs: Mapping[str, Array], row: int = 0) -> dict[str, Any]:
        """The facts that events write about a row: `label` and `score` of classes, `value` or `values` of a short
        tensor.

        With several outputs, the first one of classes is at the top level and each other one under its name.
        """
        facts: dict[str, Any] = {}
        for output in self._outputs:
            said = _facts_of(output, self._row(outputs[output.name], row))
            if len(self._outputs) == 1 or ("label" in said and "label" not in facts):
                facts.update(said)
            elif said:
                facts[output.name] = said
        return facts

    def _row(self, array: Array, row: int) -> Array:
        return array[row] if self._has_rows else array


def _object(numbers: Array, labels: Sequence[str]) -> FoundObject:
    x1, y1, x2, y2, score = (float(number) for number in numbers[:5])
    return FoundObject(label_of(int(numbers[5]), labels), score, (x1, y1, x2, y2))


def _facts_of(output: LogicalOutput, values: Array) -> dict[str, Any]:
    if output.kind == "detections":
        found = [_object(one, output.labels) for one in found_boxes(values)]
        boxes = [{"label": o.label, "score": _short(o.score), "box": [_short(v) for v in o.box]} for o in found]
        return {"objects": boxes}
    if output.kind in ("probabilities", "logits") and values.size and values.dtype.kind == "f":
        best = best_class(values, output.kind)
        return (
            {"label": "", "score": None}
            if best is None
            else {"label": label_of(best[0], output.labels), "score": _short(best[1])}
        )
    if values.size > MAX_VALUES or values.dtype.kind not in "fiub":
        return {}
    numbers = [_short(float(value)) for value in values.ravel()]
    return {"value": numbers[0]} if len(numbers) == 1 else {"values": numbers}


def _short(number: float) -> float | None:
    return round(number, _DIGITS) if math.isfinite(number) else None
