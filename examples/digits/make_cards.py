"""Make the detector of the demo's video: it finds green frames of 52 x 52 pixels, which enclose digits.

Nothing is trained: a box filter measures the green in a window of a frame's size, and its local maxima are the
frames.
    python examples/digits/make_cards.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parents[2] / "shared/upwell/tools/demo/assets/edge/cards"
HEIGHT, WIDTH = 240, 320
FRAME_PX, INSIDE_PX = 26, 20
"""In pixels of the video at half its size."""
MOST = 16
FULL = (FRAME_PX**2 - INSIDE_PX**2) / FRAME_PX**2 * (200 / 255)
"""Mean green of a window that lies exactly on a frame."""

MODEL_YAML = """\
# onnx: image FP32 [1, 3, 240, 320] -> boxes FP32 [1, 16, 4], scores FP32 [1, 16, 1]
version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {cards: {kind: detections, labels: labels.txt}}
pre:
  - decode: image
  - resize: {to: [240, 320], filter: bilinear}
  - normalize: {scale: 0.00392156862745098} # 1 / 255
  - layout: NCHW
post: [{boxes: {boxes: boxes, scores: scores, format: cxcywh, min_score: 0.6, iou: 0.3, to: cards}}]
"""


def constant(name: str, value: object, dtype: type) -> onnx.TensorProto:
    """A tensor of the graph."""
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def constants() -> list[onnx.TensorProto]:
    """The constants of the graph."""
    return [
        constant("greenness", np.reshape([-0.5, 1.0, -0.5], (1, 3, 1, 1)), np.float32),
        constant("across", np.full((1, 1, 1, FRAME_PX), 1 / FRAME_PX), np.float32),
        constant("down", np.full((1, 1, FRAME_PX, 1), 1 / FRAME_PX), np.float32),
        constant("flat_shape", [1, -1], np.int64),
        constant("most", [MOST], np.int64),
        constant("width", WIDTH, np.int64),
        constant("one", 1.0, np.float32),
        constant("full", FULL, np.float32),
        constant("side", np.full((1, MOST, 2), INSIDE_PX), np.float32),
        constant("last", [2], np.int64),
    ]


def detector() -> onnx.ModelProto:
    """The graph: green, its mean over windows of a frame's size, local maxima, the best of these."""
    before, after = (FRAME_PX - 1) // 2, FRAME_PX // 2
    nodes = [
        helper.make_node("Conv", ["image", "greenness"], ["signed"]),
        helper.make_node("Relu", ["signed"], ["green"]),
        helper.make_node("Conv", ["green", "across"], ["rows"], pads=[0, before, 0, after]),
        helper.make_node("Conv", ["rows", "down"], ["heat"], pads=[before, 0, after, 0]),
        helper.make_node("MaxPool", ["heat"], ["best"], kernel_shape=[27, 27], pads=[13, 13, 13, 13]),
        helper.make_node("Equal", ["heat", "best"], ["is_peak"]),
        helper.make_node("Cast", ["is_peak"], ["peak"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["heat", "peak"], ["peaks"]),
        helper.make_node("Reshape", ["peaks", "flat_shape"], ["flat"]),
        helper.make_node("TopK", ["flat", "most"], ["values", "places"], axis=1),
        helper.make_node("Div", ["places", "width"], ["y_whole"]),
        helper.make_node("Mod", ["places", "width"], ["x_whole"]),
        helper.make_node("Cast", ["x_whole"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["y_whole"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "one"], ["cx"]),
        helper.make_node("Add", ["y", "one"], ["cy"]),
        helper.make_node("Unsqueeze", ["cx", "last"], ["cx_column"]),
        helper.make_node("Unsqueeze", ["cy", "last"], ["cy_column"]),
        helper.make_node("Concat", ["cx_column", "cy_column", "side"], ["boxes"], axis=2),
        helper.make_node("Div", ["values", "full"], ["shares"]),
        helper.make_node("Min", ["shares", "one"], ["capped"]),
        helper.make_node("Unsqueeze", ["capped", "last"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cards",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, HEIGHT, WIDTH])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, MOST, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, MOST, 1]),
        ],
        constants(),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="upwell")
    model.ir_version = 9
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Write the model, its description and its label."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(detector().SerializeToString())
    (FOLDER / "model.yaml").write_text(MODEL_YAML)
    (FOLDER / "labels.txt").write_text("card\n")


if __name__ == "__main__":
    main()
