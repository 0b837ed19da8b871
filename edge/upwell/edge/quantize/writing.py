"""Where the int8 model goes: never over another file unless that is wanted."""

from __future__ import annotations

import os
from pathlib import Path

from upwell.shared.errors import ConfigError


def check_free(path: Path, model: Path, force: bool) -> None:
    """Raise `ConfigError` where a model cannot or must not be written to `path`; before any work is done."""
    if path.is_dir():
        raise ConfigError.at(path, "this is a directory; --out names a file", "--out")
    if path.suffix.lower() != model.suffix.lower():
        raise ConfigError.at(path, f"the int8 model is a {model.suffix} file as well; name it so", "--out")
    if not path.parent.is_dir():
        raise ConfigError.at(path, f"there is no folder {path.parent}", "--out")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError.at(path, f"the folder {path.parent} cannot be written; --out FILE puts it elsewhere", "--out")
    if not path.exists():
        return
    if model.exists() and path.samefile(model):
        raise ConfigError.at(path, "this is the float model itself; --out names another file", "--out")
    if not force:
        raise ConfigError.at(path, "there is such a file already; --force replaces it, --out writes another", "--out")
