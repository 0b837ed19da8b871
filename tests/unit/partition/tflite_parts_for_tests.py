"""Small TFLite models with the parts that splitting has to carry over, and what is in a file afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.unit.tflite_for_tests import Op, T, add, mul, save
from upwell.shared.tensors import Array

CODES, KINDS = schema.BuiltinOperator, schema.BuiltinOptions


def parsed(model: bytes) -> Any:
    """The objects of a file."""
    return schema.ModelT.InitFromPackedBuf(model, 0)


def write(path: Path, model: Any) -> Path:
    """The objects as a file."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def unary(code: int, x: int, out: int) -> Op:
    """An operator of one tensor without options, such as TANH."""
    return Op(code, (x,), (out,))


def constant(name: str, *values: float) -> T:
    """A FP32 vector of the file."""
    return T(name, (len(values),), data=np.array(values, np.float32))


def chain(directory: Path, *, rows: int = 1, signed: bool = True) -> Path:
    """`y = tanh(relu(x * k) + b)` of FP32 [rows, 4], -1 for rows that vary; x is `given` and y `answer` if signed."""
    names = ("x", "scaled", "bent", "shifted", "y")
    tensors = [*(T(name, (rows, 4)) for name in names), constant("k", 1, -2, 3, -4), constant("b", 0.5, 0.25, 0, 1)]
    operators = [mul(0, 5, 1), unary(CODES.RELU, 1, 2), add(2, 6, 3), unary(CODES.TANH, 3, 4)]
    signature = ({"given": 0}, {"answer": 4}) if signed else None
    return save(directory / "chain.tflite", tensors, operators, [0], [4], signature)


def early_exit(directory: Path) -> Path:
    """`early = tanh(h)`, `late = h * other`, `middle = h` with h = x * x: outputs at every depth, an input late."""
    tensors = [T(name, (1, 4)) for name in ("x", "other", "h", "e", "l")]
    operators = [mul(0, 0, 2), unary(CODES.TANH, 2, 3), mul(2, 1, 4)]
    signature = ({"x": 0, "other": 1}, {"early": 3, "late": 4, "middle": 2})
    return save(directory / "early_exit.tflite", tensors, operators, [0, 1], [3, 4, 2], signature)


def with_bodies(directory: Path) -> Path:
    """`y = tanh(x)`, then `z = y * 2` where `flag`, else `z = y + y`; before its bodies lies one that nobody calls."""
    tensors = [T("x", (1, 4)), T("flag", (1,), "BOOL"), T("y", (1, 4)), T("z", (1, 4))]
    options = schema.IfOptionsT()
    options.thenSubgraphIndex, options.elseSubgraphIndex = 2, 3
    branch = Op(CODES.IF, (1, 2), (3,), KINDS.IfOptions, options)
    path = directory / "bodies.tflite"
    save(path, tensors, [unary(CODES.TANH, 0, 2), branch], [0, 1], [3])
    model = parsed(path.read_bytes())
    for name, operator, others in (
        ("unused", add(0, 0, 1), []),
        ("then", mul(0, 2, 1), [constant("two", 2)]),
        ("else", add(0, 0, 1), []),
    ):
        _add_body(model, name, operator, others, directory)
    return write(path, model)


def _add_body(model: Any, name: str, operator: Op, constants: Sequence[T], directory: Path) -> None:
    """Add a subgraph of one operator from tensor 0 to tensor 1."""
    tensors = [T(f"{name}_in", (1, 4)), T(f"{name}_out", (1, 4)), *constants]
    body = parsed(save(directory / "body.tflite", tensors, [operator], [0], [1]).read_bytes())
    graph = body.subgraphs[0]
    for tensor in graph.tensors:
        if tensor.buffer:
            model.buffers.append(body.buffers[tensor.buffer])
            tensor.buffer = len(model.buffers) - 1
    for one in graph.operators:
        model.operatorCodes.append(body.operatorCodes[one.opcodeIndex])
        one.opcodeIndex = len(model.operatorCodes) - 1
    graph.name = name
    model.subgraphs.append(graph)


def with_variable(directory: Path) -> Path:
    """`y = x * 2`, then `y` is kept in a variable that is read again as `z`; `w = tanh(z)`."""
    handle = schema.VarHandleOptionsT()
    handle.container, handle.sharedName = "", "state"
    tensors = [*(T(name, (1, 4)) for name in ("x", "y", "z", "w")), constant("two", 2), T("state", (), "INT32")]
    operators = [
        mul(0, 4, 1),
        Op(CODES.VAR_HANDLE, (), (5,), KINDS.VarHandleOptions, handle),
        Op(CODES.ASSIGN_VARIABLE, (5, 1), (), KINDS.AssignVariableOptions, schema.AssignVariableOptionsT()),
        Op(CODES.READ_VARIABLE, (5,), (2,), KINDS.ReadVariableOptions, schema.ReadVariableOptionsT()),
        unary(CODES.TANH, 2, 3),
    ]
    path = save(directory / "variable.tflite", tensors, operators, [0], [3])
    model = parsed(path.read_bytes())
    model.subgraphs[0].tensors[5].type = schema.TensorType.RESOURCE
    return write(path, model)


def moved_behind(path: Path) -> Path:
    """The same model with its weights behind the flatbuffer, as converters write models of more than 2 GB."""
    model = parsed(path.read_bytes())
    weights: list[Array] = []
    for buffer in model.buffers:
        if buffer.data is not None and len(buffer.data):
            weights.append(buffer.data)
            buffer.data, buffer.offset, buffer.size = None, 1, len(buffer.data)
    target = path.with_suffix(".behind.tflite")
    end = len(write(target, model).read_bytes())
    behind = b""
    for buffer in model.buffers:
        if buffer.offset:
            behind += bytes(-(end + len(behind)) % 16)
            buffer.offset = end + len(behind)
            behind += weights.pop(0).tobytes()
    assert len(write(target, model).read_bytes()) == end
    with target.open("ab") as file:
        file.write(behind)
    return target
