"""The two packages that run TFLite models behind one interface: ai_edge_litert (preferred) and tflite_runtime."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.value_classes import value_class

PREFERRED = ("ai_edge_litert", "tflite_runtime")


@value_class
class TflitePackage:
    """An imported package: its import name, its interpreter module, and its name and version for reports."""

    name: str
    interpreter: Any
    version: str


def find_package(forced: str | None = None) -> TflitePackage:
    """The package named by `forced`, or the first of `PREFERRED` that is installed.

    Raises `ConfigError`, which names the extra to install.
    """
    for name in (forced,) if forced else PREFERRED:
        try:
            interpreter = importlib.import_module(f"{name}.interpreter")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise ConfigError.at(None, f"{name} is installed but cannot be imported: {error}") from None
            continue
        except ImportError as error:
            raise ConfigError.at(None, f"{name} is installed but cannot be imported: {error}") from None
        if name == "tflite_runtime" and int(np.__version__.partition(".")[0]) >= 2:
            raise ConfigError.at(
                None, f"tflite_runtime needs numpy below 2, but {np.__version__} is installed: {_extra(name)}"
            )
        version = getattr(importlib.import_module(name), "__version__", "of unknown version")
        return TflitePackage(name, interpreter, f"{name.replace('_', '-')} {version}")
    missing = forced or "a TFLite runtime"
    raise ConfigError.at(None, f"{missing} is not installed: {_extra(forced or PREFERRED[0])}")


def _extra(package: str) -> str:
    return f"pip install 'upwell[{'tflite' if package == 'tflite_runtime' else 'litert'}]'"
