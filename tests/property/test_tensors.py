"""Datatypes: every numpy array either has one, and only one, or is refused."""

from __future__ import annotations

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import DTYPES, numpy_dtype, oip_datatype


@pytest.mark.parametrize("datatype", list(DTYPES))
def test_each_datatype_has_one_dtype_and_back(datatype: str) -> None:
    assert oip_datatype(numpy_dtype(datatype)) == datatype


@settings(deadline=None, max_examples=examples(200))
@given(npst.scalar_dtypes())
def test_any_dtype_is_named_or_refused(dtype: np.dtype[np.generic]) -> None:
    try:
        datatype = oip_datatype(dtype)
    except InvalidRequest:
        assert dtype.newbyteorder("=") not in DTYPES.values()
        return
    if datatype == "BYTES":
        assert dtype.kind in "SU"
    else:
        assert numpy_dtype(datatype) == dtype.newbyteorder("=")


@settings(deadline=None, max_examples=examples(200))
@given(st.text(max_size=12).filter(lambda name: name not in DTYPES))
def test_an_unknown_datatype_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown datatype .*; expected one of BOOL, UINT8"):
        numpy_dtype(name)
