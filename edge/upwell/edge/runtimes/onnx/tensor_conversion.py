"""Passing tensors between Upwell and ONNX Runtime, with the datatypes that need conversion.

Most arrays pass unchanged. Strings are UTF-8 text there and bytes here; BF16 has no numpy type there and passes as an
`OrtValue`. Buffers are not bound (`io_binding`): with new output arrays that was measured 3 µs faster per run, whether
the model takes 0 or 30 µs, but 110 µs slower in ONNX Runtime 1.31 with the run options that keep errors off standard
error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.shared.formats.onnx.tensor_types import UnsupportedTensor, bytes_of, text_of
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_ONNX_BFLOAT16 = 16
_LOG_FATAL = 4

Call: TypeAlias = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Runs a session on checked inputs and returns a new array for each output; thread-safe."""


def symbols_of(argument: Any) -> tuple[str, ...]:
    """The names of an argument's dimensions, empty for a dimension that is fixed or has no name."""
    return tuple(size if isinstance(size, str) else "" for size in argument.shape)


def caller_for(session: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Call:
    """The fastest way to run a session with these tensors. Raises `UnsupportedTensor`."""
    datatypes = {spec.datatype for spec in (*inputs, *outputs)}
    names = [spec.name for spec in outputs]
    if "BF16" not in datatypes:
        texts = [spec.name for spec in inputs if spec.datatype == "BYTES"]
        bytes_out = [spec.name for spec in outputs if spec.datatype == "BYTES"]
        plain = _plain(session, names)
        return _with_strings(plain, texts, bytes_out) if "BYTES" in datatypes else plain
    if "BYTES" in datatypes:
        raise UnsupportedTensor(
            "the model mixes BF16 and string tensors, which ONNX Runtime's Python interface cannot pass"
        )
    if not hasattr(onnxruntime.OrtValue, "tensor_size_in_bytes"):
        raise UnsupportedTensor(f"onnxruntime {onnxruntime.__version__} cannot pass BF16 tensors; 1.23 and later can")
    return _with_bfloat16(session, names)


def _quiet() -> Any:
    """Run options that keep a failed run from also writing its error to standard error."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = _LOG_FATAL
    return options


def _plain(session: Any, names: list[str]) -> Call:
    quiet = _quiet()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs), quiet), strict=True))

    return call


def _with_strings(plain: Call, texts: list[str], bytes_out: list[str]) -> Call:
    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        answer = plain({**inputs, **{name: text_of(name, inputs[name]) for name in texts}})
        return {**answer, **{name: bytes_of(answer[name]) for name in bytes_out}}

    return call


def _with_bfloat16(session: Any, names: list[str]) -> Call:
    quiet = _quiet()

    def call(inputs: Mapping[str, Array]) -> dict[str, Array]:
        # An OrtValue borrows the array's memory, so the arrays stay referenced until the run has ended.
        held = {name: np.asarray(array, order="C") for name, array in inputs.items()}  # which keeps a scalar one
        feeds = {name: _ort_value(array) for name, array in held.items()}
        return dict(zip(names, map(_from_ort_value, session.run_with_ort_values(names, feeds, quiet)), strict=True))

    return call


def _ort_value(array: Array) -> Any:
    if array.dtype == numpy_dtype("BF16"):
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _from_ort_value(value: Any) -> Array:
    if value.element_type() != _ONNX_BFLOAT16:
        return np.array(value.numpy())
    copied = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    array: Array = np.frombuffer(copied, dtype=numpy_dtype("BF16")).reshape(value.shape())
    return array
