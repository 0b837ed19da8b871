"""The only import of ONNX Runtime in the service: its telemetry is disabled before it is loaded.

See `upwell.edge.runtimes.onnxruntime_import`, which the service must not import. Only this module uses private names of
ONNX Runtime.
"""

from __future__ import annotations

import importlib

from upwell.shared.platform.vendor_telemetry import forbid_telemetry

forbid_telemetry()

import onnxruntime  # noqa: E402  (not before the line above)
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument  # noqa: E402

__all__ = ["InvalidArgument", "onnxruntime", "openvino_devices"]

onnxruntime.disable_telemetry_events()


def openvino_devices() -> tuple[str, ...]:
    """The OpenVINO devices that ONNX Runtime finds here, for which it has no public function."""
    state = importlib.import_module("onnxruntime.capi._pybind_state")
    return tuple(state.get_available_openvino_device_ids())
