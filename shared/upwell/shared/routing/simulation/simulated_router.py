"""Decides in a simulation: the agent's router with its state, unchanged or with something hidden from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    CloudDropped,
    Decision,
    EdgeRan,
    Outcome,
    RouterState,
    Scored,
    Signals,
)
from upwell.shared.routing.decide.send_turn import Turn, turn
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import ModelPair, Settings
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.routing.simulation.logged_requests import Score, score
from upwell.shared.routing.simulation.simulated_time import Kernel

_NO_SHARES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Habits:
    """Differences from the real agent.

    `scores` replaces the device's scores; without `learns_scores` no controller sees them. Without `has_cloud` nothing
    is offloaded. `tests_link` False hides what was learnt of link and cloud, so that every candidate is tried: a fixed
    threshold with breaker, deadline and fallback, but without predictions. Without `queues` every message is sent at
    once.
    """

    scores: Score = score
    learns_scores: bool = True
    has_cloud: bool = True
    tests_link: bool = True
    queues: bool = True


class Pilot:
    """A router and its state, used as the agent does: one decision with everything that it needs already taken."""

    def __init__(
        self,
        policy: Policy,
        model_pairs: Mapping[str, ModelPair],
        kernel: Kernel,
        habits: Habits,
        fleet_shares: Mapping[str, float] = _NO_SHARES,
    ) -> None:
        self._router = Router(policy, model_pairs)
        self._kernel = kernel
        self.state = self._router.allow(RouterState(), fleet_shares)
        self.habits = habits
        self._wakes: dict[str, Callable[[], None]] = {}

    def settings(self, model: str) -> Settings:
        """The settings of a model if no rule changes them."""
        return self._router.settings(model)

    def decide(self, signals: Signals) -> Decision:
        """The decision on a request."""
        now_s = self._kernel.now_s
        while True:
            decision = self._router.decide(self._seen(), signals, now_s)
            self.state, granted = self._router.acquire(self.state, decision, now_s)
            if granted:
                return decision

    def acquire_hedge(self, decision: Decision) -> bool:
        """See `RouterPort`."""
        self.state, granted = self._router.acquire_hedge(self.state, decision, self._kernel.now_s)
        return granted

    def acquire_retry(self, decision: Decision) -> bool:
        """See `RouterPort`."""
        self.state, granted = self._router.acquire_retry(self.state, decision)
        return granted

    def settle(self, decision: Decision, sent_bytes: int | None, settled_bytes: int | None = None) -> None:
        """See `RouterPort`."""
        self.state = self._router.settle(self.state, decision, sent_bytes, settled_bytes)

    def give_back(self, decision: Decision) -> None:
        """See `RouterPort`."""
        self.state = self._router.give_back(self.state, decision)
        if decision.probes:
            self.observe(CloudDropped(decision.model, decision.probes, interface=decision.interface))

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        """See `RouterPort`."""
        self.observe(EdgeRan(model, rows, duration_s))

    def observe(self, outcome: Outcome) -> None:
        """Learn from an outcome."""
        if isinstance(outcome, Scored) and not self.habits.learns_scores:
            return
        self.state = self._router.observe(self.state, outcome, self._kernel.now_s)
        first = self.state.queue.first
        if first is not None:
            self._wakes[first]()

    def turn(self, message: QueuedMessage) -> Turn:
        """See `RouterPort`."""
        if not self.habits.queues:
            return Turn(-math.inf)
        return turn(self._seen(), message, self._kernel.now_s)

    def enqueue(self, message: QueuedMessage, wake: Callable[[], None]) -> None:
        """Put a message into the queue before the link; `wake` is called when its turn may have come."""
        self.state = replace(self.state, queue=self.state.queue.joined(message))
        self._wakes[message.call] = wake

    def _seen(self) -> RouterState:
        if self.habits.tests_link:
            return self.state
        known = self.state
        return RouterState(
            edge=known.edge, breakers=known.breakers, budgets=known.budgets, hedges=known.hedges,
            allowances=known.allowances, overruns=known.overruns,
        )  # fmt: skip
