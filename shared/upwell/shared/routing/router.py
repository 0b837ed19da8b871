"""The router: from one request's signals and what was learnt so far to a decision, and from outcomes to new state.

Pure: no clock, no lock, no I/O. Time is an argument; the agent owns the state and its lock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from upwell.shared.routing.breaker import Admission, Breaker
from upwell.shared.routing.edge_time import NO_EDGE_TIME, EdgeTime
from upwell.shared.routing.estimators import RunTimes
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy import Policy
from upwell.shared.routing.reasons import CALLERS_FAULTS, LINK_FAILURES, Plan, Reason
from upwell.shared.routing.rules import CompiledPolicy, Verdict
from upwell.shared.routing.state import (
    LINK,
    CloudAnswered,
    CloudDropped,
    CloudFailure,
    Decision,
    EdgeRan,
    Outcome,
    RouterState,
    Signals,
)

_CLOSED = Breaker()


def reserve_s(available_s: float) -> float:
    """Time kept back for what comes after the last possible moment: merging, encoding, the way to the caller.

    A tenth of the time available, between 2 ms and 25 ms.
    """
    return min(0.025, max(0.002, available_s * 0.1))


@dataclass(frozen=True, slots=True)
class _Horizon:
    """The instants of one request."""

    deadline_s: float
    give_up_s: float

    @classmethod
    def of(cls, signals: Signals, verdict: Verdict) -> _Horizon:
        deadline_s = min(signals.caller_deadline_s, signals.arrived_s + verdict.settings.deadline_s)
        return cls(deadline_s, deadline_s - reserve_s(deadline_s - signals.arrived_s))


class Router:
    """Decides by a policy. Holds nothing that changes, so one object serves all threads."""

    def __init__(self, policy: Policy) -> None:
        self._policy = CompiledPolicy(policy)

    def decide(self, state: RouterState, signals: Signals, now_s: float) -> Decision:
        """What to do with this request now: before the edge run, or after it where `signals.hardness` is there."""
        verdict = self._policy.judge(signals.subject)
        horizon = _Horizon.of(signals, verdict)
        if signals.hardness is not None:
            return _after_edge(state, signals, verdict, horizon, now_s)
        return _before_edge(state, signals, verdict, horizon, now_s)

    def acquire(self, state: RouterState, decision: Decision, now_s: float) -> tuple[RouterState, bool]:
        """Take the probe slots that the decision needs; False where another request took one first."""
        if not decision.probes:
            return state, True
        breakers = dict(state.breakers)
        for key in decision.probes:
            if not breakers[key].has_slot(now_s):
                return state, False
            if breakers[key].is_open:
                breakers[key] = breakers[key].take_probe(now_s)
        return replace(state, breakers=breakers), True

    def observe(self, state: RouterState, outcome: Outcome, now_s: float) -> RouterState:
        """The state with one more outcome learnt."""
        model = outcome.model
        if isinstance(outcome, EdgeRan):
            times = state.edge.get(model, RunTimes()).add(outcome.rows, outcome.duration_s, now_s)
            return replace(state, edge={**state.edge, model: times})
        if isinstance(outcome, CloudAnswered):
            return _with_answer(state, outcome, now_s)
        if not isinstance(outcome, (CloudFailure, CloudDropped)):
            return state
        breakers = dict(state.breakers)
        for key in outcome.probes:
            breakers[key] = breakers[key].release_probe()
        if isinstance(outcome, CloudFailure) and LINK in outcome.probes and outcome.reason not in LINK_FAILURES:
            is_late = outcome.reason is Reason.CLOUD_DEADLINE
            breakers[LINK] = breakers[LINK].failed(now_s, outcome.waited_s) if is_late else _CLOSED  # it answered
        if isinstance(outcome, CloudFailure) and outcome.reason not in CALLERS_FAULTS:
            key = LINK if outcome.reason in LINK_FAILURES else model
            breaker = breakers.get(key, _CLOSED)
            # A straggler, sent before the breaker opened, tells nothing new: only a probe may keep it open.
            if not breaker.is_open or key in outcome.probes:
                breakers[key] = breaker.failed(now_s, outcome.waited_s)
            else:
                breakers[key] = breaker.outlasted(outcome.waited_s)
        return replace(state, breakers=breakers)


def _with_answer(state: RouterState, answer: CloudAnswered, now_s: float) -> RouterState:
    breakers: Mapping[str, Breaker] = state.breakers
    if any(breakers.get(key, _CLOSED) != _CLOSED for key in (LINK, answer.model)):
        breakers = {**breakers, LINK: _CLOSED, answer.model: _CLOSED}
    if answer.is_first:
        return replace(state, breakers=breakers)
    server_s = min(answer.server_s or 0.0, answer.total_s)  # a server may claim anything
    times = state.cloud.get(answer.model, RunTimes()).add(answer.rows, server_s, now_s)
    link = state.link.add(answer.sent_bytes, answer.total_s - server_s, now_s)
    return replace(state, breakers=breakers, link=link, cloud={**state.cloud, answer.model: times})


@dataclass(frozen=True, slots=True)
class _Ascent:
    """Whether a set of rows may go up: the obstacle, or None and the breakers whose probe slot it needs."""

    obstacle: Reason | None
    probes: tuple[str, ...] = ()
    predicted_s: float = math.nan


def _before_edge(state: RouterState, signals: Signals, verdict: Verdict, horizon: _Horizon, now_s: float) -> Decision:
    rows = tuple(range(len(signals.row_sizes_bytes)))
    wanted, reason = _candidates(signals, verdict, rows)
    edge = EdgeTime.of(state, signals, len(rows), now_s)
    if not signals.has_edge:
        ascent = _ascent(state, signals, verdict, horizon, edge, rows, now_s)
        up, refusal = (rows, "") if ascent.obstacle is None else ((), _no_edge_refusal(ascent, verdict))
        return _decision(horizon, verdict, edge, ascent, Plan.CLOUD, reason, up=up, kept=rows, refusal=refusal)
    ascent = _ascent(state, signals, verdict, horizon, edge, wanted, now_s) if wanted else _Ascent(None)
    up = wanted if ascent.obstacle is None else ()
    here = edge if not up else EdgeTime.of(state, signals, len(rows) - len(up), now_s)
    if len(up) < len(rows) and not here.in_time(horizon.deadline_s, now_s):
        return _around_busy_edge(state, signals, verdict, horizon, here, now_s)
    escalate = len(wanted) < len(rows) and _may_escalate(signals, verdict)
    plan = Plan.CLOUD if len(up) == len(rows) else Plan.CASCADE if escalate or up else Plan.EDGE
    return _decision(horizon, verdict, edge, ascent, plan, reason, up=up, kept=wanted, escalate=escalate)


def _after_edge(state: RouterState, signals: Signals, verdict: Verdict, horizon: _Horizon, now_s: float) -> Decision:
    settings = verdict.settings
    assert signals.hardness is not None and settings.hard is not None  # noqa: S101, PT018  the caller's contract
    hard = tuple(
        row
        for row, value in zip(signals.scored_rows, signals.hardness, strict=True)
        if is_hard(value, settings.hard.measure, settings.hard.threshold)
    )
    if not hard:
        return _decision(horizon, verdict, NO_EDGE_TIME, _Ascent(None), Plan.CASCADE, Reason.EASY)
    if settings.objective == "latency":  # the edge answer is there: no cloud can be sooner
        ascent = _Ascent(Reason.CLOUD_NOT_BETTER)
    else:
        ascent = _ascent(state, signals, verdict, horizon, NO_EDGE_TIME, hard, now_s)
    up = hard if ascent.obstacle is None else ()
    return _decision(horizon, verdict, NO_EDGE_TIME, ascent, Plan.CASCADE, Reason.HARD, up=up, kept=hard)


def _candidates(signals: Signals, verdict: Verdict, rows: tuple[int, ...]) -> tuple[tuple[int, ...], Reason]:
    """The rows that want the cloud before anything ran, and the reason; without any, why the device answers."""
    if verdict.route is not None:
        return (rows if verdict.route == "cloud" else ()), Reason.RULE
    if not signals.has_edge:
        return rows, Reason.NO_EDGE
    settings = verdict.settings
    large = tuple(row for row in rows if signals.row_sizes_bytes[row] > settings.large_above_bytes)
    if large:
        return large, Reason.LARGE
    if verdict.egress_rule:
        return (), Reason.EGRESS_DENIED
    if not signals.has_cloud:
        return (), Reason.NO_CLOUD
    if settings.hard is None:
        return (), Reason.ALWAYS_EDGE if math.isinf(settings.large_above_bytes) else Reason.EASY
    return (), Reason.EASY if signals.has_scores else Reason.NO_SCORES


def _may_escalate(signals: Signals, verdict: Verdict) -> bool:
    return (
        signals.has_scores
        and signals.has_cloud
        and verdict.route is None
        and not verdict.egress_rule
        and verdict.settings.hard is not None
    )


def _decision(
    horizon: _Horizon,
    verdict: Verdict,
    edge: EdgeTime,
    ascent: _Ascent,
    plan: Plan,
    reason: Reason,
    *,
    up: tuple[int, ...] = (),
    kept: tuple[int, ...] = (),
    escalate: bool = False,
    refusal: str = "",
) -> Decision:
    """The decision in full; `kept` holds the rows that wanted to go up, which count only under an obstacle."""
    blocked = ascent.obstacle is not None
    return Decision(
        plan=plan,
        reason=ascent.obstacle or reason,
        verdict=verdict,
        deadline_s=horizon.deadline_s,
        give_up_s=horizon.give_up_s,
        fallback_start_s=horizon.give_up_s - (0.0 if math.isnan(edge.cautious_s) else edge.cautious_s),
        up_rows=up,
        kept_rows=kept if blocked else (),
        obstacle=ascent.obstacle,
        escalate=escalate,
        refusal=refusal,
        probes=ascent.probes,
        predicted_edge_s=edge.usual_s,
        predicted_cloud_s=ascent.predicted_s,
    )


def _ascent(
    state: RouterState,
    signals: Signals,
    verdict: Verdict,
    horizon: _Horizon,
    edge: EdgeTime,
    rows: tuple[int, ...],
    now_s: float,
) -> _Ascent:
    """Whether `rows` may go up now."""
    if verdict.egress_rule:
        return _Ascent(Reason.EGRESS_DENIED)
    if verdict.route == "edge":
        return _Ascent(Reason.RULE)
    if not signals.has_cloud:
        return _Ascent(Reason.NO_CLOUD)
    probes: tuple[str, ...] = ()
    for key in (LINK, signals.subject.model):
        breaker = state.breakers.get(key)
        admission = Admission.ALLOW if breaker is None else breaker.admit(now_s, horizon.give_up_s - now_s)
        if admission is Admission.REFUSE:
            return _Ascent(Reason.BREAKER_OPEN)
        if admission is Admission.PROBE:
            probes = (*probes, key)
    predicted_s = _predict_cloud_s(state, signals, rows, now_s)
    # Where the prediction is NaN the second comparison is false: the unknown is tried.
    if now_s >= horizon.give_up_s or now_s + predicted_s > horizon.give_up_s:
        return _Ascent(Reason.CLOUD_TOO_SLOW, predicted_s=predicted_s)
    if verdict.settings.objective == "latency" and predicted_s >= edge.usual_s:
        return _Ascent(Reason.CLOUD_NOT_BETTER, predicted_s=predicted_s)
    return _Ascent(None, probes, predicted_s)


def _predict_cloud_s(state: RouterState, signals: Signals, rows: tuple[int, ...], now_s: float) -> float:
    """Predicted time from sending to answer; NaN where nothing recent is known."""
    times = state.cloud.get(signals.subject.model)
    window = times.expect(len(rows)) if times is not None and state.link.is_known(now_s) else None
    if window is None or not window.is_known(now_s):
        return math.nan
    return state.link.expect_s(sum(signals.row_sizes_bytes[row] for row in rows)) + window.lately_s


def _around_busy_edge(
    state: RouterState, signals: Signals, verdict: Verdict, horizon: _Horizon, edge: EdgeTime, now_s: float
) -> Decision:
    """Every row up where the device is too busy and nothing speaks against the cloud, else a refusal."""
    rows = tuple(range(len(signals.row_sizes_bytes)))
    ascent = _ascent(state, signals, verdict, horizon, edge, rows, now_s)
    if ascent.obstacle is None:
        decision = _decision(horizon, verdict, edge, ascent, Plan.CLOUD, Reason.EDGE_BUSY, up=rows)
        return replace(
            decision, fallback_start_s=horizon.give_up_s
        )  # the device is asked only once the cloud has failed
    refusal = (
        f"no allowed route is predicted to answer in time: {(horizon.deadline_s - now_s) * 1e3:.1f} ms are left and "
        f"the device needs {edge.usual_s * 1e3:.1f} ms behind {signals.edge_ahead} other requests"
    )
    busy = _Ascent(Reason.EDGE_BUSY, predicted_s=ascent.predicted_s)
    return _decision(horizon, verdict, edge, busy, Plan.EDGE, Reason.EDGE_BUSY, refusal=refusal)


def _no_edge_refusal(ascent: _Ascent, verdict: Verdict) -> str:
    """Why a model without an edge side cannot be answered."""
    if ascent.obstacle is Reason.EGRESS_DENIED:
        return f"rule {verdict.egress_rule!r} denies egress and the model has no edge side"
    if verdict.route == "edge":
        return f"rule {verdict.rule!r} keeps the request on the device and the model has no edge side"
    if ascent.obstacle is Reason.NO_CLOUD:
        return "the model has neither an edge side nor a cloud"
    if ascent.obstacle is Reason.BREAKER_OPEN:
        return "the cloud fails repeatedly and is left alone for a moment, and the model has no edge side"
    needs = "" if math.isnan(ascent.predicted_s) else f": the cloud needs {ascent.predicted_s * 1e3:.1f} ms"
    return f"no allowed route is predicted to answer in time{needs} and the model has no edge side"
