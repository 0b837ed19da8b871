"""Int8 models from float ones, as `upwell model quantize` makes them (U8U8), calibrated on seeded random inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from upwell.tools.quantize.model_quantization import open_float_model, quantizer_of
from upwell.tools.quantize.quantizer import QuantizeSettings


def quantized(
    model: onnx.ModelProto, folder: Path, rows: int = 8, settings: QuantizeSettings | None = None
) -> onnx.ModelProto:
    """The model with static int8 weights and activations; `folder` is for temporary files."""
    path = folder / "float.onnx"
    path.write_bytes(model.SerializeToString())
    opened = open_float_model(path)
    quantizer = quantizer_of(opened, settings or QuantizeSettings())
    random = np.random.default_rng(0)
    shapes = {one.name: [max(size, 1) for size in one.shape] for one in opened.inputs}
    quantizer.calibrate(
        {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()} for _ in range(rows)
    )
    return onnx.ModelProto.FromString(quantizer.quantized(()))
