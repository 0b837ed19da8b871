"""What is wrong with a request gets the protocol's status and one clear sentence, and the agent lives on."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from PIL import Image

from tests.faults.oracles import edge_scores, pictures
from tests.faults.scene import write_agent
from tests.integration.agent.harness import (
    LIMIT_S,
    Running,
    agent_process,
    ask,
    client_of,
    digits_request,
    raw_call,
    scores,
)
from tests.unit.models_for_tests import slow
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.tensors import Array

X = np.zeros((2, 8), np.float32)


def encoded(data: bytes) -> Array:
    """Bytes where a picture should be."""
    row = np.empty(1, dtype=np.object_)
    row[0] = data
    return row


def bomb() -> bytes:
    """A PNG of a few hundred bytes that says it is 60,000 pixels square, with a body that begins to be."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def corrupt() -> bytes:
    """A JPEG whose tables are gone."""
    file = io.BytesIO()
    Image.fromarray(np.arange(4096, dtype=np.uint8).reshape(64, 64)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    data[3:203] = bytes(200)
    return bytes(data)


def gif() -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "GIF")
    return file.getvalue()


def one_input(name: str, array: Array, model: str = "linear", **more: object) -> InferRequest:
    return InferRequest(model, {name: array}, **more)  # type: ignore[arg-type]  # passed through


WRONG: dict[str, tuple[InferRequest, RemoteErrorKind, str]] = {
    "unknown model": (one_input("x", X, "nope"), RemoteErrorKind.NOT_FOUND, "digits, linear, lite, remote, slow"),
    "empty model name": (one_input("x", X, ""), RemoteErrorKind.NOT_FOUND, "no model ''"),
    "unknown version": (one_input("x", X, version="7"), RemoteErrorKind.NOT_FOUND, "version 1"),
    "wrong name": (one_input("y", X), RemoteErrorKind.INVALID_ARGUMENT, "input 'x' is missing; expected FP32 [-1, 8]"),
    "no input": (InferRequest("linear", {}), RemoteErrorKind.INVALID_ARGUMENT, "input 'x' is missing"),
    "one too many": (
        InferRequest("linear", {"x": X, "z": X}),
        RemoteErrorKind.INVALID_ARGUMENT,
        "unknown input 'z'; this model takes x",
    ),
    "wrong shape": (
        one_input("x", X[:, :5]),
        RemoteErrorKind.INVALID_ARGUMENT,
        "expected FP32 [-1, 8], got FP32 [2, 5]",
    ),
    "wrong rank": (one_input("x", X[0]), RemoteErrorKind.INVALID_ARGUMENT, "expected FP32 [-1, 8], got FP32 [8]"),
    "wrong dtype": (
        one_input("x", X.astype(np.float64)),
        RemoteErrorKind.INVALID_ARGUMENT,
        "expected FP32 [-1, 8], got FP64 [2, 8]",
    ),
    "no rows": (one_input("x", X[:0]), RemoteErrorKind.INVALID_ARGUMENT, "has no rows"),
    "unknown output": (
        one_input("x", X, outputs=("y",)),
        RemoteErrorKind.INVALID_ARGUMENT,
        "model 'linear' has no output 'y'; available: scores",
    ),
    "numbers for a picture": (one_input("image", X, "digits"), RemoteErrorKind.INVALID_ARGUMENT, "one encoded picture"),
    "no picture": (one_input("image", encoded(b""), "digits"), RemoteErrorKind.INVALID_ARGUMENT, "JPEG, PNG or WebP"),
    "text for a picture": (
        one_input("image", encoded(b"<svg/>"), "digits"),
        RemoteErrorKind.INVALID_ARGUMENT,
        "expected a JPEG, PNG or WebP picture, got 6 bytes of another format",
    ),
    "another format": (
        one_input("image", encoded(gif()), "digits"),
        RemoteErrorKind.INVALID_ARGUMENT,
        "JPEG, PNG or WebP",
    ),
    "picture bomb": (
        one_input("image", encoded(bomb()), "digits"),
        RemoteErrorKind.INVALID_ARGUMENT,
        "row 0: the picture has 60000 x 60000 pixels",
    ),
    "corrupt picture": (one_input("image", encoded(corrupt()), "digits"), RemoteErrorKind.INVALID_ARGUMENT, "damaged"),
    "half a picture": (
        one_input("image", encoded(pictures([0])[0][:60]), "digits"),
        RemoteErrorKind.INVALID_ARGUMENT,
        "damaged",
    ),
    "nothing may leave a model of the cloud's": (
        digits_request(0, model="remote", privacy="device"),
        RemoteErrorKind.FAILED_PRECONDITION,
        "private",
    ),
    "the cloud finds it wrong": (one_input("x", X, "remote"), RemoteErrorKind.INVALID_ARGUMENT, "image"),
}


