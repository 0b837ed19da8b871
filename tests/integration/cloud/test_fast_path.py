"""The fast path is for `upwell serve` alone, and gives way where gRPC is not inside as it is known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS
from tests.integration.agent.harness import LIMIT_S, client_of, digits_request
from tests.integration.cloud.serving import serving

REPLACED = """
import sys
from grpc import _server
before = _server._serve, _server._handle_unary_unary
{code}
sys.exit((_server._serve, _server._handle_unary_unary) != before)
"""


def renamed(folder: Path) -> Path:
    """A copy of gRPC that has one attribute under another name throughout, and so works as before."""
    shutil.copytree(Path(grpc.__file__).parent, folder / "grpc")
    path = folder / "grpc" / "_server.py"
    text = path.read_text()
    assert text.count(".due") > 10
    path.write_text(text.replace(".due", ".owed"))
    return folder


@pytest.mark.parametrize("fast_path", ["auto", "off"])
def test_the_service_answers_with_it_and_without(tmp_path: Path, fast_path: str) -> None:
    config = {"version": 1, "serve": {"listen": ["127.0.0.1:0"], "models": str(CLOUD_MODELS), "fast_path": fast_path}}
    (tmp_path / "cloud.yaml").write_text(json.dumps(config))
    with serving("-c", tmp_path / "cloud.yaml") as service, client_of(service.address) as client:
        assert client.infer(digits_request(0, model=CLOUD_MODEL), LIMIT_S).outputs


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_grpc_with_another_inside_answers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(renamed(tmp_path)))
    config = {"version": 1, "serve": {"listen": ["127.0.0.1:0"], "models": str(CLOUD_MODELS), "workers": workers}}
    (tmp_path / "cloud.yaml").write_text(json.dumps(config))
    with serving("-c", tmp_path / "cloud.yaml") as service:
        for _ in range(4):
            with client_of(service.address) as client:
                assert client.infer(digits_request(0, model=CLOUD_MODEL), LIMIT_S).outputs


SWITCH = "from upwell.shared.oip.grpc.fastpath import inner_parts, switch\n"
KNOWN_ALL_THE_SAME = "inner_parts.is_known = lambda: True\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (SWITCH + "assert not switch.switch_on()", "internals of grpcio"),
        (SWITCH + KNOWN_ALL_THE_SAME + "assert not switch.switch_on()", "does not answer on the fast path"),
    ],
)
def test_one_warning_says_it(tmp_path: Path, code: str, said: str) -> None:
    """Known by its text, and where that were wrong, by a call that is made at the start."""
    done = subprocess.run(
        [sys.executable, "-c", REPLACED.format(code=code)], env={"PYTHONPATH": str(renamed(tmp_path)), "PATH": ""},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("grpcio") == 1
    assert said in done.stderr


@pytest.mark.slow
def test_a_program_with_an_agent_keeps_its_own_grpc(tmp_path: Path, edge_agent: Callable[[Path], str]) -> None:
    code = f"""
from upwell.edge.agent import Agent
with Agent.from_config({edge_agent(tmp_path)!r}):
    from upwell.shared.oip.fake_dataplane import FakeDataplane
    from upwell.shared.oip.grpc.server.server import start_server
    start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=2).stop(0.0)
"""
    done = subprocess.run(
        [sys.executable, "-c", REPLACED.format(code=code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def edge_agent() -> Callable[[Path], str]:
    """Writes an agent.yaml for a model on the device; its path."""
    from tests.faults.oracles import EDGE_BUNDLE

    def write(folder: Path) -> str:
        models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}
        path = folder / "agent.yaml"
        path.write_text(json.dumps({"version": 1, "agent": {"name": "device"}, "models": models}))
        return str(path)

    return write
