"""Reads arrays in numpy's `.npy` and `.npz` formats from untrusted files."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from upwell.shared.tensors import Array

_MAX_HEADER_BYTES = 10_000
"""Maximum size of a header, as in numpy: a header is a Python literal, and parsing a long one may exhaust the stack."""

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
    guarded = _GuardedFile(file)
    try:
        with zipfile.ZipFile(guarded) as archive:
            guarded.is_open = True
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


class _GuardedFile:
    """The file of an archive, for `ZipFile`, which loads a directory of any size, ten times as large in memory.

    Until `is_open`, reading more than `_MAX_DIRECTORY_BYTES` at once raises `ValueError`.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self.is_open = False
        self._file = file

    def read(self, size_bytes: int = -1) -> bytes:
        if self.is_open:
            return self._file.read(size_bytes)
        most_bytes = _MAX_DIRECTORY_BYTES + 1
        data = self._file.read(most_bytes if size_bytes < 0 else min(size_bytes, most_bytes))
        if len(data) == most_bytes:
            raise ValueError(f"its directory has more than {_MAX_DIRECTORY_BYTES} bytes")
        return data


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
