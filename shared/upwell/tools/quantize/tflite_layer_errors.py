"""The error of each node of an int8 TFLite model, from the tensors of two interpreters that keep all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import DTypeLike

from upwell.shared.tensors import Array
from upwell.tools.quantize.quantization_error import ErrorSummary
from upwell.tools.quantize.quantizer import Feed, Layer, added_error
from upwell.tools.quantize.tflite_graph import FloatGraph


class _Open:
    """An interpreter whose intermediate tensors can be read, by name and as real numbers."""

    def __init__(self, content: bytes) -> None:
        self._interpreter: Any = Interpreter(
            model_content=content, experimental_preserve_all_tensors=True, num_threads=1
        )
        self._interpreter.allocate_tensors()
        (signature,) = self._interpreter._get_full_signature_list().values()
        self._inputs: Mapping[str, int] = signature["inputs"]
        self._details = {one["name"]: one for one in self._interpreter.get_tensor_details()}
        self._by_index = {one["index"]: one for one in self._interpreter.get_input_details()}

    def holds_integers(self, name: str) -> bool:
        """Whether the value is quantized here."""
        return name in self._details and _quantization(self._details[name]) is not None

    def __contains__(self, name: str) -> bool:
        return name in self._details and self._details[name]["dtype"] != np.object_

    def run(self, feed: Feed) -> None:
        """Run once."""
        for name, array in feed.items():
            index = self._inputs[name]
            detail = self._by_index[index]
            if tuple(detail["shape"]) != array.shape:
                self._interpreter.resize_tensor_input(index, array.shape, strict=True)
                detail["shape"] = np.asarray(array.shape)
                self._interpreter.allocate_tensors()
        for name, array in feed.items():
            detail = self._by_index[self._inputs[name]]
            scales = _quantization(detail)
            if scales is not None and array.dtype.kind == "f":
                array = stored(array, *scales, detail["dtype"])
            self._interpreter.set_tensor(self._inputs[name], array)
        self._interpreter.invoke()

    def value(self, name: str) -> Array:
        """A value of the last run, as real numbers."""
        detail = self._details[name]
        value: Array = self._interpreter.get_tensor(detail["index"])
        scales = _quantization(detail)
        return value if scales is None else real(value, *scales)


def layers_of(graph: FloatGraph, model: bytes, feeds: Iterable[Feed]) -> list[Layer]:
    """A layer for each node of the float graph whose result both models have, in order, measured on `feeds`."""
    before, after = _Open(graph.content), _Open(model)
    wanted = {name for names in (*graph.inputs, *graph.outputs) for name in names}
    differences = {name: ErrorSummary() for name in wanted if name in before and name in after}
    for feed in feeds:
        before.run(feed)
        after.run(feed)
        for name, difference in differences.items():
            expected = before.value(name)
            if expected.dtype.kind == "f":
                difference.add(expected, after.value(name))
    errors = {name: difference.relative for name, difference in differences.items()}
    layers = []
    for node, inputs, outputs in zip(graph.nodes, graph.inputs, graph.outputs, strict=True):
        made = [errors[name] for name in outputs if name in errors]
        error = max(made, default=math.nan)
        earlier = [errors[name] for name in inputs if name in errors]
        is_int8 = any(after.holds_integers(name) for name in outputs)
        added = math.nan if math.isnan(error) else added_error(error, earlier)
        layers.append(Layer(node.name, node.operator, "int8" if is_int8 else "float", error, added))
    return layers


def _quantization(detail: Mapping[str, Any]) -> tuple[float, int] | None:
    """Scale and zero point of a tensor whose integers represent real numbers, None for any other."""
    parameters = detail["quantization_parameters"]
    if len(parameters["scales"]) != 1:
        return None
    return parameters["scales"][0], parameters["zero_points"][0]


def stored(values: Array, scale: float, zero_point: int, dtype: DTypeLike) -> Array:
    """Real numbers as the integers that represent them."""
    limits = np.iinfo(dtype)
    integers = np.rint(values / np.float32(scale)) + np.float32(zero_point)
    clipped: Array = np.clip(integers, limits.min, limits.max).astype(limits.dtype)
    return clipped


def real(integers: Array, scale: float, zero_point: int) -> Array:
    """The real numbers that integers represent."""
    values: Array = (integers.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)
    return values
