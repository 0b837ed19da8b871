"""A program as a value, and as one safetensors file: its weights, with its graph as JSON in the metadata.

Such a file holds numbers and names of operators, but no code. `operators.py` lists the operators.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from upwell.shared.files import parse_json
from upwell.shared.formats.torch_program.operators import refusal

GRAPH_KEY = "upwell.program"
"""The metadata key of the graph in a safetensors file."""

FILE_NAME = "model.safetensors"

_MOST_NODES = 100_000

SAFETENSORS: Mapping[str, str] = {
    "FP64": "F64", "FP32": "F32", "FP16": "F16", "BF16": "BF16", "INT64": "I64", "INT32": "I32", "INT16": "I16",
    "INT8": "I8", "UINT8": "U8", "BOOL": "BOOL",
}  # fmt: skip
"""The datatypes that a program may use, in safetensors' spelling."""


class BadProgram(ValueError):
    """What is wrong with a program, in one sentence."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class TensorRef(_Part):
    """A tensor by name."""

    tensor: str


class TensorRefs(_Part):
    """A list of tensors; None for an omitted optional one."""

    tensors: tuple[str | None, ...]


class SizeRef(_Part):
    """A symbolic size, or a multiple of it, such as `4*rows`."""

    size: str


class DatatypeRef(_Part):
    """A datatype by its OIP name."""

    datatype: str


Scalar: TypeAlias = bool | int | float | str | None
Argument: TypeAlias = TensorRef | TensorRefs | SizeRef | DatatypeRef | Scalar | tuple[int | float | SizeRef, ...]


class ProgramTensor(_Part):
    """One tensor that is not a weight. A dimension is a number, or a symbolic size as in `SizeRef`."""

    name: str
    datatype: str
    shape: tuple[int | str, ...]


class ProgramNode(_Part):
    """One operator. An empty name among `outputs` is an unused result."""

    operator: str
    arguments: dict[str, Argument]
    outputs: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, including weights, each once."""
        found: list[str | None] = []
        for argument in self.arguments.values():
            if isinstance(argument, TensorRef):
                found.append(argument.tensor)
            elif isinstance(argument, TensorRefs):
                found += argument.tensors
        return tuple(dict.fromkeys(name for name in found if name is not None))


class Program(_Part):
    """A graph in execution order; `weights` are the names of its weights.

    Raises `ValueError` if it could not be run: see `_check`.
    """

    version: int = Field(1, ge=1, le=1)
    inputs: tuple[ProgramTensor, ...] = Field(min_length=1)
    outputs: tuple[ProgramTensor, ...] = Field(min_length=1)
    nodes: tuple[ProgramNode, ...] = Field(max_length=_MOST_NODES)
    weights: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Program:
        """Every tensor is produced once, before it is read, by a known operator; symbolic sizes are those of the
        inputs."""
        known = {*self.weights}
        for name in (one.name for one in self.inputs):
            known.add(_new(name, known))
        sizes = {dim for one in self.inputs for dim in one.shape if isinstance(dim, str)}
        for node in self.nodes:
            why = refusal(node.operator, node.arguments)
            if why:
                raise ValueError(why)
            missing = [name for name in node.reads if name not in known]
            if missing:
                raise ValueError(f"operator {node.operator!r} reads {missing[0]!r}, which nothing before it produces")
            for name in filter(None, node.outputs):
                known.add(_new(name, known))
            open_sizes = [part for text in _sizes(node) for part in text.split("*") if not part.isdecimal()]
            unknown = [part for part in open_sizes if part not in sizes]
            if unknown:
                raise ValueError(f"operator {node.operator!r} needs the size {unknown[0]!r}, which no input has")
        for one in self.outputs:
            if one.name not in known:
                raise ValueError(f"nothing produces the output {one.name!r}")
        for one in (*self.inputs, *self.outputs):
            if one.datatype not in SAFETENSORS:
                raise ValueError(f"{one.name!r} is {one.datatype}, which programs do not support as input or output")
        return self

    @classmethod
    def parse(cls, text: str) -> Program:
        """Parse a program from JSON. Raises `BadProgram`."""
        try:
            return cls.model_validate(parse_json(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadProgram(f"{where}: {first['msg']}" if where else str(first["msg"])) from None
        except ValueError as error:
            raise BadProgram(f"not JSON: {error}") from None


def _new(name: str, known: set[str]) -> str:
    if not name or name in known:
        raise ValueError(f"tensor {name!r} is produced twice")
    return name


def _sizes(node: ProgramNode) -> Iterator[str]:
    for argument in node.arguments.values():
        for one in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(one, SizeRef):
                yield one.size


def packed(program: Program, weights: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """The program as a safetensors file; `weights` has datatype, shape and numbers (little-endian, C order) by name."""
    graph = program.model_dump_json(exclude_defaults=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", GRAPH_KEY: graph}}
    offset = 0
    for name, (datatype, shape, data) in weights.items():
        end = offset + len(data)
        header[name] = {"dtype": SAFETENSORS[datatype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in weights.values())])
