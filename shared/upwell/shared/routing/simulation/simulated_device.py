"""Drives the flow of one request in simulated time: the same flow that the agent drives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from upwell.shared.errors import ModelFailed, UpwellError
from upwell.shared.routing.decide.router_state import Decision, Signals, SplitRoute
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
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue, Slot
from upwell.shared.routing.scheduling.run_request import RUN_REQUESTS, RunRequest, timed
from upwell.shared.routing.simulation.logged_requests import LoggedRequest
from upwell.shared.routing.simulation.simulated_router import Pilot
from upwell.shared.routing.simulation.simulated_time import Event, Kernel, Process
from upwell.shared.routing.simulation.simulated_uplink import (
    CloudScript,
    SimulatedCall,
    SimulatedProber,
    SimulatedUplink,
)
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """The device and models shared by all requests.

    `splits`: by model, the cuts by which it may be offloaded. `exits`: models whose head on the device answers early;
    the head's output for the tail, of `size_bytes`, is then offloaded. `runs`: the queue of the one accelerator that
    all models share.
    """

    kernel: Kernel
    uplink: SimulatedUplink
    pilot: Pilot
    prober: SimulatedProber
    script: CloudScript
    splits: Mapping[str, Sequence[SplitRoute]]
    exits: Collection[str]
    runs: RunQueue = field(default_factory=RunQueue)


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


class _SimulatedRun(QueuedRun):
    """A process's run in the queue; `tell` wakes the process."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[], None], deadline_s: float, run_request: RunRequest) -> None:
        super().__init__(deadline_s, run_request)
        self._tell = tell

    def wake(self) -> None:
        self._tell()


