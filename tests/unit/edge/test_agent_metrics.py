"""What Prometheus reads: names, labels, and a format that its own parser takes."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.edge.agents import (
    CLOUD_MODEL,
    MAX_MESSAGE_BYTES,
    MODEL,
    SURE,
    UNSURE,
    Scene,
    edge_model,
    policy,
    rows_of,
    scene,
)
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.observe.agent_metrics import AgentMetrics
from upwell.edge.observe.request_counts import AT_ONCE, AnswerTally
from upwell.edge.server.agent_assembly import serve_metrics
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ConfigError, InvalidRequest, ModelNotFound, Refused
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, RouterState
from upwell.shared.routing.reasons import Reason, Route

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    """Every sample by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def samples(at: Scene) -> Samples:
    return read(generate_latest(at.agent.metrics.registry).decode())


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


NAMES = {
    "upwell_build_info": "gauge",
    "upwell_requests": "counter",
    "upwell_request_seconds": "histogram",
    "upwell_degraded": "counter",
    "upwell_failed": "counter",
    "upwell_late": "counter",
    "upwell_audits": "counter",
    "upwell_uplink_bytes": "counter",
    "upwell_link_rtt_seconds": "gauge",
    "upwell_link_bytes_per_second": "gauge",
    "upwell_model_state": "gauge",
    "upwell_model_nodes": "gauge",
    "upwell_model_version": "gauge",
    "upwell_model_load_seconds": "gauge",
    "upwell_model_warm_up_seconds": "gauge",
    "upwell_model_uncalibrated": "gauge",
    "upwell_model_memory_bytes": "gauge",
    "upwell_breaker_open": "gauge",
    "upwell_policy_refused": "gauge",
    "upwell_rule_errors": "counter",
    "upwell_thread_restarts": "counter",
    "upwell_audit_disagreement": "gauge",
    "upwell_audit_disagreement_low": "gauge",
    "upwell_audit_disagreement_high": "gauge",
    "upwell_audit_alarm": "gauge",
    "upwell_audit_count": "gauge",
}


def test_a_page_says_whose_it_is() -> None:
    found = read(generate_latest(AgentMetrics(RouterState, agent="dock-7").registry).decode())
    assert value(found, "upwell_build_info", agent="dock-7", version=version("upwell")) == 1


def test_the_names_are_these_and_each_says_what_it_is() -> None:
    text = generate_latest(AgentMetrics(RouterState).registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: family.type for name, family in families.items()} == NAMES
    assert all(family.documentation.endswith(".") for family in families.values())


def test_requests_are_counted_by_model_route_and_reason() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        for inputs in (rows_of(SURE), rows_of(SURE), rows_of(UNSURE), rows_of(SURE, UNSURE)):
            at.infer(inputs)
        found = samples(at)
        total = "upwell_requests_total"
        assert value(found, total, model=MODEL, route="edge", reason="easy") == 2
        assert value(found, total, model=MODEL, route="cloud", reason="hard") == 1
        assert value(found, total, model=MODEL, route="mixed", reason="hard") == 1
        assert value(found, "upwell_request_seconds_count", model=MODEL, route="edge") == 2
        assert 0 < value(found, "upwell_request_seconds_sum", model=MODEL, route="edge") < 5
        assert value(found, "upwell_uplink_bytes_total", model=MODEL) > 2 * 20
        assert not any(name == "upwell_degraded_total" for name, _ in found)


