"""What holds of the flow of a request in virtual time, whatever happens, in whatever order and whenever.

The world performs what the flow asks for with what is drawn: calls that answer, fail, stall or end late, runs of the
device, a policy that changes meanwhile. It keeps account of all that was sent, taken and given back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.routing.asking import MODEL, policy, signals
from upwell.shared.errors import DeadlineExceeded, ModelFailed, Refused, UpwellError
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudSent,
    Decision,
    EdgeRan,
    Outcome,
    Signals,
    SplitRoute,
)
from upwell.shared.routing.estimators.budget_ledger import Draw
from upwell.shared.routing.estimators.deadline_reserve import reserve_s
from upwell.shared.routing.estimators.uplink_backlog import Backlog
from upwell.shared.routing.flow.cloud_attempt import HOPELESS
from upwell.shared.routing.flow.flow_actions import (
    Action,
    Admit,
    CallEnded,
    Cancel,
    CloudFailure,
    Encode,
    GiveUp,
    JoinQueue,
    MessageSent,
    Release,
    Reserve,
    RunEdge,
    RunHead,
    Score,
    Send,
    Wait,
)
from upwell.shared.routing.flow.request_flow import RequestFlow
from upwell.shared.routing.policy.settings import Limit, Settings
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason, Route
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.routing.simulation.simulated_device import SimulatedReply
from upwell.shared.routing.simulation.simulated_router import Habits, Pilot
from upwell.shared.routing.simulation.simulated_time import Kernel

BEGIN_S, WALL_S = 1000.0, 0.0
SPENT = 50.0  # of each budget before the first request, so that what is given back twice shows
HEDGE = 0.5
KEYS = {
    "objective": ["accuracy", "accuracy", "latency", "energy"],
    "large": ["{above: 500B}", "{above: 500B}", "off"],
    "hard": ["{measure: margin, below: 0.5}", "{measure: margin, below: 0.5}", "off"],
    "hedge": ["{after: 20ms, at_most: 50%}", "off"],
    "on_cloud_failure": ["retry", "retry", "edge", "error"],
    "budget": ["{cloud_requests: 1000/day, uplink: 1GB/day}", "off"],
}
SLOW = "energy: {inference: 20mJ, uplink_byte: 2uJ}"


NO_TOKEN = CloudFailure(Reason.CLOUD_UNAUTHENTICATED, "the token is gone")
REPLIES = st.builds(SimulatedReply, st.just(300), st.just(100), st.just(0.02), st.just(0.01), is_degraded=st.booleans())
FAILURES = st.builds(CloudFailure, st.sampled_from(sorted(CLOUD_FAILURES)), st.just(""), st.none() | st.just(0.05))
AFTER_S = st.sampled_from([0.0, 0.004, 0.04, 0.1, 0.19, math.inf])
CALLS = st.tuples(AFTER_S, REPLIES | FAILURES, st.sampled_from([False, False, False, True]))
"""When a call ends and with what, and whether a failure speaks against nobody."""
FAILING = st.tuples(st.sampled_from([0.0, 0.004, 0.1, 0.17]), FAILURES, st.just(False))


@dataclass(frozen=True)
class Setting:
    """What a sequence of requests has in common. The device takes `edge_s` for whatever it runs."""

    text: str
    edge_s: float
    head_s: float
    is_healthy: bool
    fails_with_error: bool
    calls: st.SearchStrategy[tuple[float, SimulatedReply | CloudFailure, bool]]


@st.composite
def worlds(draw: st.DrawFn) -> Setting:
    """Of all kinds."""
    chosen = {key: draw(st.sampled_from(values)) for key, values in KEYS.items()}
    written = ", ".join(f"{key}: {value}" for key, value in chosen.items() if (key, value) != ("budget", "off"))
    route = draw(st.sampled_from(["", "", "", "cloud", "split"]))
    rule = f"\nrules: [{{name: all, match: {{}}, route: {route}}}]" if route else ""
    return Setting(
        f"defaults: {{deadline: 200ms, {SLOW}, {written}}}{rule}",
        draw(st.sampled_from([0.001, 0.02, 0.08])),
        draw(st.sampled_from([0.005, 0.03])),
        draw(st.booleans()),
        chosen["on_cloud_failure"] == "error",
        CALLS,
    )


PATIENT = st.builds(
    lambda objective, edge_s: Setting(
        f"defaults: {{deadline: 200ms, {SLOW}, objective: {objective}, large: {{above: 500B}}, "
        "hard: {measure: margin, below: 0.5}, on_cloud_failure: retry, hedge: {after: 20ms, at_most: 50%}}",
        edge_s,
        head_s=0.005,
        is_healthy=True,
        fails_with_error=False,
        calls=FAILING,
    ),
    st.sampled_from(["accuracy", "latency"]),
    st.sampled_from([0.02, 0.08]),
)
"""A policy that tries what it can, and a cloud that mostly fails."""

known_policy = lru_cache(maxsize=None)(policy)


class Accounts(Pilot):
    """The router, with an account of what the flow takes, tells and gives back."""

    def __init__(self, world: Setting, kernel: Kernel) -> None:
        super().__init__(known_policy(world.text), {}, kernel, Habits())
        self.open: set[str] = set()
        self.queued: set[str] = set()
        self.earned = self.hedges = self.retries = 0
        for rows in (1, 2, 3):
            self.observe(EdgeRan(MODEL, rows, world.edge_s))
        draws = tuple(Draw(limit, SPENT, WALL_S) for limit in self.budget)
        self.state = replace(self.state, budgets=self.state.budgets.take(draws, self._router.zone))

    @property
    def budget(self) -> tuple[Limit, ...]:
        return self.settings(MODEL).budget

    def spent(self, limit: Limit) -> float:
        return limit.amount - self.state.budgets.left(limit, WALL_S, self._router.zone) - SPENT

    def decide(self, signals: Signals) -> Decision:
        decision = super().decide(signals)
        self.earned += bool(decision.up_rows)
        return decision

    def enqueue(self, message: QueuedMessage, wake: Callable[[], None]) -> None:
        super().enqueue(message, wake)
        self.open.add(message.call)
        self.queued.add(message.call)

    def keep_busy(self, s_per_byte: float, messages: int) -> None:
        """The link of that speed has others' messages on it, and one that waits."""
        sizes = [0, 10_000] * 3
        for size in sizes:
            took_s = 0.01 + size * s_per_byte
            super().observe(CloudAnswered(MODEL, 1, size, took_s, 0.0))
        for number in range(messages):
            super().observe(CloudSent(MODEL, f"other {number}", 1, 300))
        other = QueuedMessage("waits", MODEL, 1, 300, 0.4, 0.05, self._kernel.now_s + 0.05)
        super().enqueue(other, lambda: None)

    def make_idle(self) -> None:
        """The others are gone."""
        self.state = replace(self.state, backlog=Backlog(), queue=self.state.queue.without("waits"))

    def observe(self, outcome: Outcome) -> None:
        if isinstance(outcome, CloudSent):
            assert outcome.call not in self.open - self.queued
            self.queued.discard(outcome.call)
            self.open.add(outcome.call)
        elif isinstance(outcome, CloudAnswered | CloudCallFailed | CloudDropped) and outcome.call:
            assert outcome.call in self.open, "a call ends once"
            assert outcome.call not in self.queued or isinstance(outcome, CloudDropped)
            self.queued.discard(outcome.call)
            self.open.discard(outcome.call)
        super().observe(outcome)

    def acquire_hedge(self, decision: Decision) -> bool:
        granted = super().acquire_hedge(decision)
        self.hedges += granted
        return granted

    def acquire_retry(self, decision: Decision) -> bool:
        granted = super().acquire_retry(decision)
        self.retries += granted
        return granted


