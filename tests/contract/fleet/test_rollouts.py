"""Roll-outs by a real service over real HTTP, with devices that speak OpAMP and count what they are told to count."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.fleet_service import FakeDevice, Remote, Service, service
from upwell.fleet.rollout import rollout_store
from upwell.fleet.service import server
from upwell.fleet.storage.tables import ROLLOUTS
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import RELEASE_PACKAGE, STATISTICS, WISH_FILE

FORMER, NEW = 6, 7
GATE = {"requests": 40, "audits": 0, "reports": 4, "patience_s": 600.0}


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(server, "WRITE_S", 0.05)
    with service(tmp_path_factory.mktemp("fleet"), poll="1s") as running:
        yield running


class Counting:
    """A device with a release, which does what its wish says: it starts it, or says that it does not start."""

    def __init__(self, fleet: Remote, name: str) -> None:
        self.device: FakeDevice = fleet.enrolled(name, kind="test")
        self.name = name
        self.release = FORMER
        self.wished: list[int | None] = []
        self.problem = ""
        self._since_unix_s, self._requests, self._late = time.time(), 0, 0

    def poll(self, late: float = 0.0, starts: bool = True, hears: bool = True) -> None:
        """Serve twenty requests, poll, and do what is wished if it `hears` that."""
        self._requests += 20
        self._late += round(20 * late)
        counts = {"requests": self._requests, "late": self._late}
        counted = {"release": self.release, "since_unix_s": self._since_unix_s, "counts": counts}
        message = opamp_pb2.CustomMessage(capability=STATISTICS, type="counted", data=json.dumps(counted).encode())
        heard = self.device.poll(custom_message=message, package_statuses=self._packages())
        if hears and heard.HasField("remote_config"):
            wish = json.loads(heard.remote_config.config.config_map[WISH_FILE].body)
            if not self.wished or wish["release"] != self.wished[-1]:
                self.wished.append(wish["release"])
            if wish["release"] not in (None, self.release):
                self._change(wish["release"], starts)

    def _change(self, release: int, starts: bool) -> None:
        if not starts and release == NEW:
            self.problem = "the process ended with status 139"
            return
        self.release, self.problem = release, ""
        self._since_unix_s, self._requests, self._late = time.time(), 0, 0

    def _packages(self) -> opamp_pb2.PackageStatuses:
        status = opamp_pb2.PackageStatus(name=RELEASE_PACKAGE, agent_has_version=str(self.release or ""))
        if self.problem:
            status.status = opamp_pb2.PackageStatusEnum_InstallFailed
            status.error_message = self.problem
        return opamp_pb2.PackageStatuses(packages={RELEASE_PACKAGE: status})


def devices_of(fleet: Service, count: int = 4) -> list[Counting]:
    found = [Counting(fleet, f"d{number}") for number in range(count)]
    for _ in range(3):
        for one in found:
            one.poll()
    settle()
    return found


def settle() -> None:
    """Let the service write what it heard, and step."""
    time.sleep(0.2)


def started(fleet: Service, **more: Any) -> str:
    body = {"release": NEW, "where": 'labels.kind == "test"', "waves": ["1", "50%", "100%"], "gate": GATE, **more}
    return str(fleet.do("POST", "/rollouts", body)["id"])


def until(fleet: Service, rollout: str, devices: list[Counting], poll: Callable[[Counting], None]) -> dict[str, Any]:
    for _ in range(60):
        for one in devices:
            poll(one)
        settle()
        shown: dict[str, Any] = fleet.get(f"/rollouts/{rollout}")
        if shown["phase"] in ("finished", "halted"):
            return shown
    raise AssertionError(f"it has not ended: {shown}")


@pytest.mark.slow
def test_a_good_release_goes_through_three_waves_to_every_device(fleet: Service) -> None:
    devices = devices_of(fleet)
    fleet.do("PUT", "/groups/all", {"expression": "true"})
    rollout = started(fleet, where=None, group="all")
    shown = until(fleet, rollout, devices, lambda one: one.poll())
    assert shown["phase"] == "finished"
    begins = [wave["began_unix_s"] for wave in shown["waves"]]
    assert begins == sorted(begins)
    assert [one["stages"] for one in shown["waves"]] == [{"passed": 1}, {"passed": 1}, {"passed": 2}]
    assert {one.release for one in devices} == {NEW}
    assert all(one.wished[-2:] in ([NEW], [None, NEW], [FORMER, NEW]) for one in devices)
    assert fleet.get("/groups")["groups"][0]["release"] == NEW


def test_a_release_that_is_late_halts_in_its_first_wave_and_its_device_is_back(fleet: Service) -> None:
    devices = devices_of(fleet)
    rollout = started(fleet)
    shown = until(fleet, rollout, devices, lambda one: one.poll(late=0.9 if one.release == NEW else 0.0))
    assert (shown["phase"], shown["wave"]) == ("halted", 0)
    assert "requests answered late" in shown["halted_by"]
    for _ in range(3):
        for one in devices:
            one.poll()
        settle()
    assert {one.release for one in devices} == {FORMER}
    (canary,) = [one for one in fleet.get(f"/rollouts/{rollout}")["devices"] if one["stage"] == "returned"]
    assert canary["is_back"]
    assert sum(NEW in one.wished for one in devices) == 1
    halts = [one for one in fleet.get("/audit")["entries"] if one["action"] == "halt rollout"]
    assert [one["who"] for one in halts] == ["gate"]


@pytest.mark.slow
def test_a_release_that_does_not_start_halts_with_the_devices_own_words(fleet: Service) -> None:
    devices = devices_of(fleet)
    rollout = started(fleet)
    shown = until(fleet, rollout, devices, lambda one: one.poll(starts=False))
    assert (shown["phase"], shown["wave"]) == ("halted", 0)
    (failed,) = [one for one in shown["devices"] if one["stage"] == "failed"]
    assert failed["problem"] == "the process ended with status 139"


@pytest.mark.slow
def test_a_device_that_falls_silent_on_it_has_failed(fleet: Service) -> None:
    devices = devices_of(fleet)
    rollout = started(fleet, gate={**GATE, "patience_s": 1.0})

    def poll(one: Counting) -> None:
        if one.release != NEW:
            one.poll()

    shown = until(fleet, rollout, devices, poll)
    assert (shown["phase"], shown["wave"]) == ("halted", 0)
    (failed,) = [one for one in shown["devices"] if one["stage"] == "failed"]
    assert "1 s" in failed["problem"]


@pytest.mark.slow
def test_operators_pause_resume_and_take_it_back(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    rollout = started(fleet, waves=["1", "100%"])
    fleet.do("POST", f"/rollouts/{rollout}/pause")
    for _ in range(9):
        for one in devices:
            one.poll()
        settle()
    assert fleet.get(f"/rollouts/{rollout}")["wave"] == 0
    assert sum(one.release == NEW for one in devices) <= 1
    assert fleet.call("POST", f"/rollouts/{rollout}/pause")[0] == HTTPStatus.CONFLICT
    fleet.do("POST", f"/rollouts/{rollout}/resume")
    while fleet.get(f"/rollouts/{rollout}")["wave"] == 0:
        for one in devices:
            one.poll()
        settle()
    fleet.do("POST", f"/rollouts/{rollout}/back")
    for _ in range(2):
        for one in devices:
            one.poll()
        settle()
    assert {one.release for one in devices} == {FORMER}
    assert "taken back by operator" in fleet.get(f"/rollouts/{rollout}")["halted_by"]
    assert fleet.call("POST", f"/rollouts/{rollout}/back")[0] == HTTPStatus.CONFLICT


@pytest.mark.slow
def test_a_device_in_a_rollout_is_in_no_other_one_and_is_assigned_nothing(fleet: Service) -> None:
    devices_of(fleet, 2)
    first = started(fleet)
    body = {"release": 8, "where": 'name == "d1"', "waves": ["100%"]}
    status, problem = fleet.call("POST", "/rollouts", body)
    assert status == HTTPStatus.CONFLICT
    assert first in problem["detail"]
    status, problem = fleet.call("PUT", "/devices/d1/release", {"release": 8})
    assert status == HTTPStatus.CONFLICT
    fleet.do("POST", f"/rollouts/{first}/back")
    fleet.do("POST", "/rollouts", body)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet")) as running:
        Counting(running, "d0").poll()
        yield running


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"waves": ["1", "50%"]}, "the last wave must be 100%"),
        ({"waves": ["50%", "10%", "100%"]}, "more devices than the one before"),
        ({"waves": ["1; DROP TABLE rollouts", "100%"]}, "expected a wave such as"),
        ({"window": {"hours": "25:00-26:00"}}, "expected a span such as"),
        ({"where": "labels.kind ="}, "the expression"),
        ({"where": 'labels.kind == "none"'}, "no device matches"),
        ({"release": FORMER}, "every device already runs release 6"),
        ({"group": "all"}, "one of `group` and `where`"),
        ({"gate": {"requests": 0}}, "requests"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_rollout_is_refused_and_says_why(idle: Service, wrong: dict[str, Any], says: str) -> None:
    body = {"release": NEW, "where": 'labels.kind == "test"', "waves": ["1", "100%"], "gate": GATE, **wrong}
    status, problem = idle.call("POST", "/rollouts", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert says in problem["detail"]
    assert idle.get("/rollouts")["rollouts"] == []


@pytest.mark.slow
def test_what_a_device_said_of_another_release_is_not_held_against_this_one(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    for one in devices:
        one.problem = "rolled_back: release 5 was too slow"
        one.poll()
    settle()
    rollout = started(fleet, waves=["100%"])
    shown = until(fleet, rollout, devices, lambda one: one.poll())
    assert shown["phase"] == "finished", shown["halted_by"]


@pytest.mark.slow
def test_a_device_that_enrols_meanwhile_joins_its_last_wave(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    rollout = started(fleet)
    devices.append(Counting(fleet, "late"))
    shown = until(fleet, rollout, devices, lambda one: one.poll())
    assert {one["name"]: one["wave"] for one in shown["devices"]}["late"] == 2
    assert {one.release for one in devices} == {NEW}


@pytest.mark.slow
def test_an_older_rollout_is_not_taken_back_under_a_later_one(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    first = started(fleet, waves=["100%"])
    assert until(fleet, first, devices, lambda one: one.poll())["phase"] == "finished"
    second = started(fleet, waves=["100%"], release=NEW + 1)
    status, problem = fleet.call("POST", f"/rollouts/{first}/back")
    assert (status, second in problem["detail"]) == (HTTPStatus.CONFLICT, True)
    for rollout in (second, first):
        fleet.do("POST", f"/rollouts/{rollout}/back")
    for _ in range(3):
        for one in devices:
            one.poll()
        settle()
    assert {one.release for one in devices} == {FORMER}


@pytest.mark.slow
def test_a_rollout_taken_back_gives_its_group_the_former_release_back(fleet: Service) -> None:
    """Else devices that enrol later would get the release that was taken back."""
    devices = devices_of(fleet, 2)
    fleet.do("PUT", "/groups/all", {"expression": "true"})
    fleet.do("PUT", "/groups/all/release", {"release": FORMER, "not_before_unix_s": time.time()})
    rollout = started(fleet, where=None, group="all", waves=["100%"])
    assert until(fleet, rollout, devices, lambda one: one.poll())["phase"] == "finished"
    assert [(one["release"], one["not_before_unix_s"]) for one in fleet.get("/groups")["groups"]] == [(NEW, None)]
    fleet.do("POST", f"/rollouts/{rollout}/back")
    assert [one["release"] for one in fleet.get("/groups")["groups"]] == [FORMER]


@pytest.mark.slow
def test_a_rollout_taken_back_long_after_its_end_tells_which_devices_are_back(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    fleet.do("PUT", "/groups/all", {"expression": "true"})
    rollout = started(fleet, where=None, group="all", waves=["100%"])
    assert until(fleet, rollout, devices, lambda one: one.poll())["phase"] == "finished"
    with fleet.fleet.state.database.writing() as connection:
        connection.execute(update(ROLLOUTS).values(over_unix_s=time.time() - 2 * rollout_store.FOLLOWED_S))
    settle()
    fleet.do("POST", f"/rollouts/{rollout}/back")
    for _ in range(3):
        for one in devices:
            one.poll()
        settle()
    shown = fleet.get(f"/rollouts/{rollout}")["devices"]
    assert [(one["stage"], one["is_back"]) for one in shown] == [("returned", True)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("has", [0, NEW])
def test_a_device_that_enrols_meanwhile_gets_the_release_of_its_group_until_its_turn(fleet: Service, has: int) -> None:
    devices_of(fleet, 2)
    fleet.do("PUT", "/groups/all", {"expression": "true"})
    fleet.do("PUT", "/groups/all/release", {"release": FORMER})
    rollout = started(fleet, where=None, group="all", waves=["1", "100%"])
    late = Counting(fleet, "late")
    late.release = has
    late.poll()
    settle()
    for _ in range(3):
        late.poll()
        settle()
    assert (late.release, late.wished[-1]) == (FORMER, FORMER)
    fleet.do("POST", f"/rollouts/{rollout}/back")
    late.poll()
    assert (late.release, late.wished[-1]) == (FORMER, FORMER)


def take_back_once_it_runs(fleet: Service, devices: Sequence[Counting]) -> None:
    """Roll the new release out to all of them at once, and take it back when they run it and have said so."""
    rollout = started(fleet, waves=["100%"])
    while {one.release for one in devices} != {NEW}:
        for one in devices:
            one.poll()
        settle()
    for one in devices:
        one.poll()
    settle()
    fleet.do("POST", f"/rollouts/{rollout}/back")


@pytest.mark.slow
def test_a_device_on_its_way_back_goes_on_back_while_the_next_rollout_waits(fleet: Service) -> None:
    devices = devices_of(fleet, 2)
    take_back_once_it_runs(fleet, devices)
    hour = (time.gmtime().tm_hour + 12) % 24
    started(fleet, waves=["100%"], release=NEW + 1, window={"hours": f"{hour:02}:00-{hour:02}:01"})
    for one in devices:
        one.poll()
    assert {one.release for one in devices} == {FORMER}


@pytest.mark.slow
def test_a_halted_release_is_not_what_the_next_rollout_gives_back(fleet: Service) -> None:
    """The devices have not gone back yet when the next one begins: they go back before they are offered its release."""
    devices = devices_of(fleet, 2)
    take_back_once_it_runs(fleet, devices)
    second = started(fleet, waves=["100%"], release=NEW + 1)
    for _ in range(3):
        for one in devices:
            one.poll(hears=False)
        settle()
    assert {one["stage"] for one in fleet.get(f"/rollouts/{second}")["devices"]} == {"waiting"}
    while {one.release for one in devices} != {NEW + 1}:
        for one in devices:
            one.poll()
        settle()
    fleet.do("POST", f"/rollouts/{second}/back")
    for one in devices:
        one.poll()
    assert {one.release for one in devices} == {FORMER}


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["", "refused: release 3 is older than release 4, which is installed"])
def test_a_device_that_took_the_release_by_itself_as_the_rollout_began_has_its_turn(
    fleet: Service, problem: str
) -> None:
    devices = devices_of(fleet, 2)
    rollout = started(fleet, waves=["1", "100%"])

    def stages() -> dict[str, str]:
        return {device["name"]: device["stage"] for device in fleet.get(f"/rollouts/{rollout}")["devices"]}

    (name,) = [one["name"] for one in fleet.get(f"/rollouts/{rollout}")["devices"] if one["wave"] == 1]
    one = next(device for device in devices if device.name == name)
    one._change(NEW, starts=True)  # it has not heard of its assignment yet
    one.problem = problem
    one.poll(hears=False)
    settle()
    assert stages()[name] == "waiting"

    def poll(device: Counting) -> None:  # with a problem it cannot go back
        device.poll(hears=not problem or device is not one or stages()[name] != "waiting")

    assert until(fleet, rollout, devices, poll)["phase"] == "finished"
    assert (one.release, FORMER in one.wished) == (NEW, not problem)


@pytest.mark.slow
def test_devices_of_a_group_that_is_gone_keep_the_release_of_its_rollout(
    fleet: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an assignment they would take the newest release."""
    monkeypatch.setattr(rollout_store, "FRESH_S", 0.0)
    devices = devices_of(fleet, 2)
    fleet.do("PUT", "/groups/all", {"expression": "true"})
    rollout = started(fleet, where=None, group="all", waves=["100%"])
    fleet.do("DELETE", "/groups/all")
    assert until(fleet, rollout, devices, lambda one: one.poll())["phase"] == "finished"
    for _ in range(3):
        settle()
        for one in devices:
            one.poll()
    assert [one.wished[-1] for one in devices] == [NEW, NEW]


