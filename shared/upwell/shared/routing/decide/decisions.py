"""Decisions on one request: before the edge run, and after it where the device has scored its rows."""

from __future__ import annotations

import math
from dataclasses import replace

from upwell.shared.routing.decide.edge_time import EdgeTime
from upwell.shared.routing.decide.offload import OffloadCase, OffloadOption, attempt
from upwell.shared.routing.decide.router_state import Decision, RouterState, Signals
from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.reasons import Plan, Reason

_NOTHING_UP = OffloadOption()


def before_edge(case: OffloadCase) -> Decision:
    """The decision before anything has run."""
    signals, verdict = case.signals, case.verdict
    rows = tuple(range(len(signals.row_sizes_bytes)))
    wanted, reason = _candidates(signals, verdict, rows)
    if not signals.has_edge:
        found = attempt(case, rows, must=True)
        decision = _decision(case, found, Plan.CLOUD if found.split_route is None else Plan.SPLIT, reason, rows)
        return decision if found.obstacle is None else replace(decision, refusal=_no_edge_refusal(found, verdict))
    found = attempt(case, wanted) if wanted else _NOTHING_UP
    up = wanted if found.obstacle is None else ()
    here = case.edge if not up else EdgeTime.of(case.state, signals, len(rows) - len(up), case.now_s)
    if len(up) < len(rows) and not here.in_time(case.deadline_s, case.now_s):
        around = _around_busy_edge(replace(case, edge=here), rows)
        if not around.refusal or not here.is_worth_a_try(case.deadline_s, case.now_s):
            return around
    escalate = len(wanted) < len(rows) and _may_escalate(signals, verdict)
    if up and found.split_route is not None:
        plan = Plan.SPLIT
    else:
        plan = Plan.CLOUD if len(up) == len(rows) else Plan.CASCADE if escalate or up else Plan.EDGE
    return _decision(case, found, plan, reason, wanted, escalate=escalate)


def after_edge(case: OffloadCase) -> Decision:
    """The decision on rows that the edge model has scored."""
    signals, settings = case.signals, case.verdict.settings
    assert signals.hardness is not None and settings.hard is not None  # noqa: S101, PT018  the caller's contract
    own = threshold_of(case.state, settings.hard)
    hard = _beyond(case, settings.hard, own)
    hard_reason = Reason.DRIFTED if settings.hard.is_of_drift else Reason.HARD
    easy, reason = (Reason.EASY, hard_reason) if settings.hard.calibrated else (Reason.UNCALIBRATED,) * 2
    allowance = case.state.allowances.get(signals.request_facts.model)
    if hard and allowance is not None:
        hard = _beyond(case, settings.hard, allowance.tightened(settings.hard, own))
        easy = Reason.FLEET_SHARE
    if not hard:
        return _decision(case, _NOTHING_UP, Plan.CASCADE, easy)
    # The edge answer exists: nothing is faster, and its cost is already paid.
    only_better = settings.objective == "accuracy"
    found = attempt(case, hard) if only_better else OffloadOption(Reason.CLOUD_NOT_BETTER)
    decision = _decision(case, found, Plan.CASCADE, reason, hard)
    if not only_better:
        return decision
    scores = dict(zip(signals.scored_rows, signals.hardness, strict=True))
    candidates = tuple(scores[row] for row in hard)
    return replace(decision, candidates=candidates, candidate_bytes=case.size_bytes(hard))


def _beyond(case: OffloadCase, hard: HardSettings, threshold: float) -> tuple[int, ...]:
    """The scored rows that are hard at that threshold."""
    rows, values = case.signals.scored_rows, case.signals.hardness or ()
    return tuple(row for row, value in zip(rows, values, strict=True) if is_hard(value, hard.measure, threshold))


def threshold_of(state: RouterState, hard: HardSettings) -> float:
    """The current hardness threshold: the controller's if a share is held, else the policy's."""
    if math.isnan(hard.cloud_share):
        return hard.threshold
    controller = state.shares.get(hard.scope)
    if controller is None or not controller.fits(hard):
        controller = ShareController.start(hard)
    return controller.threshold


def _candidates(signals: Signals, verdict: Verdict, rows: tuple[int, ...]) -> tuple[tuple[int, ...], Reason]:
    """The rows that are candidates before anything has run, with the reason; if none, the reason to stay on the
    edge."""
    if verdict.route == "cloud":
        return rows, Reason.RULE
    if verdict.route == "edge":
        return (), verdict.denial or Reason.RULE
    if not signals.has_edge:
        return rows, Reason.NO_EDGE
    if verdict.route == "split":
        return (rows, Reason.RULE) if signals.split_routes or signals.exits else ((), Reason.NO_SPLIT)
    settings = verdict.settings
    sizes, above_bytes = signals.row_sizes_bytes, settings.large_above_bytes
    if max(sizes) > above_bytes:
        return tuple(row for row in rows if sizes[row] > above_bytes), Reason.LARGE
    if verdict.denial is not None:
        return (), verdict.denial
    if not signals.may_offload:
        return (), Reason.NO_CLOUD
    if signals.split_routes and settings.objective != "accuracy":
        return rows, Reason.PLACED
    if settings.hard is None:
        return (), Reason.ALWAYS_EDGE if math.isinf(settings.large_above_bytes) else Reason.EASY
    if not signals.has_scores:
        return (), Reason.NO_SCORES
    return (), Reason.EASY if settings.hard.calibrated else Reason.UNCALIBRATED


