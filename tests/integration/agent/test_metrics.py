"""What Prometheus reads, after requests whose fate is known."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud, status
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE
from tests.faults.scene import write_agent
from tests.integration.agent.harness import LIMIT_S, Running, agent_process, ask, client_of, digits_request, scraped
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError

POLICY = {
    "defaults": {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}},
    "rules": [{"name": "here", "match": {"tags": {"where": "here"}}, "route": "edge"}],
}
FAILURES_UNTIL_OPEN = 3


@pytest.fixture
def running(folder: Path, cloud: ScriptedCloud) -> Iterator[Running]:
    models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}, "cloud": {"model": CLOUD_MODEL}}}
    section = {"listen": ["127.0.0.1:0"], "metrics": "127.0.0.1:0"}
    with agent_process(write_agent(folder, POLICY, cloud.address, models, section)) as it:
        yield it


@pytest.fixture
def client(running: Running) -> Iterator[OipClient]:
    with client_of(running.addresses[0]) as it:
        yield it


def test_every_answer_and_every_byte_is_counted(running: Running, client: OipClient, cloud: ScriptedCloud) -> None:
    before = scraped(running.metrics_url)
    assert "upwell_requests_total{model=digits,reason=hard,route=cloud}" not in before
    assert math.isnan(before["upwell_link_rtt_seconds"])
    for _ in range(4):
        ask(client, 0)
    for _ in range(3):
        ask(client, 0, where="here")
    with pytest.raises(RemoteError):
        client.infer(InferRequest("digits", {"image": np.zeros(3, np.float32)}), LIMIT_S)
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    for _ in range(FAILURES_UNTIL_OPEN + 1):
        ask(client, 0)
    found = scraped(running.metrics_url)
    requests = {name: value for name, value in found.items() if name.startswith("upwell_requests_total")}
    assert requests == {
        "upwell_requests_total{model=digits,reason=hard,route=cloud}": 4,
        "upwell_requests_total{model=digits,reason=rule,route=edge}": 3,
        "upwell_requests_total{model=digits,reason=cloud_unavailable,route=edge}": 3,
        "upwell_requests_total{model=digits,reason=breaker_open,route=edge}": 1,
    }
    degraded = {name: value for name, value in found.items() if name.startswith("upwell_degraded_total")}
    assert degraded == {
        "upwell_degraded_total{model=digits,reason=cloud_unavailable}": 3,
        "upwell_degraded_total{model=digits,reason=breaker_open}": 1,
    }
    assert found["upwell_failed_total{error=InvalidRequest,model=digits}"] == 1
    assert found["upwell_breaker_open{model=*}"] == 1


def test_latency_is_a_histogram_by_route(running: Running, client: OipClient) -> None:
    for _ in range(5):
        ask(client, 0, where="here")
    found = scraped(running.metrics_url)
    of_edge = "model=digits,route=edge"
    assert found[f"upwell_request_seconds_count{{{of_edge}}}"] == 5
    assert 0 < found[f"upwell_request_seconds_sum{{{of_edge}}}"] < 5 * LIMIT_S
    assert found[f"upwell_request_seconds_bucket{{le=+Inf,{of_edge}}}"] == 5
    assert found[f"upwell_request_seconds_bucket{{le=0.001,{of_edge}}}"] <= 5


def test_bytes_up_are_those_of_the_messages_and_the_link_is_estimated(
    running: Running, client: OipClient, cloud: ScriptedCloud
) -> None:
    for _ in range(6):
        ask(client, 0, 1, 2)
    sent = sum(len(converters.serialize_infer_request(request)) for request in cloud.requests)
    found = scraped(running.metrics_url)
    assert found["upwell_uplink_bytes_total{model=digits}"] == sent
    assert 0 < found["upwell_link_rtt_seconds"] < 5
    assert len(converters.serialize_infer_request(digits_request(0, 1, 2))) < sent / 5


def test_what_a_caller_writes_makes_no_new_series(running: Running, client: OipClient) -> None:
    """Else anyone could fill the memory of agent and Prometheus."""
    ask(client, 0, where="here")
    before = set(scraped(running.metrics_url))
    for number in range(20):
        with pytest.raises(RemoteError):
            client.infer(InferRequest(f"model-{number}", digits_request(0).inputs), LIMIT_S)
        client.infer(digits_request(0, where="here", **{f"t{number}": "x"}), LIMIT_S)
    after = set(scraped(running.metrics_url))
    assert not [name for name in after - before if "model-" in name or "t1" in name]


def test_the_page_is_for_reading_only(running: Running) -> None:
    posted = urllib.request.Request(running.metrics_url, data=b"x", method="POST")  # noqa: S310  our own agent
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(posted, timeout=LIMIT_S)  # noqa: S310  as above
    caught.value.close()
    assert caught.value.code == 405
