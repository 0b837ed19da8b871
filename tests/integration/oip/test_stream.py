"""`ModelStreamInfer` over real sockets: order, errors, limits, clients that are slow or gone, and the end."""

from __future__ import annotations

import functools
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest

from tests.integration.oip.harness import TIMEOUT_S, Serve
from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import ModelFailed, Unavailable
from upwell.shared.oip import polling, stream_flow
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse
from upwell.shared.oip.fake import FakeDataplane
from upwell.shared.oip.permits import Permits
from upwell.shared.oip.server import start_server
from upwell.shared.oip.servicer import SERVICE
from upwell.shared.oip.stream import StreamLimits
from upwell.shared.oip.streams import METHOD, Streams
from upwell.shared.oip.threads import CallThreads
from upwell.shared.oip.tokens import KnownTokens, TokenInterceptor
from upwell.shared.oip.worker import give_way

Limited: TypeAlias = Callable[..., AbstractContextManager[tuple[grpc.Channel, str, Streams]]]

LARGE = 3 << 20


def message(name: str, elements: int = 1, model: str = "echo", **parameters: Any) -> bytes:
    request = pb.ModelInferRequest(model_name=model, id=name)
    request.inputs.add(name="uint8", datatype="UINT8", shape=[elements])
    request.raw_input_contents.append(b"\7" * elements)
    for key, value in parameters.items():
        setattr(request.parameters[key], f"{'bool' if isinstance(value, bool) else 'int64'}_param", value)
    return request.SerializeToString()


def read(data: bytes) -> stream_pb.ModelStreamInferResponse:
    return stream_pb.ModelStreamInferResponse.FromString(data)


class Open:
    """One stream to a server. `put(None)` says that no more requests will come."""

    def __init__(self, channel: grpc.Channel, **options: Any) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self.call = method(iter(self._requests.get, None), **{"timeout": 4 * TIMEOUT_S, **options})

    def put(self, data: bytes | None) -> None:
        self._requests.put(data)

    def answer(self) -> stream_pb.ModelStreamInferResponse:
        return read(next(self.call))

    def good(self) -> str:
        """The id of the next answer, which is no error."""
        answer = self.answer()
        assert answer.error_message == ""
        return answer.infer_response.id

    def ends_with(self, code: grpc.StatusCode) -> str:
        """Read the rest, of which there is none, and check how it ends."""
        with pytest.raises(grpc.RpcError):
            next(self.call)
        assert self.call.code() is code
        return str(self.call.details())


@pytest.fixture(params=["told", "told in threads that poll", "waited for"], autouse=True)
def at_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """How streams learn what comes and goes; how many threads of a server are at work at once."""
    assert stream_flow._IS_KNOWN
    monkeypatch.setattr(stream_flow, "_IS_KNOWN", request.param != "waited for")
    polling.poll_in_their_threads()
    return 1 if "poll" in request.param else None


@pytest.fixture
def stream(serve: Serve) -> Iterator[Open]:
    with grpc.insecure_channel(serve().addresses[0]) as channel:
        opened = Open(channel)
        yield opened
        opened.put(None)


@pytest.fixture
def serve(serve: Serve, at_work: int | None) -> Serve:
    return functools.partial(serve, at_work=at_work)


@pytest.fixture
def limited(at_work: int | None) -> Limited:
    """See `_limited`."""
    return functools.partial(_limited, at_work)


@contextmanager
def _limited(
    at_work: int | None,
    dataplane: Dataplane,
    limits: StreamLimits,
    interceptors: list[grpc.ServerInterceptor] | None = None,
) -> Iterator[tuple[grpc.Channel, str, Streams]]:
    """A channel to a server that has nothing but streams, with these limits; its address, and the streams."""
    threads = CallThreads(4 + limits.threads, "test", at_work)
    streams = Streams(dataplane, threads, limits)
    server = grpc.server(threads, interceptors=interceptors)
    streams.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, f"127.0.0.1:{port}", streams
    finally:
        streams.end()
        server.stop(0).wait()
        threads.shutdown()


def test_each_request_is_answered_with_its_id_in_order(stream: Open) -> None:
    for number in range(20):
        stream.put(message(f"r{number}", elements=number + 1))
    for number in range(20):
        answer = stream.answer()
        assert answer.error_message == ""
        assert answer.infer_response.id == f"r{number}"
        assert answer.infer_response.parameters["triton_final_response"].bool_param
        assert answer.infer_response.raw_output_contents[0] == b"\7" * (number + 1)