@pytest.mark.parametrize("wanted", ["", "True"])
def test_series_of_beginnings_can_be_turned_off_as_those_of_the_library(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("PROMETHEUS_DISABLE_CREATED_SERIES", wanted)
    with scene("defaults: {deadline: 5s}") as at:
        at.infer(rows_of(UNSURE))
        names = {name for name, _ in samples(at)}
    assert {"upwell_requests_total", "upwell_request_seconds_count", "upwell_uplink_bytes_total"} <= names
    assert any(name.endswith("_created") for name in names) is not bool(wanted)


def test_answers_are_counted_however_many_come_between_two_scrapes() -> None:
    tally = AnswerTally()
    for taken in range(1, 2 * AT_ONCE + 3):
        tally.add("digits", Route.EDGE, Reason.EASY, 0.001 * (taken % 2))
        if taken in (1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + 2):
            assert tally.by_route() == {Route.EDGE: taken}
    assert tally.by_model() == {"digits": {(Route.EDGE, Reason.EASY): 2 * AT_ONCE + 2}}
    assert all(len(times.new) < AT_ONCE for times in tally._answers.values())


def test_degraded_answers_are_counted_with_their_reason() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        at.cloud.failure = Refused("full")
        at.infer(rows_of(UNSURE))
        found = samples(at)
        assert value(found, "upwell_degraded_total", model=MODEL, reason="cloud_exhausted") == 1
        assert value(found, "upwell_requests_total", model=MODEL, route="edge", reason="cloud_exhausted") == 1


def test_errors_are_counted_by_kind_and_an_unknown_model_makes_no_label() -> None:
    with scene() as at:
        for inputs in (rows_of((0.5, 0.5)), {}):
            with pytest.raises(InvalidRequest):
                at.infer(inputs)
        with pytest.raises(ModelNotFound):
            at.agent.infer("made up by a stranger", {})
        found = samples(at)
        failed = {labels: count for (name, labels), count in found.items() if name == "upwell_failed_total"}
        assert failed == {(("error", "InvalidRequest"), ("model", MODEL)): 2}


def test_bytes_of_calls_that_failed_are_counted_too() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        at.cloud.failure = Refused("full")
        at.infer(rows_of(UNSURE))
        assert value(samples(at), "upwell_uplink_bytes_total", model=MODEL) > 20


def test_the_link_is_nan_until_it_is_known() -> None:
    with scene() as at:
        found = samples(at)
        assert math.isnan(value(found, "upwell_link_rtt_seconds"))
        assert math.isnan(value(found, "upwell_link_bytes_per_second"))
        for size_bytes in (1_000, 101_000):
            at.agent.router.observe(CloudAnswered(MODEL, 1, size_bytes, 0.1 + size_bytes / 1e6, 0.0))
        found = samples(at)
        assert value(found, "upwell_link_rtt_seconds") == pytest.approx(0.1)
        assert value(found, "upwell_link_bytes_per_second") == pytest.approx(1e6)


def test_breakers_are_shown_by_model_and_the_links_as_a_star() -> None:
    with scene() as at:
        at.cut()
        at.agent.router.observe(CloudCallFailed(MODEL, Reason.CLOUD_ERROR))
        found = samples(at)
        assert value(found, "upwell_breaker_open", model="*") == 1
        assert value(found, "upwell_breaker_open", model=MODEL) == 0


def test_it_is_served_over_http() -> None:
    with scene() as at, urllib.request.urlopen(serve_metrics(at.agent, "127.0.0.1:0"), timeout=10) as answer:  # noqa: S310  loopback
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert ("upwell_link_rtt_seconds", ()) in read(answer.read().decode())


def test_a_port_that_is_taken_is_a_problem_of_the_configuration() -> None:
    with scene() as at:
        taken = urlsplit(serve_metrics(at.agent, "127.0.0.1:0")).netloc
        with pytest.raises(
            ConfigError, match=r"agent\.metrics: cannot listen on 127\.0\.0\.1:\d+: Address already in use"
        ):
            serve_metrics(at.agent, taken)


def test_two_agents_live_in_one_process() -> None:
    with scene() as one, scene() as other:
        one.infer(rows_of(SURE))
        assert not any(name == "upwell_requests_total" for name, _ in samples(other))


def test_a_message_that_finds_no_connection_is_not_counted_as_sent(tmp_path: Path) -> None:
    nobody = UplinkSettings(f"unix:{tmp_path / 'nobody.sock'}", ClientSecurity(), MAX_MESSAGE_BYTES)
    up = policy("rules: [{name: up, match: {}, route: cloud}]")
    with AgentCore([ServedModel(MODEL, edge_model(), CLOUD_MODEL)], nobody, up) as agent:
        assert agent.infer(MODEL, rows_of(SURE)).reason is Reason.CLOUD_UNAVAILABLE
        assert agent.metrics.totals()["uplink_bytes"] == 0
