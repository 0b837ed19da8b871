"""The self-test of a loaded model: an accelerator's answers to synthetic requests against those of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from upwell.edge.bundle.golden import answer_function
from upwell.edge.bundle.output_tolerances import Agreement, Tolerances, compare
from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import UpwellError
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, Signature
from upwell.shared.signature.tokenization import synthetic_bytes
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

ROWS = 8
_SEED = 1
_VARYING_SIZES = (32, 224, 1)
"""Sizes for dynamic dimensions, tried in this order until the CPU accepts one."""
_PICTURE_SIDE, _PICTURE_PATCHES = 224, 4


def check_with_cpu(processor: Processor, runtime: Runtime, cpu: Runtime, limits: Tolerances) -> Agreement:
    """Run the same synthetic requests on both runtimes, which have the same model file, and compare the answers.

    Detectors are compared by the model's own tensors, since they find nothing in synthetic pictures. If the CPU cannot
    answer either, the check fails: nothing is known about the accelerator's answers.
    """
    problem: UpwellError | None = None
    for size in _VARYING_SIZES:
        requests = synthetic_inputs(processor.signature, size)
        try:
            expected = _answers(processor, cpu, requests)
        except UpwellError as error:
            problem = problem or error
            continue
        try:
            return compare(
                _compared(processor.signature, cpu), _answers(processor, runtime, requests), expected, limits
            )
        except UpwellError as error:
            return Agreement(False, f"it fails where the CPU succeeds: {error}")
    return Agreement(False, f"it cannot be checked: there are no golden vectors, and the CPU fails too: {problem}")


def synthetic_inputs(signature: Signature, size: int = _VARYING_SIZES[0]) -> dict[str, Array]:
    """One request of `ROWS` rows (one where there are no rows), the same every time; `size` is used for dynamic
    dimensions."""
    random = np.random.default_rng(_SEED)
    return {one.name: _input(one, signature.has_rows, size, random) for one in signature.inputs}


def _answers(processor: Processor, runtime: Runtime, requests: Mapping[str, Array]) -> Mapping[str, Array]:
    if not _finds(processor.signature):
        return answer_function(processor, runtime)(requests)
    return processor.run_rows(runtime.run, processor.pre(requests))


def _compared(signature: Signature, runtime: Runtime) -> tuple[LogicalOutput, ...]:
    if not _finds(signature):
        return signature.outputs
    return tuple(LogicalOutput(spec.name, "tensor", spec) for spec in runtime.outputs)


def _finds(signature: Signature) -> bool:
    return any(one.kind == "detections" for one in signature.outputs)


def _input(one: LogicalInput, has_rows: bool, size: int, random: np.random.Generator) -> Array:
    if one.kind == "image":
        patches = random.integers(0, 256, (ROWS if has_rows else 1, _PICTURE_PATCHES, _PICTURE_PATCHES, 3), np.uint8)
        side = _PICTURE_SIDE // _PICTURE_PATCHES
        return patches.repeat(side, axis=1).repeat(side, axis=2)
    if one.kind in ("text", "record"):
        return synthetic_bytes(one, ROWS if has_rows else 1, random)
    shape = [size if length < 0 else length for length in one.spec.shape]
    if has_rows:
        shape[0] = ROWS
    return _tensor(one.spec, shape, random)


def _tensor(spec: TensorSpec, shape: list[int], random: np.random.Generator) -> Array:
    """Floats from 0 to 1 in one row, around 0 in the next; the full range for 8 and 16 bits, indexes 0 and 1 for wider
    integers."""
    dtype: np.dtype[Any] = numpy_dtype(spec.datatype)
    if dtype.hasobject:
        return np.full(shape, b"", np.object_)
    if spec.datatype in ("INT8", "UINT8", "INT16", "UINT16"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind in "iub" and spec.datatype != "BF16":
        return random.integers(0, 2, shape).astype(dtype)
    values = random.random(shape)
    values[1::2] = random.standard_normal(shape)[1::2]
    return values.astype(dtype)
