"""Roll-outs in a database, without a service."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from upwell.fleet.config import DatabaseSection
from upwell.fleet.registry.groups import assign_group, put_group
from upwell.fleet.rollout import rollout_store
from upwell.fleet.rollout.rollout_state import RolloutPlan
from upwell.fleet.rollout.wave_gate import GateSettings
from upwell.fleet.rollout.wave_plan import parse_waves
from upwell.fleet.storage import database as fleet_database
from upwell.fleet.storage.database import Database
from upwell.fleet.storage.tables import DEVICES, GROUPS, STATISTICS
from upwell.fleet.users import Actor

FORMER, NEW = 6, 7


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot lower SQLite's limit")
def test_more_devices_than_a_statement_takes_parameters_go_through_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_database, "MOST_IDS", 40)
    database = Database(DatabaseSection.model_validate({"file": tmp_path / "fleet.db"}))
    event.listen(database._engine, "checkout", lambda connection, *_: connection.setlimit(_PARAMETERS, 60))
    names, actor = [f"d{number:03}" for number in range(100)], Actor("ann", 1000.0)
    plan = RolloutPlan("", NEW, parse_waves(["100%"]), GateSettings(requests=1, audits=0, reports=1))
    with database.writing() as connection:
        connection.execute(insert(DEVICES), [_device(name) for name in names])
        put_group(connection, actor, "all", "true")
        assign_group(connection, actor, "all", FORMER, None)
        target = rollout_store.RolloutTarget("true", "all")
        rollout = rollout_store.create(connection, actor, plan, target, lambda _: True)
    for now_unix_s, release in ((1010.0, FORMER), (1020.0, NEW), (1100.0, NEW)):
        with database.writing() as connection:
            connection.execute(insert(STATISTICS), [_counted(name, release, now_unix_s) for name in names])
            rollout_store.advance(connection, rollout, 1000.0, now_unix_s, lambda device: device["last_seen_unix_s"])
            assigned = set(connection.scalars(select(DEVICES.c.assigned)))
        assert assigned == ({NEW} if now_unix_s < 1100.0 else {None})
    with database.reading() as connection:
        assert connection.scalars(select(GROUPS.c.release)).all() == [NEW]
    database.close()


_PARAMETERS = getattr(sqlite3, "SQLITE_LIMIT_VARIABLE_NUMBER", 0)


def _device(name: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"labels": {}, "reported_labels": {}, "attributes": {}, "custom_capabilities": []}
    return {
        **empty, "id": name, "name": name, "instance_uid": "", "key_sha256": name, "capabilities": 0,
        "config_hash": "", "config_status": "unset", "config_error": "", "release": FORMER, "started_unix_ns": 0,
        "former_started_unix_ns": 0, "enrolled_unix_s": 500.0, "last_seen_unix_s": 990.0,
    }  # fmt: skip


def _counted(name: str, release: int, at_unix_s: float) -> dict[str, Any]:
    counts = {"requests": round(at_unix_s)}
    return {"device_id": name, "at_unix_s": at_unix_s, "release": release, "since_unix_s": release, "counts": counts}
