"""Where the pure router meets the clock: its state, one lock around it, and the time of day."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from upwell.shared.routing.decide.decide import threshold_of
from upwell.shared.routing.decide.router import Router, Run
from upwell.shared.routing.decide.state import CloudDropped, CloudSent, Decision, EdgeRan, Outcome, RouterState, Signals
from upwell.shared.routing.estimators.audit import AuditTally
from upwell.shared.routing.estimators.breaker import Breaker
from upwell.shared.routing.estimators.budget import BudgetLedger
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.rules import RequestFacts, Verdict
from upwell.shared.routing.policy.settings import HardSettings, ModelPair, Settings

MODEL_PAIR_HOLDS_S = 10.0
"""So long a cloud's digest is believed: two versions behind one endpoint must not compile the policy each time."""

PROBE_AFTER_S, PROBE_AFTER_LATE_S = 5.0, 0.5
"""A link of which nothing was heard for so long is worth an empty call while requests come that may leave; sooner where
the last that was heard is that an answer was late."""

LAG_S, MOST_LAG, QUICK_S = 0.05, 8, 0.02
"""So late, and so many at once, runs are learnt that took less than the last: one by one they would cost each request
more than the decision does. The first of a model is learnt at once, and so is whatever follows a run that was slow."""

MOST_LOGGED = 100
"""So many lines about calibrations are remembered as told."""

_Carried: TypeAlias = Sequence[Calibration]
_NOTHING: Mapping[str, _Carried] = MappingProxyType({})
_NOBODY: Mapping[str, ModelPair] = MappingProxyType({})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelChange:
    """A model that is another one from now on: what calibrations go by, those that it brought, and seconds of runs of
    one row that it did already."""

    model: str
    model_pair: ModelPair
    carried: _Carried = ()
    durations_s: Sequence[float] = ()


