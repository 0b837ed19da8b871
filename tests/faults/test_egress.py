"""`egress: deny`, proven where bytes would arrive: of such a request none does, on any route, in any state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.faults.clouds import GARBAGE, Behaviour, ScriptedCloud, good, silent, status
from tests.faults.oracles import edge_scores, picture
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    HARD_ALWAYS,
    IN_TIME_S,
    ONE,
    PLANS,
    WAITED_S,
    Ask,
    Scene,
    assert_from_cloud,
    in_process,
    over_oip,
    scene,
    within,
)
from tests.faults.slow_edge import slow_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import ModelFailed, NoAllowedRoute, Refused, UpwellError
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.tensors import Array

DENY = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
UP = {"name": "up", "match": {}, "route": "cloud"}
SET = {"name": "sooner", "match": {}, "set": {"large": {"above": "1B"}}}
PRIVATE = {"privacy": "device"}

MARK = b"only-for-the-device"
"""Appended to the private picture, where every PNG reader ignores it: no byte string of anybody else holds it."""
SECRET: Array = np.array([picture(3) + MARK], dtype=object)

STATES: Mapping[str, Callable[[Scene], object]] = {
    "well": lambda _: None,
    "refused": lambda s: s.proxy.refuse(),
    "silent link": lambda s: s.proxy.down.blackhole(),
    "reset mid-reply": lambda s: s.proxy.down.reset_after(100),
    "slow": lambda s: s.proxy.down.delay(1.0),
    "erring": lambda s: behave(s, status(grpc.StatusCode.INTERNAL)),
    "refusing": lambda s: behave(s, status(grpc.StatusCode.RESOURCE_EXHAUSTED)),
    "silent": lambda s: behave(s, silent),
    "garbling": lambda s: behave(s, GARBAGE["nan"]),
}


WAITING = {"silent link": "large", "slow": "cascade", "silent": "direct"}
"""States that take a deadline for each request are tried with one plan each."""
QUICKLY = {**dict(zip(STATES, itertools.cycle(PLANS), strict=False)), **WAITING}
"""The plan with which `make test` tries each state."""


def behave(it: Scene, behaviour: Behaviour) -> None:
    it.cloud.behaviour = behaviour


def with_deny(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {**policy, "rules": [*policy.get("rules", []), DENY]}


def assert_kept(ask: Ask) -> None:
    """The private request is answered by the device, in time, and is not called degraded."""
    seen = ask(SECRET, tags=PRIVATE)
    np.testing.assert_allclose(seen.scores, edge_scores(SECRET), atol=1e-5)
    assert (seen.route, seen.reason, seen.degraded) == ("edge", "egress_denied", False)
    assert seen.took_s <= IN_TIME_S


def assert_untouched(proxy: Proxy) -> None:
    """Nobody ever connected."""
    assert (proxy.accepted, proxy.up.received_bytes) == (0, 0)


def arrived(proxy: Proxy) -> bytes:
    """Everything that came up."""
    assert proxy.up.record is not None
    return bytes(proxy.up.record)


@pytest.mark.parametrize("way", ["in process", "over OIP"])
@pytest.mark.parametrize("policy", PLANS.values(), ids=PLANS)
def test_a_fresh_agent_does_not_even_connect(
    folder: Path, cloud: ScriptedCloud, policy: dict[str, Any], way: str
) -> None:
    with scene(folder, with_deny(policy), cloud) as it:
        for _ in range(5):
            assert_kept(it.asks[way])
        assert_untouched(it.proxy)


@pytest.mark.parametrize(
    "rules", list(itertools.permutations([DENY, UP, SET])), ids=lambda rules: "-".join(r["name"] for r in rules)
)
def test_the_order_of_the_rules_does_not_matter(folder: Path, cloud: ScriptedCloud, rules: tuple[Any, ...]) -> None:
    with scene(folder, {"defaults": HARD_ALWAYS, "rules": list(rules)}, cloud) as it:
        for ask in it.asks.values():
            assert_kept(ask)
        assert_untouched(it.proxy)
        assert_from_cloud(it.ask(ONE))


@pytest.mark.parametrize("match", [{}, {"model": "digits"}, {"size": {"above": "1B"}}, {"hours": "00:00-00:00"}])
def test_every_way_to_match_keeps_everything(folder: Path, cloud: ScriptedCloud, match: dict[str, Any]) -> None:
    rules = [UP, {"name": "all", "match": match, "egress": "deny"}]
    with scene(folder, {"defaults": HARD_ALWAYS, "rules": rules}, cloud) as it:
        for ask in it.asks.values():
            assert_kept(ask)
        assert_untouched(it.proxy)


@pytest.mark.parametrize(
    ("state", "plan"),
    [
        pytest.param(state, plan, marks=() if plan == QUICKLY[state] else pytest.mark.exhaustive)
        for state in STATES
        for plan in PLANS
        if plan == WAITING.get(state, plan)
    ],
)
def test_nothing_leaves_in_any_state_of_cloud_link_and_breaker(
    folder: Path, cloud: ScriptedCloud, state: str, plan: str
) -> None:
    """Private requests among others: on a fresh link, a used one, one that fails, with the breaker open, and after."""
    policy = within(WAITED_S, PLANS[plan]) if state in WAITING else PLANS[plan]
    with scene(folder, with_deny(policy), cloud) as it:
        assert_kept_and_silent(it)
        assert_from_cloud(it.ask(ONE))
        assert_kept_and_silent(it)
        STATES[state](it)
        for _ in range(4):
            it.ask(ONE)
            assert_kept_and_silent(it)
        it.cloud.behaviour = good
        it.proxy.restore()
        assert_kept_and_silent(it)
    assert_only_public_arrived(it)


def assert_kept_and_silent(it: Scene) -> None:
    for ask in it.asks.values():
        assert_kept(ask)
    assert_only_public_arrived(it)


def assert_only_public_arrived(it: Scene) -> None:
    """Not their number: on a slow link the call of an earlier, public request arrives whenever it does."""
    assert MARK not in arrived(it.proxy)
    for request in it.cloud.requests:
        assert list(request.inputs) == ["image"]
        assert request.inputs["image"].tolist() == ONE.tolist()


def test_the_mark_does_arrive_where_egress_is_allowed(folder: Path, cloud: ScriptedCloud) -> None:
    """So that its absence above proves something."""
    with scene(folder, with_deny({"defaults": HARD_ALWAYS}), cloud) as it:
        assert_from_cloud(it.ask(SECRET), SECRET)
        assert MARK in arrived(it.proxy)


@pytest.mark.parametrize("way", ["in process", "over OIP"])
@pytest.mark.parametrize("rules", [[DENY, UP], [UP, DENY]], ids=["deny first", "deny last"])
def test_a_model_without_a_device_side_is_refused(
    folder: Path, cloud: ScriptedCloud, rules: list[Any], way: str
) -> None:
    models = {"digits": {"cloud": {"model": "digits-large"}}}
    with scene(folder, {"rules": rules}, cloud, models=models) as it:
        with pytest.raises((NoAllowedRoute, RemoteError)) as caught:
            it.asks[way](SECRET, tags=PRIVATE)
        if isinstance(caught.value, RemoteError):
            assert caught.value.kind is RemoteErrorKind.FAILED_PRECONDITION
        assert "private" in str(caught.value)
        assert_untouched(it.proxy)


@contextmanager
def slow_behind_proxy(cloud: ScriptedCloud, latency_s: float) -> Iterator[tuple[AgentCore, Any, Proxy]]:
    policy = {"defaults": {**HARD_ALWAYS, "deadline": "1s"}, "rules": [DENY]}
    with Proxy(cloud.address, record=True) as proxy, slow_agent(latency_s, policy, proxy.address) as (agent, runtime):
        yield agent, runtime, proxy


def test_nothing_leaves_where_the_device_fails(cloud: ScriptedCloud) -> None:
    with slow_behind_proxy(cloud, 0.0) as (agent, runtime, proxy):
        runtime.behaviour.failure = "the fake model is broken"
        with pytest.raises(ModelFailed):
            in_process(agent)(SECRET, tags=PRIVATE)
        assert_untouched(proxy)


def test_nothing_leaves_where_the_device_is_too_slow_for_the_deadline(cloud: ScriptedCloud) -> None:
    with slow_behind_proxy(cloud, 0.05) as (agent, _, proxy), over_oip(agent) as remote:
        for _ in range(12):
            in_process(agent)(ONE)
        seen = len(cloud.requests)
        for ask in (in_process(agent), remote):
            with pytest.raises((Refused, NoAllowedRoute, RemoteError)):
                ask(SECRET, deadline_s=0.025, tags=PRIVATE)
        assert len(cloud.requests) == seen
        assert MARK not in arrived(proxy)


def test_a_request_that_is_wrong_leaves_nothing_either(folder: Path, cloud: ScriptedCloud) -> None:
    with scene(folder, with_deny({"rules": [UP]}), cloud) as it:
        with pytest.raises(UpwellError):
            it.ask(np.array([b"no picture" + MARK], dtype=object), tags=PRIVATE)
        with pytest.raises(UpwellError):
            it.ask(np.zeros((1, 2, 3), dtype=np.float32), tags=PRIVATE)
        assert_untouched(it.proxy)


def test_every_row_of_a_request_stays(folder: Path, cloud: ScriptedCloud) -> None:
    """The first is large, the others would be hard."""
    with scene(folder, with_deny({"defaults": {**HARD_ALWAYS, "large": {"above": "140B"}}}), cloud) as it:
        rows = np.array([SECRET[0], picture(1), picture(2)], dtype=object)
        seen = it.ask(rows, tags=PRIVATE)
        assert seen.routes == ("edge",) * 3
        assert_untouched(it.proxy)
