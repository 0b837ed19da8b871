"""Models that change while the real process serves: by request as tritonclient makes it, and by the file watch."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear, linear_weights
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.servicer import SERVICE

LIMIT_S = 20.0
FEATURES, CLASSES = 1024, 1024
"""Weights of 4 MiB, so that an engine that is not freed shows in the memory of the process."""
X = np.ones((1, FEATURES), np.float32)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Folder:
    """A model folder whose versions are replaced whole; every model answers with its seed in its scores."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._aside = root.with_name("aside")
        self._aside.mkdir()
        self._bytes: dict[int, bytes] = {}
        self.put(1, seed=0)

    def put(self, version: int, seed: int, name: str = "m") -> None:
        if seed not in self._bytes:
            self._bytes[seed] = linear(self._aside, seed, features=FEATURES, classes=CLASSES).read_bytes()
        self.write(version, self._bytes[seed], name)

    def write(self, version: int, content: bytes, name: str = "m") -> None:
        folder = self.root / name / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        (self._aside / "new").write_bytes(content)
        (self._aside / "new").replace(folder / "model.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "models")


@contextmanager
def changing(folder: Folder, repository: str, more: str = "") -> Iterator[Service]:
    path = folder.root.parent / "cloud.yaml"
    path.write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: models, repository: {repository}{more}}}\n"
        "defaults: {instances: 2}\n"
    )
    with serving("-c", path) as running:
        yield running


def scores(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    weights, bias = linear_weights(seed, FEATURES, CLASSES)
    return X @ weights + bias


# --- By request


def test_tritonclient_lists_loads_and_unloads(folder: Folder) -> None:
    with changing(folder, "{control: true}") as running, triton.InferenceServerClient(running.address) as client:
        assert "model_repository" in client.get_server_metadata().extensions
        folder.put(2, seed=1)
        folder.put(1, seed=2, name="other")
        index = client.get_model_repository_index(as_json=True)
        assert index == {
            "models": [
                {"name": "m", "version": "1", "state": "READY"},
                {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "not loaded"},
                {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"},
            ]
        }
        client.load_model("m")
        client.load_model("other")
        assert {one.state for one in client.get_model_repository_index().models} == {"READY"}
        client.unload_model("m", unload_dependents=True)
        assert not client.is_model_ready("m")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(client._channel)
        ready = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=LIMIT_S)
        assert [(one.name, one.version) for one in ready.models] == [("other", "1")]
        client.load_model("m")
        given = triton.InferInput("x", list(X.shape), "FP32")
        given.set_data_from_numpy(X)
        answer = client.infer("m", [given], client_timeout=LIMIT_S)
        np.testing.assert_allclose(answer.as_numpy("scores"), scores(1), rtol=1e-3)
    assert any("requests to load model 'other'" in line for line in running.lines)


def test_what_cannot_be_done_has_its_status(folder: Folder) -> None:
    with changing(folder, "{control: true}") as running, triton.InferenceServerClient(running.address) as client:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(client._channel)
        folder.write(2, b"no model")
        files = {"config": "{}", "files": {"file:1/model.onnx": b"model"}}
        for change, name, more, status, says in (
            (client.load_model, "m", {}, "FAILED_PRECONDITION", "not an ONNX file.*; in force: version 1"),
            (client.load_model, "n", {}, "NOT_FOUND", "no model 'n'"),
            (client.unload_model, "n", {}, "NOT_FOUND", "available: m"),
            (client.load_model, "m", {"config": "{"}, "INVALID_ARGUMENT", "failed to load 'm'.*as JSON .line 1"),
            (client.load_model, "m", {"config": "[" * 9000}, "INVALID_ARGUMENT", "cannot be read as JSON"),
            (
                client.load_model,
                "m",
                {"config": '{"backend": "x"}'},
                "INVALID_ARGUMENT",
                "the key 'backend'; a load may set only `max_b",
            ),
            (client.load_model, "m", {"config": '{"max_batch_size": 1e9}'}, "INVALID_ARGUMENT", "from 0 to 4096"),
            (client.load_model, "m", {"config": '{"instance_group": [{"kind": 1}]}'}, "INVALID_ARGUMENT", "'kind'"),
            (client.load_model, "m", {"config": '{"instance_group": [{"count": 0}]}'}, "INVALID_ARGUMENT", "from 1"),
            (client.load_model, "m", files, "INVALID_ARGUMENT", "parameter 'file:1/model.onnx' is not supported"),
        ):
            with pytest.raises(InferenceServerException, match=says) as caught:
                change(name, **more)
            assert caught.value.status() == f"StatusCode.{status}"
            assert str(folder.root) not in str(caught.value)
        with pytest.raises(grpc.RpcError) as refused:
            stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(repository_name="there"), timeout=LIMIT_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        method: Any = client._channel.unary_unary(f"/{SERVICE}/RepositoryModelLoad")
        with pytest.raises(grpc.RpcError) as unreadable:
            method(b"\x12\xff", timeout=LIMIT_S)
        assert unreadable.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (first, second) = client.get_model_repository_index().models
        assert (first.state, first.reason, second.state) == ("READY", "", "UNAVAILABLE")
        assert "not an ONNX file" in second.reason
        assert client.is_model_ready("m")


def test_nobody_changes_anything_unless_it_is_allowed(folder: Folder) -> None:
    with changing(folder, "{}") as running, triton.InferenceServerClient(running.address) as client:
        for change in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="control: true") as caught:
                change("m")
            assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        assert client.get_model_repository_index().models[0].state == "READY"
        assert "model_repository" not in client.get_server_metadata().extensions
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(client._channel))
        methods = pool.FindServiceByName(SERVICE).methods_by_name
        for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
            ours, theirs = methods[name].input_type, service_pb2.DESCRIPTOR.message_types_by_name[f"{name}Request"]
            assert ours.full_name == theirs.full_name
            assert {(one.number, one.name, one.type) for one in ours.fields} == {
                (one.number, one.name, one.type) for one in theirs.fields
            }


