"""The strategies that are compared: the policy, each side alone, random, and the oracle."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from upwell.shared.routing.box_hardness import OF_CHANCES
from upwell.shared.routing.calibration.logged_hardness import lacks_supports
from upwell.shared.routing.decide.router_state import SplitRoute
from upwell.shared.routing.hardness import RISING, is_hard
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_keys import Hard, SettingsPatch
from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.simulation.link_capacity import Capacity
from upwell.shared.routing.simulation.logged_requests import LoggedRequest, model_pairs, score, verdict
from upwell.shared.routing.simulation.simulated_device import SimulatedDevice, SimulatedDriver
from upwell.shared.routing.simulation.simulated_router import Habits, Pilot
from upwell.shared.routing.simulation.simulated_time import Kernel, Process
from upwell.shared.routing.simulation.simulated_uplink import (
    CloudScript,
    Queue,
    SimulatedProber,
    SimulatedUplink,
    as_logged,
)
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome

SWEPT = 10


@dataclass(frozen=True, slots=True)
class Scene:
    """What happens, whatever the strategy: the requests by arrival, the link, and by model the fleet's share of its
    budget. See `SimulatedDevice`."""

    requests: Sequence[LoggedRequest]
    capacity: Capacity
    rtt_s: float
    script: CloudScript = as_logged
    splits: Mapping[str, Sequence[SplitRoute]] = field(default_factory=dict)
    exits: Collection[str] = ()
    fleet_shares: Mapping[str, float] = field(default_factory=dict)


def routed(policy: Policy, scene: Scene, habits: Habits = Habits()) -> list[SimulatedOutcome]:  # noqa: B008  immutable
    """The agent under `policy`."""
    kernel = Kernel()
    uplink = SimulatedUplink(kernel, scene.capacity, scene.rtt_s)
    pilot = Pilot(policy, model_pairs(scene.requests), kernel, habits, scene.fleet_shares)
    prober = SimulatedProber(kernel, uplink, pilot)
    device = SimulatedDevice(kernel, uplink, pilot, prober, scene.script, scene.splits, scene.exits)
    drivers: list[SimulatedDriver] = []

    def handle(request: LoggedRequest) -> Process[None]:
        drivers.append(SimulatedDriver(device, request))
        yield from drivers[-1].run()

    _warm_up(scene.requests, kernel, pilot)
    for request in scene.requests:
        kernel.start(request.t_s, handle(request))
    kernel.run()
    return [one.served for one in drivers]


def _warm_up(requests: Sequence[LoggedRequest], kernel: Kernel, pilot: Pilot) -> None:
    """Let the router know the device's time before a model's first request, as the agent does from its trial runs."""
    first = {request.line.model: request for request in reversed(requests) if not math.isnan(request.edge_s)}
    for model, request in first.items():
        kernel.call(request.t_s, partial(pilot.ran, model, 1, request.edge_s))


def edge_only(policy: Policy, scene: Scene) -> list[SimulatedOutcome]:
    """The same agent without a cloud."""
    return routed(policy, scene, Habits(has_cloud=False))


def cloud_only(policy: Policy, scene: Scene) -> list[SimulatedOutcome]:
    """Everything is offloaded at once, without a device: a call is cancelled at its deadline, and then has no
    answer."""
    kernel = Kernel()
    uplink = SimulatedUplink(kernel, scene.capacity, scene.rtt_s)
    served = [_due(request, settings) for request, settings in _with_settings(policy, scene.requests)]

    def handle(one: SimulatedOutcome) -> Process[None]:
        call = uplink.send(one.request.size_bytes, scene.script(one.request, 0))
        yield call.answered, one.deadline_s
        uplink.give_up(call)
        one.left_bytes = call.size_bytes if call.began else 0
        if call.ended and call.behaviour.failure is None:
            one.route, one.answered_s, one.reason = Route.CLOUD, kernel.now_s, Reason.NO_EDGE

    for one in served:
        kernel.start(one.request.t_s, handle(one))
    kernel.run()
    return served


def random_share(policy: Policy, scene: Scene, share: float, draws: Sequence[float]) -> list[SimulatedOutcome]:
    """The same agent, but each request is a candidate with probability `share`.

    `draws` has a number for each request, uniform in [0, 1).
    """
    chosen = {id(request): draw < share for request, draw in zip(scene.requests, draws, strict=True)}

    def toss(request: LoggedRequest, hard: HardSettings) -> float:
        return verdict(chosen[id(request)], hard)

    return routed(_without_candidates(policy), scene, Habits(toss, learns_scores=False))


def oracle(policy: Policy, scene: Scene) -> list[SimulatedOutcome]:
    """The oracle: offloads, in order of arrival, what the edge gets wrong, the cloud gets right, and is back in time
    behind earlier messages; the device answers the rest. An unknown correctness is no reason to offload."""
    queue = Queue(scene.capacity)
    up: dict[int, SimulatedOutcome] = {}
    for request, settings in _with_settings(policy, scene.requests):
        one, line = _due(request, settings), request.line
        back_s = queue.ends_s(request.t_s, request.size_bytes) + scene.rtt_s + request.cloud_s
        if line.edge_correct is False and line.cloud_correct is True and back_s <= one.deadline_s:
            queue.take(request.t_s, request.size_bytes)
            one.route, one.answered_s, one.left_bytes, one.reason = Route.CLOUD, back_s, request.size_bytes, Reason.HARD
            up[id(request)] = one
    rest = [request for request in scene.requests if id(request) not in up]
    here = iter(edge_only(policy, replace(scene, requests=rest)))
    return [up[id(request)] if id(request) in up else next(here) for request in scene.requests]


def thresholds(policy: Policy, requests: Sequence[LoggedRequest]) -> tuple[HardSettings, ...]:
    """Ten settings that find 5 %, 15 % … 95 % of the requests hard, by the policy's measure.

    Raises `ValueError` unless the policy has one measure for all of them.
    """
    settings = [one for _, one in _with_settings(policy, requests)]
    used = {(one.hard.measure, one.hard.fit) if one.hard else None for one in settings}
    hard = settings[0].hard
    if len(used) != 1 or hard is None:
        raise ValueError("thresholds can only be swept if one measure applies to every request of the log")
    rises = hard.measure in RISING
    plain = replace(hard, cloud_share=math.nan, max_risk=math.nan)
    values = sorted((v for v in (score(one, hard) for one in requests) if not math.isnan(v)), reverse=rises)
    if not values:
        raise ValueError(f"no line of the log has logits or a hardness called {hard.measure}")
    return tuple(replace(plain, threshold=values[len(values) * (2 * i + 1) // (2 * SWEPT)]) for i in range(SWEPT))


def fixed(policy: Policy, scene: Scene, hard: HardSettings) -> list[SimulatedOutcome]:
    """The same agent with one fixed threshold and without predictions of the link."""

    def cut(request: LoggedRequest, _: HardSettings) -> float:
        return verdict(is_hard(score(request, hard), hard.measure, hard.threshold), hard)

    return routed(policy, scene, Habits(cut, learns_scores=False, tests_link=False))


def without_supports(policy: Policy, requests: Sequence[LoggedRequest]) -> int:
    """How many requests count as hard since the policy weighs supports that their lines lack."""
    hards = ((request, settings.hard) for request, settings in _with_settings(policy, requests))
    weighed = (one for one, hard in hards if hard and hard.measure in OF_CHANCES and hard.support != 0.0)
    return sum(lacks_supports(one.line) for one in weighed)


def _with_settings(policy: Policy, requests: Sequence[LoggedRequest]) -> list[tuple[LoggedRequest, Settings]]:
    compiled = CompiledPolicy(policy, model_pairs(requests))
    return [(request, compiled.judge(request.request_facts).settings) for request in requests]


def _due(request: LoggedRequest, settings: Settings) -> SimulatedOutcome:
    deadline_s = request.t_s + min(settings.deadline_s, request.deadline_s)
    return SimulatedOutcome(request, settings, deadline_s, Reason.CLOUD_DEADLINE)


def _without_candidates(policy: Policy) -> Policy:
    """The policy in which only hard rows are candidates, everywhere by one plain threshold."""
    rules = [
        rule.model_copy(
            update={
                "route": None if rule.route == "cloud" else rule.route,
                "set": rule.set and _without(rule.set),
            }
        )
        for rule in policy.rules
    ]
    models = {name: _without(level) for name, level in policy.models.items()}
    defaults = _without(policy.defaults).model_copy(update={"hard": Hard()})
    return policy.model_copy(update={"defaults": defaults, "models": models, "rules": rules})


def _without(level: SettingsPatch) -> SettingsPatch:
    kept: Mapping[str, Any] = {
        key: getattr(level, key) for key in level.model_fields_set if key not in ("hard", "large")
    }
    return SettingsPatch.model_construct(set(kept), **kept)
