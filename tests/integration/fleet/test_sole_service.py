"""The fleet service as a process: one per SQLite file, and nothing is lost when a signal ends it."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.faults.programs import Program
from tests.fleet_service import Remote, user
from upwell.fleet.config import DatabaseSection, FleetServiceSection
from upwell.fleet.service.application import open_fleet
from upwell.fleet.storage.database import sole_service
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import STATISTICS

END_S = 60.0


def service(folder: Path, name: str, database: str) -> Program:
    config = folder / name
    config.write_text(f"version: 1\nfleet: {{listen: ['127.0.0.1:0'], database: {{file: {database}}}}}\n")
    return Program(["fleet", "serve", "-c", str(config)])


def test_a_second_service_on_one_file_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "fleet.db")
    with service(tmp_path, "one.yaml", "fleet.db") as first:
        first.address()
        for name in ("fleet.db", "link.db"):
            with service(tmp_path, "two.yaml", name) as second:
                assert second.wait(END_S) == 2
                text = " ".join("".join(second.lines).split())
                assert f"{name}: fleet.database.file: another fleet service uses it; stop that one" in text
        first.send(signal.SIGKILL)
        first.wait(END_S)
        with service(tmp_path, "two.yaml", "link.db") as second:
            second.address()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_service_heard_is_written_when_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    keys = {"cert": tmp_path / "fleet-ca.pem", "key": tmp_path / "fleet-ca.key"}
    fleet = open_fleet(FleetServiceSection(database=DatabaseSection(file=tmp_path / "fleet.db"), authority=keys))
    operator = user(fleet, "ann", "operator")
    fleet.close()
    with service(tmp_path, "fleet.yaml", "fleet.db") as program:
        device = Remote(tmp_path, f"https://{program.address()}", keys["cert"], operator).enrolled("gate")
        counted = {"release": 7, "since_unix_s": 1.0, "counts": {"requests": 5}}
        message = opamp_pb2.CustomMessage(capability=STATISTICS, type="counted", data=json.dumps(counted).encode())
        device.poll(custom_message=message)
        program.send(number)
        assert program.wait(END_S) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "fleet.db")) as database:
        assert database.execute("SELECT release FROM statistics").fetchall() == [(7,)]


def test_what_the_system_refuses_the_service_is_not_taken_for_another_service(tmp_path: Path) -> None:
    section = DatabaseSection(file=tmp_path / "fleet.db")
    with pytest.raises(BlockingIOError), sole_service(section):
        raise BlockingIOError("no process is left")
