"""A policy compiled for deciding: the settings and the rule that hold for a request, looked up in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

from upwell.shared.routing.policy import Policy, Rule, hours_minutes
from upwell.shared.routing.settings import Settings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says about one request, before anything is known of link or load.

    `rule` names the rule that set `route` or the settings, empty where none did; `egress_rule` the first rule that
    forbids egress, empty where the request may leave the device. `failed_rule` names the first rule that could not be
    evaluated: then nothing may leave the device, and `egress_rule` names it too.
    """

    settings: Settings
    route: Literal["edge", "cloud"] | None
    rule: str
    egress_rule: str
    failed_rule: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What rules may look at. `wall_time_s` is Unix time; `size_bytes` the largest row's size on the wire."""

    model: str
    tags: Mapping[str, str]
    size_bytes: int
    wall_time_s: float


class CompiledPolicy:
    """`Policy` with its settings resolved for each of its models and rules. Immutable and pure."""

    def __init__(self, policy: Policy) -> None:
        self._zone: tzinfo = timezone.utc if policy.timezone == "UTC" else ZoneInfo(policy.timezone)
        self._rules = [_CompiledRule(rule) for rule in policy.rules]
        self._models = frozenset(policy.models)
        self._uses_hours = any(rule.match.hours is not None for rule in policy.rules)
        self._verdicts = {
            (model, index): _verdict(policy, model, index)
            for model in (None, *policy.models)
            for index in (None, *range(len(policy.rules)))
        }

    def judge(self, subject: Subject) -> Verdict:
        """The verdict on one request: the first rule with `route` or `set` that matches, and any `egress` that does."""
        model = subject.model if subject.model in self._models else None
        deciding: int | None = None
        egress_rule = ""
        minute = self._minute(subject.wall_time_s) if self._uses_hours else 0
        for index, rule in enumerate(self._rules):
            decides = deciding is None and rule.decides
            forbids = rule.forbids and not egress_rule
            if (decides or forbids) and rule.matches(subject, minute):
                deciding = index if decides else deciding
                egress_rule = rule.name if forbids else egress_rule
        verdict = self._verdicts[model, deciding]
        if egress_rule:
            return Verdict(verdict.settings, verdict.route, verdict.rule, egress_rule)
        return verdict

    def _minute(self, wall_time_s: float) -> int:
        local = datetime.fromtimestamp(wall_time_s, self._zone)
        return local.hour * 60 + local.minute


def _verdict(policy: Policy, model: str | None, index: int | None) -> Verdict:
    rule = None if index is None else policy.rules[index]
    return Verdict(policy.settings(model, rule), rule.route if rule else None, rule.name if rule else "", "")


class _CompiledRule:
    """One rule, with its values in the form that is quickest to test."""

    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.decides = rule.route is not None or rule.set is not None
        self.forbids = rule.egress is not None
        match = rule.match
        self._tags = {
            name: frozenset([values] if isinstance(values, str) else values) for name, values in match.tags.items()
        }
        models = [match.model] if isinstance(match.model, str) else match.model
        self._models = None if models is None else frozenset(models)
        self._hours = None if match.hours is None else hours_minutes(match.hours)
        self._above_bytes = None if match.size is None else match.size.above

    def matches(self, subject: Subject, minute: int) -> bool:
        """Whether every key of the match holds. A tag that the request lacks is the empty string."""
        if self._models is not None and subject.model not in self._models:
            return False
        if self._above_bytes is not None and subject.size_bytes <= self._above_bytes:
            return False
        if self._hours is not None and not _within(minute, *self._hours):
            return False
        for name, values in self._tags.items():  # noqa: SIM110  a generator costs more than the comparison
            if subject.tags.get(name, "") not in values:
                return False
        return True


def _within(minute: int, start: int, end: int) -> bool:
    """Whether a time of day lies in [start, end), where a span may cross midnight; equal ends mean all day."""
    if start < end:
        return start <= minute < end
    return minute >= start or minute < end
