"""Tries a model on one picture or text with its new description: shows the best classes, or draws boxes."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from upwell.edge.models.plausible_outputs import implausible
from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import read_file, write_named
from upwell.shared.signature.detections import CORNERS, FIELDS, KEYPOINT
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.pixel_budget import DEFAULT_MAX_PIXELS
from upwell.shared.signature.postprocess import UNSEEN
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array

MAX_PICTURE_BYTES = 64 << 20
_BEST = 5
_SCORE, _CLASS = 4, 5
_LINE = 3
_SEEN = 0.5
_TINT = 120
_COLOUR = "#e4572e"


@dataclass(frozen=True)
class TrialResult:
    """The result: a line for each finding, and the path of the picture with boxes, if there is one."""

    lines: tuple[str, ...]
    drawn: Path | None = None


def try_sample(runtime: Runtime, description: Path, sample: str, *, force: bool) -> TrialResult:
    """Run the model on a file with a picture or a text, or on the text itself, through its description.

    What it finds in a picture is drawn into a file beside it, which replaces another one only with `force`. Raises
    `ConfigError` if the sample is unusable, or if the model takes something else.
    """
    processor = Processor(load_description(description), runtime.inputs, runtime.outputs, runtime.name)
    kinds = [one.kind for one in processor.signature.inputs]
    if kinds == ["image"]:
        return _try_picture(runtime, processor, Path(sample), force)
    if kinds == ["text"]:
        is_file = os.path.isfile(sample)
        data = read_file(Path(sample), "a text", MAX_PICTURE_BYTES) if is_file else os.fsencode(sample)
        return _shown(processor.signature.outputs, _answered(runtime, processor, data))
    problem = "the model does not take just one picture or text; `upwell infer` sends it what it needs"
    raise ConfigError.at(None, problem, "--try")


def _answered(runtime: Runtime, processor: Processor, data: bytes) -> Mapping[str, Array]:
    given = np.array([data], object)
    prepared = processor.pre({processor.signature.inputs[0].name: given})
    return processor.post(processor.run_rows(runtime.run, prepared), prepared)


def _shown(outputs: Sequence[LogicalOutput], answer: Mapping[str, Array]) -> TrialResult:
    """The best classes and what contradicts them, if there are classes, otherwise a summary of each output."""
    scores = next((one for one in outputs if one.kind in ("probabilities", "logits")), None)
    if scores is not None:
        return TrialResult((*_classes(scores, answer[scores.name][0]), *implausible(outputs, answer)))
    return TrialResult(tuple(_described(answer)))


def _try_picture(runtime: Runtime, processor: Processor, picture: Path, force: bool) -> TrialResult:
    if picture.exists() and not picture.is_file():
        raise ConfigError.at(picture, "this is not a regular file", "--try")
    data = read_file(picture, "a picture", MAX_PICTURE_BYTES)
    try:
        shown = Image.fromarray(decode(data, "rgb", DEFAULT_MAX_PIXELS))
    except InvalidRequest as error:
        raise ConfigError.at(picture, str(error), "--try") from None
    answer = _answered(runtime, processor, data)
    boxes = next((one for one in processor.signature.outputs if one.kind == "detections"), None)
    if boxes is not None:
        masks = next((answer[one.name][0] for one in processor.signature.outputs if one.kind == "masks"), None)
        shown = _tinted(shown, masks)
        lines = _boxes(boxes, answer[boxes.name][0], shown)
        return TrialResult(lines, _saved(shown, picture, "boxes", force))
    segments = next((one for one in processor.signature.outputs if one.kind == "segments"), None)
    if segments is not None:
        numbers = answer[segments.name][0][..., 0]
        return TrialResult(_segments(segments, numbers), _saved(_tinted(shown, numbers), picture, "segments", force))
    return _shown(processor.signature.outputs, answer)


def _classes(output: LogicalOutput, scores: Array) -> tuple[str, ...]:
    values = scores.astype(np.float64)
    if output.kind == "logits":
        values = np.exp(values - values.max())
        values /= values.sum()
    best = np.argsort(-values)[:_BEST]
    return tuple(f"{values[one]:7.1%}  {_label(output, int(one))}" for one in best)


def _boxes(output: LogicalOutput, rows: Array, shown: Image.Image) -> tuple[str, ...]:
    """A line for each box, which is drawn into the picture."""
    found = [row for row in rows if row[_CLASS] >= 0]
    draw, lines = ImageDraw.Draw(shown), []
    size = np.array([shown.width, shown.height])
    for row in found:
        corners = (row[:_SCORE].reshape(2, 2) * size).astype(float)
        name = _label(output, int(row[_CLASS]))
        further = row[FIELDS:]
        if further.size == CORNERS:
            turned = [tuple(map(float, point)) for point in further.reshape(4, 2) * size]
            draw.line([*turned, turned[0]], fill=_COLOUR, width=_LINE)
        else:
            draw.rectangle([tuple(corner) for corner in corners.tolist()], outline=_COLOUR, width=_LINE)
            for x, y, score in further.reshape(-1, KEYPOINT):
                if score >= _SEEN:
                    middle = x * shown.width, y * shown.height
                    draw.circle(tuple(map(float, middle)), _LINE, fill=_COLOUR)
        draw.text(tuple(corners[0] + _LINE), f"{name} {row[_SCORE]:.0%}", fill=_COLOUR)
        lines.append(f"{row[_SCORE]:7.1%}  {name}  at " + ", ".join(f"{corner:.0f}" for corner in corners.ravel()))
    return ("1 box" if len(found) == 1 else f"{len(found)} boxes", *lines)


def _saved(shown: Image.Image, picture: Path, what: str, force: bool) -> Path:
    names = chain([what], (f"{what}-{number}" for number in count(2)))
    targets = (picture.with_name(f"{picture.stem}-{name}.png") for name in names)
    target = next(path for path in targets if force or not path.exists())
    data = io.BytesIO()
    shown.save(data, "PNG")
    write_named(target, data.getvalue(), "--try")
    return target


def _tinted(shown: Image.Image, numbers: Array | None) -> Image.Image:
    """The picture with each nonzero number of the mask [height, width] tinted in its own colour."""
    if numbers is None:
        return shown
    colours = np.random.default_rng(0).integers(60, 256, (256, 3), np.uint8)
    over = Image.fromarray(colours[numbers]).resize(shown.size, Image.Resampling.NEAREST)
    where = Image.fromarray(np.where(numbers > 0, _TINT, 0).astype(np.uint8)).resize(
        shown.size, Image.Resampling.NEAREST
    )
    return Image.composite(over, shown, where)


def _segments(output: LogicalOutput, numbers: Array) -> tuple[str, ...]:
    classes, counts = np.unique(numbers, return_counts=True)
    parts = sorted(zip(counts.tolist(), classes.tolist(), strict=True), reverse=True)
    names = {number: "not seen" if number == UNSEEN else _label(output, number) for _, number in parts}
    return tuple(f"{size / counts.sum():7.1%}  {names[number]}" for size, number in parts)


def _described(outputs: Mapping[str, Array]) -> list[str]:
    return [
        f"{name}: {array.dtype} {list(array.shape)}"
        + (f", {array.min():.4g} to {array.max():.4g}" if array.size and array.dtype.kind in "fiu" else "")
        for name, array in outputs.items()
    ]


def _label(output: LogicalOutput, number: int) -> str:
    return output.labels[number] if number < len(output.labels) else f"class {number}"
