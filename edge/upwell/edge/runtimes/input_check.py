"""Checks of the model file, once, and of the inputs of every run, in well under a microsecond each; blank inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import ConfigError, InvalidRequest, UpwellError
from upwell.shared.files import open_plain
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_LARGER_SIZES = (32, 224, 16_000)
"""For dimensions that vary: a convolution refuses less than its own width, and those of sound are wide."""
_MOST_VALUES = 1 << 16
"""The largest product of the dimensions of an input that vary."""


def check_file(path: Path) -> None:
    """Raise `ConfigError` unless `path` is a readable, non-empty file."""
    try:
        with open_plain(path) as file:
            if not file.read(1):
                raise ConfigError.at(path, "the model file is empty")
    except FileNotFoundError:
        raise ConfigError.at(path, "no such file; expected a model") from None
    except IsADirectoryError:
        raise ConfigError.at(path, "this is a folder; expected a model file") from None
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror}") from None


def unkept_batch(path: Path, batch: int, why: str) -> ConfigError:
    """The error for a model that cannot be run with the configured `batch`."""
    return ConfigError.at(path, f"`batch: {batch}` cannot be used: {why}")


class InputCheck:
    """Compares the inputs of a run with the model's specifications.

    Calling it checks names, dtypes and the elements of BYTES inputs, for which runtimes report no errors (ONNX Runtime
    reads big-endian numbers as little-endian, and lets a caller replace a weight that is also an input). Shapes are
    checked by the runtime or by `mismatch`.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = tuple(specs)
        self._dtypes = tuple((spec.name, numpy_dtype(spec.datatype)) for spec in specs)
        self._bytes_names = tuple(spec.name for spec in specs if spec.datatype == "BYTES")

    def __call__(self, inputs: Mapping[str, Array]) -> None:
        """Raise `InvalidRequest` with the expected input for a wrong name or dtype."""
        if not self._names_and_dtypes_fit(inputs):
            raise InvalidRequest(self.mismatch(inputs))
        for name in self._bytes_names:
            if not all(isinstance(element, bytes) for element in inputs[name].flat):
                raise InvalidRequest(f"input {name!r} must contain only bytes")

    def _names_and_dtypes_fit(self, inputs: Mapping[str, Array]) -> bool:
        if len(inputs) != len(self._dtypes):
            return False
        for name, dtype in self._dtypes:
            array = inputs.get(name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                return False
        return True

    def mismatch(self, inputs: Mapping[str, Array]) -> str:
        """What is wrong, shapes included, as one sentence; empty if nothing is."""
        return "; ".join(self._problems(inputs))

    def _problems(self, inputs: Mapping[str, object]) -> Iterator[str]:
        names = [spec.name for spec in self._specs]
        for name in inputs:
            if name not in names:
                yield f"unknown input {name!r}, the model takes {', '.join(map(describe, self._specs))}"
        for spec in self._specs:
            array = inputs.get(spec.name)
            if array is None:
                yield f"missing input {describe(spec)}"
            elif not isinstance(array, np.ndarray):
                yield f"input {describe(spec)} must be an array, got {type(array).__name__}"
            elif array.dtype != numpy_dtype(spec.datatype) or not shape_fits(spec.shape, array.shape):
                yield f"input {describe(spec)} expected, got {array.dtype} {list(array.shape)}"


def describe(spec: TensorSpec) -> str:
    """A specification in words: `'image' FP32 [-1, 3]`."""
    return f"{spec.name!r} {spec.datatype} {list(spec.shape)}"


def shape_fits(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether `shape` has the rank and the fixed dimensions of `wanted`, where -1 is dynamic."""
    return len(wanted) == len(shape) and all(want in (-1, have) for want, have in zip(wanted, shape, strict=True))


def blank(datatype: str, shape: Sequence[int]) -> Array:
    """Zeros, or empty strings for BYTES, with 1 for each dynamic dimension."""
    sizes = [1 if size < 0 else size for size in shape]
    return np.full(sizes, b"", np.object_) if datatype == "BYTES" else np.zeros(sizes, numpy_dtype(datatype))


def run_on_zeros(runtime: Runtime) -> dict[str, Array]:
    """Run one row of zeros, and return them.

    Other dimensions that vary are 1 or, where the model refuses that, the first of 32, 224 and 16,000 that it takes.
    Raises what `run` raises for 1 if it takes none.
    """
    zeros = _zeros(runtime, 1)
    try:
        runtime.run(zeros)
    except UpwellError:
        varying = max((spec.shape[1:].count(-1) for spec in runtime.inputs), default=0)
        for size in _LARGER_SIZES if varying else ():
            if size**varying <= _MOST_VALUES:
                zeros = _zeros(runtime, size)
                with suppress(UpwellError):
                    runtime.run(zeros)
                    return zeros
        raise
    return zeros


def _zeros(runtime: Runtime, size: int) -> dict[str, Array]:
    return {
        spec.name: blank(spec.datatype, [*spec.shape[:1], *(size if one < 0 else one for one in spec.shape[1:])])
        for spec in runtime.inputs
    }
