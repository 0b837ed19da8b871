"""Agent and simulator drive the same flow: on the same log, clock and cloud they give the same route and reason.

The agent's own driver, router and scheduler run here on the simulator's clock: to wait is to let that go on, and a run
of the device takes as long as the log says. The log has stalls, failures, an outage and requests that are split, by a
cut or by a head that answers early.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty
from typing import Any, Final

import numpy as np
import pytest

from tests.examples import sampled
from tests.unit.edge.agents import CLOUD_MODEL, MODEL, edge_model, policy, rows_of
from upwell.edge.admission.request_admission import Admission
from upwell.edge.models.edge_model import EdgeModel, Head, ModelSource, ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request import request_driver as driver_module
from upwell.edge.request.request import Request, RequestContext
from upwell.edge.request.request_driver import RequestDriver
from upwell.edge.uplink.cloud_call import Message
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.egress import check_egress
from upwell.shared.errors import UpwellError
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.partition.split.split_file import CutFacts, CutTensor
from upwell.shared.routing.decide.router_state import SplitRoute
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import constant
from upwell.shared.routing.simulation.logged_requests import LoggedRequest, prepare
from upwell.shared.routing.simulation.simulated_time import Kernel
from upwell.shared.routing.simulation.simulated_uplink import (
    CloudBehaviour,
    CloudScript,
    SimulatedCall,
    SimulatedProber,
    SimulatedUplink,
)
from upwell.shared.routing.simulation.strategies import Scene, routed

COUNT = 120
EDGE_S, HEAD_S, TAIL_S, CLOUD_S = 0.03, 0.012, 0.004, 0.008
RTT_S, LINK = 0.02, constant(50e6)
POLICY = """
defaults:
  deadline: 400ms
  hard: {measure: margin, below: 0.5}
  hedge: {after: 80ms, at_most: 100%}
  on_cloud_failure: retry
rules:
  - {name: cut, match: {tags: {by: cut}}, route: split}
  - {name: private, match: {tags: {by: nobody}}, egress: deny}
