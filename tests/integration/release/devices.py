"""Devices that follow releases: real agents with the small model of versions, and what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.releases_for_tests import Releases
from tests.integration.agent.harness import Running
from tests.integration.agent.versions import MODEL, health

POLICY = "version: 1\ndefaults: {deadline: 2s}\n"


def write_device(folder: Path, releases: Releases, factory: Path | None, **release: Any) -> Path:
    """An `agent.yaml` (JSON is YAML) that looks at the repository every second."""
    agent = {"listen": ["127.0.0.1:0"], "metrics": "127.0.0.1:0", "state_dir": "state"}
    edge = {} if factory is None else {"bundle": str(factory)}
    section = {"source": str(releases.place), "root": str(releases.root), "every": "1s", "clock": "trusted", **release}
    config = {"version": 1, "agent": agent, "release": section, "models": {MODEL: {"edge": edge}}}
    path = folder / "agent.yaml"
    path.write_text(json.dumps(config))
    return path


def release_of(agent: Running) -> Mapping[str, Any]:
    """How the device's releases fare."""
    found: Mapping[str, Any] = health(agent)["release"]
    return found


def policy_file(folder: Path, text: str = POLICY) -> Path:
    """A policy for a release."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def state(folder: Path) -> Mapping[str, Any]:
    """What the device remembers."""
    found: Mapping[str, Any] = json.loads((folder / "state/release/units/state.json").read_text())
    return found