def _may_escalate(signals: Signals, verdict: Verdict) -> bool:
    return (
        signals.has_scores
        and signals.may_offload
        and verdict.route is None
        and not verdict.egress_rule
        and verdict.settings.hard is not None
    )


def _decision(
    case: OffloadCase,
    found: OffloadOption,
    plan: Plan,
    reason: Reason,
    wanted: tuple[int, ...] = (),
    *,
    escalate: bool = False,
) -> Decision:
    """The complete decision. `wanted` are the rows of `found`: they are offloaded, or kept because of its obstacle."""
    edge, may_go, hard = case.edge, found.obstacle is None, case.verdict.settings.hard
    is_scored = case.signals.hardness is not None
    return Decision(
        plan=plan,
        reason=found.obstacle or reason,
        verdict=case.verdict,
        deadline_s=case.deadline_s,
        give_up_s=case.give_up_s,
        fallback_start_s=case.give_up_s - (0.0 if math.isnan(edge.cautious_s) else edge.cautious_s),
        up_rows=wanted if may_go else (),
        kept_rows=() if may_go else wanted,
        obstacle=found.obstacle,
        escalate=escalate,
        probes=found.probes,
        predicted_edge_s=edge.usual_s,
        predicted_cloud_s=found.predicted.usual_s,
        predicted_sure_s=found.predicted.sure_s,
        hedge_after_s=found.hedge_after_s,
        draws=found.draws,
        side_change=found.side_change,
        model=case.signals.request_facts.model,
        split_route=found.split_route if may_go and wanted else None,
        quality=found.quality if may_go and wanted else None,
        shrinks=found.shrinks,
        retry_after_s=found.retry_after_s,
        chance=found.predicted.chance,
        needed_chance=found.predicted.needed,
        gain=found.predicted.gain,
        threshold=threshold_of(case.state, hard) if is_scored and hard is not None else math.nan,
    )


def _around_busy_edge(case: OffloadCase, rows: tuple[int, ...]) -> Decision:
    """Offload every row if the edge is too busy and nothing prevents it, else refuse.

    A tail needs the head's run first, so a split cannot avoid a busy edge.
    """
    found = attempt(case, rows, must=True)
    if found.obstacle is None and not case.signals.exits:
        plan = Plan.CLOUD if found.split_route is None else Plan.SPLIT
        decision = _decision(case, found, plan, Reason.EDGE_BUSY, rows)
        # The edge is used only if the cloud has failed.
        return replace(decision, fallback_start_s=case.give_up_s)
    left_s = max(0.0, case.deadline_s - case.now_s)
    refusal = (
        f"no allowed route is predicted to answer in time: {left_s * 1e3:.1f} ms are left and "
        f"the device needs {case.edge.usual_s * 1e3:.1f} ms behind {case.signals.edge_ahead} other requests"
    )
    busy = OffloadOption(Reason.EDGE_BUSY, predicted=found.predicted, side_change=found.side_change)
    return replace(_decision(case, busy, Plan.EDGE, Reason.EDGE_BUSY), refusal=refusal)


def _no_edge_refusal(found: OffloadOption, verdict: Verdict) -> str:
    """Why a model without an edge side cannot be answered."""
    if found.obstacle is Reason.RULE_ERROR:
        return (
            f"rule {verdict.failed_rule!r} could not be evaluated, which denies egress, and the model has no edge side"
        )
    if found.obstacle is Reason.EGRESS_DENIED:
        return f"rule {verdict.egress_rule!r} denies egress and the model has no edge side"
    if verdict.route == "edge":
        return f"rule {verdict.rule!r} keeps the request on the device and the model has no edge side"
    if found.obstacle is Reason.NO_CLOUD:
        return "the model has neither an edge side nor a cloud"
    if found.obstacle is Reason.BREAKER_OPEN:
        return "the cloud keeps failing and is not asked for a moment, and the model has no edge side"
    if found.obstacle is Reason.CLOUD_EXHAUSTED:
        return "the cloud has no room and asked for a pause, and the model has no edge side"
    if found.obstacle is Reason.BUDGET_SPENT:
        return "a budget of the policy is used up until its period ends, and the model has no edge side"
    usual_s = found.predicted.usual_s
    needs = "" if math.isnan(usual_s) else f": the cloud needs {usual_s * 1e3:.1f} ms"
    return f"no allowed route is predicted to answer in time{needs} and the model has no edge side"
