"""A model tried on one picture by its new description: the best classes, or the boxes drawn into the picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.files import read_file
from upwell.shared.signature.description import load_description
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

MAX_PICTURE_BYTES = 64 << 20
_BEST = 5
_SCORE, _CLASS = 4, 5
_LINE = 3
_RUNS = 3
_SLACK = 0.03  # the steps of an int8 output add up to so much
_COLOUR = "#e4572e"


@dataclass(frozen=True)
class TrialResult:
    """What came of it: a line for each thing that was found, and where the picture with boxes lies, if there is one."""

    lines: tuple[str, ...]
    drawn: Path | None = None


def scores_of(runtime: Runtime, quantization: Mapping[str, tuple[float, int]]) -> Literal["", "probabilities"]:
    """Whether the model's only output is probabilities, by runs on random inputs: each row is positive and sums to 1.

    Empty where it is not, there are several, or nobody says how large an input is.
    """
    outputs = runtime.outputs
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or 0 <= outputs[0].shape[1] < 2:
        return ""
    if any(size < 0 for spec in runtime.inputs for size in spec.shape[1:]):
        return ""
    chance = np.random.default_rng(0)
    scale, zero_point = quantization.get(outputs[0].name, (1.0, 0))
    for _ in range(_RUNS):
        inputs = {spec.name: _random(spec, chance) for spec in runtime.inputs}
        try:
            rows = (runtime.run(inputs)[outputs[0].name].astype(np.float64) - zero_point) * scale
        except UpwellError:
            return ""
        if rows.min() < -_SLACK or np.abs(rows.sum(axis=1) - 1).max() > _SLACK:
            return ""
    return "probabilities"


def _random(spec: TensorSpec, chance: np.random.Generator) -> Array:
    shape = [max(size, 1) for size in spec.shape]
    dtype = numpy_dtype(spec.datatype)
    if dtype.kind == "f":
        return chance.uniform(-1, 1, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return chance.integers(max(limits.min, 0), min(limits.max, 127), shape, endpoint=True).astype(dtype)
    return np.full(shape, b"", object) if dtype == np.object_ else np.zeros(shape, dtype)


def try_picture(runtime: Runtime, description: Path, picture: Path) -> TrialResult:
    """Run the model on the file `picture`. Raises `ConfigError` where it is no picture, or the model takes none."""
    processor = Processor(load_description(description), runtime.inputs, runtime.outputs, runtime.name)
    signature = processor.signature
    if [one.kind for one in signature.inputs] != ["image"]:
        raise ConfigError.at(
            picture, "the model takes more than one picture; `upwell infer` sends it what it needs", "--try"
        )
    data = read_file(picture, "a picture", MAX_PICTURE_BYTES)
    try:
        with Image.open(io.BytesIO(data)) as opened:
            shown = ImageOps.exif_transpose(opened.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError):
        raise ConfigError.at(picture, "this is no picture that can be read", "--try") from None
    given = np.array([data], object)
    prepared = processor.pre({signature.inputs[0].name: given})
    outputs = processor.post(processor.run_rows(runtime.run, prepared), prepared)
    for output in signature.outputs:
        if output.kind == "detections":
            return _boxes(output, outputs[output.name][0], shown, picture)
        if output.kind in ("probabilities", "logits"):
            return TrialResult(_classes(output, outputs[output.name][0]))
    return TrialResult(tuple(_described(outputs)))


def _classes(output: LogicalOutput, scores: Array) -> tuple[str, ...]:
    values = scores.astype(np.float64)
    if output.kind == "logits":
        values = np.exp(values - values.max())
        values /= values.sum()
    best = np.argsort(-values)[:_BEST]
    return tuple(f"{values[one]:7.1%}  {_label(output, int(one))}" for one in best)


def _boxes(output: LogicalOutput, rows: Array, shown: Image.Image, picture: Path) -> TrialResult:
    found = [row for row in rows if row[_CLASS] >= 0]
    draw, lines = ImageDraw.Draw(shown), []
    size = np.array([shown.width, shown.height] * 2)
    for row in found:
        corners = tuple(map(float, row[:_SCORE] * size))
        name = _label(output, int(row[_CLASS]))
        draw.rectangle(corners, outline=_COLOUR, width=_LINE)
        draw.text((corners[0] + _LINE, corners[1] + _LINE), f"{name} {row[_SCORE]:.0%}", fill=_COLOUR)
        lines.append(f"{row[_SCORE]:7.1%}  {name}  at " + ", ".join(f"{corner:.0f}" for corner in corners))
    target = picture.with_name(f"{picture.stem}-boxes.png")
    shown.save(target)
    return TrialResult((f"{len(found)} boxes", *lines), target)


def _described(outputs: Mapping[str, Array]) -> list[str]:
    return [
        f"{name}: {array.dtype} {list(array.shape)}"
        + (f", {array.min():.4g} to {array.max():.4g}" if array.size and array.dtype.kind in "fiu" else "")
        for name, array in outputs.items()
    ]


def _label(output: LogicalOutput, number: int) -> str:
    return output.labels[number] if number < len(output.labels) else f"class {number}"
