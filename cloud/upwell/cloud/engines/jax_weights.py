"""The weights of a JAX program, from a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open

from upwell.cloud.engines.checks import reason_of
from upwell.cloud.engines.steady import steady
from upwell.cloud.engines.weights_header import check_header
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array, TensorSpec

_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "BOOL", "UINT8": "U8", "UINT16": "U16", "UINT32": "U32", "UINT64": "U64", "INT8": "I8", "INT16": "I16",
        "INT32": "I32", "INT64": "I64", "FP16": "F16", "BF16": "BF16", "FP32": "F32", "FP64": "F64",
    }
)  # fmt: skip
"""Datatypes as safetensors spells them. It knows more, for which NumPy has no numbers."""


def read_weights(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The tensors of the file at `path` that `specs` name, after its names, shapes and dtypes have been compared with
    them.

    What else the file holds is left there: a part of a network may lie beside the weights of the whole. Without
    `specs` no file is needed. Raises `ModelFailed` for a file that is missing or does not fit.
    """
    if not specs:
        return {}
    try:
        check_header(path)
        with steady(path) as copy, safe_open(str(copy), framework="numpy") as file:
            names = set(file.keys())
            slices = {spec.name: file.get_slice(spec.name) for spec in specs if spec.name in names}
            _compare(path, specs, slices)
            return {spec.name: file.get_tensor(spec.name) for spec in specs}
    except FileNotFoundError:
        raise ModelFailed(f"no {path.name} beside it; the program names {len(specs)} weights") from None
    except (SafetensorError, OSError) as error:
        raise ModelFailed(f"{path.name} is not a readable safetensors file: {reason_of(error)}") from error


def _compare(path: Path, specs: Sequence[TensorSpec], slices: Mapping[str, Any]) -> None:
    """Raise `ModelFailed` where the tensors of the file, as its header describes them, are not those of the program."""
    there = [spec for spec in specs if spec.name in slices]
    shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
    wrong = [f"{spec.name} is missing" for spec in specs if spec.name not in slices]
    wrong += [
        f"{spec.name} has shape {list(shapes[spec.name])}, the program {list(spec.shape)}"
        for spec in there
        if shapes[spec.name] != spec.shape
    ]
    wrong += [
        f"{spec.name} is {slices[spec.name].get_dtype()}, the program takes {_DTYPES.get(spec.datatype, spec.datatype)}"
        for spec in there
        if slices[spec.name].get_dtype() != _DTYPES.get(spec.datatype)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ModelFailed(f"{path.name} does not fit the program: {'; '.join(wrong[:5])}{more}")
