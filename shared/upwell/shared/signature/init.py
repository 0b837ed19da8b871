"""A starting `model.yaml` for a model of which only the tensors are known: guesses, each with a comment to check it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from upwell.shared.signature.signature import own_signature
from upwell.shared.signature.values import FLOATS
from upwell.shared.tensors import TensorSpec

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_RESERVED = frozenset(("null", "true", "false"))
_MIN_BOXES = 64
"""A detector proposes more boxes than this; fewer are taken for some other tensor."""


@dataclass
class _Part:
    """Lines of the file for one phase, and the signature entries that go with them."""

    signature: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def starting_description(model_inputs: Sequence[TensorSpec], model_outputs: Sequence[TensorSpec]) -> str:
    """The text of a `model.yaml` that loads for these tensors, with comments that say what to check."""
    picture = next((spec for spec in model_inputs if _is_picture(spec)), None)
    chunks = {spec.shape[0] if spec.shape else 0 for spec in model_inputs}
    leads = {spec.shape[0] if spec.shape else 0 for spec in model_outputs}
    rows = len(chunks) == 1 and 0 not in chunks and leads <= {-1, max(*chunks, 1)}
    if picture is None:
        rows = rows and own_signature(model_inputs, model_outputs).has_rows
    pre = _inputs(model_inputs, picture)
    post = _outputs(model_outputs, picture if rows else None)
    return "\n".join(_lines(pre, post, rows)) + "\n"


def _lines(pre: _Part, post: _Part, rows: bool) -> list[str]:
    return [
        "# A starting point: what could be guessed from the model's tensors. Check each line that has a comment.",
        "version: 1",
        "signature:",
        *(
            []
            if rows
            else ["  rows: false    # the model's tensors do not share a leading dimension: a request is one whole"]
        ),
        "  inputs:",
        *(f"    {line}" for line in pre.signature),
        "  outputs:",
        *(f"    {line}" for line in post.signature),
        *_phase("pre", pre.steps),
        *_phase("post", post.steps),
    ]


def _phase(name: str, steps: Sequence[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in steps)] if steps else [f"{name}: []"]


def _inputs(specs: Sequence[TensorSpec], picture: TensorSpec | None) -> _Part:
    part = _Part()
    for spec in specs:
        if spec is picture:
            name = "image" if len(specs) == 1 else spec.name
            part.signature.append(f"{_text(name)}: {{kind: image}}    # one JPEG, PNG or WebP per row, or pixels")
            part.steps += _picture_steps(spec, name)
        else:
            shape = [size if size > 0 else -1 for size in spec.shape]
            part.signature.append(f"{_text(spec.name)}: {{kind: tensor, dtype: {spec.datatype}, shape: {shape}}}")
    return part


def _picture_steps(spec: TensorSpec, name: str) -> list[str]:
    first = _channels(spec) == 1
    channels = spec.shape[1 if first else 3]
    height, width = spec.shape[2:] if first else spec.shape[1:3]
    source = _text(name)
    steps = [f"- decode: {{from: {source}, color: {'gray' if channels == 1 else 'rgb'}}}"]
    if height > 0 and width > 0:
        steps.append(
            f"- resize: {{from: {source}, to: [{height}, {width}], fit: cover}}    "
            "# cover cuts the edges; contain pads (detectors); stretch does neither"
        )
    if spec.datatype in ("FP32", "INT8"):
        steps.append(
            f"- normalize: {{from: {source}}}    "
            "# 0..255 -> 0..1; as in training, such as mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"
        )
    if spec.datatype == "INT8":
        steps.append(
            f"- quantize: {{from: {source}, scale: 0.00392157, zero_point: -128, dtype: INT8}}    "
            "# scale and zero_point of the model's input"
        )
    if first:
        steps.append(f"- layout: {{from: {source}, order: NCHW}}")
    return steps


def _outputs(specs: Sequence[TensorSpec], picture: TensorSpec | None) -> _Part:
    boxes = _boxes(specs) if picture is not None else None
    if boxes is not None:
        return _Part(["detections: {kind: detections}    # labels: labels.txt, one per line"], boxes)
    part = _Part()
    for spec in specs:
        name = _text(spec.name)
        if len(spec.shape) != 2 or 0 <= spec.shape[1] < 2 or spec.datatype not in (*FLOATS, "UINT8", "INT8"):
            part.signature.append(f"{name}: {{kind: tensor}}")
        elif spec.datatype in FLOATS:
            part.signature.append(_scores(spec))
        else:
            zero_point = 0 if spec.datatype == "UINT8" else -128
            part.signature.append(f"{name}: {{kind: probabilities}}    # tensor, where these are no class scores")
            part.steps.append(
                f"- dequantize: {{from: {name}, scale: 0.00390625, zero_point: {zero_point}}}    "
                "# scale and zero_point of the model's output"
            )
    return part


def _scores(spec: TensorSpec) -> str:
    if re.search("prob|softmax", spec.name, re.IGNORECASE):
        return f"{_text(spec.name)}: {{kind: probabilities}}    # logits, where a row does not sum to 1"
    return (
        f"{_text(spec.name)}: {{kind: logits}}    # probabilities, where a row sums to 1; embedding or tensor, "
        "where these are no class scores"
    )


def _boxes(specs: Sequence[TensorSpec]) -> list[str] | None:
    """A boxes step, where the tensors look like a detector's."""
    if any(spec.datatype not in FLOATS for spec in specs):
        return None
    if len(specs) == 1 and len(specs[0].shape) == 3:
        return _raw_boxes(specs[0])
    fours = [spec for spec in specs if len(spec.shape) == 3 and spec.shape[2] == 4]
    if len(fours) != 1:
        return None
    others = [spec for spec in specs if spec is not fours[0] and spec.shape[1:2] == fours[0].shape[1:2]]
    if len(others) == 1 and len(others[0].shape) == 3 and fours[0].shape[1] >= _MIN_BOXES:
        names = f"boxes: {_text(fours[0].name)}, scores: {_text(others[0].name)}, format: xyxy"
        return [
            f"- boxes: {{{names}, normalized: true}}    "
            "# format, normalized as the model has them; background: 0, where class 0 is none"
        ]
    flat = [spec for spec in others if len(spec.shape) == 2]
    if len(flat) == 2 and len(others) == 2:
        names = f"boxes: {_text(fours[0].name)}, classes: {_text(flat[0].name)}, scores: {_text(flat[1].name)}"
        return [
            f"- boxes: {{{names}, format: yxyx, normalized: true, iou: 1.0}}    "
            "# classes and scores may be the other way round; iou: 1.0, since the model suppresses overlaps itself"
        ]
    return None


