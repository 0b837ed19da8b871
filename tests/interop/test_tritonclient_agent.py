"""tritonclient, as its users use it, against a real agent whose cloud answers."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.faults.clouds import DIGEST, ScriptedCloud, good, status
from tests.faults.oracles import cloud_scores, edge_scores, margins, pictures
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import heldout

POLICY = {
    "defaults": {"deadline": "5s", "hard": {"measure": "margin", "below": 0.9}},
    "rules": [
        {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"},
        {"name": "up", "match": {"tags": {"where": "up"}}, "route": "cloud"},
        {"name": "here", "match": {"tags": {"where": "here"}}, "route": "edge"},
    ],
}
MARGINS = margins(edge_scores(pictures(range(300))))
HARD, EASY = int(MARGINS.argmin()), int(MARGINS.argmax())


@pytest.fixture(scope="module")
def _cloud() -> Iterator[ScriptedCloud]:
    with ScriptedCloud() as running:
        yield running


@pytest.fixture
def cloud(_cloud: ScriptedCloud) -> ScriptedCloud:
    _cloud.behaviour = good
    return _cloud


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, _cloud: ScriptedCloud) -> Iterator[Any]:
    section = {"name": "dock-7", "listen": ["127.0.0.1:0"]}
    path = write_agent(tmp_path_factory.mktemp("agent"), POLICY, _cloud.address, agent=section)
    with Program(["agent", "-c", str(path)]) as running, triton.InferenceServerClient(running.address()) as client:
        yield client


def put(name: str, datatype: str, array: Array) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def ask(client: Any, images: Array, datatype: str = "BYTES", **tags: str) -> Any:
    parameters = {f"upwell.tag.{name}": value for name, value in tags.items()}
    return client.infer("digits", [put("image", datatype, images)], parameters=parameters, client_timeout=10)


def facts(result: Any) -> dict[str, tuple[str, Any]]:
    """Each response parameter's type on the wire and value."""
    found = {}
    for name, parameter in result.get_response().parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        found[name] = (kind, getattr(parameter, kind))
    return found


def test_a_stream_of_requests_each_on_its_own_route(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    routes = ["edge", "cloud", "edge"]
    for number, route in enumerate(routes):
        tags = {"upwell.tag.where": {"edge": "here", "cloud": "up"}[route]}
        given = [put("image", "BYTES", pictures([EASY]))]
        client.async_stream_infer("digits", given, request_id=str(number), parameters=tags)
    for number, route in enumerate(routes):
        result, error = answers.get(timeout=10)
        assert error is None
        assert result.get_response().id == str(number)
        assert facts(result)["upwell.route"] == ("string_param", route)
    client.stop_stream()


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "2")
    assert not client.is_model_ready("missing")


def test_metadata(client: Any) -> None:
    server = client.get_server_metadata(as_json=True)
    assert (server["name"], server["version"]) == ("dock-7", version("upwell"))
    assert client.get_model_metadata("digits", as_json=True) == {
        "name": "digits",
        "versions": ["1"],
        "platform": "upwell_onnx",
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": ["-1"]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": ["-1", "10"]}],
    }


def test_an_easy_picture_is_the_device_s(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("scores")]
    images = pictures([EASY])
    result = client.infer("digits", [put("image", "BYTES", images)], outputs=wanted, request_id="triton")
    np.testing.assert_allclose(result.as_numpy("scores"), edge_scores(images), atol=1e-5)
    assert result.get_response().id == "triton"
    found = facts(result)
    assert found.pop("upwell.edge_ms")[0] == "double_param"
    kind, digest = found.pop("upwell.edge_digest")
    assert 0.9 < float(found.pop("upwell.hardness")[1]) <= 1.0
    assert (kind, digest[:7]) == ("string_param", "sha256:")
    assert found == {
        "upwell.route": ("string_param", "edge"),
        "upwell.plan": ("string_param", "cascade"),
        "upwell.reason": ("string_param", "easy"),
        "upwell.degraded": ("bool_param", False),
        "upwell.accelerator": ("string_param", "cpu"),
        "upwell.edge_state": ("string_param", "ready"),
        "upwell.agent": ("string_param", "dock-7"),
        "upwell.version": ("string_param", version("upwell")),
    }


