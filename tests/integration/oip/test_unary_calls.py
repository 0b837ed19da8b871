"""Calls of one message: they have a thread when it has come, and gRPC's own servers are as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.faults.scene import until
from tests.integration.oip.harness import TIMEOUT_S
from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.fastpath.switch import switch_off, switch_on
from upwell.shared.platform.call_threads import CallThreads

ECHO = "/tests.Echo/Say"


@pytest.fixture(params=["ours", "ours that poll", "gRPC's"])
def threads(request: pytest.FixtureRequest) -> ThreadPoolExecutor:
    at_work = 1 if request.param == "ours that poll" else None
    return ThreadPoolExecutor(16) if request.param == "gRPC's" else CallThreads(16, "test", at_work)


@pytest.fixture
def channel(threads: ThreadPoolExecutor) -> Iterator[grpc.Channel]:
    assert switch_on()
    server = grpc.server(threads, maximum_concurrent_rpcs=16)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Say": grpc.unary_unary_rpc_method_handler(_say),
        "Read": grpc.unary_unary_rpc_method_handler(lambda text, _: text.encode(), request_deserializer=bytes.decode),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None).wait()
    threads.shutdown()


def _say(data: bytes, context: grpc.ServicerContext) -> bytes:
    if data == b"abort":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")
    if data == b"fail":
        raise ValueError("as asked")
    return data


def test_the_tested_grpc_is_one_of_those_known() -> None:
    """If not, gRPC has changed inside: nothing breaks, but small requests cost more until `grpc_inside` is right."""
    assert inner_parts.is_known()


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    switch_off()


@pytest.mark.parametrize("name", [*inner_parts.READ, *inner_parts.NAMES])
def test_with_another_grpc_all_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    owner, _, function = name.rpartition(".")
    if name in inner_parts._own:
        monkeypatch.setitem(inner_parts._own, name, threading.Thread.join)
    elif name in inner_parts.READ:
        changed = getattr(inner_parts.server, owner) if owner else inner_parts.server
        monkeypatch.setattr(changed, function, threading.Thread.join)
    else:
        monkeypatch.delattr(inner_parts.server, name)
    before = [getattr(inner_parts.server, replaced) for replaced in inner_parts._own]
    assert not switch_on()
    assert [getattr(inner_parts.server, replaced) for replaced in inner_parts._own] == before
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"the internals of grpcio {grpc.__version__} are unknown"
    ]


def test_answers_aborts_and_failures(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary(ECHO)
    assert [call(word, timeout=TIMEOUT_S) for word in (b"one", b"", b"three" * 100_000)] == [
        b"one",
        b"",
        b"three" * 100_000,
    ]
    for word, status in ((b"abort", grpc.StatusCode.FAILED_PRECONDITION), (b"fail", grpc.StatusCode.UNKNOWN)):
        with pytest.raises(grpc.RpcError) as caught:
            call(word, timeout=TIMEOUT_S)
        assert caught.value.code() is status
        assert "as asked" in str(caught.value.details())


def test_a_message_that_cannot_be_read_is_refused_and_the_next_one_answered(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary("/tests.Echo/Read")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff", timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert call("ä".encode(), timeout=TIMEOUT_S) == "ä".encode()


def test_a_call_that_ends_without_a_message_is_told_so(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(ECHO)(iter(()), timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "exactly one" in str(caught.value.details())


def test_places_of_calls_that_say_nothing_are_free_when_they_have_left(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary(ECHO)
    silent: Any = channel.stream_unary(ECHO)
    for _ in range(4):  # each time as many as the server takes together
        gates = [threading.Event() for _ in range(16)]
        calls = [silent.future(_when(gate), timeout=TIMEOUT_S) for gate in gates]
        for one in calls:
            one.cancel()
        for gate in gates:
            gate.set()
    until(lambda: _status(call) is grpc.StatusCode.OK, TIMEOUT_S)  # when the server has seen that they have left


def _status(call: Any) -> grpc.StatusCode:
    try:
        call(b"still there", timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017  (one of two ends that are right)
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("threads", ["ours"], indirect=True)
def test_calls_that_say_nothing_have_no_threads(channel: grpc.Channel, threads: CallThreads) -> None:
    gates = [threading.Event() for _ in range(12)]
    silent: Any = channel.stream_unary(ECHO)
    calls = [silent.future(_when(gate), timeout=TIMEOUT_S) for gate in gates]
    limit = threading.Event()
    while threads.beginning < len(calls):
        assert not limit.wait(0.01)
    assert not threads._made
    for gate in gates:
        gate.set()
    assert [call.result(TIMEOUT_S) for call in calls] == [b"at last"] * 12
    assert threads.beginning == 0


def _when(gate: threading.Event) -> Iterator[bytes]:
    gate.wait(TIMEOUT_S)
    yield b"at last"
