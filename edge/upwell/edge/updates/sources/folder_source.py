"""A folder that holds bundles, as folders or as `*.bundle.tar`, on the device itself or on a network share."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.archive import MAX_ENTRIES, checked_header
from upwell.edge.bundle.bundle import MANIFEST_NAME, BundleRefused, Refusal
from upwell.edge.bundle.manifest import MAX_MANIFEST_BYTES, MAX_VERSION
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.partial_archive import MAX_BYTES, Partial, check_room, fetch_archive

SUFFIX = ".bundle.tar"
FOLDER_NAME = "folder"
"""The name of a bundle's folder while it is copied."""

_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class _Peek(BaseModel):
    """The part of a manifest needed to choose; everything else is verified after the fetch."""

    model_config = ConfigDict(strict=True, frozen=True)

    version: int = Field(ge=1, le=MAX_VERSION)


@dataclass(frozen=True)
class _Candidate:
    version: int
    path: Path
    token: str
    size_bytes: int


class FolderSource:
    """A `Source`: the bundle with the greatest version in a folder. Files that are not bundles are skipped.

    With `sha256`, the digest of an archive, bundles that are folders do not count.
    """

    def __init__(self, folder: Path, *, sha256: str = "") -> None:
        self._folder = folder
        self._sha256 = sha256
        self._skipped: frozenset[str] = frozenset()
        self._is_closed = False

    def newest(self) -> AvailableBundle | None:
        """The greatest version; of two files with the same version, the last by name."""
        found = max(self._candidates(), key=lambda one: (one.version, one.path.name), default=None)
        if found is None:
            return None
        return AvailableBundle(found.token, self._sha256 if found.path.is_file() else "", found.size_bytes)

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """Copy it, since the folder may change or vanish at any time."""
        found = next((one for one in self._candidates() if one.token == offer.token), None)
        if found is None:
            raise FetchFailed(f"{self._folder}: the bundle to be fetched is gone or has changed")
        if found.path.is_dir():
            return self._copy_folder(found, into, progress)
        return fetch_archive(offer, into, progress, partial(self._copy_archive, found))

    def close(self) -> None:
        """End a copy in progress."""
        self._is_closed = True

    def _candidates(self) -> list[_Candidate]:
        found: list[_Candidate] = []
        skipped: dict[str, Exception] = {}
        try:
            paths = sorted(self._folder.iterdir())
        except OSError as error:
            raise FetchFailed(f"{self._folder}: cannot be read: {error.strerror}") from None
        for path in paths:
            try:
                candidate = self._candidate(path)
            except (OSError, BundleRefused, ValidationError, ValueError) as error:
                skipped[path.name] = error
                continue
            if candidate is not None:
                found.append(candidate)
        for name in sorted(skipped.keys() - self._skipped):  # logged once for each
            _log.warning("%s: skipped, its manifest cannot be read: %s", self._folder / name, _why(skipped[name]))
        self._skipped = frozenset(skipped)
        return found

    def _candidate(self, path: Path) -> _Candidate | None:
        manifest = path / MANIFEST_NAME
        if path.name.endswith(SUFFIX) and path.is_file():
            about = path.stat()
            version = _version_in(path)
            return _Candidate(version, path, f"file {path.name} {about.st_size} {about.st_mtime_ns}", about.st_size)
        if self._sha256 or path.name.startswith(".") or not manifest.is_file():
            return None
        about = manifest.stat()
        with manifest.open("rb") as file:
            version = _version(file.read(MAX_MANIFEST_BYTES))
        return _Candidate(version, path, f"folder {path.name} {about.st_size} {about.st_mtime_ns}", 0)

    def _copy_archive(self, found: _Candidate, archive: Partial) -> None:
        try:
            with found.path.open("rb") as file:
                file.seek(archive.size_bytes)
                while data := file.read(_CHUNK_BYTES):
                    self._check_open()
                    archive.append(data)
        except OSError as error:
            raise FetchFailed(f"{found.path}: cannot be read: {error.strerror}") from None

    def _copy_folder(self, found: _Candidate, into: Path, progress: Progress) -> Path:
        target = into / FOLDER_NAME
        copied_bytes = 0
        try:
            shutil.rmtree(into, ignore_errors=True)
            target.mkdir(mode=0o700, parents=True)
            for count, path in enumerate(_files(found.path)):
                self._check_open()
                copied_bytes += path.lstat().st_size
                if copied_bytes > MAX_BYTES or count >= MAX_ENTRIES:
                    shutil.rmtree(into, ignore_errors=True)
                    raise BundleRefused(Refusal.TOO_LARGE, found.path, f"has more than {MAX_BYTES} bytes")
                check_room(into, path.lstat().st_size, "to copy it")
                to = target / path.relative_to(found.path)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to, follow_symlinks=False)
                progress(copied_bytes, 0)
        except FetchFailed:
            shutil.rmtree(into, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(into, ignore_errors=True)
            raise FetchFailed(f"{found.path}: cannot be copied: {error.strerror}") from None
        return target

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("fetching was stopped")


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder, without subfolders. A link is copied as a link, which verification refuses."""
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(root) / name
            if not (stat.S_ISREG(path.lstat().st_mode) or path.is_symlink()):
                raise BundleRefused(Refusal.UNCONFINED, path, "does not belong in a bundle: it is not a plain file")
            yield path


def _version_in(path: Path) -> int:
    """The version in the manifest of an archive. Raises if there is no readable one.

    `tarfile` would load an extension header of any size, so only headers that unpacking accepts are read.
    """
    with path.open("rb") as file:
        for _ in range(MAX_ENTRIES):
            block = file.read(tarfile.BLOCKSIZE)
            if not any(block):  # the end of the archive, or of the file
                break
            header = checked_header(path, block)
            if header.size > MAX_BYTES:
                break
            if header.name == MANIFEST_NAME and header.isreg() and header.size <= MAX_MANIFEST_BYTES:
                return _version(file.read(header.size))
            file.seek(header.size + -header.size % tarfile.BLOCKSIZE, os.SEEK_CUR)
    raise ValueError(f"there is no {MANIFEST_NAME} in it")


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "expected JSON with a whole `version` of 1 or more"
    if isinstance(error, BundleRefused):
        return error.problems[0].message
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def _version(manifest: bytes) -> int:
    return _Peek.model_validate_json(manifest).version
