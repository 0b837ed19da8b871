"""Models on disk: `DIR/<name>/<version>/<the engine's file>`, with an optional `model.yaml` beside it or one above."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from upwell.shared.digest import model_digest
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.onnx_files import BadOnnxFile

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class ModelFolder:
    """The folder of one version of a model."""

    name: str
    version: int
    path: Path
    root: Path

    def file(self, file_name: str) -> Path:
        """The model's file. Raises `ModelFailed` where it is missing or leads out of the repository."""
        path = self._inside(self.path / file_name)
        if not path.is_file():
            there = sorted(one.name for one in self.path.iterdir()) or ["nothing"]
            raise ModelFailed(f"no {file_name} in {self.name}/{self.version}; there is {', '.join(there[:5])}")
        return path

    @property
    def description(self) -> Path | None:
        """The `model.yaml` beside the model's file, else the one of all its versions, else None."""
        for folder in (self.path, self.path.parent):
            path = folder / "model.yaml"
            if os.path.lexists(path):
                return self._inside(path)
        return None

    def digest(self, file: Path) -> str:
        """`sha256:` and the hex digest of what the model is made of (see `model_digest`).

        Raises `ModelFailed` where the file is no ONNX file, or weights of its own are missing or outside the model's
        folder, before anything has read them.
        """
        try:
            return model_digest(file)
        except BadOnnxFile as error:
            raise ModelFailed(f"{self.name}/{self.version}/{file.name}: {error}") from None

    def _inside(self, path: Path) -> Path:
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise ModelFailed(f"{self.name}/{self.version}/{path.name} is a link that leads out of the repository")
        return path


def scan(root: Path) -> list[ModelFolder]:
    """Every version of every model under `root`, by name and version.

    A model without a version, or whose folder cannot be read, is left out with a warning; hidden folders and files are
    left alone. Raises `ConfigError` where `root` is no folder that can be read, holds no version at all, or a name
    cannot be a model's.
    """
    if not root.is_dir():
        raise ConfigError.at(root, "no such folder; expected a model repository: <name>/<version>/model.onnx")
    try:
        folders = list(_folders(root))
    except OSError as error:
        raise ConfigError.at(root, f"cannot be read: {error.strerror}") from None
    found = [version for folder in folders for version in _versions(folder, root)]
    for one in found:
        if not NAME.fullmatch(one.name):
            raise ConfigError.at(one.path.parent, "a model's name is letters, digits, '.', '_' and '-', at most 100")
    if not found:
        raise ConfigError.at(root, "no model here; expected <name>/<version>/model.onnx, such as digits/1/model.onnx")
    return sorted(found, key=lambda one: (one.name, one.version))


def _versions(folder: Path, root: Path) -> list[ModelFolder]:
    try:
        names = [one for one in _folders(folder) if _VERSION.fullmatch(one.name)]
    except OSError as error:
        _log.warning("%s is not served: its folder cannot be read: %s", folder.name, error.strerror)
        return []
    if not names:
        _log.warning("%s is not served: no version in it; expected %s/1/model.onnx", folder.name, folder.name)
    return [ModelFolder(folder.name, int(one.name), one, root) for one in names]


def _folders(parent: Path) -> Iterator[Path]:
    return (one for one in parent.iterdir() if one.is_dir() and not one.name.startswith("."))
