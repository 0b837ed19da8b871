"""Which accelerators this Python environment can show, for test modules that need one.

Each accelerator has an environment of its own, because their packages exclude each other. `UPWELL_ACCELERATOR` names
the one that a run is for: there a missing accelerator is a failure, elsewhere a skip.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping

import pytest

VARIABLE = "UPWELL_ACCELERATOR"


def _missing(*modules: str) -> str:
    """The modules among `modules` that are not installed, as one sentence; empty if all are."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def _openvino_in_onnxruntime() -> str:
    missing = _missing("onnxruntime")
    if missing:
        return missing
    import onnxruntime

    has = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()
    return "" if has else "this onnxruntime is not onnxruntime-openvino"


_CHECKS: Mapping[str, Callable[[], str]] = {
    "qnn": lambda: _missing("onnxruntime", "onnxruntime_qnn"),
    "openvino": _openvino_in_onnxruntime,
    "litert_npu": lambda: _missing("ai_edge_litert", "openvino"),
}


def needs(name: str) -> None:
    """Skip the test module that calls this unless accelerator `name` is installed; fail if the run is for it."""
    why = _CHECKS[name]()
    if not why:
        return
    if os.environ.get(VARIABLE) == name:
        pytest.fail(f"{VARIABLE}={name}, and {why}", pytrace=False)
    pytest.skip(f"{name}: {why}", allow_module_level=True)
