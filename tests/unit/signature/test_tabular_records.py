"""Records become the numbers of their columns, row by row as a plain loop makes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.tokenization import synthetic_bytes
from upwell.shared.tensors import Array, TensorSpec

JOBS = ("nurse", "clerk", "cook")
SCORES = [TensorSpec("scores", "FP32", (-1, 2))]


def processor(keys: str, width: int = 3, dtype: str = "FP32") -> Processor:
    columns = "{age: {}, job: {categories: [nurse, clerk, cook]}, smokes: }"
    text = (
        f"signature: {{inputs: {{row: {{kind: record, columns: {columns}}}}}, outputs: {{scores: {{kind: logits}}}}}}\n"
        f"pre: [columns: {{{keys}}}]\n"
    )
    description = parse_yaml(text, ModelDescription, Path("model.yaml"))
    return Processor(description, [TensorSpec("X", dtype, (-1, width))], SCORES, "onnx")


def numbers(keys: str, *records: Any, width: int = 3, dtype: str = "FP32") -> Array:
    given_records = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    return processor(keys, width, dtype).pre({"row": np.array(given_records, object)}).tensors["X"]


def test_columns_stand_in_the_order_of_the_signature_or_of_the_step() -> None:
    record = {"smokes": True, "age": 41, "job": "cook"}
    assert numbers("", record).tolist() == [[41, 2, 1]]
    assert numbers("columns: [job, age]", record, width=2).tolist() == [[2, 41]]
    assert numbers("one_hot: [job]", record, width=5).tolist() == [[41, 0, 0, 1, 1]]
    assert numbers("dtype: INT64", record, dtype="INT64").tolist() == [[41, 2, 1]]


RECORD = st.fixed_dictionaries(
    {},
    optional={
        "age": st.none() | st.integers(0, 120) | st.floats(-1e6, 1e6),
        "job": st.none() | st.sampled_from([*JOBS, "pilot"]),
        "smokes": st.none() | st.booleans(),
    },
)


@given(st.lists(RECORD, min_size=1, max_size=4), st.booleans())
def test_what_is_missing_is_what_the_step_says(records: list[dict[str, Any]], one_hot: bool) -> None:
    keys = "missing: {age: .nan, job: -1, smokes: 0.5}" + (", one_hot: [job]" if one_hot else "")
    found = numbers(keys, *records, width=5 if one_hot else 3)
    for row, record in zip(found, records, strict=True):
        job = record.get("job")
        number = JOBS.index(job) if job in JOBS else -1
        age, smokes = record.get("age"), record.get("smokes")
        jobs = [float(number == at) for at in range(3)] if one_hot else [number]
        expected = [math.nan if age is None else age, *jobs, 0.5 if smokes is None else float(smokes)]
        np.testing.assert_allclose(row, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"{", "record 0 is not"),
        (b"[" * 100_000, "record 0 is not"),
        (b"[1]", "JSON object; expected one such as"),
        ({"age": 1, "job": "cook"}, "record 0 lacks smokes"),
        ({"age": 1, "job": "pilot", "smokes": False}, "record 0 lacks job; expected a value, or one of nurse, clerk"),
        ({"age": "old", "job": "cook", "smokes": 1}, "age is 'old'; expected a number"),
        ({"age": 1, "job": 2, "smokes": 1}, "job is 2; expected a string"),
        ({"age": 1e300, "job": "cook", "smokes": 1}, "age is 1e+300, which FP32 cannot hold"),
        (
            {"age": 1, "job": "cook", "smokes": 1, "agee": 1},
            "unknown column 'agee'; expected columns: age, job, smokes",
        ),
        (b'{"age": NaN, "job": "cook", "smokes": 1}', "record 0 lacks age"),
        (b'{"age": Infinity, "job": "cook", "smokes": 1}', "cannot hold"),
        (b" " * (1 << 20) + b"{}", "at most 1048576 are allowed"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_row_and_column(record: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        numbers("", record)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_whole_numbers_take_no_fractions() -> None:
    with pytest.raises(InvalidRequest, match=r"age is 1\.5, which INT64 cannot hold"):
        numbers("dtype: INT64", {"age": 1.5, "job": "cook", "smokes": 1}, dtype="INT64")


@pytest.mark.parametrize("dtype", ["INT64", "FP32", "FP64"])
def test_a_whole_number_of_400_digits_is_refused_like_any_other(dtype: str) -> None:
    record = b'{"age": 1' + b"0" * 400 + b', "job": "cook", "smokes": 1}'
    with pytest.raises(InvalidRequest, match=rf"record 0: age is 10+, which {dtype} cannot hold"):
        numbers(f"dtype: {dtype}", record, dtype=dtype)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("columns: [gone]", "no column 'gone'; it has age, job, smokes"),
        ("missing: {gone: 1}", "no column 'gone'"),
        ("one_hot: [job], missing: {job: 3}", "'job' has 3 categories, numbered from 0"),
        ("one_hot: [age]", "column 'age' has none in the signature"),
        ("one_hot: [job]", "FP32 [-1, 5]"),
        ("dtype: INT64, missing: {age: 0.5}", "must be a whole number"),
    ],
)
def test_a_step_that_does_not_fit_says_so(keys: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        processor(keys)
    assert said in str(caught.value)


def test_made_up_records_are_taken() -> None:
    one = processor("")
    (row,) = one.signature.inputs
    made = synthetic_bytes(row, 4, np.random.default_rng(0))
    assert one.pre({"row": made}).tensors["X"].shape == (4, 3)
