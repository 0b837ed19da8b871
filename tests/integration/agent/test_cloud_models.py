"""A wrong name of a model in the cloud is said early, nobody waits for that, and what is denied opens no connection."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.faults.proxy import Proxy
from tests.faults.scene import until
from tests.unit.edge.agents import CLOUD_MODEL, MODEL, SURE, rows_of, scene
from tests.unit.models_for_tests import identity
from upwell.edge.observe import cloud_model_check
from upwell.edge.server.agent_assembly import embedded_agent, serve_metrics
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import ModelNotFound
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.reasons import Reason, Route

INPUTS = {"x": np.zeros((1, 2), np.float32)}
DENY = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
DENY_ALL = {"name": "none", "match": {}, "egress": "deny"}
UP = {"name": "up", "match": {}, "route": "cloud"}
STAY = {"name": "stay", "match": {}, "route": "edge"}


@pytest.fixture
def fake() -> FakeDataplane:
    """A cloud that serves `echo`, and nothing else."""
    return FakeDataplane()


@pytest.fixture
def proxy(fake: FakeDataplane) -> Iterator[Proxy]:
    server = start_server(fake, ["127.0.0.1:0"], max_workers=4)
    with Proxy(server.addresses[0]) as between:
        yield between
    server.stop(0.0)


def agent(
    folder: Path,
    endpoint: str,
    cloud_model: str,
    *rules: dict[str, Any],
    edge: bool = True,
    interfaces: Sequence[str] = (),
) -> AgentCore:
    """An agent of one model, which is called `cloud_model` up there."""
    identity(folder).rename(folder / "model.onnx")
    sides: dict[str, Any] = {"cloud": {"model": cloud_model}} | ({"edge": {"file": "model.onnx"}} if edge else {})
    (folder / "policy.yaml").write_text(json.dumps({"defaults": {"deadline": "20s"}, "rules": rules}))
    whole = {
        "agent": {"metrics": "127.0.0.1:0"}, "cloud": {"endpoint": endpoint, "interfaces": list(interfaces)},
        "policy": "policy.yaml", "models": {"m": sides},
    }  # fmt: skip
    (folder / "agent.yaml").write_text(json.dumps(whole))
    return embedded_agent(folder / "agent.yaml")


def asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cloud-models"]


def told(log: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in log.messages if "cloud_model_missing" in message]


def health(log: pytest.LogCaptureFixture) -> Any:
    (page,) = re.findall(r"metrics on (http://\S+)/metrics", log.text)
    return missing(page)


def missing(page: str) -> Any:
    """What `/health` says that the cloud lacks."""
    return json.load(urllib.request.urlopen(f"{page}/health", timeout=5))["cloud_model_missing"]  # noqa: S310


@pytest.mark.parametrize("edge", [True, False], ids=["both sides", "cloud alone"])
def test_a_wrong_name_is_said_at_start(
    tmp_path: Path, proxy: Proxy, fake: FakeDataplane, caplog: pytest.LogCaptureFixture, edge: bool
) -> None:
    caplog.set_level(logging.INFO)
    with agent(tmp_path, proxy.address, "ecko", edge=edge):
        until(lambda: bool(told(caplog)))
        (line,) = told(caplog)
        assert line.startswith("model m: cloud_model_missing: the cloud has no model 'ecko' (")
        assert "expected 'echo'" in line, "what the cloud has"
        assert health(caplog) == {"m": "ecko"}
    assert (fake.requests, asking()) == ([], [])


@pytest.mark.skipif(sys.platform != "linux", reason="connections are bound to an interface on Linux alone")
def test_a_wrong_name_is_said_over_the_first_interface_that_reaches_the_cloud(
    tmp_path: Path, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with agent(tmp_path, proxy.address, "ecko", interfaces=["absent0", "lo"]):
        until(lambda: bool(told(caplog)))
        assert "has no model 'ecko'" in told(caplog)[0]


def test_a_right_name_needs_no_word(tmp_path: Path, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with agent(tmp_path, proxy.address, "echo"):
        until(lambda: not asking())
        assert proxy.accepted == 1
        assert (told(caplog), health(caplog)) == ([], {})


def test_the_start_waits_for_no_cloud_and_the_end_neither(tmp_path: Path) -> None:
    """One that takes the connection and says nothing: the question is still open once the agent answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with agent(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", "echo") as running:
            assert len(asking()) == 1
            assert running.infer("m", INPUTS).outputs
        assert asking() == []


def test_a_cloud_that_was_away_at_start_is_not_said_to_lack_anything(
    tmp_path: Path, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse()
    with agent(tmp_path, proxy.address, "ecko"):
        until(lambda: not asking())
        assert told(caplog) == []


def test_what_it_says_to_a_request_counts_too_and_an_answer_takes_it_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with scene("defaults: {deadline: 20s}\nrules: [{name: up, match: {}, route: cloud}]") as at:
        page = serve_metrics(at.agent, "127.0.0.1:0").removesuffix("/metrics")
        at.cloud.failure = ModelNotFound("it was taken away")
        for _ in range(2):
            assert at.infer(rows_of(SURE)).reason is Reason.CLOUD_MODEL_MISSING
        assert len(told(caplog)) == 1
        assert missing(page) == {MODEL: CLOUD_MODEL}
        at.cloud.failure = None
        assert at.infer(rows_of(SURE)).route is Route.CLOUD
        assert missing(page) == {}
        assert "the cloud has the model now" in caplog.text


@pytest.mark.parametrize("rule", [DENY_ALL, STAY], ids=["deny", "stay"])
def test_nobody_is_asked_about_a_model_of_which_nothing_may_leave(
    tmp_path: Path, proxy: Proxy, rule: dict[str, Any]
) -> None:
    with agent(tmp_path, proxy.address, "ecko", rule) as running:
        for _ in range(3):
            running.infer("m", INPUTS)
        assert (asking(), proxy.accepted) == ([], 0)


def test_where_a_rule_denies_some_the_first_that_may_leave_is_waited_for(
    tmp_path: Path, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with agent(tmp_path, proxy.address, "ecko", DENY) as running:
        for _ in range(3):
            running.infer("m", INPUTS, tags={"privacy": "device"})
        assert (asking(), proxy.accepted) == ([], 0)
        running.infer("m", INPUTS)
        until(lambda: bool(told(caplog)))


def test_an_answer_needs_no_thread_that_asks_the_cloud(
    tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unstarted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with agent(tmp_path, proxy.address, "ecko", DENY) as running:
        with monkeypatch.context() as patch:
            patch.setattr(cloud_model_check, "threading", SimpleNamespace(Thread=Unstarted))
            assert running.infer("m", INPUTS).outputs
        assert "the cloud is not asked about m now: can't start new thread" in caplog.text
    assert asking() == []
