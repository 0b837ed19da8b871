"""What the agent says of its models: in Python, over HTTP, to Prometheus, and in each answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from tests.unit.edge.agents import MODEL, SURE, edge_model, rows_of, scene
from upwell.edge.models.edge_model import EdgeModel, LoadReport, RuntimeAttempt, ServedModel
from upwell.edge.observe.agent_health import document, health_of, summary
from upwell.edge.runtimes.base import Placement
from upwell.edge.server.agent_assembly import serve_metrics

TAKEN = Placement("npu", nodes=10, nodes_on_accelerator=8, left_on_cpu=("a (Softmax)", "b (Resize)"))
TESTED = LoadReport(checked_by="golden vectors")
LEFT = LoadReport("fallback", "golden vectors", (RuntimeAttempt("onnx on npu", "no such device"),), 0.5, 0.1, 1 << 20)


def on(placement: Placement, report: LoadReport = TESTED) -> EdgeModel:
    edge = edge_model(placement=placement)
    edge.report = report
    return edge


def lost(edge: EdgeModel) -> EdgeModel:
    """What a runtime leaves behind that dropped its accelerator while running."""
    edge.runtime.placement = replace(TAKEN, nodes_on_accelerator=0, left_on_cpu=(), reason="npu failed while running")
    return edge


@pytest.mark.parametrize(
    ("edge", "state", "accelerator", "line"),
    [
        (on(Placement()), "ready", "cpu", "model: fake 1 on the CPU, tested by golden vectors"),
        (on(TAKEN), "ready", "npu", "model: fake 1 on npu (8 of 10 nodes), tested by golden vectors"),
        (on(Placement(), LEFT), "fallback", "cpu",
         "model: fake 1 on the CPU, tested by golden vectors; fallback: onnx on npu: no such device"),
        (on(Placement(), LoadReport("compiling")), "compiling", "cpu",
         "model: fake 1 on the CPU, not tested; compiling"),
        (lost(on(TAKEN)), "fallback", "cpu",
         "model: fake 1 on the CPU, tested by golden vectors; fallback: npu failed while running"),
    ],
    ids=["cpu", "accelerator", "left at load", "compiling", "lost while running"],
)  # fmt: skip
def test_health_answers_and_metrics_agree(edge: EdgeModel, state: str, accelerator: str, line: str) -> None:
    (health,) = health_of([ServedModel(MODEL, edge)], lambda _: "")
    assert summary(health) == line
    described = document([health], {}, [], {}, {})
    assert described["status"] == ("ok" if state == "ready" else "degraded")
    assert described["models"][MODEL]["state"] == state
    assert described["models"][MODEL]["accelerator"] == accelerator
    with scene(edge=edge) as stage:
        answer = stage.infer(rows_of(SURE))
        assert (answer.accelerator, answer.edge_state) == (accelerator, state)
        facts = answer.parameters()
        assert (facts["upwell.accelerator"], facts["upwell.edge_state"]) == (accelerator, state)
        text = generate_latest(stage.agent.metrics.registry).decode()
    assert f'upwell_model_state{{model="model",state="{state}"}} 1.0' in text
    assert text.count(" 1.0\n", text.index("# TYPE upwell_model_state"), text.index("# HELP upwell_model_nodes")) == 1
    assert (f'upwell_model_nodes{{accelerator="{accelerator}",model="model"}}') in text


ON_NPU = """
defaults: {hard: {cloud_share: 20%}}
calibrations: [{model: model, measure: margin, below: 0.1, cloud_share: 20%, edge_runtime: fake+npu}]
"""


def test_a_model_that_lost_its_accelerator_has_its_calibration_and_its_run_times_no_more() -> None:
    """Those of the CPU are others."""
    edge = on(TAKEN)
    with scene(ON_NPU, edge=edge) as stage:
        stage.infer(rows_of(SURE))
        stage.agent._follow_runtimes()
        assert (stage.agent.router.misfit(MODEL), list(stage.agent.router.state.edge)) == ("", [MODEL])
        lost(edge)
        stage.agent._follow_runtimes()
        assert "edge_runtime fake+npu, not fake" in stage.agent.router.misfit(MODEL)
        assert not stage.agent.router.state.edge
        stage.infer(rows_of(SURE))
        stage.agent._follow_runtimes()
        assert list(stage.agent.router.state.edge) == [MODEL]


def test_a_model_without_an_edge_side_has_no_such_health() -> None:
    assert health_of([ServedModel(MODEL, None, "cloud")], lambda _: "") == []


def test_health_and_metrics_come_from_one_port() -> None:
    with scene(edge=on(Placement(), LEFT)) as stage:
        metrics = serve_metrics(stage.agent, "127.0.0.1:0")
        with urllib.request.urlopen(metrics.replace("/metrics", "/health"), timeout=5) as reply:  # noqa: S310  loopback
            assert reply.headers["Content-Type"].startswith("application/json")
            found = json.load(reply)
        with urllib.request.urlopen(f"{metrics}/", timeout=5) as reply:  # noqa: S310  loopback
            text = reply.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:  # a misspelt probe finds nothing well
            urllib.request.urlopen(metrics.replace("/metrics", "/healthz"), timeout=5)  # noqa: S310  loopback
        with refused.value as reply:
            assert reply.read() == b"expected /metrics, /health\n"
    assert found["status"] == "degraded"
    model = found["models"][MODEL]
    assert model["reason"] == "onnx on npu: no such device"
    assert model["report"]["memory_bytes"] == 1 << 20
    assert model["report"]["attempts"] == [{"what": "onnx on npu", "reason": "no such device"}]
    assert 'upwell_model_memory_bytes{model="model"} 1.048576e+06' in text
    assert 'upwell_model_load_seconds{model="model"} 0.5' in text
