"""Reads arrays in numpy's `.npy` and `.npz` formats from untrusted files."""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from upwell.shared.tensors import Array

_MAX_HEADER_BYTES = 10_000
"""Maximum size of a header, as in numpy: a header is a Python literal, and parsing a long one may exhaust the stack."""

_END, _END_BYTES, _MAX_COMMENT_BYTES = b"PK\5\6", 22, 65_535
_END_64 = b"PK\6\7"
_MAX_DIRECTORY_BYTES = 1 << 20
_LONGEST_REASON = 200
"""Most characters quoted from an unpacker's error, which may contain names from the file."""

_format: Any = np.lib.format  # its functions have no types
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_HEADERS = {(1, 0): _format.read_array_header_1_0, (2, 0): _format.read_array_header_2_0}
_Header: TypeAlias = "tuple[tuple[int, ...], bool, np.dtype[Any]]"


def read_npy(file: IO[bytes], size_bytes: int) -> Array:
    """The array of a .npy file of `size_bytes`, in native byte order; it may be read-only. BF16 is `V2`, as in numpy.

    `file` is at its beginning. Memory is allocated only for data that exists, and Python objects are never read. Raises
    `ValueError` if this is not such an array, and errors of `file` itself.
    """
    shape, is_fortran, dtype = _header(file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects, which are never read; expected numbers or text")
    promised_bytes, there_bytes = math.prod(shape) * dtype.itemsize, size_bytes - file.tell()
    if promised_bytes != there_bytes or min(shape, default=0) < 0:
        raise ValueError(f"its header says {promised_bytes} bytes, but the file has {there_bytes}")
    data = file.read(promised_bytes)
    if len(data) != promised_bytes:
        raise ValueError(f"it ends after {len(data)} of its {promised_bytes} bytes")
    array: Array = np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def read_npz(file: Path | IO[bytes], max_bytes: int, max_arrays: float = math.inf) -> dict[str, Array]:
    """The arrays of an .npz file by name, each as `read_npy` reads it.

    Their number and total size are checked before any is read. Raises `ValueError` if this is not such a file, or if it
    is damaged or too large, and `OSError`.
    """
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_npz(opened, max_bytes, max_arrays)
    _check_directory(file, max_bytes)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            total_bytes = sum(member.file_size for member in members)
            if total_bytes > max_bytes or len(members) > max_arrays:
                most = f"{max_bytes} bytes" + ("" if math.isinf(max_arrays) else f" in {max_arrays} arrays")
                raise ValueError(f"it has {total_bytes} bytes in {len(members)} arrays; at most {most} are allowed")
            arrays = {}
            for member in members:
                with archive.open(member) as one:
                    arrays[member.filename.removesuffix(".npy")] = read_npy(one, member.file_size)
    except (OSError, ValueError):
        raise
    except Exception as error:  # noqa: BLE001  (errors of zipfile, zlib and other unpackers share no base class)
        raise ValueError(str(error)[:_LONGEST_REASON]) from None
    if len(arrays) != len(members):
        raise ValueError("two of its arrays have the same name")
    return arrays


def _check_directory(file: IO[bytes], max_bytes: int) -> None:
    """Raise `ValueError` for a directory that `zipfile` would load in full, ten times as large in memory."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _END_BYTES - _MAX_COMMENT_BYTES))
    tail = file.read()
    at = len(tail) - _END_BYTES
    if tail[at : at + 4] != _END or tail[-2:] != b"\0\0":
        at = tail.rfind(_END)
    directory_bytes = int.from_bytes(tail[at + 12 : at + 16], "little")
    is_zip64 = tail[max(0, at - 20) : at].startswith(_END_64)
    if at >= 0 and (directory_bytes > _MAX_DIRECTORY_BYTES or (is_zip64 and size_bytes < 1 << 32)):
        raise ValueError(f"its directory has more than {_MAX_DIRECTORY_BYTES} bytes")
    if size_bytes > max_bytes + _MAX_DIRECTORY_BYTES:
        raise ValueError(f"it has {size_bytes} bytes; at most {max_bytes} are allowed")


def _header(file: IO[bytes]) -> _Header:
    """Shape, whether the order is Fortran's, and dtype."""
    version = _format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {version[0]}.{version[1]}")
    length = file.read(_LENGTH_BYTES[version])
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {header_bytes} bytes; at most {_MAX_HEADER_BYTES} are allowed")
    text = io.BytesIO(length + file.read(header_bytes))
    try:
        shape, is_fortran, dtype = _HEADERS[version](text)
        return tuple(map(int, shape)), is_fortran, dtype  # numpy accepts True as a size, but cannot use it
    except Exception as error:  # noqa: BLE001  (errors of Python's parser share no base class)
        raise ValueError(f"its header cannot be read: {error}") from None