def test_tokens_guard_these_methods_too(folder: Folder) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    (folder.root.parent / "tokens.yaml").write_text(
        f"version: 1\ntokens: [{{name: operator, sha256: {digest}, control: true}}]\n"
    )
    with (
        changing(folder, "{control: true}", ", tokens: tokens.yaml") as running,
        triton.InferenceServerClient(running.address) as client,
    ):
        for call in (client.get_model_repository_index, lambda **more: client.load_model("m", **more)):
            with pytest.raises(InferenceServerException) as caught:
                call()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
            call(headers={"authorization": "Bearer right"})
    assert any("operator requests to load model 'm'" in line for line in running.lines)


# --- By the file watch


def test_the_watch_takes_over_what_comes_and_goes(folder: Folder) -> None:
    with changing(folder, "{watch: 50ms}") as running, grpc.insecure_channel(running.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(service="m"), timeout=LIMIT_S).status == SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service="m"), timeout=LIMIT_S)
        assert next(watch).status == SERVING
        aside = folder.root.parent / "removed"
        (folder.root / "m").rename(aside)
        assert next(watch).status == NOT_SERVING
        aside.rename(folder.root / "m")
        assert next(watch).status == SERVING
        client = OipClient(running.address)
        answer = client.infer(InferRequest("m", {"x": X}), LIMIT_S)
        np.testing.assert_allclose(answer.outputs["scores"], scores(0), rtol=1e-3)
        client.close()
        running.terminate()
        assert running.exit_code() == 0


# --- Under load


class Load:
    """Callers that never stop asking; every answer must be one of the model's, whole."""

    def __init__(self, address: str, seeds: int, callers: int = 4) -> None:
        self.answers = 0
        self.digests: set[str] = set()
        self.failures: list[BaseException] = []
        self._expected = [scores(seed) for seed in range(seeds)]
        self._client = OipClient(address)
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(callers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                answer = self._client.infer(InferRequest("m", {"x": X}), LIMIT_S)
                got = answer.outputs["scores"]
                assert any(np.allclose(got, one, rtol=1e-3, atol=1e-3) for one in self._expected)
                with self._lock:
                    self.answers += 1
                    self.digests.add(str(answer.parameters["upwell.cloud_digest"]))
        except BaseException as error:  # noqa: BLE001  for the test to see
            self.failures.append(error)


def resident_mib(service: Service) -> float:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.parametrize("reloads", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_reloads_under_load_fail_no_request_and_leave_no_memory_behind(folder: Folder, reloads: int) -> None:
    seeds = 3
    with (
        changing(folder, "{control: true}") as running,
        triton.InferenceServerClient(running.address) as operator,
        Load(running.address, seeds) as load,
    ):
        used_mib = []
        for number in range(1, reloads + 1):
            folder.put(1, seed=number % seeds)
            operator.load_model("m", client_timeout=LIMIT_S)
            if number % 5 == 0:  # and a broken one between, which must not hurt either
                folder.write(1, b"no model")
                with pytest.raises(InferenceServerException):
                    operator.load_model("m", client_timeout=LIMIT_S)
            used_mib.append(resident_mib(running))
        assert load.failures == []
        assert len(load.digests) == seeds
        assert load.answers > reloads
    print(f"{load.answers} answers; resident MiB {used_mib[0]:.0f}, {used_mib[reloads // 2]:.0f}, {used_mib[-1]:.0f}")
    # Each engine that stayed would be 4 MiB; a load itself takes some for a while.
    assert max(used_mib[-5:]) <= 1.1 * max(used_mib[: reloads // 2])
