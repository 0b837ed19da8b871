"""The one way to ONNX Runtime in the service: its own telemetry is off before anything of it is loaded.

See `upwell.edge.runtimes.ort`, of which the service knows nothing.
"""

from __future__ import annotations

from upwell.shared.platform.no_telemetry import forbid_telemetry

forbid_telemetry()

import onnxruntime  # noqa: E402  (not before the line above)
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument  # noqa: E402

__all__ = ["InvalidArgument", "onnxruntime"]

onnxruntime.disable_telemetry_events()
