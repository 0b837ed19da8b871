"""Converts records, one JSON object per row, to the numbers of a tabular model.

A column is a number (true and false are 1 and 0) or, if it has categories, the number of its category, or with
`one_hot` a vector of zeros with a 1 at that number. Absent values, null and unknown categories are missing: the step's
`missing` replaces them, and without it the request is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.files import parse_json
from upwell.shared.signature.model_yaml import Columns
from upwell.shared.signature.signature import Column
from upwell.shared.signature.step_values import Geometry, Step, Value, ValueType, array_of
from upwell.shared.tensors import Array, numpy_dtype


def columns_step(op: Columns, source: str, value: ValueType) -> Step:
    """The step for records, BYTES [rows] -> numbers [rows, width]. Raises `ValueError`."""
    known = {column.name: column for column in value.columns}
    if not known:
        raise ValueError(f"expected an input of kind record in {source!r}, got {value}")
    for name in (*op.columns, *op.missing, *op.one_hot):
        if name not in known:
            raise ValueError(f"the record has no column {name!r}; it has {', '.join(known)}")
    for name in op.one_hot:
        if not known[name].categories:
            raise ValueError(f"one_hot needs categories, but column {name!r} has none in the signature")
    chosen = [known[name] for name in op.columns or known]
    table = _Table(op, chosen, frozenset(known))
    kind = ValueType(op.dtype, (value.shape[0], table.width))

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        return (table(array_of(values[0])),)

    return Step((source,), {op.target or source: kind}, run)


class _Table:
    """The columns in the form that a model takes."""

    def __init__(self, op: Columns, columns: Sequence[Column], known: frozenset[str]) -> None:
        self._op = op
        self._columns = columns
        self._known = known
        self._numbers = {one.name: {name: at for at, name in enumerate(one.categories)} for one in columns}
        self._widths = [len(one.categories) if one.name in op.one_hot else 1 for one in columns]
        self.width = sum(self._widths)

    def __call__(self, records: Array) -> Array:
        """[rows, width]. Raises `InvalidRequest` that names row and column."""
        size_bytes = sum(map(len, records))
        if size_bytes > self._op.max_bytes:
            raise InvalidRequest(
                f"the records of one request have {size_bytes} bytes; at most {self._op.max_bytes} are allowed"
            )
        made = np.zeros((len(records), self.width), numpy_dtype(self._op.dtype))
        for row, record in enumerate(records):
            given, start = self._read(record, row), 0
            for column, width in zip(self._columns, self._widths, strict=True):
                number = self._number(given.get(column.name), column, row)
                if column.name not in self._op.one_hot:
                    made[row, start] = number
                elif number is not None and number >= 0:  # a missing value sets none of them
                    made[row, start + int(number)] = 1
                start += width
        return made

    def _read(self, record: bytes, row: int) -> Mapping[str, Any]:
        try:
            given = parse_json(bytes(record))
        except ValueError as error:
            raise InvalidRequest(f"record {row} is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise InvalidRequest(f"record {row} is not a JSON object; expected one such as {{{self._example()}}}")
        unknown = sorted(set(given) - self._known)
        if unknown:
            raise InvalidRequest(
                f"record {row} has the unknown column {unknown[0]!r}; expected columns: {self._listed()}"
            )
        return given

    def _number(self, value: Any, column: Column, row: int) -> float | None:
        if column.categories:
            if isinstance(value, str) and value in self._numbers[column.name]:
                return self._numbers[column.name][value]
            if value is not None and not isinstance(value, str):
                raise InvalidRequest(f"record {row}: {column.name} is {value!r:.40}; expected a string")
        elif isinstance(value, (int, float)) and not _is_nan(value):
            return self._fitting(value, column.name, row)
        elif value is not None and not _is_nan(value):
            raise InvalidRequest(f"record {row}: {column.name} is {value!r:.40}; expected a number")
        if column.name in self._op.one_hot:
            return self._op.missing.get(column.name, -1.0)
        if column.name not in self._op.missing:
            known = f", or one of {', '.join(column.categories[:5])}" if column.categories else ""
            raise InvalidRequest(f"record {row} lacks {column.name}; expected a value{known}")
        return self._op.missing[column.name]

    def _fitting(self, value: float, name: str, row: int) -> float:
        dtype = numpy_dtype(self._op.dtype)
        limits: Any = np.iinfo(dtype) if dtype.kind == "i" else np.finfo(dtype)
        low, high = (int(limits.min), int(limits.max)) if dtype.kind == "i" else (float(limits.min), float(limits.max))
        is_whole = dtype.kind != "i" or float(value).is_integer()
        if not (is_whole and low <= value <= high):
            raise InvalidRequest(f"record {row}: {name} is {value!r:.40}, which {self._op.dtype} cannot hold")
        return value

    def _listed(self) -> str:
        return ", ".join(sorted(self._known))

    def _example(self) -> str:
        return ", ".join(f'"{one.name}": …' for one in self._columns[:3])


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
