"""People's labels of cases, in one file beside them, written atomically."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from upwell.edge.cases.case import CaseFacts, OutputFacts
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file, write_named
from upwell.shared.signature.answer_rows import best_class, found_boxes, label_of
from upwell.shared.tensors import Array

LABELS_NAME = "case-labels.json"
_MAX_BYTES = 256 << 20

Fraction = Annotated[float, Field(ge=0, le=1)]


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LabelledBox(_Said):
    """A box with its class: corners x1, y1, x2, y2 as fractions of the upright picture."""

    label: str
    box: tuple[Fraction, Fraction, Fraction, Fraction]


class Label(_Said):
    """The correct answer to a case: a class by its name, boxes, or a number; one of the three."""

    label: str | None = None
    boxes: tuple[LabelledBox, ...] | None = None
    value: float | None = None


_FILE = TypeAdapter(dict[str, Label])


def read_labels(folder: Path) -> Mapping[str, Label]:
    """The labels beside the cases, by id. Raises `ConfigError`."""
    path = folder / LABELS_NAME
    if not path.exists():
        return {}
    try:
        return _FILE.validate_json(read_file(path, "labels of cases", _MAX_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError.at(path, f"these are not labels of cases: {first['msg']}", key) from None


def write_labels(folder: Path, labels: Mapping[str, Label]) -> None:
    """Replace the labels. Raises `ConfigError`."""
    write_named(folder / LABELS_NAME, _FILE.dump_json(dict(labels), exclude_none=True, indent=1) + b"\n")


def answer_label(output: OutputFacts, outputs: Mapping[str, Array]) -> Label | None:
    """A side's answer in the form of a label; None if it has no such form."""
    if output.name not in outputs:
        return None
    array = outputs[output.name]
    if output.kind == "detections":
        return Label(boxes=tuple(box for row in found_boxes(array) if (box := _box(row, output.labels)) is not None))
    if output.kind in ("probabilities", "logits"):
        best = best_class(array, output.kind)
        return None if best is None else Label(label=label_of(best[0], output.labels))
    if array.size == 1 and array.dtype.kind in "fiu" and math.isfinite(value := float(array.ravel()[0])):
        return Label(value=value)
    return None


def _box(row: Array, labels: Sequence[str]) -> LabelledBox | None:
    x1, y1, x2, y2 = (min(1.0, max(0.0, float(number))) for number in row[:4])
    return LabelledBox(label=label_of(int(row[5]), labels), box=(x1, y1, x2, y2)) if x2 > x1 and y2 > y1 else None


def unfit(facts: CaseFacts, label: Label) -> str:
    """Why a label cannot belong to this case, as a sentence; empty if it can."""
    output = facts.signature.answer
    if output is None:
        return "the model of this case has no output to label"
    wanted = {"detections": "boxes", "probabilities": "label", "logits": "label"}.get(output.kind, "value")
    given = [name for name in ("label", "boxes", "value") if getattr(label, name) is not None]
    if given != [wanted]:
        return (
            f"the model {facts.model!r} gives {output.kind}; expected {wanted}, got {' and '.join(given) or 'nothing'}"
        )
    names = (
        [box.label for box in label.boxes]
        if label.boxes is not None
        else [label.label]
        if label.label is not None
        else []
    )
    unknown = next((name for name in names if output.labels and name not in output.labels), None)
    if unknown is not None:
        return f"{unknown!r} is not a class of {facts.model!r}; expected one of {', '.join(output.labels[:20])}"
    return ""
