"""Models on disk: `DIR/<name>/<version>/<the engine's file>`, with an optional `model.yaml` beside it or above.

Files whose format runs code from the file are never opened.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.files import LeadsOut, NoPlainFile, open_plain, plain_file
from upwell.shared.formats.model_digest import jax_weights, model_digest
from upwell.shared.formats.onnx.file import BadOnnxFile

_log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMES = "a model's name has letters, digits, '.', '_' and '-', at most 100"
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
_SHOWN = 5
_LEADS_NOWHERE = "%s is not served: it is a link that leads nowhere"

Versions: TypeAlias = Literal["latest", "all"] | tuple[int, ...]
"""The versions of a model to serve."""

Files: TypeAlias = frozenset[tuple[str, int, int, int]]
"""The state of a version's files: path, modification time (ns), size (bytes) and inode of each."""


@dataclass(frozen=True)
class ModelFolder:
    """The folder of one version of a model."""

    name: str
    version: int
    path: Path
    root: Path

    @property
    def key(self) -> tuple[str, str]:
        """The name and the version, as texts."""
        return self.name, str(self.version)

    def file(self, file_name: str) -> Path:
        """The model's file. Raises `ModelFailed` if it is missing, not a regular file, or outside the repository."""
        path = self.path / file_name
        if not os.path.lexists(path):
            there = sorted(self.path.iterdir())
            names = ", ".join(one.name for one in there[:_SHOWN]) or "nothing"
            text = f"no {file_name} in {self.name}/{self.version}; available: {names}"
            raise ModelFailed("; ".join(filter(None, (text, why_never(there)))))
        return self._plain(path)

    @property
    def description(self) -> Path | None:
        """The `model.yaml` beside the model's file, else the one shared by all versions, else None.

        Raises `ModelFailed` as `file` does.
        """
        for folder in (self.path, self.path.parent):
            path = folder / "model.yaml"
            if os.path.lexists(path):
                return self._plain(path)
        return None

    def files(self) -> Files:
        """The state of all files of the version: those in or below its folder, and those beside its folder.

        Files that vanish or cannot be read meanwhile are left out. Folders outside the repository are not entered.
        """
        linked = self.path.is_symlink() or self.path.parent.is_symlink()  # checked first, since it costs less
        if linked and not self.path.resolve().is_relative_to(self.root.resolve()):
            return frozenset()
        return frozenset((*_states(self.path.parent, deep=False), *_states(self.path, deep=True)))

    def digest(self, file: Path) -> str:
        """`sha256:` and the hex digest of everything that makes up the model (see `model_digest`).

        Raises `ModelFailed` if the file is not an ONNX file, or if its weights are missing or outside the model's
        folder, before anything reads them.
        """
        beside = jax_weights(file)
        if beside is not None:
            self._plain(beside)
        try:
            return model_digest(file)
        except BadOnnxFile as error:
            text = f"{self.name}/{self.version}/{file.name}: {error}"
            raise ModelFailed("; ".join(filter(None, (text, why_not_this(file))))) from None

    def _plain(self, path: Path) -> Path:
        """`path`, if it is a regular file in the repository. A pipe in its place would block its reader for ever."""
        what = f"{self.name}/{self.version}/{path.name}"
        try:
            plain_file(self.root, path)
        except LeadsOut:
            raise ModelFailed(f"{what} is a link that leads out of the repository") from None
        except NoPlainFile:
            raise ModelFailed(f"{what} is a link that leads nowhere, or not a regular file") from None
        return path


def scan(root: Path) -> list[ModelFolder]:
    """Every version of every model under `root`, by name and version.

    A link that leads nowhere, and a model without a version, with an unreadable folder or with a name that is not valid
    for a model, is left out with a warning; hidden files and folders are ignored. Raises `ConfigError` if `root` is not
    a readable folder or holds no version.
    """
    if not root.is_dir():
        raise ConfigError.at(root, "no such folder; expected a model repository: <name>/<version>/model.onnx")
    with ConfigError.on_os_error(root, "cannot be read"):
        names, dangling = model_names(root), _dangling(root)
    for name in filter(NAME.fullmatch, dangling):
        _log.warning(_LEADS_NOWHERE, name)
    found = [version for name in names for version in _versions_or_warning(root, name)]
    for name in sorted({one.name for one in found if not NAME.fullmatch(one.name)}):
        warn_of_name(name)
    found = [one for one in found if NAME.fullmatch(one.name)]
    if not found:
        raise ConfigError.at(root, "no model here; expected <name>/<version>/model.onnx, such as digits/1/model.onnx")
    return found