"""
WAY = SplitRoute("model/c1", 160, HEAD_S, TAIL_S)
Verdicts = list[tuple[Route | None, Reason | None]]


class VirtualTime:
    """The simulator's clock for one thread that waits, and works, in it."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.kernel.now_s = 0.0

    def monotonic(self) -> float:
        return self.kernel.now_s

    def pass_until(self, at_s: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is due until then, or until it is enough."""
        agenda = self.kernel._agenda
        while not is_enough():
            if not agenda or agenda[0][0] > at_s:
                self.kernel.now_s = max(self.kernel.now_s, at_s)
                return
            self.kernel.now_s, _, what = heapq.heappop(agenda)
            what()

    def queue(self) -> VirtualQueue:
        return VirtualQueue(self)


class VirtualQueue:
    """Stands for the driver's queue of news: to wait for something lets time pass."""

    def __init__(self, clock: VirtualTime) -> None:
        self._clock = clock
        self._items: list[object] = []

    def put(self, item: object) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> object:
        self._clock.pass_until(self._clock.kernel.now_s + timeout, lambda: bool(self._items))
        if not self._items:
            raise Empty
        return self._items.pop()


class ScriptedCall:
    """A call over the simulated link, as the driver takes one."""

    def __init__(self, uplink: ScriptedUplink, call: SimulatedCall, request: InferRequest) -> None:
        self._uplink, self._call, self._request = uplink, call, request
        self._callbacks: list[Callable[[], None]] = []
        self.lease = None
        self.frees_link = False

    @property
    def sent_bytes(self) -> int:
        return self._call.size_bytes

    @property
    def elapsed_s(self) -> float:
        call = self._call
        return self._uplink.clock.kernel.now_s - call.sent_s if math.isnan(call.total_s) else call.total_s

    @property
    def ended_s(self) -> float:
        return self._call.sent_s + self.elapsed_s

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def tell(self) -> None:
        for callback in self._callbacks:
            callback()

    def wait(self, _: float) -> CloudReply | CloudFailure | None:
        call, prober = self._call, self._uplink.prober
        if not call.ended:
            return None
        if call.behaviour.failure is not None:
            prober.note_failure()
            return CloudFailure(call.behaviour.failure, "as the script says")
        prober.note_answer()
        facts = {"upwell.cloud_queue_ms": 0.0, "upwell.cloud_compute_ms": 1e3 * call.cloud_s}
        outputs = {"fp32": np.array([[0.9, 0.05, 0.05]], np.float32), "fp64": np.array([[1.0]])}
        response = InferResponse(self._request.model, outputs, id=self._request.id, parameters=facts)
        return CloudReply.of(response, call.size_bytes, 200, call.total_s)

    def give_up(self) -> CloudFailure:
        self._uplink.link.give_up(self._call)
        self._uplink.prober.note_late()
        return CloudFailure(Reason.CLOUD_DEADLINE, "no answer in time")

    def cancel(self) -> None:
        self._uplink.link.give_up(self._call)

    def reject(self, detail: str) -> CloudFailure:
        return CloudFailure(Reason.CLOUD_GARBAGE, detail)


@dataclass
class ScriptedUplink:
    """Sends messages over the simulated link; the cloud does with each what the script says."""

    clock: VirtualTime
    link: SimulatedUplink
    prober: SimulatedProber
    script: CloudScript
    request: LoggedRequest | None = None
    sent: int = 0
    has_others: Final = False

    def note_candidate(self, _: object) -> None:
        self.prober.note_candidate()

    def encode(self, request: InferRequest, traceparent: str) -> Message:
        return Message.of(request, traceparent)

    def start(self, message: Message, judge: Any, _: float, __: object) -> ScriptedCall:
        check_egress(judge)
        assert self.request is not None
        behaviour = self.script(self.request, self.sent)
        self.sent += 1
        is_tail = b"tail" in message.data[:40]
        if is_tail:
            behaviour = replace(behaviour, cloud_s=TAIL_S)
        size_bytes = WAY.row_bytes if is_tail else self.request.size_bytes
        found: list[ScriptedCall] = []
        call = self.link.send(size_bytes, behaviour, lambda: found[0].tell())
        found.append(ScriptedCall(self, call, InferRequest(CLOUD_MODEL, {}, id=message.id)))
        return found[0]


def lasting(edge: EdgeModel, clock: VirtualTime, duration_s: float) -> EdgeModel:
    """The model, each of whose runs takes so long."""
    runtime: Any = edge.runtime
    run = runtime.run

    def running(inputs: Any) -> Any:
        clock.pass_until(clock.kernel.now_s + duration_s)
        return run(inputs)

    runtime.run = running
    return edge


def cut_of() -> CutFacts:
    """Where all that the model takes goes up to its tail."""
    crossing = CutTensor(name="fp32", datatype="FP32", shape=(-1, 3), bytes=12)
    number = CutTensor(name="fp64", datatype="FP64", shape=(-1, 1), bytes=8)
    return CutFacts(name="c1", head="heads/c1/model.onnx", tail="tail", tensors=(crossing, number))


def by_a_cut(clock: VirtualTime) -> ServedModel:
    """The model, and a head of it."""
    heads = (Head(cut_of(), lasting(edge_model(), clock, HEAD_S), WAY),)
    return ServedModel(MODEL, lasting(edge_model(), clock, EDGE_S), CLOUD_MODEL, heads)


def by_exits(clock: VirtualTime) -> ServedModel:
    """A head that answers early, and whose numbers go up."""
    whole = edge_model()
    head = EdgeModel(whole.runtime, whole.processor, ModelSource(whole.digest), exits=("fp64",))
    return ServedModel(MODEL, lasting(head, clock, EDGE_S), CLOUD_MODEL)


@contextmanager
def agent(
    make: Callable[[VirtualTime], ServedModel], script: CloudScript, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[LoggedRequest], Any]]:
    """What answers a request of the log with the agent's own driver, in virtual time."""
    clock = VirtualTime()
    model = make(clock)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr(time, "time", clock.monotonic)
        patch.setattr(driver_module, "SimpleQueue", clock.queue)
        router = RouterService(policy(POLICY))
        link = SimulatedUplink(clock.kernel, LINK, RTT_S)
        pilot: Any = router
        uplink = ScriptedUplink(clock, link, SimulatedProber(clock.kernel, link, pilot), script)
        context = RequestContext(router, {"": uplink}, Counters(), Admission())  # type: ignore[dict-item]

        def ask(logged: LoggedRequest) -> Any:
            clock.pass_until(logged.t_s)
            uplink.request, uplink.sent = logged, 0
            inputs = rows_of(probabilities(logged))
            request = Request(MODEL, inputs, clock.kernel.now_s, tags=logged.line.tags, id=f"{logged.t_s:g}")
            return RequestDriver(context, model, request, request.id).run()[0]

        yield ask