class RouterService:
    """Owns the `RouterState`. Every method is safe to call from many threads and holds the lock for microseconds.

    `model_pairs` say, by model, which calibrations fit: those of the policy, and those that came with the models.
    """

    def __init__(
        self, policy: Policy, model_pairs: Mapping[str, ModelPair] = _NOBODY, carried: Mapping[str, _Carried] = _NOTHING
    ) -> None:
        self._model_pairs = dict(model_pairs)
        self._carried = dict(carried)
        self._misfits: dict[str, str] = {}
        self._logged: set[tuple[str, str]] = set()
        self._use(policy)
        self.recent = RouterState()
        """What is known, but for runs of the device that are learnt in a moment; immutable."""
        self._ran: deque[Run] = deque()
        self._learn_at_s = math.inf
        self._identified_at_s = -math.inf
        self.sent_at_s = -math.inf
        """When a message last began to leave, of a live request or of one that was kept (monotonic)."""
        self._lock = threading.Lock()
        self._tell_misfits()

    def _use(self, policy: Policy) -> None:
        """Compile the policy. Nothing changes where that raises."""
        router = _compiled(policy, self._model_pairs, self._carried)
        self._policy, self._router, self.digest = policy, router, policy.digest
        self.hards: Callable[[str], Collection[HardSettings]] = router.hards
        """Every way in which the policy may ask whether a row of a model is hard."""

    @property
    def state(self) -> RouterState:
        """All that is known now; immutable."""
        if self._ran:
            with self._lock:
                self._learn_runs()
        return self.recent

    @property
    def policy(self) -> Policy:
        """What it decides by."""
        return self._policy

    def settings(self, model: str) -> Settings:
        """What the policy comes to for a model where no rule says otherwise."""
        return self._router.settings(model)

    def hard_of(
        self, model: str, model_pair: ModelPair, carried: _Carried, policy: Policy | None = None
    ) -> HardSettings | None:
        """When a row of a model is hard, if it were this one; None where nobody asks, or no threshold of its own says.

        By the policy of now, or by the one that it is to be served with.
        One that is held to a share of requests is not its own: it follows what was measured before.
        """
        known = self._model_pairs.get(model, ModelPair())
        model_pairs = {**self._model_pairs, model: replace(model_pair, cloud_digest=known.cloud_digest)}
        hard = _compiled(policy or self._policy, model_pairs, {**self._carried, model: carried}).settings(model).hard
        return hard if hard is not None and hard.calibrated and math.isnan(hard.cloud_share) else None

    def decide(self, signals: Signals) -> Decision:
        """A decision, with what it needs for itself (probe slots, budgets) already taken."""
        now_s = time.monotonic()
        if now_s >= self._learn_at_s:
            with self._lock:
                self._learn_runs()
        while True:
            router = self._router
            decision = router.decide(self.recent, signals, now_s)
            stays = not decision.up_rows and decision.side_change is None
            if stays or not decision.needs_acquire:
                return decision
            with self._lock:
                self.recent, granted = router.acquire(self.recent, decision, now_s)
            if granted:
                return decision
            # Another request took it in between: with it taken, the next decision does not ask for it.

    def acquire_hedge(self, decision: Decision) -> bool:
        """Whether a second request may be sent for this decision now; it is paid for then."""
        with self._lock:
            self.recent, granted = self._router.acquire_hedge(self.recent, decision, time.monotonic())
        return granted

    def acquire_retry(self, decision: Decision) -> bool:
        """Whether the budgets allow one more message for this decision; it is paid for then."""
        with self._lock:
            self.recent, granted = self._router.acquire_retry(self.recent, decision)
        return granted

    def settle(self, decision: Decision, sent_bytes: int | None) -> None:
        """Correct what a message drew from budgets, once its size is known; None where none was sent."""
        if decision.draws:
            with self._lock:
                self.recent = self._router.settle(self.recent, decision, sent_bytes)

    def give_back(self, decision: Decision) -> None:
        """Return all that a decision took which nobody will act on."""
        self.settle(decision, None)
        if decision.probes:
            self.observe(CloudDropped(decision.model, decision.probes))

    def observe(self, outcome: Outcome) -> None:
        """Learn from an outcome."""
        if isinstance(outcome, EdgeRan):
            self.ran(outcome.model, outcome.rows, outcome.duration_s)
            return
        with self._lock:
            before, now_s = self.recent, time.monotonic()
            self.recent = after = self._router.observe(before, outcome, now_s)
            if isinstance(outcome, CloudSent):
                self.sent_at_s = now_s
        if after.breakers is not before.breakers:
            _log_changes(before.breakers, after.breakers)
        if after.audits is not before.audits:
            _log_alarms(before.audits, after.audits)

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        """Learn from a run of the device. Quick ones are learnt together, by the next decision after `LAG_S`."""
        now_s = time.monotonic()
        self._ran.append((model, rows, duration_s, now_s))
        count = len(self._ran)
        if count == 1:
            self._learn_at_s = now_s + LAG_S
        if count >= MOST_LAG or duration_s >= QUICK_S or model not in self.recent.edge:
            self._learn_at_s = now_s

    def _learn_runs(self) -> None:
        """Learn what the device ran; under the lock."""
        self._learn_at_s = math.inf
        self.recent = self._router.ran(self.recent, [self._ran.popleft() for _ in range(len(self._ran))])

    def replace_policy(self, policy: Policy) -> None:
        """Decide by another policy from now on. What was learnt stays."""
        with self._lock:
            self._use(policy)
            self._logged.clear()
        self._tell_misfits()

    def identify_cloud(self, model: str, digest: str) -> None:
        """Note which model answers up there: it decides which calibration fits."""
        known = self._model_pairs.get(model, ModelPair())
        if not digest or digest == known.cloud_digest:
            return
        with self._lock:
            now_s = time.monotonic()
            if known.cloud_digest and now_s - self._identified_at_s < MODEL_PAIR_HOLDS_S:
                return
            self._identified_at_s = now_s
            self._model_pairs = {**self._model_pairs, model: replace(known, cloud_digest=digest)}
            if not (self._policy.calibrations or self._carried):
                return
            self._use(self._policy)
        self._tell_misfits()

    def replace_models(self, changes: Sequence[ModelChange], policy: Policy | None = None) -> None:
        """From now on these models are others, or run elsewhere, and with `policy` it decides; all of it at once.

        What was learnt of their run times is forgotten. What their cloud is stays known.
        """
        with self._lock:
            former = {one.model: self._model_pairs.get(one.model, ModelPair()) for one in changes}
            for one in changes:
                known = former[one.model]
                pair = replace(one.model_pair, cloud_digest=known.cloud_digest, has_drifted=known.has_drifted)
                self._model_pairs = {**self._model_pairs, one.model: pair}
                # A version that brings none goes on from what the one before brought: those fit only what they name.
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
        """The rows of these models have drifted, those of no other have: for them `on_drift` holds."""
        with self._lock:
            former = self._model_pairs
            self._model_pairs = {name: replace(pair, has_drifted=name in models) for name, pair in former.items()}
            if self._model_pairs != former:
                self._use(self._policy)
        self._tell_misfits()

    def cloud_digest(self, model: str) -> str:
        """Of the model that answers up there; empty as long as that is not known."""
        return self._model_pairs.get(model, ModelPair()).cloud_digest

    def keeps(self, model: str) -> bool:
        """Whether requests of a model stay on the device, or some may have to: by a rule with `egress`, or by all."""
        rules = (rule.match.model for rule in self._policy.rules if rule.egress is not None)
        if any(named is None or model in ([named] if isinstance(named, str) else named) for named in rules):
            return True
        verdict = self.verdict(model, {}, (1,))
        return bool(verdict.egress_rule) or verdict.route == "edge"

    def misfit(self, model: str) -> str:
        """Why no calibration fits what the policy asks of this model; empty where one does, or none is needed."""
        return "; ".join(self._router.misfits(model))

    def _tell_misfits(self) -> None:
        """Say it once for each change, and not again where two versions answer in turn."""
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
                _log.warning("model %s: answers are uncalibrated: %s", model, misfit)
            else:
                _log.info("model %s: a calibration fits", model)

    def wants_probe(self) -> bool:
        """Whether an empty call is worth its bytes: nothing is under way, and nothing was heard for a while."""
        state = self.recent
        last = state.link.samples[-1] if state.link.samples else None
        is_away = any(breaker.is_open for breaker in state.breakers.values())
        after_s = PROBE_AFTER_LATE_S if is_away or (last is not None and last.is_bound) else PROBE_AFTER_S
        heard_at_s = -math.inf if last is None else last.at_s
        return state.backlog.is_idle and time.monotonic() - heard_at_s >= after_s

    def threshold(self, hard: HardSettings) -> float:
        """Where hard begins now."""
        return threshold_of(self.recent, hard)

    def curve(self, model: str) -> Sequence[tuple[float, float]]:
        """(share, risk): what it is worth to send up the hardest, as the last calibration says that fits; empty where
        none says it."""
        pair = self._model_pairs.get(model, ModelPair())
        carried = self._carried.get(model, ())
        named = [*carried, *(one for one in self._policy.calibrations if one.model == model)]
        return next((one.curve for one in reversed(named) if one.curve and not one.misfits(pair)), ())

    def shares(self) -> Mapping[str, float]:
        """The shares that a fleet allows, by model."""
        return {model: one.share for model, one in self.recent.allowances.items()}

    def allow(self, shares: Mapping[str, float]) -> None:
        """Let at most these shares of the models' rows go up, whatever the policy says; the policy alone for others."""
        with self._lock:
            self.recent = self._router.allow(self.recent, shares)

    def verdict(self, model: str, tags: Mapping[str, str], row_sizes_bytes: tuple[int, ...]) -> Verdict:
        """What the policy of now says about a request of rows of these sizes."""
        return self.judge(
            Signals(RequestFacts(model, tags, max(row_sizes_bytes), 0.0), row_sizes_bytes, time.monotonic())
        )

    def judge(self, signals: Signals, known: RouterState | None = None) -> Verdict:
        """What the policy of now says about a request at this time of day.

        `known` is what was learnt before the request's own message was said to be sent; all there is without it.
        """
        signals = replace(signals, request_facts=replace(signals.request_facts, wall_time_s=time.time()))
        return self._router.verdict(self.recent if known is None else known, signals, time.monotonic())

    def charge(self, model: str, size_bytes: int) -> bool:
        """Take the message of a kept case from the model's budgets; False where they do not have it to spare."""
        with self._lock:
            self.recent, paid = self._router.charge(self.recent, model, size_bytes, time.time())
        return paid

    def restore(self, budgets: BudgetLedger) -> None:
        """Take over what was spent before a restart."""
        with self._lock:
            self.recent = replace(self.recent, budgets=budgets)


