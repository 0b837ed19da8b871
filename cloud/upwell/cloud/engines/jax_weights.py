"""The weights of a JAX program, from a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from upwell.cloud.engines.checks import reason_of
from upwell.cloud.engines.weights_header import check_header
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype


def read_weights(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The tensors of the file at `path` that `specs` name, after its names and shapes have been compared with them.

    What else the file holds is left there: a part of a network may lie beside the weights of the whole. Without
    `specs` no file is needed. Raises `ModelFailed` for a file that is missing or does not fit.
    """
    if not specs:
        return {}
    try:
        check_header(path)
        with safe_open(str(path), framework="numpy") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
            _compare(path, specs, found)
            weights = {spec.name: file.get_tensor(spec.name) for spec in specs}
    except FileNotFoundError:
        raise ModelFailed(f"no {path.name} beside it; the program names {len(specs)} weights") from None
    except (SafetensorError, OSError) as error:
        raise ModelFailed(f"{path.name} is not a readable safetensors file: {reason_of(error)}") from error
    for spec in specs:
        dtype = weights[spec.name].dtype
        if dtype != numpy_dtype(spec.datatype):
            raise ModelFailed(f"{path.name} does not fit the program: {spec.name} is {dtype}, there {spec.datatype}")
    return weights


def _compare(path: Path, specs: Sequence[TensorSpec], found: Mapping[str, tuple[int, ...]]) -> None:
    wrong = [f"{spec.name} is missing" for spec in specs if spec.name not in found]
    wrong += [
        f"{spec.name} has shape {list(found[spec.name])}, the program {list(spec.shape)}"
        for spec in specs
        if found.get(spec.name, spec.shape) != spec.shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ModelFailed(f"{path.name} does not fit the program: {'; '.join(wrong[:5])}{more}")
