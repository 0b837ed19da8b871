"""A cloud that is full says when to come back: until then the agent answers by itself, at once, and sends nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.faults.oracles import CLOUD_MODEL, cloud_scores, edge_scores
from tests.faults.scene import ONE, write_agent
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import CloudFailed, Refused
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.oip.http.server.server import start_http_server

UP = {"defaults": {"deadline": "2s"}, "rules": [{"name": "up", "match": {}, "route": "cloud"}]}
AFTER_S = 0.4
RECOVERY_S = 5.0


class FullCloud(FakeDataplane):
    """The large digits model; refuses while `failure` is set, and notes when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s: list[float] = []

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        self.asked_s.append(time.monotonic())
        assert request.model == CLOUD_MODEL
        if self.failure is not None:
            raise self.failure
        return InferResponse(request.model, {"scores": cloud_scores(request.inputs["image"])}, "1", request.id)


@pytest.fixture
def full() -> FullCloud:
    return FullCloud()


@pytest.fixture(params=["gRPC", "HTTP"])
def endpoint(request: pytest.FixtureRequest, full: FullCloud) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "gRPC":
            server = start_server(full, ["127.0.0.1:0"], max_workers=4)
            stack.callback(server.stop, 0.0)
            yield server.addresses[0]
        else:
            web = start_http_server(full, ["127.0.0.1:0"], max_workers=4)
            stack.callback(web.stop, 0.0)
            yield f"http://{web.addresses[0]}"


def ask_until_up(agent: AgentCore) -> list[tuple[float, str, str]]:
    """Ask without a pause until the cloud answers: when each answer came, from where and why."""
    seen = []
    until_s = time.monotonic() + RECOVERY_S
    while time.monotonic() < until_s:
        answer = agent.infer("digits", {"image": ONE})
        np.testing.assert_allclose(
            answer.outputs["scores"], (edge_scores if answer.route == "edge" else cloud_scores)(ONE), atol=1e-5
        )
        seen.append((time.monotonic(), str(answer.route), str(answer.reason)))
        if answer.route == "cloud":
            return seen
    raise AssertionError("the cloud was not asked again")


def test_it_is_asked_again_when_it_said_and_not_before(folder: Path, full: FullCloud, endpoint: str) -> None:
    with embedded_agent(write_agent(folder, UP, endpoint)) as agent:
        assert agent.infer("digits", {"image": ONE}).route == "cloud"
        full.failure = Refused("the model's queue is full", retry_after_s=AFTER_S)
        full.asked_s.clear()
        first = agent.infer("digits", {"image": ONE})
        full.failure = None
        seen = ask_until_up(agent)
    assert (first.route, first.reason, first.degraded) == ("edge", "cloud_exhausted", True)
    assert {(route, reason) for _, route, reason in seen[:-1]} == {("edge", "cloud_exhausted")}
    assert len(full.asked_s) == 2
    assert full.asked_s[1] - full.asked_s[0] >= AFTER_S


def test_what_the_policy_says_of_a_full_cloud_holds_meanwhile_too(folder: Path, full: FullCloud, endpoint: str) -> None:
    policy = {**UP, "defaults": {"deadline": "2s", "on_cloud_failure": {"default": "edge", "exhausted": "error"}}}
    full.failure = Refused("the model's queue is full", retry_after_s=30.0)
    with embedded_agent(write_agent(folder, policy, endpoint)) as agent:
        for told in ("queue is full", "requires the cloud, which was not asked: cloud_exhausted"):
            with pytest.raises(CloudFailed, match=told):
                agent.infer("digits", {"image": ONE})
    assert len(full.asked_s) == 1


def test_who_gets_no_answer_meanwhile_is_told_when_to_come_back(folder: Path, full: FullCloud, endpoint: str) -> None:
    full.failure = Refused("the model's queue is full", retry_after_s=20.0)
    models = {"digits": {"cloud": {"model": CLOUD_MODEL}}}
    with embedded_agent(write_agent(folder, UP, endpoint, models)) as agent:
        hints = []
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                agent.infer("digits", {"image": ONE})
            hints.append(refused.value.retry_after_s)
    assert hints[0] == 20.0
    assert hints[1] is not None
    assert 10.0 < hints[1] < 20.0
    assert len(full.asked_s) == 1
