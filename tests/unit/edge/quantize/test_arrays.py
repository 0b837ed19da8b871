"""Reading data files: what is right, and what must be refused before it takes memory or runs code."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upwell.shared.errors import ConfigError
from upwell.tools.quantize import data_files
from upwell.tools.quantize.data_files import UNNAMED, read_arrays


def test_what_numpy_writes_is_read(tmp_path: Path) -> None:
    written: dict[str, Any] = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "none": np.zeros((0, 4), np.uint8),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "all.npz", **written)
        read = read_arrays(tmp_path / "all.npz")
        assert list(read) == list(written)
        for name, array in written.items():
            np.testing.assert_array_equal(read[name], array)
    np.save(tmp_path / "one.npy", written["floats"])
    np.testing.assert_array_equal(read_arrays(tmp_path / "one.npy")[UNNAMED], written["floats"])


def header(text: str, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


def npz(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000,)}\n"), "says 40000000000 bytes"),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n") + b"\0" * 9,
            "8 bytes, but the file has 9",
        ),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n") + b"\x80\4.", "never read"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n"), "cannot be read"),
        (header("{'descr': '<f4', 'shape': __import__('os').getpid()}\n"), "cannot be read"),
        (header("{}\n", b"\3\0"), "expected version 1.0 or 2.0"),
        (b"\x93NUMPY", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_bad_array_is_one_error(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_arrays(npz(tmp_path / "bad.npz", content))
    assert said in str(caught.value)
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_arrays(tmp_path / "bad.npy")
    assert said in str(caught.value)


def test_arrays_larger_than_the_limit_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(1_000_000, np.uint8))
    monkeypatch.setattr(data_files, "MAX_BYTES", 1 << 19)
    with pytest.raises(ConfigError, match="bytes are allowed"):
        read_arrays(tmp_path / "zeros.npz")
    np.save(tmp_path / "zeros.npy", np.zeros(1_000_000, np.uint8))
    with pytest.raises(ConfigError, match="bytes are allowed"):
        read_arrays(tmp_path / "zeros.npy")


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    """The directory of the archive says less than there is: no more than that is unpacked."""
    plain = io.BytesIO()
    np.save(plain, np.zeros(100_000, np.uint8))
    path = npz(tmp_path / "lies.npz", plain.getvalue())
    data = path.read_bytes()
    size = struct.pack("<I", len(plain.getvalue()))
    path.write_bytes(data.replace(size, struct.pack("<I", 500)))
    with pytest.raises(ConfigError, match="cannot be read as NumPy arrays"):
        read_arrays(path)


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(ConfigError, match="it contains no arrays"):
        read_arrays(tmp_path / "empty.npz")
