"""tritonclient, as its users use it, against the real cloud service."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import identity, linear, linear_weights
from upwell.shared.tensors import Array

X = np.arange(24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("service")
    for name in ("linear", "text", "half", "batched"):
        folder = root / "models" / name / "1"
        folder.mkdir(parents=True)
        _make(name, folder).rename(folder / "model.onnx")
    (root / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models, "
        "repository: {control: true}}\nmodels: {batched: {max_batch: 8, instances: 2}}\n"
    )
    with serving("-c", root / "cloud.yaml") as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    with triton.InferenceServerClient(service.address) as client:
        yield client


@pytest.fixture(scope="module")
def web(service: Service) -> Iterator[Any]:
    at = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))
    with triton_http.InferenceServerClient(at) as client:
        yield client


def _make(name: str, folder: Path) -> Path:
    if name in ("linear", "batched"):
        return linear(folder, seed=1)
    return identity(folder, "BYTES" if name == "text" else "FP16")


def put(name: str, datatype: str, array: Array) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear")
    assert client.is_model_ready("linear", "1")
    assert not client.is_model_ready("missing")


def test_metadata(client: Any) -> None:
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "upwell-cloud"
    model = client.get_model_metadata("linear", as_json=True)
    assert model == {
        "name": "linear",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", "8"]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": ["-1", "3"]}],
    }


def test_infer(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("scores")]
    result = client.infer("linear", [put("x", "FP32", X)], outputs=wanted, request_id="triton", client_timeout=10)
    weights, bias = linear_weights(seed=1)
    np.testing.assert_allclose(result.as_numpy("scores"), X @ weights + bias, rtol=1e-4)
    response = result.get_response()
    assert response.id == "triton"
    assert response.parameters["upwell.cloud_digest"].string_param.startswith("sha256:")
    assert response.parameters["upwell.cloud_compute_ms"].double_param > 0


def test_infer_without_waiting(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer("linear", [put("x", "FP32", X)], callback=lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=10)
    assert error is None
    assert result.as_numpy("scores").shape == (3, 3)


def test_a_stream(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    rows = [X[:1], X[:, :2], X]
    for number, x in enumerate(rows):
        client.async_stream_infer("linear", [put("x", "FP32", x)], request_id=str(number))
    (first, _), (_, misfit), (last, _) = (answers.get(timeout=10) for _ in rows)
    client.stop_stream()
    weights, bias = linear_weights(seed=1)
    np.testing.assert_allclose(first.as_numpy("scores"), X[:1] @ weights + bias, rtol=1e-4)
    np.testing.assert_allclose(last.as_numpy("scores"), X @ weights + bias, rtol=1e-4)
    assert last.get_response().id == "2"
    assert "expected FP32 [-1, 8]" in misfit.message()


def test_text_and_halves(client: Any) -> None:
    text = np.array([[b"dock", "größe".encode()]], object)
    assert client.infer("text", [put("x", "BYTES", text)]).as_numpy("y").tolist() == text.tolist()
    half = np.array([[0.5, -2]], np.float16)
    answer = client.infer("half", [put("x", "FP16", half)]).as_numpy("y")
    assert answer.dtype == np.float16
    np.testing.assert_array_equal(answer, half)


@pytest.mark.parametrize(
    ("model", "given", "status"),
    [
        ("missing", put("x", "FP32", X), "StatusCode.NOT_FOUND"),
        ("linear", put("z", "FP32", X), "StatusCode.INVALID_ARGUMENT"),
        ("linear", put("x", "FP32", X[:, :2]), "StatusCode.INVALID_ARGUMENT"),
        ("linear", put("x", "INT32", X.astype(np.int32)), "StatusCode.INVALID_ARGUMENT"),
    ],
)
def test_errors_have_the_protocol_s_statuses(client: Any, model: str, given: Any, status: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [given])
    assert caught.value.status() == status


def test_a_model_s_configuration_says_how_it_is_served(client: Any, web: Any) -> None:
    over_http = web.get_model_config("batched")
    assert over_http == {
        "name": "batched",
        "platform": "onnxruntime_onnx",
        "backend": "onnx",
        "version_policy": {"specific": {"versions": [1]}},
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [8]}],
        "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": [3]}],
        "instance_group": [{"name": "batched_0", "kind": "KIND_CPU", "count": 2}],
        "dynamic_batching": {"preferred_batch_size": [8]},
    }
    config = client.get_model_config("batched").config
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("batched", 8, [8])
    assert config.instance_group[0].Kind.Name(config.instance_group[0].kind) == "KIND_CPU"
    assert web.get_model_config("text")["input"] == [{"name": "x", "data_type": "TYPE_STRING", "dims": [2]}]
    for ask in (client.get_model_config, web.get_model_config, web.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="no model 'missing'"):
            ask("missing")


def _statistics(client: Any, model: str) -> Any:
    (found,) = client.get_inference_statistics(model).model_stats
    return found


def test_statistics_count_requests_rows_and_runs(client: Any, web: Any) -> None:
    before = _statistics(client, "batched")
    for rows in (1, 3, 3):
        client.infer("batched", [put("x", "FP32", X[:rows])])
    with pytest.raises(InferenceServerException):
        client.infer("batched", [put("x", "FP32", X[:, :2])])
    after = _statistics(client, "batched")
    was, now = before.inference_stats, after.inference_stats
    assert (now.success.count - was.success.count, now.fail.count - was.fail.count) == (3, 1)
    assert (after.inference_count - before.inference_count, after.execution_count - before.execution_count) == (7, 3)
    parts = (now.queue, now.compute_input, now.compute_infer, now.compute_output)
    assert [part.count for part in parts] == [now.success.count] * 4
    assert 0 < now.compute_infer.ns < sum(part.ns for part in parts) <= now.success.ns
    assert {one.batch_size: one.compute_infer.count for one in after.batch_stats} == {1: 1, 3: 2}
    for part in ("compute_input", "compute_infer", "compute_output"):  # each batch was of one request
        by_size, whole = [getattr(one, part) for one in after.batch_stats], getattr(now, part)
        assert (sum(one.count for one in by_size), whole.count) == (3, 3)
        assert 0 < sum(one.ns for one in by_size) == pytest.approx(whole.ns, abs=4), part
    assert after.last_inference > 1_700_000_000_000
    every = web.get_inference_statistics()["model_stats"]
    assert [one["name"] for one in every] == ["batched", "half", "linear", "text"]
    assert every[0]["inference_stats"]["success"]["count"] == now.success.count


def test_the_repository_is_controlled_over_http(web: Any) -> None:
    assert {one["name"]: one["state"] for one in web.get_model_repository_index()} == dict.fromkeys(
        ("batched", "half", "linear", "text"), "READY"
    )
    web.unload_model("half")
    assert not web.is_model_ready("half")
    web.load_model("half")
    assert web.is_model_ready("half")
    with pytest.raises(InferenceServerException, match="no model 'missing'"):
        web.load_model("missing")


def test_a_load_may_ask_for_other_batches_and_instances_until_the_next_one(client: Any, web: Any) -> None:
    def served() -> tuple[int, int]:
        config = client.get_model_config("half").config
        return config.max_batch_size, config.instance_group[0].count

    configured = served()
    client.load_model("half", config='{"name": "half", "max_batch_size": "16", "instance_group": [{"count": 3}]}')
    assert served() == (16, 3)
    web.load_model("half", config='{"max_batch_size": 4}')
    assert served() == (4, configured[1])
    with pytest.raises(InferenceServerException, match="failed to load 'half': its `config` has the key 'input'"):
        web.load_model("half", config='{"input": []}')
    assert served() == (4, configured[1])
    web.load_model("half")
    assert served() == configured


def test_classes_come_in_the_place_of_scores(client: Any, web: Any) -> None:
    weights, bias = linear_weights(seed=1)
    scores = X @ weights + bias
    order = np.argsort(-scores, axis=1)[:, :2]
    over_http = triton_http.InferInput("x", list(X.shape), "FP32")
    over_http.set_data_from_numpy(X)
    for answer in (
        client.infer("linear", [put("x", "FP32", X)], outputs=[triton.InferRequestedOutput("scores", class_count=2)]),
        web.infer("linear", [over_http], outputs=[triton_http.InferRequestedOutput("scores", class_count=2)]),
    ):
        found = [[one.decode().split(":") for one in row] for row in answer.as_numpy("scores").tolist()]
        assert [[int(index) for _, index in row] for row in found] == order.tolist()
        expected = np.take_along_axis(scores, order, axis=1)
        np.testing.assert_allclose([[float(score) for score, _ in row] for row in found], expected, rtol=1e-3)


def test_settings_are_told_and_no_caller_changes_them(client: Any, web: Any) -> None:
    assert web.get_trace_settings() == {"trace_level": ["OFF"]}
    assert client.get_trace_settings("linear", as_json=True) == {"settings": {"trace_level": {"value": ["OFF"]}}}
    assert web.get_log_settings()["log_info"] is True
    assert client.get_log_settings().settings["log_verbose_level"].uint32_param == 0
    changes: tuple[Callable[[], object], ...] = (
        lambda: client.update_trace_settings(settings={"trace_level": "TIMESTAMPS"}),
        lambda: web.update_trace_settings("linear", {"trace_level": "TIMESTAMPS"}),
        lambda: client.update_log_settings({"log_info": False}),
        lambda: web.update_log_settings({"log_info": False}),
    )
    for change in changes:
        with pytest.raises(InferenceServerException, match="callers may not change the setting"):
            change()


def test_what_is_not_offered_is_refused_with_what_is(client: Any, web: Any) -> None:
    given = put("x", "FP32", X)
    refused: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: client.register_system_shared_memory("a", "/a", 64), "unix socket"),
        (lambda: client.get_cuda_shared_memory_status(), "unix socket"),
        (lambda: client.infer("linear", [given], sequence_id=7, sequence_start=True), "state as inputs and outputs"),
    )
    for asked, text in refused:
        with pytest.raises(InferenceServerException, match=text) as caught:
            asked()
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    over_http: tuple[Callable[[], object], ...] = (
        lambda: web.register_system_shared_memory("a", "/a", 64),
        lambda: web.unregister_cuda_shared_memory(),
        lambda: web.get_system_shared_memory_status(),
    )
    for asked in over_http:
        with pytest.raises(InferenceServerException, match="unix socket"):
            asked()


def test_the_server_announces_what_it_has(client: Any, web: Any) -> None:
    told = {"model_repository", "model_configuration", "statistics", "schedule_policy", "parameters"}
    assert told <= set(client.get_server_metadata().extensions)
    assert told | {"binary_tensor_data"} <= set(web.get_server_metadata()["extensions"])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_and_answers_may_be_compressed(client: Any, web: Any, algorithm: str) -> None:
    x = np.tile(X, (200, 1))
    weights, bias = linear_weights(seed=1)
    over_grpc = client.infer("linear", [put("x", "FP32", x)], compression_algorithm=algorithm)
    given = triton_http.InferInput("x", list(x.shape), "FP32")
    for binary in (True, False):
        given.set_data_from_numpy(x, binary_data=binary)
        outputs = [triton_http.InferRequestedOutput("scores", binary_data=binary)]
        over_http = web.infer(
            "linear",
            [given],
            outputs=outputs,
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        for answer in (over_grpc, over_http):
            np.testing.assert_allclose(answer.as_numpy("scores"), x @ weights + bias, rtol=1e-4, atol=1e-4)
