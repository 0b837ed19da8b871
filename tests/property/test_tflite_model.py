"""TFLite files of any shape as LiteRT's own schema reads them: tensors, operators, and what their options name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.formats.tflite import BadTfliteFile, TfliteSubgraph, names_other_files, read_model

CODES, KINDS = schema.BuiltinOperator, schema.BuiltinOptions
TENSORS, GRAPHS = 4, 3
PLAIN = (CODES.ADD, CODES.CUSTOM, CODES.STABLEHLO_ADD)
CALLS = {
    CODES.IF: (KINDS.IfOptions, schema.IfOptions, ("thenSubgraphIndex", "elseSubgraphIndex")),
    CODES.WHILE: (KINDS.WhileOptions, schema.WhileOptions, ("condSubgraphIndex", "bodySubgraphIndex")),
    CODES.CALL: (KINDS.CallOptions, schema.CallOptions, ("subgraph",)),
    CODES.CALL_ONCE: (KINDS.CallOnceOptions, schema.CallOnceOptions, ("initSubgraphIndex",)),
}
ALL = (*PLAIN, *CALLS, CODES.VAR_HANDLE, CODES.HASHTABLE)
indices = st.lists(st.integers(-1, TENSORS - 1), max_size=3)


def made(kind: str, **fields: Any) -> Any:
    one = getattr(schema, f"{kind}T")()
    for name, value in fields.items():
        setattr(one, name, value)
    return one


tensors = st.builds(
    lambda **fields: made("Tensor", **fields),
    name=st.none() | st.sampled_from(["", "a", "käse"]),
    shape=st.none() | st.lists(st.integers(0, 9), max_size=3),
    shapeSignature=st.none() | st.lists(st.integers(-1, 9), max_size=3),
    type=st.integers(0, 18),
    buffer=st.integers(0, 2),
    isVariable=st.booleans(),
    hasRank=st.booleans(),
    quantization=st.none() | st.builds(lambda scale: made("QuantizationParameters", scale=scale), st.just([0.5, 2.0])),
)


@st.composite
def operators(draw: st.DrawFn) -> Any:
    at = draw(st.integers(0, len(ALL) - 1))
    one = made("Operator", opcodeIndex=at, inputs=draw(indices), outputs=draw(st.none() | indices))
    if ALL[at] in CALLS:
        one.builtinOptionsType, kind, fields = CALLS[ALL[at]]
        one.builtinOptions = made(kind.__name__, **{name: draw(st.integers(0, GRAPHS - 1)) for name in fields})
    elif ALL[at] == CODES.VAR_HANDLE:
        texts = {name: draw(st.sampled_from([None, "v", "näme"])) for name in ("container", "sharedName")}
        one.builtinOptionsType, one.builtinOptions = KINDS.VarHandleOptions, made("VarHandleOptions", **texts)
    elif ALL[at] == CODES.HASHTABLE:
        table = made("HashtableOptions", tableId=draw(st.integers(-5, 5)))
        one.builtinOptionsType, one.builtinOptions = KINDS.HashtableOptions, table
    return one


graphs = st.builds(
    lambda **fields: made("SubGraph", **fields),
    tensors=st.lists(tensors, min_size=TENSORS, max_size=TENSORS),
    inputs=indices,
    outputs=indices,
    operators=st.lists(operators(), max_size=5),
    name=st.sampled_from([None, "main"]),
)


@st.composite
def models(draw: st.DrawFn) -> bytes:
    codes = [made("OperatorCode", builtinCode=one, deprecatedBuiltinCode=min(one, 127)) for one in ALL]
    model = made("Model", version=3, operatorCodes=codes, description=draw(st.sampled_from([None, "d"])))
    model.subgraphs = draw(st.lists(graphs, min_size=GRAPHS, max_size=GRAPHS))
    model.buffers = [made("Buffer"), made("Buffer", data=np.arange(9, dtype=np.uint8)), made("Buffer")]
    model.metadata = [made("Metadata", name="m", buffer=1)] if draw(st.booleans()) else None
    named = made("TensorMap", name="x", tensorIndex=0)
    signature = made("SignatureDef", signatureKey="s", inputs=[named], outputs=[named])
    model.signatureDefs = [signature] if draw(st.booleans()) else None
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def texts(value: bytes | None) -> str:
    return (value or b"").decode()


def vector(part: Any, name: str) -> tuple[int, ...]:
    return tuple(int(getattr(part, name)(at)) for at in range(getattr(part, f"{name}Length")()))


def options_of(operator: Any, kind: Any) -> Any:
    options = kind()
    options.Init(operator.BuiltinOptions().Bytes, operator.BuiltinOptions().Pos)
    return options


def check(found: TfliteSubgraph, graph: Any) -> None:
    assert (found.inputs, found.outputs) == (vector(graph, "Inputs"), vector(graph, "Outputs"))
    listed = [graph.Tensors(at) for at in range(graph.TensorsLength())]
    for ours, tensor in zip(found.tensors, listed, strict=True):
        assert (ours.name, ours.type, ours.buffer) == (texts(tensor.Name()), tensor.Type(), tensor.Buffer())
        assert (ours.shape, ours.signature) == (vector(tensor, "Shape"), vector(tensor, "ShapeSignature"))
        assert (ours.is_variable, ours.has_rank) == (tensor.IsVariable(), tensor.HasRank())
    for one, operator in zip(found.operators, map(graph.Operators, range(graph.OperatorsLength())), strict=True):
        code = ALL[operator.OpcodeIndex()]
        assert one.code == code
        assert (one.inputs, one.outputs) == (vector(operator, "Inputs"), vector(operator, "Outputs"))
        called: Sequence[int] = ()
        if code in CALLS:
            _, kind, fields = CALLS[code]
            options = options_of(operator, kind)
            called = [getattr(options, name[0].upper() + name[1:])() for name in fields]
        assert list(one.subgraphs) == list(called)
        state = ""
        if code == CODES.VAR_HANDLE:
            options = options_of(operator, schema.VarHandleOptions)
            state = f"variable {texts(options.Container())}/{texts(options.SharedName())}"
        elif code == CODES.HASHTABLE:
            state = f"table {options_of(operator, schema.HashtableOptions).TableId()}"
        assert one.state == state


@settings(max_examples=examples(150), deadline=None)
@given(models())
def test_it_reads_what_the_schema_reads(data: bytes) -> None:
    model = schema.Model.GetRootAs(data, 0)
    for found, graph in zip(read_model(data), map(model.Subgraphs, range(model.SubgraphsLength())), strict=True):
        check(found, graph)
    assert not names_other_files(data)


@settings(max_examples=examples(20), deadline=None)
@given(models())
def test_whatever_is_cut_off_is_missed(data: bytes) -> None:
    for size in range(0, len(data) - 4, 7):  # the last bytes may be padding
        with pytest.raises(BadTfliteFile):
            read_model(data[:size])