def _raw_boxes(spec: TensorSpec) -> list[str] | None:
    _, middle, last = spec.shape
    axes, width, count = ("NCA", middle, last) if 5 <= middle <= last or last < 0 else ("NAC", last, middle)
    if width < 5 or 0 <= count < _MIN_BOXES:
        return None
    objectness = ", objectness: true" if width == 85 else ""
    return [
        f"- boxes: {{from: {_text(spec.name)}, axes: {axes}, format: cxcywh{objectness}}}    "
        "# format; objectness: true, where the fifth number is one; normalized: true, where boxes are fractions"
    ]


def _is_picture(spec: TensorSpec) -> bool:
    return spec.datatype in ("FP32", "UINT8", "INT8") and _channels(spec) is not None


def _channels(spec: TensorSpec) -> int | None:
    """The axis of a picture's channels, None where this is no picture."""
    if len(spec.shape) != 4:
        return None
    if spec.shape[1] in (1, 3) and all(size < 0 or size > 3 for size in spec.shape[2:]):
        return 1
    return 3 if spec.shape[3] in (1, 3) and all(size < 0 or size > 3 for size in spec.shape[1:3]) else None


def _text(name: str) -> str:
    """A name as YAML, quoted where it must be."""
    if _PLAIN.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    return '"' + "".join(_escaped(char) for char in name) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