@dataclass
class Call:
    """One message under way. `closed` says what ended it: `told`, `given up` or `cancelled`."""

    attempt: int
    sent_s: float
    ends_s: float
    outcome: SimulatedReply | CloudFailure
    is_blameless: bool = False
    closed: str = ""

    def ended(self, name: str, now_s: float, outcome: SimulatedReply | CloudFailure) -> CallEnded:
        ended_s = min(self.ends_s, now_s)
        return CallEnded(name, outcome, ended_s, ended_s - self.sent_s, self.is_blameless, has_others=False)


@dataclass
class World:
    """One request: performs what its flow asks for, and notes it."""

    data: st.DataObject
    setting: Setting
    accounts: Accounts
    kernel: Kernel
    denied_s: float
    flow: RequestFlow
    calls: dict[str, Call] = field(default_factory=dict)
    told_last: frozenset[str] = frozenset()
    sends: list[tuple[float, int]] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    is_slot_held: bool = False
    was_full: bool = False
    busy_s: float = 0.0

    @property
    def now_s(self) -> float:
        return self.kernel.now_s

    def drive(self) -> UpwellError | None:
        """To the end; the error where there is no answer."""
        flow = self.flow
        try:
            action = flow.begin(self.now_s)
            for _ in range(100):
                if action is None:
                    break
                try:
                    told = self.perform(action)
                except BaseException as error:  # noqa: BLE001  as the agent does: the flow raises it again
                    action = flow.fail(error, self.now_s)
                    continue
                action = flow.resume(told, self.now_s)
        except UpwellError as error:
            return error
        assert action is None, "it goes on for ever"
        return None

    def perform(self, action: Action) -> Any:
        draw = self.data.draw
        if isinstance(action, Admit):
            if draw(st.integers(0, 9)) == 9:
                self.was_full = True
                self.accounts.give_back(action.decision)  # as the agent does for a source over its rate
                raise Refused("too many")
            return draw(st.sampled_from([0, self.flow.signals.edge_ahead]))
        if isinstance(action, RunEdge):
            return self._run_edge(action)
        if isinstance(action, RunHead):
            return self._run(self.setting.head_s, may_fail=True)
        if isinstance(action, Score):
            return draw(st.none() | st.tuples(*(st.sampled_from([0.1, 0.9, math.nan]) for _ in action.rows)))
        if isinstance(action, Encode):
            return 300 * len(self.flow.attempts[action.attempt].rows)
        if isinstance(action, JoinQueue):
            self.accounts.enqueue(action.message, lambda: None)
        if isinstance(action, Send):
            return self._send(action)
        if isinstance(action, Wait):
            return self._wait(action.until_s)
        if isinstance(action, GiveUp | Cancel) and self._is_taken_later(action.call):
            self.calls[action.call].closed = ""
        if isinstance(action, GiveUp):
            call = self._close(action.call, "given up")
            return call.ended(action.call, self.now_s, CloudFailure(Reason.CLOUD_DEADLINE, "no answer in time"))
        if isinstance(action, Cancel):
            self._close(action.call, "cancelled")
        if isinstance(action, Reserve):
            assert not self.is_slot_held
            self.is_slot_held = True
            return action.start_s - draw(st.sampled_from([0.0, 0.0, 0.03]))
        if isinstance(action, Release):
            assert self.is_slot_held, "a slot is given back once"
            self.is_slot_held = False
        return None

    def _run_edge(self, action: RunEdge) -> float | list[CallEnded]:
        answered = {row for one in self.flow.answered for row in one.rows}
        assert not action.is_owed or answered.isdisjoint(action.rows), "nothing stands in for an answer"
        if action.is_owed and (busy_s := self.data.draw(st.sampled_from([0.0, 0.0, 0.004, 0.05]))):
            began_s = self.now_s
            ended = self._wait(began_s + busy_s)
            self.busy_s += self.now_s - began_s
            if ended:
                return ended
        taken_s = self._run(self.setting.edge_s, may_fail=not self.setting.is_healthy, may_refuse=not action.is_owed)
        assert not set(self.ran) & set(action.rows), "no row runs twice"
        self.ran += action.rows
        return taken_s

    def _run(self, duration_s: float, *, may_fail: bool, may_refuse: bool = True) -> float:
        assert not self.accounts.queued, "nothing waits for the link while the device runs"
        fate = self.data.draw(st.sampled_from(["runs", "fails", "is refused", "is late"])) if may_fail else "runs"
        if fate == "is refused" and may_refuse:
            raise Refused("the device is busy")
        if fate == "is late":
            raise DeadlineExceeded("the device was busy until the deadline")
        self.kernel.now_s += duration_s
        if fate == "fails":
            raise ModelFailed("it does not run")
        return duration_s

    def _send(self, action: Send) -> MessageSent | CloudFailure:
        draw, attempt = self.data.draw, self.flow.attempts[action.attempt]
        assert action.call not in self.calls
        assert action.known.backlog.find(action.call) is None, "rules look at the link as it is without the message"
        assert attempt.outcome is None, "nothing is sent after an answer"
        others = {row for one in self.flow.attempts if one is not attempt for row in one.rows}
        assert not others & set(attempt.rows), "a row goes up by one attempt"
        if attempt.decision.verdict.settings.objective != "accuracy":
            assert not self.flow.edge_covers(attempt.rows), "nothing is sent once the device has answered"
        assert self.now_s <= attempt.decision.give_up_s
        if self.now_s >= self.denied_s:
            return CloudFailure(Reason.EGRESS_DENIED, "not any more")
        self.sends.append((self.now_s, action.attempt))
        sent = MessageSent(draw(st.sampled_from([250, 300, 300, 0])))
        call = Call(action.attempt, self.now_s, self.now_s, NO_TOKEN)
        if sent.sent_bytes:
            self.sent_bytes.append(sent.sent_bytes)
            after_s, call.outcome, call.is_blameless = draw(self.setting.calls)
            call.ends_s += after_s
        self.calls[action.call] = call
        return sent

    def _wait(self, until_s: float) -> list[CallEnded]:
        under_way = {name: call for name, call in self.calls.items() if not call.closed}
        next_s = min((call.ends_s for call in under_way.values()), default=math.inf)
        assert min(until_s, next_s) < math.inf, "it waits for ever"
        self.kernel.now_s = max(self.now_s, min(until_s, next_s))
        over = [name for name, call in under_way.items() if call.ends_s <= self.now_s]
        self.told_last = frozenset(over)
        return [
            self._close(name, "told").ended(name, self.now_s, self.calls[name].outcome)
            for name in self.data.draw(st.permutations(over))
        ]

    def _is_taken_later(self, name: str) -> bool:
        """Whether it was told and may be ended all the same: of calls told together one is taken first, and may end the
        others, and one told so little before the end counts as one failure with those beside it."""
        call = self.calls[name]
        is_late = isinstance(call.outcome, CloudFailure) and call.outcome.reason is Reason.CLOUD_DEADLINE
        was_late = is_late and call.ends_s >= self.flow.attempts[call.attempt].decision.give_up_s - 0.005
        return call.closed == "told" and (name in self.told_last or was_late)

    def _close(self, name: str, how: str) -> Call:
        call = self.calls[name]
        assert not call.closed, "a call is ended once"
        call.closed = how
        return call


