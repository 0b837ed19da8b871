"""Reads the metadata of an Ultralytics export. None of it is trusted: texts are parsed as JSON or as Python literals,
never executed, and sizes are bounded.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import ExporterFacts, Outputs, PictureFacts, is_size, labels_by_number

MAX_LITERAL = 1 << 20
_LETTERBOX_FILL = 114


@dataclass(frozen=True)
class _Export:
    """The metadata of an Ultralytics export, and its tensors.

    `is_transformer`: an RT-DETR, whose boxes are fractions of a stretched picture without overlaps to suppress.
    `suppresses`: the model drops overlaps itself. `channels_last`: its picture is NHWC, as in older TFLite files.
    """

    task: str
    outputs: Outputs
    is_tflite: bool
    is_transformer: bool
    suppresses: bool
    channels_last: bool


def ultralytics(
    metadata: Mapping[str, str], model: Path, inputs: Sequence[TensorSpec], outputs: Outputs
) -> ExporterFacts | None:
    """The metadata of an Ultralytics export: `task`, `names`, `imgsz`, `head`, `end2end`, `args`.

    Pictures are letterboxed to `imgsz` on grey 114 and scaled to 0..1. A classifier's are cropped from the middle,
    and its scores are after a softmax.
    """
    task, names = metadata.get("task", ""), _literal(metadata.get("names", ""))
    if "Ultralytics" not in metadata.get("author", "") or not task:
        return None
    size = _literal(metadata.get("imgsz", ""))
    square = tuple(size) if is_size(size) else None
    labels = labels_by_number(names)
    picture = PictureFacts(square, "contain", fill=_LETTERBOX_FILL, filter="bilinear", scale=1 / 255)
    source = f"its Ultralytics metadata ({task})"
    if task == "classify":
        is_square = square is None or square[0] == square[1]
        picture = replace(picture, fit="cover" if is_square else "stretch", fill=None)
        return ExporterFacts(source, labels, picture, scores="probabilities", boxes=None)
    if task not in ("detect", "segment", "pose", "obb"):
        note = f"the outputs of a model for {task} are not decoded, but passed on unchanged"
        return ExporterFacts(source, (), picture, boxes={}, notes=(note,))
    arguments = _literal(metadata.get("args", ""))
    export = _Export(
        task,
        outputs,
        model.suffix == ".tflite",
        "RTDETR" in metadata.get("head", "") or "rtdetr" in metadata.get("description", "").lower(),
        metadata.get("end2end", "").lower() == "true"
        or (isinstance(arguments, Mapping) and arguments.get("nms") is True),
        len(inputs) == 1 and inputs[0].shape[-1] == 3,
    )
    if export.is_transformer:
        picture = replace(picture, fit="stretch", fill=None)
    return _ultralytics_boxes(ExporterFacts(source, labels, picture), metadata, export)


def _besides(metadata: Mapping[str, str], export: _Export) -> tuple[int, Mapping[str, str]] | None:
    """The number of values of a box beyond a detector's, and the keys that describe them; None if unknown."""
    if export.task == "obb":
        return 1, {"angle": "true"}
    if export.task == "pose":
        points = _literal(metadata.get("kpt_shape", ""))
        known = is_size(points) and points[1] in (2, 3)
        return (points[0] * points[1], {"keypoints": f"[{points[0]}, {points[1]}]"}) if known else None
    if export.task == "segment":
        prototypes = next((one for one in export.outputs if len(one.shape) == 4 and one.shape[1] > 0), None)
        known = prototypes is not None and not export.channels_last
        return (prototypes.shape[1], {"prototypes": prototypes.name}) if known and prototypes else None
    return 0, {}


def _ultralytics_boxes(facts: ExporterFacts, metadata: Mapping[str, str], export: _Export) -> ExporterFacts:
    """The keys of the step `boxes`, by the shape of the raw tensor."""
    raw = next((one for one in export.outputs if len(one.shape) == 3), None)
    besides = _besides(metadata, export)
    if raw is None or besides is None or not facts.labels:
        note = (
            "its outputs do not have the layout of a known export; they are passed on unchanged, and no request is hard"
        )
        return replace(facts, boxes={}, notes=(note,))
    numbers, more = besides
    layout = _layout(raw.shape, 4 + len(facts.labels) + numbers, 6 + numbers, export)
    if not layout:
        found = f"{raw.name} {list(raw.shape)}"
        note = (
            f"{found} does not hold the {len(facts.labels)} classes; it is passed on unchanged, and no request is hard"
        )
        return replace(facts, boxes={}, notes=(note,))
    suppressed, is_turned = layout == "suppressed", "angle" in more
    keys = {"from": raw.name, "axes": "NCA" if layout == "NCA" else "NAC"}
    keys["format"] = "xyxy" if suppressed and not is_turned and not export.is_transformer else "cxcywh"
    keys |= {"suppressed": "true"} if suppressed else {}
    keys |= {"iou": "1.0"} if suppressed or export.is_transformer else {}
    # In TFLite files boxes are fractions, or an int8 output would lose the scores; with suppression only in older
    # ones.
    is_fraction = export.is_transformer or (export.is_tflite and (not suppressed or export.channels_last))
    return replace(facts, boxes={**keys, **({"normalized": "true"} if is_fraction else {}), **more})


def _layout(
    shape: Sequence[int], wide: int, suppressed: int, export: _Export
) -> Literal["", "NCA", "NAC", "suppressed"]:
    """The layout of the raw tensor: [rows, `wide`, boxes], [rows, boxes, `wide`] or [rows, boxes, `suppressed`];
    empty if unknown.

    An RT-DETR's box has the scores of all classes, or since 8.4 the best score and its class: with two classes both
    have the same width.
    """
    first, last = shape[1:]
    if export.is_transformer:
        return "" if wide == suppressed else "suppressed" if last == suppressed else "NAC" if last == wide else ""
    if first == last == -1:  # a model of any size
        return "suppressed" if export.suppresses else "NCA"
    if last == suppressed and (first != wide or export.suppresses):
        return "suppressed"
    return "NCA" if first == wide else "NAC" if last == wide else ""


def _literal(text: str) -> Any:
    """A Python literal or JSON, None if it is neither or too long."""
    if len(text) > MAX_LITERAL:
        return None
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None
