"""Clients that mean harm or are broken: refused, and nobody else is kept waiting."""

from __future__ import annotations

import http.client
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.oip_http.harness import (
    BODY,
    INFER,
    TIMEOUT_S,
    PictureModel,
    Serve,
    ask,
    dial,
    exchange,
    read_all,
    read_answer,
    status_of,
)
from upwell.shared.oip.auth.limit_keys import Limits
from upwell.shared.oip.auth.request_quotas import limited
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http import json_tensors
from upwell.shared.oip.http.replies import write_json
from upwell.shared.oip.http.server import connection as http_connection
from upwell.shared.oip.http.server import request_bodies, routes
from upwell.shared.oip.http.server import server as http_server
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server

POST = f"POST {INFER} HTTP/1.1\r\nHost: a\r\n".encode()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningHttpServer]:
    server = start_http_server(
        FakeDataplane(), ["127.0.0.1:0"], max_workers=4, connections=Connections(max_message_bytes=1 << 20)
    )
    yield server
    server.stop(0)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Upwell-Tag-Privacy: device\r\nUpwell-Tag-Privacy: device\r\nContent-Length: 0\r\n\r\n", 400),
        (b"upwell-tag-privacy: device\r\nUPWELL-TAG-PRIVACY: x\r\nContent-Length: 0\r\n\r\n", 400),
        (b"Authorization: a\r\nauthorization: b\r\nContent-Length: 0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0;" + b"x" * 2000 + b"\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0;" + b"x" * 1022 + b"\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n 0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0 \r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\t\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0;a=b\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n", 400),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", 400),
        (b"Content-Length: -1\r\n\r\n", 400),
        (b"Content-Length: +5\r\n\r\nabcde", 400),
        (b"Content-Length: 1_0\r\n\r\n", 400),
        (b"Content-Length: \r\n\r\n", 400),
        (b"Content-Length : 5\r\n\r\nabcde", 400),
        (b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"Transfer-Encoding: xchunked\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000, 400),
        (b"X: a\r\n folded\r\n\r\n", 400),
        (b"X: a\0b\r\n\r\n", 400),
        (b"X\x0b: a\r\n\r\n", 400),
        (b"no colon\r\n\r\n", 400),
        (b"X: a\n\r\n", 400),
        (b"X: a\r\n" * 101 + b"\r\n", 400),
        (b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"Content-Length: 1048577\r\n\r\n", 413),
        (b"Content-Length: 4611686018427387904\r\n\r\n", 413),
        (b"Expect: 100-continue\r\nContent-Length: 1048577\r\n\r\n", 413),
    ],
)
def test_headers_and_chunks_that_could_be_read_in_two_ways_are_refused(
    shared_server: RunningHttpServer, data: bytes, status: int
) -> None:
    answer = exchange(shared_server, POST + data)
    assert status_of(answer) == status
    assert b'{"error":' in answer
    assert answer.count(b"HTTP/1.1 ") == 1  # nothing of it was taken for a second request


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v2 HTTP/2.0\r\n\r\n", 505),
        (b"GET http://a/v2 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"get /v2 HTTP/1.1\r\n\r\n", 400),
        (b"GET /v2\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"", 0),
    ],
)
def test_a_request_line_that_is_none_is_refused(shared_server: RunningHttpServer, data: bytes, status: int) -> None:
    assert status_of(exchange(shared_server, data)) == status


def test_a_large_body_is_refused_before_it_is_sent(shared_server: RunningHttpServer) -> None:
    with dial(shared_server) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 1048577\r\n\r\n")
        assert status_of(read_all(connection)) == 413  # and no 100 before it
        # One that is sent all the same does not keep its sender from reading the answer.
    body = b"[" * (3 << 20)
    answer = ask(shared_server, "POST", INFER, body)
    assert (answer.status, answer.headers["Connection"]) == (413, "close")
    assert "at most 1048576" in answer.value["error"]


