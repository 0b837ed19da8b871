"""Metrics that an agent pushes: to a collector that takes them, one that does not, and a real time-series database."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.agent.harness import LIMIT_S, Running, agent_process, client_of
from tests.integration.telemetry.collector import Collector, Pushed, collecting
from tests.unit.models_for_tests import linear
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.telemetry.otlp import MetricsDelivery
from upwell.shared.telemetry.telemetry_keys import MetricsPush


def config(folder: Path, endpoint: str) -> Path:
    """An agent that nobody can scrape: it has no address on any network."""
    linear(folder).rename(folder / "model.onnx")
    (folder / "agent.yaml").write_text(
        "version: 1\n"
        f"agent: {{name: gate-7, listen: ['unix:{folder}/a.sock'], otlp: {{endpoint: '{endpoint}', every: 1s}}}}\n"
        "models: {small: {edge: {file: model.onnx}}}\n"
    )
    return folder / "agent.yaml"


def ask(agent: Running) -> None:
    with client_of(agent.addresses[0]) as client:
        client.infer(InferRequest("small", {"x": np.zeros((1, 8), np.float32)}), LIMIT_S)


def requests_in(pushed: Pushed) -> float:
    return sum(value for (name, _), value in pushed.values.items() if name == "upwell_requests_total")


def test_a_device_that_nobody_can_scrape_is_seen_with_its_last_count(tmp_path: Path) -> None:
    with collecting() as collector:
        with agent_process(config(tmp_path, collector.endpoint)) as agent:
            ask(agent)
            first = collector.wait_pushed(lambda pushed: requests_in(pushed) == 1)
            ask(agent)
            agent.program.send(signal.SIGTERM)
            assert agent.program.wait() == 0
        last = collector.pushed[-1]
    assert (requests_in(first), requests_in(last)) == (1, 2)
    said = {name: first.resource[name] for name in ("service.name", "service.instance.id", "upwell.agent.name")}
    assert said == {"service.name": "upwell-agent", "service.instance.id": "gate-7", "upwell.agent.name": "gate-7"}
    assert first.resource["service.version"] == next(
        dict(labels)["version"] for name, labels in first.values if name == "upwell_build_info"
    )
    assert last.value("upwell_request_seconds_count", model="small", route="edge") == 2
    assert last.value("upwell_otlp_pushes_total", became="failed") == 0


def test_what_is_pushed_is_what_the_page_says() -> None:
    registry = CollectorRegistry()
    Counter("hits", "H.", ("kind",), registry=registry).labels("a").inc(3)
    Gauge("level", "L.", registry=registry).set(2.5)
    Gauge("unknown", "U.", registry=registry).set(float("nan"))
    times = Histogram("seconds", "S.", ("model",), buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.5, 7.0):
        times.labels("m").observe(value)
    with collecting() as collector:
        delivery = MetricsDelivery(MetricsPush(endpoint=collector.endpoint), registry.collect, dict)
        delivery.close()
    page = text_string_to_metric_families(generate_latest(registry).decode())
    shown = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in page for sample in family.samples
        if not sample.name.endswith("_created") and not math.isnan(sample.value)
    }  # fmt: skip
    assert collector.pushed[-1].values == shown
    assert delivery.became == {"sent": 1, "failed": 0}


@contextlib.contextmanager
def pushing(collector: Collector) -> Iterator[MetricsDelivery]:
    registry = CollectorRegistry()
    Gauge("level", "L.", registry=registry).set(1)
    section = MetricsPush.model_validate({"endpoint": collector.endpoint, "every": "1s"})
    delivery = MetricsDelivery(section, registry.collect, dict)
    yield delivery
    delivery.close()


@pytest.mark.slow
def test_a_collector_that_refuses_and_takes_again_is_said_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with collecting() as collector:
        collector.status = 400
        with pushing(collector) as delivery:
            assert collector.posted(2)
            collector.status = 200
            collector.wait_pushed(lambda _: True)
        assert delivery.became["failed"] >= 2
        assert delivery.became["sent"] >= 1
    assert [record.getMessage() for record in caplog.records if "push" in record.getMessage()] == [
        "metrics cannot be pushed; they will be pushed once the collector accepts them again", "metrics are being "
        "pushed again",
    ]  # fmt: skip


def test_a_collector_that_leads_elsewhere_is_not_followed() -> None:
    with collecting() as elsewhere, collecting() as collector:
        collector.status, collector.redirect = 302, f"{elsewhere.endpoint}/v1/metrics"
        with pushing(collector) as delivery:
            assert collector.posted(1)
            until_s = time.monotonic() + LIMIT_S
            while not delivery.became["failed"]:
                assert time.monotonic() < until_s
                time.sleep(0.01)
        assert (elsewhere.posts, delivery.became["sent"]) == (0, 0)


@pytest.mark.slow
def test_an_agent_answers_and_ends_in_time_while_its_collector_is_stuck(tmp_path: Path) -> None:
    with collecting() as collector:
        collector.is_stuck = True
        with agent_process(config(tmp_path, collector.endpoint)) as agent:
            assert collector.posted(1)
            began_s = time.monotonic()
            for _ in range(20):
                ask(agent)
            assert time.monotonic() - began_s < 5.0
            began_s = time.monotonic()
            agent.program.send(signal.SIGTERM)
            assert agent.program.wait() == 0
            assert time.monotonic() - began_s < 10.0


@pytest.mark.slow
def test_victoria_metrics_shows_the_device_that_pushed(tmp_path: Path) -> None:
    """Debian's VictoriaMetrics, 1.79, takes no OTLP yet: what the collector decoded is passed on to it."""
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("victoria-metrics is not installed")
    with collecting() as collector, victoria_metrics(program, tmp_path / "data") as url:
        with agent_process(config(tmp_path, collector.endpoint)) as agent:
            ask(agent)
            pushed = collector.wait_pushed(lambda one: requests_in(one) == 1)
        pass_on(url, pushed)
        until_s = time.monotonic() + 30
        query = 'sum by (instance, agent, version) (upwell_build_info) * on (instance) group_left sum by (instance) (upwell_requests_total{route="edge"})'  # noqa: E501  one expression
        while not (found := query_of(url, query)):
            assert time.monotonic() < until_s
            time.sleep(0.3)
    assert [(one["metric"]["instance"], one["metric"]["agent"], one["value"][1]) for one in found] == [
        ("gate-7", "gate-7", "1")
    ]


