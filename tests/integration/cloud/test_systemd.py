"""Service and agent under systemd: it hears when they are ready, alive and about to end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.scene import write_agent
from tests.integration.agent.harness import agent_process
from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import linear

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

LIMIT_S = 30.0


@contextmanager
def manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Stands for systemd, with a watchdog of 0.4 s, for what is started meanwhile."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(LIMIT_S)
        receiver.bind(str(folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        yield receiver


def said(receiver: socket.socket, last: bytes) -> list[bytes]:
    """What it hears up to `last`."""
    heard = [receiver.recv(100)]
    while heard[-1] != last:
        heard.append(receiver.recv(100))
    return heard


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_service_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    (tmp_path / "models/linear/1").mkdir(parents=True)
    linear(tmp_path).rename(tmp_path / "models/linear/1/model.onnx")
    (tmp_path / "cloud.yaml").write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: models, workers: {workers}}}\n"
    )
    with (
        manager(tmp_path, monkeypatch) as systemd,
        serving("-c", tmp_path / "cloud.yaml") as running,
    ):
        assert said(systemd, b"READY=1") == [b"READY=1"]
        assert [systemd.recv(100), systemd.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
        running.terminate()
        assert set(said(systemd, b"STOPPING=1")) <= {b"WATCHDOG=1", b"STOPPING=1"}
        assert running.exit_code() == 0


def test_an_agent_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"linear": {"edge": {"file": linear(tmp_path).name}}}
    config = write_agent(tmp_path, {}, models=models, agent={"listen": ["127.0.0.1:0"]})
    with manager(tmp_path, monkeypatch) as systemd, agent_process(config) as running:
        assert said(systemd, b"READY=1") == [b"READY=1"]
        assert [systemd.recv(100), systemd.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
        running.program.send(signal.SIGTERM)
        assert set(said(systemd, b"STOPPING=1")) <= {b"WATCHDOG=1", b"STOPPING=1"}
        assert running.program.wait() == 0