@st.composite
def requests(draw: st.DrawFn, setting: Setting, at_s: float) -> Signals:
    kind = draw(st.sampled_from(["exits", "whole", "split", "whole", "exits", "cloud alone"]))
    split_routes = (SplitRoute("c1", 160, setting.head_s, 0.004), SplitRoute("c2", 400, setting.head_s, 0.004))
    return signals(
        draw(st.lists(st.sampled_from([300, 700]), min_size=1, max_size=3)),
        at_s=at_s,
        caller_deadline_s=at_s + draw(st.sampled_from([math.inf, 0.12, math.inf, 0.12, 0.0])),
        has_edge=kind != "cloud alone",
        has_cloud=draw(st.integers(0, 9)) != 9,
        edge_ahead=draw(st.sampled_from([0, 0, 1])),
        split_routes=split_routes if kind == "split" else (),
        exits=kind == "exits",
    )


@settings(deadline=None, max_examples=examples(2000))
@given(st.data(), worlds() | PATIENT)
def test_whatever_happens_there_is_one_answer_in_time_and_all_accounts_are_right(
    data: st.DataObject, setting: Setting
) -> None:
    kernel = Kernel()
    kernel.now_s = BEGIN_S
    accounts = Accounts(setting, kernel)
    sent_bytes: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        signals = data.draw(requests(setting, kernel.now_s))
        denied_s = kernel.now_s + data.draw(st.sampled_from([math.inf, math.inf, math.inf, 0.0, 0.03]))
        world = World(data, setting, accounts, kernel, denied_s, RequestFlow(accounts, signals))
        busy = data.draw(st.sampled_from([0, 0, 1, 3]))
        if busy:
            accounts.keep_busy(data.draw(st.sampled_from([1e-5, 1e-4])), busy)
        error = world.drive()
        accounts.make_idle()
        event("answered" if error is None else type(error).__name__)
        waits = [one.link_wait for one in world.flow.attempts if one.link_wait is not None]
        event("waited for the link" if waits else "did not wait")
        assert all(0.0 <= one.wait_s < 0.2 and one.messages for one in waits)
        check_the_answer(world, error)
        check_the_end(world)
        check_patience(world)
        sent_bytes += world.sent_bytes
        for limit in accounts.budget:
            used = len(sent_bytes) if limit.quantity == "cloud_requests" else sum(sent_bytes)
            assert accounts.spent(limit) == used, limit.quantity
        assert accounts.hedges <= HEDGE * accounts.earned + 1e-6
        kernel.now_s += data.draw(st.sampled_from([0.01, 0.3, 3.0]))


