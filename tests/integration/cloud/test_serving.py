"""Requests to the real process over a real socket, good and bad."""

import queue
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.faults.raw_http2 import DATA, END_STREAM, PREFACE, SETTINGS, RawConnection, frame, grpc_message
from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear_weights
from upwell.cloud.workers.health_and_reflection import MAX_REFLECTIONS, MAX_WATCHES
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.servicer import SERVICE
from upwell.shared.tensors import Array

LIMIT_S = 10.0
JUNK = b"\xff\xff"
X = np.arange(16, dtype=np.float32).reshape(2, 8)
ASSETS = Path(__file__).parents[3] / "shared" / "upwell" / "tools" / "demo" / "assets" / "cloud"

NOT_FOUND, INVALID = RemoteErrorKind.NOT_FOUND, RemoteErrorKind.INVALID_ARGUMENT
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_an_answer_over_the_wire(client: OipClient) -> None:
    answer = client.infer(InferRequest("linear", {"x": X}, id="wire"), LIMIT_S)
    weights, bias = linear_weights(seed=2)
    np.testing.assert_allclose(answer.outputs["scores"], X @ weights + bias, rtol=1e-4)
    assert (answer.model, answer.version, answer.id) == ("linear", "2", "wire")
    assert set(answer.parameters) == {"upwell.cloud_queue_ms", "upwell.cloud_compute_ms", "upwell.cloud_digest"}


def test_an_id_is_made_where_none_is_sent(client: OipClient) -> None:
    ids = {client.infer(InferRequest("linear", {"x": X}), LIMIT_S).id for _ in range(2)}
    assert len(ids) == 2
    assert "" not in ids


def test_metadata_over_the_wire(client: OipClient) -> None:
    metadata = client.metadata("linear", LIMIT_S)
    assert (metadata.versions, metadata.platform) == (("1", "2"), "onnxruntime_onnx")
    assert client.server_metadata(LIMIT_S).name == "upwell-cloud"
    assert client.ready(LIMIT_S)
    assert client.ready(LIMIT_S, "linear", "1")
    assert not client.ready(LIMIT_S, "linear", "3")
    assert not client.ready(LIMIT_S, "broken")


@pytest.mark.parametrize(
    ("request_", "kind", "says"),
    [
        (
            InferRequest("lineal", {"x": X}),
            RemoteErrorKind.NOT_FOUND,
            "no model 'lineal' here; available: broken, linear",
        ),
        (InferRequest("../linear", {"x": X}), NOT_FOUND, "no model '../linear'"),
        (InferRequest("linear", {"x": X}, version="7"), NOT_FOUND, "available: 1, 2"),
        (
            InferRequest("linear", {"x": X.astype(np.int32)}),
            RemoteErrorKind.INVALID_ARGUMENT,
            "expected FP32 .* got INT32",
        ),
        (InferRequest("linear", {"x": X[:, :3]}), INVALID, r"expected FP32 \[-1, 8\]"),
        (InferRequest("linear", {"y": X}), INVALID, "'x' is missing"),
        (InferRequest("linear", {"x": X, "y": X}), INVALID, "unknown input 'y'"),
        (InferRequest("linear", {"x": X}, outputs=("y",)), INVALID, "no output 'y'"),
        (InferRequest("broken", {"x": X}), RemoteErrorKind.UNAVAILABLE, "not ready: .*not an ONNX file"),
    ],
)
def test_a_bad_request_is_told_what_was_expected(
    client: OipClient, request_: InferRequest, kind: RemoteErrorKind, says: str
) -> None:
    with pytest.raises(RemoteError, match=says) as caught:
        client.infer(request_, LIMIT_S)
    assert caught.value.kind is kind
    client.infer(InferRequest("linear", {"x": X}), LIMIT_S)


@pytest.mark.slow
def test_a_payload_of_100_mb_is_refused_and_the_service_lives_on(client: OipClient) -> None:
    with pytest.raises(RemoteError) as caught:
        client.infer(InferRequest("linear", {"x": np.zeros((3_125_000, 8), np.float32)}), LIMIT_S)
    assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
    client.infer(InferRequest("linear", {"x": X}), LIMIT_S)


def test_a_truncated_message_is_invalid_and_the_service_lives_on(service: Service, client: OipClient) -> None:
    message = serialize_infer_request(InferRequest("linear", {"x": X}))
    with grpc.insecure_channel(service.address) as channel:
        call: Callable[..., bytes] = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for size in (1, len(message) // 2, len(message) - 1):
            with pytest.raises(grpc.RpcError) as caught:
                call(message[:size], timeout=LIMIT_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    client.infer(InferRequest("linear", {"x": X}), LIMIT_S)


def test_a_deadline_that_cannot_be_met_is_refused_in_time(client: OipClient) -> None:
    request = InferRequest("slow", {"x": np.zeros((400, 512), np.float32)})
    client.infer(request, LIMIT_S)
    start_s = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        client.infer(request, 0.01)
    assert caught.value.kind is RemoteErrorKind.DEADLINE
    assert time.monotonic() - start_s < LIMIT_S / 10


def test_many_requests_at_once(client: OipClient) -> None:
    weights, bias = linear_weights(seed=2)

    def ask(value: int) -> Array:
        x = np.full((1, 8), value, np.float32)
        return client.infer(InferRequest("linear", {"x": x}), LIMIT_S).outputs["scores"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(100)))
    expected = [np.full((1, 8), value, np.float32) @ weights + bias for value in range(100)]
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)


