"""tritonclient, as its users use it, against the real cloud service."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import identity, linear, linear_weights
from upwell.shared.tensors import Array

X = np.arange(24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("repository")
    for name in ("linear", "text", "half"):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        _make(name, folder).rename(folder / "model.onnx")
    with serving("--models", root) as running, triton.InferenceServerClient(running.address) as client:
        yield client


def _make(name: str, folder: Path) -> Path:
    if name == "linear":
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
