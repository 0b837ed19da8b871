"""Three real agents, a real cloud and a real fleet service: a fifth of all cases goes up, from where it pays most."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, EDGE_BUNDLE
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from tests.fleet_service import Service, service
from tests.integration.agent.harness import Running, agent_process, ask, client_of, fact
from tests.integration.fleet.test_agents import named, within
from upwell.tools.demo.digit_data import heldout

CURVES = {
    "steep": [[0.0, 0.4], [0.3, 0.05], [1.0, 0.0]],
    "middle": [[0.0, 0.2], [0.3, 0.1], [1.0, 0.0]],
    "flat": [[0.0, 0.01], [1.0, 0.0]],
}
REQUESTS = 150


def config(folder: Path, fleet: Service, cloud: str, name: str) -> Path:
    """An agent that would send four tenths up by itself, with a calibration that says what that is worth."""
    folder.mkdir()
    (folder / "token").write_text(fleet.enrolment_token())
    policy: dict[str, Any] = {
        "defaults": {"deadline": "5s", "hard": {"measure": "margin", "cloud_share": "40%"}},
        "calibrations": [
            {"model": "digits", "measure": "margin", "below": 0.9, "cloud_share": "40%",
             "evidence": {"curve": CURVES[name]}}
        ],
    }  # fmt: skip
    models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}, "cloud": {"model": CLOUD_MODEL}}}
    path = write_agent(folder, policy, cloud, models, {"name": name, "listen": ["127.0.0.1:0"], "state_dir": "state"})
    document = json.loads(path.read_text())
    document["fleet"] = {
        "endpoint": fleet.url, "ca": str(fleet.ca), "enrol_token_file": "token", "labels": {"site": "kiel"}
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def share_up(agent: Running, count: int, start: int) -> float:
    """Of so many held-out digits the share that the cloud answered."""
    held_out = len(heldout().images)
    with client_of(agent.addresses[0]) as client:
        answers = [ask(client, (start + index) % held_out) for index in range(count)]
    return sum(bool(fact(one, "route") == "cloud") for one in answers) / count


@pytest.mark.slow
def test_a_budget_of_all_cases_is_shared_kept_and_outlives_the_service(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cloud = stack.enter_context(Program(["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0"]))
        serving = contextlib.ExitStack()
        stack.callback(serving.close)
        (tmp_path / "fleet").mkdir()
        fleet = serving.enter_context(service(tmp_path / "fleet", poll="1s"))
        agents = {
            name: stack.enter_context(agent_process(config(tmp_path / name, fleet, cloud.address(), name)))
            for name in CURVES
        }
        for name in CURVES:
            within(30, lambda name=name: named(fleet, name))  # type: ignore[misc]
        before = {name: share_up(agent, REQUESTS, 0) for name, agent in agents.items()}
        assert all(share > 0.25 for share in before.values()), before
        fleet.do("PUT", "/budgets/site", {"where": "labels.site == 'kiel'", "cloud_share": 0.2})

        def is_shared() -> dict[str, float] | None:
            for number, agent in enumerate(agents.values()):
                share_up(agent, 15, 100 * number)  # so that there is demand
            found = fleet.get("/budgets/site")["devices"]
            shares = {one["name"]: one["shares"].get("digits") for one in found}
            return shares if len(shares) == 3 and None not in shares.values() else None

        until_s = time.monotonic() + 60
        while True:
            shares = within(60, is_shared)
            if shares["steep"] > shares["middle"] > shares["flat"]:
                break
            assert time.monotonic() < until_s, shares
        within(20, lambda: all(fleet.get(f"/devices/{name}")["config_status"] == "applied" for name in CURVES))
        time.sleep(2)  # the last change of a share is told with the next poll
        serving.close()
        held = {name: share_up(agent, REQUESTS, 300) for name, agent in agents.items()}
        assert sum(held.values()) / 3 < 0.2 + 0.07, (shares, held)
        assert held["steep"] > held["flat"], (shares, held)
        assert held["flat"] < before["flat"] / 2, (before, held)
        for name in CURVES:
            kept = json.loads((tmp_path / name / "state" / "fleet" / "shares.json").read_text())
            assert kept["shares"]["digits"] < 0.45
