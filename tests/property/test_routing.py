"""What holds of the router whatever the policy, the past and the request."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    Audited,
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudMoved,
    CloudSent,
    Decision,
    EdgeRan,
    LinkProbed,
    Outcome,
    PicturesPrepared,
    RouterState,
    Signals,
)
from upwell.shared.routing.estimators.circuit_breaker import CLOSED, Breaker, BreakerVerdict
from upwell.shared.routing.estimators.link_estimate import LinkEstimate, LinkSample
from upwell.shared.routing.estimators.preparation_times import EncodedPictures
from upwell.shared.routing.estimators.run_and_answer_times import LatencyWindow, RunTimes
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import CLOUD_FAILURES, DEGRADED, Plan, Reason

Past: TypeAlias = list[tuple[Outcome, float]]

UP = Policy.model_validate({"rules": [{"name": "up", "match": {}, "route": "cloud"}]})


def one(model: str, at_s: float) -> Signals:
    """A request of one small row."""
    return Signals(RequestFacts(model, {}, 10, 0.0), (10,), at_s)


MODELS = ("digits", "pages", "unknown to the policy")
TAGS = ("privacy", "camera")
VALUES = ("", "device", "dock")

durations_s = st.one_of(st.floats(0, 5), st.sampled_from([0.0, 1e-9, 0.001, 1e6]))
waits_s = st.one_of(st.floats(0, 3), st.sampled_from([0.0, 0.5, 2.0, 60.0]))
models = st.sampled_from(MODELS)
sizes_bytes = st.one_of(st.integers(0, 5000), st.integers(0, 10**9))

hards = st.one_of(
    st.just("off"),
    st.fixed_dictionaries({"measure": st.sampled_from(["margin", "max_prob"]), "below": st.floats(0, 1)}),
    st.fixed_dictionaries({"measure": st.just("entropy"), "above": st.floats(0, 1)}),
)
patches = st.fixed_dictionaries(
    {},
    optional={
        "deadline": st.sampled_from(["1ms", "50ms", "1s", "1h"]),
        "objective": st.sampled_from(["accuracy", "latency", "energy", "cost"]),
        "confidence": st.sampled_from(["1%", "50%", "90%", "99%"]),
        "budget": st.sampled_from([{"cloud_requests": "2/min"}, {"uplink": "1MB/month", "money": "0.01/day"}]),
        "hedge": st.sampled_from(["off", {"after": "p95", "at_most": "5%"}, {"after": "1ms", "at_most": "50%"}]),
        "energy": st.just({"inference": "20mJ", "uplink_byte": "2uJ"}),
        "prices": st.just({"uplink_gb": 4.0, "cloud_request": 0.0004}),
        "hard": hards,
        "large": st.one_of(st.just("off"), st.sampled_from([0, "1kB", "1MB"]).map(lambda size: {"above": size})),
        "on_cloud_failure": st.sampled_from(["edge", "error"]),
    },
)
matches = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.dictionaries(st.sampled_from(TAGS), st.sampled_from(VALUES), max_size=2),
        "model": st.lists(models, min_size=1, max_size=2),
        "hours": st.sampled_from(["22:00-06:00", "08:00-09:00", "00:00-00:00"]),
        "size": st.sampled_from([{"above": 0}, {"above": "1kB"}]),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={"egress": st.just("deny"), "route": st.sampled_from(["edge", "cloud"]), "set": patches},
).filter(bool)
rules = st.lists(st.tuples(matches, bodies), max_size=4).map(
    lambda pairs: [{"name": f"rule {index}", "match": match, **body} for index, (match, body) in enumerate(pairs)]
)


@st.composite
def written_policies(draw: st.DrawFn) -> dict[str, Any]:
    """A policy as it may be written."""
    written = {
        "timezone": draw(st.sampled_from(["UTC", "Asia/Kolkata"])),
        "defaults": draw(patches),
        "rules": draw(rules),
        "models": draw(st.dictionaries(st.sampled_from(MODELS[:2]), patches, max_size=2)),
    }
    try:
        Policy.model_validate(written)
    except ValueError:  # keys that contradict each other only together
        assume(False)
    return written


policies = written_policies().map(Policy.model_validate)
calls = st.sampled_from(["", "a", "b", "c"])
pictures = st.builds(EncodedPictures, st.sampled_from(["jpeg", "png"]), st.integers(1, 1 << 26))
outcomes = st.one_of(
    st.builds(EdgeRan, models, st.integers(1, 2000), durations_s),
    st.builds(
        CloudAnswered, models, st.integers(1, 2000), sizes_bytes, durations_s, st.none() | durations_s, st.booleans()
    ),
    st.builds(CloudCallFailed, models, st.sampled_from(sorted(CLOUD_FAILURES))),
    st.builds(CloudDropped, models),
    st.builds(CloudSent, models, calls, st.integers(1, 2000), sizes_bytes),
    st.builds(
        CloudAnswered,
        models,
        st.integers(1, 2000),
        sizes_bytes,
        durations_s,
        st.none() | durations_s,
        st.just(False),
        sizes_bytes,
        calls,
        st.booleans(),
    ),
    st.builds(
        CloudCallFailed,
        models,
        st.sampled_from(sorted(CLOUD_FAILURES)),
        st.just(()),
        durations_s | st.just(math.inf),
        calls,
    ),
    st.builds(CloudDropped, models, st.just(()), calls),
    st.builds(CloudHeld, models, durations_s | st.just(math.inf)),
    st.builds(CloudMoved),
    st.builds(PicturesPrepared, models, pictures, durations_s),
    st.builds(LinkProbed, durations_s),
    st.builds(Audited, models, st.just("no such scope"), st.booleans()),
)
pasts = st.lists(st.tuples(outcomes, waits_s), max_size=40)
requests_facts = st.builds(
    RequestFacts,
    models,
    st.dictionaries(st.sampled_from(TAGS), st.sampled_from(VALUES), max_size=2),
    sizes_bytes,
    st.floats(0, 4e9),
)


@st.composite
def requests(draw: st.DrawFn) -> Signals:
    sizes = tuple(draw(st.lists(sizes_bytes, min_size=1, max_size=6)))
    request_facts = replace(draw(requests_facts), size_bytes=max(sizes))
    arrived_s = draw(st.floats(-10, 400))
    return Signals(
        request_facts=request_facts,
        row_sizes_bytes=sizes,
        arrived_s=arrived_s,
        caller_deadline_s=draw(st.one_of(st.just(math.inf), st.floats(-20, 500))),
        has_edge=draw(st.booleans()),
        has_cloud=draw(st.booleans()),
        has_scores=draw(st.booleans()),
        edge_ahead=draw(st.integers(0, 50)),
        pictures=draw(st.none() | pictures),
    )


def learn(router: Router, past: Past) -> tuple[RouterState, float]:
    """The state after the outcomes, each some time after the one before, and the time then."""
    state, now_s = RouterState(), 0.0
    for outcome, wait_s in past:
        now_s += wait_s
        state = router.observe(state, outcome, now_s)
    return state, now_s


@dataclass
class Decisions:
    """Both decisions on a request: before the edge run and, where it says so, after it."""

    first: Decision
    second: Decision | None = None
    rows: tuple[int, ...] = field(default=())


def decide(router: Router, state: RouterState, signals: Signals, now_s: float, values: list[float]) -> Decisions:
    """Ask as the agent asks; `values` are the hardness of the rows."""
    first = router.decide(state, signals, now_s)
    rows = tuple(range(len(signals.row_sizes_bytes)))
    if not first.escalate or first.refusal or not signals.has_edge:
        return Decisions(first, None, rows)
    scored = tuple(row for row in rows if row not in (*first.up_rows, *first.kept_rows))
    asked = replace(signals, scored_rows=scored, hardness=tuple(values[row] for row in scored))
    return Decisions(first, router.decide(state, asked, now_s), rows)


hardness_values = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=6, max_size=6)
many = settings(deadline=None, max_examples=examples(60))


def told(decisions: Decisions) -> list[Decision]:
    """The one or two decisions."""
    return [decisions.first] if decisions.second is None else [decisions.first, decisions.second]


def applies(match: dict[str, Any], request_facts: RequestFacts, zone_minutes: int) -> bool:
    """What docs/policy.md says of `match`, once more and in other words."""
    minute = (int(request_facts.wall_time_s) // 60 + zone_minutes) % 1440
    if "hours" in match:
        start, end = (int(text[:2]) * 60 + int(text[3:]) for text in match["hours"].split("-"))
        length = (end - start) % 1440 or 1440
        if (minute - start) % 1440 >= length:
            return False
    if "size" in match and request_facts.size_bytes <= {0: 0, "1kB": 1000}[match["size"]["above"]]:
        return False
    if "model" in match and request_facts.model not in match["model"]:
        return False
    return all(request_facts.tags.get(name, "") == value for name, value in match.get("tags", {}).items())


@settings(deadline=None, max_examples=examples(300))
@given(written_policies(), pasts, requests(), hardness_values, waits_s, st.booleans(), st.integers(0, 4))
def test_nothing_goes_up_under_egress_deny(
    written: dict[str, Any], past: Past, signals: Signals, values: list[float], wait_s: float, add: bool, place: int
) -> None:
    listed = [*written["rules"]]
    if add:
        listed.insert(place, {"name": "deny", "match": {}, "egress": "deny"})
    zone_minutes = {"UTC": 0, "Asia/Kolkata": 330}[written["timezone"]]
    denying = [
        rule["name"]
        for rule in listed
        if "egress" in rule and applies(rule["match"], signals.request_facts, zone_minutes)
    ]
    router = Router(Policy.model_validate({**written, "rules": listed}))
    state, now_s = learn(router, past)
    for decision in told(decide(router, state, signals, now_s + wait_s, values)):
        assert decision.verdict.egress_rule == (denying[0] if denying else "")
        if denying:
            assert (decision.up_rows, decision.probes, decision.degraded) == ((), (), False)


@many
@given(policies, pasts, requests(), hardness_values, waits_s)
def test_deciding_changes_nothing_and_says_the_same_twice(
    policy: Policy, past: Past, signals: Signals, values: list[float], wait_s: float
) -> None:
    router = Router(policy)
    state, now_s = learn(router, past)
    before = copy.deepcopy((state, signals, policy))
    first = decide(router, state, signals, now_s + wait_s, values)
    assert repr((state, signals, policy)) == repr(before)
    assert repr(decide(Router(policy), *before[:2], now_s + wait_s, values)) == repr(
        first
    )  # NaN is not equal to itself


@many
@given(policies, pasts, requests(), hardness_values, waits_s)
def test_no_row_goes_up_twice_and_none_is_lost(
    policy: Policy, past: Past, signals: Signals, values: list[float], wait_s: float
) -> None:
    router = Router(policy)
    state, now_s = learn(router, past)
    both = decide(router, state, signals, now_s + wait_s, values)
    named = [row for decision in told(both) for row in (*decision.up_rows, *decision.kept_rows)]
    assert len(named) == len(set(named))
    assert set(named) <= set(both.rows)
    for decision in told(both):
        assert list(decision.up_rows) == sorted(decision.up_rows)
        assert not (decision.up_rows and decision.kept_rows)
        if decision.refusal:
            assert (decision.up_rows, decision.probes, decision.escalate) == ((), (), False)
    if not signals.has_edge and not both.first.refusal:
        assert both.first.up_rows == both.rows


@many
@given(policies, pasts, requests(), hardness_values, waits_s)
def test_plan_reason_and_instants_fit_together(
    policy: Policy, past: Past, signals: Signals, values: list[float], wait_s: float
) -> None:
    router = Router(policy)
    state, now_s = learn(router, past)
    both = decide(router, state, signals, now_s + wait_s, values)
    for decision in told(both):
        due_s = min(signals.caller_deadline_s, signals.arrived_s + decision.verdict.settings.deadline_s)
        assert decision.deadline_s == due_s
        assert decision.fallback_start_s <= decision.give_up_s < decision.deadline_s
        assert decision.degraded == (bool(decision.kept_rows) and decision.obstacle in DEGRADED)
        if decision.up_rows:
            assert decision.obstacle is None
            assert signals.has_cloud
            assert now_s + wait_s < decision.give_up_s, "it could not be back in time"
        if decision.kept_rows:
            assert decision.reason is decision.obstacle
    first = both.first
    if signals.has_edge and not first.refusal:
        assert (first.plan is Plan.CLOUD) == (first.up_rows == both.rows)
        assert (first.plan is Plan.EDGE) == (not first.up_rows and not first.escalate)
    if both.second is not None and first.verdict.settings.objective == "latency":
        assert both.second.up_rows == ()


@many
@given(policies, st.lists(st.tuples(outcomes, st.floats(-5, 5)), max_size=60), requests(), hardness_values)
def test_after_anything_that_happened_the_state_is_finite_and_a_decision_is_made(
    policy: Policy, past: Past, signals: Signals, values: list[float]
) -> None:
    router = Router(policy)
    state, now_s = learn(router, past)
    for times in (*state.edge.values(), *state.cloud.values()):
        for window in times.windows.values():
            assert 0 <= window.fastest_s <= window.p50_s <= window.p99_s < math.inf
            assert window.fastest_s <= window.lately_s <= window.p99_s
    if state.link.samples:
        parts = (state.link.rtt_s, state.link.inverse_bandwidth_s_per_byte, state.link.down_s_per_byte)
        assert all(0 <= part < math.inf for part in parts)
    for at_s in (now_s, signals.arrived_s, now_s - 100, now_s + 1e6):
        for decision in told(decide(router, state, signals, at_s, values)):
            router.acquire(state, decision, at_s)


@many
@given(policies, pasts, requests(), models, st.sampled_from(sorted(CLOUD_FAILURES)), waits_s)
def test_a_failure_never_makes_a_side_look_faster(
    policy: Policy, past: Past, signals: Signals, model: str, reason: Reason, wait_s: float
) -> None:
    router = Router(policy)
    before, now_s = learn(router, past)
    after = router.observe(before, CloudCallFailed(model, reason), now_s)
    after = router.observe(after, CloudDropped(model), now_s)
    assert (after.link, after.edge, after.cloud) == (before.link, before.edge, before.cloud)
    first, second = (router.decide(state, signals, now_s + wait_s) for state in (before, after))
    assert repr(first.predicted_edge_s) == repr(second.predicted_edge_s)
    if second.up_rows:
        assert repr(first.predicted_cloud_s) == repr(second.predicted_cloud_s)


@many
@given(pasts, models, sizes_bytes, sizes_bytes, durations_s, waits_s)
def test_waiting_in_vain_never_makes_the_link_look_faster(
    past: Past, model: str, sent_bytes: int, size_bytes: int, waited_s: float, wait_s: float
) -> None:
    router = Router(UP)
    state, now_s = learn(router, past)
    state = router.observe(state, CloudSent(model, "late", 1, sent_bytes), now_s)
    now_s += wait_s
    late = CloudCallFailed(model, Reason.CLOUD_DEADLINE, waited_s=waited_s, call="late")
    after = router.observe(state, late, now_s)
    if state.link.is_known:
        assert after.link.expect_s(size_bytes) >= state.link.expect_s(size_bytes)
        assert after.link.fading(now_s) >= state.link.fading(now_s)
        assert after.link.error(0.9) >= state.link.error(0.9) or len(state.link.errors) == LinkEstimate.ERRORS


@many
@given(pasts, models, waits_s)
def test_whatever_failed_one_answer_closes_every_breaker_on_its_way(past: Past, model: str, wait_s: float) -> None:
    router = Router(UP)
    state, now_s = learn(router, past)
    now_s += wait_s
    state = router.observe(state, CloudAnswered(model, 1, 10, 0.001, 0.0), now_s)
    decision = router.decide(state, one(model, now_s), now_s)
    assert decision.probes == ()
    assert decision.reason is not Reason.BREAKER_OPEN


@many
@given(pasts, models)
def test_an_open_breaker_lets_a_probe_through_within_the_longest_wait(past: Past, model: str) -> None:
    router = Router(UP)
    state, now_s = learn(router, past)
    now_s += Breaker.LONGEST_WAIT_S
    decision = router.decide(state, one(model, now_s), now_s)
    if decision.reason is Reason.BREAKER_OPEN:  # only where it would find out nothing, being late in any case
        assert decision.predicted_sure_s > decision.give_up_s - now_s


STEPS: list[tuple[str, Any]] = [
    *[("send", model) for model in MODELS],
    *[(end, index) for end in ("fail", "drop", "answer") for index in (0, 1, 2)],
    *[("wait", seconds) for seconds in (0.1, 0.5, 1.0, 2.0)],
]
"""What may happen while calls are under way; an index says to which of them."""


@settings(deadline=None, max_examples=examples(400))
@given(st.lists(st.sampled_from(STEPS), min_size=15, max_size=30))
def test_two_probes_are_never_under_way_at_once(script: list[tuple[str, Any]]) -> None:
    router, now_s = Router(UP), 0.0
    state, _ = learn(router, [(CloudCallFailed(MODELS[0], Reason.CLOUD_UNAVAILABLE), 0.0)] * Breaker.FAILURES)
    calls: list[tuple[str, tuple[str, ...]]] = [(MODELS[0], ())] * 2  # sent before the breaker opened
    for step, value in script:
        if step == "wait":
            now_s += value if now_s + value < Breaker.PROBE_TIMEOUT_S else 0.0
        elif step == "send":
            decision = router.decide(state, one(value, now_s), now_s)
            state, granted = router.acquire(state, decision, now_s)
            if granted and decision.up_rows:
                calls.append((value, decision.probes))
        elif calls:
            model, probes = calls.pop(value % len(calls))
            ended: dict[str, Outcome] = {
                "answer": CloudAnswered(model, 1, 10, 0.01, 0.0),
                "fail": CloudCallFailed(model, Reason.CLOUD_UNAVAILABLE, probes),
                "drop": CloudDropped(model, probes),
            }
            state = router.observe(state, ended[step], now_s)
        closed = {key for key, breaker in state.breakers.items() if not breaker.is_open}
        calls = [(model, tuple(key for key in probes if key not in closed)) for model, probes in calls]
        under_way = [key for _, probes in calls for key in probes]
        assert len(under_way) == len(set(under_way))


@many
@given(st.lists(st.tuples(sizes_bytes, durations_s, waits_s), min_size=1, max_size=60), sizes_bytes, sizes_bytes)
def test_more_bytes_are_never_expected_sooner(
    samples: list[tuple[int, float, float]], size_bytes: int, more_bytes: int
) -> None:
    estimate, now_s = LinkEstimate(), 0.0
    for size, network_s, wait_s in samples:
        now_s += wait_s
        estimate = estimate.add(LinkSample(now_s, size, size // 7, network_s))
    assert 0 <= estimate.expect_s(size_bytes) <= estimate.expect_s(size_bytes + more_bytes) < math.inf


@many
@given(st.lists(durations_s, min_size=1, max_size=150))
def test_a_window_lies_between_its_fastest_and_its_slowest(durations: list[float]) -> None:
    window = LatencyWindow()
    for index, duration_s in enumerate(durations):
        window = window.add_all([(duration_s, index * 0.01)])
    assert min(durations[-64:]) == window.fastest_s <= window.p50_s <= window.p99_s <= max(durations[-64:])
    assert min(durations[-8:]) <= window.lately_s <= max(durations[-8:])


@many
@given(st.lists(st.tuples(st.integers(1, 5000), durations_s), min_size=1, max_size=30), st.integers(1, 5000))
def test_more_rows_are_never_expected_sooner_than_the_nearest_that_were_seen(
    runs: list[tuple[int, float]], rows: int
) -> None:
    times = RunTimes()
    for count, duration_s in runs:
        times = times.add(count, duration_s, 0.0)
    found = times.expect(rows)
    assert found is not None
    assert found.p50_s >= min(duration_s for _, duration_s in runs)


@many
@given(st.lists(st.tuples(st.integers(1, 9), durations_s, st.floats(0, 3)), max_size=90), st.integers(1, 20))
def test_runs_learned_in_batches_are_as_if_learned_one_by_one(runs: list[tuple[int, float, float]], size: int) -> None:
    now_s, timed = 0.0, []
    for rows, duration_s, wait_s in runs:
        now_s += wait_s
        timed.append((rows, duration_s, now_s))
    each = batches = RunTimes()
    for run in timed:
        each = each.add(*run)
    for first in range(0, len(timed), size):
        batches = batches.add_all(timed[first : first + size])
    assert batches == each


breaker_moves = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "probe", "release"]), st.floats(0, 3)), max_size=60
)


@many
@given(breaker_moves)
def test_a_breaker_is_always_in_one_of_its_three_states(moves: list[tuple[str, float]]) -> None:
    breaker, now_s = CLOSED, 0.0
    for move, wait_s in moves:
        now_s += wait_s
        admission = breaker.admit(now_s, 0.0)
        assert (admission is BreakerVerdict.ALLOW) == (not breaker.is_open)
        if move == "probe" and admission is BreakerVerdict.PROBE:
            breaker = breaker.take_probe(now_s)
            assert breaker.admit(now_s, 0.0) is BreakerVerdict.REFUSE
        elif move == "fail":
            breaker = breaker.failed(now_s)
        elif move == "succeed":
            breaker = CLOSED
            assert breaker.admit(now_s, 0.0) is BreakerVerdict.ALLOW
        elif move == "release":
            breaker = breaker.release_probe()
        assert 0.0 <= breaker.wait_s <= Breaker.LONGEST_WAIT_S
        assert breaker.open_until_s - now_s <= Breaker.LONGEST_WAIT_S + 1e-9  # the sum of the two is rounded
