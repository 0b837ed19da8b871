"""How streams of `ModelStreamInfer` end: by their clients, for a time or a limit, in a drain, broken off."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import grpc
import pytest

from tests.integration.oip.harness import TIMEOUT_S, Serve
from tests.integration.oip.stream.harness import LARGE, Limited, Open, message, soon
from upwell.shared.errors import Unavailable
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.server.model_stream import Stream, StreamLimits
from upwell.shared.oip.grpc.server.server import start_server


def test_the_end_of_the_requests_ends_the_stream_when_all_are_answered(stream: Open, fake: FakeDataplane) -> None:
    fake.hold()
    stream.put(message("1"))
    assert fake.arrived(1, TIMEOUT_S)
    stream.put(None)
    fake.release()
    assert stream.good() == "1"
    with pytest.raises(StopIteration):
        next(stream.call)
    assert stream.call.code() is grpc.StatusCode.OK


def test_a_stream_of_no_requests_ends_well(stream: Open) -> None:
    stream.put(None)
    with pytest.raises(StopIteration):
        next(stream.call)


def test_a_caller_who_leaves_is_noticed_by_what_is_under_way(stream: Open, fake: FakeDataplane) -> None:
    fake.hold()
    stream.put(message("1"))
    assert fake.arrived(1, TIMEOUT_S)
    stream.call.cancel()
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_a_client_that_never_reads_is_broken_off(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(quick_s=-1.0, ahead=2, stall_s=0.1)) as (channel, *_):
        slow = Open(channel)
        for number in range(12):
            slow.put(message(f"r{number}", elements=LARGE))
        assert fake.arrived(1, TIMEOUT_S)
        assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_an_idle_stream_is_ended_and_one_at_work_is_not(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(idle_s=0.5)) as (channel, *_):
        busy, idle = Open(channel), Open(channel)
        fake.hold()
        busy.put(message("1"))
        assert fake.arrived(1, TIMEOUT_S)
        assert "no request came for 0.5 s" in idle.ends_with(grpc.StatusCode.UNAVAILABLE)
        fake.release()
        assert busy.good() == "1"
        busy.ends_with(grpc.StatusCode.UNAVAILABLE)


def test_an_old_stream_is_ended_however_busy(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(age_s=0.2)) as (channel, *_):
        stream = Open(channel)
        with suppress(grpc.RpcError):
            while True:
                stream.put(message("again"))
                stream.answer()
        assert stream.call.code() is grpc.StatusCode.UNAVAILABLE
        assert "is 0.2 s old" in stream.call.details()


def test_more_streams_than_may_be_are_refused_and_room_comes_back(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(streams=2)) as (channel, *_):
        first, second = Open(channel), Open(channel)
        for one in (first, second):
            one.put(message("1"))
            one.answer()
        assert "2 streams are already open" in Open(channel).ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED)
        first.put(None)
        with pytest.raises(StopIteration):
            next(first.call)
        assert _opens(channel)
        second.put(None)


def _opens(channel: grpc.Channel) -> bool:
    """Whether a stream can be opened, soon."""
    until_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until_s:
        stream = Open(channel)
        stream.put(message("1"))
        try:
            return stream.good() == "1"
        except grpc.RpcError:
            continue
        finally:
            stream.put(None)
    return False


def test_stopping_answers_what_was_read_and_says_so(fake: FakeDataplane, at_work: int | None) -> None:
    server = start_server(fake, ["127.0.0.1:0"], max_workers=4, at_work=at_work)
    fake.hold()
    with grpc.insecure_channel(server.addresses[0]) as channel:
        busy, idle = Open(channel), Open(channel)
        busy.put(message("accepted"))
        assert fake.arrived(1, TIMEOUT_S)
        stopping = threading.Thread(target=server.stop, args=(TIMEOUT_S,))
        stopping.start()
        assert "closing" in idle.ends_with(grpc.StatusCode.UNAVAILABLE)
        busy.put(message("too late"))
        fake.release()
        assert busy.good() == "accepted"
        assert "closing" in busy.ends_with(grpc.StatusCode.UNAVAILABLE)
        stopping.join(TIMEOUT_S)
        assert not stopping.is_alive()


def test_what_comes_after_the_end_is_not_taken(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(quick_s=-1.0)) as (channel, _, streams):
        stream = Open(channel)
        stream.put(message("slow"))
        stream.good()
        fake.hold()
        stream.put(message("accepted"))
        assert fake.arrived(2, TIMEOUT_S)  # and another thread reads on
        streams.end()
        stream.put(message("too late"))
        assert not fake.arrived(3, 0.1)
        fake.release()
        assert stream.good() == "accepted"
        stream.ends_with(grpc.StatusCode.UNAVAILABLE)
        assert len(fake.requests) == 2


def test_a_draining_dataplane_ends_the_stream(stream: Open, fake: FakeDataplane) -> None:
    stream.put(message("before"))
    assert stream.good() == "before"
    fake.failure, fake.is_ready = Unavailable("draining"), False
    stream.put(message("after"))
    assert stream.ends_with(grpc.StatusCode.UNAVAILABLE) == "draining"


class Exits(FakeDataplane):
    """Wants to end the program at some requests."""

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        if request.id == "exit":
            raise SystemExit
        return super().infer(request, call)


def test_one_that_breaks_ends_alone_and_gives_its_threads_back(limited: Limited) -> None:
    with limited(Exits(), StreamLimits(quick_s=-1.0, helpers=2)) as (channel, _, streams):
        good = Open(channel)
        for _ in range(4):
            bad = Open(channel)
            for name in ("first", "exit", "exit", "exit"):
                bad.put(message(name))
            with suppress(grpc.RpcError):  # which of the threads is faster
                assert bad.good() == "first"
            bad.ends_with(grpc.StatusCode.CANCELLED)
            good.put(message("good"))
            assert good.good() == "good"
        soon(lambda: len(streams._open) == 1)
        soon(lambda: streams._resources.helpers._value == 2)
        good.put(None)


@pytest.mark.parametrize("told", ["came", "was_taken", "no_more_come"])
def test_one_that_breaks_where_it_is_told_of_an_event_ends_alone(
    limited: Limited, fake: FakeDataplane, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    if told == "was_taken" and not inner_parts.is_on():
        pytest.skip("who waits until an answer is taken needs not be told")
    with limited(fake, StreamLimits()) as (channel, _, streams):
        good, bad = Open(channel), Open(channel)
        bad.put(message("1"))
        assert bad.good() == "1"
        with monkeypatch.context() as patch:
            patch.setattr(Stream, told, lambda *_, **__: 1 / 0)
            bad.put(None if told == "no_more_come" else message("2"))
            with pytest.raises(grpc.RpcError):  # the answer that was not told of may have been taken
                [next(bad.call) for _ in range(2)]
            assert bad.call.code() is grpc.StatusCode.CANCELLED
        good.put(message("good"))
        assert good.good() == "good"
        soon(lambda: len(streams._open) == 1)
        good.put(None)


def test_silent_streams_do_not_count_among_the_calls_that_begin(serve: Serve) -> None:
    server = serve()
    with grpc.insecure_channel(server.addresses[0]) as channel:
        streams = [Open(channel) for _ in range(6)]
        soon(lambda: len(server._streams._open) == len(streams))
        soon(lambda: server._executor.beginning == 0)
        for stream in streams:
            stream.put(None)


def test_where_the_system_has_no_thread_to_watch_over_streams_the_next_one_tries_again(
    limited: Limited, fake: FakeDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "oip-streams":
            raise RuntimeError("can't start new thread")
        start(thread)

    with limited(fake, StreamLimits(idle_s=0.1)) as (channel, *_):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            unwatched = Open(channel)
            unwatched.put(message("1"))
            assert unwatched.good() == "1"
        watched = Open(channel)
        for one in (unwatched, watched):
            assert "no request came" in one.ends_with(grpc.StatusCode.UNAVAILABLE)


def test_clients_that_vanish_leave_nothing_behind(serve: Serve, fake: FakeDataplane) -> None:
    server = serve()
    before = threading.active_count()
    for _ in range(10):
        channel = grpc.insecure_channel(server.addresses[0])
        stream = Open(channel)
        stream.put(message("1"))
        stream.answer()
        channel.close()
        stream.put(None)
    with grpc.insecure_channel(server.addresses[0]) as channel:
        last = Open(channel)
        last.put(message("still here"))
        assert last.good() == "still here"
        last.put(None)
    # Threads are made when they are needed, and taken over by the next request.
    assert threading.active_count() <= before + 24
