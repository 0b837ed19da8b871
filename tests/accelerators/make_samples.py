"""Makes the small models with which `upwell devices` tries accelerators, and the answers that they should give.

    python -m tests.accelerators.make_samples      # writes shared/upwell/tools/devices/assets

`int8` is the demo's int8 digit reader, for one picture: accelerators take no tensors of varying size. `float` is a
layer of 16, ReLU, and a layer of 4 with made-up weights. Expected are, for `int8`, the labels of ten pictures that the
model is sure of, and for `float` what NumPy computes: never the word of an accelerator.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from ai_edge_litert import schema_py_generated as schema
from onnx import helper

from tests.unit import models_for_tests as in_onnx
from tests.unit import tflite_for_tests as in_tflite
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS as DEMO
from upwell.tools.demo.digit_data import heldout
from upwell.tools.devices.sample_models import ASSETS

DIGITS = 10
FEATURES, HIDDEN, CLASSES = 8, 16, 4


def weights() -> dict[str, Array]:
    """Of the `float` model."""
    random = np.random.default_rng(4)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def pictures(model: Path) -> Array:
    """For each digit in order, the held-out picture that the model is surest of, FP32 [10, 1, 8, 8] from 0 to 1."""
    digits = heldout()
    images = (digits.images / 255).astype(np.float32)[:, None]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    logits = np.concatenate([session.run(None, {"x": image[None]})[0] for image in images])
    margins = logits[np.arange(len(logits)), digits.labels] - np.sort(logits, axis=1)[:, -2]
    surest = [max(np.flatnonzero(digits.labels == label), key=lambda at: float(margins[at])) for label in range(DIGITS)]
    return images[surest]


def int8_onnx(folder: Path) -> Path:
    """The demo's digit reader with its batch fixed to 1."""
    model = onnx.load(DEMO / "edge" / "digits" / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    path = folder / "int8.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def float_onnx(folder: Path) -> Path:
    """`scores = relu(x w1 + b1) w2 + b2` in ONNX."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"], name="first"),
        helper.make_node("Relu", ["hidden"], ["kept"], name="relu"),
        helper.make_node("Gemm", ["kept", "w2", "b2"], ["scores"], name="second"),
    ]
    inputs, outputs = [in_onnx.tensor("x", [1, FEATURES])], [in_onnx.tensor("scores", [1, CLASSES])]
    return in_onnx.save(folder / "float.onnx", nodes, inputs, outputs, weights())


def float_tflite(folder: Path) -> Path:
    """The same in TFLite."""
    layer = (schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOptions.FullyConnectedOptions)
    made = weights()
    tensors = [
        in_tflite.T("x", (1, FEATURES)),
        *(in_tflite.T(f"w{n}", made[f"w{n}"].T.shape, data=made[f"w{n}"].T) for n in (1, 2)),
        *(in_tflite.T(f"b{n}", made[f"b{n}"].shape, data=made[f"b{n}"]) for n in (1, 2)),
        *(in_tflite.T(name, (1, HIDDEN)) for name in ("hidden", "kept")),
        in_tflite.T("scores", (1, CLASSES)),
    ]
    operators = [
        in_tflite.Op(layer[0], (0, 1, 3), (5,), layer[1], schema.FullyConnectedOptionsT()),
        in_tflite.Op(schema.BuiltinOperator.RELU, (5,), (6,)),
        in_tflite.Op(layer[0], (6, 2, 4), (7,), layer[1], schema.FullyConnectedOptionsT()),
    ]
    return in_tflite.save(folder / "float.tflite", tensors, operators, [0], [7], ({"x": 0}, {"scores": 7}))


def answers(int8: Path) -> dict[str, Array]:
    """Inputs and expected outputs of both models, a row each."""
    features = np.random.default_rng(5).standard_normal((DIGITS, FEATURES), np.float32)
    made = weights()
    scores = np.maximum(features @ made["w1"] + made["b1"], 0) @ made["w2"] + made["b2"]
    labels = np.eye(DIGITS, dtype=np.float32)
    return {"int8_in": pictures(int8), "int8_out": labels, "float_in": features, "float_out": scores}


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """An .npz whose bytes depend on the arrays alone."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def make(folder: Path) -> None:
    """Write all of them into `folder`."""
    int8 = int8_onnx(folder)
    float_onnx(folder)
    float_tflite(folder)
    save_arrays(folder / "answers.npz", answers(int8))


if __name__ == "__main__":
    make(ASSETS)
    sys.exit(0)
