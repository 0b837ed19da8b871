"""PyTorch: a module whose class the operator names, with weights from a safetensors file.

The class says what it takes and gives, since a safetensors file holds weights and nothing else: `inputs`
and `outputs` are tuples of (name, OIP datatype, shape), with -1 for a dimension that varies. `forward`
takes tensors in the order of `inputs` and returns a tensor, or a tuple in the order of `outputs`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

# A failing plugin of another accelerator would break `import torch` itself.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import ml_dtypes
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.checks import check_batch, reason_of, shape_fits, zero_batch
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import DTYPES, Array, TensorSpec

CLASSES = "upwell.torch_models"
"""Entry-point group: a model's name -> the class of its network."""

_BF16 = np.dtype(ml_dtypes.bfloat16)


class TorchEngine:
    """One module in evaluation mode on one device; all instances of a model share it."""

    file_name: ClassVar[str] = "model.safetensors"
    platform: ClassVar[str] = "pytorch_safetensors"

    def __init__(self, module: torch.nn.Module, device: torch.device, threads: int) -> None:
        self.version = f"torch {torch.__version__}"
        self.inputs = _specs(type(module), "inputs")
        self.outputs = _specs(type(module), "outputs")
        self._module: torch.nn.Module | None = module
        self._device = device
        self._threads = threads

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> TorchEngine:
        """Build the class that the operator named and put the weights of `path` in. Raises `ModelFailed`."""
        device = _device(settings.device)
        network = _network(name, settings.torch_class)
        try:
            module = network(**settings.arguments)
        except Exception as error:  # the operator's own class may raise anything
            raise ModelFailed(f"class {network.__qualname__} cannot be built: {reason_of(error)}") from error
        module.load_state_dict(_weights(path, module), strict=True)
        try:
            return cls(module.eval().to(device), device, settings.threads)
        except RuntimeError as error:
            raise ModelFailed(f"device {settings.device!r}: {reason_of(error)}") from error

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the module. See `Engine.run`."""
        check_batch(batch, self.inputs)
        module = self._module
        if module is None:
            raise ModelFailed("the model is closed")
        if torch.get_num_threads() != self._threads:  # a setting of the calling thread, and any thread may call
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                tensors = [_to_torch(batch[spec.name]).to(self._device) for spec in self.inputs]
                answer = module(*tensors)
                results = answer if isinstance(answer, (tuple, list)) else (answer,)
                arrays = [_to_numpy(result) for result in results]
        except Exception as error:  # the operator's own class may raise anything
            raise ModelFailed(f"the network failed: {reason_of(error)}") from error
        return self._checked(arrays)

    def _checked(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """The results by name, if they are what the class says of itself."""
        if len(arrays) != len(self.outputs):
            raise ModelFailed(f"the network gave {len(arrays)} outputs, its class declares {len(self.outputs)}")
        for spec, array in zip(self.outputs, arrays, strict=True):
            if array.dtype != DTYPES[spec.datatype] or not shape_fits(array.shape, spec.shape):
                raise ModelFailed(
                    f"output {spec.name!r} is {array.dtype} {list(array.shape)}, "
                    f"its class declares {spec.datatype} {list(spec.shape)}"
                )
        return {spec.name: array for spec, array in zip(self.outputs, arrays, strict=True)}

    def warm_up(self, rows: int) -> None:
        """Run zeros once, so that memory is taken and kernels are chosen. See `Engine.warm_up`."""
        batch = zero_batch(self.inputs, rows)
        if batch is not None:
            self.run(batch)

    def close(self) -> None:
        """Free the module."""
        self._module = None


def _device(text: str) -> torch.device:
    """The device named in the settings, if this torch can reach it."""
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except Exception as error:  # a missing backend raises AssertionError, RuntimeError and others
        raise ModelFailed(f"device {text!r} is not usable: {reason_of(error)}") from error
    return device


def _network(name: str, dotted: str) -> type[torch.nn.Module]:
    """The class for a model: `class` of cloud.yaml, else the entry point of the model's name."""
    if not dotted:
        found = list(entry_points(group=CLASSES, name=name))
        if not found:
            raise ModelFailed(
                f"no class is named for it; write `class: package.module.Class` under models.{name} in cloud.yaml"
            )
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
    except Exception as error:  # the operator's own module may raise anything
        raise ModelFailed(f"class {dotted}: importing {module_name} failed: {reason_of(error)}") from error
    if not hasattr(module, class_name):
        raise ModelFailed(f"class {dotted}: module {module_name} has no {class_name}")
    return getattr(module, class_name)


def _specs(network: type[torch.nn.Module], attribute: str) -> tuple[TensorSpec, ...]:
    """What the class declares under `inputs` or `outputs`."""
    declared = getattr(network, attribute, None)
    try:
        specs = tuple(TensorSpec(str(name), str(kind), tuple(map(int, shape))) for name, kind, shape in declared or ())
    except (TypeError, ValueError):
        specs = ()
    if not specs:
        raise ModelFailed(
            f"class {network.__qualname__} needs `{attribute}`: a tuple of (name, datatype, shape), "
            'such as (("x", "FP32", (-1, 3, 224, 224)),)'
        )
    for spec in specs:
        if spec.datatype == "BYTES" or spec.datatype not in DTYPES:
            raise ModelFailed(
                f"class {network.__qualname__}: `{attribute}` says {spec.name!r} is {spec.datatype}; "
                "expected a numeric datatype such as FP32"
            )
    return specs


def _weights(path: Path, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, after names and shapes have been compared with the module's."""
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
            _compare(path, type(module).__qualname__, expected, found)
            return {name: file.get_tensor(name) for name in found}
    except (SafetensorError, OSError) as error:
        raise ModelFailed(f"{path.name} is not a readable safetensors file: {reason_of(error)}") from error


def _compare(
    path: Path, network: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not in the class" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {list(found[name])}, the class {list(shape)}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ModelFailed(f"{path.name} does not fit class {network}: {'; '.join(wrong[:5])}{more}")


def _to_torch(array: Array) -> torch.Tensor:
    """A tensor with memory of its own: the network may write to it, and a request's array may be read-only."""
    own = np.array(array, order="C")
    if own.dtype == _BF16:
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(own)


def _to_numpy(tensor: torch.Tensor) -> Array:
    """A fresh array, also where the network returned its input or one of its weights."""
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).cpu().numpy()
        return bits.view(_BF16).copy()
    array: Array = tensor.detach().cpu().numpy()
    return array.copy()
