"""Real agents as processes, a real service: enrolled, listed, asked, told, and answering while the service is gone."""

from __future__ import annotations

import json
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fleet_service import Service, service
from tests.integration.agent.harness import LIMIT_S, Running, agent_process, client_of
from tests.unit.edge.request_traces import request_trace, signals
from tests.unit.models_for_tests import linear
from upwell.edge.fleet.device_identity import FleetIdentity
from upwell.edge.observe.flight_recorder import LIMIT, ROOM_BYTES, Segments
from upwell.edge.observe.request_trace import to_line
from upwell.fleet.enrolment.certificate_authority import read_request
from upwell.shared.oip.dataplane import InferRequest

POLICY = "version: 1\nrules:\n  - {name: private, match: {tags: {privacy: device}}, egress: deny}\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet"), poll="1s") as running:
        yield running


def config(folder: Path, fleet: Service, name: str, token: str) -> Path:
    """An agent.yaml that names the service."""
    folder.mkdir()
    linear(folder).rename(folder / "model.onnx")
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "token").write_text(token)
    (folder / "agent.yaml").write_text(
        f"version: 1\n"
        f"agent: {{name: {name}, listen: ['127.0.0.1:0'], state_dir: state}}\n"
        f"policy: policy.yaml\n"
        f"fleet: {{endpoint: '{fleet.url}', ca: '{fleet.ca}', enrol_token_file: token, labels: {{line: '2'}}}}\n"
        f"models: {{small: {{edge: {{file: model.onnx}}}}}}\n"
    )
    return folder / "agent.yaml"


