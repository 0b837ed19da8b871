"""Converts a torch module to what devices run: ONNX for any number of rows by torch, TFLite by litert-torch."""

from __future__ import annotations

import inspect
import itertools
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.torch.networks import declared_specs
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.tensors import TensorSpec, numpy_dtype
from upwell.tools.export.torch_network import random_rows, relative_error, to_numpy, to_torch
from upwell.tools.terminal import quiet

OPSET, IR_VERSION = 18, 10
"""The opset that ONNX Runtime 1.23 reads, the version in JetPack 6."""

_GIVEN, _MADE = "upwell_given_{}", "upwell_made_{}"
"""Temporary names of inputs and outputs during the export, since torch may use their names for others."""

_EXAMPLE_ROWS = 2
"""Rows of the example, since the exporter treats a dimension of 1 as fixed."""


@dataclass(frozen=True)
class TorchNetwork:
    """A module in evaluation mode, and the inputs and outputs that its class declares."""

    module: torch.nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> TorchNetwork:
        """Raises `ModelFailed` if sizes other than the rows vary."""
        inputs, outputs = (declared_specs(module, attribute) for attribute in ("inputs", "outputs"))
        for spec in (*inputs, *outputs):
            if spec.shape[:1] != (-1,) or -1 in spec.shape[1:]:
                found = f"its class declares {spec.name} {list(spec.shape)}"
                raise ModelFailed(f"only the rows, the first size of every input and output, may vary; {found}")
        return cls(module, inputs, outputs)

    def examples(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Random inputs, the same at each call."""
        random = np.random.default_rng(0)
        return tuple(to_torch(random_rows(spec, rows, random)) for spec in self.inputs)


def exported(network: TorchNetwork, suffix: str) -> bytes:
    """The file for `.onnx` or `.tflite`. Raises `ModelFailed` if the exporter cannot convert the network.

    Raises `ModuleNotFoundError` or `ConfigError` if the exporter is not installed.
    """
    make = FORMATS[suffix]
    try:
        with quiet():
            return make(network)
    except (ModuleNotFoundError, ConfigError):
        raise
    except Exception as error:  # torch, litert-torch and the class itself may raise anything
        name = type(network.module).__qualname__
        raise ModelFailed(f"{name} cannot be exported to {suffix[1:]}: {_first_reason(error)}") from error


def _first_reason(error: BaseException) -> str:
    """The original cause of an exporter's error, which it wraps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return re.sub(r"\x1b\[[0-9;]*m", "", reason_of(error))


def largest_error(network: TorchNetwork, file: Path, rows: Sequence[int]) -> float:
    """The largest max |file - module| / max |module| of any output, for random inputs of so many `rows` each.

    The file runs as on a device, row by row if it takes one at a time. Raises `ModelFailed` if it does not run.
    """
    errors = [0.0]
    runtime = load_runtime(file, RuntimeOptions(threads=1))
    try:
        one_at_a_time = any(spec.shape[0] == 1 for spec in runtime.inputs)
        for count in rows:
            batch = network.examples(count)
            with torch.inference_mode():
                answer = network.module(*batch)
            expected = answer if isinstance(answer, (tuple, list)) else (answer,)
            arrays = {spec.name: to_numpy(one) for spec, one in zip(network.inputs, batch, strict=True)}
            # A converter narrows 64-bit integers.
            given = {spec.name: arrays[spec.name].astype(numpy_dtype(spec.datatype)) for spec in runtime.inputs}
            parts = [{name: array[row : row + 1] for name, array in given.items()} for row in range(count)]
            results = [runtime.run(part) for part in (parts if one_at_a_time else [given])]
            for spec, one in zip(network.outputs, expected, strict=True):
                found = np.concatenate([result[spec.name] for result in results])
                errors.append(relative_error(found, to_numpy(one)))
    finally:
        runtime.close()
    return float(np.max(errors))  # NaN if any is


def _onnx(network: TorchNetwork) -> bytes:
    import onnx
    import onnxscript  # noqa: F401  what torch's exporter needs, said before it has begun

    program = torch.onnx.export(
        network.module,
        network.examples(_EXAMPLE_ROWS),
        input_names=[_GIVEN.format(at) for at in range(len(network.inputs))],
        output_names=[_MADE.format(at) for at in range(len(network.outputs))],
        dynamic_shapes=_varying(network),
        opset_version=OPSET,
        dynamo=True,
    )
    if program is None:
        raise ConfigError.at(None, "torch's exporter returned nothing")
    model: Any = program.model_proto
    graph = model.graph  # its nodes record their origin, with paths of the exporting machine
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    declared = {_GIVEN.format(at): spec.name for at, spec in enumerate(network.inputs)}
    _rename(graph, declared | {_MADE.format(at): spec.name for at, spec in enumerate(network.outputs)})
    model.ir_version = min(model.ir_version, IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def _rename(graph: Any, declared: Mapping[str, str]) -> None:
    """Give inputs and outputs their names; an inner tensor with one of these names gets another."""
    taken = set(declared.values())
    inner = {name for node in graph.node for name in (*node.input, *node.output)} - declared.keys()
    renamed = dict(declared)
    for name in sorted(inner & taken):
        free = next(other for at in itertools.count() if (other := f"{name}_{at}") not in inner | taken)
        taken.add(free)
        renamed[name] = free
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed.get(value.name, value.name)


def _varying(network: TorchNetwork) -> Any:
    """Which sizes vary, in the form of the arguments: those of `*tensors` are one tuple."""
    rows = torch.export.Dim("rows")
    found = tuple({0: rows} if spec.shape[:1] == (-1,) else None for spec in network.inputs)
    kinds = {one.kind for one in inspect.signature(network.module.forward).parameters.values()}
    return (found,) if inspect.Parameter.VAR_POSITIONAL in kinds else found


def _tflite(network: TorchNetwork) -> bytes:
    try:
        import litert_torch
    except ModuleNotFoundError as error:
        if error.name != "litert_torch":
            raise
        how = "pip install litert-torch in a separate environment"
        raise ConfigError.at(None, f"TFLite needs litert-torch, with many dependencies: {how}") from None

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        litert_torch.convert(network.module, network.examples(1)).export(str(path))
        return _named(path.read_bytes(), network)


def _named(data: bytes, network: TorchNetwork) -> bytes:
    """The model with the names that the class declares, in the signature and of the tensors themselves."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    for specs, indexes, entries in (
        (network.inputs, graph.inputs, signature.inputs),
        (network.outputs, graph.outputs, signature.outputs),
    ):
        for spec, index in zip(specs, indexes, strict=True):
            graph.tensors[index].name = spec.name.encode()
            for entry in entries:
                if entry.tensorIndex == index:
                    entry.name = spec.name.encode()
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


FORMATS: Mapping[str, Callable[[TorchNetwork], bytes]] = {".onnx": _onnx, ".tflite": _tflite}
"""The exporter for each suffix."""
