"""The one way to ONNX Runtime on the device: its own telemetry is off before anything of it is loaded.

As it is imported, ONNX Runtime makes a device id and a queue of events under `~/.cache` and looks up its maker's host,
with names of models, graphs and paths. `upwell.edge` has set the variable that forbids it, whatever imports it first;
a program that imported ONNX Runtime before Upwell has its events disabled from here on.

Here alone a name is used that ONNX Runtime keeps to itself.
"""

from __future__ import annotations

import importlib

import onnxruntime

__all__ = ["onnxruntime", "openvino_devices"]

onnxruntime.disable_telemetry_events()


def openvino_devices() -> tuple[str, ...]:
    """The devices that an ONNX Runtime with OpenVINO in it finds here, which it tells nowhere in public."""
    state = importlib.import_module("onnxruntime.capi._pybind_state")
    return tuple(state.get_available_openvino_device_ids())
