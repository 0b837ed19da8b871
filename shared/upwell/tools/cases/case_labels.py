"""People's labels of cases, in one file beside them, written atomically; imported from Label Studio, COCO or CSV.

Of a file all labels are imported, or none, with a list of its mistakes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from upwell.edge.case_collection.collected_case import CaseFacts, OutputFacts, one_class
from upwell.shared.config.located_errors import invalid_as
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import parse_json, read_file, write_named
from upwell.shared.signature.answer_agreement import found_boxes, label_of
from upwell.shared.tensors import Array
from upwell.shared.units import count_of

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
    with invalid_as(path, "these are not labels of cases"):
        return _FILE.validate_json(read_file(path, "labels of cases", _MAX_BYTES))


def write_labels(folder: Path, labels: Mapping[str, Label]) -> None:
    """Replace the labels. Raises `ConfigError`."""
    write_named(folder / LABELS_NAME, _FILE.dump_json(dict(labels), exclude_none=True, indent=1) + b"\n")


def answer_label(output: OutputFacts, outputs: Mapping[str, Array]) -> Label | None:
    """A side's answer in the form of a label; None if it has no such form."""
    if output.name not in outputs:
        return None
    array = outputs[output.name]
    if output.kind == "detections":
        return Label(
            boxes=tuple(box for row in found_boxes(array) if (box := _answer_box(row, output.labels)) is not None)
        )
    if output.kind in ("probabilities", "logits"):
        best = one_class(output, array)
        return None if best is None else Label(label=label_of(best[0], output.labels))
    if array.size == 1 and array.dtype.kind in "fiu" and math.isfinite(value := float(array.ravel()[0])):
        return Label(value=value)
    return None


def _answer_box(row: Array, labels: Sequence[str]) -> LabelledBox | None:
    x1, y1, x2, y2 = (min(1.0, max(0.0, float(number))) for number in row[:4])
    return LabelledBox(label=label_of(int(row[5]), labels), box=(x1, y1, x2, y2)) if x2 > x1 and y2 > y1 else None


def unfit(facts: CaseFacts, label: Label) -> str:
    """Why a label cannot belong to this case, as a sentence; empty if it can."""
    output = facts.signature.answer
    wanted = "" if output is None else form_of(output)
    if output is None or not wanted:
        gives = "nothing" if output is None else output.kind
        return f"the model {facts.model!r} gives {gives}; only classes, boxes and numbers can be labelled"
    given = [name for name in ("label", "boxes", "value") if getattr(label, name) is not None]
    if given != [wanted]:
        got = " and ".join(given) if label.boxes != () else "nothing"  # an annotation without any region
        return f"the model {facts.model!r} gives {output.kind}; expected {wanted}, got {got or 'nothing'}"
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


def form_of(output: OutputFacts) -> str:
    """Which of the three a label of this output has; empty if it has none."""
    forms = {"detections": "boxes", "probabilities": "label", "logits": "label", "tensor": "value"}
    return forms.get(output.kind, "")


def _as_answered(facts: CaseFacts, label: Label) -> Label | str:
    """The label in the form that the case's model answers in: a CSV export writes all forms into one column. A text if
    it has no such form.
    """
    output, text = facts.signature.answer, label.label
    if output is None or text is None:
        return label
    form = form_of(output)
    try:
        if form == "value":
            return Label(value=float(text))
        if form == "boxes" and text.startswith("[") and isinstance(boxes := parse_json(text), list):
            return Label(boxes=tuple(LabelledBox.model_validate(box) for box in boxes))
    except ValueError as error:
        return _no_answer(text, error)
    return label


def _no_answer(text: str, error: ValueError) -> str:
    why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
    return f"expected a number, or boxes as JSON, got {text!r}: {why}"


_MAX_IMPORT_BYTES = 1 << 30
_SHOWN = 20

NOBODY_GAVE = "which nobody gave (`labelled` is false; set it to true where someone has checked the label)"

Found = Iterator[tuple[str, int | None, str, Label | str | None]]
"""The position (`key`, line), the case, and its label or the problem with it; None for one that nobody gave."""


