"""What leaves the device by telemetry: codes, never a text that a request, a tag, an id or a model's error is in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from prometheus_client import generate_latest

from tests.unit.edge.agents import CLOUD_MODEL, MAX_MESSAGE_BYTES, MODEL, UNSURE, edge_model, policy, rows_of
from upwell.edge import Answer
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.server.agent_core import AgentCore, AgentParts
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ModelFailed, UpwellError
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.telemetry.tracing import Span, Tracer

TENSOR, TAG, ID, ERROR = "424242424242", "TAGSECRET", "IDSECRET", "ERRORSECRET"
MARKS = (TENSOR, TAG, ID, ERROR)
DENY = "rules: [{name: private, match: {tags: {privacy: device}}, egress: deny}]"


class Kept:
    """Keeps what a collector would be sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.became: Mapping[str, int] = {}

    def put(self, trace_id: str, spans: Sequence[Span]) -> None:
        self.spans += spans

    def close(self) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[tuple[FakeDataplane, str]]:
    dataplane = FakeDataplane()
    server = start_server(dataplane, ["127.0.0.1:0"], max_workers=4)
    yield dataplane, server.addresses[0]
    dataplane.release()
    server.stop(0.0)


def told(cloud: tuple[FakeDataplane, str], failure: str, rules: str, tags: dict[str, str]) -> tuple[str, object]:
    """All that one request left in spans and metrics, and its outcome."""
    kept = Kept()
    tracer = Tracer(1.0, kept)
    uplink = UplinkSettings(cloud[1], ClientSecurity(), MAX_MESSAGE_BYTES)
    edge = edge_model(failure=failure)
    inputs = rows_of(UNSURE)
    inputs["fp64"] = np.array([[float(TENSOR)]])
    outcome: object
    with AgentCore([ServedModel(MODEL, edge, CLOUD_MODEL)], uplink, policy(rules), AgentParts(tracer=tracer)) as agent:
        try:
            outcome = agent.infer(MODEL, inputs, tags=tags, id=ID, deadline_s=5.0)
        except UpwellError as error:
            outcome = error
        page = generate_latest(agent.metrics.registry).decode()
    assert kept.spans, "nothing was recorded"
    return repr(kept.spans) + page, outcome


@pytest.mark.parametrize("failure", ["", f"idx={TENSOR} {ERROR}"])
def test_no_mark_of_a_denied_request_is_in_spans_or_metrics(cloud: tuple[FakeDataplane, str], failure: str) -> None:
    text, outcome = told(cloud, failure, DENY, {"privacy": "device", "patient": TAG})
    assert isinstance(outcome, ModelFailed if failure else Answer)
    assert not [mark for mark in MARKS if mark in text]
    assert cloud[0].requests == []


def test_a_request_that_may_leave_keeps_its_id_but_no_text_of_an_error(cloud: tuple[FakeDataplane, str]) -> None:
    cloud[0].failure = ModelFailed(f"source patient='{TAG}' {ERROR}")
    text, outcome = told(cloud, "", "defaults: {hard: {below: 1.0}}", {"patient": TAG})
    assert isinstance(outcome, Answer)
    assert outcome.degraded
    assert ID in text
    assert not [mark for mark in (TENSOR, TAG, ERROR) if mark in text]
    assert "cloud_error" in text


def test_ids_of_denied_requests_are_alike_where_the_ids_are(cloud: tuple[FakeDataplane, str]) -> None:
    from upwell.edge.request.request_spans import hashed

    assert hashed(ID) == hashed(ID) != hashed(ID + "x")
    assert ID not in hashed(ID)


def test_the_id_of_a_request_that_is_denied_meanwhile_is_hashed_too(cloud: tuple[FakeDataplane, str]) -> None:
    kept, gate = Kept(), threading.Event()
    tracer = Tracer(1.0, kept)
    uplink = UplinkSettings(cloud[1], ClientSecurity(), MAX_MESSAGE_BYTES)
    model = ServedModel(MODEL, edge_model(gate=gate), CLOUD_MODEL)
    with AgentCore([model], uplink, policy("version: 1"), AgentParts(tracer=tracer)) as agent:
        asking = threading.Thread(target=lambda: agent.infer(MODEL, rows_of(UNSURE), id=ID, deadline_s=10.0))
        asking.start()
        agent.router.replace_policy(policy("rules: [{name: all, match: {}, egress: deny}]"))
        gate.set()
        asking.join(20.0)
    assert kept.spans
    assert ID not in repr(kept.spans)
    assert cloud[0].requests == []