def check_the_answer(world: World, error: UpwellError | None) -> None:
    """Each row is answered once, by its deadline, and there is an answer wherever the device alone could give one."""
    flow = world.flow
    assert flow.resume(None, world.now_s) is None, "nothing comes after the end"
    if error is None:
        assert flow.first is not None
        lifted = [row for one in flow.answered for row in one.rows]
        assert len(lifted) == len(set(lifted))
        for row, route in enumerate(flow.routes):
            assert row in (lifted if route in (Route.CLOUD, Route.SPLIT) else world.ran)
    if not world.setting.is_healthy or not flow.signals.has_edge or world.was_full or world.setting.fails_with_error:
        return
    arrived_s = flow.signals.arrived_s
    deadline_s = min(flow.signals.caller_deadline_s, arrived_s + 0.2)
    needed_s = world.setting.edge_s * (1 + flow.signals.edge_ahead)
    if arrived_s + needed_s <= deadline_s - reserve_s(deadline_s - arrived_s):
        assert error is None, f"the device alone could have answered: {error}"
        assert world.now_s <= deadline_s + world.busy_s + 1e-9


def check_the_end(world: World) -> None:
    """Nothing is left under way or held: each loser is cancelled, each reservation is given back."""
    assert all(call.closed for call in world.calls.values())
    assert not world.is_slot_held
    assert not world.accounts.open
    assert not world.accounts.state.queue.waiting
    assert all(breaker.probe_since_s == -math.inf for breaker in world.accounts.state.breakers.values())


