"""Torch networks: built from a class with weights from safetensors, or from the program in a safetensors file.

A program is a graph of listed ATen operators; see `upwell.shared.formats.torch_program`. Its file contains no code:
operators are looked up only by listed names, and sizes are numbers or multiples of the rows.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

import torch

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.safetensors_weights import misfits, open_weights, refuse_misfits
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
from upwell.shared.tensors import DTYPES, TensorSpec

_Place: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Address, shape and strides of a tensor: tied names of a module have the same."""

CLASSES = "upwell.torch_models"
"""The entry-point group that maps a model's name to the class of its network."""


def find_class(name: str, dotted: str) -> type[torch.nn.Module]:
    """The class for a model: `dotted` (`class` of cloud.yaml), else the entry point of the model's name.

    Raises `ModelFailed` if there is none, or it is not a network.
    """
    if not dotted:
        found = list(entry_points(group=CLASSES, name=name))
        if not found:
            raise ModelFailed(f"it has no class; write `class: package.module.Class` under models.{name} in cloud.yaml")
        dotted = found[0].value.replace(":", ".")
    network = _import(dotted)
    if not (isinstance(network, type) and issubclass(network, torch.nn.Module)):
        raise ModelFailed(f"{dotted} is not a class derived from torch.nn.Module")
    return network


def _import(dotted: str) -> Any:
    module_name, _, class_name = dotted.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelFailed(f"class {dotted}: {error}; install it or put its folder on PYTHONPATH") from error
    except Exception as error:  # the operator's module may raise any error
        raise ModelFailed(f"class {dotted}: importing {module_name} failed: {reason_of(error)}") from error
    if not hasattr(module, class_name):
        raise ModelFailed(f"class {dotted}: module {module_name} has no {class_name}")
    return getattr(module, class_name)


def declared_specs(module: torch.nn.Module, attribute: str) -> tuple[TensorSpec, ...]:
    """The `inputs` or `outputs` declared by a class or program. Raises `ModelFailed` if they are wrong."""
    network, declared = type(module), getattr(module, attribute, None)
    try:
        specs = tuple(TensorSpec(str(name), str(kind), tuple(map(int, shape))) for name, kind, shape in declared or ())
    except (TypeError, ValueError):
        specs = ()
    if not specs:
        raise ModelFailed(
            f"class {network.__qualname__} needs `{attribute}`: a tuple of (name, datatype, shape), "
            'such as (("x", "FP32", (-1, 3, 224, 224)),)'
        )
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ModelFailed(f"class {network.__qualname__}: `{attribute}` names one tensor twice: {', '.join(names)}")
    for spec in specs:
        if any(size < -1 for size in spec.shape):
            raise ModelFailed(
                f"class {network.__qualname__}: `{attribute}` gives {spec.name!r} the shape {list(spec.shape)}; "
                "expected sizes, or -1 for a dynamic one"
            )
        if spec.datatype == "BYTES" or spec.datatype not in DTYPES:
            raise ModelFailed(
                f"class {network.__qualname__}: `{attribute}` gives {spec.name!r} the datatype {spec.datatype}; "
                "expected a numeric datatype such as FP32"
            )
    return specs


def build(network: type[torch.nn.Module], weights: Path, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """Build the class with `arguments` and the weights of a safetensors file. Raises `ModelFailed`."""
    try:
        module = network(**arguments)
        state = module.state_dict()
        places = {name: (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for name, tensor in state.items()}
    except Exception as error:  # the operator's class may raise any error
        raise ModelFailed(f"class {network.__qualname__} cannot be built: {reason_of(error)}") from error
    tensors = _read_weights(weights, network.__qualname__, places)
    floats = {name: tensor.is_floating_point() for name, tensor in state.items()}
    wrong = [name for name, tensor in tensors.items() if tensor.is_floating_point() != floats[name]]
    if wrong:  # torch would cast them silently
        found, expected = tensors[wrong[0]].dtype, state[wrong[0]].dtype
        raise ModelFailed(
            f"{weights.name} does not fit class {network.__qualname__}: {wrong[0]} is {found}, expected {expected}"
        )
    try:
        module.load_state_dict(tensors, strict=True)
    except Exception as error:  # the operator's class may raise any error
        raise ModelFailed(f"class {network.__qualname__} does not accept {weights.name}: {reason_of(error)}") from error
    return module


def _read_weights(path: Path, network: str, places: Mapping[str, _Place]) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, after comparing names and shapes with the class's.

    Of names that the class ties to one tensor the file may hold one alone, as `safetensors.torch.save_model` and
    Hugging Face write them. Raises `ModelFailed` for an unreadable or mismatched file.
    """
    with open_weights(path, "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
        holders = {place: name for name, place in places.items() if name in found}
        sources = {name: name if name in found else holders.get(place, name) for name, place in places.items()}
        expected = {name: shape for name, (_, shape, _) in places.items() if sources[name] == name}
        wrong = [*misfits("class", expected, found)]
        wrong += [f"{name} is not in the class" for name in found if name not in places]
        refuse_misfits(path, f"class {network}", wrong)
        # backed by the mapping, which lives as long as they do
        return {name: file.get_tensor(source) for name, source in sources.items()}


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
