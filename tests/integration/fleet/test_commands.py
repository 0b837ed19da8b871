"""The commands of `upwell fleet`, and what they say of a wrong file, option or token."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import insert
from typer.testing import CliRunner, Result

from tests.fleet_service import Service, service, user
from tests.integration.fleet.test_replicas import device_row
from upwell.fleet.config import FleetConfig
from upwell.fleet.storage.tables import DEVICES
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.opamp import RELEASE_PACKAGE, STATISTICS
from upwell.tools.cli import build_app
from upwell.tools.fleet import fleet_client, rollouts_cli
from upwell.tools.fleet.fleet_client import CallFailed, FleetClient


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet")) as running:
        (running.folder / "token").write_text(running.operator)
        running.enrolled("gate", site="kiel")
        yield running


def run(fleet: Service, *arguments: str, who: str = "token") -> Result:
    words = ["fleet", *arguments]
    options = {
        "UPWELL_FLEET": fleet.url,
        "UPWELL_FLEET_CA": str(fleet.ca),
        "UPWELL_FLEET_TOKEN_FILE": str(fleet.folder / who),
    }
    return CliRunner().invoke(build_app(words), words, env=options)


def done(fleet: Service, *arguments: str) -> str:
    result = run(fleet, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_devices_are_listed_grouped_labelled_and_assigned(fleet: Service) -> None:
    listed = json.loads(done(fleet, "devices", "--json"))["devices"]
    assert [one["name"] for one in listed] == ["gate"]
    done(fleet, "label", "gate", "line=2", "site=")
    done(fleet, "group", "put", "two", "labels.line == '2'")
    done(fleet, "assign", "6", "--group", "two", "--not-before", "2027-01-31T02:00+01:00")
    shown = json.loads(done(fleet, "show", "gate", "--json"))
    assert (shown["wanted"], shown["not_before_unix_s"], shown["labels"]) == (6, 1801357200.0, {"line": "2"})
    assert "gate" in done(fleet, "devices", "--group", "two")
    assert "no-such" not in done(fleet, "devices", "--where", "name == 'no-such'")
    assert json.loads(done(fleet, "group", "list", "--json"))["groups"][0]["devices"] == 1
    done(fleet, "assign", "none", "--group", "two")
    assert "  gate  enrolled: " in done(fleet, "tail", "gate")
    assert "assign group" in done(fleet, "audit")
    done(fleet, "group", "drop", "two")


def test_hours_in_an_unknown_time_zone_are_refused(fleet: Service) -> None:
    done(fleet, "label", "gate", "timezone=Europe/Berlinn")
    error = run(fleet, "rollout", "7", "--where", 'name == "gate"', "--window", "22:00-06:00").exception
    assert "device 'gate' has an unknown time zone, timezone=Europe/Berlinn" in str(error)
    done(fleet, "label", "gate", "timezone=")


def test_devices_are_listed_as_a_person_counts_with_what_keeps_them_from_their_release(fleet: Service) -> None:
    full = opamp_pb2.PackageStatus(name=RELEASE_PACKAGE, agent_has_version="6", error_message="no space left")
    names = ("dock10", "dock9", "dock")
    for name in names:
        device = fleet.enrolled(name)
        device.poll(package_statuses=opamp_pb2.PackageStatuses(packages={RELEASE_PACKAGE: full}))
    shown = done(fleet, "devices", "--where", 'name.startsWith("dock")')
    assert [word for word in shown.split() if word in names] == ["dock", "dock9", "dock10"]
    assert "no space left" in shown
    for name in names:
        done(fleet, "revoke", name)


def test_a_device_is_shown_line_by_line(fleet: Service) -> None:
    device = fleet.enrolled("nested", site="kiel")
    lens = opamp_pb2.ComponentHealth(healthy=False, last_error="dirty lens")
    device.poll(
        health=opamp_pb2.ComponentHealth(healthy=True, component_health_map={"digits": lens}),
        custom_message=opamp_pb2.CustomMessage(
            capability=STATISTICS,
            type="counted",
            data=json.dumps({"since_unix_s": 1e299, "counts": {"answers": {"edge": 7}, "late": [1, 2]}}).encode(),
        ),
    )
    fleet.server._upkeep._write()
    shown = done(fleet, "show", "nested")
    for lines in (
        "health:\n  healthy: yes\n  components:\n    digits:\n      healthy: no\n      last_error: dirty lens\n",
        "statistics:\n  release:\n  since_unix_s: 1e+299\n  counts:\n    answers:\n      edge: 7\n    late: 1, 2\n",
        "labels:\n  site: kiel\n",
        "enrolled_unix_s: 20",
    ):
        assert lines in shown
    assert "{" not in shown
    done(fleet, "revoke", "nested")


def test_users_and_tokens_come_and_go(fleet: Service) -> None:
    token = done(fleet, "user", "add", "eve").strip()
    (fleet.folder / "eve").write_text(token)
    assert "eve" in done(fleet, "user", "list")
    assert "needs the role operator" in str(run(fleet, "revoke", "gate", who="eve").exception)
    made = json.loads(done(fleet, "token", "add", "--label", "a=b", "--valid", "2h", "--json"))
    assert made["id"] in done(fleet, "token", "list")
    done(fleet, "token", "drop", made["id"])
    done(fleet, "user", "remove", "eve")
    assert isinstance(run(fleet, "devices", who="eve").exception, CallFailed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("assign", "6"), "expected --device or --group"),
        (("assign", "six", "--device", "gate"), "sequence number"),
        (("assign", "6", "--device", "gate", "--not-before", "tomorrow"), "with its offset"),
        (("devices", "--at", "http://127.0.0.1:1"), "https"),
        (("devices", "--token-file", "/nowhere"), "the token"),
        (("token", "add", "--valid", "24"), "--valid"),
        (("label", "gate", "nothing"), "KEY=VALUE"),
        (("devices", "--group", "g", "--where", "true"), "one of --group and --where"),
        (("rollout", "7"), "one of --group and --where"),
        (("rollout", "7", "--group", "g", "--where", "true"), "one of --group and --where"),
        (("rollout", "7", "--where", "true", "--days", "mon"), "--days needs --window"),
    ],
)
def test_wrong_use_is_one_sentence(fleet: Service, arguments: tuple[str, ...], words: str) -> None:
    error = run(fleet, *arguments).exception
    assert isinstance(error, ConfigError)
    assert words in str(error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rollout", "7", "--group", "nobody"), "no group 'nobody'"),
        (("rollout", "7", "--where", "labels.site =="), "the expression"),
        (("rollout", "7", "--where", 'name == "nobody"'), "no device matches"),
        (("rollout", "7", "--where", "true", "--wave", "1"), "the last wave must be 100%"),
        (("rollout", "7", "--where", "true", "--wave", "some"), "expected a wave such as"),
        (
            ("rollout", "7", "--where", "true", "--wave", "site=keil", "--wave", "100%"),
            "no device has the label of wave",
        ),
        (("rollout", "7", "--where", "true", "--window", "night"), "expected a span such as"),
        (("rollout", "7", "--where", "true", "--window", "22:00-06:00", "--days", "monday"), "expected a day such as"),
        (("rollout", "7", "--where", "true", "--requests", "0"), "requests"),
        (("rollouts", "nothing"), "no roll-out 'nothing'"),
        (("pause", "../users"), "Nothing matches"),
        (("resume", "nothing"), "no roll-out 'nothing'"),
        (("back", "nothing"), "no roll-out 'nothing'"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused_by_the_service_in_one_sentence(
    fleet: Service, arguments: tuple[str, ...], words: str
) -> None:
    error = run(fleet, *arguments).exception
    assert isinstance(error, CallFailed)
    assert words in str(error)
    assert json.loads(done(fleet, "rollouts", "--json")) == {"rollouts": []}


def test_a_rollout_begins_pauses_resumes_and_is_taken_back(fleet: Service) -> None:
    (fleet.folder / "viewer").write_text(user(fleet.fleet, "viewer", "viewer"))
    refused = run(fleet, "rollout", "7", "--where", "true", who="viewer").exception
    assert "needs the role operator" in str(refused)
    later = datetime.now(timezone.utc) + timedelta(hours=10)  # so that no device is offered anything now
    hours = ("--window", f"{later:%H}:00-{later + timedelta(hours=1):%H}:00", "--days", "mon,tue,wed,thu,fri,sat,sun")
    begun = run(fleet, "rollout", "7", "--where", "true", "--wave", "100%", *hours, "--json")
    assert "one wave has no control group" in begun.stderr
    started = json.loads(begun.stdout)["id"]
    assert "needs the role operator" in str(run(fleet, "back", started, who="viewer").exception)
    assert f"is in roll-out {started}" in str(run(fleet, "rollout", "8", "--where", "true").exception)
    assert str(run(fleet, "resume", started).exception).endswith("it is running, not paused")
    done(fleet, "pause", started)
    assert "paused" in done(fleet, "rollouts")
    assert str(run(fleet, "pause", started).exception).endswith("it is paused, not running")
    done(fleet, "resume", started)
    done(fleet, "back", started)
    shown = done(fleet, "rollouts", started)
    assert f"roll-out {started} of release 7, halted: taken back by operator" in shown
    assert "wave 1 (100%): 1 waiting" in shown
    assert str(run(fleet, "back", started).exception).endswith("it is already halted")


@pytest.mark.slow
def test_follow_waits_for_the_end_and_says_by_its_exit_code_that_it_was_halted(fleet: Service) -> None:
    words = ["rollout", "7", "--where", "true", "--wave", "100%", "--follow", "--json"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, fleet, *words)
        until_s = time.monotonic() + 20
        while not (going := [one for one in fleet.get("/rollouts")["rollouts"] if one["phase"] == "running"]):
            assert time.monotonic() < until_s
        fleet.do("POST", f"/rollouts/{going[0]['id']}/back")
        result = waiting.result(20)
    assert (result.exit_code, json.loads(result.stdout)["phase"]) == (1, "halted")


def test_follow_bears_with_a_service_that_is_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = CallFailed("no connection", is_away=True)
    said = iter([away, {"phase": "running", "devices": []}, away, away, {"phase": "finished", "devices": []}, away])

    def call(*_: object, **__: object) -> object:
        one = next(said)
        if isinstance(one, CallFailed):
            raise one
        return one

    monkeypatch.setattr(FleetClient, "call", call)
    monkeypatch.setattr(fleet_client, "AGAIN_S", 0.0)
    monkeypatch.setattr(rollouts_cli, "FOLLOW_S", 0.0)
    (tmp_path / "token").write_text("t")
    client = FleetClient("https://127.0.0.1:1", None, tmp_path / "token")
    assert rollouts_cli._until_over(client, "r")["phase"] == "finished"
    monkeypatch.setattr(fleet_client, "AWAY_S", -1.0)
    with pytest.raises(CallFailed):
        rollouts_cli._until_over(client, "r")


def test_devices_that_report_as_many_labels_as_they_may_are_listed(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        (tmp_path / "token").write_text(fleet.operator)
        labels = {f"{number:<100}": "x" * 500 for number in range(64)}
        rows = [{**device_row(number), "instance_uid": str(number), "reported_labels": labels} for number in range(150)]
        with fleet.fleet.state.database.writing() as connection:
            connection.execute(insert(DEVICES), rows)
        assert len(json.loads(done(fleet, "devices", "--json"))["devices"]) == 150


def test_an_unknown_device_and_a_service_that_is_not_there_are_failures(fleet: Service) -> None:
    assert str(run(fleet, "show", "nobody").exception) == "no device 'nobody'"
    gone = run(fleet, "devices", "--at", "https://127.0.0.1:1").exception
    assert isinstance(gone, CallFailed)
    assert "https://127.0.0.1:1" in str(gone)


def test_the_first_user_has_a_name_that_the_service_would_take(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("version: 1\n")
    words = ["fleet", "user", "add", "ann lee", "-c", str(tmp_path / "fleet.yaml")]
    assert "expected a name of at most 100" in str(CliRunner().invoke(build_app(words), words).exception)


def test_what_is_not_written_lies_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("version: 1\n")
    found = load_yaml(path, FleetConfig).fleet
    assert (found.authority.key, found.database.file) == (tmp_path / "fleet-ca.key", tmp_path / "fleet.db")


def test_a_wrong_file_is_told_with_every_place(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "version: 1\nfleet:\n  listen: [nowhere]\n  poll: 60\n  names: ['a b']\n"
        "  database: {file: a.db, postgres: 'postgresql://u@h/d'}\n  colour: red\n"
    )
    with pytest.raises(ConfigError) as raised:
        load_yaml(path, FleetConfig)
    found = {(one.line, one.key) for one in raised.value.problems}
    assert found == {
        (3, "fleet.listen[0]"), (4, "fleet.poll"), (5, "fleet.names[0]"), (6, "fleet.database"), (7, "fleet.colour"),
    }  # fmt: skip


def test_a_replica_with_another_authority_or_a_broken_database_does_not_start(fleet: Service, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"version: 1\nfleet: {{listen: ['127.0.0.1:0'], database: {{file: '{fleet.folder}/fleet.db'}}}}\n")
    result = CliRunner().invoke(build_app(["fleet", "serve"]), ["fleet", "serve", "-c", str(path)])
    assert "another authority" in str(result.exception)
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    path.write_text("version: 1\nfleet: {listen: ['127.0.0.1:0'], database: {file: broken.db}}\n")
    result = CliRunner().invoke(build_app(["fleet", "serve"]), ["fleet", "serve", "-c", str(path)])
    assert "broken.db: fleet.database.file: the database cannot be used" in str(result.exception)
