"""One simulated request, in the order in which the agent handles one: the same questions, waits and fallbacks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from upwell.shared.routing.decide.state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudSent,
    Decision,
    EdgeRan,
    Scored,
    Signals,
)
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.simulation.kernel import Kernel, Process
from upwell.shared.routing.simulation.pilot import Pilot
from upwell.shared.routing.simulation.prober import SimulatedProber
from upwell.shared.routing.simulation.requests import LoggedRequest
from upwell.shared.routing.simulation.scheduler import SimulatedLane
from upwell.shared.routing.simulation.served import SimulatedOutcome
from upwell.shared.routing.simulation.uplink import SimulatedCall, SimulatedUplink


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """What every request is handled with."""

    kernel: Kernel
    scheduler: SimulatedLane
    uplink: SimulatedUplink
    pilot: Pilot
    prober: SimulatedProber


class SimulatedRequest:
    """One request of one row. Made at its arrival and run once."""

    def __init__(self, device: SimulatedDevice, request: LoggedRequest, name: str) -> None:
        self._kernel, self._scheduler, self._uplink = device.kernel, device.scheduler, device.uplink
        self._pilot, self._prober = device.pilot, device.prober
        self._request = request
        self._name = name
        self._signals = Signals(
            request_facts=request.request_facts,
            row_sizes_bytes=(request.size_bytes,),
            arrived_s=request.t_s,
            caller_deadline_s=request.t_s + request.deadline_s,
            has_cloud=device.pilot.habits.has_cloud,
        )
        due_s = request.t_s + min(request.deadline_s, device.pilot.settings(request.line.model).deadline_s)
        self._signals = replace(self._signals, edge_ahead=device.scheduler.ahead_of(due_s))
        self._decision = device.pilot.decide(self._signals)
        self._settings = self._decision.verdict.settings
        self.served = SimulatedOutcome(request, self._settings, self._decision.deadline_s, self._decision.reason)
        self.served.estimate_bits_per_s = _estimate_bits_per_s(device.pilot)
        self._call: SimulatedCall | None = None
        self._sent: Decision = self._decision
        self._has_edge = True
        self._replied = False
        self._missed = False
        self._edge_answers = False
        self._obstacle: Reason | None = None

    def run(self) -> Process[None]:
        """Handle it to its end; `served` then says what became of it."""
        decision = self._decision
        if decision.escalate or decision.up_rows or decision.kept_rows:
            self._prober.note_candidate()
        if decision.refusal or not self._note_obstacle(decision):
            return
        if not decision.escalate:
            self._learn_scores(len(decision.up_rows) + len(decision.kept_rows), ())
        if decision.up_rows:
            self._send(decision)
        elif not (yield from self._ask_device(decision)):
            return
        if self._call is not None:
            yield from self._settle(self._call)
        self._answer()

    def _note_obstacle(self, decision: Decision) -> bool:
        """Whether there may be an answer: not where the cloud cannot be had and the policy then wants an error."""
        if not decision.degraded:
            return True
        self._obstacle = decision.obstacle
        self.served.reason = decision.reason
        return self._settings.on_failure(decision.obstacle or decision.reason) != "error"

    def _send(self, decision: Decision) -> None:
        request = self._request
        self._sent = decision
        self._call = self._uplink.send(request.size_bytes, request.cloud_s)
        self._pilot.observe(CloudSent(request.line.model, self._name, 1, request.size_bytes))

    def _ask_device(self, decision: Decision) -> Process[bool]:
        """The edge answer, and the cloud asked too if that turns out hard; False where nothing will come of it."""
        if not (yield from self._run_edge(decision.deadline_s)):
            return self._lift_instead()
        if decision.escalate:
            second = self._second_decision()
            if not self._note_obstacle(second):
                return False
            if second.up_rows:
                self._send(second)
            if second.reason is not Reason.EASY and not decision.kept_rows:
                self.served.reason = second.reason
        return True

    def _lift_instead(self) -> bool:
        """The device has no time: the request goes up, if it may."""
        self.served.reason = Reason.EDGE_BUSY
        decision = self._pilot.decide(replace(self._signals, has_edge=False))
        if decision.refusal or not decision.up_rows:
            return False
        self._send(decision)
        self._has_edge = False
        return True

    def _run_edge(self, deadline_s: float, *, is_owed: bool = False) -> Process[bool]:
        model, duration_s = self._request.line.model, self._request.edge_s
        if not (yield from self._scheduler.run(duration_s, deadline_s, is_owed=is_owed)):
            return False
        self.served.edge_runs += 1
        self._edge_answers = True
        self._pilot.observe(EdgeRan(model, 1, duration_s))
        return True

    def _second_decision(self) -> Decision:
        hard = self._settings.hard
        assert hard is not None  # noqa: S101  or nothing would escalate
        value = self._pilot.habits.scores(self._request, hard)
        decision = self._pilot.decide(replace(self._signals, scored_rows=(0,), hardness=(value,)))
        self._learn_scores(0, (value,))
        return decision

    def _learn_scores(self, large: int, values: tuple[float, ...]) -> None:
        """Tell the router whether the row was hard: what a share or a risk is held by counts every request."""
        hard = self._settings.hard
        has_target = hard is not None and not (math.isnan(hard.cloud_share) and math.isnan(hard.max_risk))
        if hard is not None and has_target and self._pilot.habits.learns_scores:
            self._pilot.observe(Scored(self._request.line.model, hard.scope, 1, large, values))

    def _settle(self, call: SimulatedCall) -> Process[None]:
        """Wait for the cloud, with the device in time for the answer that stands in for it."""
        stands_in = self._has_edge and self._settings.on_failure(Reason.CLOUD_DEADLINE) != "error"
        if stands_in and not self._edge_answers:
            yield from self._cover(call)
        if self._settings.objective == "latency" and stands_in and self._edge_answers:
            self._take(call)  # the first good answer wins, and the device's is there
        else:
            yield call.answered, self._sent.give_up_s
            self._take(call)
            self._missed = not self._replied
        self._finish(call)

    def _cover(self, call: SimulatedCall) -> Process[None]:
        slot = self._scheduler.promise(self._decision.fallback_start_s, self._decision.give_up_s)
        yield call.answered, slot[0]
        self._scheduler.release(slot)
        self._take(call)
        if not self._replied:
            yield from self._run_edge(self._decision.deadline_s, is_owed=True)

    def _take(self, call: SimulatedCall) -> None:
        """Take the reply if it is there."""
        if self._replied or not call.sent_s + call.total_s <= self._sent.give_up_s:  # NaN: not there yet
            return
        self._replied = True
        line, total_s = self._request.line, call.total_s
        answer = CloudAnswered(line.model, 1, line.size_bytes, total_s, call.cloud_s, call=self._name)
        self._pilot.observe(replace(answer, received_bytes=line.reply_bytes))
        self._prober.note_answer()

    def _finish(self, call: SimulatedCall) -> None:
        """End a call that has no reply by now; that it is late is a failure of the cloud, that it is beaten is not."""
        self.served.left_bytes = call.size_bytes if call.began else 0
        if self._replied:
            return
        self._uplink.give_up(call)
        model, probes = self._request.line.model, self._sent.probes
        if self._missed:
            waited_s = self._kernel.now_s - call.sent_s
            self._pilot.observe(CloudCallFailed(model, Reason.CLOUD_DEADLINE, probes, waited_s, self._name))
            self._prober.note_failure()
        else:
            self._pilot.observe(CloudDropped(model, probes, self._name))

    def _answer(self) -> None:
        served = self.served
        if self._missed:
            served.reason = Reason.CLOUD_DEADLINE
        elif self._obstacle is not None:
            served.reason = self._obstacle
        elif self._call is not None and not self._replied:
            served.reason = Reason.EDGE_FASTER
        may_stand_in = not self._missed or self._settings.on_failure(Reason.CLOUD_DEADLINE) != "error"
        served.route = Route.CLOUD if self._replied else Route.EDGE if self._edge_answers and may_stand_in else None
        if served.route is not None:
            served.answered_s = self._kernel.now_s


def _estimate_bits_per_s(pilot: Pilot) -> float:
    link = pilot.state.link
    if not link.samples or link.inverse_bandwidth_s_per_byte <= 0:
        return math.nan
    return 8 / link.inverse_bandwidth_s_per_byte
