"""Building a torch network from its class, the class's declarations, and weights from safetensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.safetensors_weights import misfits, open_weights, refuse_misfits
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import DTYPES, TensorSpec

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
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    except Exception as error:  # the operator's class may raise any error
        raise ModelFailed(f"class {network.__qualname__} cannot be built: {reason_of(error)}") from error
    tensors = _read_weights(weights, network.__qualname__, shapes)
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


def _read_weights(path: Path, network: str, expected: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, after comparing names and shapes with the class's.

    Raises `ModelFailed` for an unreadable or mismatched file.
    """
    with open_weights(path, "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
        wrong = [*misfits("class", expected, found)]
        wrong += [f"{name} is not in the class" for name in found if name not in expected]
        refuse_misfits(path, f"class {network}", wrong)
        return {name: file.get_tensor(name) for name in found}  # backed by the mapping, which lives as long as they do
