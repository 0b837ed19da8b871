"""Where one request ends and the next begins: our server and another parser agree, or ours refuses.

A disagreement is how one request is smuggled behind another past a proxy. Mutated requests go over a real socket to a
real server, each followed by one whose body no other has; h11 reads the same bytes. Whatever server stands there: all
that is known of it is what its `Dataplane` is asked and what it answers.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import h11
import numpy as np
import pytest

from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server

INFER = b"/v2/models/echo/infer"
PIECES = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"0", b"5", b"f", b"\x00", b"\x0b", b"\xff", b"0\r\n\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length : 3\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\tchunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Host: b\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b" folded\r\n", b"X: y\r\n", b"+", b"-",
    b"0x", b";a=b", b";" + b"x" * 1100, b"HTTP/1.0", b"HTTP/1.1", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"_", b"1e1",
    b"Upwell-Tag-A: x\r\n",
]  # fmt: skip


class Seen(FakeDataplane):
    """Notes the number in each request that it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        if request.model == "echo":
            self.numbers.append(int(np.ravel(next(iter(request.inputs.values())))[0]))
        return super().infer(request, call)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Seen, RunningHttpServer]]:
    dataplane = Seen()
    server = start_http_server(
        dataplane, ["127.0.0.1:0"], max_workers=4, connections=Connections(max_message_bytes=1 << 20)
    )
    yield dataplane, server
    server.stop(0)


def body(number: int) -> bytes:
    return json.dumps({"inputs": [{"name": "fp32", "datatype": "FP32", "shape": [1], "data": [number]}]}).encode()


def plain(number: int, *, close: bool = False) -> bytes:
    data = body(number)
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (INFER, len(data))
    return head + (b"Connection: close\r\n" if close else b"") + b"\r\n" + data


def chunked(number: int, random: random.Random) -> bytes:
    data = body(number)
    cut = random.randrange(1, len(data))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (data[:cut], data[cut:]))
    return b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (INFER, chunks)


def mutated(data: bytes, random: random.Random) -> bytes:
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        at = random.randrange(len(data) + 1)
        if random.random() < 0.5:  # near an end of a line, where framing is decided
            ends = [place for place in range(len(data)) if data[place] in b"\r\n:"]
            at = random.choice(ends) + random.choice([0, 1]) if ends else at
        kind = random.randrange(4)
        if kind == 0:
            data = data[:at] + data[at + random.choice([1, 1, 2, 4]) :]
        elif kind == 1:
            data = data[:at] + random.choice(PIECES) + data[at:]
        elif kind == 2:
            data = data[:at] + random.choice(PIECES) + data[at + 1 :]
        else:
            size = random.choice([1, 2, 8, 30])
            data = data[:at] + data[at : at + size] * 2 + data[at + size :]
    return data


def numbers_by_h11(data: bytes) -> list[int]:
    """The numbers of the requests that h11 finds, up to the first that it refuses."""
    found: list[int] = []
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    text, target, has_ended = b"", b"", False
    with suppress(h11.RemoteProtocolError):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                text, target = b"", event.target
            elif isinstance(event, h11.Data):
                text += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if target == INFER:
                    with suppress(ValueError, KeyError, TypeError, IndexError, OverflowError):
                        found.append(int(json.loads(text)["inputs"][0]["data"][0]))
                if connection.their_state is not h11.DONE:
                    return found
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return found
                connection.start_next_cycle()
            elif event is h11.NEED_DATA and not has_ended:
                connection.receive_data(b"")
                has_ended = True
            else:
                return found
    return found


def answered(where: RunningHttpServer, data: bytes) -> bytes:
    host, _, port = where.addresses[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_QUIET_S) as connection:
        said = b""
        with suppress(OSError):
            connection.sendall(data)
        for _ in range(2):
            try:
                while piece := connection.recv(65536):
                    said += piece
                return said
            except TimeoutError:  # it waits for more: there is none
                connection.settimeout(_END_S)
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                return said
    return said


_QUIET_S, _END_S = 0.2, 5.0
"""An answer comes at once; ending earlier would tell the server that the caller has left."""


def check(served: tuple[Seen, RunningHttpServer], seed: int) -> None:
    dataplane, server = served
    chance = random.Random(seed)
    first = chunked(1, chance) if chance.random() < 0.6 else plain(1)
    data = mutated(first, chance) + plain(2, close=True)
    dataplane.numbers.clear()
    said = answered(server, data)
    ours, theirs = [*dataplane.numbers], numbers_by_h11(data)
    # What ours answered is among what the other found, in that order: it may refuse more, and must see no others.
    rest = iter(theirs)
    assert all(number in rest for number in ours), (seed, data, said)


def test_the_second_request_is_seen_where_nothing_is_changed(served: tuple[Seen, RunningHttpServer]) -> None:
    dataplane, server = served
    for first in (plain(1), chunked(1, random.Random(1))):
        dataplane.numbers.clear()
        data = first + plain(2, close=True)
        assert answered(server, data).count(b"HTTP/1.1 200") == 2
        assert dataplane.numbers == numbers_by_h11(data) == [1, 2]


@pytest.mark.parametrize("block", range(10))
def test_a_mutated_request_ends_where_another_parser_says_or_is_refused(
    served: tuple[Seen, RunningHttpServer], block: int
) -> None:
    for seed in range(100 * block, 100 * block + 100):
        check(served, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_mutated_requests_do(served: tuple[Seen, RunningHttpServer]) -> None:
    for seed in range(1_000_000, 1_010_000):
        check(served, seed)
