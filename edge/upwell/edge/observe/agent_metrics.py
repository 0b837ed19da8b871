"""The agent's metrics: answers and their times by model, route and reason, counted in a microsecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from upwell.edge.models.edge_model import ModelHealth
from upwell.edge.observe.request_counts import AnswerTally, LabelledCounter
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.reasons import DEGRADED, Reason, Route
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # imported when metrics are first read, since most programs that embed an agent never do
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

KEPT_THOUGH_WANTED = DEGRADED | {Reason.BUDGET_SPENT, Reason.FLEET_SHARE}
"""Reasons of edge answers for which the policy alone would have asked the cloud."""


@value_class
class ModelTotals:
    """Requests for a model: all, offloaded ones, those the policy wanted to offload; and the bytes sent."""

    requests: int = 0
    up: int = 0
    wanted: int = 0
    sent_bytes: int = 0

    def since(self, before: ModelTotals) -> ModelTotals:
        """The difference from an earlier total."""
        return ModelTotals(
            self.requests - before.requests, self.up - before.up, self.wanted - before.wanted,
            self.sent_bytes - before.sent_bytes,
        )  # fmt: skip


class AgentMetrics:
    """The agent's counters in a registry of their own, so that two agents may live in one process."""

    def __init__(
        self,
        state: Callable[[], RouterState],
        health: Callable[[], Sequence[ModelHealth]] = tuple,
        agent: str = "agent",
        policy_problem: Callable[[], str] = str,
    ) -> None:
        self._state, self._health, self._agent, self._policy_problem = state, health, agent, policy_problem
        self._exports: list[Callable[[], Iterable[Metric]]] = []
        self.answers = AnswerTally()
        """Each answer is to be added."""
        self._degraded = LabelledCounter(
            "upwell_degraded", "Edge answers where the policy wanted the cloud.", ("model", "reason")
        )
        self._failed = LabelledCounter(
            "upwell_failed", "Requests that ended in an error, by error.", ("model", "error")
        )
        self._late = LabelledCounter("upwell_late", "Answers that came after their deadline.", ("model",))
        self._audits = LabelledCounter("upwell_audits", "Audits that the cloud answered.", ("model", "agrees"))
        self._up = LabelledCounter("upwell_uplink_bytes", "Bytes of messages sent to the cloud.", ("model",))
        text = "Requests kept on the device because a rule could not be evaluated."
        self._rules = LabelledCounter("upwell_rule_errors", text, ("rule",))

    @cached_property
    def registry(self) -> CollectorRegistry:
        """All metrics for Prometheus, collected when they are read."""
        from upwell.edge.observe.metric_families import agent_families, answer_families, labelled_families, registry_of

        tallies = (self._degraded, self._failed, self._late, self._audits, self._up, self._rules)
        return registry_of(
            lambda: (
                *agent_families(self._agent, self._policy_problem(), self._state(), self._health()),
                *answer_families(self.answers),
                *labelled_families(tallies),
            ),
            lambda: (family for families in self._exports for family in families()),
        )

    def export(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Call this function when the registry is scraped, and export its metrics."""
        self._exports.append(families)

    def rule_failed(self, rule: str) -> None:
        """Count a rule that could not be evaluated."""
        self._rules.add(rule)

    def degraded(self, model: str, reason: Reason) -> None:
        """Count a degraded answer."""
        self._degraded.add(model, str(reason))

    def failed(self, model: str, error: Exception) -> None:
        """Count a request that ended in an error."""
        self._failed.add(model, type(error).__name__)

    def late(self, model: str) -> None:
        """Count an answer that came after its deadline."""
        self._late.add(model)

    def audited(self, model: str, *, agrees: bool) -> None:
        """Count the result of an audit."""
        self._audits.add(model, str(agrees).lower())

    def totals(self) -> dict[str, int]:
        """The totals over all models since the start, as reported to a fleet service."""
        routes = self.answers.by_route()
        audits = self._audits.counts()
        degraded: dict[str, int] = {}
        for (_, reason), count in self._degraded.counts().items():
            degraded[f"degraded.{reason}"] = degraded.get(f"degraded.{reason}", 0) + count
        return {
            "requests": sum(routes.values()),
            "up": sum(count for route, count in routes.items() if route not in (Route.EDGE, Route.EXIT)),
            "late": sum(self._late.counts().values()),
            "degraded": sum(self._degraded.counts().values()),
            "failed": sum(self._failed.counts().values()),
            "uplink_bytes": sum(self._up.counts().values()),
            "audits": sum(audits.values()),
            "disagreements": sum(count for labels, count in audits.items() if labels[-1] == "false"),
            **degraded,
        }

    def demand(self) -> dict[str, ModelTotals]:
        """The requests per model since the start, with those offloaded or wanted in the cloud."""
        sent = {labels[0]: count for labels, count in self._up.counts().items()}
        found = {}
        for model, answers in self.answers.by_model().items():
            up = sum(count for (route, _), count in answers.items() if route not in (Route.EDGE, Route.EXIT))
            kept = sum(
                count for (route, reason), count in answers.items()
                if route in (Route.EDGE, Route.EXIT) and reason in KEPT_THOUGH_WANTED
            )  # fmt: skip
            found[model] = ModelTotals(sum(answers.values()), up, up + kept, sent.get(model, 0))
        return found

    def sent(self, model: str, size_bytes: int) -> None:
        """Count bytes sent to the cloud, whatever the outcome."""
        self._up.add(model, count=size_bytes)
