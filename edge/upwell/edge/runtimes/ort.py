"""The one way to ONNX Runtime on the device: its own telemetry is off before anything of it is loaded.

As it is imported, ONNX Runtime makes a device id and a queue of events under `~/.cache` and looks up its maker's host,
with names of models, graphs and paths. `upwell.edge` has set the variable that forbids it, whatever imports it first;
a program that imported ONNX Runtime before Upwell has its events disabled from here on.
"""

from __future__ import annotations

import onnxruntime

__all__ = ["onnxruntime"]

onnxruntime.disable_telemetry_events()