def test_health_of_the_whole_and_of_each_model(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)

        def check(name: str) -> object:
            return health.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_S).status

        assert [check(name) for name in ("", SERVICE, "linear", "broken")] == [SERVING, SERVING, SERVING, NOT_SERVING]
        with pytest.raises(grpc.RpcError) as caught:
            check("unknown")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="unknown"), timeout=LIMIT_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_reflection_describes_the_service_under_its_name_on_the_wire(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names = list(database.get_services())
        assert set(names) >= {SERVICE, "grpc.health.v1.Health"}
        for name in names:
            file: FileDescriptorProto = database.FindFileContainingSymbol(name)
            assert name.rpartition(".")[2] in [one.name for one in file.service]


def _reflect(channel: grpc.Channel) -> Any:
    """A reflection stream that has been answered once and is left open."""
    questions: queue.Queue[reflection_pb2.ServerReflectionRequest] = queue.Queue()
    questions.put(reflection_pb2.ServerReflectionRequest(list_services="*"))
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    stream = stub.ServerReflectionInfo(iter(questions.get, None), timeout=60)
    next(stream)
    return stream


def test_streams_that_stay_open_do_not_use_up_the_service(repository: Path) -> None:
    with serving("--models", repository) as running, grpc.insecure_channel(running.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(MAX_WATCHES)]
        assert [next(watch).status for watch in watches] == [SERVING] * MAX_WATCHES
        with pytest.raises(grpc.RpcError) as caught:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        everywhere = OipClient(f"dns:///{running.address}")  # it would watch, and does without
        everywhere.infer(InferRequest("linear", {"x": X}), LIMIT_S)
        everywhere.close()
        streams = [_reflect(channel) for _ in range(MAX_REFLECTIONS)]
        with pytest.raises(grpc.RpcError) as caught:
            _reflect(channel)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        client = OipClient(running.address)
        client.infer(InferRequest("linear", {"x": X}), LIMIT_S)
        client.close()
        for stream in (*watches, *streams):
            stream.cancel()


def test_a_watch_that_reads_nothing_does_not_stop_the_service(repository: Path) -> None:
    """It held the lock that gRPC's only thread of events takes when another watch ends."""
    shut = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))  # a window of no bytes for each stream
    with serving("--models", repository) as running, RawConnection(running.address, greets=False) as hostile:
        hostile.send(PREFACE, shut)
        hostile.begin_call(1, "/grpc.health.v1.Health/Watch")
        hostile.send(frame(DATA, END_STREAM, 1, grpc_message(b"")))
        with grpc.insecure_channel(running.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for _ in range(3):
                watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
                assert next(watch).status == SERVING
                watch.cancel()
                assert health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S).status == SERVING
        with closing(OipClient(running.address)) as client:
            client.infer(InferRequest("linear", {"x": X}), LIMIT_S)


def _refusal(answers: Any) -> tuple[object, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    return caught.value.code(), caught.value.details() or ""


def test_what_health_and_reflection_cannot_read_is_the_caller_s_fault_and_does_not_hold_up_the_end(
    repository: Path,
) -> None:
    """gRPC itself would log each one whole, and never let go of the streams."""
    health, reflection = "/grpc.health.v1.Health", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with serving("--models", repository) as running, grpc.insecure_channel(running.address) as channel:
        before = len(running.lines)
        check = channel.unary_stream(f"{health}/Check")  # type: ignore[var-annotated]  # bytes on both sides
        watch = channel.unary_stream(f"{health}/Watch")  # type: ignore[var-annotated]
        info = channel.stream_stream(reflection)  # type: ignore[var-annotated]
        for _ in range(10):
            for answers in (check(JUNK), watch(JUNK), info(iter([JUNK, JUNK]))):
                code, text = _refusal(answers)
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert "cannot be read as a" in text
        assert running.lines[before:] == []
        running.terminate()
        assert running.exit_code() == 0
    assert running.lines[before:] == ["draining\n"]


@pytest.mark.slow
def test_torch_and_onnx_give_the_same_answers() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), np.uint8)
    answers = []
    for engine, platform in (("onnx", "onnxruntime_onnx"), ("torch", "pytorch_safetensors")):
        with serving("--models", ASSETS, "--engine", engine) as running:
            client = OipClient(running.address)
            assert client.metadata("digits-large", LIMIT_S).platform == platform
            answers.append(client.infer(InferRequest("digits-large", {"image": pixels}), LIMIT_S).outputs["scores"])
            client.close()
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-4)
