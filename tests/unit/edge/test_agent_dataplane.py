"""The agent behind the `Dataplane` interface."""

from __future__ import annotations

import math
import socket
import time

import numpy as np
import pytest

from tests.unit.edge.agents import MAX_MESSAGE_BYTES, MODEL, SURE, UNSURE, edge_model, rows_of, scene, sides
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import CloudFailed, DeadlineExceeded, InvalidRequest, ModelNotFound, Unavailable
from upwell.shared.oip.class_labels import LABELS, take_labels
from upwell.shared.oip.dataplane import Call, InferRequest, Parameter
from upwell.shared.oip.introspection import MAX_ROWS
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.tensors import TensorSpec

DENY = "defaults: {deadline: 5s}\nrules: [{name: p, match: {tags: {privacy: device}}, egress: deny}]"


def request(**how: object) -> InferRequest:
    return InferRequest(MODEL, rows_of(SURE, UNSURE), **how)  # type: ignore[arg-type]  # passed through


def test_an_answer_carries_its_facts_as_parameters() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        response = AgentDataplane(at.agent).infer(request(id="one"), Call())
        assert (response.model, response.version, response.id) == (MODEL, "1", "one")
        assert response.parameters["upwell.route"] == "mixed"
        assert response.parameters["upwell.routes"] == "edge,cloud"
        assert response.parameters["upwell.reason"] == "hard"


def test_labels_are_told_to_those_who_ask() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        dataplane = AgentDataplane(at.agent)
        assert not [name for name in dataplane.infer(request(), Call()).parameters if "labels" in name]
        told = dict(dataplane.infer(request(parameters={LABELS: True}), Call()).parameters)
        assert told["upwell.labels.fp32"] == '["ant", "bee", "cat, small"]'
        assert take_labels(told, "fp32") == ("ant", "bee", "cat, small")
        assert "upwell.labels.fp32" not in told
        assert not any(LABELS in asked.parameters for asked in at.cloud.requests)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "[1]", "[" * 100_000, "3", True])
def test_labels_of_another_server_that_are_none_are_none(text: Parameter) -> None:
    assert take_labels({"upwell.labels.y": text}, "y") == ()


def test_an_id_is_made_where_the_caller_gave_none() -> None:
    with scene() as at:
        assert AgentDataplane(at.agent).infer(InferRequest(MODEL, rows_of(SURE)), Call()).id


TAGS: list[tuple[dict[str, Parameter], str]] = [
    ({"upwell.tag.privacy": "device"}, "egress_denied"),
    ({"upwell.tag.privacy": "none"}, "hard"),
    ({"privacy": "device"}, "hard"),
    ({"upwell.tag.Privacy": "device"}, "egress_denied"),
    ({}, "hard"),
]


@pytest.mark.parametrize(("parameters", "reason"), TAGS)
def test_tags_travel_as_parameters(parameters: dict[str, Parameter], reason: str) -> None:
    with scene(DENY) as at:
        response = AgentDataplane(at.agent).infer(request(parameters=parameters), Call())
        assert response.parameters["upwell.reason"] == reason
        assert bool(at.cloud.requests) is (reason == "hard")


def test_only_the_outputs_that_were_asked_for_come_back() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        response = AgentDataplane(at.agent).infer(request(outputs=("fp64",)), Call())
        assert list(response.outputs) == ["fp64"]
        np.testing.assert_array_equal(response.outputs["fp64"], [[-1.0], [2.0]])


def test_an_output_that_the_model_does_not_have_is_refused() -> None:
    with scene() as at:
        with pytest.raises(InvalidRequest, match="model 'model' has no output 'x'; available: fp32, fp64"):
            AgentDataplane(at.agent).infer(request(outputs=("fp32", "x")), Call())
        assert at.runtime.runs == 0


