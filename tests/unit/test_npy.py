"""Reading .npy and .npz files: what numpy writes is read back, and whatever else is in there is one `ValueError`."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from upwell.shared.formats.npy import read_npy, read_npz
from upwell.shared.tensors import Array

MAGIC = b"\x93NUMPY\x01\x00"
_npy: Any = np.lib.format  # its functions have no types
DTYPES = ("?", "|u1", "<i2", ">i4", "<u8", "<f2", ">f8", "<c8", "|S3", "<U2", ">U2", "<M8[s]")


def written(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    _npy.write_array(file, array, version, allow_pickle=False)
    return file.getvalue()


def read(data: bytes) -> Array:
    return read_npy(io.BytesIO(data), len(data))


def header(text: str, magic: bytes = MAGIC) -> bytes:
    return magic + struct.pack("<H", len(text)) + text.encode("latin1")


def of(shape: Any, descr: Any = "<f4") -> bytes:
    return header(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n")


@given(of_numpy.arrays(st.sampled_from(DTYPES), of_numpy.array_shapes(min_dims=0, min_side=0)), st.booleans())
def test_what_numpy_writes_is_read_in_native_byte_order(array: Array, by_columns: bool) -> None:
    given_array = np.asfortranarray(array) if by_columns else array
    for version in (None, (2, 0)):
        found = read(written(given_array, version))
        assert found.shape == given_array.shape
        assert found.dtype == array.dtype.newbyteorder("=")
        assert found.tobytes() == given_array.astype(found.dtype).tobytes()


def test_bfloat16_is_two_bytes() -> None:
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    assert read(written(array)).view(ml_dtypes.bfloat16).tolist() == [1.0, -2.5]


def test_the_array_is_read_from_where_the_file_stands_and_no_further() -> None:
    data = written(np.arange(3))
    file = io.BytesIO(data + b"more")
    assert read_npy(file, len(data)).tolist() == [0, 1, 2]
    assert file.read() == b"more"


class Counting(io.BytesIO):
    """A file that notes the most that was asked of it at one time."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0
        self.most = max(self.most, size)
        return super().read(size)


