"""The server and its servicer over real sockets: listening, statuses, limits, deadlines, draining."""

from __future__ import annotations

import logging
import math
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.faults.raw_http2 import DATA, END_STREAM, SETTINGS, RawConnection, frame, grpc_message
from tests.integration.oip.harness import TIMEOUT_S, Connect, Serve
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2_grpc as pb_grpc
from upwell.shared.config.security import ServerSecurity
from upwell.shared.errors import ConfigError, ModelFailed, UpwellError
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.error_statuses import STATUSES
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections, start_server
from upwell.shared.oip.grpc.server.servicer import METHODS, SERVICE

REQUEST = InferRequest("echo", EXAMPLE, id="request-1")


@pytest.fixture
def socket_path() -> Any:
    """A path short enough for a socket, wherever pytest keeps its folders."""
    with tempfile.TemporaryDirectory(prefix="oip") as folder:
        yield Path(folder, "agent.sock")


def generated_stub(channel: grpc.Channel) -> Any:
    return pb_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]  # generated code


def test_generated_clients_reach_all_six_methods(serve: Serve) -> None:
    with grpc.insecure_channel(serve().addresses[0]) as channel:
        stub: Any = generated_stub(channel)
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=TIMEOUT_S).live
        assert stub.ServerReady(pb.ServerReadyRequest(), timeout=TIMEOUT_S).ready
        assert stub.ModelReady(pb.ModelReadyRequest(name="echo"), timeout=TIMEOUT_S).ready
        assert not stub.ModelReady(pb.ModelReadyRequest(name="other"), timeout=TIMEOUT_S).ready
        assert stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=TIMEOUT_S).name == "fake"
        assert stub.ModelMetadata(pb.ModelMetadataRequest(name="echo"), timeout=TIMEOUT_S).platform == "fake"
        request = pb.ModelInferRequest(model_name="echo", id="1")
        contents = pb.InferTensorContents(int_contents=[5])
        request.inputs.add(name="int8", datatype="INT8", shape=[1], contents=contents)
        response = stub.ModelInfer(request, timeout=TIMEOUT_S)
        assert response.id == "1"
        assert list(response.raw_output_contents) == [b"\5"]
        assert not response.outputs[0].HasField("contents")


def test_it_serves_tcp_and_a_unix_socket_at_once(fake: FakeDataplane, connect: Connect, socket_path: Path) -> None:
    server = start_server(fake, ["127.0.0.1:0", f"unix:{socket_path}"], max_workers=2)
    assert server.addresses[0] != "127.0.0.1:0"
    assert server.addresses[1] == f"unix:{socket_path}"
    for address in server.addresses:
        assert connect(address).infer(REQUEST, TIMEOUT_S).id == "request-1"
    server.stop(0)
    assert not socket_path.exists()


def test_a_socket_left_behind_is_replaced(serve: Serve, connect: Connect, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(socket_path))
    assert connect(serve(f"unix:{socket_path}")).server_live(TIMEOUT_S)


def test_a_socket_in_use_is_left_alone(serve: Serve, connect: Connect, socket_path: Path) -> None:
    first = connect(serve(f"unix:{socket_path}"))
    with pytest.raises(ConfigError, match=f"cannot listen on unix:{socket_path}: it is in use by another program"):
        serve(f"unix:{socket_path}")
    assert first.server_live(TIMEOUT_S)
    assert connect(f"unix:{socket_path}").server_live(TIMEOUT_S)


def test_what_is_no_socket_is_left_alone(serve: Serve, socket_path: Path) -> None:
    socket_path.write_text("precious")
    with pytest.raises(ConfigError, match="a file that is not a socket is in the way"):
        serve(f"unix:{socket_path}")
    assert socket_path.read_text() == "precious"


def test_sockets_that_cannot_be(serve: Serve, socket_path: Path) -> None:
    with pytest.raises(ConfigError, match="the path is longer than 107 bytes"):
        serve(f"unix:{socket_path.parent}/{'x' * 100}")
    with pytest.raises(ConfigError, match="No such file or directory"):
        serve(f"unix:{socket_path.parent}/none/agent.sock")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(serve: Serve, socket_path: Path) -> None:
    socket_path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigError, match="Permission denied"):
        serve(f"unix:{socket_path}")
    socket_path.parent.chmod(stat.S_IRWXU)


