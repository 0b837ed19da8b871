"""External data of ONNX files as the `onnx` package reads it, whatever the bytes: one reader, for check and use."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx.external_data_helper import ExternalDataInfo

from tests.examples import examples
from upwell.shared.formats.onnx.file import BadOnnxFile, ExternalData, external_locations
from upwell.shared.formats.onnx.graph import read_graph
from upwell.shared.partition.read_onnx import held_tensors

compared: list[str] = []


def varint(number: int) -> bytes:
    low = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
    return low + (varint(number >> 7) if number > 0x7F else b"")


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def shuffled(parts: st.SearchStrategy[bytes], most: int = 5) -> st.SearchStrategy[bytes]:
    return st.lists(parts, max_size=most).map(b"".join)


unknown = st.builds(field, st.integers(20, 500), st.binary(max_size=4)) | st.just(varint(99 << 3) + b"\x05")
key = st.sampled_from([b"location", b"location", b"location", b"offset", b"length", b"other", b"", b"\xff"])
value = st.sampled_from([b"a.bin", b"b/c.bin", b"../x", b"/etc/passwd", b"", b"4", b"-1", b"\xff\xfe", b"\xc3\xa9"])
path = st.sampled_from([b"a.bin", b"b/c.bin", b"../x", b"/etc/passwd"])
entry = st.builds(
    lambda key, *parts: key + b"".join(parts),
    st.just(field(1, b"location")) | st.builds(field, st.just(1), key),
    st.builds(field, st.just(2), path),
    shuffled(st.builds(field, st.just(2), path) | st.builds(field, st.just(1), key) | unknown, 1),
) | shuffled(st.builds(field, st.just(1), key) | st.builds(field, st.just(2), value) | unknown)
where = st.sampled_from([0, 1, 1, 1, 1, 2, 7, (1 << 32) + 1, (1 << 64) - 1]).map(
    lambda one: varint(14 << 3) + varint(one)
)
tensor_field = (
    st.builds(field, st.just(13), entry)
    | where
    | st.sampled_from([field(8, b"w"), field(8, b"v"), field(9, b"raw"), b"\x10\x03", b"\x08\x02"])
    | unknown
)
tensor = st.builds(lambda *parts: b"".join(parts), shuffled(tensor_field, 3), where, shuffled(tensor_field, 3))
attribute = shuffled(st.builds(field, st.sampled_from([5, 5, 10]), tensor) | st.just(field(1, b"value")), 3)
node = shuffled(st.just(field(4, b"Constant")) | st.just(field(2, b"c")) | st.builds(field, st.just(5), attribute), 4)
graph = shuffled(st.builds(field, st.just(5), tensor) | st.builds(field, st.just(1), node) | unknown, 3)
models = st.lists(st.builds(field, st.just(7), graph), min_size=1, max_size=2).map(b"".join)


def written(*entries: tuple[bytes, bytes]) -> bytes:
    """A model of one tensor outside its file, with these entries, as the `onnx` package writes it."""
    said = [field(13, field(1, key) + field(2, value)) for key, value in entries]
    return field(7, field(5, field(8, b"w") + b"".join(said) + varint(14 << 3) + varint(1)))


@example(written((b"location", b"a.bin")))
@example(written((b"location", b"b/c.bin"), (b"offset", b"4"), (b"length", b"8")))
@settings(max_examples=examples(3000))
@given(models)
def check(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.onnx")
        path.write_bytes(data)
        try:
            model = onnx.load_from_string(data)
        except DecodeError:
            model = None
        try:
            locations, graph = external_locations(path), read_graph(path)
        except BadOnnxFile:
            return
    assert model is not None, "we read what protobuf refuses"
    entries = [one for tensor in held_tensors(model) for one in tensor.external_data]
    assert set(locations) == {one.value for one in entries if one.key == "location"}
    for tensor in model.graph.initializer:
        if sum(tensor.name == one.name for one in model.graph.initializer) > 1:
            continue  # no model; the last one counts here
        found = graph.constants[tensor.name].external or ExternalData()
        is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
        said = {one.key: one.value for one in tensor.external_data} if is_external else {}
        for key in ("location", "offset", "length"):
            if not isinstance(said.get(key), bytes):  # no UTF-8
                assert getattr(found, key) == said.get(key, "")
        if found.location:
            assert found.location in locations
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of keys that it does not know
                    expected = ExternalDataInfo(tensor)
            except (ValueError, TypeError):  # an offset that is no number; keys with and without UTF-8, which it sorts
                continue
            assert expected.location == found.location
            compared.append(found.location)


def test_one_reader_takes_what_onnx_takes() -> None:
    compared.clear()
    check()
    assert {"a.bin", "b/c.bin"} <= set(compared), "not even what is well-formed was compared"
