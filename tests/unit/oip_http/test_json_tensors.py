from __future__ import annotations

import json
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.http.json_tensors import decode_json, encode_json, write_values
from upwell.shared.tensors import DTYPES, Array


def decode(datatype: str, shape: tuple[int, ...], data: object, *, is_base64: bool = False) -> Array:
    return decode_json("x", datatype, shape, data, is_base64=is_base64)


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_every_datatype_comes_back_from_its_own_text_as_it_was(datatype: str) -> None:
    array = np.random.default_rng(3).integers(0, 2, (2, 3)).astype(DTYPES[datatype])
    name, values, is_base64 = encode_json(array)
    assert (name, len(values), is_base64) == (datatype, 6, False)
    for data in (values, [values[:3], values[3:]]):
        again = decode(datatype, (2, 3), data)
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


@settings(deadline=None)
@given(
    hnp.arrays(st.sampled_from([np.float64, np.float32, np.int64, np.uint64, np.uint8]), hnp.array_shapes(max_side=4))
)
def test_numbers_survive_nested_and_flat(array: Array) -> None:
    array = np.where(np.isfinite(array), array, np.zeros_like(array))
    datatype, values, _ = encode_json(array)
    np.testing.assert_array_equal(decode(datatype, array.shape, values), array)
    np.testing.assert_array_equal(decode(datatype, array.shape, array.tolist()), array)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=6))
def test_any_bytes_survive(elements: list[bytes]) -> None:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    _, values, is_base64 = encode_json(array)
    assert decode("BYTES", array.shape, values, is_base64=is_base64).tolist() == elements


def test_text_stays_text_and_other_bytes_become_base64() -> None:
    assert encode_json(np.array([b"caf\xc3\xa9"], np.object_))[1:] == (["café"], False)
    assert encode_json(np.array([b"a", b"\xff"], np.object_))[1:] == (["YQ==", "/w=="], True)


def test_what_json_has_no_number_for_becomes_null() -> None:
    assert encode_json(np.array([1.5, np.nan, np.inf, -np.inf], np.float32))[1] == [1.5, None, None, None]
    assert encode_json(np.array([np.nan], ml_dtypes.bfloat16))[1] == [None]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "what"),
    [
        ("FP32", (2,), [1.0], "takes 2 elements, got 1"),
        ("FP32", (2, 2), [[1.0, 2.0], [3.0]], "not nested like the shape"),
        ("FP32", (4,), [[1.0, 2.0], [3.0, 4.0]], "not nested like the shape"),
        ("FP32", (1,), [[[1.0]]], "not nested|expected float or int as FP32 elements, got list"),
        ("FP32", (2,), [1.0, [2.0]], "expected float or int as FP32 elements, got list"),
        ("FP32", (1,), 1.0, "list of values"),
        ("FP32", (1,), None, "list of values"),
        ("FP32", (1,), ["1"], "expected float or int as FP32 elements, got str"),
        ("FP32", (1,), [True], "expected float or int as FP32 elements, got bool"),
        ("FP32", (1,), [None], "expected float or int as FP32 elements, got NoneType"),
        ("FP32", (1,), [1e39], "too large for FP32"),
        ("FP16", (1,), [70000], "too large for FP16"),
        ("FP64", (1,), [10**400], "too large for FP64"),
        ("INT8", (1,), [128], "-128..127"),
        ("UINT64", (1,), [-1], "0..18446744073709551615"),
        ("INT64", (1,), [2**63], "-9223372036854775808"),
        ("INT32", (1,), [1.0], "expected int as INT32 elements, got float"),
        ("INT32", (1,), [True], "expected int as INT32 elements, got bool"),
        ("BOOL", (1,), [1], "expected bool as BOOL elements, got int"),
        ("BYTES", (1,), [1], "expected strings as BYTES elements, got int"),
        ("BYTES", (1,), ["\ud800"], "cannot be read as Unicode"),
        ("FP32", (-1,), [], "cannot be negative"),
        ("FP32", (2**62, 2**62), [], "more than can be addressed"),
        ("FP32", (2**40,), [1.0], "takes 1099511627776 elements"),
    ],
)
def test_values_that_do_not_fit_are_refused(datatype: str, shape: tuple[int, ...], data: Any, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        decode(datatype, shape, data)


def test_base64_is_read_strictly() -> None:
    assert decode("BYTES", (1,), ["/w=="], is_base64=True).tolist() == [b"\xff"]
    for text in ("/w", "/w==!", "é==="):
        with pytest.raises(InvalidRequest, match="base64"):
            decode("BYTES", (1,), [text], is_base64=True)


def test_an_empty_tensor_is_an_empty_list() -> None:
    assert decode("FP32", (0, 5), []).shape == (0, 5)
    assert decode("FP32", (2, 0), [[], []]).shape == (2, 0)


@pytest.mark.parametrize("size", [0, 1, 8192, 8193, 20_000])
@pytest.mark.parametrize("kind", ["f", "i", "O", "S", "U"])
def test_text_in_pieces_is_the_text_of_the_whole(size: int, kind: str) -> None:
    array = np.arange(size).astype(kind) if kind != "O" else np.array([b"%d" % one for one in range(size)], object)
    if size and kind in "OS":
        array[-1] = b"\xff"  # then all are base64
    datatype, pieces, is_base64 = write_values(array)
    texts = list(pieces)
    assert (datatype, json.loads(b"[" + b"".join(texts) + b"]"), is_base64) == encode_json(array)
    assert len(texts) == -(-size // 8192)  # other threads run between two


def test_what_is_not_asked_for_is_not_written() -> None:
    array = np.zeros(1 << 22, np.float32)
    tracemalloc.start()
    try:
        _, pieces, _ = write_values(array)
        next(pieces)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
