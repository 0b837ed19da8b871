"""The router: from a request's signals and the learnt state to a decision, and from outcomes to a new state.

Pure: no clock, no lock, no I/O. Time is an argument; the agent owns the state and its lock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timezone, tzinfo
from types import MappingProxyType
from typing import TypeAlias
from zoneinfo import ZoneInfo

from upwell.shared.routing.decide import state_updates
from upwell.shared.routing.decide.decisions import after_edge, before_edge, threshold_of
from upwell.shared.routing.decide.edge_shortcut import EdgeShortcut
from upwell.shared.routing.decide.edge_time import NO_EDGE_TIME, EdgeTime
from upwell.shared.routing.decide.offload import OffloadCase, chance_of, draw_of, facts, predict
from upwell.shared.routing.decide.router_state import (
    Audited,
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudMoved,
    CloudSent,
    Decision,
    EdgeRan,
    GaveUp,
    LinkProbed,
    Outcome,
    PicturesPrepared,
    RouterState,
    Scored,
    Signals,
)
from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.estimators.budget_ledger import Draw
from upwell.shared.routing.estimators.deadline_reserve import reserve_s
from upwell.shared.routing.estimators.fleet_allowance import Allowance
from upwell.shared.routing.estimators.hedging import HEDGE_BURST, NO_HEDGES, paid_hedge
from upwell.shared.routing.estimators.link_estimate import LinkEstimate
from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.estimators.preparation_times import NO_PREPARATIONS
from upwell.shared.routing.estimators.run_and_answer_times import RunTimes
from upwell.shared.routing.estimators.uplink_backlog import Backlog
from upwell.shared.routing.estimators.uplink_bid_price import BidPrice
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, RequestFacts, Verdict
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair, Settings
from upwell.shared.routing.reasons import Reason

Run: TypeAlias = tuple[str, int, float, float]
"""A run on the device: the model, its number of rows, its duration (seconds), and its end time."""

OF_THE_LINK = frozenset({Reason.BREAKER_OPEN, Reason.CLOUD_TOO_SLOW, Reason.CLOUD_NOT_BETTER, Reason.BUDGET_SPENT})
"""Obstacles that another network interface may not have: it may be faster, or free."""

GOOD_CHANCE = 0.9
"""Chance of an answer in time from which on no other interface is looked at, however good: it may be the dear one."""

AGAIN_S = 10.0
"""After so long without a message over it, an interface that was too slow is tried with one."""

_OF_A_LINK = (CloudSent, CloudAnswered, CloudCallFailed, CloudDropped, CloudMoved, LinkProbed)

_NOBODY: Mapping[str, ModelPair] = MappingProxyType({})
_NO_RUNS = RunTimes()


def _hards(policy: Policy, model: str | None, model_pair: ModelPair | None) -> tuple[HardSettings, ...]:
    """The hardness settings of a model, without a rule and for each rule."""
    found = (policy.settings(model, rule, model_pair).hard for rule in (None, *policy.rules))
    return tuple(dict.fromkeys(hard for hard in found if hard is not None))


class Router:
    """Decides by a policy. Immutable, so one object serves all threads.

    `model_pairs` decide, by model, which calibrations fit.
    """

    def __init__(self, policy: Policy, model_pairs: Mapping[str, ModelPair] = _NOBODY) -> None:
        self._policy = CompiledPolicy(policy, model_pairs)
        self.zone: tzinfo = timezone.utc if policy.timezone == "UTC" else ZoneInfo(policy.timezone)
        models = (None, *{*policy.models, *model_pairs})
        self._settings = {model: policy.settings(model, None, model_pairs.get(model or "")) for model in models}
        self._hards = {model: _hards(policy, model, model_pairs.get(model or "")) for model in models}
        names = () if policy.rules else models
        self._edge_shortcuts = {
            model: EdgeShortcut(self._policy.judge(RequestFacts(model or "", {}, 0, 0.0))) for model in names
        }
        self._hard = {hard.scope: hard for hards in self._hards.values() for hard in hards}

    def settings(self, model: str) -> Settings:
        """The settings of a model if no rule changes them."""
        return self._settings.get(model) or self._settings[None]

    def hards(self, model: str) -> Collection[HardSettings]:
        """All hardness settings that the policy may use for this model."""
        return self._hards.get(model) or self._hards[None]

    def misfits(self, model: str) -> tuple[str, ...]:
        """Why no calibration fits a target that the policy names for this model, one sentence each."""
        return tuple(dict.fromkeys(hard.misfit for hard in self.hards(model) if hard.misfit))

    def of_another_model(self, state: RouterState, model: str, *, scores_alike: bool) -> RouterState:
        """The state once the device runs another model under this name, or the same on other hardware: its run times
        are forgotten. Its scores are too unless they are alike; the shares that were offloaded are kept."""
        edge = {name: times for name, times in state.edge.items() if name != model}
        preparation = {name: times for name, times in state.preparation.items() if name != model}
        state = replace(state, edge=edge, preparation=preparation)
        if scores_alike:
            return state
        ours = {hard.scope: hard for hard in self.hards(model) if hard.scope in state.shares}
        anew = {scope: state.shares[scope].of_another_model(hard) for scope, hard in ours.items()}
        return replace(state, shares={**state.shares, **anew})

    def verdict(self, state: RouterState, signals: Signals, now_s: float) -> Verdict:
        """The policy's verdict on this request, before any prediction."""
        known = facts(state, signals, now_s) if self._policy.uses_facts else None
        return self._policy.judge(signals.request_facts, known)

    def charge(self, state: RouterState, model: str, size_bytes: int, wall_time_s: float) -> tuple[RouterState, bool]:
        """Draw the message of a kept case from the model's budgets; False if they cannot spare it."""
        draws = self._kept_draws(state, model, size_bytes, wall_time_s)
        allowance = state.allowances.get(model)
        if not state.budgets.spares_all(draws, self.zone) or (allowance is not None and not allowance.has_room):
            return state, False
        return (replace(state, budgets=state.budgets.take(draws, self.zone)) if draws else state), True

    def refund(self, state: RouterState, model: str, size_bytes: int, wall_time_s: float) -> RouterState:
        """Undo `charge` for a message of which nothing has left."""
        draws = self._kept_draws(state, model, size_bytes, wall_time_s)
        back = [replace(draw, amount=-draw.amount) for draw in draws]
        return replace(state, budgets=state.budgets.take(back, self.zone)) if back else state

    def _kept_draws(self, state: RouterState, model: str, size_bytes: int, wall_time_s: float) -> tuple[Draw, ...]:
        settings = self.settings(model)
        prices = settings.prices.over(state.interface)
        return tuple(draw_of(limit, prices, size_bytes, wall_time_s) for limit in settings.budget)

    def decide(self, state: RouterState, signals: Signals, now_s: float) -> Decision:
        """What to do with this request now: before the edge run, or after it where `signals.hardness` is there.

        With several interfaces, rows go up by the first over which they are in time with a chance of `GOOD_CHANCE`,
        and where there is none by the likeliest. One of which nothing is known, or nothing of the last `AGAIN_S`, is
        tried; one that failed, only once its link was heard again or where no other will do.
        """
        if not state.interface:
            return self._decide(state, signals, now_s)
        ranked: list[tuple[tuple[bool, bool, float], Decision]] = []
        for interface in (state.interface, *state.others):
            decision = replace(self._decide(state.over(interface), signals, now_s), interface=interface)
            may_differ = decision.up_rows or decision.refusal or decision.obstacle in OF_THE_LINK
            rank = _rank(state, signals, decision, now_s)
            if rank >= _WILL_DO or not (ranked or may_differ):
                return decision
            ranked.append((rank, decision))
        return max(ranked, key=lambda pair: pair[0])[1]

    def _decide(self, state: RouterState, signals: Signals, now_s: float) -> Decision:
        if self._edge_shortcuts:
            shortcut = self._edge_shortcuts.get(signals.request_facts.model) or self._edge_shortcuts[None]
            decision = shortcut.decide(state, signals, now_s)
            if decision is not None:
                return decision
        verdict = self.verdict(state, signals, now_s)
        if verdict.settings.prices.interfaces:
            settings = verdict.settings
            verdict = replace(verdict, settings=replace(settings, prices=settings.prices.over(state.interface)))
        deadline_s = min(signals.caller_deadline_s, signals.arrived_s + verdict.settings.deadline_s)
        is_first, rows = signals.hardness is None, len(signals.row_sizes_bytes)
        available_s = deadline_s - signals.arrived_s
        give_up_s = deadline_s - (reserve_s(available_s) if is_first else state.overruns.reserve_s(available_s))
        edge = EdgeTime.of(state, signals, rows, now_s) if is_first else NO_EDGE_TIME
        case = OffloadCase(state, signals, verdict, deadline_s, give_up_s, now_s, self.zone, edge)
        return before_edge(case) if is_first else after_edge(case)

    def acquire(self, state: RouterState, decision: Decision, now_s: float) -> tuple[RouterState, bool]:
        """Take what the decision needs exclusively: probe slots and budgets; False if others took it first.

        Call it if `decision.needs_acquire`; after a refusal, decide again.
        """
        before, state = state, state.over(decision.interface)
        breakers = dict(state.breakers) if decision.probes else state.breakers
        for key in decision.probes:
            if not breakers[key].has_slot(now_s):
                return before, False
            if breakers[key].is_open:
                breakers = {**breakers, key: breakers[key].take_probe(now_s)}
        budgets = state.budgets
        if decision.draws:
            if not budgets.has_all(decision.draws, self.zone):
                return before, False
            budgets = budgets.take(decision.draws, self.zone)
        last_side, change = state.last_side, decision.side_change
        if change is not None:
            last_side = {**last_side, decision.model: change}
        hedges, hedge = state.hedges, decision.verdict.settings.hedge
        if hedge is not None and decision.up_rows:
            tokens = hedges.get(decision.model, NO_HEDGES).give(hedge.at_most, HEDGE_BURST)
            hedges = {**hedges, decision.model: tokens}
        bid_prices, hard = state.bid_prices, decision.verdict.settings.hard
        if decision.candidates and hard is not None:
            group = decision.model, hard.measure
            price = bid_prices.get(group) or BidPrice.start(hard.measure)
            bid_prices = {**bid_prices, group: price.add(decision.candidates, decision.candidate_bytes, now_s)}
        taken = replace(
            state, breakers=breakers, budgets=budgets, last_side=last_side, hedges=hedges, bid_prices=bid_prices
        )
        return before.merged(taken), True

    def acquire_hedge(self, state: RouterState, decision: Decision, now_s: float) -> tuple[RouterState, bool]:
        """Pay for a hedge: a token of the model's bucket, and every budget once more."""
        paid = paid_hedge(state.hedges.get(decision.model, NO_HEDGES))
        if paid is None or now_s >= decision.give_up_s or not state.budgets.has_all(decision.draws, self.zone):
            return state, False
        budgets = state.budgets.take(decision.draws, self.zone)
        return replace(state, hedges={**state.hedges, decision.model: paid}, budgets=budgets), True

    def acquire_retry(self, state: RouterState, decision: Decision) -> tuple[RouterState, bool]:
        """Pay for a retry: every budget once more."""
        if not state.budgets.has_all(decision.draws, self.zone):
            return state, False
        return replace(state, budgets=state.budgets.take(decision.draws, self.zone)), True

    def settle(
        self, state: RouterState, decision: Decision, sent_bytes: int | None, settled_bytes: int | None = None
    ) -> RouterState:
        """Correct the draws of a message once its true size is known; None if it was never sent: all is given back.

        `settled_bytes` is the size that they were corrected to before; None if they are still those of the decision.
        """
        if not decision.draws:
            return state
        prices = decision.verdict.settings.prices

        def cost(draw: Draw, size_bytes: int | None) -> float:
            if size_bytes is None:
                return draw.amount
            return draw_of(draw.limit, prices, size_bytes, draw.wall_time_s).amount

        corrections = [
            replace(draw, amount=(0.0 if sent_bytes is None else cost(draw, sent_bytes)) - cost(draw, settled_bytes))
            for draw in decision.draws
        ]
        return replace(state, budgets=state.budgets.take(corrections, self.zone))

    def give_back(self, state: RouterState, decision: Decision) -> RouterState:
        """Undo the draws of a decision that is not carried out, and what its message earned for hedges."""
        state, hedge = self.settle(state, decision, None), decision.verdict.settings.hedge
        if hedge is None or not decision.up_rows:
            return state
        tokens = state.hedges.get(decision.model, NO_HEDGES).take(hedge.at_most)
        return replace(state, hedges={**state.hedges, decision.model: tokens})

    def observe(self, state: RouterState, outcome: Outcome, now_s: float) -> RouterState:
        """The state with one more outcome learnt."""
        if isinstance(outcome, _OF_A_LINK) and outcome.interface in state.others:
            return state.merged(self._observe(state.over(outcome.interface), outcome, now_s))
        return self._observe(state, outcome, now_s)

    def _observe(self, state: RouterState, outcome: Outcome, now_s: float) -> RouterState:
        if isinstance(outcome, EdgeRan):
            return self.ran(state, [(outcome.model, outcome.rows, outcome.duration_s, now_s)])
        if isinstance(outcome, Scored):
            return self._scored(state, outcome)
        if isinstance(outcome, CloudSent):
            return state_updates.sent(_with_rows(state, outcome), outcome, now_s)
        if isinstance(outcome, CloudAnswered):
            return state_updates.answered(state, outcome, now_s)
        if isinstance(outcome, LinkProbed):
            return state_updates.probed(state, outcome, now_s)
        if isinstance(outcome, GaveUp):
            return replace(state, overruns=state.overruns.add(outcome.overrun_s))
        if isinstance(outcome, CloudMoved):
            # Over other interfaces requests go where the cloud said when to come back.
            backoff_until = state.backoff_until if state.others else {}
            return replace(state, link=LinkEstimate(), backlog=Backlog(), backoff_until=backoff_until)
        if isinstance(outcome, CloudHeld):
            return state_updates.held(state, outcome, now_s)
        if isinstance(outcome, Audited):
            hard = self._hard.get(outcome.scope, HardSettings())
            tally = _tally(state, hard, outcome.scope)
            return replace(state, audits={**state.audits, outcome.scope: tally.add(outcome.disagreed)})
        if isinstance(outcome, PicturesPrepared):
            times = state.preparation.get(outcome.model, NO_PREPARATIONS)
            times = times.add(outcome.pictures, outcome.duration_s, now_s)
            return replace(state, preparation={**state.preparation, outcome.model: times})
        return state_updates.ended(state, outcome, now_s)

    def allow(self, state: RouterState, shares: Mapping[str, float]) -> RouterState:
        """The state with `shares` as limits on offloading, by model; the policy alone limits all others."""
        former = state.allowances
        allowances = {
            model: former[model].of_share(share) if model in former else Allowance.start(share)
            for model, share in shares.items()
            if share < 1.0
        }
        return replace(state, allowances=allowances)

    def ran(self, state: RouterState, runs: Iterable[Run]) -> RouterState:
        """The state after several runs, as for `EdgeRan`."""
        edge, allowances = dict(state.edge), state.allowances
        by_model: dict[str, list[tuple[int, float, float]]] = {}
        for model, rows, duration_s, at_s in runs:
            by_model.setdefault(model, []).append((rows, duration_s, at_s))
            if model in allowances:
                allowances = {**allowances, model: allowances[model].ran(rows)}
        for model, own in by_model.items():
            edge[model] = edge.get(model, _NO_RUNS).add_all(own)
        return state.with_runs(edge, allowances)

    def _scored(self, state: RouterState, scored: Scored) -> RouterState:
        hard = self._hard.get(scored.scope)
        if hard is None:  # from a policy that was replaced meanwhile
            return state
        allowance = state.allowances.get(scored.model)
        if allowance is not None:
            allowance = allowance.scored(hard, scored.rows, scored.large, scored.hardness)
            state = replace(state, allowances={**state.allowances, scored.model: allowance})
        if not math.isnan(hard.cloud_share):
            held = state.shares.get(scored.scope)
            controller = held if held is not None and held.fits(hard) else ShareController.start(hard)
            controller = controller.observe(scored.rows, scored.large, scored.hardness)
            state = replace(state, shares={**state.shares, scored.scope: controller})
        if not math.isnan(hard.max_risk):
            threshold = threshold_of(state, hard)
            if allowance is not None:
                threshold = allowance.tightened(hard, threshold)
            up = scored.large + sum(is_hard(value, hard.measure, threshold) for value in scored.hardness)
            tally = _tally(state, hard, scored.scope)
            state = replace(state, audits={**state.audits, scored.scope: tally.saw(scored.rows, scored.rows - up)})
        return state


