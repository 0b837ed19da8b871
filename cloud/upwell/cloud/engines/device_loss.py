"""Tells failures of a run after which its process can no longer use the device, as drivers put them.

Every later call to the device from that process fails in the same way, whatever the model; only a new process can use
it again. Source: the errors after which "the process must be terminated and relaunched", and those of the memory and
links of a device, in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html; HIP has the same texts.
Not yet seen on hardware.
"""

from __future__ import annotations

import re

from upwell.cloud.engines.base import DeviceLost
from upwell.shared.errors import ModelFailed

_TEXTS = (
    "an illegal memory access was encountered",
    "the launch timed out and was terminated",
    "device-side assert triggered",
    "hardware stack error",
    "an illegal instruction was encountered",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "unspecified launch failure",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
)
_LOST = re.compile(rf"\b(?:CUDA|HIP)(?:_| error| failure)[\s\S]{{0,200}}?(?:{'|'.join(_TEXTS)})|_DEVICE_LOST\b")


def run_error(text: str, error: BaseException, device: str) -> ModelFailed:
    """The error with this text for a run on `device` that ended in a framework's `error`."""
    return DeviceLost(text) if device != "cpu" and _LOST.search(str(error)) else ModelFailed(text)
