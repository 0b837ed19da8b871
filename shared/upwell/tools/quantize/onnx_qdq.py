"""Static int8 for ONNX: QuantizeLinear and DequantizeLinear around every node, weights per channel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData, create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from upwell.edge.runtimes.onnx.providers import plain_text
from upwell.edge.runtimes.onnx.tensor_conversion import caller_for
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.tensor_types import text_of
from upwell.shared.partition.read_onnx import opset_of
from upwell.tools.quantize.onnx_graph import (
    layer_nodes,
    prepared,
    put_in_order,
    read_float_values,
    read_model,
    session_of,
)
from upwell.tools.quantize.onnx_layer_errors import layers_of
from upwell.tools.quantize.quantizer import Arithmetic, Feed, FloatModel, Layer, LayerNode, QuantizeSettings, Run

_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
_OPERATORS = sorted({*QDQRegistry, *QLinearOpsRegistry})
_PER_COLLECTION = 32
"""Number of runs whose smallest and largest values are merged at once. Histograms keep every activation, so one at a
time.
"""

_LEAST_RANGE = 0.0001
"""Minimum scale, since NPUs reject the almost zero scale of an activation that is always zero."""

_SHOWN = 3


class OnnxQuantizer:
    """A `Quantizer` of ONNX models; see there."""

    def __init__(self, model: FloatModel, settings: QuantizeSettings) -> None:
        if settings.interface != "float":
            raise ConfigError.at(model.path, "the inputs and outputs of an ONNX model stay float", "--interface")
        self._path = model.path
        self._inputs, self._outputs = model.inputs, model.outputs
        self._settings = settings
        self._signed = (settings.weights or ("s8" if settings.target == "npu" else "u8")) == "s8"
        original = read_model(model.path)
        before = [node.name for node in original.graph.node if node.name]
        opset = opset_of(original)
        self._model = prepared(original, model.path)
        del original
        self.graph: Sequence[LayerNode] = layer_nodes(self._model)
        self.nodes: Sequence[LayerNode] = [node for node in self.graph if node.operator in _OPERATORS]
        if not self.nodes:
            raise ConfigError.at(model.path, "it has no operator that can be quantized")
        self.folded = frozenset(before) - {node.name for node in self._model.graph.node}
        raised = opset_of(self._model)
        self.scheme = f"QDQ, activations u8, weights {'s8' if self._signed else 'u8'} per channel, opset {raised}" + (
            f" (raised from {opset})" if raised != opset else ""
        )
        self._ranges: Any = None
        self._without_range = ""

    def calibrate(self, feeds: Iterable[Feed]) -> None:
        """Learn the ranges of all activations; see `Quantizer.calibrate`."""
        method = _METHODS[self._settings.method]
        is_minmax = method is CalibrationMethod.MinMax
        with tempfile.TemporaryDirectory(prefix="upwell-quantize-") as folder:
            source = Path(folder, "float.onnx")
            onnx.save(self._model, str(source))
            try:
                calibrator = create_calibrator(
                    source,
                    _OPERATORS,
                    augmented_model_path=str(Path(folder, "augmented.onnx")),
                    calibrate_method=method,
                    extra_options={"symmetric": False},
                )
                reader = _Reader(map(self._raw, feeds), _PER_COLLECTION if is_minmax else 1)
                while reader.more():
                    calibrator.collect_data(reader)
                ranges = calibrator.compute_data().items()
            except ConfigError:
                raise
            except Exception as error:  # onnxruntime may raise anything on an unusual model
                raise ConfigError.at(self._path, f"calibration failed: {plain_text(error)}") from error
        finite = {name: seen for name, seen in ranges if np.isfinite([seen.lowest, seen.highest]).all()}
        self._ranges = TensorsData(method, finite)
        endless = [repr(name) for name, _ in ranges if name not in finite][:_SHOWN]
        if endless:
            self._without_range = (
                f"{', '.join(endless)} is not finite on some row of the data; keep its nodes float with --keep-float"
            )

    def quantized(self, keep_float: Sequence[str]) -> bytes:
        """The int8 model; see `Quantizer.quantized`."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)  # the quantizer changes its argument
        options: dict[str, Any] = {"ForceQuantizeNoInputCheck": False}
        if self._settings.target == "npu":
            options |= {"MinimumRealRange": _LEAST_RANGE, "ForceQuantizeNoInputCheck": True}
        try:
            quantizer = QDQQuantizer(
                model,
                True,  # per channel
                False,  # weights keep all eight bits
                QuantType.QInt8 if self._signed else QuantType.QUInt8,
                QuantType.QUInt8,
                self._ranges,
                [],
                list(keep_float),
                _OPERATORS,
                options,
            )
            quantizer.quantize_model()
        except Exception as error:  # onnxruntime may raise anything on an unusual model
            reason = self._without_range or plain_text(error)
            raise ConfigError.at(self._path, f"onnxruntime cannot quantize it: {reason}") from error
        made = quantizer.model.model
        if not any(node.op_type == "QuantizeLinear" for node in made.graph.node):
            is_kept = {node.name for node in self.nodes} <= {*keep_float}
            operators = ", ".join(sorted({node.operator for node in self.graph}))
            why = "every node is kept float" if is_kept else f"onnxruntime leaves {operators} float here"
            raise ConfigError.at(self._path, f"nothing was quantized: {why}")
        able = {node.name for node in self.nodes}
        read_float_values(made.graph, {*keep_float, *(node.name for node in self.graph if node.name not in able)})
        put_in_order(made.graph)
        made.producer_name = "upwell model quantize"
        return bytes(made.SerializeToString())

    def opened(self, model: bytes, arithmetic: Arithmetic = "served") -> Run:
        """The int8 model, ready to run; see `Quantizer.opened`. Raises `ConfigError` if onnxruntime made one that does
        not run.
        """
        with tempfile.TemporaryDirectory(prefix="upwell-quantize-") as folder:
            file = Path(folder, "model.onnx")
            try:
                if arithmetic != "served":
                    session = session_of(onnx.ModelProto.FromString(model), arithmetic, threads=1)
                    return caller_for(session, self._inputs, self._outputs)
                file.write_bytes(model)
                return load_runtime(file, RuntimeOptions(threads=1)).run
            except Exception as error:  # onnxruntime's errors share no base class
                reason = error.problems[0].message if isinstance(error, ConfigError) else plain_text(error)
                reason = reason.replace(str(file), "it")
                raise ConfigError.at(self._path, f"onnxruntime did not make a working model of it: {reason}") from error

    def layers(self, model: bytes, feeds: Iterable[Feed]) -> Sequence[Layer]:
        """The result of each node of the int8 model against the float one; see `Quantizer.layers`."""
        made = onnx.ModelProto.FromString(model)
        arithmetic: Arithmetic = "exact" if self._settings.target == "npu" else "served"
        return layers_of(self._model, made, map(self._raw, feeds), arithmetic)

    def _raw(self, feed: Feed) -> Feed:
        """A feed as ONNX Runtime takes it: with text where callers send bytes."""
        texts = [one.name for one in self._inputs if one.datatype == "BYTES"]
        return {**feed, **{name: text_of(name, feed[name]) for name in texts}}


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Yields runs in small groups, so that not all activations of all rows are held at once."""

    def __init__(self, feeds: Iterable[Feed], per_collection: int) -> None:
        self._feeds = iter(feeds)
        self._per_collection = per_collection
        self._left = 0
        self._next: Feed | None = None

    def more(self) -> bool:
        """Whether there is another group; begins it."""
        self._left = self._per_collection
        self._next = next(self._feeds, None)
        return self._next is not None

    def get_next(self) -> Feed | None:
        """The next run of this group."""
        if self._left == 0:
            return None
        self._left -= 1
        feed = self._next
        self._next = next(self._feeds, None) if self._left else None
        return feed
