"""One cloud service and one agent, both as processes of their own, for all tests that leave them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, EDGE_BUNDLE
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from tests.integration.agent.harness import Running, agent_process, client_of
from tests.unit.models_for_tests import linear, slow
from upwell.shared.oip.grpc.client.client import OipClient

CLOUD = {"model": CLOUD_MODEL}
POLICY: dict[str, Any] = {
    "defaults": {"deadline": "5s", "hard": {"measure": "margin", "below": 0.9}},
    "rules": [
        {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"},
        {"name": "here", "match": {"tags": {"where": ["here", "home"]}}, "route": "edge"},
        {"name": "up", "match": {"tags": {"where": "up"}}, "route": "cloud"},
        {"name": "careless", "match": {"tags": {"care": "none"}, "model": "digits"}, "set": {"hard": "off"}},
    ],
}


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """The address of `upwell serve` with the demo's models."""
    with Program(["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0"]) as running:
        yield running.address()


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory, service: str) -> Iterator[Running]:
    """An agent on TCP and a unix socket; `slow` takes tens of milliseconds for 400 rows."""
    folder = tmp_path_factory.mktemp("agent")
    models = {
        "digits": {"edge": {"bundle": str(EDGE_BUNDLE)}, "cloud": CLOUD},
        "lite": {"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "tflite"}, "cloud": CLOUD},
        "linear": {"edge": {"file": linear(folder).name}},
        "slow": {"edge": {"file": slow(folder).name}},
        "remote": {"cloud": CLOUD},
    }
    section = {"name": "dock-7", "listen": ["127.0.0.1:0", f"unix:{folder / 'a.sock'}"], "metrics": "127.0.0.1:0"}
    with agent_process(write_agent(folder, POLICY, service, models, section)) as running:
        yield running


@pytest.fixture(params=["tcp", "unix"])
def anyhow(agent: Running, request: pytest.FixtureRequest) -> Iterator[OipClient]:
    """A client by each of the two ways."""
    with client_of(agent.addresses[request.param == "unix"]) as client:
        yield client


@pytest.fixture
def client(agent: Running) -> Iterator[OipClient]:
    with client_of(agent.addresses[0], max_message_bytes=256 << 20) as client:
        yield client


@pytest.fixture
def cloud() -> Iterator[ScriptedCloud]:
    """A cloud of the test's own, in this process."""
    with ScriptedCloud() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test writes its files."""
    return tmp_path
