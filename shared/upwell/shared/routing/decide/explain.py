"""Explains a decision step by step. It asks the router itself, so it always agrees with the agent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from upwell.shared.routing.decide.inquiry import NOW_S, Inquiry
from upwell.shared.routing.decide.offload import facts
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.state import Decision, RouterState, Signals
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.request_facts import RowFacts
from upwell.shared.routing.policy.rules import CompiledPolicy, Finding
from upwell.shared.routing.policy.sections import FAILURE_REASONS
from upwell.shared.routing.policy.settings import Settings


@dataclass(frozen=True)
class Setting:
    """One key of the policy, its value, and the level that sets it."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class ExplanationStep:
    """One decision: before the edge run, or after it."""

    after_edge: bool
    decision: Decision


@dataclass(frozen=True)
class Explanation:
    """Why a request is routed as it is: the facts, the rules, the settings that apply, and each decision.

    `facts` are NaN if unknown. `hardness` is None if it was not given or is not needed.
    """

    signals: Signals
    facts: RowFacts
    rules: tuple[Finding, ...]
    settings: tuple[Setting, ...]
    steps: tuple[ExplanationStep, ...]
    hardness: float | None

    @property
    def predicted_s(self) -> Mapping[str, float]:
        """The predicted time of each route, NaN if unknown."""
        return {"edge": self.facts.edge_s, "cloud": self.facts.cloud_s}

    @property
    def last(self) -> Decision:
        """The final decision."""
        return self.steps[-1].decision


def explain(policy: Policy, inquiry: Inquiry, wall_time_s: float) -> Explanation:
    """The decision on `inquiry` at the Unix time `wall_time_s`, with everything that led to it."""
    model_pairs = {inquiry.model: inquiry.model_pair}
    router = Router(policy, model_pairs)
    state, signals = inquiry.state(router), inquiry.signals(wall_time_s)
    known = facts(state, signals, NOW_S)
    first = router.decide(state, signals, NOW_S)
    settings = first.verdict.settings
    value = None if settings.hard is None else inquiry.hardness_of(settings.hard.measure)
    steps = [ExplanationStep(False, first)]
    if first.escalate and value is not None:
        steps.append(ExplanationStep(True, _after_edge(router, state, inquiry, first, value, wall_time_s)))
    return Explanation(
        signals,
        known,
        CompiledPolicy(policy, model_pairs).examine(signals.request_facts, known),
        _settings(policy, inquiry, first.verdict.rule, settings),
        tuple(steps),
        value,
    )


def _after_edge(
    router: Router, state: RouterState, inquiry: Inquiry, first: Decision, value: float, wall_time_s: float
) -> Decision:
    rows = tuple(row for row in range(len(inquiry.sizes_bytes)) if row not in first.up_rows)
    signals: Signals = inquiry.signals(wall_time_s, scored_rows=rows, hardness=(value,) * len(rows))
    return router.decide(state, signals, NOW_S + (inquiry.edge_s or 0.0))


def _settings(policy: Policy, inquiry: Inquiry, rule_name: str, settings: Settings) -> tuple[Setting, ...]:
    """Every setting that is not empty, in the order of `Settings`, with its origin."""
    rule = next((rule for rule in policy.rules if rule.name == rule_name), None)
    origins = policy.resolved(inquiry.model, rule, inquiry.model_pair).origins
    found = []
    for key, value in _flat(settings).items():
        section = key.partition(".")[0]
        default = origins.get(f"{section}.default", "built-in") if section == "on_cloud_failure" else "built-in"
        found.append(Setting(key, value, origins.get(key, default)))
    return tuple(found)


def _flat(settings: Settings) -> dict[str, Any]:
    """Settings by their names in the file, in base units."""
    prices, energy = settings.prices, settings.energy
    return {
        "deadline": settings.deadline_s,
        "objective": settings.objective,
        "confidence": settings.confidence,
        **_flat_hard(settings),
        "large.above": "off" if math.isinf(settings.large_above_bytes) else settings.large_above_bytes,
        **{f"on_cloud_failure.{key}": settings.on_cloud_failure[reason] for key, reason in FAILURE_REASONS.items()},
        "spool": settings.spool,
        **_flat_hedge(settings),
        **{f"budget.{limit.quantity}": f"{limit.amount:.15g}/{limit.period}" for limit in settings.budget},
        "prices.uplink_gb": prices.uplink_gb,
        **({"prices.interfaces": dict(prices.interfaces)} if prices.interfaces else {}),
        "prices.cloud_request": prices.cloud_request,
        "energy.inference": energy.inference_j,
        "energy.uplink_byte": energy.uplink_byte_j,
        "priority": settings.priority,
        **_flat_source(settings),
        "audit": settings.audit,
        "explore": settings.explore,
        "record.keep": settings.record_bytes or "off",
        **_flat_collect(settings),
    }


def _flat_hard(settings: Settings) -> dict[str, Any]:
    hard = settings.hard
    if hard is None:
        return {"hard": "off"}
    found = {"hard.measure": hard.measure, "hard.threshold": hard.threshold, "hard.temperature": hard.temperature}
    targets = {"hard.cloud_share": hard.cloud_share, "hard.max_risk": hard.max_risk}
    written = {key: value for key, value in targets.items() if not math.isnan(value)}
    return found | written | ({"hard.calibrated": hard.calibrated} if written else {})


def _flat_hedge(settings: Settings) -> dict[str, Any]:
    hedge = settings.hedge
    if hedge is None:
        return {"hedge": "off"}
    after = f"p{hedge.after_quantile * 100:g}" if math.isnan(hedge.after_s) else hedge.after_s
    return {"hedge.after": after, "hedge.at_most": hedge.at_most}


def _flat_collect(settings: Settings) -> dict[str, Any]:
    collect = settings.collect
    if collect is None:
        return {"collect": "off"}
    named = {"sample": "random", "keep_bytes": "keep", "max_age_s": "max_age"}
    values = {key: dict(value) if key == "classes" else value for key, value in asdict(collect).items()}
    return {f"collect.{named.get(key, key)}": value for key, value in values.items()}


def _flat_source(settings: Settings) -> dict[str, Any]:
    source = settings.source
    if source is None:
        return {"source": "off"}
    rate = "off" if math.isinf(source.rate_per_s) else source.rate_per_s
    return {"source.tag": source.tag, "source.keep": "latest" if source.keep_latest else "all", "source.rate": rate}