def test_a_large_answer_is_whole(stream: Open) -> None:
    stream.put(message("large", elements=LARGE))
    answer = stream.answer().infer_response
    assert answer.raw_output_contents[0] == b"\7" * LARGE
    assert answer.parameters["triton_final_response"].bool_param


def test_a_request_without_an_id_gets_one(stream: Open) -> None:
    stream.put(message(""))
    stream.put(message(""))
    first, second = stream.good(), stream.good()
    assert first
    assert first != second


def test_errors_are_answers_and_the_stream_goes_on(stream: Open) -> None:
    for data in (message("unknown", model="no-such-model"), b"\xff", message("misfit", elements=0), message("good")):
        stream.put(data)
    unknown, garbage, empty, good = (stream.answer() for _ in range(4))
    assert "no-such-model" in unknown.error_message
    assert unknown.infer_response.id == "unknown"
    assert unknown.infer_response.parameters["upwell.status"].string_param == "NOT_FOUND"
    assert "cannot be read" in garbage.error_message
    assert garbage.infer_response.parameters["upwell.status"].string_param == "INVALID_ARGUMENT"
    assert empty.error_message == good.error_message == ""
    assert good.infer_response.id == "good"


def test_a_failing_model_is_an_answer_and_a_bug_is_not_shown(stream: Open, fake: FakeDataplane) -> None:
    fake.failure = ModelFailed("out of memory")
    stream.put(message("1"))
    assert stream.answer().error_message == "out of memory"
    fake.failure = KeyError("a secret of the inside")
    stream.put(message("2"))
    assert stream.answer().error_message == "internal error"
    fake.failure = None
    stream.put(message("3"))
    assert stream.good() == "3"


def test_triton_s_parameters_are_taken(stream: Open, fake: FakeDataplane) -> None:
    stream.put(message("1", triton_enable_empty_final_response=True))
    assert stream.answer().error_message == ""
    fake.hold()
    stream.put(message("2", timeout=20_000))
    late = stream.answer()
    assert late.infer_response.parameters["upwell.status"].string_param == "DEADLINE_EXCEEDED"
    stream.put(message("3", timeout=-1))
    assert "microseconds" in stream.answer().error_message


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