class Verbose(FakeDataplane):
    """Answers with more text than a message may hold."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        return InferResponse(request.model, {"y": np.full(self.elements, 0.1, np.float32)}, "1", request.id)


@pytest.mark.parametrize(
    ("elements", "hint"), [(1 << 17, b"; binary data (`binary_data_output`) takes fewer"), (1 << 19, b"")]
)
def test_json_is_written_no_further_than_the_largest_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, elements: int, hint: bytes
) -> None:
    written = 0

    def counted(value: object) -> bytes:
        nonlocal written
        written += len(value) if isinstance(value, list) else 0
        return write_json(value)

    monkeypatch.setattr(json_tensors, "write_json", counted)
    address = serve(dataplane=Verbose(elements), connections=Connections(max_message_bytes=1 << 20))
    answer = ask(address, "POST", INFER, BODY)
    assert (answer.status, answer.headers["Upwell-Status"]) == (413, "RESOURCE_EXHAUSTED")
    assert b'1048576 bytes, the most that are sent%s"' % hint in answer.body
    assert written < elements


def test_large_bodies_at_once_are_bounded_together(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LEAST_MEMORY_BYTES", 0)
    server = serve(connections=Connections(max_message_bytes=1000))
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(dial(server))
            connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
            connection.sendall(b"[" * 999)
        until_refused(server)
        assert ask(server, "POST", INFER, BODY).status == 429
        assert status_of(exchange(server, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n")) == 429
    eventually = time.monotonic() + TIMEOUT_S
    while ask(server, "POST", INFER, BODY).status == 429:  # until all have been seen to leave
        assert time.monotonic() < eventually


def until_refused(server: RunningHttpServer) -> None:
    """Wait until what has been sent has also been read, and holds the memory that there is."""
    eventually = time.monotonic() + TIMEOUT_S
    while ask(server, "POST", INFER, BODY).status != 429:
        assert time.monotonic() < eventually


def test_a_connection_that_is_kept_holds_no_body_that_was_answered(server: RunningHttpServer) -> None:
    body = BODY + b" " * (4 << 20)
    sized, chunked = b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for framing, sent in ((sized, body), (chunked, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))):
            connection = stack.enter_context(dial(server))
            connection.sendall(POST + framing + b"\r\n\r\n" + sent)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert read_answer(response).status == 200
        del sent
        eventually = time.monotonic() + TIMEOUT_S
        while tracemalloc.get_traced_memory()[0] > len(body) // 2:
            assert time.monotonic() < eventually
            time.sleep(0.01)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n"])
def test_a_body_that_is_promised_and_not_sent_takes_no_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, framing: bytes
) -> None:
    monkeypatch.setattr(routes, "LEAST_MEMORY_BYTES", 0)
    server = serve(connections=Connections(max_message_bytes=1000))
    with ExitStack() as stack:
        hostile = [stack.enter_context(dial(server)) for _ in range(16)]
        for connection in hostile:
            connection.sendall(POST + framing + b"[")
        for connection in hostile:  # all of them are being read
            connection.sendall(b"[")
        assert [ask(server, "POST", INFER, BODY).status for _ in range(20)] == [200] * 20


def test_bodies_that_stop_just_before_their_end_make_room_one_by_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LEAST_MEMORY_BYTES", 0)
    server = serve(connections=Connections(max_message_bytes=1000))
    with ExitStack() as stack:
        hostile = [stack.enter_context(dial(server)) for _ in range(8)]
        for connection in hostile:
            connection.sendall(POST + b"Content-Length: 1000\r\n\r\n" + b"[" * 999)
        until_refused(server)  # and none is given up, since none has been coming for long
        assert [ask(server, "POST", INFER, BODY).status for _ in range(3)] == [429] * 3
        monkeypatch.setattr(request_bodies, "PATIENCE_S", 0.0)
        eventually, refused = time.monotonic() + TIMEOUT_S, 0
        while ask(server, "POST", INFER, BODY).status != 200:
            refused += 1
            assert time.monotonic() < eventually
        monkeypatch.setattr(request_bodies, "PATIENCE_S", 60.0)
        given_up = 0
        for connection in hostile:
            with suppress(OSError):
                connection.sendall(b"[")
            given_up += not connection.recv(100)  # the others are read to their end, and told what is wrong
        assert 1 <= given_up <= refused


def test_a_body_of_tiny_chunks_is_given_up(shared_server: RunningHttpServer) -> None:
    head = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

    def chunked(count: int, chunk: bytes) -> bytes:
        return head + (b"%x\r\n" % len(chunk) + chunk + b"\r\n") * count + b"0\r\n\r\n"

    refused = exchange(shared_server, chunked(100_000, b" "))
    assert (status_of(refused), b"too small" in refused) == (400, True)
    for count, chunk in ((1000, b" "), (3000, b" " * 256)):
        assert b"JSON" in exchange(shared_server, chunked(count, chunk))  # read to its end


def test_clients_that_do_not_go_after_a_refusal_keep_nobody_waiting(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "_LINGER_S", 60.0)
    server = serve(max_workers=2)
    with ExitStack() as stack:
        for _ in range(80):  # twice as many as there are threads
            stack.enter_context(dial(server)).sendall(b"X\r\n\r\n")
        assert [ask(server, "POST", INFER, BODY).status for _ in range(5)] == [200] * 5


@pytest.mark.parametrize(
    ("version", "option", "is_kept"),
    [
        ("1.1", "close", False),
        ("1.1", "Close", False),
        ("1.1", "TE, close", False),
        ("1.1", "keep-alive", True),
        ("1.0", "keep-alive", True),
        ("1.0", "Keep-Alive, TE", True),
        ("1.0", "TE", False),
    ],
)
def test_the_connection_is_kept_as_the_client_says(
    shared_server: RunningHttpServer, version: str, option: str, is_kept: bool
) -> None:
    with dial(shared_server) as connection:
        connection.sendall(f"GET /v2 HTTP/{version}\r\nHost: a\r\nConnection: {option}\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert read_answer(response).status == 200
        assert response.will_close is not is_kept
        if is_kept:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200 ") is is_kept


def test_two_hundred_silent_connections_take_no_thread(server: RunningHttpServer) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(dial(server))
        assert [ask(server, "POST", INFER, BODY).status for _ in range(20)] == [200] * 20


def test_beyond_the_limit_the_longest_idle_make_room(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_IDLE", 20)
    server = serve()
    with ExitStack() as stack:
        first = stack.enter_context(dial(server))
        for _ in range(60):
            stack.enter_context(dial(server))
        assert ask(server, "POST", INFER, BODY).status == 200
        assert read_all(first) == b""


def test_a_client_that_stops_inside_its_headers_or_body_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HEADERS_S", 0.3)
    monkeypatch.setattr(http_connection, "IDLE_S", 0.3)
    server = serve()
    for part in (
        b"POST /v2",
        POST,
        POST + b"Content-Length: 100\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5",
    ):
        with dial(server) as connection:
            connection.sendall(part)
            assert status_of(read_all(connection)) == 408


@pytest.mark.parametrize("start", [b"", POST + b"Content-Length: 1000000\r\n\r\n"])
def test_a_client_that_trickles_has_no_more_time(serve: Serve, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(http_connection, "HEADERS_S", 0.3)
    monkeypatch.setattr(http_connection, "IDLE_S", 0.3)
    server = serve()
    with dial(server) as connection:
        connection.sendall(start)
        connection.settimeout(0.02)
        answer = b""
        for _ in range(500):
            connection.send(b"G")  # each byte in time, the whole never
            try:
                answer = connection.recv(1000)
                break
            except TimeoutError:
                continue
        assert status_of(answer) == 408


def test_forty_slow_clients_leave_threads_for_the_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEADERS_S", 0.4)
    server = serve(max_workers=2)
    with ExitStack() as stack:
        for _ in range(40):  # more than there are threads
            stack.enter_context(dial(server)).sendall(POST)
        assert ask(server, "POST", INFER, BODY).status == 200


def test_a_body_that_ends_early_is_no_request(server: RunningHttpServer, fake: PictureModel) -> None:
    exchange(server, POST + b"Content-Length: 500\r\n\r\n" + BODY)
    assert ask(server, "GET", "/v2").status == 200
    assert fake.requests == []


def test_an_unread_body_is_not_taken_for_the_next_request(server: RunningHttpServer) -> None:
    smuggled = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
    head = b"POST /v2/nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    answer = exchange(server, head + smuggled)
    assert status_of(answer) == 404
    assert answer.count(b"HTTP/1.1 ") == 1


VALID = POST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_sent_is_answered_or_closed_and_harms_nobody(
    shared_server: RunningHttpServer, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(VALID)))
    cut = data.draw(st.integers(0, 8))
    inserted = data.draw(st.binary(max_size=8) | st.sampled_from([b"\r\n", b"\r\n\r\n", b":", b"\0", b"[", b"9" * 8]))
    answer = exchange(shared_server, VALID[:at] + inserted + VALID[at + cut :])
    assert status_of(answer) in (0, 200, 400, 403, 404, 405, 408, 413, 414, 415, 431, 499, 505), answer
    assert b"Traceback" not in answer
    with dial(shared_server) as connection:
        connection.sendall(VALID)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert read_answer(response).status == 200


def test_a_reset_in_the_middle_of_an_answer_harms_nobody(server: RunningHttpServer, fake: PictureModel) -> None:
    fake.hold()
    connection = dial(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.sendall(VALID)
    assert fake.arrived(1, TIMEOUT_S)
    connection.close()
    fake.release()
    assert ask(server, "POST", INFER, BODY).status == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (INFER, {}),
        (INFER, {"Inference-Header-Content-Length": "99"}),
        (INFER, {"Content-Encoding": "gzip"}),
        ("/v2/models/rows/infer", {"Content-Type": "application/octet-stream"}),
        ("/v2/models/rows/infer", {"Content-Type": "image/png"}),
    ],
)
def test_a_body_that_cannot_be_read_counts_as_a_request(serve: Serve, path: str, headers: dict[str, str]) -> None:
    limits = Limits.model_validate({"rate": "2/min"})
    server = serve(dataplane=limited(PictureModel(), limits, by_token=False))
    statuses = [ask(server, "POST", path, b"unreadable", headers).status for _ in range(3)]
    assert statuses == [400, 400, 429]


def test_json_counts_as_what_it_becomes_in_memory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LEAST_MEMORY_BYTES", 0)
    server = serve(connections=Connections(max_message_bytes=1000))  # so 8,000 in all
    assert ask(server, "POST", INFER, BODY + b" " * (300 - len(BODY))).status == 200
    assert ask(server, "POST", INFER, BODY + b" " * (400 - len(BODY))).status == 429
    assert ask(server, "POST", INFER, BODY).status == 200  # what was taken has been given back
