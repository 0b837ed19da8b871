"""The router in a running agent: its state behind one lock, and the clock."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from upwell.shared.routing.decide.decisions import threshold_of
from upwell.shared.routing.decide.router import Router, Run
from upwell.shared.routing.decide.router_state import (
    CloudCallFailed,
    CloudDropped,
    CloudSent,
    Decision,
    EdgeRan,
    LinkState,
    Outcome,
    RouterState,
    Signals,
)
from upwell.shared.routing.decide.send_turn import Turn, turn
from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.estimators.budget_ledger import BudgetLedger
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.compiled_policy import RequestFacts, Verdict
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair, Settings
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.value_classes import value_class

MODEL_PAIR_HOLDS_S = 10.0
"""Minimum time between changes of a cloud's digest, since two versions behind one endpoint would recompile the policy
each time."""

PROBE_AFTER_S, PROBE_AFTER_LATE_S = 5.0, 0.5
"""A link without samples for this long is probed with an empty call while requests come that may leave; sooner if the
last answer was late."""

LAG_S, MOST_LAG, QUICK_S = 0.05, 8, 0.02
"""How late, and how many at once, runs faster than the last are learned: one at a time they would cost each request
more than the decision. A model's first run is learned at once, and so is whatever follows a slow run."""

MOST_LOGGED = 100
"""Maximum number of remembered log lines about calibrations."""

_LONGEST = 500

_Carried: TypeAlias = Sequence[Calibration]
_NOTHING: Mapping[str, _Carried] = MappingProxyType({})
_NOBODY: Mapping[str, ModelPair] = MappingProxyType({})
_log = logging.getLogger(__name__)


@value_class
class ModelChange:
    """A replaced model: its pair for calibrations, the calibrations in its bundle, and its first one-row run times
    (s)."""

    model: str
    model_pair: ModelPair
    carried: _Carried = ()
    durations_s: Sequence[float] = ()


