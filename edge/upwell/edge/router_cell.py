"""Where the pure router meets the clock: its state, one lock around it, and the time of day."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from upwell.shared.routing.breaker import Breaker
from upwell.shared.routing.policy import Policy
from upwell.shared.routing.router import Router
from upwell.shared.routing.state import Decision, Outcome, RouterState, Signals

_log = logging.getLogger(__name__)


class RouterCell:
    """Owns the `RouterState`. Every method is safe to call from many threads and holds the lock for microseconds."""

    def __init__(self, policy: Policy) -> None:
        self._router = Router(policy)
        self._state = RouterState()
        self._lock = threading.Lock()

    @property
    def state(self) -> RouterState:
        """What is known now; immutable."""
        return self._state

    def decide(self, signals: Signals) -> Decision:
        """A decision with the probe slot it needs already taken."""
        now_s = time.monotonic()
        while True:
            decision = self._router.decide(self._state, signals, now_s)
            if not decision.probes:
                return decision
            with self._lock:
                self._state, granted = self._router.acquire(self._state, decision, now_s)
            if granted:
                return decision
            # Another request took the slot in between: with it taken, the next decision needs none.

    def observe(self, outcome: Outcome) -> None:
        """Learn from an outcome."""
        with self._lock:
            before = self._state.breakers
            self._state = self._router.observe(self._state, outcome, time.monotonic())
            after = self._state.breakers
        if after is not before:
            _log_changes(before, after)


def _log_changes(before: Mapping[str, Breaker], after: Mapping[str, Breaker]) -> None:
    """Say when the cloud is given up and when it is back: once each, where every request would flood the log."""
    for key, breaker in after.items():
        was_open = key in before and before[key].is_open
        if breaker.is_open and not was_open:
            _log.warning("the cloud fails (%s): answering on the device and probing", key or "the whole service")
        elif was_open and not breaker.is_open:
            _log.warning("the cloud answers again (%s)", key or "the whole service")
