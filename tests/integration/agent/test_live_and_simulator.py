"""The agent live, over sockets and by the real clock, beside the simulator that is fed with the times measured there.

The log and the cloud's script are seeded: it stalls, fails, and is out for a while; some requests are split. What the
machine does meanwhile makes the times; where the two come to something else, the time that made the difference is told.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from tests.integration.agent.test_agent_and_simulator import cut_of, log_of, probabilities
from tests.unit.edge.agents import CLOUD_MODEL, MAX_MESSAGE_BYTES, MODEL, edge_model, policy, rows_of
from upwell.edge.models.edge_model import EdgeModel, Head, ServedModel
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.uplink import uplink as uplink_module
from upwell.edge.uplink.cloud_call import CloudCall
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import Uplink, UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import CallerLeft, ModelFailed, Unavailable, UpwellError
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.decide.router_state import SplitRoute
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import constant
from upwell.shared.routing.simulation.logged_requests import LoggedRequest, prepare
from upwell.shared.routing.simulation.simulated_uplink import CloudBehaviour
from upwell.shared.routing.simulation.strategies import Scene, routed

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(120)]

COUNT, AT_LEAST = 100, 97
EVERY_S, EDGE_S, CLOUD_S = 0.12, 0.01, 0.006
HEAD_S = 0.03  # so that a split pays for nothing but the rule that wants it
OUTAGE = range(40, 55)
FIRST = "-1"
ROW_BYTES = 20  # as the agent counts it, of the whole and of the cut
POLICY = """
defaults:
  deadline: 300ms
  hard: {measure: margin, below: 0.5}
  hedge: {after: 60ms, at_most: 100%}
  on_cloud_failure: retry
rules:
  - {name: cut, match: {tags: {by: cut}}, route: split}
  - {name: private, match: {tags: {by: nobody}}, egress: deny}
"""


def script(request: int, message: int) -> str:
    """What the cloud does with a message, both counted from 0."""
    if request < 0:
        return "answers"
    if request in OUTAGE:
        return "is out"
    draw = random.Random(f"{request} {message}")
    return draw.choices(("answers", "stalls", "fails"), (7, 2, 1) if message == 0 else (9, 1, 0))[0]


class ScriptedCloud(FakeDataplane):
    """Does as the script says with each message."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        began_s = time.monotonic()
        message = self.seen[request.id] = self.seen.get(request.id, -1) + 1
        does = script(int(request.id), message)
        if does == "is out":
            raise Unavailable("as the script says")
        if does == "fails":
            raise ModelFailed("as the script says")
        if call.cancelled.wait(30.0 if does == "stalls" else CLOUD_S):
            raise CallerLeft("the caller has left")
        facts = {"upwell.cloud_queue_ms": 0.0, "upwell.cloud_compute_ms": 1e3 * (time.monotonic() - began_s)}
        numbers = rows_of((0.9, 0.05, 0.05))
        return InferResponse(request.model, numbers, "1", request.id, facts)


class MeasuredUplink(Uplink):
    """Keeps the calls of the request that is under way."""

    calls: list[CloudCall]

    def start(self, *how: Any) -> CloudCall:
        self.calls.append(super().start(*how))
        return self.calls[-1]


def behaviour(call: CloudCall) -> CloudBehaviour:
    """What the call was seen to do, all of its time; one that was given up, or cancelled, as if it never ended."""
    outcome = call.wait(-math.inf)
    if isinstance(outcome, CloudReply):
        return CloudBehaviour(outcome.total_s)
    if isinstance(outcome, CloudFailure) and outcome.reason is not Reason.CLOUD_DEADLINE:
        return CloudBehaviour(call.elapsed_s, outcome.reason)
    return CloudBehaviour(math.inf)


def round_trips_s(calls: list[CloudCall]) -> list[float]:
    """Of those answered: what their time had besides the cloud's own."""
    replies = [call.wait(-math.inf) for call in calls]
    return [one.total_s - (one.server_s or 0.0) for one in replies if isinstance(one, CloudReply)]


def lasting(edge: EdgeModel, duration_s: float) -> list[float]:
    """Let each run of the model take so long; what they took."""
    runtime: Any = edge.runtime
    run, taken_s = runtime.run, list[float]()

    def running(inputs: Any) -> Any:
        began_s = time.monotonic()
        time.sleep(duration_s)
        outputs = run(inputs)
        taken_s.append(time.monotonic() - began_s)
        return outputs

    runtime.run = running
    return taken_s


@dataclass
class Measured:
    """One request as it went live. `route` and `reason` are None where there was no answer."""

    at_s: float
    route: Route | None = None
    reason: Reason | None = None
    edge_s: float | None = None
    behaviours: list[CloudBehaviour] = field(default_factory=list)
    took_s: float = math.nan

    def told(self) -> str:
        calls = ", ".join(f"{one.cloud_s * 1e3:.1f} ms {one.failure or ''}".strip() for one in self.behaviours)
        edge = "none" if self.edge_s is None else f"{self.edge_s * 1e3:.1f} ms"
        return f"arrived {self.at_s:.3f} s, took {self.took_s * 1e3:.1f} ms; run {edge}; calls [{calls}]"


