"""One SQLite file, two fleet services: the second one says so and ends, until the first one is gone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.programs import Program
from upwell.fleet.config import DatabaseSection
from upwell.fleet.storage.database import sole_service

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


def test_what_the_system_refuses_the_service_is_not_taken_for_another_service(tmp_path: Path) -> None:
    section = DatabaseSection(file=tmp_path / "fleet.db")
    with pytest.raises(BlockingIOError), sole_service(section):
        raise BlockingIOError("no process is left")
