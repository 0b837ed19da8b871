"""Clients of `ModelStreamInfer` that vanish without a word: others are served meanwhile, and nothing of it stays."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest

from tests.examples import sampled
from tests.faults.attacking import GOOD, LIMIT_S, PACE_S, Target, attacked
from tests.faults.raw_http2 import DATA, SETTINGS, RawConnection, frame, grpc_message
from upwell.rpc.oip.v2 import model_stream_pb2
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
MESSAGE = converters.serialize_infer_request(GOOD)
LARGE = converters.serialize_infer_request(InferRequest("linear", {"x": np.ones((100_000, 8), np.float32)}))
"""3.2 MB, whose answer takes 1.2 MB."""
MIDDLE = converters.serialize_infer_request(InferRequest("linear", {"x": np.ones((4_000, 8), np.float32)}))
MOST = 60
"""A few less than there may be."""
ALL = 64
OPENING_S = 3.0
"""After so long all are open, and have been silent for a second."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with attacked(tmp_path_factory.mktemp("attacked"), serve=", max_message: 4MiB") as running:
        yield running


def answered(target: Target, count: int = 20) -> list[str]:
    """The ids of the answers that a client which behaves gets over a stream of its own."""
    with grpc.insecure_channel(target.grpc) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM)
        answers = map(model_stream_pb2.ModelStreamInferResponse.FromString, call(iter([MESSAGE] * count), LIMIT_S))
        return [one.infer_response.id or one.error_message for one in answers]


def others_are_served(target: Target) -> None:
    for _ in range(20):
        target.good()
    assert answered(target) == [GOOD.id] * 20


def send(connection: RawConnection, stream: int, data: bytes) -> None:
    """As much of `data` as the server takes, without waiting for it to take the rest."""
    with suppress(OSError):
        for start in range(0, len(data), 16_384):
            connection.send(frame(DATA, 0, stream, data[start : start + 16_384]))


def opened(stack: ExitStack, target: Target, streams: Sequence[int] = (1,), *, reads: bool = True) -> RawConnection:
    """A connection with these streams. With `reads` false its windows are shut: no answer can be sent."""
    connection = stack.enter_context(RawConnection(target.grpc))
    connection.socket.settimeout(0.5)
    if not reads:
        connection.send(frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big")))
    for stream in streams:
        connection.begin_call(stream, STREAM)
    return connection


def nothing(stack: ExitStack, target: Target) -> None:
    for _ in range(MOST // 15):
        opened(stack, target, range(1, 31, 2))


def half_a_message(stack: ExitStack, target: Target) -> None:
    for _ in range(MOST):
        send(opened(stack, target), 1, grpc_message(LARGE)[:-10])


def half_a_head(stack: ExitStack, target: Target) -> None:
    for _ in range(MOST):
        send(opened(stack, target), 1, grpc_message(MESSAGE) + b"\0\0")


def drops(stack: ExitStack, target: Target) -> None:
    connections = [opened(stack, target) for _ in range(MOST)]
    for byte in grpc_message(MESSAGE)[:-1]:
        for connection in connections:
            send(connection, 1, bytes([byte]))


def no_reading(stack: ExitStack, target: Target) -> None:
    """Requests until the server reads no more."""
    for _ in range(MOST // 15):
        connection = opened(stack, target, range(1, 31, 2), reads=False)
        for _ in range(20):
            for stream in range(1, 31, 2):
                send(connection, stream, grpc_message(MIDDLE))


WAYS = {one.__name__.replace("_", " "): one for one in (nothing, half_a_message, half_a_head, drops, no_reading)}


@pytest.mark.parametrize("way", sampled(WAYS, len(WAYS)))
def test_a_stream_that_goes_silent_keeps_nobody_waiting_and_is_forgotten(target: Target, way: str) -> None:
    def attack() -> int:
        target.good()
        target.forget_peak()
        before = target.peak_bytes()
        with ExitStack() as stack:
            WAYS[way](stack, target)
            others_are_served(target)
            return target.peak_bytes() - before

    attack()  # so that threads and pools have their size
    others_are_served(target)
    before, threads = target.resident_bytes(), target.threads()
    for _ in range(2):
        assert attack() < 128 << 20
        others_are_served(target)
    target.gives_back(before)
    assert target.threads() <= threads + 64


def test_streams_that_one_client_holds_and_does_not_use_make_room(target: Target) -> None:
    with ExitStack() as stack:
        opened(stack, target, range(1, 2 * ALL, 2))
        opened_s = time.monotonic()
        served_s = 0.0
        while served_s < OPENING_S and time.monotonic() < opened_s + LIMIT_S:
            with suppress(grpc.RpcError):  # while none has been silent for a second
                others_are_served(target)
                served_s = time.monotonic() - opened_s
            time.sleep(PACE_S)
        assert served_s >= OPENING_S
        target.good()
