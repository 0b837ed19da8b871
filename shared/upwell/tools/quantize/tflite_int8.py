"""Static int8 for TFLite: activations s8, weights s8 per channel, by ai-edge-quantizer."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_quantizer import calibrator, quantizer, recipe, recipe_manager
from ai_edge_quantizer.algorithm_manager import AlgorithmName
from ai_edge_quantizer.qtyping import TFLOperationName
from ai_edge_quantizer.utils.qsv_utils import min_max_update
from ai_edge_quantizer.utils.tfl_flatbuffer_utils import TFL_OP_CODE_TO_NAME

from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import one_line
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array, numpy_dtype
from upwell.tools.quantize.quantizer import Arithmetic, Feed, FloatModel, Layer, LayerNode, QuantizeSettings, Run
from upwell.tools.quantize.tflite_graph import read_graph
from upwell.tools.quantize.tflite_layer_errors import layers_of, real, stored

_SHOWN = 3


class TfliteQuantizer:
    """A `Quantizer` of TFLite models; see there. Its nodes are named as in coverage, for example `3 CONV_2D`."""

    def __init__(self, model: FloatModel, settings: QuantizeSettings) -> None:
        if settings.weights == "u8":
            raise ConfigError.at(model.path, "TFLite's kernels take only s8 weights", "--weights")
        if settings.method != "minmax":
            raise ConfigError.at(
                model.path, f"only ONNX models support {settings.method}; TFLite supports minmax", "--method"
            )
        self._path = model.path
        self._outputs = [spec.name for spec in model.outputs]
        self._keeps_float_edges = settings.interface == "float"
        self._graph = read_graph(model)
        self.graph: Sequence[LayerNode] = self._graph.nodes
        known = zip(self._graph.nodes, self._graph.codes, strict=True)
        self.nodes: Sequence[LayerNode] = [node for node, code in known if code in TFL_OP_CODE_TO_NAME]
        if not self.nodes:
            raise ConfigError.at(model.path, "it has no operator that can be quantized")
        self.folded: frozenset[str] = frozenset()
        self.scheme = f"activations s8, weights s8 per channel, inputs and outputs {settings.interface}"
        self._ranges: Mapping[str, Any] = {}

    def calibrate(self, feeds: Iterable[Feed]) -> None:
        """Learn the ranges of all activations; see `Quantizer.calibrate`."""
        rules = recipe_manager.RecipeManager()
        rules.load_quantization_recipe(recipe.static_wi8_ai8())
        try:
            work = calibrator.Calibrator(self._graph.content, num_threads=1, qsv_update_func=min_max_update)
            for feed in feeds:
                work.calibrate({self._graph.signature: [dict(feed)]}, rules)
            self._ranges = work.get_model_qsvs()
        except ConfigError:
            raise
        except Exception as error:  # ai-edge-quantizer may raise anything on an unusual model
            raise ConfigError.at(self._path, f"calibration failed: {one_line(error)}") from error

    def quantized(self, keep_float: Sequence[str]) -> bytes:
        """The int8 model; see `Quantizer.quantized`."""
        self._check_ranges(keep_float)
        try:
            work = quantizer.Quantizer(bytearray(self._graph.content), recipe.static_wi8_ai8())
            if self._keeps_float_edges:
                for edge in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
                    work.update_quantization_recipe(".*", edge, algorithm_key=AlgorithmName.NO_QUANTIZE)
            for node, code, outputs in zip(self._graph.nodes, self._graph.codes, self._graph.outputs, strict=True):
                if node.name in keep_float:
                    # The name of an operator is those of its results, each followed by a semicolon.
                    scope = re.escape("".join(f"{name};" for name in outputs))
                    work.update_quantization_recipe(
                        f"^{scope}$", TFL_OP_CODE_TO_NAME[code], algorithm_key=AlgorithmName.NO_QUANTIZE
                    )
            made = work.quantize(self._ranges, enable_progress_bar=False, enable_progress_report=False)
        except Exception as error:  # ai-edge-quantizer may raise anything on an unusual model
            raise ConfigError.at(self._path, f"ai-edge-quantizer cannot quantize it: {one_line(error)}") from error
        model = bytes(made.quantized_model)
        self._open(model)
        return model

    def opened(self, model: bytes, arithmetic: Arithmetic = "served") -> Run:
        """The int8 model, ready to run; TFLite's kernels have one arithmetic, which does not saturate."""
        del arithmetic
        runtime = self._open(model)
        return lambda feed: _real(runtime, runtime.run(_stored(runtime, feed)))

    def layers(self, model: bytes, feeds: Iterable[Feed]) -> Sequence[Layer]:
        """The result of each node of the int8 model against the float one; see `Quantizer.layers`."""
        return layers_of(self._graph, model, feeds)

    def _check_ranges(self, keep_float: Sequence[str]) -> None:
        """Raise for nodes without a range: int8 kernels made for NaN crash the process."""
        endless = {
            name for name, seen in self._ranges.items() if not all(np.isfinite(one).all() for one in seen.values())
        }
        nodes = [
            repr(node.name)
            for node, *names in zip(self._graph.nodes, self._graph.inputs, self._graph.outputs, strict=True)
            if node in self.nodes and node.name not in keep_float and endless.intersection(chain(*names))
        ]
        if nodes:
            shown = ", ".join(nodes[:_SHOWN])
            raise ConfigError.at(
                self._path,
                f"{shown} have values that are not finite on some row of the data: keep such nodes float with "
                "--keep-float",
            )

    def _open(self, model: bytes) -> TfliteRuntime:
        """The int8 model in its runtime. Raises `ConfigError` if ai-edge-quantizer made one that does not run."""
        reason = "it lacks outputs of the float model"
        with tempfile.TemporaryDirectory(prefix="upwell-quantize-") as folder:
            file = Path(folder, "model.tflite")
            file.write_bytes(model)
            try:
                runtime = TfliteRuntime(file, RuntimeOptions(threads=1))
            except ConfigError as error:
                reason = error.problems[0].message.rstrip(".")
            else:
                if [one.name for one in runtime.outputs] == self._outputs:
                    return runtime
        if self._graph.read_outputs:
            names = ", ".join(map(repr, self._graph.read_outputs))
            reason += f". Its own nodes read the output {names}: --interface int8 without --keep-float may work"
        raise ConfigError.at(self._path, f"ai-edge-quantizer did not produce a working model: {reason}")


def _stored(runtime: TfliteRuntime, feed: Feed) -> dict[str, Array]:
    given = dict(feed)
    for spec in runtime.inputs:
        if spec.name in runtime.quantization:
            given[spec.name] = stored(feed[spec.name], *runtime.quantization[spec.name], numpy_dtype(spec.datatype))
    return given


def _real(runtime: TfliteRuntime, outputs: Mapping[str, Array]) -> dict[str, Array]:
    made = dict(outputs)
    for name, quantization in runtime.quantization.items():
        if name in made and made[name].dtype.kind in "iu":
            made[name] = real(made[name], *quantization)
    return made