@contextlib.contextmanager
def victoria_metrics(program: str, data: Path) -> Iterator[str]:
    """A real one on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [f"-storageDataPath={data}", f"-httpListenAddr={address}", "-search.latencyOffset=0s"]
    running = subprocess.Popen([program, *options], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/health", timeout=2):
                break
            assert time.monotonic() < until_s
            time.sleep(0.1)
        yield f"http://{address}"
    finally:
        running.terminate()
        running.wait(20)


def pass_on(url: str, pushed: Pushed) -> None:
    """Import the values as Prometheus' names and labels, with job and instance as its own OTLP receiver gives them."""
    lines = []
    for (name, labels), value in pushed.values.items():
        own = {"job": pushed.resource["service.name"], "instance": pushed.resource["service.instance.id"]}
        pairs = ",".join(f"{key}={json.dumps(one)}" for key, one in {**own, **dict(labels)}.items())
        lines.append(f"{name}{{{pairs}}} {value}\n")
    where, body = f"{url}/api/v1/import/prometheus", "".join(lines).encode()
    urllib.request.urlopen(where, body, timeout=10).close()  # noqa: S310  our own server's address


def query_of(url: str, expression: str) -> list[dict[str, Any]]:
    """The result of an instant query."""
    asked = f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310  our own server's address
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found
