"""A release beside the one that is served: real devices answer by both, calibrate the new one, and then roll it out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.live_fleet import MODEL, LiveFleet, Pace, live_fleet, within
from tests.page_reader import ROOT, Reader, blocks

LIMIT_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def fleet() -> Iterator[LiveFleet]:
    folder = Path(tempfile.mkdtemp(prefix="ls"))
    try:
        with live_fleet(folder, Pace()) as fleet:
            fleet.release()
            fleet.start(2)
            fleet.done("group", "put", "all", "true")
            fleet.done("assign", "1", "--group", "all")
            within(LIMIT_S, lambda: [*fleet.runs().values()] == [1, 1], "both run release 1")
            yield fleet
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digests(fleet: LiveFleet) -> dict[str, str]:
    """Of the models that answer."""
    return {
        box.name: fleet.remote.get(f"/devices/{box.name}")["configuration"][f"models/{MODEL}"] for box in fleet.boxes
    }


def as_the_page_says(fleet: LiveFleet) -> list[str]:
    """The commands of the page, for the releases and the group of this fleet, which has two devices."""
    (block,) = [one for one in blocks((ROOT / "docs/fleet.md").read_text()) if one.language == "sh"]
    for name, signer in (("targets", fleet.releases.targets_key), ("online", fleet.releases.online_key)):
        (fleet.releases.folder / f"{name}.pem").write_bytes(signer.pem)
    text = block.text.replace("cameras --devices 3", "cameras --devices 2").replace("cameras", "all")
    return [re.sub(r"\b[89]\b", lambda found: str(int(found[0]) - 6), line) for line in text.splitlines()]


def test_a_release_answers_beside_is_calibrated_on_that_and_goes_on_with_its_own_threshold(fleet: LiveFleet) -> None:
    assert fleet.release("doubtful") == 2
    served = digests(fleet)
    shutil.copy(fleet.policy, fleet.releases.folder)
    begin, look, *calibrate, end, roll = as_the_page_says(fleet)
    assert "will run in shadow on 2 devices" in typed(fleet, begin)
    within(
        LIMIT_S, lambda: json.loads(typed(fleet, f"{look.partition('#')[0]} --json"))["shadows"][0]["lines"] >= 400, ""
    )
    for command in calibrate:
        typed(fleet, command)
    lines = [json.loads(one) for one in (fleet.releases.folder / "beside.jsonl").read_text().splitlines()]
    (digest,) = {one["edge_digest"] for one in lines}
    assert digest not in served.values()
    assert not any("tags" in one for one in lines)
    assert sum("cloud_correct" in one for one in lines) > 100  # audits went up with what it said
    assert digests(fleet) == served
    assert digest in (fleet.releases.folder / "calibrated.yaml").read_text()
    typed(fleet, end)
    started = typed(fleet, f"{roll} --wave 100% --requests 20 --audits 0 --json")
    rollout = json.loads(started)["id"]
    within(2 * LIMIT_S, lambda: fleet.remote.get(f"/rollouts/{rollout}")["phase"] != "running", "the end of it")
    assert set(fleet.runs().values()) == {3}, fleet.remote.get(f"/rollouts/{rollout}")["devices"]
    assert not any(box.health()["models"][MODEL].get("uncalibrated") for box in fleet.boxes)
    for box in fleet.boxes:
        assert box.asked.unanswered == []


def typed(fleet: LiveFleet, line: str) -> str:
    """What a command prints at the desk, where it succeeds."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=fleet.releases.folder, env={**fleet.environment, **Reader(fleet.folder).environment},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_a_release_that_cannot_run_beside_is_said_and_changes_nothing(fleet: LiveFleet) -> None:
    bad = fleet.releases.release(policy=fleet.policy)  # it has no model
    fleet.done("shadow", "begin", str(bad), "--where", 'name == "box-1"')

    def is_said() -> bool:
        return f"release {bad} has no model that this device serves" in fleet.done("tail", "box-1")

    within(LIMIT_S, is_said, "why not")
    assert [*fleet.runs().values()] == [1, 1]
    refused = fleet.command("shadow", "begin", "1", "--where", "true", "--devices", "2")
    assert (refused.returncode, "end that first" in refused.stderr) == (1, True)
    nothing = fleet.command("shadow", "log", str(bad), "--out", str(fleet.folder / "none"))
    assert (nothing.returncode, (fleet.folder / "none").exists()) == (1, False)
    fleet.done("shadow", "end", str(bad))
    assert fleet.command("shadow", "end", str(bad)).returncode == 1
