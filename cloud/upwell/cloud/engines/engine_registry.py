"""Engines by name: entry points of the group `upwell.engines`, imported only when a model needs one."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import cast

from upwell.cloud.engines.base import EngineType
from upwell.shared.errors import ConfigError, Problem

# A failing accelerator plugin would break any `import torch`, also in a custom engine. The engine torch imports the
# package of a model's device itself.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

_EXTRAS = {"onnx": "cloud", "torch": "torch"}


class ExtraMissing(ConfigError):
    """A package that this command needs is not installed; the message names the extra."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__([Problem(None, None, None, "", f"{what} needs {package}: pip install 'upwell[{extra}]'")])


def engine_type(name: str) -> EngineType:
    """The engine's class. Raises `ExtraMissing` if its framework is not installed, `ConfigError` if it is unknown."""
    entries = {entry.name: entry for entry in entry_points(group="upwell.engines")}
    if name not in entries:
        raise ConfigError.at(None, f"unknown engine {name!r}; installed: {', '.join(sorted(entries)) or 'none'}")
    try:
        return cast(EngineType, entries[name].load())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("upwell"):
            raise
        raise ExtraMissing(f"engine {name}", error.name, _EXTRAS.get(name, name)) from None
