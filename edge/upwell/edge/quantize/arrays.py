"""Reading `.npz` and `.npy` files of data: sizes are checked before memory is taken, and no Python object is read."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.npy import read_npy, read_npz
from upwell.shared.tensors import Array

MAX_BYTES = 8 << 30
UNNAMED = "arr_0"
"""What `numpy.savez` calls the first array that is given without a name, and here the array of a .npy file."""


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file by name. Raises `ConfigError` for what is no such file, or too large to hold."""
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ConfigError.at(path, "expected a .npz or .npy file, as numpy.savez and numpy.save write them", "--data")
    try:
        arrays = read_npz(path, MAX_BYTES) if path.suffix.lower() == ".npz" else {UNNAMED: _one(path)}
        if not arrays:
            raise ValueError("there is no array in it")
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}", "--data") from None
    except ValueError as error:
        raise ConfigError.at(path, f"cannot be read as arrays of numpy: {error}", "--data") from None
    return arrays


def _one(path: Path) -> Array:
    size_bytes = path.stat().st_size
    if size_bytes > MAX_BYTES:
        raise ValueError(f"it holds {size_bytes} bytes; at most {MAX_BYTES} bytes are read")
    with path.open("rb") as file:
        return read_npy(file, size_bytes)
