"""Explains a decision step by step. It asks the router itself, so it always agrees with the agent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from upwell.shared.routing.decide.offload import facts
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    Decision,
    EdgeRan,
    RouterState,
    Signals,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.hardness import UNMOVED, Measure, uncalibrated
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, Finding
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_keys import FAILURE_REASONS
from upwell.shared.routing.policy.request_facts import RequestFacts, RowFacts
from upwell.shared.routing.policy.settings import ModelPair, Settings
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.request_tags import Tags
from upwell.shared.units import LATEST_YEAR, parse_bits_per_second

NOW_S = 1_000_000.0
"""The time of the explained decision, on its own clock."""
_RUNS = 32

_Seconds = Annotated[float, Field(strict=True, ge=0, le=1e6)]
_Bytes = Annotated[int, Field(strict=True, ge=0, le=2**50)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _speed(value: object) -> object:
    """Accept `20Mbps` as well as a plain number of bits per second."""
    return parse_bits_per_second(value) if isinstance(value, str) else value


class LinkDescription(_Keys):
    """The link to the cloud."""

    rtt_s: _Seconds = 0.0
    uplink_bps: Annotated[float, BeforeValidator(_speed), Field(strict=True, gt=0)] | None = None


def _time(text: str) -> str:
    try:
        if not 1970 <= datetime.fromisoformat(text.replace("Z", "+00:00")).year < LATEST_YEAR:
            raise ValueError
    except ValueError:
        raise ValueError(f"expected a time such as 2026-05-01T22:30 or 2026-05-01T22:30+02:00, got {text!r}") from None
    return text


class Inquiry(_Keys):
    """The keys of request.json; what is left out is unknown, or as usual."""

    model: str = Field(min_length=1)
    size_bytes: _Bytes | None = None
    row_sizes_bytes: Annotated[list[_Bytes], Field(min_length=1, max_length=1000)] | None = None
    tags: Tags = {}
    time: Annotated[str, AfterValidator(_time)] | None = None
    deadline_s: Annotated[float, Field(strict=True, gt=0, le=86400)] | None = None
    hardness: float | dict[Measure, float] | None = None
    edge_s: _Seconds | None = None
    cloud_s: _Seconds | None = None
    link: LinkDescription | None = None
    breaker_open: bool = False
    has_edge: bool = True
    has_cloud: bool = True
    edge_digest: str = ""
    edge_runtime: str = ""
    cloud_digest: str = ""

    @model_validator(mode="after")
    def _one_size(self) -> Inquiry:
        if self.size_bytes is not None and self.row_sizes_bytes is not None:
            raise ValueError("expected size_bytes (of one row) or row_sizes_bytes, not both")
        return self

    @property
    def model_pair(self) -> ModelPair:
        """The model pair, for the choice of a calibration."""
        return ModelPair(self.edge_digest, self.edge_runtime, self.cloud_digest)

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The size of each row; one empty row if none is given."""
        return tuple(self.row_sizes_bytes or (self.size_bytes or 0,))

    def signals(self, wall_time_s: float, **after_edge: Any) -> Signals:
        """The request in the router's form; `after_edge` are the rows that ran and their hardness."""
        return Signals(
            RequestFacts(self.model, self.tags, self._request_bytes(), wall_time_s),
            self.sizes_bytes,
            NOW_S,
            math.inf if self.deadline_s is None else NOW_S + self.deadline_s,
            has_edge=self.has_edge,
            has_cloud=self.has_cloud,
            **after_edge,
        )

    def _request_bytes(self) -> int:
        return max(self.sizes_bytes) if self.has_edge else sum(self.sizes_bytes)

    def state(self, router: Router) -> RouterState:
        """The state of a router that has seen these times again and again."""
        state, rows = RouterState(), len(self.sizes_bytes)
        if self.edge_s is not None:
            for _ in range(_RUNS):
                state = router.observe(state, EdgeRan(self.model, rows, self.edge_s), NOW_S)
        if self.cloud_s is not None or self.link is not None:
            for index in range(_RUNS):
                state = router.observe(state, self._answer(rows, index), NOW_S)
        if self.breaker_open:
            for _ in range(Breaker.FAILURES):
                state = router.observe(state, CloudCallFailed(self.model, Reason.CLOUD_UNAVAILABLE), NOW_S)
        return state

    def _answer(self, rows: int, index: int) -> CloudAnswered:
        """One of several past answers, with different sizes so that rate and round trip can be told apart."""
        link, server_s = self.link or LinkDescription(), self.cloud_s or 0.0
        sent_bytes = sum(self.sizes_bytes) + 10_000 * (index % 4)
        network_s = link.rtt_s + (0.0 if link.uplink_bps is None else sent_bytes * 8 / link.uplink_bps)
        return CloudAnswered(self.model, rows, sent_bytes, network_s + server_s, server_s)

    def hardness_of(self, measure: str) -> float | None:
        """The hardness of each row, if given for this measure."""
        return self.hardness.get(measure) if isinstance(self.hardness, dict) else self.hardness  # type: ignore[call-overload]  # any text may be asked for


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

    @property
    def degraded(self) -> bool:
        """Whether a row that wanted the cloud is kept for another reason than the policy."""
        return any(step.decision.degraded for step in self.steps)

    @property
    def reason(self) -> Reason:
        """The reason of the answer if the cloud answers what goes up: that of `RequestFlow.answer_reason`."""
        obstacles = [step.decision.obstacle for step in self.steps if step.decision.degraded]
        if obstacles and obstacles[-1] is not None:
            return obstacles[-1]
        first, last = self.steps[0].decision, self.last
        is_settled = first.up_rows or first.kept_rows or last.reason is Reason.EASY
        return first.reason if is_settled else last.reason


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
    decided = {*first.up_rows, *first.kept_rows}
    rows = tuple(row for row in range(len(inquiry.sizes_bytes)) if row not in decided)
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
    if hard.fit[1:] not in (UNMOVED[1:], uncalibrated(hard.measure)[1:]):
        found |= {f"hard.{name}": getattr(hard, name) for name in hard.fit._fields[1:]}
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
