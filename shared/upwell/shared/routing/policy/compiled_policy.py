"""A compiled policy: the settings and the rule for a request, found in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from types import MappingProxyType
from typing import Any, Literal
from zoneinfo import ZoneInfo

from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.request_facts import RequestFacts, RowFacts
from upwell.shared.routing.policy.rule_keys import Rule, hours_minutes
from upwell.shared.routing.policy.settings import ModelPair, Settings
from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class

__all__ = ("CompiledPolicy", "Finding", "RequestFacts", "RowFacts", "Verdict")

NO_IDENTITIES: Mapping[str, ModelPair] = MappingProxyType({})
_NOTHING_KNOWN = RowFacts()


@value_class
class Verdict:
    """The policy's verdict on one request, before link and load are considered.

    `rule` names the rule that set `route` or settings, "" if none; `egress_rule` the first rule that denies egress, ""
    if the request may leave the device. `failed_rule` names the first rule that could not be evaluated: then nothing
    may leave the device, and `egress_rule` names it too. `collect_rule` is the first rule with `collect: false`, "" if
    the request may be kept as a case.
    """

    settings: Settings
    route: Literal["edge", "cloud", "split"] | None
    rule: str
    egress_rule: str
    failed_rule: str = ""
    collect_rule: str = ""

    @property
    def denial(self) -> Reason | None:
        """Why nothing of the request may leave the device; None if it may."""
        if self.failed_rule:
            return Reason.RULE_ERROR
        return Reason.EGRESS_DENIED if self.egress_rule else None


@value_class
class Finding:
    """The result of one rule: `missed` names the first key that did not hold, "" if the rule matches.

    `error` says why its expression could not be evaluated.
    """

    name: str
    missed: str
    error: str = ""


class CompiledPolicy:
    """`Policy` with its settings resolved for each of its models and rules. Immutable and pure.

    `model_pairs` are the running models by name: calibrations are chosen to fit them, and each has settings of its own
    even if the policy does not name it.
    """

    def __init__(self, policy: Policy, model_pairs: Mapping[str, ModelPair] = NO_IDENTITIES) -> None:
        self._zone: tzinfo = timezone.utc if policy.timezone == "UTC" else ZoneInfo(policy.timezone)
        self._rules = [_CompiledRule(rule) for rule in policy.rules]
        self._models = frozenset({*policy.models, *model_pairs})
        self._uses_hours = any(rule.match.hours is not None for rule in policy.rules)
        sources = [rule.condition for rule in policy.rules if rule.condition is not None]
        self._conditions: Any = _conditions(sources) if sources else None
        self.uses_facts: bool = self._conditions is not None and self._conditions.uses_facts
        """Whether any rule uses more than the request, so that `judge` needs its second argument."""
        self._verdicts = {
            (model, index): verdict
            for model in (None, *self._models)
            for index, verdict in _verdicts(policy, model, model_pairs.get(model or "")).items()
        }

    def judge(self, request_facts: RequestFacts, facts: RowFacts | None = None) -> Verdict:
        """The verdict on one request: the first matching rule with `route` or `set`, and all matching rules with
        `egress`.

        Every expression whose `match` holds is evaluated, so that failing closed does not depend on the order.
        """
        model = request_facts.model if request_facts.model in self._models else None
        if not self._rules:
            return self._verdicts[model, None]
        decisive: int | None = None
        egress_rule = failed_rule = collect_rule = ""
        minute = self._minute(request_facts.wall_time_s) if self._uses_hours else 0
        context: Any = None
        for index, rule in enumerate(self._rules):
            decides = decisive is None and rule.decides
            forbids = rule.forbids and not egress_rule
            spares = rule.spares and not collect_rule
            counts = decides or forbids or spares or rule.condition is not None
            if not counts or not rule.matches(request_facts, minute):
                continue
            if rule.condition is not None:
                try:
                    context = context or self._context(request_facts, facts)
                    if not self._conditions.holds(rule.condition, context):
                        continue
                except Exception:  # noqa: BLE001  whatever it is, nothing may leave if a rule cannot be evaluated
                    failed_rule = failed_rule or rule.name
                    continue
            decisive = index if decides else decisive
            egress_rule = rule.name if forbids else egress_rule
            collect_rule = rule.name if spares else collect_rule
        verdict = self._verdicts[model, decisive]
        if egress_rule or failed_rule or collect_rule:
            return replace(
                verdict,
                egress_rule=failed_rule or egress_rule,
                failed_rule=failed_rule,
                collect_rule=failed_rule or collect_rule,
            )
        return verdict

    def examine(self, request_facts: RequestFacts, facts: RowFacts | None = None) -> tuple[Finding, ...]:
        """The result of each rule in order, for explanations."""
        minute = self._minute(request_facts.wall_time_s)
        return tuple(self._examine(rule, request_facts, minute, facts) for rule in self._rules)

    def _examine(
        self, rule: _CompiledRule, request_facts: RequestFacts, minute: int, facts: RowFacts | None
    ) -> Finding:
        missed = rule.missed(request_facts, minute)
        if missed or rule.condition is None or self._conditions is None:
            return Finding(rule.name, missed)
        try:
            holds = self._conditions.holds(rule.condition, self._context(request_facts, facts))
        except Exception as error:  # noqa: BLE001  the same boundary as in `judge`; here its text is shown
            return Finding(rule.name, "if", str(error) or type(error).__name__)
        return Finding(rule.name, "" if holds else "if")

    def _context(self, request_facts: RequestFacts, facts: RowFacts | None) -> Any:
        local = datetime.fromtimestamp(request_facts.wall_time_s, self._zone)
        return self._conditions.context(request_facts, local, facts or _NOTHING_KNOWN)

    def _minute(self, wall_time_s: float) -> int:
        local = datetime.fromtimestamp(wall_time_s, self._zone)
        return local.hour * 60 + local.minute


def _conditions(sources: list[str]) -> Any:
    """The compiled expressions. Imported here, since the package that evaluates them is an extra."""
    from upwell.shared.routing.policy.cel_conditions import Conditions

    return Conditions(sources)


def _verdicts(policy: Policy, model: str | None, model_pair: ModelPair | None) -> dict[int | None, Verdict]:
    """The verdict under each rule of the policy, and under none."""
    plain = policy.settings(model, None, model_pair)
    found: dict[int | None, Verdict] = {None: Verdict(plain, None, "", "")}
    for index, rule in enumerate(policy.rules):
        settings = plain if rule.set is None else policy.settings(model, rule, model_pair)
        found[index] = Verdict(settings, rule.route, rule.name, "")
    return found


class _CompiledRule:
    """One rule in a form that is quick to test."""

    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.decides = rule.route is not None or rule.set is not None
        self.forbids = rule.egress is not None
        self.spares = rule.collect is not None
        self.condition = rule.condition
        match = rule.match
        self._tags = _sets(match.tags)
        self._unless = _sets(match.unless_tags)
        models = [match.model] if isinstance(match.model, str) else match.model
        self._models = None if models is None else frozenset(models)
        self._hours = None if match.hours is None else hours_minutes(match.hours)
        self._above_bytes = None if match.size is None else match.size.above

    def matches(self, request_facts: RequestFacts, minute: int) -> bool:
        """Whether every key of the match holds. A missing tag is the empty string."""
        if self._models is not None and request_facts.model not in self._models:
            return False
        if self._above_bytes is not None and request_facts.size_bytes <= self._above_bytes:
            return False
        if self._hours is not None and not _within(minute, *self._hours):
            return False
        for name, values in self._tags.items():
            if request_facts.tags.get(name, "") not in values:
                return False
        return not self._unless or self._unless_holds(request_facts)

    def missed(self, request_facts: RequestFacts, minute: int) -> str:
        """The first key of the match that does not hold; "" if it matches."""
        if self.matches(request_facts, minute):
            return ""
        if self._models is not None and request_facts.model not in self._models:
            return "model"
        if self._above_bytes is not None and request_facts.size_bytes <= self._above_bytes:
            return "size"
        if self._hours is not None and not _within(minute, *self._hours):
            return "hours"
        for name, values in self._tags.items():
            if request_facts.tags.get(name, "") not in values:
                return f"tags.{name}"
        return f"unless_tags.{next(iter(self._unless))}"

    def _unless_holds(self, request_facts: RequestFacts) -> bool:
        """Whether one of the tags is missing, or has a value that the rule does not except."""
        return any(
            name not in request_facts.tags or request_facts.tags[name] not in known
            for name, known in self._unless.items()
        )


def _sets(tags: Mapping[str, str | list[str]]) -> Mapping[str, frozenset[str]]:
    return {name: frozenset([values] if isinstance(values, str) else values) for name, values in tags.items()}


def _within(minute: int, start: int, end: int) -> bool:
    """Whether a time of day is in [start, end), which may cross midnight; equal ends mean all day."""
    if start < end:
        return start <= minute < end
    return minute >= start or minute < end
