"""What halves of TFLite models keep of the whole besides its operators, and what cannot be split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.models.tflite_recomposing import file_of
from tests.unit.partition import tflite_parts_for_tests as parts
from tests.unit.partition.splitting import split_tflite
from tests.unit.tflite_for_tests import Op, T, save, two_in_two_out
from upwell.shared.errors import ConfigError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph, Node, Tensor
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf


def halves_of(path: Path, nodes: int) -> Halves:
    return split_tflite(path, contract(read_graph(path)), frozenset(range(nodes)))


def metadata(half: ModelHalf) -> dict[str, bytes]:
    model = parts.parsed(file_of(half))
    return {one.name.decode(): model.buffers[one.buffer].data.tobytes() for one in model.metadata}


def with_metadata(path: Path, entries: dict[str, bytes]) -> Path:
    model = parts.parsed(path.read_bytes())
    model.metadata = []
    for name, content in entries.items():
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(content, np.uint8)
        model.buffers.append(buffer)
        entry.name, entry.buffer = name, len(model.buffers) - 1
        model.metadata.append(entry)
    return parts.write(path, model)


def test_metadata_is_kept_but_for_what_describes_inputs_and_outputs_of_the_whole(tmp_path: Path) -> None:
    entries = {"min_runtime_version": b"2.3.0", "TFLITE_METADATA": b"inputs and outputs", "mine": b"\x00\x01"}
    path = with_metadata(parts.chain(tmp_path), entries)
    halves = halves_of(path, 2)
    for half, side in ((halves.head, "head"), (halves.tail, "tail")):
        kept = metadata(half)
        about = json.loads(kept.pop("upwell.split"))
        assert kept == {"min_runtime_version": b"2.3.0", "mine": b"\x00\x01"}
        assert about == {"half": side, "whole": model_digest(path).removeprefix("sha256:"), "cut": ["bent"]}
        assert parts.parsed(file_of(half)).description == b"made for a test"


@pytest.mark.parametrize(("key", "kept"), [(b"classify", b"classify"), (b"\xff", "\N{REPLACEMENT CHARACTER}".encode())])
def test_the_signature_keeps_its_key(tmp_path: Path, key: bytes, kept: bytes) -> None:
    path = parts.chain(tmp_path)
    model = parts.parsed(path.read_bytes())
    model.signatureDefs[0].signatureKey = key
    halves = halves_of(parts.write(path, model), 2)
    (signature,) = parts.parsed(file_of(halves.tail)).signatureDefs
    assert signature.signatureKey == kept
    assert ([one.name for one in signature.inputs], [one.name for one in signature.outputs]) == ([b"bent"], [b"answer"])


def test_a_file_without_buffers_is_split(tmp_path: Path) -> None:
    path = parts.chain(tmp_path)
    model = parts.parsed(path.read_bytes())
    model.buffers = []
    for tensor in model.subgraphs[0].tensors:
        tensor.buffer = 0
    halves = halves_of(parts.write(path, model), 2)
    assert metadata(halves.head).keys() == metadata(halves.tail).keys() == {"upwell.split"}


def test_custom_operators_keep_their_code_and_options(tmp_path: Path) -> None:
    tensors = [T(name, (1, 4)) for name in ("x", "h", "y")]
    path = save(tmp_path / "m.tflite", tensors, [parts.unary(parts.CODES.TANH, 0, 1), Op("Mine", (1,), (2,))], [0], [2])
    model = parts.parsed(path.read_bytes())
    model.subgraphs[0].operators[1].customOptions = np.frombuffer(b"options of mine", np.uint8)
    halves = halves_of(parts.write(path, model), 1)
    (code,) = parts.parsed(file_of(halves.tail)).operatorCodes
    (operator,) = parts.parsed(file_of(halves.tail)).subgraphs[0].operators
    assert (code.builtinCode, code.customCode) == (parts.CODES.CUSTOM, b"Mine")
    assert operator.customOptions.tobytes() == b"options of mine"
    assert [one.builtinCode for one in parts.parsed(file_of(halves.head)).operatorCodes] == [parts.CODES.TANH]


def test_halves_are_the_same_every_time_and_another_cut_has_another_digest(tmp_path: Path) -> None:
    path = parts.chain(tmp_path)
    assert halves_of(path, 2).digest == halves_of(path, 2).digest
    assert len({halves_of(path, nodes).digest for nodes in (1, 2, 3)}) == 3


def test_an_optional_input_that_is_absent_stays_absent(tmp_path: Path) -> None:
    tensors = [T("x", (1, 4)), T("h", (1, 4)), T("w", (2, 4), data=np.eye(2, 4, dtype=np.float32)), T("y", (1, 2))]
    options = schema.FullyConnectedOptionsT()
    dense = Op(parts.CODES.FULLY_CONNECTED, (1, 2, -1), (3,), parts.KINDS.FullyConnectedOptions, options)
    path = save(tmp_path / "m.tflite", tensors, [parts.unary(parts.CODES.TANH, 0, 1), dense], [0], [3])
    (operator,) = parts.parsed(file_of(halves_of(path, 1).tail)).subgraphs[0].operators
    assert operator.inputs[2] == -1


def refused(path: Path, graph: Graph, edge: Any) -> str:
    with pytest.raises(ConfigError) as error:
        split_tflite(path, graph, frozenset(edge))
    assert str(path) in str(error.value)
    return str(error.value)


def test_what_is_no_cut_is_refused(tmp_path: Path) -> None:
    path = parts.chain(tmp_path)
    graph = contract(read_graph(path))
    assert "nothing is on the edge side" in refused(path, graph, ())
    assert "everything is on the edge side" in refused(path, graph, range(len(graph.nodes)))
    assert "reads tensors of the other side" in refused(path, graph, (1,))


def test_a_graph_of_another_model_is_refused(tmp_path: Path) -> None:
    path = parts.chain(tmp_path)
    graph = contract(read_graph(two_in_two_out(tmp_path)))
    assert "belongs to another model" in refused(path, graph, (0,))
    tensors = {name: Tensor(name, "FP32", (1,)) for name in "abc"}
    nodes = (Node("a", "A", ("a",), ("b",), (0,)), Node("b", "B", ("b",), ("c",), (1,)))
    assert "belongs to another model" in refused(path, Graph("tflite", nodes, tensors, ("a",), ("c",)), (0,))


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    path = parts.chain(tmp_path)
    graph = contract(read_graph(path))
    data = path.read_bytes()
    for broken, why in (
        (b"", "not a TFLite file"),
        (b"no model", "not a TFLite file"),
        (data[: len(data) // 2], "cannot be read"),
    ):
        path.write_bytes(broken)
        assert why in refused(path, graph, (0,))
    path.unlink()
    assert "No such file" in refused(path, graph, (0,))


def test_weights_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    path = parts.moved_behind(parts.chain(tmp_path))
    graph = contract(read_graph(path))
    path.write_bytes(path.read_bytes()[:-8])
    assert "beyond its end" in refused(path, graph, (0,))