def test_a_port_in_use_is_refused_and_nothing_is_left_listening(serve: Serve, socket_path: Path) -> None:
    taken = serve().addresses[0]
    with pytest.raises(ConfigError, match=f"cannot listen on {taken}: it is in use by another program"):
        start_server(FakeDataplane(), [f"unix:{socket_path}", taken], max_workers=1)
    with socket.socket(socket.AF_UNIX) as probe:
        assert probe.connect_ex(str(socket_path)) != 0


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        (["127.0.0.1:0", "127.0.0.1:0"], "one or more different addresses"),
        (["nonsense"], "'nonsense' is not an address"),
        (["0.0.0.0:0"], "callers would not be authenticated"),
        ([], "one or more different addresses"),
    ],
)
def test_addresses_that_cannot_be(listen: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start_server(FakeDataplane(), listen, max_workers=1)


def test_a_host_that_is_not_this_machine() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host\.invalid:0: \w+"):
        start_server(
            FakeDataplane(),
            ["no.such.host.invalid:0"],
            max_workers=1,
            connections=Connections(security=ServerSecurity(insecure=True)),
        )


@pytest.mark.parametrize("kind", list(STATUSES))
def test_each_error_arrives_with_its_status_and_sentence(
    serve: Serve, fake: FakeDataplane, kind: type[UpwellError]
) -> None:
    fake.failure = kind("what was wrong, with ünïcode\nand lines")
    with grpc.insecure_channel(serve().addresses[0]) as channel:
        stub: Any = generated_stub(channel)
        request = pb.ModelInferRequest(model_name="echo")
        request.inputs.add(name="fp32", datatype="FP32", shape=[0])
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(request, timeout=TIMEOUT_S)
    assert error.value.code() is STATUSES[kind]
    assert error.value.details() == "what was wrong, with ünïcode\nand lines"


def test_a_hostile_name_in_an_error_does_not_break_the_answer(serve: Serve, connect: Connect) -> None:
    with pytest.raises(RemoteError, match="NOT_FOUND: no model 'xxx") as error:
        connect(serve()).infer(InferRequest("x" * 1_000_000, EXAMPLE), TIMEOUT_S)
    assert error.value.kind is RemoteErrorKind.NOT_FOUND


def test_a_bug_is_logged_whole_and_not_shown(
    serve: Serve, connect: Connect, fake: FakeDataplane, caplog: pytest.LogCaptureFixture
) -> None:
    fake.failure = KeyError("a secret of the inside")
    with caplog.at_level(logging.ERROR), pytest.raises(RemoteError, match=r"^INTERNAL: internal error$") as error:
        connect(serve()).infer(REQUEST, TIMEOUT_S)
    assert error.value.kind is RemoteErrorKind.INTERNAL
    assert "'request-1'" in caplog.text
    assert "Traceback" in caplog.text
    assert "a secret of the inside" in caplog.text


def test_a_failing_model_is_logged_whole_and_its_sentence_shown(
    serve: Serve, connect: Connect, fake: FakeDataplane, caplog: pytest.LogCaptureFixture
) -> None:
    fake.failure = ModelFailed("the model ran out of memory")
    with caplog.at_level(logging.ERROR), pytest.raises(RemoteError, match="the model ran out of memory"):
        connect(serve()).infer(REQUEST, TIMEOUT_S)
    assert "'request-1'" in caplog.text


def test_an_answer_the_protocol_cannot_carry_is_no_fault_of_the_caller(serve: Serve, connect: Connect) -> None:
    class Complex(FakeDataplane):
        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            return InferResponse("echo", {"y": np.zeros(1, np.complex64)})

    with pytest.raises(RemoteError, match="INTERNAL: internal error"):
        connect(serve(dataplane=Complex())).infer(REQUEST, TIMEOUT_S)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ech"])
def test_unreadable_messages_are_the_caller_s_fault(serve: Serve, method: str, data: bytes) -> None:
    with grpc.insecure_channel(serve().addresses[0]) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
        with pytest.raises(grpc.RpcError) as error:
            call(data, timeout=TIMEOUT_S)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "the message cannot be read" in (error.value.details() or "")


def test_what_speaks_no_http2_is_turned_away_and_harms_nobody(serve: Serve, connect: Connect) -> None:
    server = serve()
    host, _, port = server.addresses[0].rpartition(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as raw:
            raw.sendall(data)
            while raw.recv(4096):
                pass
    assert connect(server).server_live(TIMEOUT_S)


def test_the_caller_s_deadline_is_passed_on(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    client = connect(serve())
    before_s = time.monotonic()
    client.infer(REQUEST, 7.0)
    client.infer(REQUEST, math.inf)
    # gRPC sends a deadline in few digits and rounds it up.
    assert before_s + 6.5 < fake.calls[0].deadline_s < time.monotonic() + 7.5
    assert fake.calls[1].deadline_s == math.inf
    assert fake.calls[0].client.startswith("ipv4:127.0.0.1:")


def test_calls_beyond_the_workers_are_refused_at_once(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    client = connect(serve(max_workers=2))
    held = [client.infer_async(REQUEST, TIMEOUT_S) for _ in range(2)]
    assert fake.arrived(2, TIMEOUT_S)
    with pytest.raises(RemoteError, match="Concurrent RPC limit exceeded") as error:
        client.infer(REQUEST, TIMEOUT_S)
    assert error.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
    fake.release()
    assert [pending.result(TIMEOUT_S).id for pending in held] == ["request-1"] * 2


def failure_of(client: OipClient) -> RemoteErrorKind | None:
    try:
        client.server_live(TIMEOUT_S)
    except RemoteError as error:
        return error.kind
    return None


def first_failure_of(client: OipClient) -> RemoteErrorKind:
    while (kind := failure_of(client)) is None:
        pass
    return kind


def test_stopping_lets_calls_under_way_end_and_takes_no_new_ones(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    fake.hold()
    server = serve()
    pending = connect(server).infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(server.stop, TIMEOUT_S)
        late = connect(server)
        assert first_failure_of(late) is RemoteErrorKind.UNAVAILABLE
        assert not stopping.done()
        fake.release()
        stopping.result(TIMEOUT_S)
    assert pending.result(TIMEOUT_S).id == "request-1"


def test_stopping_cancels_what_takes_longer_than_the_grace(serve: Serve, connect: Connect, fake: FakeDataplane) -> None:
    fake.hold()
    server = serve()
    pending = connect(server).infer_async(REQUEST, TIMEOUT_S)
    assert fake.arrived(1, TIMEOUT_S)
    server.stop(0.05)
    with pytest.raises(RemoteError):
        pending.result(TIMEOUT_S)
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


@pytest.mark.slow
def test_stopping_does_not_wait_for_calls_that_grpc_never_ends(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """As those of a stream are whose message gRPC itself was to read and could not."""

    def add_reading(server: grpc.Server) -> None:
        def answer(requests: Iterator[Any], _: grpc.ServicerContext) -> Iterator[bytes]:
            return (b"" for _ in requests)

        handler: Any = grpc.stream_stream_rpc_method_handler(answer, request_deserializer=int)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Reading", {"Read": handler}),))

    server = serve(extra=[add_reading])
    with grpc.insecure_channel(server.addresses[0]) as channel, caplog.at_level(logging.CRITICAL, "grpc"):
        call: Any = channel.stream_stream("/test.Reading/Read")
        for _ in range(20):  # one is not enough each time
            with pytest.raises(grpc.RpcError):
                list(call(iter([b"no number"]), timeout=TIMEOUT_S))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.stop, 0.1).result(TIMEOUT_S)


def test_the_request_id_of_one_call_is_not_seen_by_another(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeDataplane):
        def ready(self, model: str | None = None, version: str = "") -> bool:
            if model is None:
                raise ZeroDivisionError
            return True

    client = connect(serve(dataplane=Broken(), max_workers=1))
    client.infer(REQUEST, TIMEOUT_S)
    with caplog.at_level(logging.ERROR), pytest.raises(RemoteError, match="internal error"):
        client.ready(TIMEOUT_S)
    assert "request-1" not in caplog.text


def test_the_calls_of_a_connection_whose_answers_nobody_reads_are_limited(
    serve: Serve, connect: Connect, fake: FakeDataplane
) -> None:
    server = serve(max_workers=80)
    message = grpc_message(converters.serialize_infer_request(REQUEST))
    with RawConnection(server.addresses[0]) as hostile:
        hostile.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        for start in range(1, 3001, 100):
            for stream in range(start, start + 100, 2):
                hostile.begin_call(stream)
                hostile.send(frame(DATA, END_STREAM, stream, message))
            assert connect(server).infer(REQUEST, TIMEOUT_S).id == REQUEST.id  # so that few are refused
        assert 500 < len(fake.requests) <= 1024 + 30