class Backwards(FakeDataplane):
    """Answers, of `count` requests, the last that came in first."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._turns = {f"r{number}": threading.Event() for number in range(count + 1)}
        self._turns[f"r{count}"].set()

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        if request.id not in self._turns:
            return super().infer(request, call)
        assert self._turns[f"r{int(request.id[1:]) + 1}"].wait(TIMEOUT_S)
        try:
            return super().infer(request, call)
        finally:
            self._turns[request.id].set()


def test_slow_answers_are_made_at_the_same_time_and_sent_in_order(limited: Limited) -> None:
    with limited(Backwards(5), StreamLimits(quick_s=-1.0)) as (channel, *_):
        stream = Open(channel)
        stream.put(message("first, which is slow"))
        assert stream.good() == "first, which is slow"
        for number in range(5):
            stream.put(message(f"r{number}"))
        assert [stream.good() for _ in range(5)] == [f"r{number}" for number in range(5)]
        stream.put(None)


class Mixed(FakeDataplane):
    """Waits at some requests, and says so at some of these."""

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        number = int(request.id)
        if number % 3 == 0:
            give_way()
        if number % 5 == 0:
            time.sleep(0.002)
        return super().infer(request, call)


@pytest.mark.parametrize("quick_s", [-1.0, 0.001, 10.0], ids=["never quick", "as it is", "always quick"])
def test_none_of_many_at_once_is_forgotten(limited: Limited, quick_s: float) -> None:
    with (
        limited(Mixed(), StreamLimits(quick_s=quick_s)) as (channel, address, _),
        grpc.insecure_channel(address) as second,
    ):
        streams = [Open(channel), Open(channel), Open(second)]
        for start in range(0, 200, 10):
            for number in range(start, start + 10):
                for stream in streams:
                    stream.put(message(str(number)))
            for stream in streams:
                assert [stream.good() for _ in range(10)] == [str(number) for number in range(start, start + 10)]
        for stream in streams:
            stream.put(None)


def test_it_reads_no_further_ahead_than_it_may(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(quick_s=-1.0, ahead=3)) as (channel, *_):
        stream = Open(channel)
        stream.put(message("slow"))
        stream.answer()
        fake.hold()
        for number in range(10):
            stream.put(message(f"r{number}"))
        assert fake.arrived(1 + 3, TIMEOUT_S)
        assert not fake.arrived(1 + 4, 0.1)
        fake.release()
        assert [stream.good() for _ in range(10)] == [f"r{number}" for number in range(10)]
        stream.put(None)


def test_a_client_that_does_not_read_holds_up_its_own_stream_alone(limited: Limited, fake: FakeDataplane) -> None:
    limits = StreamLimits(quick_s=-1.0, ahead=4)
    with limited(fake, limits) as (channel, address, _):
        slow = Open(channel)
        for number in range(12):
            slow.put(message(f"r{number}", elements=LARGE))
        # The answers do not fit into the connection's windows, and nobody takes them.
        assert fake.arrived(4, TIMEOUT_S)
        assert not fake.arrived(12, 0.3)
        with grpc.insecure_channel(address) as second:
            other = Open(second)
            other.put(message("other"))
            assert other.good() == "other"
            other.put(None)
        assert [slow.good() for _ in range(12)] == [f"r{number}" for number in range(12)]
        slow.put(None)


def test_a_client_that_never_reads_is_broken_off(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(quick_s=-1.0, ahead=2, stall_s=0.1)) as (channel, *_):
        slow = Open(channel)
        for number in range(12):
            slow.put(message(f"r{number}", elements=LARGE))
        assert fake.arrived(1, TIMEOUT_S)
        assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_an_idle_stream_is_ended_and_one_at_work_is_not(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(idle_s=0.1)) as (channel, *_):
        busy, idle = Open(channel), Open(channel)
        fake.hold()
        busy.put(message("1"))
        assert fake.arrived(1, TIMEOUT_S)
        assert "no request came for 0.1 s" in idle.ends_with(grpc.StatusCode.UNAVAILABLE)
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
        assert "2 streams are open already" in Open(channel).ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED)
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


def test_a_model_that_is_not_ready_does_not_end_it(stream: Open, fake: FakeDataplane) -> None:
    fake.failure = Unavailable("that model is not ready")
    stream.put(message("1"))
    assert stream.answer().error_message == "that model is not ready"
    fake.failure = None
    stream.put(message("2"))
    assert stream.good() == "2"


def test_every_thread_of_a_stream_knows_who_calls(limited: Limited, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("all", "none")}
    tokens.write_text(
        f"version: 1\ntokens: [{{name: all, sha256: {hashes['all']}}}, "
        f"{{name: none, sha256: {hashes['none']}, models: [other]}}]\n"
    )
    dataplane = Backwards(5)
    interceptor = TokenInterceptor(KnownTokens(tokens, asks_certificates=False))
    with limited(Permits(dataplane), StreamLimits(quick_s=-1.0), [interceptor]) as (channel, *_):
        allowed = Open(channel, metadata=[("authorization", "Bearer all")])
        denied = Open(channel, metadata=[("authorization", "Bearer none")])
        allowed.put(message("first, which is slow"))
        assert allowed.answer().error_message == ""
        for number in range(5):
            allowed.put(message(f"r{number}"))
            denied.put(message(f"r{number}"))
        for number in range(5):
            answer = allowed.answer()
            assert (answer.error_message, answer.infer_response.id) == ("", f"r{number}")
            refusal = denied.answer()
            assert refusal.infer_response.parameters["upwell.status"].string_param == "PERMISSION_DENIED"
        assert {call.client for call in dataplane.calls} == {"all"}
        assert Open(channel).ends_with(grpc.StatusCode.UNAUTHENTICATED)
        allowed.put(None)
        denied.put(None)


def test_what_an_engine_does_with_its_memory_later_does_not_show(serve: Serve) -> None:
    class Reusing(FakeDataplane):
        """Gives the same array each time, with other contents."""

        buffer = np.zeros(100_000, np.uint8)

        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            self.buffer += 1
            return InferResponse("echo", {"y": self.buffer}, id=request.id)

    with grpc.insecure_channel(serve(dataplane=Reusing()).addresses[0]) as channel:
        stream = Open(channel)
        for _ in range(5):
            stream.put(message("x"))
        found = [stream.answer().infer_response.raw_output_contents[0] for _ in range(5)]
        assert found == [bytes([number]) * 100_000 for number in range(1, 6)]
        stream.put(None)


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
