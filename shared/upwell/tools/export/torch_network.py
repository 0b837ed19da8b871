"""The network to export: its class with its weights, random inputs, and the error of answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from upwell.cloud.engines.torch.networks import build, find_class
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype


def load_module(network: str, weights: Path, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """The network of the class named `network`, with its weights, for evaluation. Raises `ModelFailed`."""
    return build(find_class("", network), weights, arguments).eval()


def random_rows(spec: TensorSpec, rows: int, random: np.random.Generator) -> Array:
    """Normal numbers, or 0 and 1 for integers, which may be small counts; `rows` where the rows vary."""
    shape = (rows, *spec.shape[1:]) if spec.shape[:1] == (-1,) else spec.shape
    dtype = numpy_dtype(spec.datatype)
    values = random.standard_normal(shape) if dtype.kind not in "iub" else random.integers(0, 2, shape)
    return values.astype(dtype)


def relative_error(found: Array, expected: Array) -> float:
    """max |found - expected| / max |expected|; without the division if all that is expected is zero."""
    off = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    scale = np.abs(expected.astype(np.float64)).max(initial=0.0)
    return float(off / scale) if scale else float(off)


def to_numpy(tensor: torch.Tensor) -> Array:
    """The tensor as an array; BF16 as in ml_dtypes."""
    own = tensor.detach().contiguous()
    array: Array = (
        own.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if own.dtype is torch.bfloat16 else own.numpy()
    )
    return array


def to_torch(array: Array) -> torch.Tensor:
    """A tensor with a copy of the array."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
