"""A short cut for the most common decision: no rule applies, nothing calls for the cloud, and the edge is in time."""

from __future__ import annotations

import math
from datetime import timezone

from upwell.shared.routing.decide.decisions import before_edge
from upwell.shared.routing.decide.edge_time import NO_EDGE_TIME
from upwell.shared.routing.decide.offload import OffloadCase
from upwell.shared.routing.decide.router_state import Decision, RouterState, Signals
from upwell.shared.routing.estimators.deadline_reserve import reserve_s
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.request_facts import RequestFacts


class EdgeShortcut:
    """The result of `before_edge` for requests that stay, for a model whose `verdict` no rule changes.

    Such a decision depends on two facts only, so it is computed once for each. The full path takes a dozen calls, which
    cost as much as the rest of the agent on a device whose caches a model has just filled.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._limit_s = verdict.settings.deadline_s
        self._above_bytes = verdict.settings.large_above_bytes
        self._found = {
            (has_cloud, has_scores): _usual(verdict, has_cloud, has_scores)
            for has_cloud in (False, True)
            for has_scores in (False, True)
        }

    def decide(self, state: RouterState, signals: Signals, now_s: float) -> Decision | None:
        """The decision; None if the full path is needed."""
        sizes = signals.row_sizes_bytes
        times = state.edge.get(signals.request_facts.model)
        window = None if times is None else times.windows.get(len(sizes))
        if (
            window is None
            or not signals.has_edge
            or signals.split_routes
            or signals.pictures is not None
            or signals.hardness is not None
            or max(sizes) > self._above_bytes
            or now_s - window.last_at_s > FRESH_S
        ):
            return None
        deadline_s = min(signals.caller_deadline_s, signals.arrived_s + self._limit_s)
        queue_s = signals.edge_ahead * window.lately_s
        edge_s = queue_s + window.lately_s
        if now_s + edge_s >= deadline_s:
            return None
        give_up_s = deadline_s - reserve_s(deadline_s - signals.arrived_s)
        found = self._found[signals.has_cloud, signals.has_scores]
        return Decision(
            found.plan,
            found.reason,
            self._verdict,
            deadline_s,
            give_up_s,
            give_up_s - (queue_s + window.p99_s),
            escalate=found.escalate,
            predicted_edge_s=edge_s,
            model=signals.request_facts.model,
        )


def _usual(verdict: Verdict, has_cloud: bool, has_scores: bool) -> Decision:
    signals = Signals(RequestFacts("", {}, 0, 0.0), (0,), 0.0, has_cloud=has_cloud, has_scores=has_scores)
    return before_edge(
        OffloadCase(RouterState(), signals, verdict, math.inf, math.inf, 0.0, timezone.utc, NO_EDGE_TIME)
    )