@pytest.mark.parametrize(
    "data",
    [
        of("(10000000000,)"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
        of(f"({2**70},)"),
        of("(2,)") + bytes(9),
    ],
)
def test_no_memory_is_taken_for_what_is_only_promised(data: bytes) -> None:
    file = Counting(data)
    with pytest.raises(ValueError, match=r"header says|header has"):
        read_npy(file, len(data))
    assert file.most <= len(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "magic"),
        (b"\x93NUMPY", "magic"),
        (b"not numpy's", "magic"),
        (MAGIC, "header cannot be read"),
        (MAGIC + b"\x50\x00{'descr'", "header cannot be read"),
        (header("{}", b"\x93NUMPY\x03\x00"), "expected version 1.0 or 2.0 of the format, got 3.0"),
        (header(" " * 10_001), "its header has 10001 bytes"),
        (header("().__class__"), "header cannot be read"),
        (header("{'descr': '<f4', 'shape': __import__('os').getpid()}"), "header cannot be read"),
        (header("{[]: 1}"), "header cannot be read"),  # numpy lets a TypeError out
        (header("{'''"), "header cannot be read"),  # and a TokenError
        (header("(" * 9_000), "header cannot be read"),
        (header("-" * 9_000 + "1"), "header cannot be read"),  # and a RecursionError or MemoryError
        (of("(1,)", ("<f4",)), "header cannot be read"),  # and an IndexError
        (of("(1,)", "|O") + b"cos\nsystem\n", "Python objects"),
        (of("(1,)", [("a", "|O")]) + bytes(8), "Python objects"),
        (of("(2,)") + bytes(7), "says 8 bytes, but the file has 7"),
        (of("(-2, -3)") + bytes(24), "says 24 bytes, but the file has 24"),
        (of(f"(0, {2**70})"), "dimension"),
        (of(f"({'1, ' * 70})", "|u1") + bytes(1), "dimension"),
    ],
)
def test_what_is_no_array_is_one_error(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(data)


def test_a_file_that_is_shorter_than_it_was_said_to_be_is_refused() -> None:
    data = written(np.arange(3))
    with pytest.raises(ValueError, match="ends after 23 of its 24 bytes"):
        read_npy(io.BytesIO(data[:-1]), len(data))


literals = st.recursive(
    st.sampled_from(["<f4", "|O", "V0", "S0", "<i8", "f", ",", ""]) | st.integers(-3, 3) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.tuples(inner) | st.just(()),
    max_leaves=5,
)


@given(descr=literals, order=literals, shape=literals, rest=st.binary(max_size=16))
def test_no_header_leads_to_another_error(descr: object, order: object, shape: object, rest: bytes) -> None:
    data = header(repr({"descr": descr, "fortran_order": order, "shape": shape})) + rest
    try:
        found = read(data)
    except ValueError:
        return
    assert found.shape == shape
    assert not found.dtype.hasobject


@given(place=st.integers(0, 200), change=st.binary(min_size=1, max_size=4), cut=st.integers(0, 40))
def test_no_damage_leads_to_another_error(place: int, change: bytes, cut: int) -> None:
    whole = written(np.arange(12, dtype="<i4").reshape(3, 4))
    data = whole[:place] + change + whole[place + len(change) :]
    data = data[: len(data) - cut]
    try:
        found = read(data)
    except ValueError:
        return
    assert found.nbytes <= len(data)


def npz(*members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, data in members:
            archive.writestr(name, data)
    return file


ONE = ("x.npy", written(np.arange(100.0)))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_is_read_or_its_damage_is_told(compression: int) -> None:
    whole = npz(ONE, compression=compression).getvalue()
    assert read_npz(io.BytesIO(whole), 1 << 20)["x"].tolist() == list(range(100))
    for place in range(len(whole)):
        data = whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]
        with contextlib.suppress(ValueError, OSError):
            found = read_npz(io.BytesIO(data), 1 << 20)
            assert [array.tolist() for array in found.values()] in ([], [list(range(100))])


def test_an_archive_within_its_bounds_alone_is_read() -> None:
    size_bytes = len(ONE[1])
    two = npz(ONE, ("y.npy", ONE[1]))
    assert list(read_npz(two, 2 * size_bytes, 2)) == ["x", "y"]
    with pytest.raises(ValueError, match=rf"in 2 arrays; at most {2 * size_bytes - 1} bytes are allowed"):
        read_npz(two, 2 * size_bytes - 1)
    with pytest.raises(ValueError, match="at most 1048576 bytes in 1 arrays are allowed"):
        read_npz(two, 1 << 20, 1)
    with pytest.raises(ValueError, match="the same name"):
        read_npz(npz(ONE, ("x", ONE[1])), 1 << 20)
    with pytest.raises(ValueError, match="not a zip file"):
        read_npz(io.BytesIO(b"PK"), 1 << 20)


def test_a_size_that_is_true_is_one() -> None:
    assert read(of((True, 2)) + bytes(8)).tolist() == [[0.0, 0.0]]


def test_what_an_unpacker_says_of_a_long_name_is_cut() -> None:
    damaged = bytearray(npz(("x" * 5000, written(np.arange(3)))).getvalue())
    damaged[40] = 0
    with pytest.raises(ValueError, match="File name in directory") as refused:
        read_npz(io.BytesIO(damaged), 1 << 20)
    assert len(str(refused.value)) <= 200


@pytest.mark.parametrize("at_byte", [0, 1 << 32])  # the bytes before are a hole in the file
@pytest.mark.parametrize("padding_bytes", [0, 65_536])
@pytest.mark.parametrize("is_zip64", [False, True])
def test_a_large_directory_is_refused_before_it_takes_memory(
    tmp_path: Path, is_zip64: bool, padding_bytes: int, at_byte: int
) -> None:
    entry = b"PK\1\2" + struct.pack("<HHHHHHLLLHHHHHLL", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    entries = entry * 30_000
    end_64 = b""
    if is_zip64:
        record = struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, 30_000, 30_000, len(entries), 0)
        end_64 = b"PK\6\6" + record + b"PK\6\7" + struct.pack("<LQL", 0, len(entries), 1)
    said_bytes = 0 if is_zip64 else len(entries)
    end = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 30_000, 30_000, said_bytes, 0, 0)
    path = tmp_path / "many.npz"
    with path.open("wb") as file:
        file.seek(at_byte)
        file.write(entries + end_64 + end + bytes(padding_bytes))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="its directory has more than"):
            read_npz(path, 1 << 33)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_of_two_gibibytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.npz"
    with path.open("wb") as file:
        file.seek(1 << 31)  # a hole, where other arrays would be
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(*ONE)
    assert read_npz(path, 1 << 33)["x"].tolist() == list(range(100))