def _rank(state: RouterState, signals: Signals, decision: Decision, now_s: float) -> tuple[bool, bool, float]:
    """Whether rows go up, over a link that is not known to fail, and the chance of an answer in time.

    A link that has to be tried ranks like one that will do: otherwise a surer one would keep it unused for good. The
    last one is not tried for being idle, since it is meant to be.
    """
    if not decision.up_rows:
        return False, False, 0.0
    over = state.over(decision.interface)
    heard_s = next((one.at_s for one in reversed(over.link.samples) if not one.is_bound), -math.inf)
    is_heard = not any(over.breakers[key].failed_s > heard_s for key in decision.probes)
    is_last = decision.interface == [state.interface, *state.others][-1]
    is_old = not is_last and now_s - over.link.last_at_s >= AGAIN_S and over.backlog.is_idle
    is_tried = bool(decision.probes) or not over.link.is_known or is_old
    return True, is_heard, GOOD_CHANCE if is_tried else _chance(over, signals, decision, now_s)


def _chance(over: RouterState, signals: Signals, decision: Decision, now_s: float) -> float:
    """The chance of an answer in time, also where the decision did not ask for it."""
    if not math.isnan(decision.chance):
        return decision.chance
    route, sizes, rows = decision.split_route, signals.wire_sizes_bytes, decision.up_rows
    size_bytes = sum(sizes[row] for row in rows) if route is None else route.row_bytes * len(rows)
    times_key = decision.model if route is None else route.key
    server_s = predict(over, times_key, len(rows), size_bytes, 0.5, now_s).server_s
    within_s = decision.give_up_s - now_s - server_s
    return chance_of(over, size_bytes, within_s, now_s).in_time if within_s > 0.0 else 0.0


_WILL_DO = (True, True, GOOD_CHANCE)


def _with_rows(state: RouterState, sent: CloudSent) -> RouterState:
    """The state with the rows of a message taken from the model's allowance."""
    model = sent.whole or sent.model
    allowance = state.allowances.get(model)
    if allowance is None:
        return state
    return replace(state, allowances={**state.allowances, model: allowance.sent(sent.rows)})


def _tally(state: RouterState, hard: HardSettings, scope: str) -> AuditAlarm:
    """The audits so far; none if the policy promises another risk by now."""
    held = state.audits.get(scope)
    return held if held is not None and held.fits(hard) else AuditAlarm.start(hard)
