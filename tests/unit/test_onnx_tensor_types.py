"""ONNX's tensors in Upwell's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from upwell.shared.errors import InvalidRequest
from upwell.shared.formats.onnx.tensor_types import DATATYPES, UnsupportedTensor, bytes_of, spec_of, text_of
from upwell.shared.tensors import DTYPES, Array, TensorSpec


@dataclass(frozen=True)
class Node:
    name: str
    type: str
    shape: Sequence[int | str | None]


def test_every_datatype_has_one_onnx_type() -> None:
    assert sorted(DATATYPES.values()) == sorted(DTYPES)


def test_a_dimension_that_has_no_size_varies() -> None:
    assert spec_of(Node("x", "tensor(bfloat16)", ["rows", None, 3])) == TensorSpec("x", "BF16", (-1, -1, 3))
    assert spec_of(Node("x", "tensor(string)", [])) == TensorSpec("x", "BYTES", ())


@pytest.mark.parametrize("kind", ["seq(tensor(float))", "optional(tensor(float))", "tensor(complex64)", ""])
def test_what_is_no_plain_tensor_is_named(kind: str) -> None:
    with pytest.raises(UnsupportedTensor) as error:
        spec_of(Node("x", kind, []))
    assert str(error.value) == f"'x' is {kind}; only tensors of plain datatypes are supported"


def test_a_row_that_no_message_holds_is_refused() -> None:
    """A file may declare any size, and the first run, with zeros, would take as much memory."""
    assert spec_of(Node("x", "tensor(float)", ["rows", 2**29 - 1])).shape == (-1, 2**29 - 1)
    with pytest.raises(UnsupportedTensor, match="'x' takes 2147483648 bytes; at most 2147483647 fit into a message"):
        spec_of(Node("x", "tensor(float)", ["rows", 2**29]))


@given(hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4), elements=st.text()))
@settings(deadline=None, max_examples=50)
def test_text_comes_back_from_bytes_in_its_shape(texts: Array) -> None:
    encoded = bytes_of(texts)
    assert all(type(element) is bytes for element in encoded.flat)
    back = text_of("x", encoded)
    assert (back.dtype, back.shape) == (texts.dtype, texts.shape)
    assert back.tolist() == texts.tolist()


def test_elements_keep_their_order_in_any_layout_of_memory() -> None:
    words = np.array([[b"a", b"b\0", b""], ["größe".encode(), b"e", b"f"]], object)
    assert text_of("x", words.T).tolist() == [["a", "größe"], ["b\0", "e"], ["", "f"]]


@pytest.mark.parametrize("element", [b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\x80"])
def test_bytes_that_are_no_text_are_refused(element: bytes) -> None:
    with pytest.raises(InvalidRequest, match="input 'x' must be UTF-8 text: "):
        text_of("x", np.array([b"fine", element], object))