def import_labels(path: Path, format: str, cases: Mapping[str, CaseFacts]) -> tuple[dict[str, Label], int]:
    """The labels in a file, by case, and the number of others: a side's answers, which an export marks as nobody's.

    Raises `ConfigError` with every mistake, including unknown cases.
    """
    problems: list[Problem] = []
    labels: dict[str, Label] = {}
    others = 0
    for key, line, id, label in _READERS[format](path, read_file(path, f"labels of {format}", _MAX_IMPORT_BYTES)):
        if label is None:
            others += 1
            continue
        wrong = label if isinstance(label, str) else ""
        facts = cases.get(id)
        if not wrong and facts is None:
            wrong = f"there is no case {id!r}" if id else "it has no case id"
        if not wrong and facts is not None and isinstance(label, Label):
            label = _as_answered(facts, label)
            wrong = label if isinstance(label, str) else unfit(facts, label)
        if not wrong and labels.get(id, label) != label:
            wrong = f"the case {id!r} already has another label in this file"
        if wrong:
            problems.append(Problem(path, line, None, key, wrong))
        elif isinstance(label, Label):
            labels[id] = label
    if problems:
        if (more := len(problems) - _SHOWN) > 0:
            problems[_SHOWN:] = [Problem(path, None, None, "", count_of(more, "more mistake"))]
        raise ConfigError(problems)
    if not labels:
        none = f"only labels {NOBODY_GAVE}" if others else f"no labels; expected {_EXPECTED[format]}"
        raise ConfigError.at(path, f"it contains {none}")
    return labels, others


def _json(path: Path, data: bytes, expected: str) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise ConfigError.at(path, f"not JSON: {error}; expected {expected}") from None


def _studio(path: Path, data: bytes) -> Found:
    tasks = _json(path, data, _EXPECTED["label-studio"])
    if not isinstance(tasks, list):
        raise ConfigError.at(path, f"expected {_EXPECTED['label-studio']}, got one {type(tasks).__name__}")
    for number, task in enumerate(tasks):
        key = f"[{number}]"
        try:
            id = str(task["data"].get("case", ""))
            done = [one for one in task.get("annotations") or () if not one.get("was_cancelled")]
            if done:
                best = [one for one in done if one.get("ground_truth")] or done
                yield f"{key}.annotations", None, id, _of_regions(best[-1]["result"])
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            yield (
                key,
                None,
                "",
                f"this is not a Label Studio task: {type(error).__name__} {error} (its JSON, not JSON-MIN)",
            )


def _of_regions(regions: Sequence[Mapping[str, Any]]) -> Label | str:
    boxes, labels, values = [], [], []
    others: dict[str, None] = {}
    for region in regions:
        value = region.get("value", {})  # a relation between regions has none
        if region["type"] == "rectanglelabels":
            x, y = float(value["x"]) / 100, float(value["y"]) / 100
            box = _labelled_box(
                value["rectanglelabels"][0], x, y, x + float(value["width"]) / 100, y + float(value["height"]) / 100
            )
            if isinstance(box, str):
                return box
            if value.get("rotation"):
                return "a rotated box; expected upright ones"
            boxes.append(box)
        elif region["type"] == "choices":
            labels += value["choices"]
        elif region["type"] == "number":
            values.append(float(value["number"]))
        else:
            others[str(region["type"])] = None
    if others and not (boxes or labels or values):
        return f"expected rectanglelabels, choices or a number, got {', '.join(others)}"
    if len(labels) > 1:
        return f"it has {len(labels)} classes ({', '.join(map(str, labels))}); expected one"
    try:
        if labels:
            return Label(label=labels[0])
        return Label(value=values[-1]) if values else Label(boxes=tuple(boxes))
    except ValidationError as error:
        return f"not a label: {error.errors(include_url=False)[0]['msg']}"


_SLACK = 1e-6


