"""The units: systemd takes them, and they fit the files and times of what they start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests.unit.deploy.manifests import DEPLOY
from upwell.cloud.config import CloudConfig
from upwell.edge.cli import DRAIN_S
from upwell.edge.config import AgentConfig
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.yaml import load_yaml
from upwell.shared.units import parse_seconds

UNITS = {"upwell": DEPLOY / "systemd" / "upwell.service", "upwell-agent": DEPLOY / "systemd" / "upwell-agent.service"}
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
MOST_EXPOSED = 2.5
"""Of 10, as systemd-analyze scores it; a unit without any of this has 9.6."""


class Unit:
    """The keys of a unit's section [Service]; of a key given several times the values in order."""

    def __init__(self, path: Path) -> None:
        service = path.read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0]
        self.values: dict[str, list[str]] = {}
        for line in service.splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.partition("=")
                self.values.setdefault(key, []).append(value)

    def __getitem__(self, key: str) -> str:
        (value,) = self.values[key]
        return value

    def seconds(self, key: str) -> float:
        return parse_seconds(self[key].replace("min", "m"))


@pytest.mark.parametrize("name", UNITS)
@needs_systemd
def test_systemd_takes_it(name: str, tmp_path: Path) -> None:
    upwell = Path(sys.executable).with_name("upwell")
    unit = tmp_path / f"{name}.service"
    unit.write_text(UNITS[name].read_text().replace("/opt/upwell/bin/upwell", str(upwell)))
    if name == "upwell":
        (tmp_path / "upwell.service.d").mkdir()
        shutil.copy(DEPLOY / "systemd" / "accelerator.conf", tmp_path / "upwell.service.d")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    scored = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True)
    if "unrecognized option" not in scored.stderr:  # before systemd 250
        score = re.search(r"exposure level for \S+: ([0-9.]+)", scored.stdout)
        assert score is not None
        assert float(score[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("name", UNITS)
def test_it_has_sections_and_users(name: str) -> None:
    parser = RawConfigParser(strict=False, allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's keys are as they are written
    parser.read_string(UNITS[name].read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    users = re.findall(r"^u (\S+) ", (DEPLOY / "systemd" / "upwell.sysusers").read_text(), re.MULTILINE)
    unit = Unit(UNITS[name])
    assert unit["User"] == unit["Group"] == name
    assert name in users
    assert unit["Type"] == "notify"  # upwell.shared.platform.process says when it is ready
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""


def test_the_service_fits_its_configuration() -> None:
    unit, serve = Unit(UNITS["upwell"]), load_yaml(DEPLOY / "cloud.yaml", CloudConfig).serve
    assert unit["ExecStart"].endswith(" serve --config /etc/upwell/cloud.yaml")
    assert unit.seconds("TimeoutStopSec") >= serve.drain + 15
    assert unit["KillMode"] == "mixed"  # the supervisor has its workers drain
    assert unit["ReadOnlyPaths"].split() == ["/etc/upwell", f"-{serve.models}"]
    assert "StateDirectory" not in unit.values  # the service writes nothing


def test_the_agent_fits_its_configuration() -> None:
    unit, agent = Unit(UNITS["upwell-agent"]), load_yaml(DEPLOY / "agent.yaml", AgentConfig).agent
    assert unit["ExecStart"].endswith(" agent --config /etc/upwell-agent/agent.yaml")
    assert unit.seconds("TimeoutStopSec") >= DRAIN_S + 15
    assert agent.state_dir == Path("/var/lib") / unit["StateDirectory"]
    sockets = [parse_address(one).socket_path for one in agent.listen]
    assert Path("/run") / unit["RuntimeDirectory"] in {one.parent for one in sockets if one is not None}
    assert "render" in unit["SupplementaryGroups"].split()
    assert "PrivateDevices" not in unit.values
