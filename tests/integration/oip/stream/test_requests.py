"""`ModelStreamInfer` over real sockets: order, errors, many at once, clients that are slow."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration.oip.harness import TIMEOUT_S, Serve
from tests.integration.oip.stream.harness import LARGE, Limited, Open, message
from upwell.shared.errors import InvalidRequest, ModelFailed, Unavailable
from upwell.shared.oip.auth.bearer_tokens import KnownTokens, TokenInterceptor
from upwell.shared.oip.auth.caller import Permits
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.model_stream import StreamLimits
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.grpc.server.servicer import SERVICE
from upwell.shared.oip.grpc.server.slow_clients import PATIENCE_S
from upwell.shared.platform.call_threads import yield_permit
from upwell.shared.tensors import Array


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


class Growing(FakeDataplane):
    """Answers any request with this tensor."""

    def __init__(self, made: Array) -> None:
        super().__init__()
        self.made = made

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        response = super().infer(request, call)
        return response if request.id == "small" else replace(response, outputs={"made": self.made})


@pytest.mark.parametrize("made", [np.zeros(5000, np.uint8), np.full(1, b"x" * 5000, object)], ids=["bytes", "text"])
def test_an_answer_that_is_too_large_is_an_error_of_its_request_alone(serve: Serve, made: Array) -> None:
    server = serve(dataplane=Growing(made), connections=Connections(max_message_bytes=4096))
    with grpc.insecure_channel(server.addresses[0]) as channel:
        stream = Open(channel)
        for name in ("small", "large", "small"):
            stream.put(message(name))
        assert stream.good() == "small"
        large = stream.answer()
        assert re.search(r"^the answer takes 5\d\d\d bytes; at most 4096 are sent", large.error_message)
        assert large.infer_response.id == "large"
        assert large.infer_response.parameters["upwell.status"].string_param == "RESOURCE_EXHAUSTED"
        assert stream.good() == "small"
        stream.put(None)
        call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError, match=r"the answer takes 5\d\d\d bytes") as caught:
            call(message("large"), timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


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


def test_an_error_whose_text_is_no_text_is_told(stream: Open, fake: FakeDataplane) -> None:
    fake.failure = InvalidRequest("cannot open \udc80.bin")
    stream.put(message("1"))
    assert stream.answer().error_message == "cannot open \\udc80.bin"
    fake.failure, fake.is_ready = Unavailable("cannot open \udc80.bin"), False
    stream.put(message("2"))
    assert stream.ends_with(grpc.StatusCode.UNAVAILABLE) == "cannot open \\udc80.bin"


def test_triton_s_parameters_are_taken(stream: Open, fake: FakeDataplane) -> None:
    stream.put(message("1", triton_enable_empty_final_response=True))
    assert stream.answer().error_message == ""
    fake.hold()
    stream.put(message("2", timeout=20_000))
    late = stream.answer()
    assert late.infer_response.parameters["upwell.status"].string_param == "DEADLINE_EXCEEDED"
    stream.put(message("3", timeout=-1))
    assert "microseconds" in stream.answer().error_message


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
            yield_permit()
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
        for start in range(0, 100, 10):
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


def test_a_slow_reader_of_large_answers_is_waited_for_rather_than_cut_off(
    limited: Limited, fake: FakeDataplane
) -> None:
    """Sixteen of its answers are twice as much as all clients together may leave unread."""
    names = [f"r{number}" for number in range(40)]
    with limited(fake, StreamLimits(quick_s=-1.0), most_unread_bytes=8 * LARGE) as (channel, address, _):
        slow = Open(channel)
        for name in names:
            slow.put(message(name, elements=LARGE))
        assert fake.arrived(3, TIMEOUT_S)
        assert not fake.arrived(9, 2 * PATIENCE_S), "those that wait for longer than the patience would be cut off"
        with grpc.insecure_channel(address) as second:
            other = Open(second)
            other.put(message("other", elements=LARGE))
            assert other.good() == "other"
            other.put(None)
        assert [slow.good() for _ in names] == names
        slow.put(None)


def test_a_stream_is_cut_off_where_too_much_waits_for_all_together(limited: Limited, fake: FakeDataplane) -> None:
    with limited(fake, StreamLimits(quick_s=-1.0), most_unread_bytes=LARGE // 2) as (channel, *_):
        slow = Open(channel)
        for number in range(4):  # the first may go into the connection's windows
            slow.put(message(f"r{number}", elements=LARGE))
        assert fake.arrived(1, TIMEOUT_S)
        assert fake.calls[0].cancelled.wait(TIMEOUT_S)


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


def test_what_an_engine_does_with_its_memory_later_does_not_show(limited: Limited) -> None:
    class Reusing(FakeDataplane):
        """Gives the same array each time, with other contents."""

        buffer = np.zeros(100_000, np.uint8)

        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            self.buffer += 1
            return InferResponse("echo", {"y": self.buffer}, id=request.id)

    # One after another, for two requests at once on one array would be a fault of the engine.
    with limited(Reusing(), StreamLimits(quick_s=60.0)) as (channel, *_):
        stream = Open(channel)
        for _ in range(5):
            stream.put(message("x"))
        found = [stream.answer().infer_response.raw_output_contents[0] for _ in range(5)]
        assert found == [bytes([number]) * 100_000 for number in range(1, 6)]
        stream.put(None)


def test_a_model_that_is_not_ready_does_not_end_it(stream: Open, fake: FakeDataplane) -> None:
    fake.failure = Unavailable("that model is not ready")
    stream.put(message("1"))
    assert stream.answer().error_message == "that model is not ready"
    fake.failure = None
    stream.put(message("2"))
    assert stream.good() == "2"