def _rounded(place_px: float, side_px: float) -> float:
    """A place as a fraction of a side. Tools round, so one less than a pixel beyond the edge lies on it."""
    return min(max(place_px, 0.0), side_px) / side_px if -1 < place_px < side_px + 1 else place_px / side_px


def _labelled_box(name: object, x1: float, y1: float, x2: float, y2: float) -> LabelledBox | str:
    corners = [x1, y1, x2, y2]
    if not all(-_SLACK <= one <= 1 + _SLACK for one in corners) or not (x2 > x1 and y2 > y1):
        shown = ", ".join(f"{one:.4g}" for one in corners)
        return f"the box {shown} (fractions) is not within the picture or has no area"
    if not isinstance(name, str):
        return f"expected the name of a class, got {name!r}"
    x1, y1, x2, y2 = (min(1.0, max(0.0, one)) for one in corners)
    return LabelledBox(label=name, box=(x1, y1, x2, y2))


_CROWD = "the box is around a crowd (iscrowd); expected one for each object"


def _coco(path: Path, data: bytes) -> Found:
    document = _json(path, data, _EXPECTED["coco"])
    try:
        names = {one["id"]: one["name"] for one in document["categories"]}
        boxes: dict[Any, list[LabelledBox]] = {one["id"]: [] for one in document["images"]}
        images = {one["id"]: one for one in document["images"]}
        wrong: dict[Any, str] = {}
        for number, one in enumerate(document["annotations"]):
            image = images.get(one["image_id"])
            if image is None or one["category_id"] not in names:
                what = f"image {one['image_id']!r}" if image is None else f"category {one['category_id']!r}"
                yield f"annotations[{number}]", None, "", f"there is no {what}"
                continue
            x, y, width, height = (float(value) for value in one["bbox"])
            w, h = float(image["width"]), float(image["height"])
            corners = (_rounded(x, w), _rounded(y, h), _rounded(x + width, w), _rounded(y + height, h))
            box = _CROWD if one.get("iscrowd") else _labelled_box(names[one["category_id"]], *corners)
            if isinstance(box, str):
                wrong[image["id"]] = f"annotations[{number}]: {box}"
            else:
                boxes[image["id"]].append(box)
        for number, image in enumerate(document["images"]):
            id = str(image.get("case") or PurePosixPath(str(image["file_name"])).stem)
            label = wrong.get(image["id"]) or Label(boxes=tuple(boxes[image["id"]]))
            yield f"images[{number}]", None, id, None if image.get("labelled") is False else label
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ConfigError.at(
            path, f"this is not COCO: {type(error).__name__} {error}; expected {_EXPECTED['coco']}"
        ) from None


def _csv(path: Path, data: bytes) -> Found:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError.at(path, f"this is not UTF-8: {error}") from None
    csv.field_size_limit(_MAX_IMPORT_BYTES)  # a long text, or many boxes
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = reader.fieldnames or ()
        if "id" not in columns or not {"label", "value"} & set(columns):
            raise ConfigError.at(path, f"expected {_EXPECTED['csv']}, got {', '.join(columns) or 'nothing'}", line=1)
        for row in reader:
            label, value = row.get("label") or "", row.get("value") or ""
            if label or value:
                nobody_gave = (row.get("labelled") or "").lower() == "false"
                yield "", reader.line_num, row["id"] or "", None if nobody_gave else _of_cells(label, value)
    except csv.Error as error:
        raise ConfigError.at(path, f"this is not CSV: {error}", line=reader.line_num) from None


def _of_cells(label: str, value: str) -> Label | str:
    try:
        return Label(value=float(value)) if value else Label(label=label)
    except ValueError as error:
        return _no_answer(value, error)


_EXPECTED: Mapping[str, str] = {
    "label-studio": "a list of tasks, as Label Studio exports it as JSON",
    "coco": "an object with images, annotations and categories",
    "csv": "columns id and label, or id and value",
}
_READERS: Mapping[str, Callable[[Path, bytes], Found]] = {"label-studio": _studio, "coco": _coco, "csv": _csv}
IMPORTS = tuple(_READERS)