class SimulatedDriver:
    """One request of one row. Created at its arrival and run once; `served` is its outcome."""

    def __init__(self, device: SimulatedDevice, request: LoggedRequest) -> None:
        self._device, self._kernel, self._request = device, device.kernel, request
        has_cloud, model = device.pilot.habits.has_cloud, request.line.model
        signals = Signals(
            request_facts=request.request_facts,
            row_sizes_bytes=(request.line.size_bytes,),
            arrived_s=request.t_s,
            caller_deadline_s=request.t_s + request.deadline_s,
            has_cloud=has_cloud,
            edge_ahead=device.runs.ahead,
            split_routes=tuple(device.splits.get(model, ())) if has_cloud else (),
            exits=model in device.exits,
            up_sizes_bytes=() if request.line.up_bytes is None else (request.size_bytes,),
        )
        self._flow = RequestFlow(device.pilot, signals)
        self._run_request = RUN_REQUESTS["normal"]
        self._calls: dict[str, SimulatedCall] = {}
        self._ended_calls: set[str] = set()
        self._news = Event()
        self._is_turn = False
        self._slot: Slot | None = None
        settings = device.pilot.settings(model)
        self.served = SimulatedOutcome(request, settings, request.t_s + settings.deadline_s, Reason.EASY)
        self.served.estimate_bits_per_s = _estimate_bits_per_s(device.pilot)

    def run(self) -> Process[None]:
        """Handle the request to its end."""
        flow = self._flow
        try:
            yield from self._drive()
        except UpwellError:
            self.served.reason = flow.answer_reason if flow.attempts else flow.reason
        else:
            self.served.route, self.served.reason = flow.routes[0], flow.answer_reason
            self.served.answered_s = self._kernel.now_s
            gave_up = flow.gave_up(self._kernel.now_s)
            if gave_up is not None:
                self._device.pilot.observe(gave_up)
        self.served.left_bytes = sum(call.size_bytes for call in self._calls.values() if call.began)

    def _drive(self) -> Process[None]:
        flow, kernel = self._flow, self._kernel
        action = flow.begin(kernel.now_s)
        while action is not None:
            result: Any = None
            try:
                result = yield from self._perform(action)
            except UpwellError as error:
                action = flow.fail(error, kernel.now_s)
                continue
            was_admitted = isinstance(action, Admit)
            try:
                action = flow.resume(result, kernel.now_s)
            finally:
                if was_admitted:
                    self._note_decision()

    def _note_decision(self) -> None:
        first = self._flow.first
        assert first is not None  # noqa: S101  it was decided before it was admitted
        self.served.settings, self.served.deadline_s = first.verdict.settings, first.deadline_s
        if self._flow.signals.may_offload and not first.verdict.egress_rule:
            self._device.prober.note_candidate()

    def _perform(self, action: Action) -> Process[Any]:
        device, request = self._device, self._request
        if isinstance(action, Admit):
            self._run_request = RUN_REQUESTS[action.decision.verdict.settings.priority]
            if not self._flow.signals.edge_ahead:
                return 0
            return device.runs.ahead_of(action.decision.deadline_s, self._run_request)
        if isinstance(action, RunEdge):
            if math.isnan(request.edge_s):
                raise ModelFailed("the device fails on this request")
            owed = replace(self._run_request, is_owed=action.is_owed)
            ended = yield from self._run(request.edge_s, action.deadline_s, request.line.model, owed)
            if ended:
                return ended
            self.served.edge_runs += 1
            return request.edge_s
        if isinstance(action, RunHead):
            head_s = 0.0 if math.isnan(action.split_route.head_s) else action.split_route.head_s
            yield from self._run(head_s, action.decision.deadline_s, action.split_route.key, self._run_request)
            return head_s
        if isinstance(action, Score):
            return (device.pilot.habits.scores(request, action.hard),)
        if isinstance(action, Encode):
            return self._message_bytes(self._flow.attempts[action.attempt].decision)
        if isinstance(action, JoinQueue):
            device.pilot.enqueue(action.message, self._note_turn)
        if isinstance(action, Send):
            return self._send(action)
        if isinstance(action, Wait):
            return (yield from self._wait(action.until_s))
        if isinstance(action, GiveUp):
            device.uplink.give_up(self._calls[action.call])
            device.prober.note_late()
            return self._ended(action.call, CloudFailure(Reason.CLOUD_DEADLINE, "no answer in time"))
        if isinstance(action, Cancel):
            device.uplink.give_up(self._calls[action.call])
        if isinstance(action, Reserve):
            self._slot = device.runs.reserve(action.start_s, action.end_s, self)
            return self._slot.ready_s
        if isinstance(action, Release):
            assert self._slot is not None  # noqa: S101  taken before
            device.runs.release(self._slot, self._kernel.now_s)
        return None

    def _run(
        self, duration_s: float, deadline_s: float, model: str, run_request: RunRequest
    ) -> Process[list[CallEnded]]:
        """Wait for a turn and run, as `EdfScheduler` does with the agent's threads. Raises as it does. Returns the
        calls whose end withdrew an owed run."""
        kernel, runs = self._kernel, self._device.runs
        times, now_s = self._device.pilot.state.edge.get(model), kernel.now_s
        run = _SimulatedRun(self._tell, deadline_s, timed(run_request, times, 1, self._request.t_s, now_s, deadline_s))
        runs.join(run, now_s, self)
        while math.isnan(run.began_s):
            if run.error is not None:
                raise run.error
            ended = self._newly_ended() if run_request.is_owed else []
            if ended or kernel.now_s >= run.latest_start_s:
                runs.leave(run, kernel.now_s)
                if ended:
                    return ended
                raise run.late_error()
            yield self._news, run.latest_start_s
        yield None, kernel.now_s + duration_s
        runs.leave(run, kernel.now_s)
        return []

    def _message_bytes(self, decision: Decision) -> int:
        if decision.split_route is not None:
            return decision.split_route.row_bytes
        return self._request.size_bytes if decision.quality is None else self._request.bytes_at(decision.quality)

    def _send(self, action: Send) -> MessageSent:
        attempt = self._flow.attempts[action.attempt]
        split_route = attempt.decision.split_route
        size_bytes = self._message_bytes(attempt.decision)
        self.served.quality = attempt.decision.quality
        behaviour = self._device.script(self._request, len(self._calls))
        if split_route is not None and not math.isnan(split_route.tail_s):
            behaviour = replace(behaviour, cloud_s=split_route.tail_s)
        self._calls[action.call] = self._device.uplink.send(size_bytes, behaviour, self._tell)
        return MessageSent(size_bytes)

    def _tell(self) -> None:
        news, self._news = self._news, Event()
        self._kernel.fire(news)

    def _note_turn(self) -> None:
        self._is_turn = True
        self._tell()

    def _wait(self, until_s: float) -> Process[list[CallEnded]]:
        self._is_turn = False
        while True:
            ended = self._newly_ended()
            if ended or self._is_turn or self._kernel.now_s >= until_s:
                return ended
            yield self._news, until_s

    def _newly_ended(self) -> list[CallEnded]:
        return [
            self._answered(name) for name, call in self._calls.items() if name not in self._ended_calls and call.ended
        ]

    def _answered(self, name: str) -> CallEnded:
        self._ended_calls.add(name)
        call = self._calls[name]
        if call.behaviour.failure is not None:
            self._device.prober.note_failure()
            return self._ended(name, CloudFailure(call.behaviour.failure, "as the script says"))
        self._device.prober.note_answer()
        reply_bytes = self._request.line.reply_bytes
        return self._ended(name, SimulatedReply(call.size_bytes, reply_bytes, call.total_s, call.cloud_s))

    def _ended(self, name: str, outcome: SimulatedReply | CloudFailure) -> CallEnded:
        call, now_s = self._calls[name], self._kernel.now_s
        ended_s = now_s if math.isnan(call.total_s) else call.sent_s + call.total_s
        return CallEnded(name, outcome, ended_s, ended_s - call.sent_s)


def _estimate_bits_per_s(pilot: Pilot) -> float:
    link = pilot.state.link
    if not link.samples or link.inverse_bandwidth_s_per_byte <= 0:
        return math.nan
    return 8 / link.inverse_bandwidth_s_per_byte
