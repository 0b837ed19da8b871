"""ONNX graphs of any shape as the `onnx` package reads them: nodes, bodies, weights, and where weights lie."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from tests.examples import examples
from upwell.shared.formats.onnx.file import external_weights
from upwell.shared.formats.onnx.graph import Constant, OnnxGraph, OnnxNode, read_graph

names = st.sampled_from(["", "a", "b", "c", "d", "e", "käse", "a/b:0"])
dims = st.lists(st.integers(0, 3), max_size=3)
WEIGHTS = {"w.bin": bytes(range(256)), "deep/v.bin": bytes(reversed(range(256)))}
entries = st.lists(
    st.tuples(st.just("location"), st.sampled_from(sorted(WEIGHTS)))
    | st.tuples(st.sampled_from(["offset", "length"]), st.integers(0, 64).map(str))
    | st.tuples(st.just("checksum"), st.text(max_size=3)),
    max_size=6,
)


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    """In the file in one of its ways, or elsewhere by any number of entries, the last of each key of which counts."""
    numbers = draw(st.lists(st.integers(-128, 127), max_size=8))
    kind, name = draw(st.sampled_from([TensorProto.INT8, TensorProto.FLOAT])), draw(names)
    made: TensorProto = helper.make_tensor(name, kind, [len(numbers)], numbers)
    if draw(st.booleans()):
        made = numpy_helper.from_array(numpy_helper.to_array(made), name)
    if draw(st.booleans()):
        made.ClearField("raw_data")
        made.ClearField("int32_data")
        made.ClearField("float_data")
        made.data_location = TensorProto.EXTERNAL
        said = [*draw(entries), ("location", draw(st.sampled_from(sorted(WEIGHTS))))]
        for key, value in draw(st.permutations([*said, ("length", str(len(numbers) * (4 if kind == 1 else 1)))])):
            made.external_data.add(key=key, value=value)
    return made


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> onnx.NodeProto:
    node = helper.make_node(
        draw(st.sampled_from(["Add", "If", "Constant", "FusedConv"])),
        draw(st.lists(names, max_size=3)),
        draw(st.lists(names, max_size=2)),
        name=draw(names),
        domain=draw(st.sampled_from(["", "ai.onnx", "com.microsoft"])),
    )
    for kind in draw(st.lists(st.sampled_from("itgG" if depth else "it"), max_size=3)):
        attribute = node.attribute.add(name="attribute", type=AttributeProto.INT, i=3)
        if kind == "t":
            attribute.t.CopyFrom(draw(tensors()))
        elif kind == "g":
            attribute.g.CopyFrom(draw(graphs(depth - 1)))
        elif kind == "G":
            attribute.graphs.extend(draw(st.lists(graphs(depth - 1), max_size=2)))
    return node


@st.composite
def graphs(draw: st.DrawFn, depth: int) -> GraphProto:
    made = GraphProto(node=draw(st.lists(nodes(depth), max_size=4)), initializer=draw(st.lists(tensors(), max_size=3)))
    for values in (made.input, made.output, made.value_info):
        for name in draw(st.lists(names, max_size=3)):
            shape = draw(st.none() | st.lists(st.none() | st.integers(0, 9) | st.sampled_from(["n", "m"]), max_size=3))
            values.append(helper.make_tensor_value_info(name, draw(st.sampled_from([1, 3, 10])), shape))
    for name in draw(st.lists(names, max_size=1)):
        kept, places = (numpy_helper.from_array(np.zeros(1, kind), name) for kind in (np.float32, np.int64))
        made.sparse_initializer.append(helper.make_sparse_tensor(kept, places, draw(dims)))
    return made


@st.composite
def models(draw: st.DrawFn) -> bytes:
    """Files, some in two pieces, which protobuf merges."""
    data = b""
    for _ in range(draw(st.integers(1, 2))):
        model = ModelProto(graph=draw(graphs(2)))
        for name in draw(st.lists(names, max_size=2)):
            model.functions.add(name=name, domain="own")
        data += model.SerializeToString()
    return data


def reads(node: Any) -> Iterator[str]:
    """What a node reads, and what the bodies of its attributes do not make themselves."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {
                one.name for one in (*body.input, *body.initializer, *(one.values for one in body.sparse_initializer))
            }
            for inner in body.node:
                yield from (name for name in reads(inner) if name not in own)
                own.update(inner.output)
            yield from (one.name for one in body.output if one.name and one.name not in own)


def check_node(found: OnnxNode, node: Any) -> None:
    expected = (node.name, node.op_type, node.domain, tuple(node.input), tuple(node.output))
    assert (found.name, found.operator, found.domain, found.inputs, found.outputs) == expected
    assert found.reads == tuple(dict.fromkeys(reads(node)))
    bodies = [body for one in node.attribute for body in (*([one.g] if one.HasField("g") else []), *one.graphs)]
    for body, proto in zip(found.bodies, bodies, strict=True):
        check_graph(body, proto)


def check_constant(found: Constant, tensor: Any, graph: OnnxGraph) -> None:
    assert (found.dtype, found.shape) == (tensor.data_type, tuple(tensor.dims))
    is_external = tensor.data_location == TensorProto.EXTERNAL
    assert (found.external is not None) == is_external
    if found.external is None:
        return
    said = ExternalDataInfo(tensor)
    assert found.external.location == said.location
    file, offset, size_bytes = found.external.part(graph.path)
    assert file == graph.path.parent.resolve() / said.location
    assert (offset, size_bytes) == (said.offset or 0, 256 - (said.offset or 0) if said.length is None else said.length)


def check_graph(found: OnnxGraph, graph: Any) -> None:
    for one, node in zip(found.nodes, graph.node, strict=True):
        check_node(one, node)
    initializers = {one.name: one for one in graph.initializer}
    sparse = {one.values.name: one for one in graph.sparse_initializer}
    assert found.initializers == {*initializers, *sparse}
    for name in initializers.keys() - sparse.keys():
        tensor = initializers[name]
        check_constant(found.constants[name], tensor, found)
        if tensor.data_type == TensorProto.INT8 and tensor.data_location != TensorProto.EXTERNAL:
            numbers = found.integers(name)
            expected = numpy_helper.to_array(tensor)
            assert np.array_equal(np.zeros(0) if numbers is None else numbers, expected)
    for name in sparse.keys() - initializers.keys():
        assert found.constants[name].shape == tuple(sparse[name].dims)
    assert list(found.outputs) == [one.name for one in graph.output]
    declared = {one.name: one.type.tensor_type for one in graph.input}
    given = [name for name in declared if name not in found.initializers]
    assert list(found.inputs) == given
    for name in given:
        assert found.inputs[name] == tuple(
            one.dim_value if one.HasField("dim_value") else one.dim_param for one in declared[name].shape.dim
        )


@settings(max_examples=examples(150), deadline=None)
@given(models())
def test_it_reads_what_onnx_reads(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.onnx")
        path.write_bytes(data)
        for location, content in WEIGHTS.items():
            Path(name, location).parent.mkdir(exist_ok=True)
            Path(name, location).write_bytes(content)
        model = onnx.load_from_string(data)
        found = read_graph(path)
        assert found.functions == {(one.domain, one.name) for one in model.functions}
        check_graph(found, model.graph)
        assert {one.name for one in external_weights(path)} <= {Path(one).name for one in WEIGHTS}