def within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What `ask` gives once that is something, waited for."""
    until_s = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < until_s, "it did not come in time"
        time.sleep(0.05)
    return found


def named(fleet: Service, name: str) -> dict[str, Any] | None:
    """The device of that name, once it has said how it fares."""
    status, found = fleet.call("GET", f"/devices/{name}")
    return dict(found) if status == 200 and found["healthy"] is not None else None


def ask(agent: Running, request_id: str, **tags: str) -> None:
    """One request to the agent."""
    parameters = {f"upwell.tag.{name}": value for name, value in tags.items()}
    with client_of(agent.addresses[0]) as client:
        inputs = {"x": np.zeros((1, 8), np.float32)}
        client.infer(InferRequest("small", inputs, id=request_id, parameters=parameters), LIMIT_S)


def test_an_agent_enrols_reports_and_explains_a_request(fleet: Service, tmp_path: Path) -> None:
    path = config(tmp_path / "one", fleet, "one", fleet.enrolment_token(site="hamburg"))
    with agent_process(path) as agent:
        shown = within(20, lambda: named(fleet, "one"))
        assert (shown["healthy"], shown["labels"]) == (True, {"site": "hamburg", "line": "2"})
        assert shown["attributes"]["upwell.model.small.accelerator"].startswith("cpu (")
        assert set(shown["configuration"]) == {"agent.yaml", "policy.yaml", "models/small"}
        key = path.parent / "state/fleet/key.pem"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        ask(agent, "open-1", camera="dock")
        ask(agent, "secret-1", privacy="device", camera="private-dock")
        for request_id, is_told in (("open-1", True), ("secret-1", False)):
            asked = fleet.do("POST", "/devices/one/questions", {"request_id": request_id})
            answer = within(10, lambda asked=asked: fleet.get(f"/questions/{asked['id']}")["answer"])  # type: ignore[misc]
            assert answer["sections"][0][0] == "request"
            assert f"id {request_id}" in answer["sections"][0][1]
            assert ("dock" in json.dumps(answer)) == is_told
            assert "'private' denies egress" in json.dumps(answer) or is_told
        asked = fleet.do("POST", "/devices/one/questions", {"request_id": "never"})
        assert "no request 'never'" in within(10, lambda: fleet.get(f"/questions/{asked['id']}")["answer"])["error"]
        fleet.server._upkeep._write()
        assert fleet.get("/devices/one/history")["history"][0]["counts"]["late"] == 0
        agent.program.send(signal.SIGTERM)
        assert agent.program.wait() == 0
    within(10, lambda: any(one["kind"] == "stopped" for one in fleet.get("/events?after=-1")["events"]))


@pytest.mark.slow
def test_a_request_of_an_hour_ago_is_explained_after_ten_a_second_since(fleet: Service, tmp_path: Path) -> None:
    path = config(tmp_path / "old", fleet, "old", fleet.enrolment_token())
    now_s = time.time()
    recorder = Segments(tmp_path / "old/state/flights", LIMIT, LIMIT * ROOM_BYTES)
    recorder.append([of_then(f"old-{tenth}", now_s - 3600.0 + tenth / 10) for tenth in range(36_000)])
    recorder.close()
    with agent_process(path) as agent:
        within(60, lambda: named(fleet, "old"))
        ask(agent, "of-now")
        asked = fleet.do("POST", "/devices/old/questions", {"request_id": "old-0"})
        told = within(60, lambda: fleet.get(f"/questions/{asked['id']}")["answered_unix_s"])
        answer = fleet.get(f"/questions/{asked['id']}")["answer"]
        assert "id old-0" in answer["sections"][0][1]
        assert not {"inputs", "outputs", "tensors"} & set(json.dumps(answer).split('"'))
        size_bytes = sum(one.stat().st_size for one in (tmp_path / "old/state/flights").iterdir())
        print(f"told {told - asked['asked_unix_s']:.1f} s after the question; {size_bytes / 1e6:.0f} MB on disk")
        assert size_bytes < LIMIT * ROOM_BYTES


def of_then(request_id: str, unix_s: float) -> bytes:
    """The line of a request that came at that time."""
    asked = signals()
    facts = replace(asked.request_facts, wall_time_s=unix_s)
    return to_line(request_trace(request_id, signals=replace(asked, request_facts=facts)))


@pytest.mark.slow
def test_a_release_that_the_device_has_no_source_for_is_refused_and_said(fleet: Service, tmp_path: Path) -> None:
    path = config(tmp_path / "two", fleet, "two", fleet.enrolment_token())
    with agent_process(path) as agent:
        within(20, lambda: named(fleet, "two"))
        fleet.do("PUT", "/devices/two/release", {"release": 9})
        assert "no `release`" in within(10, lambda: fleet.get("/devices/two")["problem"])
        ask(agent, "still-answered")


@pytest.mark.slow
def test_an_agent_keeps_its_key_and_uid_over_a_restart_and_needs_no_service(fleet: Service, tmp_path: Path) -> None:
    path = config(tmp_path / "three", fleet, "three", fleet.enrolment_token())
    with agent_process(path):
        first = within(20, lambda: named(fleet, "three"))
    (path.parent / "token").unlink()
    with agent_process(path) as agent:
        seen = first["last_seen_unix_s"]
        within(20, lambda: fleet.get("/devices/three")["last_seen_unix_s"] > seen)
        again = fleet.get("/devices/three")
        assert [again[name] for name in ("id", "instance_uid", "double")] == [first["id"], first["instance_uid"], ""]
        ask(agent, "answered")
    nobody = path.read_text().replace(fleet.url, "https://127.0.0.1:1")
    path.write_text(nobody)
    with agent_process(path) as agent:
        ask(agent, "without-a-service")
        agent.program.find(r"(the agent goes on without it)")


@pytest.mark.slow
def test_a_device_that_was_off_until_its_certificate_expired_comes_back_with_a_new_token(
    fleet: Service, tmp_path: Path
) -> None:
    path = config(tmp_path / "away", fleet, "away", fleet.enrolment_token())
    path.write_text(path.read_text().replace("fleet: {", "fleet: {every: 1s, "))
    with agent_process(path):
        first = within(20, lambda: named(fleet, "away"))
    folder = path.parent / "state/fleet"
    request = read_request(FleetIdentity(folder).request())
    expired = fleet.fleet.authority.sign_device(request, first["id"], time.time() - 86400.0, 3600.0)
    (folder / "cert.pem").write_bytes(expired.pem)
    (path.parent / "token").write_text("upwe_unknown")  # as the one that it enrolled with is by now
    with agent_process(path) as agent:
        agent.program.find(r"(the enrolment token is unknown or has expired)")
        (path.parent / "token").write_text(fleet.enrolment_token())
        within(60, lambda: fleet.get("/devices/away")["last_seen_unix_s"] > first["last_seen_unix_s"])
        assert fleet.get("/devices/away")["id"] == first["id"]
