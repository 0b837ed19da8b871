"""A program as a torch module: a graph of listed ATen operators, from a safetensors file with its weights.

See `upwell.shared.formats.torch_program`. The file contains no code: operators are looked up only by listed names, and
sizes are numbers or multiples of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from upwell.cloud.engines.safetensors_weights import open_weights
from upwell.shared.errors import ModelFailed
from upwell.shared.formats.torch_program import (
    GRAPH_KEY,
    Argument,
    BadProgram,
    DatatypeRef,
    Program,
    ProgramTensor,
    SizeRef,
    TensorRef,
    TensorRefs,
)

_DTYPES: Mapping[str, torch.dtype] = {
    "FP64": torch.float64, "FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16, "INT64": torch.int64,
    "INT32": torch.int32, "INT16": torch.int16, "INT8": torch.int8, "UINT8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class ProgramModule(torch.nn.Module):
    """Runs a program. `inputs` and `outputs` are declared as by a class for engine torch."""

    def __init__(self, program: Program, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.inputs, self.outputs = (tuple(map(_declared, side)) for side in (program.inputs, program.outputs))
        self._program = program
        self._calls = [_operator(node.operator, node.arguments) for node in program.nodes]
        self._buffer_names = {name: f"weight_{at}" for at, name in enumerate(program.weights)}
        for name, buffer in self._buffer_names.items():
            self.register_buffer(buffer, weights[name])

    @classmethod
    def open(cls, path: Path) -> ProgramModule | None:
        """The program in a safetensors file; None if the file has only weights. Raises `ModelFailed`."""
        with open_weights(path, "pt") as file:
            text = (file.metadata() or {}).get(GRAPH_KEY)
            if text is None:
                return None
            try:
                program = Program.parse(text)
            except BadProgram as error:
                raise ModelFailed(f"{path.name} contains a program that cannot be run: {error}") from None
            there = set(file.keys())
            missing = [name for name in program.weights if name not in there]
            if missing:
                raise ModelFailed(f"{path.name} lacks {missing[0]!r}, which its program reads")
            return cls(program, {name: file.get_tensor(name) for name in program.weights})

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Every output of the program, for its inputs in order."""
        program = self._program
        sizes: dict[str, int] = {}
        values: dict[str, Any] = {name: getattr(self, buffer) for name, buffer in self._buffer_names.items()}
        for facts, tensor in zip(program.inputs, tensors, strict=True):
            values[facts.name] = tensor
            sizes.update({dim: tensor.shape[at] for at, dim in enumerate(facts.shape) if isinstance(dim, str)})
        for node, call in zip(program.nodes, self._calls, strict=True):
            made = call(**{name: _value(one, values, sizes) for name, one in node.arguments.items()})
            results = made if isinstance(made, (tuple, list)) else (made,)
            values.update(zip(node.outputs, results, strict=True))
        return tuple(values[one.name] for one in program.outputs)


def _declared(one: ProgramTensor) -> tuple[str, str, tuple[int, ...]]:
    return one.name, one.datatype, tuple(-1 if isinstance(dim, str) else dim for dim in one.shape)


def _operator(operator: str, arguments: Mapping[str, Argument]) -> Any:
    """The listed operator of that name, after checking its arguments. Raises `ModelFailed`."""
    _, name, overload = operator.split(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if found is None:
        raise ModelFailed(f"torch {torch.__version__} has no operator {operator}")
    known = {one.name for one in found._schema.arguments}
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise ModelFailed(f"operator {operator} has no argument {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return found


def _value(argument: Argument, values: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    if isinstance(argument, TensorRef):
        return values[argument.tensor]
    if isinstance(argument, TensorRefs):
        return [None if name is None else values[name] for name in argument.tensors]
    if isinstance(argument, DatatypeRef):
        return _DTYPES[argument.datatype]
    if isinstance(argument, SizeRef):
        return _size(argument, sizes)
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return [_size(one, sizes) if isinstance(one, SizeRef) else one for one in argument]
    return argument


def _size(one: SizeRef, sizes: Mapping[str, int]) -> int:
    return math.prod(int(part) if part.isdecimal() else sizes[part] for part in one.size.split("*"))
