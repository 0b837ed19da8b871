"""Batches, priorities and refusals as callers see them, through the real service over sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration.oip_http.harness import ask
from tests.unit.models_for_tests import linear
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.onnx_engine import OnnxEngine
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import CloudModel, find_models, load_model
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array

LIMIT_S = 10.0
REQUEST = InferRequest("m", {"x": np.ones((1, 2), np.float32)})
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}]}'


def served(engine: FakeEngine, batcher: Batcher) -> CloudService:
    processor = Processor(None, engine.inputs, engine.outputs, "onnx")
    return CloudService([CloudModel("m", "1", "fake", "sha256:0", ModelSettings(), engine, processor, batcher)])


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.let_go()


@pytest.fixture
def busy(engine: FakeEngine) -> Iterator[CloudService]:
    """A service whose one model takes 2.5 s for a run, as it has learnt, and is running; nobody may wait for it."""
    now_s = [0.0]
    batcher = Batcher(engine, ModelSettings(max_queue=0), clock=lambda: now_s[0])
    for _ in range(3):
        batcher._device.observe(batcher._queue, 1, 2.5, 0.0)
    engine.hold()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(batcher.run, dict(REQUEST.inputs), Call())
        assert engine.started.acquire(timeout=LIMIT_S)
        yield served(engine, batcher)
        engine.let_go()
        running.result(LIMIT_S)


def test_over_grpc_a_refused_caller_reads_in_the_trailers_when_to_try_again(busy: CloudService) -> None:
    server = start_server(busy, ["127.0.0.1:0"], max_workers=4)
    try:
        with grpc.insecure_channel(server.addresses[0]) as channel:
            infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as caught:
                infer(serialize_infer_request(REQUEST), timeout=LIMIT_S)
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            said = dict(error.trailing_metadata())
            assert said["grpc-retry-pushback-ms"] == "2500"
            assert b"google.rpc.RetryInfo" in said["grpc-status-details-bin"]
    finally:
        server.stop(0)


def test_over_http_a_refused_caller_reads_retry_after_in_whole_seconds(busy: CloudService) -> None:
    server = start_http_server(busy, ["127.0.0.1:0"], max_workers=4)
    try:
        answer = ask(server, "POST", "/v2/models/m/infer", BODY)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
    finally:
        server.stop(0)


@pytest.mark.parametrize("priority", [-1, "high", True, 1.5])
def test_a_priority_that_is_none_is_refused(engine: FakeEngine, priority: Any) -> None:
    server = start_server(served(engine, Batcher(engine)), ["127.0.0.1:0"], max_workers=4)
    client = OipClient(server.addresses[0])
    try:
        with pytest.raises(RemoteError, match="'priority': expected a whole number from 0") as caught:
            client.infer(InferRequest("m", REQUEST.inputs, parameters={"priority": priority}), LIMIT_S)
        assert caught.value.kind is RemoteErrorKind.INVALID_ARGUMENT
        assert client.infer(InferRequest("m", REQUEST.inputs, parameters={"priority": 0}), LIMIT_S).outputs
    finally:
        client.close()
        server.stop(0)


def test_the_request_s_priority_decides_the_order(engine: FakeEngine) -> None:
    batcher = Batcher(engine)
    service = served(engine, batcher)
    engine.hold()

    def ask_for(value: int, **parameters: int) -> None:
        request = InferRequest("m", {"x": np.full((1, 2), value, np.float32)}, parameters=parameters)
        service.infer(request, Call())

    pause = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(ask_for, 0)]
        assert engine.started.acquire(timeout=LIMIT_S)
        for value, parameters in ((1, {"priority": 11}), (2, {}), (3, {"priority": 2}), (4, {"priority": 0})):
            calls.append(pool.submit(ask_for, value, **parameters))
            while batcher.waiting < value:
                assert not pause.wait(0.001)
        engine.let_go()
        for call in calls:
            call.result(LIMIT_S)
    assert [batch["x"][0, 0] for batch in engine.batches] == [0, 3, 2, 4, 1]


def test_a_caller_with_a_deadline_is_answered_between_the_pieces_of_a_long_request(engine: FakeEngine) -> None:
    batcher = Batcher(engine, ModelSettings(max_batch=8))
    server = start_server(served(engine, batcher), ["127.0.0.1:0"], max_workers=4)
    clients = [OipClient(server.addresses[0]) for _ in range(2)]
    engine.hold()
    pause = threading.Event()
    try:
        long = clients[0].infer_async(InferRequest("m", {"x": np.ones((8000, 2), np.float32)}), 6 * LIMIT_S)
        assert engine.started.acquire(timeout=LIMIT_S)
        short = clients[1].infer_async(REQUEST, LIMIT_S)
        while not batcher.waiting:
            assert not pause.wait(0.001)
        engine.let_go()
        assert short.result(LIMIT_S).outputs["y"].tolist() == [[2, 2]]
        assert long.result(LIMIT_S).outputs["y"].shape == (8000, 2)
        assert [len(batch["x"]) for batch in engine.batches] == [8, 1, *[8] * 999]
    finally:
        engine.let_go()
        for client in clients:
            client.close()
        server.stop(0)


def test_every_bucket_is_warm_before_the_model_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    linear(folder).rename(folder / "model.onnx")
    runs: list[int] = []
    config = CloudConfig.model_validate(
        {
            "serve": {"listen": ["127.0.0.1:0"], "models": tmp_path},
            "models": {"m": {"buckets": [2, 4], "engine": "onnx", "instances": 1}},
        }
    )
    (found,) = find_models(config)
    run = OnnxEngine.run

    def counted(self: OnnxEngine, batch: Mapping[str, Array], options: Any = None) -> dict[str, Array]:
        runs.append(len(batch["x"]))
        return run(self, batch, options)

    monkeypatch.setattr(OnnxEngine, "run", counted)
    model = load_model(found, config)
    assert isinstance(model, CloudModel)
    assert runs == [2, 4]
    service = CloudService([model])
    answers = [service.infer(InferRequest("m", {"x": np.ones((rows, 8), np.float32)}), Call()) for rows in range(1, 10)]
    assert [answer.outputs["scores"].shape for answer in answers] == [(rows, 3) for rows in range(1, 10)]
    assert set(runs) == {2, 4}
    service.close()
