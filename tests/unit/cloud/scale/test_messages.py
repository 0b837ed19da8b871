"""What supervisor and workers say to each other, over a real socket pair."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from upwell.cloud.workers import worker_messages
from upwell.cloud.workers.startup_banner import ModelLine
from upwell.cloud.workers.worker_messages import Channel, Message, error_from_wire, error_to_wire
from upwell.shared.errors import InvalidRequest, NotLoaded
from upwell.shared.oip.grpc.server.triton_extensions import LoadSettings

SAID: list[Message] = [
    worker_messages.StartWorker(1, {"serve": {"listen": ["127.0.0.1:1"]}}, ("m",), {"m": ("1", "2"), "n": ()}),
    worker_messages.StartWorker(2, {}, fatal=(("m", "2"),)),
    worker_messages.Loaded((ModelLine("m", "1", "onnx", 2, 4, "sha256:0"), ModelLine("m", "2", reason="brøken\n"))),
    worker_messages.Listen(),
    worker_messages.Serving(),
    worker_messages.Alive(),
    worker_messages.LoadsNow("m", "2"),
    worker_messages.Failed("two\nlines", True),
    worker_messages.Ask(1, "m", True),
    worker_messages.Change(2, "m", False),
    worker_messages.Done(2, ("NotLoaded", "broken"), ("1",), LoadSettings(max_batch=2)),
    worker_messages.Done(3),
    worker_messages.WorkerReply(1, ("", "")),
    worker_messages.WorkerReply(2),
    worker_messages.Drain(),
]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one), Channel(other)


def test_every_message_arrives_as_it_was_sent(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for message in SAID:
        one.send(message)
    one.close()
    received: list[Message] = []
    while (came := other.receive()) is not None:
        received += came
    assert received == SAID


def test_a_message_may_come_in_pieces(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    data = worker_messages.encode(SAID[0]) + worker_messages.encode(SAID[3])
    one.socket.sendall(data[:10])
    assert other.receive() == []
    one.socket.sendall(data[10:])
    assert other.receive() == [SAID[0], SAID[3]]


def test_an_error_is_the_same_on_the_other_side_and_an_unexpected_one_says_nothing() -> None:
    error = error_from_wire(error_to_wire(NotLoaded("version 2: broken")))
    assert (type(error), str(error)) == (NotLoaded, "version 2: broken")
    for unexpected in (KeyError("/srv/secret"), InvalidRequest("not one of these")):
        error = error_from_wire(error_to_wire(unexpected))
        assert type(error) is RuntimeError
        assert "secret" not in str(error)
