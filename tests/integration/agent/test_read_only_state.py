"""An agent whose `state_dir` cannot be written from the start: it starts, says so, and answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE
from tests.faults.scene import write_agent
from tests.integration.agent.harness import Running, agent_process, ask, client_of, fact
from tests.integration.agent.kept import SPOOLED
from upwell.edge.server.state_dir import LOCK_NAME, StateDir
from upwell.shared.errors import ConfigError

KEEPS = {"defaults": {**SPOOLED, "record": {"keep": "1MiB"}, "audit": "50%", "budget": {"cloud_requests": "1000/day"}}}
"""A policy that makes use of all that is kept in the folder."""


class ReadOnly:
    """A folder that becomes one that nobody can write, root neither: a file system of its own, mounted anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.is_mounted = os.geteuid() == 0
        if self.is_mounted and subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], capture_output=True).returncode:
            pytest.skip("this root may not mount anything")

    def close(self) -> None:
        """From now on it is read-only."""
        if self.is_mounted:
            subprocess.run(["mount", "-o", "remount,ro", self.path], check=True)
        else:
            for path in (*self.path.rglob("*"), self.path):
                path.chmod(0o500 if path.is_dir() else 0o400)

    def remove(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", self.path], check=True)
        else:
            for path in (self.path, *self.path.rglob("*")):
                path.chmod(0o700)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ReadOnly]:
    made = ReadOnly(tmp_path / "state")
    yield made
    made.remove()


def configured(folder: Path, cloud: str, **more: Any) -> Path:
    edge = {"bundle": str(EDGE_BUNDLE), "runtime": "onnx", **more}
    models = {"digits": {"edge": edge, "cloud": {"model": CLOUD_MODEL}}}
    agent = {"listen": ["127.0.0.1:0"], "metrics": "127.0.0.1:0", "state_dir": "state"}
    return write_agent(folder, KEEPS, cloud, models, agent)


def health(running: Running) -> dict[str, Any]:
    with urllib.request.urlopen(running.metrics_url.replace("/metrics", "/health"), timeout=10) as page:  # noqa: S310
        found: dict[str, Any] = json.load(page)
    return found


def answers_and_says_so(config: Path) -> None:
    with agent_process(config) as running:
        with client_of(running.addresses[0]) as client:
            for index in range(5):
                assert fact(ask(client, index), "route") in ("edge", "cloud", "mixed")
        found = health(running)
        assert found["status"] == "degraded"
        assert [one for one in found["problems"] if "cannot be written" in one]
        assert running.said.count("new versions are lost on a restart, and the agent keeps answering") == 1


@pytest.mark.parametrize("before", ["used", "empty"])
def test_an_agent_starts_with_a_folder_that_cannot_be_written(
    tmp_path: Path, cloud: ScriptedCloud, state: ReadOnly, before: str
) -> None:
    config = configured(tmp_path, cloud.address)
    if before == "used":
        with agent_process(config) as running, client_of(running.addresses[0]) as client:
            ask(client, 0)
        assert health_is_fine(config)
    state.close()
    answers_and_says_so(config)


def health_is_fine(config: Path) -> bool:
    with agent_process(config) as running:
        return health(running)["problems"] == [] and "cannot be written" not in running.said


@pytest.mark.slow
@pytest.mark.parametrize("source", ["archive", "updates"])
def test_it_starts_with_a_bundle_that_wants_the_folder(
    tmp_path: Path, cloud: ScriptedCloud, state: ReadOnly, source: str
) -> None:
    """An archive is unpacked elsewhere for as long as the agent runs, and updates wait."""
    if source == "archive":
        archive = tmp_path / "digits-1.bundle.tar"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "upwell.tools.entry",
                "model",
                "pack",
                EDGE_BUNDLE,
                "--version",
                "1",
                "--out",
                archive,
            ],
            check=True,
            capture_output=True,
        )
        config = configured(tmp_path, cloud.address, bundle=str(archive))
    else:
        (tmp_path / "source").mkdir()
        config = configured(tmp_path, cloud.address, updates={"source": str(tmp_path / "source")})
    state.close()
    answers_and_says_so(config)


def test_the_lock_holds_as_far_as_there_is_one(tmp_path: Path, state: ReadOnly) -> None:
    StateDir(state.path).close()
    state.close()
    held = StateDir(state.path)
    assert held.problem
    with pytest.raises(ConfigError, match="another agent uses it"):
        StateDir(state.path)
    held.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / LOCK_NAME)
    with pytest.raises(ConfigError, match=f"{LOCK_NAME}: agent.state_dir: expected a plain file; delete it"):
        StateDir(tmp_path)


def test_a_folder_that_cannot_be_made_is_still_an_error(tmp_path: Path, state: ReadOnly) -> None:
    state.close()
    with pytest.raises(ConfigError, match="cannot be used"):
        StateDir(state.path / "new")
