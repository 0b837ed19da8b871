"""An agent with the digits models, and two ways to ask it: in this process and over its socket."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.faults.clouds import ScriptedCloud
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE, cloud_scores, edge_scores, pictures
from tests.faults.proxy import Proxy
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.tensors import Array

STALL_S = 0.15
"""How long a thread may have to wait for its turn; how many answers are late by a strict measure is for the soak."""


@dataclass(frozen=True)
class Times:
    """The policy's deadline, and how long after its return the cloud must be in use again."""

    deadline_s: float
    recovery_s: float

    @property
    def in_time_s(self) -> float:
        """Every single answer is there by then."""
        return self.deadline_s + STALL_S


ALONE = Times(0.2, 5.0)
"""What is promised, judged by tests that have the machine for themselves (`mark.alone`)."""
BESIDE_OTHERS = Times(3.0, 20.0)
"""Long enough for a cloud that is well to answer by then, however busy the machine is. Where the cloud is broken,
nothing waits for such a deadline."""
DEADLINE_S = BESIDE_OTHERS.deadline_s
IN_TIME_S = BESIDE_OTHERS.in_time_s
WAITED_S = 1.0
"""The deadline beside others where the cloud is silent, so that every request waits for it."""
HARD_ALWAYS: Mapping[str, Any] = {"deadline": f"{DEADLINE_S}s", "hard": {"measure": "max_prob", "below": 1.0}}
"""Defaults under which no digit is easy."""

CASCADE: Mapping[str, Any] = {"defaults": HARD_ALWAYS}
DIRECT: Mapping[str, Any] = {
    "defaults": {"deadline": f"{DEADLINE_S}s"},
    "rules": [{"name": "up", "match": {}, "route": "cloud"}],
}
LARGE: Mapping[str, Any] = {"defaults": {"deadline": f"{DEADLINE_S}s", "hard": "off", "large": {"above": "1B"}}}
PLANS: Mapping[str, Mapping[str, Any]] = {"cascade": CASCADE, "direct": DIRECT, "large": LARGE}


def within(deadline_s: float, policy: Mapping[str, Any]) -> dict[str, Any]:
    """The same policy with that deadline."""
    return {**policy, "defaults": {**policy["defaults"], "deadline": f"{deadline_s}s"}}


@dataclass(frozen=True)
class Seen:
    """An answer as a caller sees it. `took_s` is the caller's own measure."""

    scores: Array
    route: str
    reason: str
    degraded: bool
    plan: str
    routes: tuple[str, ...]
    took_s: float


class Ask(Protocol):
    """One way to ask the agent for the digits in `images`."""

    def __call__(
        self, images: Array, *, deadline_s: float = math.inf, tags: Mapping[str, str] | None = None
    ) -> Seen: ...


def write_agent(
    folder: Path,
    policy: Mapping[str, Any],
    cloud: str | Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
) -> Path:
    """Write `policy.yaml` and `agent.yaml` (JSON is YAML) and return the latter's path."""
    default = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}, "cloud": {"model": CLOUD_MODEL}}}
    config: dict[str, Any] = {"version": 1, "policy": "policy.yaml", "models": models or default}
    if agent is not None:
        config["agent"] = agent
    if cloud is not None:
        config["cloud"] = {"endpoint": cloud} if isinstance(cloud, str) else cloud
    (folder / "policy.yaml").write_text(json.dumps({"version": 1, **policy}))
    path = folder / "agent.yaml"
    path.write_text(json.dumps(config))
    return path


@dataclass(frozen=True)
class Scene:
    """An agent behind a proxy to a cloud; `asks` are the ways to reach it by name."""

    agent: AgentCore
    proxy: Proxy
    cloud: ScriptedCloud | ScriptedHttpCloud
    asks: Mapping[str, Ask]

    @property
    def ask(self) -> Ask:
        """In this process."""
        return self.asks["in process"]


