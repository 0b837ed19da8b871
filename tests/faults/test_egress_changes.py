"""`egress: deny` that comes while something is on its way: it holds for whatever leaves from then on."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.examples import grid
from tests.faults.clouds import Behaviour, ScriptedCloud, good, silent, status
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.oracles import CLOUD_MODEL, edge_scores, picture, pictures
from tests.faults.proxy import Proxy
from tests.faults.scene import HARD_ALWAYS, ONE, assert_from_cloud, scene, until, write_agent
from upwell.edge.models.edge_model import EdgeModel, ModelSource, ServedModel
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.edge.uplink.probe_timing import Prober
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import CloudFailed, NoAllowedRoute
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

UP = {"name": "up", "match": {}, "route": "cloud"}
MARK = b"only-for-the-device"
SECRET: Array = np.array([picture(3) + MARK], dtype=object)
PATIENT = {"deadline": "5s"}
DENY_ALL: Mapping[str, Mapping[str, Any]] = {
    "everything": {"match": {}},
    "the model": {"match": {"model": "digits"}},
    "all day": {"match": {"hours": "00:00-00:00"}},
    "every size": {"match": {"size": {"above": "1B"}}},
    "no tag": {"match": {"tags": {"site": ""}}},
    "an expression": {"if": "true"},
    "what cannot be evaluated": {"if": "int(request.tags.none) > 0"},
}
"""Rules under which nothing may leave that the tests ask for."""


def deny(agent: AgentCore, how: str = "everything") -> None:
    """Install a policy under which nothing may leave."""
    if "if" in DENY_ALL[how]:
        pytest.importorskip("cel_expr_python")
    rules = [UP, {"name": "private", "egress": "deny", **DENY_ALL[how]}]
    agent.router.replace_policy(Policy.model_validate({"version": 1, "defaults": PATIENT, "rules": rules}))


def denying(agent: AgentCore, then: Behaviour, how: str = "everything") -> Behaviour:
    """While the cloud has the request, nothing more may leave. The request itself fares as `then` has it."""

    def answer(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        deny(agent, how)
        return then(request, context)

    return answer


@pytest.fixture(params=["gRPC", "HTTP"])
def either(request: pytest.FixtureRequest, cloud: ScriptedCloud) -> Iterator[ScriptedCloud | ScriptedHttpCloud]:
    if request.param == "gRPC":
        yield cloud
        return
    with ScriptedHttpCloud() as http:
        yield http


# --- A request under way


@pytest.mark.parametrize("failure", ["edge", "error", "retry"])
def test_a_retry_is_not_sent(folder: Path, either: ScriptedCloud | ScriptedHttpCloud, failure: str) -> None:
    table = {"default": "retry", "garbage": failure}
    policy = {"defaults": {**PATIENT, "on_cloud_failure": table}, "rules": [UP]}
    with scene(folder, policy, either) as it:
        either.behaviour = denying(it.agent, status(grpc.StatusCode.INTERNAL))
        seen = it.ask(SECRET)
        assert len(either.requests) == 1
        np.testing.assert_allclose(seen.scores, edge_scores(SECRET), atol=1e-5)
        assert (seen.route, seen.reason, seen.degraded) == ("edge", "egress_denied", False)


def test_a_retry_is_sent_where_nothing_changed(folder: Path, either: ScriptedCloud | ScriptedHttpCloud) -> None:
    """So that its absence above proves something."""
    with scene(folder, {"defaults": {**PATIENT, "on_cloud_failure": "retry"}, "rules": [UP]}, either) as it:
        either.behaviour = status(grpc.StatusCode.INTERNAL)
        assert it.ask(SECRET).reason == "cloud_error"
        assert len(either.requests) == 2


def test_a_model_in_the_cloud_alone_is_refused_its_retry(folder: Path, cloud: ScriptedCloud) -> None:
    policy = {"defaults": {**PATIENT, "on_cloud_failure": "retry"}, "rules": [UP]}
    with scene(folder, policy, cloud, models={"digits": {"cloud": {"model": CLOUD_MODEL}}}) as it:
        cloud.behaviour = denying(it.agent, status(grpc.StatusCode.INTERNAL))
        with pytest.raises(NoAllowedRoute, match="'private' denies egress and the model has no edge side"):
            it.ask(SECRET)
        assert len(cloud.requests) == 1


@pytest.mark.parametrize("denies", [False, True])
def test_a_hedge_is_not_sent(folder: Path, either: ScriptedCloud | ScriptedHttpCloud, denies: bool) -> None:
    hedge = {"after": "150ms", "at_most": "50%"}
    policy = {"defaults": {"deadline": "1s", "hedge": hedge}, "rules": [UP]}
    with scene(folder, policy, either) as it:
        for _ in range(6):
            assert_from_cloud(it.ask(ONE))
        before = len(either.requests)
        either.behaviour = denying(it.agent, silent) if denies else silent
        seen = it.ask(SECRET)
        assert (seen.route, seen.reason) == ("edge", "cloud_deadline")
        assert len(either.requests) - before == (1 if denies else 2)


@contextmanager
def exiting(
    cloud: ScriptedCloud, policy: Mapping[str, Any], during: Callable[[AgentCore], object]
) -> Iterator[AgentCore]:
    """An agent whose model is a head that answers early; `during` is called while it runs."""
    agent: AgentCore | None = None

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if agent is not None:
            during(agent)
        return {"scores": np.full((len(inputs["image"]), 10), 0.1, np.float32), "cut": inputs["image"]}

    image, scores = TensorSpec("image", "BYTES", (-1,)), TensorSpec("scores", "FP32", (-1, 10))
    runtime = FakeRuntime(run, [image], [scores, TensorSpec("cut", "BYTES", (-1,))])
    edge = EdgeModel(runtime, Processor(None, runtime.inputs, runtime.outputs, "fake"), ModelSource(""), exits=["cut"])
    uplink = UplinkSettings(cloud.address, ClientSecurity(), 1 << 20)
    model = ServedModel("digits", edge, CLOUD_MODEL)
    with AgentCore([model], uplink, Policy.model_validate({"version": 1, **policy})) as made:
        agent = made
        yield made


@pytest.mark.parametrize("denies", [False, True])
def test_what_an_early_exit_gives_is_not_sent(cloud: ScriptedCloud, denies: bool) -> None:
    cloud.behaviour = status(grpc.StatusCode.INTERNAL)
    with exiting(cloud, {"defaults": PATIENT, "rules": [UP]}, lambda at: deny(at) if denies else None) as agent:
        answer = agent.infer("digits", {"image": SECRET})
        assert answer.route is Route.EXIT
        assert (answer.reason, answer.degraded) == (
            (Reason.EGRESS_DENIED, False) if denies else (Reason.CLOUD_ERROR, True)
        )
        assert len(cloud.requests) == (0 if denies else 1)


def test_a_rule_that_looks_at_the_link_does_not_count_the_message_that_it_judges(cloud: ScriptedCloud) -> None:
    """Nothing changes between the decision and the sending but that the message is on its way."""
    pytest.importorskip("cel_expr_python")
    rules = [UP, {"name": "slow", "if": "cloud.predicted_s > 0.5", "egress": "deny"}]
    policy = Policy.model_validate({"version": 1, "defaults": PATIENT, "rules": rules})
    with AgentCore(
        [ServedModel("digits", None, CLOUD_MODEL)], UplinkSettings(cloud.address, ClientSecurity(), 1 << 20), policy
    ) as agent:
        for _ in range(20):
            assert agent.infer("digits", {"image": ONE}).route is Route.CLOUD


# --- What is kept for later


@pytest.mark.parametrize("denies", [False, True])
def test_a_case_is_not_kept_for_the_cloud(folder: Path, cloud: ScriptedCloud, denies: bool) -> None:
    policy = {"defaults": {**PATIENT, "spool": True, "record": {"keep": "1MiB"}}, "rules": [UP]}
    with scene(folder, policy, cloud, agent={"state_dir": "state"}) as it:
        failing = status(grpc.StatusCode.INTERNAL)
        cloud.behaviour = denying(it.agent, failing) if denies else failing
        it.ask(SECRET, tags={"site": "TAGSECRET"})
    files = [path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()]
    assert any(MARK in content for content in files) != denies
    lines = (folder / "state" / "requests.jsonl").read_bytes() if not denies else b""
    assert (b"TAGSECRET" in lines) != denies
    assert not denies or not (folder / "state" / "requests.jsonl").exists()


def test_a_case_that_was_asked_about_a_moment_ago_is_dropped(
    folder: Path, cloud: ScriptedCloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = {"defaults": {**PATIENT, "spool": True}, "rules": [UP]}
    with scene(folder, policy, cloud, agent={"state_dir": "state"}) as it:
        spool = it.agent.spool
        assert spool is not None
        sender = spool._drainer._sender

        def asked(*about: Any) -> bool:
            was_allowed = sender.still_allowed(*about)
            deny(it.agent)
            return was_allowed

        monkeypatch.setattr(spool._drainer, "_sender", replace(sender, still_allowed=asked))
        cloud.behaviour = status(grpc.StatusCode.INTERNAL)
        with caplog.at_level(logging.WARNING):
            assert it.ask(SECRET).reason == "cloud_error"
            until(lambda: spool.counts().denied == 1)
        assert len(cloud.requests) == 1
        assert not caplog.records
        assert it.agent.router.state.backlog.in_flight == ()


# --- What is asked without a request


@contextmanager
def in_the_cloud(folder: Path, rule: Mapping[str, Any]) -> Iterator[tuple[AgentDataplane, Proxy]]:
    """An agent whose model is in the cloud alone, behind a proxy that counts who connects."""
    if "if" in rule:
        pytest.importorskip("cel_expr_python")
    with ScriptedCloud() as cloud, Proxy(cloud.address, record=True) as proxy:
        rules = [{"name": "private", "egress": "deny", **rule}]
        models = {"digits": {"cloud": {"model": CLOUD_MODEL}}}
        with embedded_agent(write_agent(folder, {"rules": rules}, proxy.address, models)) as agent:
            yield AgentDataplane(agent), proxy


@pytest.mark.parametrize("how", DENY_ALL)
def test_metadata_is_not_asked_for_where_nothing_may_leave(folder: Path, how: str) -> None:
    with in_the_cloud(folder, DENY_ALL[how]) as (plane, proxy):
        with pytest.raises(NoAllowedRoute, match=r"'private'.* denies egress, and the model has no edge side"):
            plane.metadata("digits")
        assert proxy.accepted == 0


@pytest.mark.parametrize("match", [{"tags": {"privacy": "device"}}, {"size": {"above": "1MiB"}}])
def test_metadata_is_asked_for_where_some_requests_stay(folder: Path, match: Mapping[str, Any]) -> None:
    """The question holds nothing of any request but the model's name."""
    with in_the_cloud(folder, {"match": match}) as (plane, proxy):
        with pytest.raises(CloudFailed):  # the scripted cloud knows no such call
            plane.metadata("digits")
        assert proxy.accepted == 1
        assert CLOUD_MODEL.encode() in bytes(proxy.up.record or b"")


