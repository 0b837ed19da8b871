"""Writes trained networks to files: ONNX, safetensors, and both int8 formats of the device."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import flatbuffers
import litert_torch
import onnx
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_quantizer import quantizer, recipe
from ai_edge_quantizer.algorithm_manager import AlgorithmName
from ai_edge_quantizer.qtyping import TFLOperationName
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from safetensors.torch import save_file
from torch import nn

from upwell.shared.tensors import Array

OPSET = 18
IR_VERSION = 10
"""The newest that ONNX Runtime 1.23 reads, which JetPack 6 has."""


def write_safetensors(net: nn.Module, path: Path) -> None:
    """Write the weights of `net` alone."""
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path)


def write_onnx(net: nn.Module, example: Array, path: Path) -> None:
    """Write `net` as float32 ONNX, `x` [batch, ...] to `logits` [batch, ...]."""
    with _quiet():
        program = torch.onnx.export(
            net,
            (torch.from_numpy(example[:2]),),
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
        )
    assert program is not None
    _save_onnx(program.model_proto, path)


def write_onnx_int8(net: nn.Module, calibration: Array, path: Path) -> None:
    """Write `net` as static int8 ONNX in QDQ form, calibrated on the rows of `calibration`.

    Activations and weights are both unsigned: signed weights saturate on CPUs without VNNI.
    """
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        floats, prepared = Path(scratch, "float.onnx"), Path(scratch, "prepared.onnx")
        write_onnx(net, calibration, floats)
        quant_pre_process(floats, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            path,
            _Rows(calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QUInt8,
        )
    _save_onnx(onnx.load(path), path)


def write_tflite_int8(net: nn.Module, calibration: Array, path: Path) -> None:
    """Write `net` as static int8 TFLite for one row, calibrated on the rows of `calibration`.

    The tensors at its edges stay float32, so ONNX and TFLite share pre- and post-processing.
    """
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        floats = Path(scratch, "float.tflite")
        litert_torch.convert(net, (torch.from_numpy(calibration[:1]),)).export(str(floats))
        rules = recipe.static_wi8_ai8()
        work = quantizer.Quantizer(str(floats), rules)
        for border in (TFLOperationName.INPUT, TFLOperationName.OUTPUT):
            work.update_quantization_recipe(".*", border, algorithm_key=AlgorithmName.NO_QUANTIZE)
        ranges = work.calibrate({"serving_default": [{"args_0": row[None]} for row in calibration]})
        work.quantize(ranges).export_model(str(path), overwrite=True)
    _rename_tflite(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converters' progress off the terminal; their errors are raised, not printed."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class _Rows(CalibrationDataReader):
    def __init__(self, rows: Array) -> None:
        self._feeds: Iterator[dict[str, Array]] = ({"x": row[None]} for row in rows)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def _save_onnx(model: onnx.ModelProto, path: Path) -> None:
    # The exporter records the call stack of every node, with paths of the exporting machine.
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _rename_tflite(path: Path) -> None:
    """Give the model's tensors and its signature the names of the ONNX file: `x` and `logits`."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    for name, index, entries in (
        (b"x", graph.inputs[0], signature.inputs),
        (b"logits", graph.outputs[0], signature.outputs),
    ):
        graph.tensors[index].name = name
        (entry,) = entries
        entry.name = name
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(builder.Output())
