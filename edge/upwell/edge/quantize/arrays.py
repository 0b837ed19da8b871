"""Reading `.npz` and `.npy` files of data: sizes are checked before memory is taken, and no Python object is read."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.npy import read_npy
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
            size_bytes = path.stat().st_size
            _check_size(size_bytes)
            with path.open("rb") as file:
                return {UNNAMED: read_npy(file, size_bytes)}
        return _archive(path)
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}", "--data") from None
    except _UNREADABLE as error:
        raise ConfigError.at(path, f"cannot be read as arrays of numpy: {error}", "--data") from None


def _archive(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members))
        arrays = {}
        for member in members:
            with archive.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = read_npy(file, member.file_size)
    if not arrays:
        raise ValueError("there is no array in it")
    return arrays


def _check_size(total_bytes: int) -> None:
    if total_bytes > MAX_BYTES:
        raise ValueError(
            f"its arrays hold {total_bytes >> 20} MiB, and {MAX_BYTES >> 20} MiB are the most that is read"
        )
