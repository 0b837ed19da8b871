"""What keeps the libraries that run models from telling their makers about it."""

from __future__ import annotations

import os

VARIABLES = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime reads its variable when it is loaded, and then writes nothing and contacts nobody. The others that
Upwell loads (LiteRT, tflite-runtime, torch, grpcio, OpenTelemetry without an endpoint) send nothing."""


def forbid_telemetry() -> None:
    """To be called before such a library is loaded; processes that are started from here inherit it."""
    os.environ.update(VARIABLES)
