"""Make the two detectors and the two pictures of `docs/quickstart.md`: no download and no training.

A detector finds bright squares and discs on a dark background with matched filters, whose weights are computed rather
than learnt. The small one sees 64 x 64 pixels, so it misses small shapes in a large picture full of them; the large
one sees 128 x 128. As with real models, their tensors differ in every way: size, layout, and the form of boxes and
scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

Floats = npt.NDArray[np.float32]
Shapes = dict[str, list[int | str]]

SIDES = (6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20)
"""Sides of the shapes it looks for, in the model's pixels."""
CLASSES = ("square", "disc")
RING = 1
"""Width of the ring around a shape that must be dark, in pixels."""
KERNEL = 2 * (max(SIDES) // 2 + RING) + 1
STRIDE = 2
NEIGHBOURS = 5
"""Side of the square of places in which only the best one is kept."""
OPSET, IR_VERSION = 17, 8


@dataclass(frozen=True)
class Shape:
    """A shape to draw: its kind, centre, and side or diameter in pixels."""

    kind: str
    x: int
    y: int
    side: int


SMALL = (Shape("square", 34, 38, 16), Shape("disc", 90, 44, 20), Shape("square", 64, 96, 14))
LARGE = tuple(
    Shape(CLASSES[(row + column) % 2], 70 + 120 * column, 70 + 120 * row, 34 + 6 * ((3 * row + column) % 5))
    for row in range(4)
    for column in range(4)
)


def filters() -> Floats:
    """Matched filters [classes * sides, 1, KERNEL, KERNEL]: the mean within the shape minus the mean around it.

    The response to a shape that fits is its brightness minus that of the background. Half of what a disc's filter
    takes for "around" are the four corners of its box, which are bright under a square.
    """
    centered = np.arange(KERNEL, dtype=np.float32) - KERNEL // 2
    x, y = np.meshgrid(centered, centered)
    kernels = []
    for kind in CLASSES:
        for side in SIDES:
            inside = _inside(kind, side / 2, x, y)
            square, wider = _inside("square", side / 2, x, y), _inside("square", side / 2 + RING, x, y)
            around = _mean(wider - square)
            corners = _mean(square - inside) if kind == "disc" else around
            kernels.append(_mean(inside) - (around + corners) / 2)
    return np.stack(kernels)[:, None].astype(np.float32)


def _inside(kind: str, radius: float, x: Floats, y: Floats) -> Floats:
    """How much of each pixel lies within the shape, 0 to 1."""
    distance = np.hypot(x, y) if kind == "disc" else np.maximum(np.abs(x), np.abs(y))
    covered: Floats = np.clip(radius + 0.5 - distance, 0, 1)
    return covered


def _mean(weights: Floats) -> Floats:
    normalized: Floats = weights / weights.sum()
    return normalized


def anchors(size: int) -> Floats:
    """The box of each place and side, [sides * places, 4] as centre x, centre y, width, height in pixels."""
    places = np.arange(0, size, STRIDE, dtype=np.float32) + STRIDE / 2
    y, x = np.meshgrid(places, places, indexing="ij")
    boxes = [np.stack([x, y, np.full_like(x, side), np.full_like(x, side)], -1).reshape(-1, 4) for side in SIDES]
    return np.concatenate(boxes)


def edge_detector() -> onnx.ModelProto:
    """NCHW 64 x 64 -> one tensor [rows, 4 + classes, boxes]: centre, width and height in pixels, then the scores."""
    boxes = anchors(64)
    nodes = [*_body("images"), helper.make_node("Concat", ["boxes", "class_scores"], ["output0"], axis=1)]
    outputs: Shapes = {"output0": ["rows", 4 + len(CLASSES), len(boxes)]}
    return _model("edge-detector", ["rows", 3, 64, 64], nodes, outputs, boxes.T)


def cloud_detector() -> onnx.ModelProto:
    """NHWC 128 x 128 -> boxes [rows, boxes, 4], y1, x1, y2, x2 in fractions, and scores [rows, boxes, classes]."""
    x, y, width, height = (column / 128 for column in anchors(128).T)
    corners = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    nodes = [
        helper.make_node("Transpose", ["images"], ["nchw"], perm=[0, 3, 1, 2]),
        *_body("nchw"),
        helper.make_node("Transpose", ["class_scores"], ["scores"], perm=[0, 2, 1]),
    ]
    outputs: Shapes = {"boxes": ["rows", len(corners), 4], "scores": ["rows", len(corners), len(CLASSES)]}
    return _model("cloud-detector", ["rows", 128, 128, 3], nodes, outputs, corners)


def _body(picture: str) -> list[onnx.NodeProto]:
    """Convert to grey, match the filters, keep the best of each neighbourhood: `class_scores` [rows, classes, boxes].

    Also returns `boxes`, which are the same for every row.
    """
    pad, near = KERNEL // 2, NEIGHBOURS // 2
    node = helper.make_node
    return [
        node("Conv", [picture, "gray"], ["light"]),
        node("Conv", ["light", "filters"], ["matches"], pads=[pad] * 4),
        node("Clip", ["matches", "nothing"], ["positive"]),
        node("ReduceMax", ["positive"], ["best"], axes=[1], keepdims=1),
        node("MaxPool", ["best"], ["best_near"], kernel_shape=[NEIGHBOURS] * 2, pads=[near] * 4),
        node("GreaterOrEqual", ["positive", "best_near"], ["is_peak"]),
        node("Where", ["is_peak", "positive", "nothing"], ["peaks"]),
        node("MaxPool", ["peaks"], ["fewer"], kernel_shape=[STRIDE] * 2, strides=[STRIDE] * 2),
        node("Reshape", ["fewer", "by_class"], ["class_scores"]),
        node("Shape", [picture], ["rows"], end=1),
        node("Concat", ["rows", "one_row"], ["all_rows"], axis=0),
        node("Expand", ["row_boxes", "all_rows"], ["boxes"]),
    ]


def _model(
    name: str, picture: list[int | str], nodes: list[onnx.NodeProto], outputs: Shapes, boxes: Floats
) -> onnx.ModelProto:
    constants = {
        "gray": np.full((1, 3, 1, 1), 1 / 3, dtype=np.float32),
        "filters": filters(),
        "nothing": np.float32(0),
        "by_class": np.array([0, len(CLASSES), boxes.size // 4], dtype=np.int64),
        "row_boxes": boxes[None],
        "one_row": np.array(boxes.shape, dtype=np.int64),
    }
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, picture)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape) for output, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), constant) for constant, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def draw(side: int, shapes: Sequence[Shape], path: Path) -> None:
    """A picture of `side` x `side` pixels: bright shapes on a dark background, and the noise of a camera."""
    picture = Image.new("RGB", (side, side), (20, 24, 30))
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        half = shape.side / 2
        box = (shape.x - half, shape.y - half, shape.x + half - 1, shape.y + half - 1)
        (pen.ellipse if shape.kind == "disc" else pen.rectangle)(box, fill=(235, 230, 220))
    noise = np.random.default_rng(7).normal(0, 6, (side, side, 3))
    noisy = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(path)


def main(folder: Path) -> None:
    """Write everything below `folder`."""
    models = {"edge/model.onnx": edge_detector(), "cloud/detector-large/1/model.onnx": cloud_detector()}
    for name, model in models.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / name)
    draw(128, SMALL, folder / "small.png")
    draw(512, LARGE, folder / "large.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    main(parser.parse_args().folder)