@pytest.fixture(autouse=True)
def _lives_on(client: OipClient, agent: Running) -> Iterator[None]:
    """Whatever it was asked, the next request is answered, and nothing was logged as if it were a bug."""
    yield
    np.testing.assert_allclose(scores(ask(client, 0, where="here")), edge_scores(pictures([0])), atol=1e-5)
    assert "Traceback" not in agent.said


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_told_what_would_be_right(client: OipClient, what: str) -> None:
    request, kind, text = WRONG[what]
    with pytest.raises(RemoteError) as caught:
        client.infer(request, LIMIT_S)
    assert caught.value.kind is kind, caught.value
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_bad_row_is_named(client: OipClient) -> None:
    rows = np.concatenate([pictures([0, 1]), encoded(b"no picture")])
    with pytest.raises(RemoteError, match="row 2: expected a JPEG"):
        client.infer(one_input("image", rows, "digits"), LIMIT_S)


def test_a_payload_of_100_mb_is_refused(client: OipClient) -> None:
    with pytest.raises(RemoteError) as caught:
        client.infer(one_input("x", np.zeros((3_125_000, 8), np.float32)), LIMIT_S)
    assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
    assert "67108864" in str(caught.value)


def whole() -> bytes:
    return converters.serialize_infer_request(digits_request(0, 1))


UNREADABLE: dict[str, Callable[[], bytes]] = {
    "truncated": lambda: whole()[:-40],
    "truncated in its head": lambda: whole()[:9],
    "noise": lambda: b"\xff" * 64,
    "text": lambda: b"GET / HTTP/1.1",
    "a tensor longer than its bytes": lambda: whole().replace(b"\x1a\x01\x02", b"\x1a\x01\x63", 1),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_message_that_cannot_be_read(agent: Running, what: str) -> None:
    assert UNREADABLE[what]() != whole()
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(agent.addresses[0], UNREADABLE[what]())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelReady", "ServerMetadata"])
def test_an_unreadable_question_about_a_model(agent: Running, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(agent.addresses[0], b"\xff" * 8, method)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_method(agent: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(agent.addresses[0], b"", "ModelExplode")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("ask_for", ["metadata", "ready"])
def test_an_unknown_model_has_no_metadata_and_is_not_ready(client: OipClient, ask_for: str) -> None:
    if ask_for == "ready":
        assert not client.ready(LIMIT_S, "nope")
        return
    with pytest.raises(RemoteError, match="no model 'nope' here; available: digits") as caught:
        client.metadata("nope", LIMIT_S)
    assert caught.value.kind is RemoteErrorKind.NOT_FOUND


def test_a_deadline_that_nobody_can_meet(client: OipClient) -> None:
    """Refused before any work, or over before the refusal is back."""
    with pytest.raises(RemoteError) as caught:
        client.infer(one_input("x", np.ones((400, 512), np.float32), "slow"), 0.0005)
    assert caught.value.kind in (RemoteErrorKind.RESOURCE_EXHAUSTED, RemoteErrorKind.DEADLINE)


@pytest.mark.alone  # the refusal has 100 ms
@pytest.mark.slow
def test_a_deadline_that_the_device_would_miss_is_refused_at_once_and_says_why(tmp_path: Path) -> None:
    models = {"slow": {"edge": {"file": slow(tmp_path, layers=100).name}}}  # 1000 rows take some 0.25 s
    request = one_input("x", np.ones((1000, 512), np.float32), "slow")
    policy = {"defaults": {"deadline": "10s"}}
    with agent_process(write_agent(tmp_path, policy, None, models)) as agent, client_of(agent.addresses[0]) as client:
        client.infer(request, LIMIT_S)
        with pytest.raises(RemoteError) as caught:
            client.infer(request, 0.1)
    assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED, caught.value


def test_a_caller_that_leaves_disturbs_nobody(client: OipClient, agent: Running) -> None:
    with client_of(agent.addresses[0]) as fickle:
        for _ in range(8):
            fickle.infer_async(one_input("x", np.ones((400, 512), np.float32), "slow"), LIMIT_S).cancel()
        fickle.infer_async(digits_request(0), LIMIT_S)
    assert ask(client, 1, where="here").id


def test_tags_and_ids_of_a_hostile_caller_are_only_text(client: OipClient) -> None:
    tags = {"privacy": "device\nevil", "x" * 10_000: "y" * 10_000, "": "", "umläut": "\x00"}
    request = digits_request(0, **tags)
    odd = "\x1b[31mred\n" * 10
    answer = client.infer(dataclasses.replace(request, id=odd), LIMIT_S)
    assert answer.id == odd
