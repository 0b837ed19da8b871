"""The files of a bundle: permitted paths, and the paths, sizes and digests in a folder.

A path must mean the same file on every system, inside the bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from upwell.edge.bundle.bundle import BundleRefused, FileEntry, Refusal
from upwell.shared.files import open_plain

MAX_PATH_CHARS = 100
"""The longest path that fits a plain tar header."""

_PART = re.compile(r"[A-Za-z0-9_+@=](?:[A-Za-z0-9_+@=., -]*[A-Za-z0-9_+@=,-])?")
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))])

CHUNK_BYTES = 1 << 20
Progress = Callable[[int], None]
"""Called with the number of bytes processed since the last call."""


def nobody(_count: int) -> None:
    """Ignore the progress."""


def sizes_in(folder: Path) -> Mapping[str, int]:
    """Size in bytes of each file under `folder`, by its POSIX path, in order.

    Raises `BundleRefused`: `MISSING` if it is not a readable folder, `UNCONFINED` if it contains a link, a device or a
    name that a bundle may not have.
    """
    if not folder.is_dir():
        raise BundleRefused(Refusal.MISSING, folder, "no such folder")
    sizes: dict[str, int] = {}
    try:
        _collect(folder, "", sizes)
    except OSError as error:
        raise BundleRefused(Refusal.MISSING, folder, f"cannot be read: {error.strerror}") from None
    clash = first_clash(sizes)
    if clash:
        raise BundleRefused(Refusal.UNCONFINED, folder, f"{clash[0]} and {clash[1]} are the same file on some systems")
    return dict(sorted(sizes.items()))


def _collect(folder: Path, prefix: str, sizes: dict[str, int]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            reason = why_unfit(path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if not reason and not is_folder and not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                reason = "it is a link" if entry.is_symlink() else "it is not a plain file"
            if reason:
                raise BundleRefused(Refusal.UNCONFINED, Path(entry.path), f"does not belong in a bundle: {reason}")
            if is_folder:
                _collect(Path(entry.path), f"{path}/", sizes)
            else:
                sizes[path] = entry.stat(follow_symlinks=False).st_size


def entry_of(source: Path, progress: Progress = nobody) -> FileEntry:
    """Digest and size of a file, read once in chunks. Raises `BundleRefused` (`MISSING`) if it cannot be read."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with open_plain(source) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                progress(len(chunk))
    except OSError as error:
        raise BundleRefused(Refusal.MISSING, source, f"cannot be read: {error.strerror}") from None
    return FileEntry(digest.hexdigest(), size_bytes)


def read_small(path: Path, most_bytes: int, refusal: Refusal) -> bytes:
    """Read a small file. Raises `BundleRefused` with `refusal` if it is too large or cannot be read."""
    try:
        with open_plain(path) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise BundleRefused(refusal, path, f"cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        raise BundleRefused(refusal, path, f"larger than the limit of {most_bytes} bytes")
    return data


def why_unfit(path: str) -> str:
    """Why a bundle may not contain a file at `path`; empty if it may.

    Parts are joined by `/` and made of ASCII letters, digits, space and `_+@=.,-`, beginning with a letter, digit or
    one of `_+@=`, so none is `..`, hidden, a Windows drive or stream, or spelt in two ways in Unicode.
    """
    if path.startswith("/") or ".." in path.split("/"):
        return "it points outside the bundle"
    if len(path) > MAX_PATH_CHARS:
        return f"it is longer than {MAX_PATH_CHARS} characters"
    for part in path.split("/"):
        if part.startswith("."):
            return "hidden files do not belong in a bundle"
        if not _PART.fullmatch(part):
            return "expected names of letters, digits, spaces and _+@=.,- that begin with a letter or digit"
        if part.partition(".")[0].lower() in _DEVICES:
            return f"{part!r} is a device name on Windows"
    return ""


def first_clash(files: Iterable[str], folders: Iterable[str] = ()) -> tuple[str, str] | None:
    """Two paths that some file system treats as equal, or a file and a path below it."""
    seen: dict[str, tuple[str, bool]] = {}  # by lower case: the spelling, and whether it is a file
    for path, is_file in [*((path, False) for path in folders), *((path, True) for path in files)]:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            prefix, is_leaf = "/".join(parts[:count]), is_file and count == len(parts)
            before = seen.get(prefix.lower())
            if before is not None and (is_leaf or before != (prefix, False)):
                return before[0], path
            seen[prefix.lower()] = (prefix, is_leaf)
    return None