class RouterService:
    """Owns the `RouterState`. Thread-safe; every method holds the lock for microseconds.

    `model_pairs` identify the matching calibrations of each model, from the policy and from the bundles. `interfaces`
    are the network interfaces that messages may leave by, the preferred one first; empty if the system chooses.
    """

    def __init__(
        self,
        policy: Policy,
        model_pairs: Mapping[str, ModelPair] = _NOBODY,
        carried: Mapping[str, _Carried] = _NOTHING,
        interfaces: Sequence[str] = (),
    ) -> None:
        self._model_pairs = dict(model_pairs)
        self._carried = dict(carried)
        self._misfits: dict[str, str] = {}
        self._logged: set[tuple[str, str]] = set()
        self._use(policy)
        first, *others = interfaces or ("",)
        self.recent = RouterState(interface=first, others={name: LinkState() for name in others})
        """The state without the runs that are still to be learned; immutable."""
        self._ran: deque[Run] = deque()
        self._learn_at_s = math.inf
        self._identified_at_s = -math.inf
        self.sent_at_s = -math.inf
        """When the last message began to be sent, for a live or a spooled request (monotonic)."""
        self._wakes: dict[str, Callable[[], None]] = {}
        """By call, for messages that wait for the link."""
        self._lock = threading.Lock()
        self._tell_misfits()

    def _use(self, policy: Policy) -> None:
        """Compile the policy. If that raises, nothing changes."""
        router = _compiled(policy, self._model_pairs, self._carried)
        self._policy, self._router, self.digest = policy, router, policy.digest
        self.hards: Callable[[str], Collection[HardSettings]] = router.hards
        """Every hardness setting that the policy may apply to a model."""

    @property
    def state(self) -> RouterState:
        """The present state; immutable."""
        if self._ran:
            with self._lock:
                self._learn_runs()
        return self.recent

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    def settings(self, model: str) -> Settings:
        """The policy's settings for a model without any rule."""
        return self._router.settings(model)

    def hard_of(
        self, model: str, model_pair: ModelPair, carried: _Carried, policy: Policy | None = None
    ) -> HardSettings | None:
        """The hardness setting that applies to a row of this model; None if there is none, or no threshold of its own.

        It uses the present policy, or the one that the model will be served with.
        A threshold for a share of requests is not the model's own: it follows earlier measurements.
        """
        known = self._model_pairs.get(model, ModelPair())
        model_pairs = {**self._model_pairs, model: replace(model_pair, cloud_digest=known.cloud_digest)}
        hard = _compiled(policy or self._policy, model_pairs, {**self._carried, model: carried}).settings(model).hard
        return hard if hard is not None and hard.calibrated and math.isnan(hard.cloud_share) else None

    def decide(self, signals: Signals) -> Decision:
        """Decide, and acquire what the decision needs (probe slots, budgets)."""
        now_s = time.monotonic()
        if now_s >= self._learn_at_s:
            with self._lock:
                self._learn_runs()
        while True:
            router = self._router
            decision = router.decide(self.recent, signals, now_s)
            if not decision.needs_acquire:
                return decision
            with self._lock:
                self.recent, granted = router.acquire(self.recent, decision, now_s)
            if granted:
                return decision
            # Another request took it meanwhile; the next decision will not ask for it.

    def acquire_hedge(self, decision: Decision) -> bool:
        """Whether a hedge may be sent for this decision now; if so, it is charged."""
        with self._lock:
            self.recent, granted = self._router.acquire_hedge(self.recent, decision, time.monotonic())
        return granted

    def acquire_retry(self, decision: Decision) -> bool:
        """Whether the budgets allow another message for this decision; if so, it is charged."""
        with self._lock:
            self.recent, granted = self._router.acquire_retry(self.recent, decision)
        return granted

    def settle(self, decision: Decision, sent_bytes: int | None, settled_bytes: int | None = None) -> None:
        """Correct a message's charge, which was corrected to `settled_bytes` before, once its size is known; None if
        none was sent."""
        if decision.draws:
            with self._lock:
                self.recent = self._router.settle(self.recent, decision, sent_bytes, settled_bytes)

    def give_back(self, decision: Decision) -> None:
        """Return all that was acquired for a decision that is not carried out."""
        with self._lock:
            self.recent = self._router.give_back(self.recent, decision)
        if decision.probes:
            self.observe(CloudDropped(decision.model, decision.probes, interface=decision.interface))

    def observe(self, outcome: Outcome) -> None:
        """Update the state with an outcome."""
        if isinstance(outcome, EdgeRan):
            self.ran(outcome.model, outcome.rows, outcome.duration_s)
            return
        with self._lock:
            before, now_s = self.recent, time.monotonic()
            self.recent = after = self._router.observe(before, outcome, now_s)
            if isinstance(outcome, CloudSent):
                self.sent_at_s = now_s
            wakes = self._next_wakes() if self._wakes else ()
        for wake in wakes:
            wake()
        for interface in (after.interface, *after.others):
            _log_changes(outcome, interface, before.over(interface).breakers, after.over(interface).breakers)
        if after.audits is not before.audits:
            _log_alarms(before.audits, after.audits)

    def turn(self, message: QueuedMessage) -> Turn:
        """When a message may leave."""
        return turn(self.recent, message, time.monotonic())

    def enqueue(self, message: QueuedMessage, wake: Callable[[], None]) -> None:
        """Put a message into the queue before the link; `wake` is called, from any thread, when its turn may have come,
        until an outcome of its call is told. It must not block."""
        with self._lock:
            state = self.recent.over(message.interface)
            self.recent = self.recent.merged(replace(state, queue=state.queue.joined(message)))
            self._wakes[message.call] = wake

    def _next_wakes(self) -> Sequence[Callable[[], None]]:
        """How to wake whoever goes next over each interface; under the lock."""
        queues = (self.recent.queue, *(other.queue for other in self.recent.others.values()))
        waiting = {message.call for queue in queues for message in queue.waiting}
        self._wakes = {call: wake for call, wake in self._wakes.items() if call in waiting}
        return [self._wakes[queue.first] for queue in queues if queue.first in self._wakes]

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        """Learn from a run on the device. Fast ones are learned in batches, by the next decision after `LAG_S`."""
        now_s = time.monotonic()
        self._ran.append((model, rows, duration_s, now_s))
        count = len(self._ran)
        if count == 1:
            self._learn_at_s = now_s + LAG_S
        if count >= MOST_LAG or duration_s >= QUICK_S or model not in self.recent.edge:
            self._learn_at_s = now_s

    def _learn_runs(self) -> None:
        """Learn the pending runs; call it under the lock."""
        self._learn_at_s = math.inf
        self.recent = self._router.ran(self.recent, [self._ran.popleft() for _ in range(len(self._ran))])

    def replace_policy(self, policy: Policy) -> None:
        """Decide by another policy from now on. What was learned stays."""
        with self._lock:
            self._use(policy)
            self._logged.clear()
        self._tell_misfits()

    def identify_cloud(self, model: str, digest: str) -> None:
        """Note which model answers in the cloud: it decides which calibration matches."""
        if not digest or digest == self.cloud_digest(model):
            return
        with self._lock:
            known, now_s = self._model_pairs.get(model, ModelPair()), time.monotonic()
            if known.cloud_digest and now_s - self._identified_at_s < MODEL_PAIR_HOLDS_S:
                return
            self._identified_at_s = now_s
            self._model_pairs = {**self._model_pairs, model: replace(known, cloud_digest=digest)}
            if not (self._policy.calibrations or self._carried):
                return
            self._use(self._policy)
        self._tell_misfits()

    def replace_models(self, changes: Sequence[ModelChange], policy: Policy | None = None) -> None:
        """Replace these models, or where they run, and the policy by `policy`, all at once.

        Their learned run times are dropped. The digests of their cloud models are kept.
        """
        with self._lock:
            former = {one.model: self._model_pairs.get(one.model, ModelPair()) for one in changes}
            for one in changes:
                known = former[one.model]
                pair = replace(one.model_pair, cloud_digest=known.cloud_digest, has_drifted=known.has_drifted)
                self._model_pairs = {**self._model_pairs, one.model: pair}
                # A version without calibrations keeps the previous version's: those apply only to the digests they
                # name.
                carried = one.carried or self._carried.get(one.model, ())
                self._carried = {**self._carried, one.model: carried}
            self._use(policy or self._policy)
            self._learn_runs()
            state, now_s = self.recent, time.monotonic()
            for one in changes:
                alike = one.model_pair.edge_digest == former[one.model].edge_digest
                state = self._router.of_another_model(state, one.model, scores_alike=alike)
                for duration_s in one.durations_s:
                    state = self._router.observe(state, EdgeRan(one.model, 1, duration_s), now_s)
            self.recent = state
            if policy is not None:
                self._logged.clear()
        self._tell_misfits()

    def set_drifted(self, models: Collection[str]) -> None:
        """Set the models whose rows have drifted, to which `on_drift` applies."""
        with self._lock:
            former = self._model_pairs
            self._model_pairs = {name: replace(pair, has_drifted=name in models) for name, pair in former.items()}
            if self._model_pairs != former:
                self._use(self._policy)
        self._tell_misfits()

    def cloud_digest(self, model: str) -> str:
        """The digest of the cloud model; empty while unknown."""
        return self._model_pairs.get(model, ModelPair()).cloud_digest

    def edge_runtime(self, model: str) -> str:
        """Where the device is known to run the model, such as `onnx+qnn`."""
        return self._model_pairs.get(model, ModelPair()).edge_runtime

    def keeps(self, model: str) -> bool:
        """Whether all or some requests of a model may have to stay on the device because of an `egress` rule."""
        rules = (rule.match.model for rule in self._policy.rules if rule.egress is not None)
        if any(named is None or model in ([named] if isinstance(named, str) else named) for named in rules):
            return True
        verdict = self.verdict(model, {}, (1,))
        return bool(verdict.egress_rule) or verdict.route == "edge"

    def misfit(self, model: str) -> str:
        """Why no calibration fits the policy's targets for this model; empty if one does, or none is needed."""
        return "; ".join(self._router.misfits(model))

    def _tell_misfits(self) -> None:
        """Log each change once, and not again if two versions answer in turn."""
        for model in self._model_pairs:
            misfit = self.misfit(model)
            if misfit == self._misfits.get(model, ""):
                continue
            self._misfits[model] = misfit
            if (model, misfit) in self._logged:
                continue
            if len(self._logged) >= MOST_LOGGED:
                self._logged.clear()
            self._logged.add((model, misfit))
            if misfit:
                _log.warning("model %s: uncalibrated: %s", model, misfit)
            else:
                _log.info("model %s: a calibration fits", model)

    def wants_probe(self, interface: str = "") -> bool:
        """Whether the link over an interface should be probed: no call is in progress, and there was no sample for a
        while."""
        state = self.recent.over(interface)
        last = state.link.samples[-1] if state.link.samples else None
        is_away = any(breaker.is_open for breaker in state.breakers.values())
        after_s = PROBE_AFTER_LATE_S if is_away or (last is not None and last.is_bound) else PROBE_AFTER_S
        heard_at_s = -math.inf if last is None else last.at_s
        return state.backlog.is_idle and time.monotonic() - heard_at_s >= after_s

    def threshold(self, hard: HardSettings) -> float:
        """The present threshold of hardness."""
        return threshold_of(self.recent, hard)

    def curve(self, model: str) -> Sequence[tuple[float, float]]:
        """(share, risk) of offloading the hardest rows, from the last calibration that matches; empty without one."""
        pair = self._model_pairs.get(model, ModelPair())
        carried = self._carried.get(model, ())
        named = [*carried, *(one for one in self._policy.calibrations if one.model == model)]
        return next((one.curve for one in reversed(named) if one.curve and not one.misfits(pair)), ())

    def shares(self) -> Mapping[str, float]:
        """The shares of a fleet's budget, by model."""
        return {model: one.share for model, one in self.recent.allowances.items()}

    def allow(self, shares: Mapping[str, float]) -> None:
        """Limit the offloaded share of these models' rows beyond the policy; for others only the policy applies."""
        with self._lock:
            self.recent = self._router.allow(self.recent, shares)

    def verdict(self, model: str, tags: Mapping[str, str], row_sizes_bytes: tuple[int, ...]) -> Verdict:
        """The present policy's verdict on a request with rows of these sizes."""
        return self.judge(
            Signals(RequestFacts(model, tags, max(row_sizes_bytes), 0.0), row_sizes_bytes, time.monotonic())
        )

    def judge(self, signals: Signals, known: RouterState | None = None) -> Verdict:
        """The present policy's verdict on a request at this time of day.

        `known` is the state before the request's own message was sent; by default the present state.
        """
        signals = replace(signals, request_facts=replace(signals.request_facts, wall_time_s=time.time()))
        return self._router.verdict(self.recent if known is None else known, signals, time.monotonic())

    def charge(self, model: str, size_bytes: int, wall_time_s: float) -> bool:
        """Charge the message of a spooled case to the model's budgets; False if they cannot spare it."""
        with self._lock:
            self.recent, paid = self._router.charge(self.recent, model, size_bytes, wall_time_s)
        return paid

    def refund(self, model: str, size_bytes: int, wall_time_s: float) -> None:
        """Undo a charge made at that time: nothing has left."""
        with self._lock:
            self.recent = self._router.refund(self.recent, model, size_bytes, wall_time_s)

    def restore(self, budgets: BudgetLedger) -> None:
        """Restore what was spent before a restart."""
        with self._lock:
            self.recent = replace(self.recent, budgets=budgets)


