"""What the agent makes of answers and tags that are not quite what they should be."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from upwell.edge.models.edge_model import EdgeModel, ModelSource, ServedModel
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

SPEC = (TensorSpec("fp32", "FP32", (-1, 2)),)
UP = Policy.model_validate({"rules": [{"name": "up", "match": {}, "route": "cloud"}]})


class Liar(FakeDataplane):
    """Echoes, with whatever is to be wrong in the answer."""

    changes: dict[str, object]

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        return dataclasses.replace(super().infer(request, call), **self.changes)  # type: ignore[arg-type]  # by name


@pytest.fixture
def liar() -> Liar:
    cloud = Liar()
    cloud.changes = {}
    return cloud


@pytest.fixture
def agent(liar: Liar) -> Iterator[AgentCore]:
    server = start_server(liar, ["127.0.0.1:0"], max_workers=4)
    runtime = FakeRuntime(dict, SPEC, SPEC)
    edge = EdgeModel(runtime, Processor(None, SPEC, SPEC, "fake"), ModelSource("sha256:00"))
    uplink = UplinkSettings(server.addresses[0], ClientSecurity(), DEFAULT_MAX_MESSAGE_BYTES)
    with AgentCore([ServedModel("m", edge, "echo")], uplink, UP) as made:
        yield made
    server.stop(0)


def row(*values: float) -> dict[str, Array]:
    return {"fp32": np.array([values], np.float32)}


def test_an_honest_answer_is_the_clouds(agent: AgentCore) -> None:
    answer = agent.infer("m", row(1, 2))
    assert (answer.route, answer.reason, answer.degraded) == (Route.CLOUD, Reason.RULE, False)


@pytest.mark.parametrize("changes", [{"id": "of another"}, {"outputs": {}}])
def test_an_answer_to_another_request_or_to_none_is_garbage(
    agent: AgentCore, liar: Liar, changes: dict[str, object]
) -> None:
    liar.changes = changes
    answer = agent.infer("m", row(1, 2))
    assert (answer.route, answer.reason, answer.degraded) == (Route.EDGE, Reason.CLOUD_GARBAGE, True)


def test_an_answer_without_an_id_is_taken(agent: AgentCore, liar: Liar) -> None:
    liar.changes = {"id": ""}
    assert agent.infer("m", row(1, 2)).route is Route.CLOUD


def test_what_is_no_number_going_up_and_coming_back_speaks_against_nobody(agent: AgentCore) -> None:
    for _ in range(5):
        assert agent.infer("m", row(np.nan, 2)).reason is Reason.CLOUD_GARBAGE
    assert agent.infer("m", row(1, 2)).route is Route.CLOUD


def test_a_gateway_that_answered_in_the_clouds_stead_says_so_through_the_device(agent: AgentCore, liar: Liar) -> None:
    liar.changes = {"parameters": {"upwell.degraded": True, "upwell.reason": "cloud_unavailable"}}
    answer = agent.infer("m", row(1, 2))
    assert (answer.route, answer.reason, answer.degraded) == (Route.CLOUD, Reason.CLOUD_UNAVAILABLE, True)


@pytest.mark.parametrize("value", [True, 3, 3.0])
def test_a_tag_that_is_no_text_is_refused_before_anything_leaves(agent: AgentCore, liar: Liar, value: float) -> None:
    request = InferRequest("m", row(1, 2), parameters={"upwell.tag.privacy": value})
    with pytest.raises(InvalidRequest, match="expected a string"):
        AgentDataplane(agent).infer(request, Call(cancelled=threading.Event()))
    assert liar.requests == []