@pytest.mark.slow
def test_hours_in_which_the_service_was_off_are_held_against_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WRITE_S", 0.05)
    with service(tmp_path, poll="1s") as before:
        devices = devices_of(before, 2)
        rollout = started(before, waves=["1", "100%"])
        while not any(one["stage"] == "started" for one in before.get(f"/rollouts/{rollout}")["devices"]):
            for one in devices:
                one.poll()
            settle()
    hours_ago = time.time() - 7200.0
    with contextlib.closing(sqlite3.connect(tmp_path / "fleet.db")) as database, database:
        old = "UPDATE rollout_members SET state = json_set(state, '$.reported_unix_s', :at, '$.taken_unix_s', :at)"
        database.execute(old, {"at": hours_ago})
        database.execute("UPDATE devices SET last_seen_unix_s = :at", {"at": hours_ago})
    with service(tmp_path, poll="1s") as after:
        for _ in range(3):
            settle()
        assert after.get(f"/rollouts/{rollout}")["phase"] == "running"


def test_a_device_that_cannot_go_back_says_why(fleet: Service) -> None:
    (one,) = devices_of(fleet, 1)
    take_back_once_it_runs(fleet, [one])
    (rollout,) = [found["id"] for found in fleet.get("/rollouts")["rollouts"]]

    def shown() -> tuple[str, bool, str]:
        settle()
        (found,) = fleet.get(f"/rollouts/{rollout}")["devices"]
        return found["stage"], found["is_back"], found["problem"]

    one.problem = "refused: release 6 is older than release 7, which is installed"
    one.poll(hears=False)
    assert shown() == ("returned", False, one.problem)
    one.poll()
    one.poll()
    assert shown() == ("returned", True, "")
