"""The one way to ONNX Runtime in the service: its own telemetry is off before anything of it is loaded.

See `upwell.edge.runtimes.ort`, of which the service knows nothing. Here alone names are used that ONNX Runtime keeps to
itself.
"""

from __future__ import annotations

import importlib

from upwell.shared.platform.no_telemetry import forbid_telemetry

forbid_telemetry()

import onnxruntime  # noqa: E402  (not before the line above)
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument  # noqa: E402

__all__ = ["InvalidArgument", "onnxruntime", "openvino_devices"]

onnxruntime.disable_telemetry_events()


def openvino_devices() -> tuple[str, ...]:
    """The devices that an ONNX Runtime with OpenVINO in it finds here, which it tells nowhere in public."""
    state = importlib.import_module("onnxruntime.capi._pybind_state")
    return tuple(state.get_available_openvino_device_ids())
