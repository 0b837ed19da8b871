"""`reference.json`: statistics of a model's rows when its bundle was made, the reference for drift."""

from __future__ import annotations

import os
from pathlib import Path

from upwell.edge.bundle.bundle import REFERENCE_NAME
from upwell.shared.errors import ConfigError
from upwell.shared.files import plain_file, read_file
from upwell.shared.routing.drift.drift_reference import DriftReference

MAX_BYTES = 1 << 20


def load_reference(folder: Path) -> DriftReference | None:
    """The reference of the bundle in `folder`; None without such a file. Raises `ConfigError`."""
    path = folder / REFERENCE_NAME
    if not os.path.lexists(path):
        return None
    try:
        data = read_file(plain_file(folder, REFERENCE_NAME), "the reference for drift", MAX_BYTES)
        return DriftReference.read(data)
    except ValueError as error:
        raise ConfigError.at(path, f"not a reference written by `upwell model reference`: {error}") from None
