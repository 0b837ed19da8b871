"""Roll-outs over real agents: good releases go through, each kind of bad one halts in its first wave and is undone."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.live_fleet import DEADLINE_S, LiveFleet, Pace, live_fleet, within

SHOWS = ("--requests", "60", "--audits", "10")
SLOW_S, EXPLAIN_S = 240.0, 2.0

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(5, marks=pytest.mark.slow),
        pytest.param(40, marks=[pytest.mark.exhaustive, pytest.mark.alone]),
    ],
    ids=["five", "forty"],
)
def fleet(request: pytest.FixtureRequest) -> Iterator[LiveFleet]:
    """Devices that have enrolled, are a group, and run release 1, which was assigned to the group."""
    count = int(request.param)
    folder = Path(tempfile.mkdtemp(prefix="lf"))  # short, for the paths of sockets
    pace = Pace() if count < 10 else Pace(poll_s=4.0, request_s=0.5)
    try:
        with live_fleet(folder, pace) as fleet:
            first = fleet.release()
            fleet.start(count)
            for words in (("group", "put", "all", "true"), ("assign", str(first), "--group", "all")):
                done = fleet.command(*words)
                assert done.returncode == 0, done.stderr
            within(SLOW_S, lambda: [*fleet.runs().values()] == [first] * count, "all run the first release")
            # One that has not heard of it yet would take the next release as the newest, before its turn.
            within(SLOW_S, lambda: fleet.chosen() == [first] * count, "all have heard of the assignment")
            yield fleet
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until_over(fleet: LiveFleet, rollout: str) -> Mapping[str, Any]:
    """The roll-out once it is over."""
    until_s = time.monotonic() + 2 * SLOW_S
    while True:
        shown: Mapping[str, Any] = fleet.remote.get(f"/rollouts/{rollout}")
        if shown["phase"] in ("finished", "halted"):
            return shown
        assert time.monotonic() < until_s, [shown, fleet.remote.get("/devices?limit=1000")]
        time.sleep(0.3)


def is_back(fleet: LiveFleet, rollout: str) -> bool:
    devices = fleet.remote.get(f"/rollouts/{rollout}")["devices"]
    return all(one["is_back"] for one in devices if one["offered_unix_s"] is not None)


def nothing_lost(fleet: LiveFleet) -> None:
    """Everybody who asked was answered, and what waits for the cloud is still there."""
    for box in fleet.boxes:
        assert box.asked.unanswered == [], box.name
    print(json.dumps({box.name: vars(box.asked) | {"starts": box.starts} for box in fleet.boxes}))


def test_a_good_release_goes_through_three_waves_to_every_device(fleet: LiveFleet) -> None:
    good = fleet.release()
    rollout = fleet.rollout(good, "--group", "all", "--wave", "1", "--wave", "50%", "--wave", "100%", *SHOWS)
    shown = until_over(fleet, rollout)
    assert (shown["phase"], shown["wave"]) == ("finished", 2), shown
    count = len(fleet.boxes)
    assert [sum(one["stages"].values()) for one in shown["waves"]] == [1, (count + 1) // 2 - 1, count // 2]
    assert {one["name"]: one["problem"] for one in shown["devices"] if one["problem"]} == {}
    within(SLOW_S, lambda: set(fleet.runs().values()) == {good}, "all run it")
    nothing_lost(fleet)


@pytest.mark.parametrize("kind", ["slow", "wrong", "crashes", "endless"])
def test_a_bad_release_halts_in_its_first_wave_and_every_device_is_back(fleet: LiveFleet, kind: str) -> None:
    former = set(fleet.runs().values())
    starts = sum(box.starts for box in fleet.boxes)
    bad = fleet.release(kind)
    began_s = time.monotonic()
    rollout = fleet.rollout(bad, "--group", "all", "--wave", "1", "--wave", "50%", "--wave", "100%", *SHOWS)
    shown = until_over(fleet, rollout)
    print(kind, f"halted after {time.monotonic() - began_s:.0f} s by", shown["halted_by"])
    print([one["problem"] for one in shown["devices"] if one["problem"]])
    assert (shown["phase"], shown["wave"]) == ("halted", 0), shown
    within(SLOW_S, lambda: is_back(fleet, rollout), "the canary is back")
    assert set(fleet.runs().values()) == former
    assert sum(box.starts for box in fleet.boxes) == starts
    nothing_lost(fleet)


def test_one_that_passes_its_trial_and_is_worse_afterwards_is_halted_by_the_gate(
    fleet: LiveFleet,
) -> None:
    former = set(fleet.runs().values())
    blind = fleet.release("blind")
    waves = ("--wave", "role=canary", "--wave", "100%")
    rollout = fleet.rollout(blind, "--group", "all", *waves, "--requests", "5000", "--audits", "10")
    canary = fleet.boxes[0]

    def has_proven_itself() -> bool:
        release = canary.health()["release"]
        return bool(release["sequence"] == blind and release["phase"] == "serving")

    within(2 * SLOW_S, has_proven_itself, "its trial is over")
    assert fleet.remote.get(f"/rollouts/{rollout}")["phase"] == "running"
    for box in fleet.boxes:
        box.is_night = True
    shown = until_over(fleet, rollout)
    print("blind: halted by", shown["halted_by"], canary.health()["release"])
    assert (shown["phase"], shown["wave"]) == ("halted", 0), shown
    assert shown["halted_by"].startswith("audits in which the cloud disagreed: ")
    within(SLOW_S, lambda: is_back(fleet, rollout), "the canary is back")
    for box in fleet.boxes:
        box.is_night = False
    assert set(fleet.runs().values()) == former
    nothing_lost(fleet)


def test_one_that_falls_silent_on_a_release_halts_it_and_goes_back_once_it_hears(fleet: LiveFleet) -> None:
    former = set(fleet.runs().values())
    bad = fleet.release()
    waves = ("--wave", "role=canary", "--wave", "100%")
    rollout = fleet.rollout(bad, "--group", "all", *waves, *SHOWS, "--patience-s", "15")
    within(SLOW_S, lambda: fleet.runs()["box-0"] == bad, "the canary runs it")
    fleet.link.refuse()
    shown = until_over(fleet, rollout)
    print("silent: halted by", shown["halted_by"])
    assert (shown["phase"], shown["wave"]) == ("halted", 0), shown
    (canary,) = [one for one in shown["devices"] if one["stage"] == "failed"]
    assert canary["problem"] == "it started the release and has not reported for 15 s"
    fleet.link.restore()
    within(SLOW_S, lambda: is_back(fleet, rollout), "the canary is back")
    assert set(fleet.runs().values()) == former
    nothing_lost(fleet)


def test_a_request_of_long_ago_is_explained_with_the_next_poll_of_its_device(fleet: LiveFleet) -> None:
    box = fleet.boxes[-1]
    began_s = time.monotonic()
    done = fleet.command("explain", box.name, box.asked.first, "--json")
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    told_s = answer["answered_unix_s"] - answer["asked_unix_s"]
    print(f"explained after {took_s:.1f} s, {told_s:.1f} s from the question to the answer")
    assert f"id {box.asked.first}" in answer["answer"]["sections"][0][1]
    said = [] if box.program is None else [line for line in box.program.lines if "fleet service" in line]
    assert told_s < 1.1 * fleet.pace.poll_s + EXPLAIN_S, said


def test_what_a_device_costs(fleet: LiveFleet) -> None:
    sizes = sorted(box.pss_bytes for box in fleet.boxes)
    print(f"an agent takes {sizes[0] >> 20} to {sizes[-1] >> 20} MiB, {sum(sizes) >> 20} MiB together")
    slowest_s = max(box.asked.slowest_s for box in fleet.boxes if box.starts == 1)
    assert slowest_s < 20 * DEADLINE_S