def _compiled(policy: Policy, model_pairs: Mapping[str, ModelPair], carried: Mapping[str, _Carried]) -> Router:
    """The policy for these models, with the calibrations that came with them."""
    # A model may go by another name here than where it was calibrated.
    brought = [one.model_copy(update={"model": name}) for name, each in carried.items() for one in each]
    # Those of the policy stand last: between two that fit equally the later one holds.
    whole = policy.model_copy(update={"calibrations": [*brought, *policy.calibrations]}) if brought else policy
    return Router(whole, model_pairs)


def _log_changes(before: Mapping[str, Breaker], after: Mapping[str, Breaker]) -> None:
    """Say when the cloud is given up and when it is back: once each, where every request would flood the log."""
    for key, breaker in after.items():
        was_open = key in before and before[key].is_open
        if breaker.is_open and not was_open:
            _log.warning("the cloud is failing (%s): answering on the device and probing", key or "the whole service")
        elif was_open and not breaker.is_open:
            _log.warning("the cloud answers again (%s)", key or "the whole service")


def _log_alarms(before: Mapping[str, AuditTally], after: Mapping[str, AuditTally]) -> None:
    for scope, tally in after.items():
        if tally.alarm and not (scope in before and before[scope].alarm):
            _log.warning("audits say that the promised risk no longer holds (%s): calibrate the policy again", scope)
