"""Raw and typed contents: what fits, and one precise error for each thing that does not."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.tensor_contents import MAX_DIMENSIONS, decode_raw, decode_typed, encode_raw
from upwell.shared.tensors import DTYPES

NUMERIC = [name for name in DTYPES if name != "BYTES"]


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (4, 0, 2)])
def test_numeric_contents_come_back(datatype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(DTYPES[datatype]).reshape(shape)
    named, data = encode_raw("x", array)
    back = decode_raw("x", named, shape, bytes(data))
    assert named == datatype
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_the_wire_is_little_endian() -> None:
    assert bytes(encode_raw("x", np.array([1], dtype=">i4"))[1]) == b"\1\0\0\0"
    assert bytes(encode_raw("x", np.array([1.0], dtype=ml_dtypes.bfloat16))[1]) == b"\x80\x3f"
    assert bytes(encode_raw("x", np.array([1.0], dtype=np.float16))[1]) == b"\x00\x3c"


def test_strided_and_transposed_arrays_are_sent_in_row_major_order() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert bytes(encode_raw("x", array.T)[1]) == array.T.tobytes()
    assert bytes(encode_raw("x", array[:, ::2])[1]) == array[:, ::2].tobytes()
    texts = np.array([["a", "b"], ["c", "d"]], np.object_)
    assert encode_raw("x", texts.T) == encode_raw("x", texts.T.copy())


def test_numeric_contents_are_not_copied() -> None:
    array = np.arange(2000, dtype=np.float32)
    _, sent = encode_raw("x", array)
    assert np.shares_memory(np.frombuffer(memoryview(sent), np.float32), array)
    data = array.tobytes()
    received = decode_raw("x", "FP32", (40, 50), data)
    assert np.shares_memory(received, np.frombuffer(data, np.float32))
    assert not received.flags.writeable


def test_bytes_elements_have_a_four_byte_length_each() -> None:
    array = np.array([["", b"ab"], ["ü", b"\0"]], dtype=np.object_)
    datatype, raw = encode_raw("x", array)
    data = bytes(raw)
    assert datatype == "BYTES"
    assert data == b"\0\0\0\0\2\0\0\0ab\2\0\0\0\xc3\xbc\1\0\0\0\0"
    assert decode_raw("x", "BYTES", (2, 2), data).tolist() == [[b"", b"ab"], [b"\xc3\xbc", b"\0"]]


@pytest.mark.parametrize("array", [np.array(["ab", "c"]), np.array([b"ab", b"c"])])
def test_numpy_strings_are_bytes(array: np.ndarray[Any, Any]) -> None:
    datatype, data = encode_raw("x", array)
    assert decode_raw("x", datatype, (2,), bytes(data)).tolist() == [b"ab", b"c"]


def test_bytes_scalars_and_empty_tensors() -> None:
    assert decode_raw("x", "BYTES", (), b"\1\0\0\0a").item() == b"a"
    assert decode_raw("x", "BYTES", (0, 5), b"").shape == (0, 5)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP32", (2, 3), b"\0" * 23, r"'x' \(FP32 of shape \[2, 3\]\) takes 24 bytes of raw contents, got 23"),
        ("FP32", (2,), b"\0" * 12, "takes 8 bytes of raw contents, got 12"),
        ("INT8", (), b"", "takes 1 bytes of raw contents, got 0"),
        ("UINT8", (0,), b"\0", "takes 0 bytes of raw contents, got 1"),
        ("INT8", (-1,), b"", r"shape \[-1\]; a dimension cannot be negative"),
        ("INT8", (2**31, 2**31), b"", r"takes 4611686018427387904 bytes of raw contents, got 0"),
        ("FP64", (2**31, 2**31), b"", "more than can be addressed"),
        ("FP64", (2**62, 2**62, 2**62), b"", "more than can be addressed"),
        ("FP32", (0, 2**40, 2**40), b"", "more than can be addressed"),
        ("FP32", (1,) * (MAX_DIMENSIONS + 1), b"\0" * 4, "has 33 dimensions; at most 32"),
        ("FLOAT", (1,), b"\0" * 4, "unknown datatype 'FLOAT'; expected one of BOOL"),
        ("", (1,), b"\0" * 4, "unknown datatype ''"),
        ("BOOL", (2,), b"\1\2", "expected bytes of 0 or 1 as BOOL elements"),
        ("BYTES", (1,), b"\1\0\0", "1 BYTES elements take at least 4 bytes of raw contents, got 3"),
        ("BYTES", (2**18,), b"\0" * 4, "take at least 1048576 bytes"),
        ("BYTES", (2**18 + 1,), b"\0" * (2**20 + 4), "262145 BYTES elements; at most 262144 are allowed"),
        ("BYTES", (1,), b"\5\0\0\0", "end inside element 0 of 1: expected 9 bytes so far, got 4"),
        ("BYTES", (1,), b"\5\0\0\0abc", "end inside element 0 of 1: expected 9 bytes so far, got 7"),
        ("BYTES", (1,), b"\xff\xff\xff\xffab", "end inside element 0 of 1: expected 4294967299 bytes so far, got 6"),
        ("BYTES", (2,), b"\4\0\0\0abcd\0", "end inside element 1 of 2: expected 12 bytes so far, got 9"),
        ("BYTES", (1,), b"\1\0\0\0ab", "1 BYTES elements take 5 bytes, got 6"),
        ("BYTES", (0,), b"\0\0\0\0", "0 BYTES elements take 0 bytes, got 4"),
    ],
)
def test_raw_contents_that_do_not_fit(datatype: str, shape: tuple[int, ...], data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_raw("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 2**16 - 1]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"", b"\xff"]),
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any]) -> None:
    array = decode_typed("x", datatype, (2, 1), {field: values})
    assert array.dtype == DTYPES[datatype]
    assert array.shape == (2, 1)
    assert array.ravel().tolist() == values


@pytest.mark.parametrize("datatype", list(DTYPES))
def test_empty_tensors_need_no_contents(datatype: str) -> None:
    array = decode_typed("x", datatype, (0, 3), {})
    assert array.shape == (0, 3)
    assert array.dtype == DTYPES[datatype]


@pytest.mark.parametrize(
    ("datatype", "shape", "fields", "message"),
    [
        ("INT64", (1,), {"int_contents": [1]}, "'x': INT64 values belong in int64_contents, got int_contents"),
        ("FP32", (1,), {"fp32_contents": [1.0], "fp64_contents": [1.0]}, "belong in fp32_contents, got fp64_contents"),
        ("FP32", (2, 2), {"fp32_contents": [1.0]}, r"shape \[2, 2\] takes 4 elements, got 1"),
        ("FP32", (), {}, r"shape \[\] takes 1 elements, got 0"),
        ("FP32", (0,), {"fp32_contents": [1.0]}, "takes 0 elements, got 1"),
        ("FP32", (2**31, 2**31), {"fp32_contents": [1.0]}, "more than can be addressed"),
        ("FP32", (-1,), {"fp32_contents": [1.0]}, "cannot be negative"),
        ("FP16", (1,), {"fp32_contents": [1.0]}, "FP16 has no typed form; send it in raw_input_contents"),
        ("BF16", (1,), {}, "BF16 has no typed form"),
        ("FP16", (0,), {"fp32_contents": [1.0]}, "FP16 has no typed form"),
        ("INT8", (1,), {"int_contents": [128]}, r"INT8 values must be in -128..127, got 128"),
        ("INT8", (2,), {"int_contents": [0, -129]}, r"INT8 values must be in -128..127, got -129"),
        ("INT16", (1,), {"int_contents": [2**15]}, "INT16 values must be in -32768..32767, got 32768"),
        ("UINT8", (1,), {"uint_contents": [256]}, r"UINT8 values must be in 0..255, got 256"),
        ("UINT16", (1,), {"uint_contents": [2**32 - 1]}, "UINT16 values must be in 0..65535, got 4294967295"),
        ("STRING", (1,), {"bytes_contents": [b""]}, "unknown datatype 'STRING'"),
    ],
)
def test_typed_contents_that_do_not_fit(
    datatype: str, shape: tuple[int, ...], fields: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_typed("x", datatype, shape, fields)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(1, np.complex64), "complex64 has no Open Inference Protocol datatype"),
        (np.zeros(1, "M8[s]"), "datetime64"),
        (np.array([b"a", 1], dtype=np.object_), "expected bytes or str as elements of a BYTES tensor, got int"),
        (np.array([None], dtype=np.object_), "got NoneType"),
        (np.array(["a", "\udcff.jpg"]), "expected Unicode text, got half a surrogate pair"),
    ],
)
def test_arrays_the_protocol_cannot_carry(array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        encode_raw("x", array)


def test_a_long_list_of_elements_costs_no_more_than_the_message() -> None:
    data = struct.pack("<I", 1) + b"a"
    assert decode_raw("x", "BYTES", (1000,), data * 1000).shape == (1000,)


def test_bf16_without_its_package_says_what_to_install() -> None:
    script = (
        "import sys\nsys.modules['ml_dtypes'] = None\n"
        "from upwell.shared.errors import InvalidRequest\nfrom upwell.shared.tensors import numpy_dtype\n"
        "try:\n    numpy_dtype('BF16')\nexcept InvalidRequest as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "BF16 tensors need an extra: pip install 'upwell[bf16]'\n"
