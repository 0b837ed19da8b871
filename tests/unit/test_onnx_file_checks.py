"""External weights of ONNX files: all found, only from beside the model, and nothing else comes out of bad files."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.examples import examples
from tests.unit.models_for_tests import (
    branch_elsewhere,
    identity,
    linear,
    linear_elsewhere,
    refer,
    save,
    slow,
    tensor,
)
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.onnx.file import MESSAGES, BadOnnxFile, external_locations, external_weights

GRAPH, TENSOR, ENTRY = 7, 5, 13
"""Field numbers of the way from a model to a location."""


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def entry(location: bytes) -> bytes:
    return field(1, b"location") + field(2, location)


def naming(*locations: bytes) -> bytes:
    """A model, as far as this goes, with a tensor for each location."""
    return field(GRAPH, b"".join(field(TENSOR, field(ENTRY, entry(location))) for location in locations))


def put(path: Path, content: bytes = b"numbers") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with weights, those of another file outside, and links to both."""
    inside = tmp_path / "model"
    for path in (inside / "weights.bin", inside / "deeper" / "weights.bin", tmp_path / "secret.bin"):
        put(path)
    (inside / "link.bin").symlink_to(inside / "weights.bin")
    (inside / "circle.bin").symlink_to(inside / "circle.bin")
    (inside / "escape.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "up").symlink_to(tmp_path)
    return inside


@pytest.mark.parametrize("location", ["weights.bin", "deeper/weights.bin", "./weights.bin", "link.bin"])
def test_weights_beside_the_model_are_given(folder: Path, location: str) -> None:
    (found,) = external_weights(linear_elsewhere(folder, location))
    assert found == (folder / location).resolve()


def test_a_model_reached_by_a_link_has_its_weights_beside_the_link(folder: Path, tmp_path: Path) -> None:
    blob = linear_elsewhere(tmp_path, "weights.bin")
    (folder / "model.onnx").symlink_to(blob)
    assert external_weights(folder / "model.onnx") == (folder.resolve() / "weights.bin",)
    with pytest.raises(BadOnnxFile, match="missing"):
        external_weights(blob)


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "{root}/secret.bin",
        "{root}/model/weights.bin",
        "deeper/../../secret.bin",
        "deeper/../weights.bin",
        "..",
        "escape.bin",
        "up/secret.bin",
    ],
)
def test_weights_elsewhere_are_refused(folder: Path, location: str) -> None:
    path = linear_elsewhere(folder, location.format(root=folder.parent))
    with pytest.raises(BadOnnxFile, match=r"^external weights '.*' are (refused|a link to outside)"):
        external_weights(path)


@pytest.mark.parametrize(
    "location", ["", ".", "deeper", "gone.bin", "weights.bin\0", "weights.bin/more", "x" * 300, "circle.bin"]
)
def test_weights_that_are_no_file_are_refused(folder: Path, location: str) -> None:
    with pytest.raises(BadOnnxFile, match=r"^external weights '.*' are missing; expected a file in the model's folder"):
        external_weights(linear_elsewhere(folder, location))


@pytest.mark.parametrize("location", ["*/_ORT_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*"])
def test_what_the_runtime_takes_for_an_address_in_memory_is_refused_even_as_a_file(folder: Path, location: str) -> None:
    put(folder / location)
    with pytest.raises(BadOnnxFile, match="are refused"):
        external_weights(linear_elsewhere(folder, location))


def test_a_suffix_in_capitals_leaves_no_weights_out_of_the_digest(folder: Path) -> None:
    path = linear_elsewhere(folder, "weights.bin").rename(folder / "MODEL.ONNX")
    before = model_digest(path)
    put(folder / "weights.bin", b"others")
    assert model_digest(path) != before


def test_a_long_path_is_not_repeated_whole(folder: Path) -> None:
    with pytest.raises(BadOnnxFile) as error:
        external_weights(linear_elsewhere(folder, "ä" * 2000))
    assert len(str(error.value)) < 400


def test_a_path_longer_than_any_file_s_is_refused(folder: Path) -> None:
    with pytest.raises(BadOnnxFile, match="longer than 4096 bytes"):
        external_weights(linear_elsewhere(folder, "x" * 5000))


def test_every_place_of_a_tensor_in_a_graph_is_searched(tmp_path: Path) -> None:
    path = put(tmp_path / "model.onnx", branch_elsewhere("outer.bin", inner="inner.bin"))
    assert external_locations(path) == ("inner.bin", "outer.bin")