def check_patience(world: World) -> None:
    """No attempt sends more than one hedge and one retry, and those only where the policy has them."""
    for attempt in world.flow.attempts:
        instants = [at_s for at_s, number in world.sends if number == attempt.number]
        held: Settings = attempt.decision.verdict.settings
        retries = "retry" in held.on_cloud_failure.values() and not attempt.decision.probes
        assert len(instants) <= 1 + retries + (held.hedge is not None)
        assert all(at_s < attempt.decision.give_up_s for at_s in instants[1:])
        firsts = [call for call in world.calls.values() if call.attempt == attempt.number]
        for call, second in itertools.pairwise(firsts):
            is_hopeless = isinstance(call.outcome, CloudFailure) and call.outcome.reason in HOPELESS
            is_beside = second.sent_s - firsts[0].sent_s >= attempt.decision.hedge_after_s - 1e-9
            assert is_beside or (call.closed == "told" and not is_hopeless)


def test_what_is_under_way_is_cancelled_where_the_device_is_too_late_with_the_other_rows() -> None:
    kernel = Kernel()
    kernel.now_s = BEGIN_S
    setting = Setting("defaults: {deadline: 200ms, large: {above: 500B}}", 0.001, 0.005, False, False, CALLS)
    flow = RequestFlow(Accounts(setting, kernel), signals([300, 700], at_s=BEGIN_S))
    told = {Admit: 0, Encode: 300, Send: MessageSent(300)}
    done: list[Action] = []
    action = flow.begin(BEGIN_S)
    with suppress(DeadlineExceeded):
        while action is not None:
            done.append(action)
            if isinstance(action, RunEdge):
                kernel.now_s = BEGIN_S + 0.2
                action = flow.fail(DeadlineExceeded("the device was busy until the deadline"), kernel.now_s)
            else:
                action = flow.resume(told.get(type(action)), kernel.now_s)
    assert [type(one) for one in done if isinstance(one, Send | RunEdge | Cancel)] == [Send, RunEdge, Cancel]