def warn_of_name(name: str) -> None:
    """Warn that a folder's name is not valid for a model."""
    _log.warning("%r is not served: %s", name, NAMES)


def model_names(root: Path) -> list[str]:
    """The folders under `root` that may be models, sorted, whatever their names. Raises `OSError`."""
    return sorted(one.name for one in _folders(root))


def versions_of(root: Path, name: str) -> list[ModelFolder]:
    """Every version of the model `name`, by number; empty if there is no such model. Raises `OSError`."""
    folder = root / name
    if not folder.is_dir():
        return []
    numbers = [one for one in _folders(folder) if _VERSION.fullmatch(one.name)]
    found = [ModelFolder(name, int(one.name), one, root) for one in numbers]
    return sorted(found, key=lambda one: one.version)


def select(folders: Sequence[ModelFolder], versions: Versions) -> list[ModelFolder]:
    """The folders of one model whose versions are to be served, in order."""
    if versions == "all":
        return list(folders)
    if versions == "latest":
        return list(folders[-1:])
    return [folder for folder in folders if folder.version in versions]


def _versions_or_warning(root: Path, name: str) -> list[ModelFolder]:
    try:
        found, dangling = versions_of(root, name), _dangling(root / name)
    except OSError as error:
        _log.warning("%s is not served: its folder cannot be read: %s", name, error.strerror)
        return []
    for version in filter(_VERSION.fullmatch, dangling):
        _log.warning(_LEADS_NOWHERE, f"{name}/{version}")
    if not found:
        _log.warning("%s is not served: no version in it; expected %s/1/model.onnx", name, name)
    return found


def _folders(parent: Path) -> Iterator[Path]:
    return (one for one in parent.iterdir() if one.is_dir() and not one.name.startswith("."))


def _dangling(folder: Path) -> list[str]:
    """The links in a folder that lead nowhere, sorted."""
    links = (one for one in folder.iterdir() if one.is_symlink() and not one.name.startswith("."))
    return sorted(one.name for one in links if not one.exists())


def _states(folder: Path, *, deep: bool) -> Iterator[tuple[str, int, int, int]]:
    """The files in `folder` and, if `deep`, below it. Links to files are followed, links to folders are not."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        try:
            state = entry.stat()
        except OSError:  # it is gone, or is a link that leads nowhere
            continue
        if not stat.S_ISDIR(state.st_mode):
            yield (entry.path, state.st_mtime_ns, state.st_size, state.st_ino)
        elif deep and not entry.is_symlink():
            yield from _states(Path(entry.path), deep=True)


_WEIGHTS = "save its weights alone as model.safetensors (safetensors.torch.save_file) and name the class"
_EXPORT = f"export it as model.onnx (torch.onnx.export), or {_WEIGHTS}"

_PICKLES = (".ckpt", ".joblib", ".pickle", ".pkl")
_TORCH = (".pt", ".pth")
_PACKAGES = (".pt2",)
_PICKLED_WEIGHTS = "pytorch_model.bin"
_ZIP = b"PK\x03\x04"
_PICKLE, _PROTOCOLS = 0x80, range(2, 6)


def why_never(files: Sequence[Path]) -> str:
    """Why the first of these files that has such a format is never loaded, and what to use instead; "" if none has.

    Names are checked before contents.
    """
    named = (_by_name(path.name, path.suffix.lower()) for path in files)
    return next(filter(None, named), "") or next(filter(None, map(why_not_this, files)), "")


def why_not_this(file: Path) -> str:
    """The same for one file, by its first bytes and whatever its name; "" for all others and for unreadable files.

    Only for files that are of no use anyway: a safetensors file may begin like a pickle.
    """
    try:
        with open_plain(file) as opened:
            begins = opened.read(len(_ZIP))
    except OSError:
        return ""
    if begins == _ZIP:
        return f"{file.name} is a zip archive, as written by torch.save and TorchScript, and is never loaded; {_EXPORT}"
    if begins[:1] == bytes([_PICKLE]) and begins[1:2] and begins[1] in _PROTOCOLS:
        return f"{file.name} is a pickle, which runs code when opened, and is never loaded; {_WEIGHTS}"
    return ""


def _by_name(name: str, suffix: str) -> str:
    if suffix in _PICKLES or name == _PICKLED_WEIGHTS:
        return f"{name} is a pickle, which runs code when opened, and is never loaded; {_WEIGHTS}"
    if suffix in _TORCH:
        return f"{name} holds a pickle or TorchScript, which run code when opened, and is never loaded; {_EXPORT}"
    if suffix in _PACKAGES:
        return f"{name} is a package of torch, which can run code when opened, and is never loaded; {_EXPORT}"
    return ""
