"""Messages made to do harm: each is answered with a status that says so, and the service goes on as it was."""

from __future__ import annotations

import http.client
import io
import json
import random
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache

import grpc
import numpy as np
import pytest
from PIL import Image

from tests.faults.attacking import FORBIDDEN, GOOD, LIMIT_S, METHOD, Target, attacked, mutated, statuses, valid_messages
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb

MOST_BYTES = 8 << 20
SEED = 20_240_607
OK, INVALID, NOT_FOUND, EXHAUSTED = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with attacked(tmp_path_factory.mktemp("attacked"), serve=", max_message: 8MiB") as running:
        yield running


def request(
    shape: list[int], datatype: str = "FP32", raw: bytes | None = None, model: str = "linear", name: str = "x"
) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    return made


def test_the_messages_that_are_mutated_are_good_ones(target: Target) -> None:
    *good, picture, large = valid_messages()
    assert statuses(target.grpc, [*good, large]) == {OK: 3}
    assert statuses(target.grpc, [picture]) == {INVALID: 1}  # of its picture alone


@pytest.mark.parametrize("mutations", [1000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_thousands_of_mutations_are_answered_and_leave_nothing_behind(target: Target, mutations: int) -> None:
    def messages(count: int) -> Iterator[bytes]:
        for _ in range(count):
            (chosen,) = source.choices(valid, weights=(4, 3, 3, 1))
            yield mutated(chosen, source)

    source, valid = random.Random(SEED), valid_messages()
    statuses(target.grpc, messages(500))  # so that threads and pools have their size
    before = target.resident_bytes()
    found = statuses(target.grpc, messages(mutations), every=100, then=target.good)
    assert set(found) <= {OK, INVALID, NOT_FOUND}
    assert found[INVALID] > mutations / 2
    assert found[OK] > mutations / 50  # or they would not come far
    target.gives_back(before)


LIES = {
    "2^31 dimensions": request([1] * 100_000),
    "a dimension of 2^31": request([2**31, 8], raw=bytes(32)),
    "a dimension of 2^63 - 1": request([2**63 - 1], raw=bytes(32)),
    "two of 2^31": request([2**31, 2**31], raw=bytes(32)),
    "a product that overflows to the right size": request([2**32, 2**32, 8], raw=bytes(32)),
    "a product that overflows to nothing": request([2**32, 2**32], raw=b""),
    "nothing beside what overflows": request([0, 2**62, 2**62], raw=b""),
    "a negative dimension": request([-1, 8], raw=bytes(32)),
    "two negative ones": request([-1, -8], raw=bytes(32)),
    "the least number": request([-(2**63)], raw=bytes(32)),
    "fewer bytes": request([1, 8], raw=bytes(31)),
    "more bytes": request([1, 8], raw=bytes(33)),
    "no bytes": request([1, 8], raw=b""),
    "no contents at all": request([1, 8]),
    "another rank": request([8], raw=bytes(32)),
    "another width": request([1, 9], raw=bytes(36)),
    "more dimensions than numpy has": request([1] * 33, raw=bytes(4)),
    "as many dimensions as numpy has": request([1] * 32, raw=bytes(4)),
    "another datatype": request([1, 8], "INT32", bytes(32)),
    "a datatype of another size": request([1, 8], "FP64", bytes(32)),
    "no datatype": request([1, 8], "", bytes(32)),
    "an unknown datatype": request([1, 8], "FP31", bytes(32)),
    "text for numbers": request([1], "BYTES", struct.pack("<I", 4) + b"text"),
    "many elements of text": request([2**31], "BYTES", b""),
    "more elements of text than are read": request([1 << 19], "BYTES", bytes(1 << 21)),
    "an element longer than the rest": request([1], "BYTES", struct.pack("<I", 2**32 - 1), "pictures", "picture"),
    "a truth of 2": request([1, 8], "BOOL", b"\2" * 8),
    "another name": request([1, 8], raw=bytes(32), name="y"),
    "a name of a megabyte": request([1, 8], raw=bytes(32), name="x" * (1 << 20)),
    "a path for a model": request([1, 8], raw=bytes(32), model="../../etc/passwd"),
    "an id without end": pb.ModelInferRequest(model_name="linear", id="i" * 100_000),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_tensor_is_refused(target: Target, lie: str) -> None:
    found = statuses(target.grpc, [LIES[lie].SerializeToString()])
    assert set(found) <= {INVALID, NOT_FOUND}
    target.good()


@pytest.mark.slow
def test_tensors_by_the_million_are_refused_before_they_take_memory(target: Target) -> None:
    megabytes = 6
    number = megabytes << 20
    typed = pb.ModelInferRequest(model_name="linear")
    values = typed.inputs.add(name="x", datatype="INT64", shape=[number]).contents.int64_contents
    values.extend(bytes(number))
    floods = {
        "inputs": b"\x2a\0" * (number // 2),
        "outputs": b"\x32\0" * (number // 2),
        "contents": b"\x3a\0" * (number // 2),
        "values": typed.SerializeToString(),
        "dimensions": b"\x2a" + _varint(number + 4) + b"\x1a" + _varint(number) + b"\1" * number,
        "texts": request([number // 4], "BYTES", bytes(number)).SerializeToString(),
        "parameters": b"".join(b"\x22\x0a\x0a\x04%04x\x12\x02\x08\1" % (n % 2**16) for n in range(number // 12)),
    }
    for name, flood in floods.items():
        target.good()
        target.forget_peak()
        before = target.peak_bytes()
        assert statuses(target.grpc, [flood]) == {INVALID: 1}, name
        # The message itself is there up to three times: as it came, as bytes, and without its contents.
        assert target.peak_bytes() - before < 3.5 * len(flood) + (8 << 20), name


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def test_a_message_over_the_limit_is_refused_before_it_is_read(target: Target) -> None:
    target.forget_peak()
    before = target.peak_bytes()
    assert statuses(target.grpc, [bytes(60 << 20)]) == {EXHAUSTED: 1}
    assert target.peak_bytes() - before < MOST_BYTES
    target.good()


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = [header, *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def animation(frames: int) -> bytes:
    file = io.BytesIO()
    first = Image.new("RGB", (64, 64))
    others = [Image.new("RGB", (64, 64), (index, 0, 0)) for index in range(1, frames)]
    first.save(file, "WEBP", save_all=True, append_images=others, lossless=True)
    return file.getvalue()


NAMES = (
    "a huge PNG",
    "a tall PNG",
    "text beside the pixels",
    "a profile beside the pixels",
    "more pixels than said",
    "a PNG cut off",
    "an animation",
    "a GIF",
    "a TIFF",
)


@cache
def bombs() -> Mapping[str, tuple[bytes, grpc.StatusCode | None]]:
    """By name: the picture, and how it has to be answered."""
    zeros = zlib.compress(bytes(200 << 20), 9)  # in 200 kB
    return {
        "a huge PNG": (png(30_000, 30_000, (b"IDAT", zeros)), INVALID),
        "a tall PNG": (png(1, 2**31 - 1, (b"IDAT", zeros)), INVALID),
        "text beside the pixels": (png(8, 8, (b"zTXt", b"a\0\0" + zeros), (b"IDAT", zlib.compress(bytes(200)))), None),
        "a profile beside the pixels": (
            png(8, 8, (b"iCCP", b"a\0\0" + zeros), (b"IDAT", zlib.compress(bytes(200)))),
            None,
        ),
        "more pixels than said": (png(8, 8, (b"IDAT", zeros)), None),
        "a PNG cut off": (png(4_000, 4_000, (b"IDAT", zeros[:1000])), INVALID),
        "an animation": (animation(200), OK),
        "a GIF": (b"GIF89a\xff\xff\xff\xff", INVALID),
        "a TIFF": (b"II*\0\x08\0\0\0", INVALID),
    }


@pytest.mark.parametrize("bomb", NAMES)
def test_a_picture_that_is_a_bomb_is_not_unpacked(target: Target, bomb: str) -> None:
    data, expected = bombs()[bomb]
    made = request([1], "BYTES", struct.pack("<I", len(data)) + data, "pictures", "picture")
    target.good()
    target.forget_peak()
    before = target.peak_bytes()
    found = statuses(target.grpc, [made.SerializeToString()])
    assert set(found) <= ({expected} if expected else {OK, INVALID})
    assert target.peak_bytes() - before < 64 << 20
    target.good()


@pytest.mark.slow
def test_pictures_at_once_share_what_memory_there_is_for_pixels(target: Target) -> None:
    """40 million pixels are within the limit of one request and take half a gigabyte; three fit at once."""
    data = png(8000, 5000, (b"IDAT", zlib.compress(bytes(5000 * (1 + 3 * 8000)), 9)))
    message = request([1], "BYTES", struct.pack("<I", len(data)) + data, "pictures", "picture").SerializeToString()
    target.forget_peak()
    before = target.peak_bytes()
    with grpc.insecure_channel(target.grpc) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        codes = {one.code() for one in [call.future(message, timeout=100.0) for _ in range(6)]}
    assert codes == {OK}
    assert target.peak_bytes() - before < 2000 << 20
    target.good()


# --- The same over HTTP


def post(target: Target, body: bytes, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(target.http, timeout=LIMIT_S)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/v2/models/linear/infer", body, named)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200 or not any(word in text for word in FORBIDDEN), text
        return answer.status, text


def tensor(**keys: object) -> bytes:
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1] * 8, **keys}]}
    ).encode()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (zlib.compress(tensor()), {"Content_Encoding": "gzip"}, 400),
        (zlib.compress(bytes(50 << 20), 1), {"Content_Encoding": "deflate"}, 413),
        (b"[" * 1_000_000, {}, 400),
        (b'{"a":' * 200_000, {}, 400),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,8],"data":' + b"[" * 100_000, {}, 400),
        (tensor(shape=[2**31, 2**31]), {}, 400),
        (tensor(shape=[2**63]), {}, 400),
        (tensor(shape=[-1, 8]), {}, 400),
        (tensor(shape=[1] * 100_000), {}, 400),
        (tensor(data=["1"] * 8), {}, 400),
        (tensor(data=[10**400] * 8), {}, 400),
        (b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[' + b"9" * 1_000_000 + b"]}]}", {}, 400),
        (tensor(datatype="FP32 "), {}, 400),
        (tensor(data=None, parameters={"binary_data_size": 2**62}), {}, 400),
        (json.dumps({"id": "i" * 100_000, "inputs": []}).encode(), {}, 400),
        (json.dumps({"inputs": [{}] * 10_000}).encode(), {}, 400),
        (b"\xff\xfe" + tensor(), {}, 400),
        (tensor(), {"Inference_Header_Content_Length": "99999999999999999999"}, 400),
    ],
)  # fmt: skip
def test_a_body_made_to_do_harm_is_refused(target: Target, body: bytes, headers: dict[str, str], status: int) -> None:
    target.forget_peak()
    before = target.peak_bytes()
    assert post(target, body, **headers)[0] == status
    assert target.peak_bytes() - before < 20 * len(body) + (16 << 20)
    assert post(target, tensor())[0] == 200


def test_the_good_answer_is_the_same_after_all_of_it(target: Target) -> None:
    first = np.array(json.loads(post(target, tensor())[1])["outputs"][0]["data"])
    answer = target.client.infer(GOOD, LIMIT_S)
    np.testing.assert_allclose(first, answer.outputs["scores"].ravel(), rtol=1e-5)
