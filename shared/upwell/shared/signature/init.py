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
    boxes = _boxes(model_outputs) if rows and picture is not None else None
    pre = _inputs(model_inputs, picture, "cover" if boxes is None else "contain")
    post = _outputs(model_outputs, boxes)
    return "\n".join(_lines(pre, post, rows)) + "\n"


def _lines(pre: _Part, post: _Part, rows: bool) -> list[str]:
    return [
        "# A starting point: what could be guessed from the model's tensors. Check each line that has a comment.",
        "version: 1",
        "signature:",
        *(
            []
            if rows
            else ["  # the tensors do not share a leading dimension: a request is one whole", "  rows: false"]
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


def _inputs(specs: Sequence[TensorSpec], picture: TensorSpec | None, fit: str) -> _Part:
    part = _Part()
    for spec in specs:
        if spec is picture:
            name = "image" if len(specs) == 1 else spec.name
            part.signature += ["# one JPEG, PNG or WebP per row, or pixels", f"{_text(name)}: {{kind: image}}"]
            part.steps += _picture_steps(spec, _text(name), fit)
        else:
            shape = [size if size > 0 else -1 for size in spec.shape]
            part.signature.append(f"{_text(spec.name)}: {{kind: tensor, dtype: {spec.datatype}, shape: {shape}}}")
    return part


def _picture_steps(spec: TensorSpec, source: str, fit: str) -> list[str]:
    first = _channels(spec) == 1
    height, width = spec.shape[2:] if first else spec.shape[1:3]
    color = "gray" if spec.shape[1 if first else 3] == 1 else "rgb"
    steps = [f"- decode: {{from: {source}, color: {color}}}"]
    if height > 0 and width > 0:
        steps += [
            "# fit as in training: cover cuts the edges, contain pads, stretch does neither",
            f"- resize: {{from: {source}, to: [{height}, {width}], fit: {fit}}}",
        ]
    if spec.datatype in ("FP32", "INT8"):
        steps += [
            "# 0..255 becomes 0..1; as in training, perhaps mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]",
            f"- normalize: {{from: {source}}}",
        ]
    if spec.datatype == "INT8":
        steps += [
            "# scale and zero_point of the model's input",
            f"- quantize: {{from: {source}, scale: 0.00392157, zero_point: -128, dtype: INT8}}",
        ]
    return [*steps, f"- layout: {{from: {source}, order: NCHW}}"] if first else steps


def _outputs(specs: Sequence[TensorSpec], boxes: list[str] | None) -> _Part:
    if boxes is not None:
        return _Part(["# labels: labels.txt, one per line", "detections: {kind: detections}"], boxes)
    part = _Part()
    for spec in specs:
        name = _text(spec.name)
        if len(spec.shape) != 2 or 0 <= spec.shape[1] < 2 or spec.datatype not in (*FLOATS, "UINT8", "INT8"):
            part.signature.append(f"{name}: {{kind: tensor}}")
        elif spec.datatype in FLOATS:
            part.signature += _scores(spec)
        else:
            zero_point = 0 if spec.datatype == "UINT8" else -128
            part.signature += ["# tensor, where these are no class scores", f"{name}: {{kind: probabilities}}"]
            part.steps += [
                "# scale and zero_point of the model's output",
                f"- dequantize: {{from: {name}, scale: 0.00390625, zero_point: {zero_point}}}",
            ]
    return part


def _scores(spec: TensorSpec) -> list[str]:
    if re.search("prob|softmax", spec.name, re.IGNORECASE):
        return ["# logits, where a row does not sum to 1", f"{_text(spec.name)}: {{kind: probabilities}}"]
    return [
        "# probabilities, where a row sums to 1; embedding or tensor, where these are no class scores",
        f"{_text(spec.name)}: {{kind: logits}}",
    ]


def _boxes(specs: Sequence[TensorSpec]) -> list[str] | None:
    """A boxes step, where the tensors look like a detector's."""
    if any(spec.datatype not in FLOATS for spec in specs):
        return None
    if len(specs) == 1 and len(specs[0].shape) == 3:
        return _raw_boxes(specs[0])
    fours = [spec for spec in specs if len(spec.shape) == 3 and spec.shape[2] == 4]
    if len(fours) != 1:
        return None
    boxes = fours[0]
    others = [spec for spec in specs if spec is not boxes and spec.shape[1:2] == boxes.shape[1:2]]
    ranks = [len(spec.shape) for spec in others]
    if ranks == [3] and boxes.shape[1] >= _MIN_BOXES:
        names = f"boxes: {_text(boxes.name)}, scores: {_text(others[0].name)}"
        return [
            "# format and normalized as the model has them; background: 0, where class 0 is none",
            f"- boxes: {{{names}, format: xyxy, normalized: true}}",
        ]
    if ranks == [2, 2]:
        names = f"boxes: {_text(boxes.name)}, classes: {_text(others[0].name)}, scores: {_text(others[1].name)}"
        return [
            "# classes and scores may be the other way round; iou: 1.0, since the model drops overlaps itself",
            f"- boxes: {{{names}, format: yxyx, normalized: true, iou: 1.0}}",
        ]
    return None


def _raw_boxes(spec: TensorSpec) -> list[str] | None:
    _, middle, last = spec.shape
    axes, width, count = ("NCA", middle, last) if 5 <= middle <= last or last < 0 else ("NAC", last, middle)
    if width < 5 or 0 <= count < _MIN_BOXES:
        return None
    objectness = ", objectness: true" if width == 85 else ""
    return [
        "# format; objectness: true, where the fifth number is one; normalized: true, where boxes are fractions",
        f"- boxes: {{from: {_text(spec.name)}, axes: {axes}, format: cxcywh{objectness}}}",
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