@contextmanager
def scene(
    folder: Path, policy: Mapping[str, Any], cloud: ScriptedCloud | ScriptedHttpCloud, **config: Any
) -> Iterator[Scene]:
    """A fresh agent whose cloud is `cloud` behind a fresh proxy."""
    with Proxy(cloud.address, record=True) as proxy:
        path = write_agent(folder, policy, config.pop("cloud_section", cloud.endpoint)(proxy.address), **config)
        with embedded_agent(path) as agent, over_oip(agent) as remote:
            yield Scene(agent, proxy, cloud, {"in process": in_process(agent), "over OIP": remote})


def in_process(agent: AgentCore) -> Ask:
    """`Agent.infer`."""

    def ask(images: Array, *, deadline_s: float = math.inf, tags: Mapping[str, str] | None = None) -> Seen:
        started_s = time.monotonic()
        answer = agent.infer("digits", {"image": images}, deadline_s=deadline_s, tags=tags or {})
        took_s = time.monotonic() - started_s
        return Seen(
            answer.outputs["scores"], str(answer.route), str(answer.reason), answer.degraded, str(answer.plan),
            tuple(str(route) for route in answer.routes), took_s,
        )  # fmt: skip

    return ask


@contextmanager
def over_oip(agent: AgentCore) -> Iterator[Ask]:
    """The agent's own server on a free port, and a client of it."""
    server = start_server(AgentDataplane(agent), ["127.0.0.1:0"], max_workers=16)
    client = OipClient(server.addresses[0])

    def ask(images: Array, *, deadline_s: float = math.inf, tags: Mapping[str, str] | None = None) -> Seen:
        tagged = {f"upwell.tag.{name}": value for name, value in (tags or {}).items()}
        started_s = time.monotonic()
        answer = client.infer(InferRequest("digits", {"image": images}, parameters=tagged), deadline_s)
        took_s = time.monotonic() - started_s
        facts = answer.parameters
        routes = str(facts.get("upwell.routes", ",".join([str(facts["upwell.route"])] * len(images))))
        return Seen(
            answer.outputs["scores"], str(facts["upwell.route"]), str(facts["upwell.reason"]),
            facts["upwell.degraded"] is True, str(facts["upwell.plan"]), tuple(routes.split(",")), took_s,
        )  # fmt: skip

    try:
        yield ask
    finally:
        client.close()
        server.stop(0.0)


ONE = pictures([0])


def assert_from_cloud(seen: Seen, images: Array = ONE) -> None:
    """Every row is the large model's."""
    np.testing.assert_allclose(seen.scores, cloud_scores(images), atol=1e-5)
    assert (seen.route, seen.degraded) == ("cloud", False)


def assert_from_edge(seen: Seen, reasons: Sequence[str], images: Array = ONE, *, times: Times = BESIDE_OTHERS) -> None:
    """Every row is the device's, in time, marked degraded with one of the reasons."""
    assert seen.took_s <= times.in_time_s
    np.testing.assert_allclose(seen.scores, edge_scores(images), atol=1e-5)
    assert (seen.route, seen.degraded) == ("edge", True)
    assert seen.reason in reasons


def until(condition: Callable[[], bool], timeout_s: float = BESIDE_OTHERS.recovery_s, pace_s: float = 0.01) -> None:
    """Try until it holds; `pace_s` is the time between two tries, not a wait for something to have happened. It is
    longer where a try takes long, so that what is waited for has most of the machine."""
    end_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        assert now_s < end_s, f"did not come about within {timeout_s} s"
        time.sleep(max(pace_s, 2.0 * (now_s - began_s)))


def assert_recovers(ask: Ask, times: Times = BESIDE_OTHERS) -> None:
    """The cloud answers again within `recovery_s`, and every answer on the way comes in time."""

    def answered_by_cloud() -> bool:
        seen = ask(ONE)
        assert seen.took_s <= times.in_time_s
        return seen.route == "cloud"

    until(answered_by_cloud, times.recovery_s)
