"""Two replicas on one PostgreSQL: what is said at one holds at the other, also once the first was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, insert, select, text, update

from tests.contract.fleet.test_rollouts import FORMER, GATE, NEW, Counting
from tests.faults.programs import UPWELL, Program
from tests.fleet_service import FakeDevice, Remote
from tests.postgres import postgres
from upwell.fleet.budget.budget_store import BudgetGoal, BudgetSpec, members_of, put_budget, solve_all
from upwell.fleet.config import DatabaseSection
from upwell.fleet.errors import Conflict
from upwell.fleet.registry.devices import assign, find
from upwell.fleet.registry.groups import FRESH_S, put_group
from upwell.fleet.rollout.rollout_state import RolloutPlan
from upwell.fleet.rollout.rollout_store import RolloutTarget, create
from upwell.fleet.rollout.wave_plan import parse_waves
from upwell.fleet.storage.database import Database, all_rows, migrate
from upwell.fleet.storage.tables import DEVICES, FACTS, METADATA
from upwell.fleet.users import Actor, add_user, remove_user
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.errors import ConfigError
from upwell.shared.opamp import WISH_FILE


def replica(folder: Path, url: str, poll: str = "60s") -> Path:
    path = folder / "fleet.yaml"
    path.write_text(
        "version: 1\nfleet:\n  listen: ['127.0.0.1:0']\n  authority: {cert: ca.pem, key: ca.key}\n"
        f"  poll: {poll}\n  database: {{postgres: '{url}'}}\n"
    )
    return path


@pytest.mark.slow
def test_what_is_said_at_one_replica_holds_at_the_other_once_the_first_was_killed(tmp_path: Path) -> None:
    with postgres() as url:
        config = replica(tmp_path, url)
        command = [UPWELL, "fleet", "user", "add", "ann", "--role", "operator", "-c", str(config)]
        token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        arguments = ["fleet", "serve", "-c", str(config)]
        with Program(arguments, [UPWELL]) as first, Program(arguments, [UPWELL]) as second:
            one, two = (
                Remote(tmp_path, f"https://{program.address()}", tmp_path / "ca.pem", token)
                for program in (first, second)
            )
            device = one.enrolled("ship", site="kiel")
            device.service = two
            device.poll(health=opamp_pb2.ComponentHealth(healthy=True, start_time_unix_nano=5))
            one.do("PUT", "/groups/kiel", {"expression": 'labels.site == "kiel"'})
            one.do("PUT", "/groups/kiel/release", {"release": 4})
            first.send(signal.SIGKILL)
            time.sleep(FRESH_S + 0.1)
            wished = json.loads(device.poll().remote_config.config.config_map[WISH_FILE].body)
            assert wished["release"] == 4
            shown = two.get("/devices/ship")
            assert (shown["healthy"], shown["wanted_by"]) == (True, "group kiel")
            late = FakeDevice(two, "late")
            assert late.enrol(two.enrolment_token()).status == 200
            assert [one["action"] for one in two.get("/audit")["entries"]][:3] == ["add user", "add token", "put group"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rollout_goes_on_at_the_other_replica_once_one_was_killed(tmp_path: Path) -> None:
    """Devices speak to both in turn; both step the roll-out, and no device hears of two releases at once."""
    with postgres() as url:
        config = replica(tmp_path, url, poll="1s")
        command = [UPWELL, "fleet", "user", "add", "ann", "--role", "operator", "-c", str(config)]
        token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        arguments = ["fleet", "serve", "-c", str(config)]
        with Program(arguments, [UPWELL]) as first, Program(arguments, [UPWELL]) as second:
            one, two = (
                Remote(tmp_path, f"https://{program.address()}", tmp_path / "ca.pem", token)
                for program in (first, second)
            )
            devices = [Counting(one, f"d{number}") for number in range(6)]
            for device in devices:
                device.poll()
            body = {"release": NEW, "where": "true", "waves": ["1", "50%", "100%"], "gate": {**GATE, "reports": 3}}
            rollout = one.do("POST", "/rollouts", body)["id"]
            wave, until_s, is_killed = 0, time.monotonic() + 180, False
            while (shown := two.get(f"/rollouts/{rollout}"))["phase"] == "running":
                assert time.monotonic() < until_s, shown
                assert shown["wave"] >= wave
                wave = shown["wave"]
                for number, device in enumerate(devices):
                    device.device.service = two if is_killed or number % 2 else one
                    device.poll()
                    wished = [wish for wish in device.wished if wish is not None]
                    assert wished in ([], [FORMER], [NEW], [FORMER, NEW]), wished
                if wave == 1 and not is_killed:
                    first.send(signal.SIGKILL)
                    is_killed = True
                time.sleep(0.4)
            assert (shown["phase"], is_killed) == ("finished", True), shown
            assert {device.release for device in devices} == {NEW}
            kinds = [one["device_id"] for one in two.get("/events?limit=1000")["events"] if one["kind"] == "offered"]
            assert sorted(kinds) == sorted(one["device"] for one in shown["devices"])


@pytest.mark.slow
def test_two_replicas_that_share_a_budget_out_at_once_do_it_once_and_alike() -> None:
    """Each round begins at once at both, by what only one of them has heard yet."""
    with postgres() as url:
        replicas = [Database(DatabaseSection(postgres=url)) for _ in range(2)]
        with replicas[0].writing() as connection:
            for number in range(20):
                connection.execute(insert(DEVICES).values(device_row(number)))
            spec = BudgetSpec("true", None, BudgetGoal("cloud_share", 0.2), {})
            put_budget(connection, Actor("ann", 0.0), "all", spec)
        solved = []
        for at_s in range(10):
            with replicas[at_s % 2].writing() as connection:
                statistics = {
                    "since_unix_s": 1.0,
                    "counts": {},
                    "demand": {"m": demand(1.0, wanted=0.02 + 0.02 * at_s)},
                }
                connection.execute(update(DEVICES).where(DEVICES.c.id == "d0").values(statistics=statistics))
            begins = threading.Barrier(2)

            def solve(one: Database, at_s: int = at_s, begins: threading.Barrier = begins) -> int:
                begins.wait(60.0)
                before = one.writes
                with one.writing() as connection:
                    solve_all(connection, 1000.0 + 60.0 * at_s, 30.0)
                return one.writes - before

            with ThreadPoolExecutor(2) as pool:
                writes = sorted(pool.map(solve, replicas))
            assert writes[0] == 0, "the one that came second saw that it was done"
            assert writes[1] > 0
            with replicas[1].reading() as connection:
                told = {one["id"]: one["shares"] for one in all_rows(connection, select(DEVICES))}
                kept = {one["device_id"]: one["shares"] for one in members_of(connection, "all")}
            assert told == kept
            solved.append(told["d0"]["m"])
        assert len(set(solved)) > 1
        for one in replicas:
            one.close()


@pytest.mark.slow
def test_of_two_rollouts_begun_at_once_at_two_replicas_one_is_refused() -> None:
    with postgres() as url:
        replicas = [Database(DatabaseSection(postgres=url)) for _ in range(2)]
        with replicas[0].writing() as connection:
            connection.execute(insert(FACTS).values(name="authority", value="as every service writes it"))
            for number in range(10):
                connection.execute(
                    insert(DEVICES).values({**device_row(number), "statistics": None, "release": FORMER})
                )
        for number in range(10):
            begins = threading.Barrier(2)

            def begin(one: Database, number: int = number, begins: threading.Barrier = begins) -> bool:
                plan = RolloutPlan("", NEW, parse_waves(["100%"]))
                begins.wait(60.0)
                try:
                    with one.writing() as connection:
                        create(
                            connection, Actor("ann", 1.0), plan, RolloutTarget(f'name == "d{number}"'), lambda _: True
                        )
                except Conflict:
                    return False
                return True

            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(begin, replicas)) == [False, True]
        for one in replicas:
            one.close()


@pytest.mark.slow
def test_of_two_operators_at_once_at_two_replicas_the_second_is_refused() -> None:
    with postgres() as url:
        replicas = [Database(DatabaseSection(postgres=url)) for _ in range(2)]
        ann, bob = Actor("ann", 1.0), Actor("bob", 1.0)
        with replicas[0].writing() as connection:
            for one in (ann, bob):
                add_user(connection, one, one.name, "operator")
        spec = BudgetSpec("true", None, BudgetGoal("cloud_share", 0.2), {})
        changes: list[tuple[Change, Change]] = [
            (lambda one: remove_user(one, ann, "bob"), lambda one: remove_user(one, bob, "ann")),
            (lambda one: put_group(one, ann, "all", "true"), lambda one: put_group(one, bob, "all", "true")),
            (lambda one: put_budget(one, ann, "all", spec), lambda one: put_budget(one, bob, "all", spec)),
        ]
        for first, second in changes:
            with ThreadPoolExecutor(1) as pool:
                with replicas[0].writing() as connection:
                    first(connection)
                    refused = pool.submit(is_refused, replicas[1], second)
                    until_s = time.monotonic() + 5.0
                    while not connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                        assert time.monotonic() < until_s, "the second does not wait for the first"
                assert refused.result(60.0)
        for replica in replicas:
            replica.close()


Change: TypeAlias = Callable[[Connection], None]


def is_refused(database: Database, change: Change) -> bool:
    """Make a change in a transaction of its own."""
    try:
        with database.writing() as connection:
            change(connection)
    except Conflict:
        return True
    return False


def test_an_operator_does_not_overrule_a_rollout_that_began_a_moment_ago(tmp_path: Path) -> None:
    database = Database(DatabaseSection.model_validate({"file": tmp_path / "fleet.db"}))
    with database.writing() as connection:
        connection.execute(insert(DEVICES).values(device_row(0)))
        read = find(connection, "d0")
        connection.execute(update(DEVICES).values(rollout="3f9c01ab", assigned=FORMER))
        with pytest.raises(Conflict, match="is in roll-out 3f9c01ab, which has not ended"):
            assign(connection, Actor("ann", 1.0), read, NEW, None)
        assert find(connection, "d0")["assigned"] == FORMER
    database.close()


def demand(requests_per_s: float, wanted: float = 1.0) -> dict[str, object]:
    return {"requests_per_s": requests_per_s, "request_bytes": 100.0, "wanted": wanted, "shares": [0.0, 0.3, 1.0],
            "risks": [0.4, 0.1 + 0.01 * requests_per_s, 0.0]}  # fmt: skip


def device_row(number: int) -> dict[str, object]:
    return {
        "id": f"d{number}", "name": f"d{number}", "instance_uid": "", "key_sha256": str(number), "labels": {},
        "reported_labels": {}, "attributes": {}, "capabilities": 0, "custom_capabilities": [], "config_hash": "",
        "config_status": "", "config_error": "", "started_unix_ns": 0, "former_started_unix_ns": 0,
        "enrolled_unix_s": 0.0,
        "statistics": {"since_unix_s": 1.0, "counts": {}, "demand": {"m": demand(1.0 + number)}},
    }  # fmt: skip


@pytest.mark.slow
def test_the_schema_of_postgresql_is_that_of_the_tables_up_and_down() -> None:
    with postgres() as url:
        database = Database(DatabaseSection(postgres=url))
        with database.reading() as connection:
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        with database.writing() as connection:
            migrate(connection, "base")
            migrate(connection)
        database.close()


def test_the_schema_of_sqlite_is_that_of_the_tables_up_and_down(tmp_path: Path) -> None:
    database = Database(DatabaseSection.model_validate({"file": tmp_path / "fleet.db"}))
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    with database.writing() as connection:
        migrate(connection, "base")
        migrate(connection)
    database.close()


def test_a_database_of_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    section = DatabaseSection.model_validate({"file": tmp_path / "fleet.db"})
    database = Database(section)
    with database.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(ConfigError, match=r"fleet\.db.*a newer version of Upwell has changed it"):
        Database(section)