class Counters:
    """Of no interest here."""

    def sent(self, model: str, size_bytes: int) -> None:
        """A message was sent."""


def probabilities(request: LoggedRequest) -> tuple[float, float, float]:
    margin = request.line.hardness["margin"]
    return ((1 + margin) / 2, (1 - margin) / 2, 0.0)


def log_of(seed: int) -> list[LogLine]:
    """A request every second or so; some by a cut, some that must stay."""
    draw, lines, t_s = random.Random(seed), list[LogLine](), 0.0
    for number in range(COUNT):
        margin = draw.choice((0.1, 0.2, 0.8, 0.9))
        size_bytes = len(serialize_infer_request(InferRequest(CLOUD_MODEL, rows_of((1.0, 0.0, 0.0)), id=str(number))))
        by = draw.choices(("all", "cut", "nobody"), (6, 3, 1))[0]
        lines.append(
            LogLine(
                t_s=t_s,
                model=MODEL,
                size_bytes=size_bytes,
                edge_s=EDGE_S,
                cloud_s=CLOUD_S,
                reply_bytes=200,
                hardness={"margin": margin},
                tags={"by": by},
            )
        )
        t_s += draw.uniform(0.6, 1.4)
    return lines


def script_of(seed: int) -> CloudScript:
    """Some first messages stall, some fail, and for a while everything does."""

    def script(request: LoggedRequest, number: int) -> CloudBehaviour:
        draw = random.Random(f"{seed} {request.t_s} {number}")
        if 40 <= request.t_s < 55:
            return CloudBehaviour(0.0, Reason.CLOUD_UNAVAILABLE)
        kind = draw.choices(("answers", "stalls", "fails"), (7, 2, 1) if number == 0 else (9, 1, 0))[0]
        if kind == "stalls":
            return CloudBehaviour(math.inf)
        return CloudBehaviour(0.001, Reason.CLOUD_ERROR) if kind == "fails" else CloudBehaviour(CLOUD_S)

    return script


@pytest.mark.parametrize("make", [by_a_cut, by_exits])
@pytest.mark.parametrize("seed", sampled(range(10), 5))
def test_route_and_reason_of_every_request_are_the_same(
    seed: int, make: Callable[[VirtualTime], ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, script = prepare(log_of(seed)), script_of(seed)
    scene = Scene(requests, LINK, RTT_S, script)
    scene = replace(scene, splits={MODEL: (WAY,)}) if make is by_a_cut else replace(scene, exits={MODEL})
    simulated: Verdicts = [(one.route, one.reason) for one in routed(policy(POLICY), scene)]
    found: Verdicts = []
    with agent(make, script, monkeypatch) as ask:
        for logged in requests:
            try:
                answer = ask(logged)
            except UpwellError:
                found.append((None, None))
            else:
                found.append((answer.route, answer.reason))
    expected = [(route, None if route is None else reason) for route, reason in simulated]
    assert [(n, *pair) for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]] == []
    routes = {Route.EDGE, Route.CLOUD, Route.SPLIT} if make is by_a_cut else {Route.EXIT, Route.SPLIT}
    assert {route for route, _ in found} >= routes
    reasons = {reason for _, reason in found}
    assert reasons >= {Reason.EASY, Reason.HARD, Reason.EGRESS_DENIED, Reason.CLOUD_UNAVAILABLE, Reason.BREAKER_OPEN}