def _constant(location: str) -> Any:
    made = numpy_helper.from_array(np.ones((2, 2), np.float32), "value")
    return helper.make_node("Constant", [], ["y"], value=refer(made, location))


def test_weights_of_constants_and_inner_graphs_are_found(tmp_path: Path) -> None:
    inner = helper.make_graph([_constant("../inner.bin")], "inner", [], [tensor("y", [2, 2])])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    for node, location in ((_constant("../outer.bin"), "../outer.bin"), (branch, "../inner.bin")):
        path = save(tmp_path / "m.onnx", [node], [tensor("x", [], "BOOL")], [tensor("y", [2, 2])])
        assert external_locations(path) == (location,)


def test_weights_of_functions_are_found(tmp_path: Path) -> None:
    path = identity(tmp_path)
    model = onnx.load(str(path))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Own", [], ["y"], [_constant("../function.bin")], opsets))
    assert external_locations(put(path, model.SerializeToString())) == ("../function.bin",)


def test_sparse_weights_are_found(tmp_path: Path) -> None:
    path = identity(tmp_path)
    model = onnx.load(str(path))
    values = refer(numpy_helper.from_array(np.ones(1, np.float32), "w"), "../values.bin")
    indices = refer(numpy_helper.from_array(np.zeros(1, np.int64), "i"), "../indices.bin")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert external_locations(put(path, model.SerializeToString())) == ("../indices.bin", "../values.bin")


def test_weights_of_training_graphs_are_found(tmp_path: Path) -> None:
    path = identity(tmp_path)
    model = onnx.load(str(path))
    made = model.training_info.add().initialization.initializer.add()
    made.CopyFrom(refer(numpy_helper.from_array(np.ones(1, np.float32), "w"), "../training.bin"))
    assert external_locations(put(path, model.SerializeToString())) == ("../training.bin",)


def test_every_way_to_a_tensor_is_walked() -> None:
    """Against the schema itself: every message type that can lead to a tensor is known, with all such fields."""
    reached: dict[str, dict[int, str]] = {}
    todo = [onnx.ModelProto.DESCRIPTOR]
    while todo:
        descriptor = todo.pop()
        inner = {one.number: one.message_type for one in descriptor.fields if one.message_type is not None}
        reached[descriptor.name] = {number: message.name for number, message in inner.items()}
        todo += [message for message in inner.values() if message.name not in reached]
    leads = {"TensorProto"}
    while more := {name for name, inner in reached.items() if leads & {*inner.values()}} - leads:
        leads |= more
    expected = {name: {n: one for n, one in reached[name].items() if one in leads} for name in leads}
    expected["TensorProto"] = {ENTRY: "StringStringEntryProto"}
    assert expected == MESSAGES
    assert onnx.TensorProto.DESCRIPTOR.fields_by_name["external_data"].number == ENTRY


def test_a_file_named_twice_is_there_once_and_entries_of_other_keys_are_left_alone(tmp_path: Path) -> None:
    other = field(GRAPH, field(TENSOR, field(ENTRY, field(1, b"checksum") + field(2, b"no.bin"))))
    path = put(tmp_path / "model.onnx", naming(b"b.bin", b"a.bin", b"b.bin") + other)
    assert external_locations(path) == ("a.bin", "b.bin")


def test_ordinary_models_have_none(tmp_path: Path) -> None:
    for path in (linear(tmp_path), identity(tmp_path), slow(tmp_path, size=8, layers=3)):
        assert external_weights(path) == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an ONNX file at all",
        b"\x3a\xff",
        b"\x3a\x05abc",
        b"\xff" * 20,
        b"\x3a\x02\x2a\x05abcde",  # a tensor that reaches past its graph
        b"\x3a\x01\x80abc",  # a varint that reaches past its graph
        b"\x09abc",  # a number of eight bytes, truncated
        b"\x0b\x0c",  # a group
        b"\0\0",  # field 0
        naming(b"\xff.bin"),
    ],
)
def test_what_is_no_onnx_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadOnnxFile, match=r"^(not an ONNX file|the file is empty)"):
        external_locations(put(tmp_path / "model.onnx", content))


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when new files are copied over it. A mapping of it would end the process."""
    path = linear(tmp_path)
    state_of = os.fstat

    def and_cut(file: int) -> os.stat_result:
        state = state_of(file)
        os.truncate(path, 20)
        return state

    monkeypatch.setattr(os, "fstat", and_cut)
    with pytest.raises(BadOnnxFile, match="truncated"):
        external_locations(path)


def test_a_file_longer_than_any_runtime_reads_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A file of holes costs its maker nothing, and whoever hashes it days."""
    path = linear(tmp_path)
    size = path.stat().st_size
    length = 1 << 40
    with path.open("ab") as file:
        file.write(b"\x32" + varint(length))  # the model's documentation, which no one needs
        file.truncate(size + 1 + len(varint(length)) + length)
    with pytest.raises(BadOnnxFile, match=r"^it has \d+ bytes; expected at most 2 GiB; larger models"):
        model_digest(path)


