"""The commands of `upwell fleet`, and what they say of a wrong file, option or token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.fleet_service import Service, service
from upwell.fleet.config import FleetConfig
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.tools.cli import build_app
from upwell.tools.fleet.client import CallFailed


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
    assert "enrolled" in done(fleet, "tail", "gate")
    assert "assign group" in done(fleet, "audit")
    done(fleet, "group", "drop", "two")


def test_users_and_tokens_come_and_go(fleet: Service) -> None:
    token = done(fleet, "user", "add", "eve").strip()
    (fleet.folder / "eve").write_text(token)
    assert "eve" in done(fleet, "user", "list")
    assert "takes the role operator" in str(run(fleet, "revoke", "gate", who="eve").exception)
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
    ],
)
def test_wrong_use_is_one_sentence(fleet: Service, arguments: tuple[str, ...], words: str) -> None:
    error = run(fleet, *arguments).exception
    assert isinstance(error, ConfigError)
    assert words in str(error)


def test_an_unknown_device_and_a_service_that_is_not_there_are_failures(fleet: Service) -> None:
    assert str(run(fleet, "show", "nobody").exception) == "no device 'nobody'"
    gone = run(fleet, "devices", "--at", "https://127.0.0.1:1").exception
    assert isinstance(gone, CallFailed)
    assert "https://127.0.0.1:1" in str(gone)


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