WAYS_OUT = ("link probe", "better endpoint", "new connection")


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *grid(list(DENY_ALL)[:3], WAYS_OUT),
        *(pytest.param(how, kind, marks=pytest.mark.exhaustive) for how in list(DENY_ALL)[3:] for kind in WAYS_OUT),
    ],
)
def test_once_nothing_may_leave_no_connection_is_made(
    folder: Path, cloud: ScriptedCloud, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """Not to see how the link fares, nor whether a better endpoint is back, nor to have one for the next request."""
    monkeypatch.setattr(Prober, "POLL_S", 0.02)
    with Proxy(cloud.address) as first, Proxy(cloud.address) as second:
        section = {"endpoint": first.address, "fallbacks": [second.address]}
        if kind == "better endpoint":
            first.refuse()
        path = write_agent(folder, {"defaults": {**PATIENT, "on_cloud_failure": "retry"}, "rules": [UP]}, section)
        with embedded_agent(path) as agent:
            for _ in range(3):
                assert agent.infer("digits", {"image": ONE}).route is Route.CLOUD
            assert agent.uplink is not None
            agent.uplink._wants_probe = lambda: True
            if kind == "new connection":
                cloud.behaviour = denying(agent, silent, how)
                late = agent.infer("digits", {"image": ONE}, deadline_s=0.4)
                assert late.reason is Reason.CLOUD_DEADLINE
            else:
                deny(agent, how)
            until(lambda: first.open_connections + second.open_connections == 0)
            first.restore()
            before = first.accepted, second.accepted, first.up.received_bytes, second.up.received_bytes
            end_s = time.monotonic() + 0.7
            while time.monotonic() < end_s:
                assert agent.infer("digits", {"image": pictures([1])}).reason is not Reason.CLOUD_UNAVAILABLE
                time.sleep(0.02)
            assert (first.accepted, second.accepted, first.up.received_bytes, second.up.received_bytes) == before
    cloud.behaviour = good


def test_a_partial_deny_leaves_the_probes_to_the_requests_that_may_go(
    folder: Path, cloud: ScriptedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prober, "POLL_S", 0.02)
    private = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
    with scene(folder, {"defaults": {**HARD_ALWAYS, **PATIENT}, "rules": [private]}, cloud) as it:
        assert_from_cloud(it.ask(ONE))
        assert it.agent.uplink is not None
        it.agent.uplink._wants_probe = lambda: True
        assert it.ask(SECRET, tags={"privacy": "device"}).reason == "egress_denied"
        before = it.proxy.up.received_bytes
        until(lambda: it.proxy.up.received_bytes > before)
        assert MARK not in bytes(it.proxy.up.record or b"")


def test_the_policy_file_closes_the_connections_too(folder: Path, cloud: ScriptedCloud) -> None:
    with scene(folder, {"defaults": PATIENT, "rules": [UP]}, cloud) as it:
        assert_from_cloud(it.ask(ONE))
        assert it.proxy.open_connections == 1
        rules = [UP, {"name": "private", "match": {}, "egress": "deny"}]
        draft = folder / "next.yaml"
        draft.write_text(json.dumps({"version": 1, "defaults": PATIENT, "rules": rules}))
        draft.replace(folder / "policy.yaml")
        until(lambda: it.proxy.open_connections == 0, 10.0)
        assert it.ask(ONE).reason == "egress_denied"


def test_a_connection_that_only_asked_about_the_model_is_closed_too(folder: Path, cloud: ScriptedCloud) -> None:
    """As an agent does at its start; no request has come yet."""
    with scene(folder, {"defaults": PATIENT, "rules": [UP]}, cloud) as it:
        until(lambda: it.proxy.open_connections == 1)
        deny(it.agent)
        until(lambda: it.proxy.open_connections == 0, 10.0)
        assert cloud.requests == []