def connect(uplink: MeasuredUplink) -> None:
    """Make the handshakes, which are not simulated."""
    uplink.calls = []
    verdict = Verdict(Settings(), None, "", "")
    request = InferRequest(CLOUD_MODEL, rows_of((1.0, 0.0, 0.0)), id=FIRST)
    assert uplink.start(request, lambda: verdict, math.inf).wait(time.monotonic() + 10.0)


def live(lines: list[LogLine]) -> tuple[list[Measured], float, float]:
    """The requests, one after the other by the clock; how long a head and the way to the cloud and back took."""
    whole, head = edge_model(), edge_model()
    runs_s, heads_s = lasting(whole, EDGE_S), lasting(head, HEAD_S)
    server = start_server(ScriptedCloud(), ["127.0.0.1:0"], max_workers=16)
    done, trips_s = list[Measured](), list[float]()
    try:
        cloud = UplinkSettings(server.addresses[0], ClientSecurity(), MAX_MESSAGE_BYTES)
        heads = (Head(cut_of(), head, SplitRoute("model/c1", ROW_BYTES, HEAD_S)),)
        model = ServedModel(MODEL, whole, CLOUD_MODEL, heads)
        with patch.object(uplink_module, "Uplink", MeasuredUplink), AgentCore([model], cloud, policy(POLICY)) as agent:
            uplink = agent.uplink
            assert isinstance(uplink, MeasuredUplink)
            connect(uplink)
            start_s = time.monotonic()
            for number, line in enumerate(lines):
                time.sleep(max(0.0, start_s + number * EVERY_S - time.monotonic()))
                uplink.calls = []
                runs_s.clear()
                one = Measured(time.monotonic() - start_s)
                inputs = rows_of(probabilities(prepare([line])[0]))
                try:
                    answer = agent.infer(MODEL, inputs, tags=line.tags, id=str(number))
                except UpwellError:
                    pass
                else:
                    one.route, one.reason = answer.route, answer.reason
                one.took_s = time.monotonic() - start_s - one.at_s
                one.edge_s = sum(runs_s) if runs_s else None
                one.behaviours = [behaviour(call) for call in uplink.calls]
                trips_s += round_trips_s(uplink.calls)
                done.append(one)
    finally:
        server.stop(0.0)
    return done, statistics.median(heads_s), statistics.median(trips_s)


def simulated(
    lines: list[LogLine], measured: list[Measured], head_s: float, rtt_s: float
) -> list[tuple[Route | None, Reason]]:
    """The same requests with the times that were measured."""
    fed = [
        line.model_copy(update={"t_s": one.at_s, "edge_s": one.edge_s, "size_bytes": ROW_BYTES, "cloud_s": CLOUD_S})
        for line, one in zip(lines, measured, strict=True)
    ]
    by_instant = {one.at_s: one.behaviours for one in measured}

    def as_measured(request: LoggedRequest, number: int) -> CloudBehaviour:
        behaviours = by_instant[request.t_s]
        if number >= len(behaviours):
            return CloudBehaviour(CLOUD_S)  # a message that was not sent live
        seen = behaviours[number]
        return CloudBehaviour(max(0.0, seen.cloud_s - rtt_s), seen.failure)

    split_routes = {MODEL: (SplitRoute("model/c1", ROW_BYTES, head_s),)}
    return [
        (one.route, one.reason)
        for one in routed(policy(POLICY), Scene(prepare(fed), constant(1e12), rtt_s, as_measured, split_routes))
    ]


def test_at_least_97_of_100_are_the_same_live_and_the_rest_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    lines = log_of(7)[:COUNT]
    measured, head_s, rtt_s = live(lines)
    expected = simulated(lines, measured, head_s, rtt_s)
    different = [
        f"{number}: live {one.route} {one.reason}, simulated {route} {reason}; {one.told()}"
        for number, (one, (route, reason)) in enumerate(zip(measured, expected, strict=True))
        if one.route is not route or (route is not None and one.reason is not reason)
    ]
    with capsys.disabled():
        times = f"a head takes {head_s * 1e3:.1f} ms, a round trip {rtt_s * 1e3:.1f} ms"
        print(f"\n{COUNT - len(different)} of {COUNT} alike; {times}", *different, sep="\n  ")
    assert {one.route for one in measured} >= {Route.EDGE, Route.CLOUD, Route.SPLIT}
    reasons = {one.reason for one in measured}
    assert reasons >= {Reason.EASY, Reason.HARD, Reason.EGRESS_DENIED, Reason.CLOUD_UNAVAILABLE, Reason.BREAKER_OPEN}
    assert any(len(one.behaviours) > 1 for one in measured), "hedges and retries"
    assert len(different) <= COUNT - AT_LEAST, "\n".join(different)
