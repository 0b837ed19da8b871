"""Drives the flow of one request in simulated time: the same flow that the agent drives with real things."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from upwell.shared.errors import ModelFailed, Refused, UpwellError
from upwell.shared.routing.decide.state import Signals, SplitRoute
from upwell.shared.routing.flow.actions import (
    Action,
    Admit,
    Cancel,
    CloudFailure,
    Encode,
    Ended,
    GiveUp,
    MessageSent,
    Release,
    Reserve,
    RunEdge,
    RunHead,
    Score,
    Send,
    Wait,
)
from upwell.shared.routing.flow.flow import RequestFlow
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.simulation.kernel import Event, Kernel, Process
from upwell.shared.routing.simulation.pilot import Pilot
from upwell.shared.routing.simulation.prober import SimulatedProber
from upwell.shared.routing.simulation.requests import LoggedRequest
from upwell.shared.routing.simulation.scheduler import SimulatedScheduler
from upwell.shared.routing.simulation.served import SimulatedOutcome
from upwell.shared.routing.simulation.uplink import CloudScript, SimulatedCall, SimulatedUplink


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """What every request is handled with. `splits`: by model, the cuts by which it may go up."""

    kernel: Kernel
    scheduler: SimulatedScheduler
    uplink: SimulatedUplink
    pilot: Pilot
    prober: SimulatedProber
    script: CloudScript
    splits: Mapping[str, Sequence[SplitRoute]]


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """An answer of the simulated cloud."""

    sent_bytes: int
    received_bytes: int
    total_s: float
    server_s: float
    is_first: bool = False
    is_degraded: bool = False
    reason: Reason | None = None


class SimulatedDriver:
    """One request of one row. Made at its arrival and run once; `served` then says what became of it."""

    def __init__(self, device: SimulatedDevice, request: LoggedRequest) -> None:
        self._device, self._kernel, self._request = device, device.kernel, request
        has_cloud = device.pilot.habits.has_cloud
        signals = Signals(
            request_facts=request.request_facts,
            row_sizes_bytes=(request.size_bytes,),
            arrived_s=request.t_s,
            caller_deadline_s=request.t_s + request.deadline_s,
            has_cloud=has_cloud,
            edge_ahead=device.scheduler.ahead,
            ways=tuple(device.splits.get(request.line.model, ())) if has_cloud else (),
        )
        self._flow = RequestFlow(device.pilot, signals)
        self._priority_rank = 0
        self._calls: dict[str, SimulatedCall] = {}
        self._told: set[str] = set()
        self._news = Event()
        self._slot: tuple[float, float] | None = None
        settings = device.pilot.settings(request.line.model)
        self.served = SimulatedOutcome(request, settings, request.t_s + settings.deadline_s, Reason.EASY)
        self.served.estimate_bits_per_s = _estimate_bits_per_s(device.pilot)

    def run(self) -> Process[None]:
        """Handle it to its end."""
        flow = self._flow
        try:
            yield from self._drive()
        except UpwellError:
            self.served.reason = flow.answer_reason if flow.attempts else flow.reason
        else:
            self.served.route, self.served.reason = flow.routes[0], flow.answer_reason
            self.served.answered_s = self._kernel.now_s
        self.served.left_bytes = sum(call.size_bytes for call in self._calls.values() if call.began)

    def _drive(self) -> Process[None]:
        flow, kernel = self._flow, self._kernel
        action = flow.begin(kernel.now_s)
        while action is not None:
            told: Any = None
            try:
                told = yield from self._perform(action)
            except UpwellError as error:
                action = flow.fail(error, kernel.now_s)
                continue
            was_admitted = isinstance(action, Admit)
            try:
                action = flow.resume(told, kernel.now_s)
            finally:
                if was_admitted:
                    self._note_decision()

    def _note_decision(self) -> None:
        first = self._flow.first
        assert first is not None  # noqa: S101  it was decided before it was admitted
        self.served.settings, self.served.deadline_s = first.verdict.settings, first.deadline_s
        if self._flow.signals.may_ascend and not first.verdict.egress_rule:
            self._device.prober.note_candidate()

    def _perform(self, action: Action) -> Process[Any]:
        device, request = self._device, self._request
        if isinstance(action, Admit):
            if not self._flow.signals.edge_ahead:
                return 0
            return device.scheduler.ahead_of(action.decision.deadline_s, action.decision.verdict.settings.priority)
        if isinstance(action, RunEdge):
            yield from self._run(request.edge_s, action.deadline_s, is_owed=action.is_owed)
            self.served.edge_runs += 1
            return request.edge_s
        if isinstance(action, RunHead):
            head_s = 0.0 if math.isnan(action.way.head_s) else action.way.head_s
            yield from self._run(head_s, action.decision.deadline_s, is_owed=False)
            return head_s
        if isinstance(action, Score):
            return (device.pilot.habits.scores(request, action.hard),)
        if isinstance(action, Encode):
            way = self._flow.attempts[action.attempt].decision.way
            return request.size_bytes if way is None else way.row_bytes
        if isinstance(action, Send):
            return self._send(action)
        if isinstance(action, Wait):
            return (yield from self._wait(action.until_s))
        if isinstance(action, GiveUp):
            device.uplink.give_up(self._calls[action.call])
            device.prober.note_failure()
            return self._ended(action.call, CloudFailure(Reason.CLOUD_DEADLINE, "no answer in time"))
        if isinstance(action, Cancel):
            device.uplink.give_up(self._calls[action.call])
        if isinstance(action, Reserve):
            self._slot = device.scheduler.promise(action.start_s, action.end_s)
            return self._slot[0]
        if isinstance(action, Release):
            assert self._slot is not None  # noqa: S101  taken before
            device.scheduler.release(self._slot)
        return None

    def _run(self, duration_s: float, deadline_s: float, *, is_owed: bool) -> Process[None]:
        first = self._flow.first
        assert first is not None  # noqa: S101  nothing runs before
        priority = first.verdict.settings.priority
        if math.isnan(duration_s):
            raise ModelFailed("the device fails on this request")
        ran = yield from self._device.scheduler.run(duration_s, deadline_s, priority, is_owed=is_owed)
        if not ran:
            raise Refused("the device is busy until the deadline")

    def _send(self, action: Send) -> MessageSent:
        attempt = self._flow.attempts[action.attempt]
        way = attempt.decision.way
        size_bytes = self._request.size_bytes if way is None else way.row_bytes
        behaviour = self._device.script(self._request, len(self._calls))
        if way is not None and not math.isnan(way.tail_s):
            behaviour = replace(behaviour, cloud_s=way.tail_s)
        self._calls[action.call] = self._device.uplink.send(size_bytes, behaviour, self._tell)
        return MessageSent(size_bytes)

    def _tell(self) -> None:
        news, self._news = self._news, Event()
        self._kernel.fire(news)

    def _wait(self, until_s: float) -> Process[list[Ended]]:
        while True:
            ended = [
                self._answered(name) for name, call in self._calls.items() if name not in self._told and call.ended
            ]
            if ended or self._kernel.now_s >= until_s:
                return ended
            yield self._news, until_s

    def _answered(self, name: str) -> Ended:
        self._told.add(name)
        call = self._calls[name]
        if call.behaviour.failure is not None:
            self._device.prober.note_failure()
            return self._ended(name, CloudFailure(call.behaviour.failure, "as the script says"))
        self._device.prober.note_answer()
        reply_bytes = self._request.line.reply_bytes
        return self._ended(name, SimulatedReply(call.size_bytes, reply_bytes, call.total_s, call.cloud_s))

    def _ended(self, name: str, outcome: SimulatedReply | CloudFailure) -> Ended:
        call, now_s = self._calls[name], self._kernel.now_s
        ended_s = now_s if math.isnan(call.total_s) else call.sent_s + call.total_s
        return Ended(name, outcome, ended_s, ended_s - call.sent_s)


def _estimate_bits_per_s(pilot: Pilot) -> float:
    link = pilot.state.link
    if not link.samples or link.inverse_bandwidth_s_per_byte <= 0:
        return math.nan
    return 8 / link.inverse_bandwidth_s_per_byte
