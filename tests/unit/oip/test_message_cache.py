"""Messages like those before: nothing of one shows in the next, and what is unusual is left to protobuf."""

from __future__ import annotations

import numpy as np
import pytest

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.converters import read_cached
from upwell.shared.oip.codec.tensor_contents import MAX_ID_CHARACTERS
from upwell.shared.oip.dataplane import InferRequest, InferResponse


def message(value: float = 1.0, elements: int = 4, **fields: object) -> bytes:
    given = {"x": np.full(elements, value, np.float32)}
    return converters.serialize_infer_request(InferRequest("m", given, **fields))  # type: ignore[arg-type]  # of that class


@pytest.mark.parametrize("elements", [4, 100_000])
def test_requests_alike_have_contents_and_ids_of_their_own(elements: int) -> None:
    found = [read_cached(message(float(number), elements, id=f"r{number}")) for number in range(3)]
    for number, request in enumerate(found):
        assert request is not None
        assert request.id == f"r{number}"
        assert request.inputs["x"].tolist() == [number] * elements


def test_requests_of_the_same_size_are_told_apart() -> None:
    given = {name: np.full(4, value, np.float32) for value, name in enumerate("xyz")}
    for _ in range(2):
        for name in given:
            data = converters.serialize_infer_request(InferRequest(f"m{name}", {name: given[name]}, id=f"r{name}"))
            request = read_cached(data)
            assert request is not None
            assert (request.model, request.id, list(request.inputs)) == (f"m{name}", f"r{name}", [name])
            assert request.inputs[name].tolist() == given[name].tolist()
    shapes = [(2, 6), (3, 4), (6, 2), (2, 6)]
    for shape in shapes:
        data = converters.serialize_infer_request(InferRequest("m", {"x": np.ones(shape, np.float32)}))
        assert converters.parse_infer_request(data).inputs["x"].shape == shape


def test_large_contents_are_views_that_nobody_can_write() -> None:
    data = message(elements=100_000)
    for _ in range(2):
        request = read_cached(data)
        assert request is not None
        array = request.inputs["x"]
        assert not np.shares_memory(array, np.frombuffer(data, np.uint8)) or not array.flags.writeable


def test_an_aligned_large_request_is_not_copied() -> None:
    shared = []
    for padding in range(8):  # the length of the id moves the contents
        data = message(elements=100_000, id="i" * (padding + 1))
        request = read_cached(data)
        assert request is not None
        shared.append(np.shares_memory(request.inputs["x"], np.frombuffer(data, np.uint8)))
    assert sum(shared) == 2  # of four bytes each, a quarter begins at a multiple of four


def test_small_contents_are_copies() -> None:
    data = message()
    request = read_cached(data)
    assert request is not None
    assert not np.shares_memory(request.inputs["x"], np.frombuffer(data, np.uint8))


def test_what_is_remembered_cannot_be_changed() -> None:
    data = message(parameters={"a": 1})
    request = read_cached(data)
    assert request is not None
    with pytest.raises(TypeError):
        request.parameters["a"] = 2  # type: ignore[index]  # that is the point
    request.inputs.pop("x")  # type: ignore[attr-defined]  # it is a dict
    again = read_cached(data)
    assert again is not None
    assert list(again.inputs) == ["x"]


def test_other_contents_than_the_shape_says_are_refused_as_ever() -> None:
    for size in (0, 12, 20):
        request = pb.ModelInferRequest.FromString(message())
        request.raw_input_contents[0] = bytes(size)
        data = request.SerializeToString()
        assert read_cached(data) is None
        with pytest.raises(InvalidRequest, match=f"takes 16 bytes of raw contents, got {size}"):
            converters.parse_infer_request(data)


def test_an_id_that_is_no_text_is_refused() -> None:
    data = message() + b"\x1a\x02\xff\xfe"
    with pytest.raises(InvalidRequest, match="damaged"):
        converters.parse_infer_request(data)


def test_an_id_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the id has"):
        converters.parse_infer_request(message(id="i" * 100_000))
    texts = {"t": np.array([b"a"], np.object_)}  # left to protobuf
    fits, too_long = (InferRequest("m", texts, id="i" * (MAX_ID_CHARACTERS + more)) for more in (0, 1))
    assert converters.parse_infer_request(converters.serialize_infer_request(fits)).id == fits.id
    with pytest.raises(InvalidRequest, match="the id has 1001 characters; at most 1000 are allowed"):
        converters.parse_infer_request(converters.serialize_infer_request(too_long))


def test_nothing_large_that_a_caller_sends_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: dict[int, object] = {}
    monkeypatch.setattr(converters, "_frames", remembered)
    first = pb.ModelInferRequest(id="i" * 100_000).SerializeToString()
    assert read_cached(first + message(id="r")) is None
    assert converters.parse_infer_request(first + message(id="r")).id == "r"
    assert not remembered


def test_nothing_large_that_is_answered_is_remembered() -> None:
    converters._parameter.cache_clear()
    for route in ("edge", "cloud"):
        facts = {"upwell.routes": ",".join([route] * 100_000)}
        answer = converters.serialize_infer_response(InferResponse("m", {}, parameters=facts))
        assert converters.parse_infer_response(answer).parameters == facts
    assert converters._parameter.cache_info().currsize == 0


def test_few_layouts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: dict[int, object] = {}
    monkeypatch.setattr(converters, "_REMEMBERED", 4)
    monkeypatch.setattr(converters, "_frames", remembered)
    for length in range(20):
        read_cached(message(id="i" * length))
        assert 1 <= len(remembered) <= 4


def test_typed_contents_and_texts_are_left_to_protobuf() -> None:
    request = pb.ModelInferRequest.FromString(message())
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    assert read_cached(request.SerializeToString()) is None
    assert converters.parse_infer_request(request.SerializeToString()).inputs["x"].tolist() == [1, 2, 3, 4]
    texts = converters.serialize_infer_request(InferRequest("m", {"t": np.array([b"a"], np.object_)}))
    assert read_cached(texts) is None
    assert converters.parse_infer_request(texts).inputs["t"].tolist() == [b"a"]


def test_true_one_and_a_float_are_different_parameters() -> None:
    for value in (True, 1, 1.0, "1"):
        answer = InferResponse("m", {}, parameters={"p": value})
        found = converters.parse_infer_response(converters.serialize_infer_response(answer)).parameters["p"]
        assert type(found) is type(value)
        assert found == value


def test_answers_alike_have_numbers_of_their_own() -> None:
    for number in (0.0, -0.0, 1.5, float("inf")):
        answer = InferResponse("m", {"y": np.array([number], np.float32)}, id=str(number), parameters={"p": number})
        found = converters.parse_infer_response(converters.serialize_infer_response(answer))
        assert (found.id, str(found.parameters["p"])) == (str(number), str(number))
        assert found.outputs["y"].tolist() == [number]


def test_an_answer_does_not_change_with_the_engine_s_memory_once_it_is_written() -> None:
    for elements in (4, 100_000):
        buffer = np.ones(elements, np.float32)
        data = converters.serialize_infer_response(InferResponse("m", {"y": buffer}))
        buffer[:] = 7
        assert set(converters.parse_infer_response(data).outputs["y"].tolist()) == {1.0}
