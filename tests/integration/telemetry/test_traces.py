"""One request through agent and service, each a process of its own, as a collector sees it, also one that fails."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, EDGE_BUNDLE
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from tests.integration.agent.harness import LIMIT_S, client_of, digits_request, scraped
from tests.integration.telemetry.collector import Collector, Received, collecting
from upwell.shared.telemetry.tracing import Place

CALLER = Place("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)
SERVER, CLIENT, INTERNAL = 2, 3, 1
POLICY: Mapping[str, Any] = {
    "defaults": {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}},
    "rules": [{"name": "here", "match": {"tags": {"where": "here"}}, "route": "edge"}],
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as it:
        yield it


def traces(endpoint: str, sample: str = "100%") -> dict[str, Any]:
    return {"endpoint": endpoint, "sample": sample}


def write_service(folder: Path, serve: Mapping[str, Any]) -> Path:
    path = folder / "cloud.yaml"
    content = {"serve": {"listen": ["127.0.0.1:0"], "models": str(CLOUD_MODELS), **serve}, "defaults": {"max_batch": 8}}
    path.write_text(json.dumps({"version": 1, **content}))
    return path


def write_own(folder: Path, cloud: str, agent: Mapping[str, Any]) -> Path:
    models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}, "cloud": {"model": CLOUD_MODEL}}}
    return write_agent(folder, POLICY, cloud, models, {"listen": ["127.0.0.1:0"], **agent})


def only(spans: Sequence[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_request_is_one_trace_through_both_processes(tmp_path: Path, collector: Collector) -> None:
    section = traces(collector.endpoint)
    with Program(["serve", "-c", str(write_service(tmp_path, {"traces": section}))]) as service:
        config = write_own(tmp_path, service.address(), {"traces": section})
        with Program(["agent", "-c", str(config)]) as agent, client_of(agent.address()) as client:
            request = digits_request(0)
            answer = client.infer_async(request, LIMIT_S, str(CALLER)).result(LIMIT_S)
            spans = collector.wait(
                lambda all: {"upwell.agent.infer", "upwell.cloud.infer"} <= {one.name for one in all}
            )
    assert {span.trace_id for span in spans} == {CALLER.trace_id}
    parents = {
        "upwell.agent.infer": CALLER.span_id,
        "upwell.agent.edge": only(spans, "upwell.agent.infer").span_id,
        "upwell.agent.uplink": only(spans, "upwell.agent.infer").span_id,
        "upwell.cloud.infer": only(spans, "upwell.agent.uplink").span_id,
        "upwell.cloud.pre": only(spans, "upwell.cloud.infer").span_id,
        "upwell.cloud.queue": only(spans, "upwell.cloud.infer").span_id,
        "upwell.cloud.engine": only(spans, "upwell.cloud.infer").span_id,
        "upwell.cloud.post": only(spans, "upwell.cloud.infer").span_id,
    }
    assert {name: only(spans, name).parent_id for name in parents} == parents
    decisions = [span for span in spans if span.name == "upwell.agent.decide"]
    assert [span.parent_id for span in decisions] == [parents["upwell.agent.edge"]] * 2
    assert {span.name for span in spans} == {*parents, "upwell.agent.decide"}
    kinds = {"upwell.agent.infer": SERVER, "upwell.agent.uplink": CLIENT, "upwell.cloud.infer": SERVER}
    assert {span.name: span.kind for span in spans} == dict.fromkeys([span.name for span in spans], INTERNAL) | kinds
    root, cloud = only(spans, "upwell.agent.infer"), only(spans, "upwell.cloud.infer")
    assert (root.service, cloud.service) == ("upwell-agent", "upwell-cloud")
    assert root.attributes["upwell.request_id"] == cloud.attributes["upwell.request_id"] == answer.id
    facts = {name: root.attributes[f"upwell.{name}"] for name in ("route", "reason", "plan", "degraded", "model")}
    assert facts == {"route": "cloud", "reason": "hard", "plan": "cascade", "degraded": False, "model": "digits"}
    assert 4000 < root.attributes["upwell.deadline_ms"] <= 5000
    assert only(spans, "upwell.cloud.engine").attributes == {"upwell.batch.rows": 1, "upwell.batch.requests": 1}
    for span in spans:  # on one machine the two processes' clocks are one
        assert root.started_ns - 10**6 <= span.started_ns <= span.ended_ns <= root.ended_ns + 10**6, span.name
    assert not any(span.error for span in spans)


def test_who_calls_decides_what_is_recorded_and_the_cloud_is_told(tmp_path: Path, collector: Collector) -> None:
    section = traces(collector.endpoint)
    with Program(["serve", "-c", str(write_service(tmp_path, {"traces": section}))]) as service:
        config = write_own(tmp_path, service.address(), {"traces": traces(collector.endpoint, "0%")})
        with Program(["agent", "-c", str(config)]) as agent, client_of(agent.address()) as client:
            client.infer(digits_request(0), LIMIT_S)
            unsampled = Place(CALLER.trace_id, CALLER.span_id, False)
            client.infer_async(digits_request(1), LIMIT_S, str(unsampled)).result(LIMIT_S)
            client.infer_async(digits_request(2, where="here"), LIMIT_S, str(CALLER)).result(LIMIT_S)
            agent.send(signal.SIGTERM)
            service.send(signal.SIGTERM)
            assert (agent.wait(), service.wait()) == (0, 0)
    # What is recorded is delivered before the processes end; so this is all there will be.
    assert {span.name for span in collector.spans} == {"upwell.agent.infer", "upwell.agent.decide", "upwell.agent.edge"}
    assert {span.trace_id for span in collector.spans} == {CALLER.trace_id}


@pytest.mark.slow
def test_an_agent_without_traces_passes_the_callers_place_on(tmp_path: Path, collector: Collector) -> None:
    with Program(
        ["serve", "-c", str(write_service(tmp_path, {"traces": traces(collector.endpoint, "0%")}))]
    ) as service:
        with (
            Program(["agent", "-c", str(write_own(tmp_path, service.address(), {}))]) as agent,
            client_of(agent.address()) as client,
        ):
            client.infer_async(digits_request(0), LIMIT_S, str(CALLER)).result(LIMIT_S)
            client.infer_async(digits_request(0), LIMIT_S, "no trace at all").result(LIMIT_S)
        spans = collector.wait(lambda all: any(one.name == "upwell.cloud.infer" for one in all))
    assert only(spans, "upwell.cloud.infer").parent_id == CALLER.span_id


@pytest.mark.slow
def test_a_place_is_read_from_http_too_and_an_error_is_in_the_trace(tmp_path: Path, collector: Collector) -> None:
    serve = {"traces": traces(collector.endpoint, "0%"), "listen_http": ["127.0.0.1:0"]}
    with Program(["serve", "-c", str(write_service(tmp_path, serve))]) as service:
        web = service.find(r"HTTP on (\S+)")
        service.address()
        url = f"http://{web}/v2/models/{CLOUD_MODEL}/infer"
        body = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1], "data": [0]}]}
        asked = urllib.request.Request(url, json.dumps(body).encode(), {"traceparent": str(CALLER)})
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=LIMIT_S)  # noqa: S310  as above
        caught.value.close()
        spans = collector.wait(lambda all: len(all) > 0)
    span = only(spans, "upwell.cloud.infer")
    assert (span.trace_id, span.parent_id) == (CALLER.trace_id, CALLER.span_id)
    assert span.attributes["upwell.status"] == "INVALID_ARGUMENT"
    assert span.error == "INVALID_ARGUMENT"  # its text may hold what was sent


@pytest.mark.parametrize("kind", ["nobody", pytest.param("stuck", marks=pytest.mark.exhaustive)])
def test_a_collector_that_fails_costs_no_request(tmp_path: Path, collector: Collector, kind: str) -> None:
    endpoint = collector.endpoint
    if kind == "nobody":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    collector.is_stuck = kind == "stuck"
    serve = {"traces": traces(endpoint), "metrics": "127.0.0.1:0"}
    with Program(["serve", "-c", str(write_service(tmp_path, serve))]) as service:
        page = service.find(r"metrics on (\S+)")
        with client_of(service.address()) as client:
            request = digits_request(0, model=CLOUD_MODEL)
            client.infer(request, LIMIT_S)
            assert kind == "nobody" or collector.posted()  # the deliverer is in it now
            for _ in range(100):
                client.infer(request, LIMIT_S)
            key = "upwell_cloud_requests_total{model=digits-large,status=OK,version=1}"
            assert scraped(page)[key] == 101
        service.send(signal.SIGTERM)
        began_s = time.monotonic()
        assert service.wait() == 0
        assert time.monotonic() - began_s < 15.0  # it gives up on the collector


@pytest.mark.slow
def test_without_traces_nothing_of_opentelemetry_is_imported() -> None:
    script = (
        "import sys\n"
        "import upwell.cloud.workers.serving_process, upwell.cloud.observe.telemetry\n"
        "import upwell.edge.cli, upwell.edge.server.agent_assembly\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.slow
def test_requests_of_one_batch_are_linked(tmp_path: Path, collector: Collector) -> None:
    serve = {"traces": traces(collector.endpoint)}
    path = write_service(tmp_path, serve)
    content = json.loads(path.read_text())
    content["defaults"] |= {"instances": 1}
    path.write_text(json.dumps(content))
    with Program(["serve", "-c", str(path)]) as service, client_of(service.address()) as client:
        request = digits_request(*range(1), model=CLOUD_MODEL)
        ended = threading.Event()

        def shared(spans: Sequence[Received]) -> bool:
            return any(span.name == "upwell.cloud.engine" and span.links for span in spans)

        def ask() -> None:
            while not ended.is_set():
                client.infer(request, LIMIT_S)

        callers = [threading.Thread(target=ask) for _ in range(8)]
        for caller in callers:
            caller.start()
        try:
            spans = collector.wait(shared)
        finally:
            ended.set()
            for caller in callers:
                caller.join()
    engine = next(span for span in spans if span.name == "upwell.cloud.engine" and span.links)
    assert engine.attributes["upwell.batch.requests"] == len(engine.links) + 1
    roots = {span.span_id for span in collector.spans if span.name == "upwell.cloud.infer"}
    assert engine.parent_id not in engine.links
    assert len(roots & set(engine.links)) > 0
