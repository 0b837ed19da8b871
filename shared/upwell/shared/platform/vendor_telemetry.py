"""Keeps the libraries that run models from reporting to their vendors."""

from __future__ import annotations

import os

VARIABLES = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime reads its variable when it is loaded, and then writes nothing and contacts nobody. The other libraries
that Upwell loads (LiteRT, tflite-runtime, torch, grpcio, OpenTelemetry without an endpoint) send nothing."""


def forbid_telemetry() -> None:
    """Set the variables; call it before such a library is loaded. Child processes inherit them."""
    os.environ.update(VARIABLES)
