"""What the first agent of a process imports, and that no request pays for an import or for building a validator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.models_for_tests import identity

MOST_MODULES = 195
"""Modules of ours in a process that can make an agent; there were 256 when each agent imported every part."""

ON_DEMAND = {
    *(f"upwell.edge.bundle.{name}" for name in ("archive", "bundle_signature", "golden", "manifest", "open_bundle")),
    *(f"upwell.edge.case_collection.{name}" for name in ("case_collector", "case_database", "case_delivery")),
    *(f"upwell.edge.observe.{name}" for name in ("audits", "outcome_recorder", "request_log", "shadow_release")),
    *(f"upwell.edge.updates.{name}" for name in ("update_follower", "version_store", "releases.release_control")),
    *(f"upwell.shared.oip.{name}" for name in ("auth.bearer_tokens", "codec.triton_messages", "model_statistics")),
    *(f"upwell.shared.oip.{name}.server" for name in ("grpc.server", "http.server")),
    "upwell.edge.drift", "upwell.edge.fleet.device_facts", "upwell.edge.models.split_heads", "upwell.edge.spool.spool",
    "upwell.edge.runtimes.tflite.interpreter", "upwell.shared.partition.split.split_file",
    "cryptography", "google.protobuf.json_format", "opentelemetry", "requests", "sqlite3", "tarfile",
}  # fmt: skip
"""Imported for a configuration that asks for it."""

ALONE = "models: {{m: {{edge: {{file: {file}}}}}}}"
RECORDING = "agent: {{state_dir: state}}\n" + ALONE
CLOUD = (
    "agent: {{state_dir: state}}\npolicy: policy.yaml\ncloud: {{endpoint: '127.0.0.1:1'}}\n"
    "models: {{m: {{edge: {{file: {file}}}, cloud: {{model: m}}}}}}"
)
POLICY = "defaults: {deadline: 300ms, spool: true, audit: 100%}\nrules: [{name: up, match: {model: m}, route: cloud}]\n"

REQUESTS = """
import json, sys, threading
import numpy as np
from pydantic import BaseModel
from upwell.edge import Agent

class Watch:
    asked = []
    def find_spec(self, name, path, target=None):
        if threading.current_thread() is threading.main_thread():
            self.asked.append(name)

def built(kind):
    complete = {kind.__qualname__} if kind.__pydantic_complete__ else set()
    return complete.union(*map(built, kind.__subclasses__()))

with Agent.from_config(sys.argv[1]) as agent:
    before = built(BaseModel)
    sys.meta_path.insert(0, Watch())
    routes = [str(agent.infer("m", {"x": np.ones((1, 2), np.float32)}).reason) for _ in range(3)]
    print(json.dumps([routes, Watch.asked, sorted(built(BaseModel) - before)]))
"""


def test_an_agent_imports_what_its_configuration_asks_for() -> None:
    script = "import sys; from upwell.edge.server import agent_assembly; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert not modules & ON_DEMAND
    assert len([name for name in modules if name.startswith("upwell.")]) <= MOST_MODULES


@pytest.mark.parametrize(
    ("config", "reason"), [(ALONE, "no_cloud"), (RECORDING, "no_cloud"), (CLOUD, "cloud_unavailable")]
)
def test_no_request_pays_for_an_import_or_for_building_a_validator(tmp_path: Path, config: str, reason: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(config.format(file=identity(tmp_path).name))
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = [sys.executable, "-c", REQUESTS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    reasons, imported, built = json.loads(done.stdout)
    assert reasons == [reason] * 3
    assert not imported
    assert not built
