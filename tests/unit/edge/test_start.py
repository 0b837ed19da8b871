"""What the first agent of a process imports, and that no request pays for an import or for building a validator."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.oracles import picture
from upwell.shared.platform.collection_pause import without_collections
from upwell.tools.demo.digit_data import ASSETS

MOST_MODULES = 153
"""Modules of ours in a process that can make an agent; there were 268 when each agent imported every part."""

ON_DEMAND = {
    *(f"upwell.edge.bundle.{name}" for name in ("archive", "bundle_signature", "golden", "manifest", "open_bundle")),
    *(f"upwell.edge.case_collection.{name}" for name in ("case_collector", "case_database", "case_delivery")),
    *(f"upwell.edge.observe.{name}" for name in ("audits", "outcome_recorder", "request_log", "shadow_release")),
    *(f"upwell.edge.updates.{name}" for name in ("update_follower", "version_store", "releases.release_control")),
    *(f"upwell.shared.oip.{name}" for name in ("auth.bearer_tokens", "codec.triton_messages", "model_statistics")),
    *(f"upwell.shared.oip.{name}.server" for name in ("grpc.server", "http.server")),
    *(f"upwell.shared.signature.{name}" for name in ("model_yaml", "picture_codec", "postprocess", "preprocess")),
    "upwell.edge.drift", "upwell.edge.fleet.device_facts", "upwell.edge.models.split_heads",
    "upwell.edge.spool.spooled_request", "upwell.edge.runtimes.tflite.interpreter", "upwell.shared.formats.onnx.graph",
    "upwell.edge.runtimes.device_lock", "upwell.edge.runtimes.probe_process", "upwell.shared.config.yaml_problems",
    "upwell.shared.oip.introspection", "upwell.shared.signature.tokenization",
    "upwell.shared.partition.split.split_file", "upwell.shared.routing.drift.drift_reference",
    "upwell.shared.routing.policy.dropped_denies", "upwell.shared.telemetry.open_collectors",
    "PIL", "cryptography", "google.protobuf", "grpc", "opentelemetry", "prometheus_client", "requests", "sqlite3",
    "importlib.metadata", "shutil", "socket", "subprocess", "tarfile", "tempfile",
}  # fmt: skip
"""Imported for a configuration that asks for it."""

DIGITS = f"models: {{m: {{edge: {{bundle: {ASSETS / 'edge' / 'digits'}, runtime: onnx}}, cloud: {{model: m}}}}}}\n"
CLOUD = "cloud: {endpoint: '127.0.0.1:1'}\n"
POLICY = "defaults: {deadline: 300ms, spool: true, audit: 100%}\nrules: [{name: up, match: {model: m}, route: cloud}]\n"

BUILT = """
from pydantic import BaseModel

def built(kind):
    is_ours = kind.__module__.startswith("upwell.")
    complete = {kind.__qualname__} if is_ours and kind.__pydantic_complete__ else set()
    return complete.union(*map(built, kind.__subclasses__()))
"""

REQUESTS = (
    BUILT
    + """
import json, sys, threading
from pathlib import Path
import numpy as np
from upwell.edge import Agent

class Watch:
    asked = []
    def find_spec(self, name, path, target=None):
        if threading.current_thread() is threading.main_thread():
            self.asked.append(name)

picture = Path(sys.argv[2]).read_bytes()
with Agent.from_config(sys.argv[1]) as agent:
    before = built(BaseModel)
    sys.meta_path.insert(0, Watch())
    reasons = [str(agent.infer("m", {"image": one}).reason) for one in (np.zeros((8, 8), np.uint8), picture, picture)]
    print(json.dumps([reasons, Watch.asked, sorted(built(BaseModel) - before)]))
"""
)


def test_an_agent_imports_what_its_configuration_asks_for() -> None:
    script = "import sys; from upwell.edge.server import agent_assembly; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert not modules & ON_DEMAND
    assert len([name for name in modules if name.startswith("upwell.")]) <= MOST_MODULES


def test_an_agent_with_a_folder_imports_pillow_only_with_pictures() -> None:
    script = "import sys; from upwell.edge.observe import outcome_recorder, shadow_release; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert {"upwell.edge.case_collection.case_collector", "upwell.edge.drift"} <= modules
    assert "PIL" not in modules


def test_the_import_builds_no_validator() -> None:
    script = f"{BUILT}\nfrom upwell.edge.server import agent_assembly\nprint(built(BaseModel))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (DIGITS.replace(", cloud: {model: m}", ""), "no_cloud"),
        (f"agent: {{state_dir: state}}\npolicy: policy.yaml\n{CLOUD}{DIGITS}", "cloud_unavailable"),
    ],
)
def test_no_request_pays_for_an_import_or_for_building_a_validator(tmp_path: Path, config: str, reason: str) -> None:
    files = {"agent.yaml": config.encode(), "policy.yaml": POLICY.encode(), "picture.png": picture(0)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-c", REQUESTS, str(tmp_path / "agent.yaml"), str(tmp_path / "picture.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    reasons, imported, built = json.loads(done.stdout)
    assert reasons == [reason] * 3
    assert not imported
    assert not built


def test_the_garbage_collector_pauses_for_an_import_and_is_left_as_it_was() -> None:
    was_enabled = gc.isenabled()
    try:
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            with suppress(ImportError), without_collections():
                assert not gc.isenabled()
                raise ImportError
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
