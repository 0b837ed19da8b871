"""A bundle as one file: a plain tar, written reproducibly and never unpacked outside its folder.

Only the ustar format of POSIX is read: one header block per file, no compression, no extension headers, so nothing is
used unchecked. Every header is checked before anything is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from upwell.edge.bundle.bundle import (
    CHUNK_BYTES,
    Advance,
    BundleRefused,
    Refusal,
    first_clash,
    nobody,
    sizes_in,
    why_unfit,
)
from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain, replacing

MAX_BYTES = 4 << 30
"""Maximum total size of an archive's files (bytes)."""
MAX_ENTRIES = 1000
"""Maximum number of its files and folders."""

_BLOCK_BYTES = 512
_END = bytes(2 * _BLOCK_BYTES)
_MAGIC = slice(257, 265)
_USTAR = b"ustar\x0000"


@dataclass(frozen=True)
class _Member:
    """A file of an archive: its path and the position of its bytes."""

    path: str
    offset: int
    size_bytes: int


def write_archive(out: Path, folder: Path, advance: Advance = nobody) -> None:
    """Write the files of `folder` into a tar at `out`, atomically; the bytes depend on the files alone.

    Raises `BundleRefused` if the folder contains what no bundle may, and `ConfigError` if writing fails.
    """
    sizes = sizes_in(folder)
    if len(sizes) > MAX_ENTRIES or sum(sizes.values()) > MAX_BYTES:
        most = f"{MAX_ENTRIES} files and {MAX_BYTES} bytes"
        raise BundleRefused(Refusal.TOO_LARGE, folder, f"more than the {most} that a device accepts")
    with ConfigError.on_os_error(out, "cannot be written"), replacing(out, 0o644) as file:  # a bundle is no secret
        for path, size_bytes in sizes.items():
            _append(file, path, folder / path, size_bytes, advance)
        file.write(_END)


def _append(file: IO[bytes], path: str, source: Path, size_bytes: int, advance: Advance) -> None:
    header = tarfile.TarInfo(path)  # of 1970, of user 0, with no names
    header.size = size_bytes
    file.write(header.tobuf(tarfile.USTAR_FORMAT, "ascii"))
    left = size_bytes
    with open_plain(source) as opened:
        while left and (chunk := opened.read(min(CHUNK_BYTES, left))):
            file.write(chunk)
            left -= len(chunk)
            advance(len(chunk))
    if left:
        raise ConfigError.at(source, "shrank while it was being read")
    file.write(bytes(-size_bytes % _BLOCK_BYTES))


@contextlib.contextmanager
def unpacked(path: Path, beside: Path, advance: Advance = nobody) -> Iterator[Path]:
    """Unpack the archive at `path` into a new folder beside `beside`, deleted after the block unless moved.

    Raises `BundleRefused`: `MISSING`, `TRUNCATED`, `MALFORMED` (not a plain tar), `UNCONFINED` (a path outside the
    folder, a link, a device, two entries of one name) and `TOO_LARGE`; and `ConfigError` if the files cannot be
    written.
    """
    try:
        archive = open_plain(path)
    except OSError as error:
        raise BundleRefused(Refusal.MISSING, path, f"cannot be read: {error.strerror}") from None
    with archive:
        members = _members(path, archive)
        with ConfigError.on_os_error(beside, "cannot be written"):
            folder = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".{beside.name}."))
        try:
            for member in members:
                _extract(path, archive, member, folder, advance)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _members(path: Path, archive: IO[bytes]) -> list[_Member]:
    """The files of an archive, from its headers, all of which are checked; no contents are read."""
    archive_bytes = os.fstat(archive.fileno()).st_size
    members: list[_Member] = []
    folders: list[str] = []
    total_bytes = 0
    while (block := _block(path, archive)) != bytes(_BLOCK_BYTES):
        header = checked_header(path, block)
        if len(members) + len(folders) == MAX_ENTRIES:
            raise BundleRefused(Refusal.TOO_LARGE, path, f"more than {MAX_ENTRIES} files and folders")
        if header.isdir():
            folders.append(header.name)
            continue
        total_bytes += header.size
        if total_bytes > MAX_BYTES:
            raise BundleRefused(Refusal.TOO_LARGE, path, f"more than {MAX_BYTES} bytes once unpacked")
        members.append(_Member(header.name, archive.tell(), header.size))
        next_header = archive.tell() + header.size + -header.size % _BLOCK_BYTES
        if next_header > archive_bytes:
            raise BundleRefused(Refusal.TRUNCATED, path, f"ends in the middle of {header.name}")
        archive.seek(next_header)
    _check_end(path, archive)
    clash = first_clash([member.path for member in members], folders)
    if clash:
        raise BundleRefused(Refusal.UNCONFINED, path, f"{clash[0]} and {clash[1]} are the same file on some systems")
    return members


def _block(path: Path, archive: IO[bytes]) -> bytes:
    block = archive.read(_BLOCK_BYTES)
    if len(block) < _BLOCK_BYTES:
        raise BundleRefused(
            Refusal.TRUNCATED, path, f"ends after {archive.tell()} bytes without an end-of-archive marker"
        )
    return block


def checked_header(path: Path, block: bytes) -> tarfile.TarInfo:
    """The header of a file or folder in the archive at `path`. Raises `BundleRefused` for any other block."""
    expected = "expected a plain tar file as `upwell model pack` writes it"
    if block[_MAGIC] != _USTAR:
        raise BundleRefused(Refusal.MALFORMED, path, f"not a tar file of POSIX (ustar); {expected}")
    try:
        header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise BundleRefused(Refusal.MALFORMED, path, f"a header cannot be read ({error}); {expected}") from None
    if header.size < 0 or (header.isdir() and header.size):
        raise BundleRefused(Refusal.MALFORMED, path, f"{header.name!r} has an impossible size")
    kind = "" if header.type in (tarfile.REGTYPE, tarfile.DIRTYPE) else "it is a link, a device or an extension"
    reason = kind or why_unfit(header.name)
    if reason:
        raise BundleRefused(Refusal.UNCONFINED, path, f"holds {header.name!r}: {reason}")
    return header


def _check_end(path: Path, archive: IO[bytes]) -> None:
    """Check that a second block of zeros follows the first, and nothing but zeros up to the end."""
    if any(_block(path, archive)):
        raise BundleRefused(Refusal.MALFORMED, path, "there is data after the end-of-archive marker")
    while chunk := archive.read(CHUNK_BYTES):
        if any(chunk):
            raise BundleRefused(Refusal.MALFORMED, path, "there is data after the end-of-archive marker")


def _extract(path: Path, archive: IO[bytes], member: _Member, folder: Path, advance: Advance) -> None:
    target = folder.joinpath(*member.path.split("/"))
    archive.seek(member.offset)
    left = member.size_bytes
    with ConfigError.on_os_error(target, "cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while left and (chunk := archive.read(min(CHUNK_BYTES, left))):
                file.write(chunk)
                left -= len(chunk)
                advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if left:
        raise BundleRefused(Refusal.TRUNCATED, path, f"ends in the middle of {member.path}")