def on_a_busy_link(text: str, sizes: list[int]) -> list[type[Action]]:
    """What the flow asks for where others have the link."""
    kernel = Kernel()
    kernel.now_s = BEGIN_S
    setting = Setting(text, 0.02, 0.005, is_healthy=True, fails_with_error=False, calls=CALLS)
    accounts = Accounts(setting, kernel)
    accounts.keep_busy(1e-4, 3)
    flow = RequestFlow(accounts, signals(sizes, at_s=BEGIN_S))
    told: dict[type[Action], Any] = {Admit: 0, Encode: 300, Send: MessageSent(300), RunEdge: 0.02, Reserve: BEGIN_S}
    done: list[Action] = []
    action = flow.begin(BEGIN_S)
    while action is not None:
        done.append(action)
        if isinstance(action, JoinQueue):
            accounts.enqueue(action.message, lambda: None)
        if isinstance(action, Wait):
            kernel.now_s = max(kernel.now_s, action.until_s)
        if isinstance(action, GiveUp):
            elapsed_s = kernel.now_s - BEGIN_S
            late = CloudFailure(Reason.CLOUD_DEADLINE, "no answer in time")
            action = flow.resume(CallEnded(action.call, late, kernel.now_s, elapsed_s), kernel.now_s)
        else:
            action = flow.resume([] if isinstance(action, Wait) else told.get(type(action)), kernel.now_s)
    return [type(one) for one in done if isinstance(one, JoinQueue | Send | RunEdge)]


LARGE = "defaults: {deadline: 200ms, large: {above: 500B}}"


def test_what_goes_up_while_the_device_runs_the_other_rows_does_not_wait_for_the_link() -> None:
    """Nobody would look when its turn has come."""
    assert on_a_busy_link(LARGE, [300, 700]) == [Send, RunEdge, RunEdge]


def test_what_still_waits_when_the_device_must_start_goes_before_that() -> None:
    assert on_a_busy_link(LARGE, [700]) == [JoinQueue, Send, RunEdge]