@pytest.mark.parametrize("high_bits", [0x10, 0x20, 0x40, 0x70])
def test_a_tag_that_other_readers_would_cut_to_32_bits_hides_nothing(tmp_path: Path, high_bits: int) -> None:
    """ONNX Runtime drops the bits above and reads the entry; a reader that keeps them takes it for an unknown field."""
    tag = ENTRY << 3 | 2
    long_tag = bytes([tag | 0x80, 0x80, 0x80, 0x80, high_bits])
    hidden = long_tag + varint(len(entry(b"../secret.bin"))) + entry(b"../secret.bin")
    path = put(tmp_path / "model.onnx", field(GRAPH, field(TENSOR, hidden)))
    with pytest.raises(BadOnnxFile, match="invalid field number"):
        external_locations(path)


def nested(levels: int) -> bytes:
    """A graph in an attribute of a node of a graph, and so on, and at the bottom a tensor with a location."""
    message = field(TENSOR, field(ENTRY, entry(b"deep.bin")))
    for _ in range(levels):  # graph > node > attribute > graph ...
        message = field(1, field(5, field(6, message)))
    return field(GRAPH, message)


def test_all_that_protobuf_itself_reads_is_walked(tmp_path: Path) -> None:
    levels = 32
    onnx.ModelProto.FromString(nested(levels))
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(nested(levels + 1))
    assert external_locations(put(tmp_path / "model.onnx", nested(levels))) == ("deep.bin",)


@pytest.mark.parametrize("levels", [34, 2000])
def test_deep_nesting_is_refused_and_no_recursion(tmp_path: Path, levels: int) -> None:
    with pytest.raises(BadOnnxFile, match="nest deeper than 100"):
        external_locations(put(tmp_path / "model.onnx", nested(levels)))


def test_more_files_than_any_model_has_are_refused(tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(10_001)]
    assert len(external_locations(put(tmp_path / "most.onnx", naming(*names[:-1])))) == 10_000
    with pytest.raises(BadOnnxFile, match="more than 10000 files"):
        external_locations(put(tmp_path / "more.onnx", naming(*names)))


@pytest.mark.parametrize(
    "content",
    [
        field(GRAPH, b"") * 50_000,
        field(GRAPH, field(TENSOR, b"") * 50_000),
        field(GRAPH, field(TENSOR, field(ENTRY, b"".join(field(number, b"") for number in range(1, 30_000))))),
        field(GRAPH, field(TENSOR, field(ENTRY, field(1, b"x" * 2_000_000)))),
        field(GRAPH, field(TENSOR, field(ENTRY, field(1, b"offset") + field(2, b"x" * 2_000_000)))),
    ],
    ids=["graphs", "tensors", "fields", "key", "value"],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path / "model.onnx", content)
    tracemalloc.start()
    try:
        assert external_locations(path) == ()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


@given(st.binary(min_size=1, max_size=200))
@settings(deadline=None, max_examples=examples(100))
def test_any_bytes_are_walked_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp() / "any.onnx", content)
    with contextlib.suppress(BadOnnxFile):
        assert isinstance(external_locations(path), tuple)


def locations_in(message: Message) -> Iterator[str]:
    """What onnx's own reader finds."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for inner in value if isinstance(value, list) or hasattr(value, "add") else [value]:
            if descriptor.name == "external_data" and inner.key == "location":
                yield inner.value
            yield from locations_in(inner)


WITH_WEIGHTS = branch_elsewhere("outer.bin", inner="inner.bin")


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_a_damaged_file_is_refused_or_holds_nothing_that_was_not_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(WITH_WEIGHTS)
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))])
    try:
        found = external_locations(put(tmp_path_factory.getbasetemp() / "damaged.onnx", damaged))
        there = set(locations_in(onnx.ModelProto.FromString(damaged)))
    except (BadOnnxFile, DecodeError):
        return
    assert there <= set(found)


def test_the_comparison_with_onnx_s_own_reader_compares() -> None:
    assert set(locations_in(onnx.ModelProto.FromString(WITH_WEIGHTS))) == {"outer.bin", "inner.bin"}
