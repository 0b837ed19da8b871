"""A cloud that stalls now and then, and what it takes to send rows up to it by a decision made by hand."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from upwell.edge.admission.request_admission import Admission
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.observe.agent_metrics import AgentMetrics
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.request import Request, RequestContext
from upwell.edge.request.request_driver import PERFORM, RequestDriver
from upwell.edge.uplink.cloud_call import CloudCall
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import Uplink, UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import CallerLeft
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import RunningServer, start_server
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudSent,
    Decision,
    Outcome,
    Signals,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.flow.cloud_attempt import CloudAttempt
from upwell.shared.routing.flow.flow_actions import CloudFailure, CloudReplyFacts, Step
from upwell.shared.routing.policy.compiled_policy import RequestFacts, Verdict
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import Plan, Reason
from upwell.shared.tensors import Array

MODEL = ServedModel("model", None, "echo")
INPUTS = {"fp32": np.ones((1, 4), np.float32)}
LIMIT_BYTES = 1 << 24


class StallingCloud(FakeDataplane):
    """Echoes, and lets the requests for whose number (from 0) `stalls` holds wait for `stall_s`.

    Of those whose caller left meanwhile it keeps the numbers in `left`.
    """

    def __init__(self, stalls: Callable[[int], bool] = lambda _: False, stall_s: float = 30.0) -> None:
        super().__init__()
        self.stalls = stalls
        self.stall_s = stall_s
        self.left: list[int] = []
        self._count = 0
        self._counting = threading.Lock()
        self._leaving = threading.Condition()

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        with self._counting:
            number, self._count = self._count, self._count + 1
        answer = super().infer(request, call)
        if self.stalls(number) and call.cancelled.wait(self.stall_s):
            with self._leaving:
                self.left.append(number)
                self._leaving.notify_all()
            raise CallerLeft("the caller has left")
        return answer

    def saw_leave(self, number: int, timeout_s: float = 5.0) -> bool:
        """Whether the caller of that request left within `timeout_s`."""
        with self._leaving:
            return self._leaving.wait_for(lambda: number in self.left, timeout_s)


@contextmanager
def serving(*clouds: FakeDataplane) -> Iterator[list[str]]:
    """The addresses of servers of these clouds."""
    servers: list[RunningServer] = []
    try:
        servers += [start_server(cloud, ["127.0.0.1:0"], max_workers=16) for cloud in clouds]
        yield [server.addresses[0] for server in servers]
    finally:
        for cloud in clouds:
            cloud.release()
        for server in servers:
            server.stop(0.0)


class RecordingCell(RouterService):
    """The agent's router that keeps what it is told; it grants so many hedges, and wants
    link probes if told so. Its breaker for the link is open."""

    def __init__(self, hedges: int = 0) -> None:
        super().__init__(Policy())
        for _ in range(Breaker.FAILURES):
            super().observe(CloudCallFailed(MODEL.name, Reason.CLOUD_UNAVAILABLE))
        self.hedges = hedges
        self.probes = False
        self.outcomes: list[Outcome] = []

    def acquire_hedge(self, decision: Decision) -> bool:
        self.hedges -= 1
        return self.hedges >= 0

    def wants_probe(self, interface: str = "") -> bool:
        return self.probes

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().observe(outcome)

    def deny(self) -> None:
        """From now on nothing may leave."""
        self.replace_policy(parse_yaml("rules: [{name: private, match: {}, egress: deny}]", Policy))

    def story(self) -> list[tuple[str, int]]:
        """The outcomes of calls in order, each with the number of its call in order of sending."""
        sent = [one.call for one in self.outcomes if isinstance(one, CloudSent)]
        kinds = (CloudSent, CloudAnswered, CloudCallFailed, CloudDropped)
        return [(type(one).__name__, sent.index(one.call)) for one in self.outcomes if isinstance(one, kinds)]


def uplink_of(cell: RouterService, settings: UplinkSettings) -> Uplink:
    """An uplink that this router is told by."""
    return Uplink(settings, cell.observe, cell.wants_probe)


def context_of(cell: RouterService, uplink: Uplink) -> RequestContext:
    """What an attempt needs of an agent."""
    return RequestContext(cell, {"": uplink}, AgentMetrics(lambda: cell.state), Admission())


class SentAttempt:
    """An attempt of a flow, step by step, with calls over real sockets."""

    def __init__(self, context: RequestContext, decision: Decision, inputs: Mapping[str, Array]) -> None:
        request = Request(MODEL.name, inputs, time.monotonic(), id="id")
        self._driver = RequestDriver(context, MODEL, request, "id")
        self._flow = self._driver._flow
        self.attempt = CloudAttempt(self._flow._clock, context.router, 0, decision, (MODEL.name, ""))
        self._flow.attempts.append(self.attempt)
        self._drive(self.attempt.begin(may_wait=False))

    @property
    def outcome(self) -> CloudReplyFacts | CloudFailure | None:
        return self.attempt.outcome

    @property
    def elapsed_s(self) -> float:
        return self.attempt.elapsed_s

    @property
    def calls(self) -> Sequence[CloudCall]:
        """The calls in progress."""
        return [self._driver._calls[name].call for name in self.attempt.calls]

    def wait(self, until_s: float) -> None:
        self._drive(self._flow._wait(self.attempt, until_s))

    def hedge(self) -> None:
        self._drive(self.attempt.hedge())

    def give_up(self) -> None:
        self._drive(self.attempt.give_up())

    def drop(self) -> None:
        self._drive(self.attempt.drop())

    def _drive(self, step: Step[None]) -> None:
        clock = self._flow._clock
        with suppress(StopIteration):
            clock.now_s = time.monotonic()
            action = next(step)
            while True:
                try:
                    result = PERFORM[type(action)](self._driver, action)
                except BaseException as error:  # noqa: BLE001  the flow raises it again
                    action = step.throw(error)
                    continue
                clock.now_s = time.monotonic()
                action = step.send(result)


@dataclass
class UplinkSender:
    """Sends requests up: a context, and the recorder that is its router."""

    uplink: Uplink
    cell: RecordingCell
    context: RequestContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = context_of(self.cell, self.uplink)

    def send(self, decision: Decision, inputs: Mapping[str, Array] = INPUTS) -> SentAttempt:
        """One request on its way."""
        return SentAttempt(self.context, decision, inputs)

    def ask(self, decision: Decision) -> SentAttempt:
        """One request, waited for to its end."""
        attempt = self.send(decision)
        attempt.wait(decision.give_up_s)
        attempt.give_up()
        return attempt

    @property
    def sent_bytes(self) -> float:
        """What the metrics say was sent."""
        assert isinstance(self.context.metrics, AgentMetrics)
        return self.context.metrics.registry.get_sample_value("upwell_uplink_bytes_total", {"model": MODEL.name}) or 0.0


@contextmanager
def sender(
    endpoints: Sequence[str], *, hedges: int = 0, security: ClientSecurity | None = None
) -> Iterator[UplinkSender]:
    """A sender to these endpoints, the first preferred."""
    first, *others = endpoints
    cell = RecordingCell(hedges)
    uplink = uplink_of(cell, UplinkSettings(first, security or ClientSecurity(), LIMIT_BYTES, others))
    try:
        yield UplinkSender(uplink, cell)
    finally:
        uplink.close()


def signals() -> Signals:
    """The request as the router sees it."""
    size_bytes = INPUTS["fp32"].nbytes
    return Signals(RequestFacts(MODEL.name, {}, size_bytes, time.time()), (size_bytes,), time.monotonic())


def allowed() -> Verdict:
    """The policy lets it leave."""
    return Verdict(Settings(), None, "", "")


def denied() -> Verdict:
    """The policy keeps it here."""
    return Verdict(Settings(), None, "", "private")


def decision(
    settings: Settings | None = None,
    *,
    within_s: float = 5.0,
    hedge_after_s: float = math.inf,
    probes: tuple[str, ...] = (),
    predicted_s: float = math.nan,
) -> Decision:
    """Send the only row up and wait `within_s` for its answer."""
    end_s = time.monotonic() + within_s
    return Decision(
        plan=Plan.CLOUD,
        reason=Reason.RULE,
        verdict=Verdict(settings or Settings(), "cloud", "up", ""),
        deadline_s=end_s,
        give_up_s=end_s,
        fallback_start_s=end_s,
        up_rows=(0,),
        probes=probes,
        predicted_cloud_s=predicted_s,
        hedge_after_s=hedge_after_s,
        model=MODEL.name,
    )


POLICY = "defaults: {{deadline: 5s, hedge: {hedge}}}\nrules: [{{name: up, match: {{}}, route: cloud}}]"


class Asking:
    """Requests one after the other, decided by the policy and sent up."""

    def __init__(self, address: str, policy: Policy) -> None:
        self.cell = RouterService(policy)
        self.uplink = uplink_of(self.cell, UplinkSettings(address, ClientSecurity(), LIMIT_BYTES))
        self._context = context_of(self.cell, self.uplink)

    def ask(self) -> float:
        """How long the answer took."""
        asked = signals()
        decision = self.cell.decide(asked)
        attempt = SentAttempt(self._context, decision, INPUTS)
        attempt.wait(decision.give_up_s)
        attempt.drop()
        assert isinstance(attempt.outcome, CloudReply)
        return attempt.elapsed_s


@contextmanager
def asking(cloud: StallingCloud, hedge: str) -> Iterator[Asking]:
    """Requests to this cloud, under a policy with this `hedge`."""
    with serving(cloud) as (address,):
        made = Asking(address, parse_yaml(POLICY.format(hedge=hedge), Policy))
        try:
            yield made
        finally:
            made.uplink.close()