def _compiled(policy: Policy, model_pairs: Mapping[str, ModelPair], carried: Mapping[str, _Carried]) -> Router:
    """The policy compiled for these models, with the calibrations from their bundles."""
    # A model may have another name here than where it was calibrated.
    brought = [one.model_copy(update={"model": name}) for name, each in carried.items() for one in each]
    # Those of the policy come last: of two equal matches the later one wins.
    whole = policy.model_copy(update={"calibrations": [*brought, *policy.calibrations]}) if brought else policy
    return Router(whole, model_pairs)


def _log_changes(outcome: Outcome, interface: str, before: Mapping[str, Breaker], after: Mapping[str, Breaker]) -> None:
    """Log when the cloud fails and when it is back, once each, so that requests do not flood the log."""
    if after is before:
        return
    over = f" over {interface}" if interface else ""
    for key, breaker in after.items():
        was_open = key in before and before[key].is_open
        if breaker.is_open and not was_open:
            why = f", {outcome.reason.value}" if isinstance(outcome, CloudCallFailed) else ""
            if isinstance(outcome, CloudCallFailed) and outcome.detail:
                why += f": {outcome.detail[:_LONGEST]!r}"
            text = "the cloud is failing%s (%s%s): answering on the device and probing"
            _log.warning(text, over, key or "the whole service", why)
        elif was_open and not breaker.is_open:
            _log.warning("the cloud answers again%s (%s)", over, key or "the whole service")


def _log_alarms(before: Mapping[str, AuditAlarm], after: Mapping[str, AuditAlarm]) -> None:
    for scope, tally in after.items():
        if tally.alarm and not (scope in before and before[scope].alarm):
            _log.warning("audits say that the promised risk no longer holds (%s): calibrate the policy again", scope)
