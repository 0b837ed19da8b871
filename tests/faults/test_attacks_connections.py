"""Clients that connect and do harm by what they do not do: the others are answered, and nothing of it stays."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest

from tests.faults.attacking import GOOD, LIMIT_S, METHOD, Target, attacked, statuses
from tests.faults.raw_http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    frame,
    grpc_message,
)
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

MESSAGE = converters.serialize_infer_request(GOOD)
MANY = 1000


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with attacked(tmp_path_factory.mktemp("attacked"), serve=", max_message: 4MiB") as running:
        yield running


def steady(target: Target, seconds: float = 2.0) -> int:
    """How many good requests are answered one after another in that time. Fails where one is not."""
    until_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        target.good()
        count += 1
    return count


def eventually_good(
    target: Target, meanwhile: Sequence[RemoteErrorKind] = (RemoteErrorKind.RESOURCE_EXHAUSTED,)
) -> None:
    """Wait until fifty requests in a row are answered: for a moment others may have all the threads."""
    until_s, in_a_row = time.monotonic() + LIMIT_S, 0
    while in_a_row < 50:
        try:
            target.good()
        except RemoteError as error:
            if error.kind not in meanwhile or time.monotonic() > until_s:
                raise
            in_a_row = 0
        in_a_row += 1


@pytest.mark.slow
def test_calls_without_a_message_do_not_take_every_thread(target: Target) -> None:
    with RawConnection(target.grpc) as hostile, RawConnection(target.grpc) as other:
        for number in range(400):
            hostile.begin_call(1 + 2 * number)
        eventually_good(target)
        assert steady(target) > 20
        for path in ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive"):
            for number in range(200):
                other.begin_call(1 + 2 * number + (400 if path.startswith("/inf") else 0), path)
        eventually_good(target)
        assert steady(target) > 20


def test_messages_that_come_in_drops_keep_nobody_waiting(target: Target) -> None:
    ending = threading.Event()
    started = threading.Barrier(5)

    def trickle(connection: RawConnection) -> None:
        data = grpc_message(MESSAGE)
        for number in range(100):
            connection.begin_call(1 + 2 * number)
        started.wait(LIMIT_S)
        with suppress(OSError):  # the server may end it
            for byte in data[:-1]:
                for number in range(100):
                    connection.send(frame(DATA, 0, 1 + 2 * number, bytes([byte])))
                if ending.wait(0.1):
                    return

    with ExitStack() as stack:
        threads = []
        for _ in range(4):
            connection = stack.enter_context(RawConnection(target.grpc))
            threads.append(threading.Thread(target=trickle, args=(connection,)))
            threads[-1].start()
        started.wait(LIMIT_S)
        with suppress(RemoteError):  # as soon as the service has seen them they have all its threads, for a moment
            steady(target, 1.0)
        eventually_good(target)
        answered = steady(target)
        ending.set()
        for thread in threads:
            thread.join()
    assert answered > 20


@pytest.mark.parametrize(
    "beginning",
    [b"", PREFACE[:10], PREFACE, PREFACE + b"\0\0", PREFACE + frame(HEADERS, 0, 1, b"\0"), b"GET / HTTP/1.1\r\n"],
    ids=["nothing", "half a preface", "a preface", "half a frame", "half of the headers", "another protocol"],
)
def test_connections_that_stop_halfway_keep_nobody_waiting(target: Target, beginning: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(RawConnection(target.grpc, greets=False)).send(beginning)
        assert steady(target, 0.5) > 5


def test_headers_that_come_in_drops_over_http_keep_nobody_waiting_for_long(target: Target) -> None:
    host, _, port = target.http.rpartition(":")
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(300)]
        for connection in connections:
            connection.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nX-")
        started_s = time.monotonic()
        with socket.create_connection((host, int(port)), LIMIT_S) as good:
            good.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert good.makefile("rb").read().startswith(b"HTTP/1.1 200")
        assert time.monotonic() - started_s < LIMIT_S
        assert steady(target, 0.5) > 5  # over gRPC nobody notices


@pytest.mark.slow
def test_a_thousand_idle_connections_and_afterwards_their_memory_is_back(target: Target) -> None:
    def idle() -> None:
        with ExitStack() as stack:
            for index in range(MANY):
                address = target.http if index % 2 else target.grpc
                stack.enter_context(RawConnection(address, greets=not index % 2))
            assert steady(target, 1.0) > 10

    idle()
    before = target.resident_bytes()
    idle()
    target.gives_back(before)


@pytest.mark.slow
def test_calls_given_up_midway_leave_nothing_behind(target: Target) -> None:
    request = converters.serialize_infer_request(InferRequest("slow", {"x": np.ones((1, 512), np.float32)}))

    def give_up(count: int) -> Counter[grpc.StatusCode]:
        with grpc.insecure_channel(target.grpc) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            found: Counter[grpc.StatusCode] = Counter()
            for index in range(count // 20):
                calls = [call.future(request, timeout=LIMIT_S) for _ in range(20)]
                if index % 2:
                    with suppress(grpc.RpcError):
                        calls[0].result()  # so that the others are in every state that there is
                for one in calls:
                    one.cancel()
                found.update(one.code() for one in calls)
            return found

    give_up(100)
    before, threads = target.resident_bytes(), target.threads()
    found = give_up(500)
    assert found[grpc.StatusCode.CANCELLED] > 400
    eventually_good(target)
    answer = target.client.infer(InferRequest("slow", {"x": np.ones((1, 512), np.float32)}), LIMIT_S)
    assert answer.parameters["upwell.cloud_queue_ms"] < 1000  # type: ignore[operator]  # it is a number
    target.gives_back(before)
    assert target.threads() <= threads + 20


@pytest.mark.slow
def test_resets_by_the_thousand_leave_nothing_behind(target: Target) -> None:
    """Streams begun and reset at once, the next before the last has been looked at."""

    def storm(count: int) -> None:
        reset = (0x8).to_bytes(4, "big")
        for _ in range(count // 500):
            with RawConnection(target.grpc) as connection, suppress(OSError):
                for number in range(500):
                    connection.begin_call(1 + 2 * number)
                    connection.send(frame(RST_STREAM, 0, 1 + 2 * number, reset))
        # gRPC's core cancels what comes while it has thousands of calls that nobody has looked at.
        eventually_good(target, (RemoteErrorKind.RESOURCE_EXHAUSTED, RemoteErrorKind.CANCELLED))

    storm(4000)  # so that the heap has the size that as many at once need
    before = target.resident_bytes()
    storm(4000)
    assert steady(target, 0.5) > 5
    target.gives_back(before)


@pytest.mark.parametrize("megabytes", [64, pytest.param(512, marks=pytest.mark.exhaustive)])
def test_a_compressed_bomb_is_refused_while_it_is_unpacked(target: Target, megabytes: int) -> None:
    packed = gzip.compress(bytes(megabytes << 20), 6)
    message = grpc_message(packed, is_compressed=True)
    target.good()
    target.forget_peak()
    before = target.peak_bytes()
    with RawConnection(target.grpc) as hostile:
        hostile.begin_call(1, grpc_encoding="gzip")
        for start in range(0, len(message), 16_384):
            piece = message[start : start + 16_384]
            hostile.send(frame(DATA, END_STREAM if start + len(piece) == len(message) else 0, 1, piece))
        assert hostile.ends_within(LIMIT_S)
    assert target.peak_bytes() - before < 24 << 20
    target.good()


def test_clients_that_read_no_answers_are_bounded(target: Target) -> None:
    """A window of no bytes: each answer stays with the server, as long as its stream is open."""
    no_window = frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big"))
    wide = converters.serialize_infer_request(InferRequest("linear", {"x": np.ones((4000, 8), np.float32)}))
    with ExitStack() as stack:
        target.forget_peak()
        before = target.peak_bytes()
        for _ in range(4):
            hostile = stack.enter_context(RawConnection(target.grpc))
            hostile.send(no_window)
            for number in range(200):
                with suppress(OSError):
                    hostile.begin_call(1 + 2 * number)
                    for start in range(0, len(wide) + 5, 16_384):
                        piece = grpc_message(wide)[start : start + 16_384]
                        last = start + len(piece) == len(wide) + 5
                        hostile.send(frame(DATA, END_STREAM if last else 0, 1 + 2 * number, piece))
        eventually_good(target)
        assert steady(target, 0.5) > 5
        assert target.peak_bytes() - before < 256 << 20


def test_after_all_of_it_the_service_is_as_it_was(target: Target) -> None:
    assert statuses(target.grpc, [MESSAGE] * 200) == {grpc.StatusCode.OK: 200}
