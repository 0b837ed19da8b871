"""What one decision and one outcome cost, with everything that the router knows in play."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudSent,
    EdgeRan,
    Outcome,
    RouterState,
    Signals,
)
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Reason

ROUNDS = 5000
NOW_S = 1000.0

RULES = """
timezone: Europe/Berlin
defaults: {deadline: 300ms, large: {above: 256KiB}}
rules:
  - {name: private, match: {tags: {privacy: device}}, egress: deny}
  - {name: night, match: {hours: "22:00-06:00"}, set: {hard: {below: 0.2}}}
  - {name: big, match: {size: {above: 1MiB}}, route: cloud}
  - {name: dock, match: {tags: {camera: [dock, gate]}, model: [digits, pages]}, set: {deadline: 250ms}}
models:
  digits: {deadline: 250ms}
"""
EVERYTHING = RULES.replace(
    "256KiB}}",
    "256KiB}, hedge: {after: p95, at_most: 5%}, "
    "budget: {cloud_requests: 100000/min, uplink: 5GB/month, money: 20/month}}",
)
CEL = RULES.replace(
    "models:\n",
    """  - {name: odd, if: 'request.size_bytes > 1000000 && link.rtt_s < 0.05', route: cloud}
  - {name: lit, if: 'request.tags["light"] == "low" || request.hour >= 22', set: {hard: {below: 0.5}}}
  - {name: far, if: 'link.rtt_s > 0.5 && request.model == "digits"', route: edge}
models:
""",
)

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(120)]


def learnt(router: Router) -> RouterState:
    """A state with full windows, three messages under way and one given up."""
    state = RouterState()
    for index in range(600):
        now_s, size_bytes = NOW_S - 60 + index * 0.1, 20_000 + index * 7919 % 180_000
        past: list[Outcome] = [
            EdgeRan("digits", 1, 0.004),
            CloudSent("digits", str(index), 1, size_bytes),
            CloudAnswered("digits", 1, size_bytes, 0.07 + size_bytes / 2e6, 0.01, received_bytes=90, call=str(index)),
        ]
        for outcome in past:
            state = router.observe(state, outcome, now_s)
    for call in ("a", "b", "c"):
        state = router.observe(state, CloudSent("digits", call, 1, 30_000), NOW_S)
    return router.observe(state, CloudCallFailed("digits", Reason.CLOUD_DEADLINE, waited_s=0.25, call="b"), NOW_S)


def timed_us(call: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin_ns) / 1e3


def test_decision_cost(capsys: pytest.CaptureFixture[str]) -> None:
    router, rich = Router(parse_yaml(RULES, Policy)), Router(parse_yaml(EVERYTHING, Policy))
    expressive = Router(parse_yaml(CEL, Policy))
    state = learnt(router)
    request_facts = RequestFacts("digits", {"camera": "dock"}, 60_000, 1_700_000_000.0)
    first = Signals(request_facts, (60_000,), NOW_S)
    second = Signals(request_facts, (60_000,), NOW_S, scored_rows=(0,), hardness=(0.01,))
    assert router.decide(state, second, NOW_S).up_rows == (0,)
    decision = rich.decide(state, second, NOW_S)
    assert decision.draws
    spent, _ = rich.acquire(state, decision, NOW_S)
    answer = CloudAnswered("digits", 1, 30_000, 0.09, 0.01, received_bytes=90, call="c")
    late = CloudCallFailed("digits", Reason.CLOUD_DEADLINE, waited_s=0.25, call="c")
    calls: dict[str, Callable[[], object]] = {
        "decide before the edge run": lambda: router.decide(state, first, NOW_S),
        "the same with three CEL rules more (target 60 us more)": lambda: expressive.decide(state, first, NOW_S),
        "decide after it, hard": lambda: router.decide(state, second, NOW_S),
        "the same with budgets and hedges": lambda: rich.decide(spent, second, NOW_S),
        "acquire budgets and hedges": lambda: rich.acquire(spent, decision, NOW_S),
        "observe an edge run": lambda: router.observe(state, EdgeRan("digits", 1, 0.004), NOW_S),
        "observe a message sent": lambda: router.observe(state, CloudSent("digits", "d", 1, 30_000), NOW_S),
        "observe an answer": lambda: router.observe(state, answer, NOW_S + 0.09),
        "observe a timeout": lambda: router.observe(state, late, NOW_S + 0.25),
    }
    taken = {name: list[float]() for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            taken[name].append(timed_us(call))
    with capsys.disabled():
        print(
            f"\none decision with four match rules (target 20 us), one outcome (target 40 us), {ROUNDS} rounds in turn"
        )
        for name, samples in taken.items():
            tenths = statistics.quantiles(samples, n=10)
            print(f"  {name}: median {statistics.median(samples):.1f} us (p10 {tenths[0]:.1f}, p90 {tenths[-1]:.1f})")
