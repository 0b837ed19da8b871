"""A server whose calls run in the threads that read them, over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from tests.faults.scene import until
from tests.integration.oip.harness import TIMEOUT_S
from upwell.shared.oip.grpc.fastpath.switch import switch_on
from upwell.shared.platform.call_threads import CallThreads, yield_permit

PLACES = 4


class Scene:
    """A server with `PLACES` places, one of its methods waits until it is let go."""

    def __init__(self) -> None:
        assert switch_on()
        self.threads = CallThreads(PLACES, "polling", at_work=1)
        self.server = grpc.server(self.threads, maximum_concurrent_rpcs=PLACES)
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.ran_in: set[int] = set()
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Say": grpc.unary_unary_rpc_method_handler(self._say),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait),
            "WaitInSilence": grpc.unary_unary_rpc_method_handler(self._wait_in_silence),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Scene", methods),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def say(self, word: bytes = b"word") -> bytes:
        """Have it echoed at once."""
        call: Any = self.channel.unary_unary("/tests.Scene/Say")
        answer: bytes = call(word, timeout=TIMEOUT_S)
        return answer

    def has_room(self) -> bool:
        """Whether one more call is answered rather than refused."""
        try:
            return self.say() == b"word"
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return False

    def wait(self, method: str = "Wait") -> Future[bytes]:
        """A call that is under way when this returns, until the gate is open."""
        call: Any = self.channel.unary_unary(f"/tests.Scene/{method}")
        future: Future[bytes] = call.future(b"", timeout=TIMEOUT_S)
        assert self.waiting.acquire(timeout=TIMEOUT_S)
        return future

    def _say(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        self.ran_in.add(threading.get_ident())
        return data

    def _wait(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        yield_permit()
        return self._wait_in_silence(data, context)

    def _wait_in_silence(self, _: bytes, __: grpc.ServicerContext) -> bytes:
        self.waiting.release()
        self.gate.wait(TIMEOUT_S)
        return b"at last"


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    with made.channel:
        yield made
        made.gate.set()
    made.server.stop(None).wait(TIMEOUT_S)
    made.threads.shutdown()
    until(lambda: not _alive(), TIMEOUT_S)


def _alive() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("polling")]


def test_small_calls_change_no_threads(scene: Scene) -> None:
    assert [scene.say(b"%d" % number) for number in range(200)] == [b"%d" % number for number in range(200)]
    assert len(scene.ran_in) < PLACES  # one, unless other programs keep a call from the processor


@pytest.mark.parametrize("method", ["Wait", "WaitInSilence"])
def test_calls_that_wait_hold_nobody_up_and_beyond_all_places_one_is_refused(scene: Scene, method: str) -> None:
    waits = []
    for _ in range(PLACES - 1):
        waits.append(scene.wait(method))
        assert scene.say() == b"word"
    waits.append(scene.wait(method))
    with pytest.raises(grpc.RpcError) as caught:
        scene.say()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    scene.gate.set()
    assert [one.result(TIMEOUT_S) for one in waits] == [b"at last"] * PLACES
    until(scene.has_room, TIMEOUT_S)  # a place is free a moment after its call is answered


def test_who_leaves_meanwhile_is_noticed(scene: Scene) -> None:
    left, gate = threading.Event(), scene.gate

    def wait(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(left.set)
        return scene._wait_in_silence(_, context)

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(wait)
    scene.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.More", {"Wait": method}),))
    call: Any = scene.channel.unary_unary("/tests.More/Wait")
    future = call.future(b"", timeout=TIMEOUT_S)
    assert scene.waiting.acquire(timeout=TIMEOUT_S)
    future.cancel()
    assert left.wait(TIMEOUT_S)
    assert not gate.is_set()
    assert scene.say() == b"word"


@pytest.mark.parametrize("count", [0, 1, PLACES])
def test_a_stop_lets_calls_end(scene: Scene, count: int) -> None:
    waits = [scene.wait() for _ in range(count)]
    stopped = scene.server.stop(TIMEOUT_S)
    assert stopped.wait(0.1) is (not count)
    scene.gate.set()
    assert stopped.wait(TIMEOUT_S)
    assert [one.result(TIMEOUT_S) for one in waits] == [b"at last"] * count


def test_a_stop_does_not_wait_for_who_never_ends(scene: Scene) -> None:
    wait = scene.wait()
    began_s = time.monotonic()
    scene.server.stop(0.1)
    with pytest.raises(grpc.RpcError):
        wait.result(TIMEOUT_S)
    assert time.monotonic() - began_s < TIMEOUT_S


def test_servers_that_come_and_go_leave_nothing() -> None:
    pools = []
    for _ in range(10):
        scene = Scene()
        with scene.channel:
            assert scene.say() == b"word"
        scene.server.stop(None).wait(TIMEOUT_S)
        scene.threads.shutdown()
        pools.append(scene.threads)
    until(lambda: not _alive(), TIMEOUT_S)
    assert all(pool.next_event is bool for pool in pools)  # and nothing of gRPC, which would keep its sockets


def test_where_the_system_gives_no_thread_for_it_grpc_polls_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("polling") and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    scene = Scene()
    with scene.channel:
        assert scene.say() == b"word"
    assert refused.is_set()
    assert scene.threads.next_event is bool
    scene.server.stop(None).wait(TIMEOUT_S)
    scene.threads.shutdown()
