"""The fleet service killed by signal 9 amid a roll-out, again and again: no device hears of two releases."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.fleet.test_rollouts import FORMER, GATE, NEW, Counting
from tests.faults.programs import UPWELL
from tests.fleet_service import Remote, user
from upwell.fleet.config import FleetConfig
from upwell.fleet.service.application import Fleet, open_fleet
from upwell.shared.config.yaml import load_yaml
from upwell.shared.oip.grpc.client.client import RemoteError

KILLS = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Killed(Remote):
    """A service in a process of its own, on one address."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._config = folder / "fleet.yaml"
        self._config.write_text(
            f'version: 1\nfleet:\n  listen: ["{address}"]\n  poll: 1s\n  database: {{file: fleet.db}}\n'
            "  authority: {cert: ca.pem, key: ca.key}\n"
        )
        fleet: Fleet = open_fleet(load_yaml(self._config, FleetConfig).fleet)
        operator = user(fleet, "operator", "operator")
        fleet.close()
        super().__init__(folder, f"https://{address}", fleet.section.authority.cert, operator)
        self.start()

    def start(self) -> None:
        command = [UPWELL, "fleet", "serve", "-c", str(self._config)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            with contextlib.suppress(RemoteError):
                if self.send("GET", "/healthz").status == 200:
                    return
            time.sleep(0.05)
        raise AssertionError("the service does not come up")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Killed]:
    service = Killed(tmp_path)
    try:
        yield service
    finally:
        service.kill()


def test_waves_are_consistent_whenever_the_service_is_killed(fleet: Killed) -> None:
    devices = [Counting(fleet, f"d{number}") for number in range(6)]
    for one in devices:
        one.poll()
    body = {"release": NEW, "where": "true", "waves": ["1", "50%", "100%"], "gate": {**GATE, "reports": 3}}
    rollout = str(fleet.do("POST", "/rollouts", body)["id"])
    draw, kills, wave = random.Random(18), 0, 0
    kill_at_s = time.monotonic() + draw.uniform(0.5, 6)
    until_s = time.monotonic() + 240
    while (shown := fleet.get(f"/rollouts/{rollout}"))["phase"] == "running" or kills < KILLS:
        assert time.monotonic() < until_s, shown
        assert shown["wave"] >= wave
        wave = shown["wave"]
        stages = {one["name"]: (one["wave"], one["stage"]) for one in shown["devices"]}
        for one in devices:
            one.poll()
            assert [wish for wish in one.wished if wish is not None] in ([], [FORMER], [NEW], [FORMER, NEW]), one.wished
            if NEW in one.wished:
                assert stages[one.name][0] <= wave
        if kills < KILLS and time.monotonic() >= kill_at_s:
            fleet.kill()
            fleet.start()
            kills += 1
            kill_at_s = time.monotonic() + draw.uniform(0.5, 6)
        time.sleep(0.3)
    assert shown["phase"] == "finished", json.dumps(shown)
    assert {one.release for one in devices} == {NEW}
    offered = [one["device_id"] for one in fleet.get("/events?limit=1000")["events"] if one["kind"] == "offered"]
    assert sorted(offered) == sorted(one["device"] for one in shown["devices"])
    assert {one["former"] for one in shown["devices"]} == {FORMER}
