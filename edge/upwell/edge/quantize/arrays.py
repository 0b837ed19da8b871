"""Reading `.npz` and `.npy` files of data: sizes are checked before memory is taken, and no Python object is read."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array

MAX_BYTES = 8 << 30
UNNAMED = "arr_0"
"""What `numpy.savez` calls the first array that is given without a name, and here the array of a .npy file."""

_UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError)


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file by name. Raises `ConfigError` for what is no such file, or too large to hold."""
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ConfigError.at(path, "expected a .npz or .npy file, as numpy.savez and numpy.save write them", "--data")
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return {UNNAMED: _array(file, path.stat().st_size)}
        return _archive(path)
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}", "--data") from None
    except _UNREADABLE as error:
        raise ConfigError.at(path, f"cannot be read as arrays of numpy: {error}", "--data") from None


def _archive(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > MAX_BYTES:
            raise ValueError(f"its arrays hold {total >> 20} MiB, and {MAX_BYTES >> 20} MiB are the most that is read")
        arrays = {}
        for member in members:
            with archive.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = _array(file, member.file_size)
    if not arrays:
        raise ValueError("there is no array in it")
    return arrays


def _array(file: IO[bytes], size_bytes: int) -> Array:
    """The array of a .npy file, which must have the size that its header promises."""
    form: Any = np.lib.format
    readers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    version = form.read_magic(file)
    if version not in readers:
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {version[0]}.{version[1]}")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read; expected numbers or text")
    promised = math.prod(shape) * dtype.itemsize
    there = size_bytes - file.tell()
    if promised != there or promised > MAX_BYTES:
        raise ValueError(f"its header promises {promised} bytes of numbers, and there are {there}")
    flat: Array = np.frombuffer(file.read(promised), dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")
