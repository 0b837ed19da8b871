"""From agent.yaml to an agent: what is loaded, what is refused, and that nothing stays open behind a refusal."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.models_for_tests import identity, linear, save, tensor
from upwell.edge.models.model_config import ModelSection
from upwell.edge.runtimes import runtime_options
from upwell.edge.server import agent_assembly
from upwell.edge.server.agent_assembly import WARM_UP_RUNS, embedded_agent
from upwell.shared.errors import ConfigError
from upwell.shared.routing.reasons import Reason


def written(folder: Path, **sections: Any) -> Path:
    """An agent.yaml in `folder`; JSON is YAML."""
    path = folder / "agent.yaml"
    path.write_text(json.dumps(sections))
    return path


def bundle(folder: Path) -> Path:
    """A bundle with the smallest model there is."""
    target = folder / "bundle"
    target.mkdir()
    identity(folder).rename(target / "model.onnx")
    return target


def test_a_bare_file_is_served_by_its_own_tensors(tmp_path: Path) -> None:
    linear(tmp_path)
    name = next(tmp_path.glob("*.onnx")).name
    with embedded_agent(written(tmp_path, models={"m": {"edge": {"file": name}}})) as agent:
        answer = agent.infer("m", {"x": np.zeros((2, 8), np.float32)})
        assert (answer.reason, answer.outputs["scores"].shape) == (Reason.NO_CLOUD, (2, 3))
        assert answer.edge_digest.startswith("sha256:")


def test_the_router_knows_how_long_a_run_takes_before_the_first_request(tmp_path: Path) -> None:
    path = written(tmp_path, models={"m": {"edge": {"bundle": str(bundle(tmp_path))}}})
    with embedded_agent(path) as agent:
        times = agent.router.state.edge["m"].windows[1]
        assert len(times.samples_s) == WARM_UP_RUNS
        assert 0 < times.p50_s < 1


def test_metrics_and_health_are_served_in_a_program_too_until_it_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}}}
    path = written(tmp_path, agent={"name": "dock-7", "metrics": "127.0.0.1:0"}, models=models)
    with caplog.at_level(logging.INFO, "upwell"), embedded_agent(path) as agent:
        (page,) = re.findall(r"metrics on (http://\S+)/metrics", caplog.text)
        agent.infer("m", {"x": np.zeros((1, 2), np.float32)})
        text = urllib.request.urlopen(f"{page}/metrics", timeout=5).read().decode()  # noqa: S310  loopback
        assert "upwell_requests_total{" in text
        assert 'upwell_build_info{agent="dock-7",version=' in text
        assert json.load(urllib.request.urlopen(f"{page}/health", timeout=5))["status"] == "ok"  # noqa: S310
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(page.rpartition(":")[2])), timeout=5)


def test_an_agent_in_a_program_whose_metrics_have_no_port_is_not_left_open(tmp_path: Path) -> None:
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}}}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        path = written(tmp_path, agent={"metrics": at, "state_dir": "state"}, models=models)
        with pytest.raises(ConfigError, match="cannot listen"):
            embedded_agent(path)
    with embedded_agent(path):
        pass


def test_what_a_program_s_agent_does_not_do_is_said_by_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}}}
    section = {"name": "a", "listen": ["127.0.0.1:0"], "max_requests": 3}
    with embedded_agent(written(tmp_path, agent=section, models=models)):
        (line,) = [message for message in caplog.messages if "ignored" in message]
        assert line.endswith(": agent.listen, agent.max_requests")
    caplog.clear()
    with embedded_agent(written(tmp_path, agent={"name": "a"}, models=models)):
        assert "ignored" not in caplog.text


def test_the_policy_beside_it_holds(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{name: stay, match: {}, route: edge}]")
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}}}
    with embedded_agent(written(tmp_path, policy="policy.yaml", models=models)) as agent:
        assert agent.infer("m", {"x": np.zeros((1, 2), np.float32)}).reason is Reason.RULE


def test_everything_that_is_wrong_with_any_model_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08nonsense")
    (tmp_path / "empty").mkdir()
    models = {
        "absent": {"edge": {"file": "absent.onnx"}},
        "broken": {"edge": {"file": "broken.onnx"}},
        "empty": {"edge": {"bundle": "empty"}},
        "nowhere": {"edge": {"bundle": "nowhere"}},
        "odd": {"edge": {"file": "agent.yaml"}},
    }
    with pytest.raises(ConfigError) as error:
        embedded_agent(written(tmp_path, models=models))
    text = str(error.value)
    for part in (
        "absent.onnx",
        "broken.onnx",
        "empty: bundle: no model.onnx or model.tflite in it",
        "nowhere: no such folder",
        "agent.yaml: expected a .onnx or .tflite file",
    ):
        assert part in text
    assert "Traceback" not in text


def test_a_model_that_cannot_run_is_refused_by_name(tmp_path: Path) -> None:
    from onnx import helper

    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = {"shape": np.array([7], np.int64)}
    save(tmp_path / "m.onnx", [node], [tensor("x", ["rows", 2])], [tensor("y", [7])], shape)
    with pytest.raises(ConfigError, match=r"^models\.m\.edge: the model fails on a run with zeros"):
        embedded_agent(written(tmp_path, models={"m": {"edge": {"file": "m.onnx"}}}))


def pooled(path: Path, shape: list[Any], kernel: list[int], reshape: list[int]) -> Path:
    """A convolution over the dimensions after the channels, whose result is given the shape `reshape`."""
    from onnx import helper

    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["found"]),
        helper.make_node("Reshape", ["found", "shape"], ["y"]),
    ]
    weights = np.ones((2, shape[1], *kernel), np.float32)
    constants = {"weights": weights, "shape": np.array(reshape, np.int64)}
    return save(path, nodes, [tensor("x", shape)], [tensor("y", [None] * len(reshape))], constants)


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [(["rows", 1, "samples"], [400]), (["rows", 3, "height", "width"], [5, 5]), (["rows", 3, "h", 64], [40, 5])],
)
def test_a_model_that_refuses_dimensions_of_1_is_tried_with_larger_ones(
    tmp_path: Path, shape: list[Any], kernel: list[int]
) -> None:
    pooled(tmp_path / "m.onnx", shape, kernel, [0, -1])
    with embedded_agent(written(tmp_path, models={"m": {"edge": {"file": "m.onnx"}}})) as agent:
        assert len(agent.router.state.edge["m"].windows[1].samples_s) == WARM_UP_RUNS
        request = np.ones([1 if i == 0 else 500 if isinstance(d, str) else d for i, d in enumerate(shape)], np.float32)
        assert agent.infer("m", {"x": request}).outputs["y"].shape[0] == 1


def test_a_model_that_takes_one_size_alone_is_tried_with_what_its_description_makes(tmp_path: Path) -> None:
    pooled(tmp_path / "model.onnx", ["rows", 3, "height", "width"], [5, 5], [0, 2 * 8 * 8])
    steps = {"pre": [{"decode": "image"}, {"resize": {"to": [12, 12]}}, {"normalize": {}}, {"layout": "NCHW"}]}
    signature = {"inputs": {"image": {"kind": "image"}}, "outputs": {"y": {"kind": "tensor"}}}
    (tmp_path / "model.yaml").write_text(json.dumps({"version": 1, "signature": signature, **steps}))
    with embedded_agent(written(tmp_path, models={"m": {"edge": {"bundle": "."}}})) as agent:
        assert agent.infer("m", {"image": np.ones((2, 9, 7, 3), np.uint8)}).outputs["y"].shape == (2, 128)


@pytest.mark.parametrize(("what", "content"), [("policy", "rules: 5"), ("models", "{")])
def test_after_a_refusal_nothing_stays_locked_or_running(tmp_path: Path, what: str, content: str) -> None:
    good = bundle(tmp_path)
    (tmp_path / "policy.yaml").write_text("version: 1")
    sections: dict[str, Any] = {
        "agent": {"state_dir": "state"},
        "cloud": {"endpoint": "127.0.0.1:1"},
        "policy": "policy.yaml",
        "models": {"m": {"edge": {"bundle": str(good)}}},
    }
    embedded_agent(written(tmp_path, **sections)).close()
    before = threading.active_count()
    broken = {"policy": tmp_path / "policy.yaml", "models": good / "model.yaml"}[what]
    broken.write_text(content)
    with pytest.raises(ConfigError) as error:
        embedded_agent(written(tmp_path, **sections))
    assert broken.name in str(error.value)
    broken.write_text("version: 1")
    if what == "models":
        broken.unlink()
    embedded_agent(written(tmp_path, **sections)).close()
    assert threading.active_count() <= before


def test_a_state_folder_belongs_to_one_agent(tmp_path: Path) -> None:
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}}}
    path = written(tmp_path, agent={"state_dir": "state"}, models=models)
    with embedded_agent(path):
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
        with pytest.raises(ConfigError, match=r"agent\.state_dir: another agent uses it"):
            embedded_agent(path)
    embedded_agent(path).close()


@pytest.mark.parametrize("endpoint", ["192.0.2.1:8001", "infer.example.com:8001"])
def test_an_endpoint_off_this_machine_needs_tls(tmp_path: Path, endpoint: str) -> None:
    models = {"m": {"edge": {"bundle": str(bundle(tmp_path))}, "cloud": {"model": "m"}}}
    with pytest.raises(ConfigError, match="would cross the network in clear"):
        embedded_agent(written(tmp_path, cloud={"endpoint": endpoint}, models=models))
    embedded_agent(written(tmp_path, cloud={"endpoint": endpoint, "insecure": True}, models=models)).close()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([None], [(4, 1)]),  # alone it has every core, up to the most that a run uses by itself
        ([None, None], [(4, 1), (4, 1)]),
        ([None, None, None, None], [(2, 1)] * 4),
        ([None, 3], [(4, 1), (3, 2)]),
        ([None] * 9, [(1, 1)] * 9),
    ],
)
def test_the_cores_are_divided_among_the_models(
    written: list[int | None], expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_assembly, "usable_cores", lambda: 8)
    monkeypatch.setattr(runtime_options, "usable_cores", lambda: 8)
    sections = {
        f"m{index}": ModelSection.model_validate({"edge": {"file": "m.onnx", "threads": threads}})
        for index, threads in enumerate(written)
    }
    sections["cloud only"] = ModelSection.model_validate({"cloud": {"model": "m"}})
    shared = agent_assembly._shared_out(sections)
    edges = [section.edge for section in shared.values() if section.edge is not None]
    assert [(edge.thread_count, edge.instance_count) for edge in edges] == expected
    assert list(shared) == list(sections)
