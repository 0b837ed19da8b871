"""`upwell spool list` and `purge`, beside a running agent and without one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.integration.spool.harness import Scene, scene, until
from upwell.edge.commands import spool_cli
from upwell.shared.errors import ConfigError

APP = typer.Typer()
APP.command("list")(spool_cli.list_cases)
APP.command("purge")(spool_cli.purge)

AGENT = """
version: 1
agent: {state_dir: state}
cloud: {endpoint: "127.0.0.1:1"}
models: {digits: {cloud: {model: echo}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT)
    return path


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(APP, arguments, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def listed(config: Path, *more: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(run("list", "-c", str(config), "--json", *more))["items"]
    return items


def fill(it: Scene) -> list[str]:
    return [it.put(n, tags={"camera": camera, "n": f"{n}"}) for n, camera in enumerate(["dock", "dock", "gate"])]


def test_without_a_spool_there_is_nothing(config: Path) -> None:
    assert listed(config) == []
    assert "0 cases" in run("list", "-c", str(config))
    assert "purged 0" in run("purge", "-c", str(config), "--all")
    assert not (config.parent / "state").exists()


def test_a_running_agent_s_cases_are_listed(config: Path) -> None:
    with scene(config.parent / "state", is_open=False) as it:
        ids = fill(it)
        items = listed(config)
        assert [item["id"] for item in items] == ids
        assert items[0]["tags"] == {"camera": "dock", "n": "0"}
        assert (items[0]["state"], items[0]["kind"], items[0]["attempts"]) == ("waiting", "spool", 0)
        assert [item["id"] for item in listed(config, "--tag", "camera=gate")] == ids[2:]
        assert listed(config, "--tag", "camera=gate", "--tag", "n=0") == []
        assert len(listed(config, "--tag", "privacy=")) == 3
        shown = run("list", "-c", str(config))
        assert ids[0] in shown
        assert "3 waiting, 0 done, 0 poisoned" in shown


def test_a_purge_beside_a_running_agent(config: Path) -> None:
    with scene(config.parent / "state", is_open=False) as it:
        ids = fill(it)
        assert json.loads(run("purge", "-c", str(config), "--tag", "camera=dock", "--json"))["purged"] == 2
        assert [item["id"] for item in listed(config)] == ids[2:]
        it.gate.set()
        until(lambda: it.spool.counts().answered == 1)
        assert it.cloud.ids == ids[2:]
        assert [item["state"] for item in listed(config)] == ["done"]
        assert "purged 1 case from" in run("purge", "-c", str(config), "--all")
        assert it.spool.results(0, 10**9) == []


def test_nothing_of_what_was_purged_is_left_on_disk(config: Path) -> None:
    mark = "only-for-the-device"
    state = config.parent / "state"
    with scene(state, is_open=False) as it:
        it.put(1, size=100_000, request_id=mark)
        it.put(2)
    before_bytes = (state / "spool.db").stat().st_size
    run("purge", "-c", str(config), "--all", "--yes")
    assert (state / "spool.db").stat().st_size < before_bytes - 300_000
    assert all(mark.encode() not in path.read_bytes() for path in state.iterdir())


def test_a_case_whose_tags_the_disk_garbled_is_listed_and_purged(config: Path) -> None:
    with scene(config.parent / "state", is_open=False) as it:
        fill(it)
    with closing(sqlite3.connect(config.parent / "state" / "spool.db")) as connection, connection:
        connection.execute("UPDATE items SET tags = CAST(x'ff7b7d' AS TEXT) WHERE tags LIKE '%gate%'")
    assert [item["tags"].get("camera", "") for item in listed(config)] == ["dock", "dock", ""]
    assert "purged 3 cases from" in run("purge", "-c", str(config), "--all", "--yes")


def test_terminals_are_not_obeyed(config: Path) -> None:
    with scene(config.parent / "state", is_open=False) as it:
        it.put(1, tags={"camera": "\x1b[2J[red]x[/red]"})
        shown = run("list", "-c", str(config))
        assert "\x1b" not in shown
        assert "[red]x" in shown


@pytest.mark.parametrize("arguments", [(), ("--all", "--tag", "a=b")])
def test_a_purge_says_what_it_drops(config: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="either --tag KEY=VALUE or --all"):
        run("purge", "-c", str(config), *arguments)


@pytest.mark.parametrize("tag", ["camera", "=x", ""])
def test_a_tag_is_a_name_and_a_value(config: Path, tag: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        run("list", "-c", str(config), "--tag", tag)


def test_an_agent_without_a_folder_keeps_nothing(config: Path) -> None:
    config.write_text(AGENT.replace("agent: {state_dir: state}", ""))
    with pytest.raises(ConfigError, match=r"expected agent\.state_dir"):
        run("list", "-c", str(config))


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_a_file_that_is_no_spool_is_one_clear_error(config: Path, content: bytes) -> None:
    path = config.parent / "state" / "spool.db"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"spool\.db: the spool cannot be used"):
        run("list", "-c", str(config))
    assert path.read_bytes() == content