def test_a_hard_picture_is_the_cloud_s(client: Any, cloud: ScriptedCloud) -> None:
    images = pictures([HARD])
    result = ask(client, images)
    np.testing.assert_allclose(result.as_numpy("scores"), cloud_scores(images), atol=1e-5)
    found = facts(result)
    times = {name: found.pop(f"upwell.{name}_ms") for name in ("edge", "uplink", "cloud_queue", "cloud_compute")}
    assert {kind for kind, _ in times.values()} == {"double_param"}
    assert times["uplink"][1] > 0
    assert times["cloud_compute"][1] == pytest.approx(0.1)
    assert found.pop("upwell.hardness")[0] == "string_param"
    assert found == {
        "upwell.route": ("string_param", "cloud"),
        "upwell.plan": ("string_param", "cascade"),
        "upwell.reason": ("string_param", "hard"),
        "upwell.degraded": ("bool_param", False),
        "upwell.cloud_digest": ("string_param", DIGEST),
        "upwell.agent": ("string_param", "dock-7"),
        "upwell.version": ("string_param", version("upwell")),
    }


def test_rows_of_both_kinds(client: Any, cloud: ScriptedCloud) -> None:
    found = facts(ask(client, pictures([EASY, HARD, EASY])))
    assert found["upwell.route"] == ("string_param", "mixed")
    assert found["upwell.routes"] == ("string_param", "edge,cloud,edge")


def test_pixels_are_taken_as_well(client: Any, cloud: ScriptedCloud) -> None:
    pixels = heldout().images[[EASY, HARD], :, :, None]
    result = ask(client, pixels, "UINT8", where="here")
    np.testing.assert_allclose(result.as_numpy("scores"), edge_scores(pictures([EASY, HARD])), atol=1e-5)


def test_tags_reach_the_rules(client: Any, cloud: ScriptedCloud) -> None:
    asked = len(cloud.requests)
    kept = facts(ask(client, pictures([HARD]), privacy="device"))
    assert (kept["upwell.route"][1], kept["upwell.reason"][1]) == ("edge", "egress_denied")
    assert len(cloud.requests) == asked
    assert facts(ask(client, pictures([EASY]), where="up"))["upwell.route"][1] == "cloud"


def test_a_cloud_that_fails_is_told_as_degraded(client: Any, cloud: ScriptedCloud) -> None:
    cloud.behaviour = status(grpc.StatusCode.NOT_FOUND)
    images = pictures([HARD])
    result = ask(client, images)
    np.testing.assert_allclose(result.as_numpy("scores"), edge_scores(images), atol=1e-5)
    found = facts(result)
    assert found["upwell.degraded"] == ("bool_param", True)
    assert found["upwell.reason"] == ("string_param", "cloud_model_missing")


def test_infer_without_waiting(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    given = [put("image", "BYTES", pictures([EASY]))]
    client.async_infer("digits", given, callback=lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=10)
    assert error is None
    assert result.as_numpy("scores").shape == (1, 10)


@pytest.mark.parametrize(
    ("model", "given", "code"),
    [
        ("missing", put("image", "BYTES", pictures([0])), "StatusCode.NOT_FOUND"),
        ("digits", put("picture", "BYTES", pictures([0])), "StatusCode.INVALID_ARGUMENT"),
        ("digits", put("image", "FP32", np.zeros((1, 8, 8, 1), np.float32)), "StatusCode.INVALID_ARGUMENT"),
        ("digits", put("image", "BYTES", pictures([0])[:, None]), "StatusCode.INVALID_ARGUMENT"),
        ("digits", put("image", "UINT8", np.zeros((8, 8), np.uint8)), "StatusCode.INVALID_ARGUMENT"),
        ("digits", put("image", "BYTES", np.array([b"no picture"], object)), "StatusCode.INVALID_ARGUMENT"),
    ],
)
def test_errors_have_the_protocol_s_statuses(client: Any, model: str, given: Any, code: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [given])
    assert caught.value.status() == code


def test_configuration_and_statistics_are_those_of_the_agent(client: Any, cloud: ScriptedCloud) -> None:
    config = client.get_model_config("digits").config
    assert (config.name, config.backend, config.max_batch_size > 0) == ("digits", "upwell", True)
    (before,) = client.get_inference_statistics("digits").model_stats
    client.infer("digits", [put("image", "BYTES", pictures([EASY, HARD]))])
    (after,) = client.get_inference_statistics("digits").model_stats
    assert after.inference_count - before.inference_count == 2
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("digits")
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_an_agent_s_models_are_those_of_its_configuration(client: Any) -> None:
    for ask in (
        client.get_model_repository_index,
        lambda: client.load_model("digits"),
        lambda: client.unload_model("digits"),
    ):
        with pytest.raises(InferenceServerException, match="ModelReady and ModelStatistics tell") as refused:
            ask()
        assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    assert client.is_model_ready("digits")