def test_an_output_that_the_cloud_does_not_give_is_refused_too() -> None:
    with scene(device=False) as at:
        plane = AgentDataplane(at.agent)
        assert list(plane.infer(request(outputs=("fp64",)), Call()).outputs) == ["fp64"]
        with pytest.raises(InvalidRequest, match="model 'model' has no output 'x'; available: fp32, fp64"):
            plane.infer(request(outputs=("fp32", "x")), Call())


@pytest.mark.parametrize("version", ["2", "0", "latest", " 1"])
def test_an_agent_serves_version_1_alone(version: str) -> None:
    with scene() as at:
        plane = AgentDataplane(at.agent)
        for ask in (lambda: plane.infer(request(version=version), Call()), lambda: plane.metadata(MODEL, version)):
            with pytest.raises(ModelNotFound, match=f"model 'model' has no version '{version}'"):
                ask()
        assert not plane.ready(MODEL, version)
        assert plane.ready(MODEL, "1")


def test_the_deadline_of_the_call_holds() -> None:
    with scene() as at:
        plane = AgentDataplane(at.agent)
        with pytest.raises(DeadlineExceeded):
            plane.infer(request(), Call(deadline_s=time.monotonic() - 0.1))
        assert plane.infer(request(), Call(deadline_s=math.inf))


def test_metadata_is_the_signature() -> None:
    with scene() as at:
        found = AgentDataplane(at.agent).metadata(MODEL)
        assert (found.name, found.versions, found.platform) == (MODEL, ("1",), "upwell_fake")
        specs = (TensorSpec("fp32", "FP32", (-1, 3)), TensorSpec("fp64", "FP64", (-1, 1)))
        assert (found.inputs, found.outputs) == (specs, specs)


@pytest.mark.parametrize(("rows", "most"), [(True, MAX_ROWS), (False, 0)])
def test_a_model_without_rows_tells_triton_s_clients_of_no_batches(rows: bool, most: int) -> None:
    with scene(edge=edge_model(rows=rows)) as at:
        assert AgentDataplane(at.agent).config(MODEL).max_rows == most


def test_metadata_of_a_model_in_the_cloud_is_what_the_cloud_says_under_the_name_here() -> None:
    with scene(device=False) as at:
        found = AgentDataplane(at.agent).metadata(MODEL)
        assert (found.name, found.platform) == (MODEL, "fake")
        assert found.inputs


def test_metadata_of_a_cloud_that_is_gone_is_an_error_that_says_so() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        uplink = UplinkSettings(f"127.0.0.1:{nobody.getsockname()[1]}", ClientSecurity(), MAX_MESSAGE_BYTES)
        agent = AgentCore([ServedModel(MODEL, None, "echo")], uplink, Policy())
        with agent, pytest.raises(CloudFailed, match=r"^cloud_unavailable: "):
            AgentDataplane(agent).metadata(MODEL)


def test_a_closed_agent_asks_the_cloud_nothing() -> None:
    with scene(device=False) as at:
        at.agent.close()
        with pytest.raises(Unavailable, match="closed"):
            AgentDataplane(at.agent).metadata(MODEL)


def test_it_is_ready_until_it_is_closed() -> None:
    with scene() as at:
        plane = AgentDataplane(at.agent)
        assert [plane.ready(), plane.ready(MODEL), plane.ready("x")] == [True, True, False]
        at.agent.close()
        assert [plane.ready(), plane.ready(MODEL)] == [False, False]


def test_it_says_who_serves_and_what_decides_equality() -> None:
    with scene() as at:
        found = AgentDataplane(at.agent).server_metadata()
        assert found.name == "agent"
        assert any(extension.startswith("upwell.pre:numpy=") for extension in found.extensions)
        assert any(extension.startswith("upwell.pre:pillow=") for extension in found.extensions)


def test_rows_come_back_in_place_whatever_is_asked_for() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        answer = at.infer(rows_of(UNSURE, SURE, UNSURE))
        assert sides(answer) == "cec"
