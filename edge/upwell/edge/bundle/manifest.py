"""`manifest.json`: written in one canonical form, and read as untrusted input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    BundleRefused,
    FileEntry,
    Manifest,
    Refusal,
    first_clash,
    read_small,
    why_unfit,
)
from upwell.edge.bundle.bundle_signature import first_problem
from upwell.shared.errors import ConfigError

MAX_MANIFEST_BYTES = 1 << 20
MAX_VERSION = (1 << 53) - 1
"""The largest integer that every JSON reader represents exactly."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class _FilePart(_Part):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]


class _ManifestFile(_Part):
    format: Literal[1]
    name: Annotated[str, Field(pattern=_NAME)]
    version: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    files: Annotated[dict[str, _FilePart], Field(min_length=1)]


def new_manifest(name: str, version: int, files: Mapping[str, FileEntry]) -> Manifest:
    """A manifest of these files. Raises `ConfigError` if the name or version is not valid for a bundle."""
    try:
        _ManifestFile(format=1, name=name, version=version, files={"x": _FilePart(sha256="0" * 64, size_bytes=0)})
    except ValidationError as error:
        key = "--version" if error.errors()[0]["loc"] == ("version",) else "--name"
        right = f"a whole number from 1 to {MAX_VERSION}"
        if key == "--name":
            right = "up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit"
        raise ConfigError.at(None, f"expected {right}, got {error.errors()[0]['input']!r}", key) from None
    return Manifest(name, version, dict(sorted(files.items())))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The canonical text of a manifest: JSON with sorted keys, two spaces of indent, ASCII, and a newline at the
    end."""
    document = {
        "format": 1,
        "name": manifest.name,
        "version": manifest.version,
        "files": {path: asdict(entry) for path, entry in manifest.files.items()},
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode("ascii")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle in `folder`.

    Raises `BundleRefused` (`MALFORMED`) if it is too large, not a manifest, lists a path that a bundle may not have, or
    differs from what `manifest_bytes` writes (which also catches duplicate keys).
    """
    path = folder / MANIFEST_NAME
    data = read_small(path, MAX_MANIFEST_BYTES, Refusal.MALFORMED)
    try:
        read = _ManifestFile.model_validate_json(data)
    except ValidationError as error:
        raise BundleRefused(Refusal.MALFORMED, path, first_problem(error)) from None
    for name in read.files:
        reason = "it must not be listed" if name in (MANIFEST_NAME, SIGNATURE_NAME) else why_unfit(name)
        if reason:
            raise BundleRefused(Refusal.MALFORMED, path, f"lists {name!r}: {reason}")
    clash = first_clash(read.files)
    if clash:
        raise BundleRefused(Refusal.MALFORMED, path, f"{clash[0]} and {clash[1]} are the same file on some systems")
    files = {name: FileEntry(part.sha256, part.size_bytes) for name, part in sorted(read.files.items())}
    manifest = Manifest(read.name, read.version, files)
    if manifest_bytes(manifest) != data:
        raise BundleRefused(
            Refusal.MALFORMED,
            path,
            "this is not what `upwell model pack` writes; was it edited, or were its line endings changed?",
        )
    return manifest
