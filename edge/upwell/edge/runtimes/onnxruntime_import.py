"""The only import of ONNX Runtime on the device: its telemetry is disabled before it is loaded.

When imported, ONNX Runtime creates a device id and an event queue under `~/.cache` and contacts its vendor's host, with
names of models, graphs and paths. `upwell.edge` sets the variable that prevents this; in a program that imported ONNX
Runtime before Upwell, events are disabled from here on.

Only this module uses a private name of ONNX Runtime.
"""

from __future__ import annotations

import importlib

import onnxruntime

__all__ = ["onnxruntime", "openvino_devices"]

onnxruntime.disable_telemetry_events()


def openvino_devices() -> tuple[str, ...]:
    """The OpenVINO devices that ONNX Runtime finds here, for which it has no public function."""
    state = importlib.import_module("onnxruntime.capi._pybind_state")
    return tuple(state.get_available_openvino_device_ids())
