"""Raw contents put behind a serialized message and taken out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.tensor_contents import (
    MAX_DESCRIPTION_BYTES,
    MIN_SPLIT_BYTES,
    append_raw_contents,
    split_raw_contents,
    take_apart,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse

FIELD = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
LARGE = bytes(range(256)) * (MIN_SPLIT_BYTES // 256)


def described(*raws: bytes) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="m", id="1", raw_input_contents=raws)


@pytest.mark.parametrize("sizes", [[], [0], [1, 127], [128, 0, 300], [2**14 - 1, 2**14, 2**21]])
def test_appended_contents_are_what_generated_code_writes(sizes: list[int]) -> None:
    raws = [bytes(size) for size in sizes]
    assert append_raw_contents(described().SerializeToString(), FIELD, raws) == described(*raws).SerializeToString()


def test_contents_are_taken_out_in_order_and_not_copied() -> None:
    data = described(b"a", LARGE, b"").SerializeToString()
    split = split_raw_contents(data, FIELD)
    assert split is not None
    description, raws = split
    assert pb.ModelInferRequest.FromString(description) == described()
    assert [bytes(raw) for raw in raws] == [b"a", LARGE, b""]
    assert all(raw.obj is data for raw in raws)


def test_contents_in_front_of_the_description_are_taken_out_too() -> None:
    data = append_raw_contents(b"", FIELD, [LARGE]) + described().SerializeToString()
    split = split_raw_contents(data, FIELD)
    assert split is not None
    assert split[0] == described().SerializeToString()


def test_a_length_may_take_five_bytes() -> None:
    assert take_apart(b"\x3a\x81\x80\x80\x80\x00x", FIELD) == (b"", (0, 0), [(6, 7)])


@pytest.mark.parametrize(
    "data",
    [
        described(b"small").SerializeToString(),
        described(LARGE).SerializeToString()[:-1],
        described(LARGE).SerializeToString() + b"\x08\x01",
        described(LARGE).SerializeToString() + b"\x3a",
        described(LARGE).SerializeToString() + b"\x3a\xff\xff\xff\xff\xff\x01",
        described(LARGE, *[b""] * 1100).SerializeToString(),
        b"\x0b" + LARGE,
        b"\xff" * MIN_SPLIT_BYTES,
        b"\0" * MIN_SPLIT_BYTES,
    ],
)
def test_anything_unusual_is_left_to_protobuf(data: bytes) -> None:
    assert split_raw_contents(data, FIELD) is None


class Counted(bytes):
    """A message that counts how often a part of it is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("key", [b"\x3a", b"\x2a"])  # raw contents, and inputs
def test_a_large_message_of_many_tiny_fields_is_left_alone_soon(key: bytes) -> None:
    tiny = Counted((key + b"\0") * (8 << 20))
    assert take_apart(tiny, FIELD, 3) is None
    assert tiny.looks < 10_000
    assert split_raw_contents(tiny, FIELD) is None
    with pytest.raises(InvalidRequest, match="16777216 bytes besides raw contents; at most 1048576 are allowed"):
        converters.parse_infer_request(tiny)


def test_values_one_by_one_are_few() -> None:
    """A list of 4 MiB of small numbers takes 130 MiB once read."""
    many = pb.ModelInferRequest(model_name="m")
    values = many.inputs.add(name="x", datatype="INT8", shape=[MAX_DESCRIPTION_BYTES]).contents.int_contents
    values.extend(bytes(MAX_DESCRIPTION_BYTES))
    data = many.SerializeToString()
    with pytest.raises(InvalidRequest, match="besides raw contents; at most 4194304 are allowed: send tensors in raw"):
        converters.parse_infer_request(data)
    fits = converters.serialize_infer_request(InferRequest("m", {"x": np.zeros(MAX_DESCRIPTION_BYTES, np.int8)}))
    assert converters.parse_infer_request(fits).inputs["x"].nbytes == MAX_DESCRIPTION_BYTES


def test_values_one_by_one_are_few_in_answers_too_but_what_is_said_of_rows_may_be_long() -> None:
    many = pb.ModelInferResponse(model_name="m")
    values = many.outputs.add(name="y", datatype="INT8", shape=[MAX_DESCRIPTION_BYTES]).contents.int_contents
    values.extend(bytes(MAX_DESCRIPTION_BYTES))
    with pytest.raises(InvalidRequest, match=r"the answer takes .* besides raw contents; at most 4194304 are allowed"):
        converters.parse_infer_response(many.SerializeToString())
    with pytest.raises(InvalidRequest, match=r"the answer takes .* besides raw contents; at most 1048576 are allowed"):
        converters.parse_infer_response(b"\x2a\0" * (8 << 20))
    rows = np.zeros(MAX_DESCRIPTION_BYTES, np.int8)
    said = InferResponse("m", {"y": rows}, parameters={"upwell.hardness": "," * (len(rows) + 1)})
    found = converters.parse_infer_response(converters.serialize_infer_response(said))
    assert found.parameters == said.parameters
    assert found.outputs["y"].nbytes == len(rows)


def test_a_large_tensor_is_a_view_of_the_message_or_an_aligned_copy() -> None:
    array = np.arange(MIN_SPLIT_BYTES, dtype=np.float32)
    views = 0
    for length in range(8):
        data = converters.serialize_infer_request(InferRequest("m", {"x": array}, id="i" * (length + 1)))
        found = converters.parse_infer_request(data).inputs["x"]
        np.testing.assert_array_equal(found, array)
        assert found.flags.aligned
        views += np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert views == 2
