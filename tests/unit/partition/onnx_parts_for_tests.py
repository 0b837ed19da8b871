"""Parts of ONNX graphs for tests of reading, contracting and splitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.unit.models_for_tests import IR_VERSION, OPSET

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
"""Nine networks of the model zoo, with weights that are made when they run."""

op = helper.make_node


def value(name: str, shape: tuple[int | str | None, ...] | None = None, kind: int = TensorProto.FLOAT) -> Any:
    """The declaration of a tensor, FP32 and without a shape where none is given."""
    return helper.make_tensor_value_info(name, kind, None if shape is None else list(shape))


def weights(*shape: int, seed: int = 0) -> Any:
    """Small random numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) / 10).astype(np.float32)


def model(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write a model as it is, valid or not; `more` goes to `make_model`."""
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    more = {"opset_imports": [helper.make_opsetid("", OPSET)], "ir_version": IR_VERSION, **more}
    path.write_bytes(helper.make_model(graph, **more).SerializeToString())
    return path


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """A graph inside a node."""
    return helper.make_graph(nodes, "body", inputs, outputs)


def quantize(x: str, q: str) -> Any:
    """A QuantizeLinear with the constants `scale` and `zero`."""
    return op("QuantizeLinear", [x, "scale", "zero"], [q], name=f"quantize_{x}")


def dequantize(q: str, x: str) -> Any:
    """A DequantizeLinear with the constants `scale` and `zero`."""
    return op("DequantizeLinear", [q, "scale", "zero"], [x], name=f"dequantize_{x}")


QUANTIZATION = {"scale": np.float32(0.1), "zero": np.uint8(128)}
