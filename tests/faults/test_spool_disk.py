"""A disk that is full, read-only or damaged: callers are answered at once, what happened is counted, and it heals."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.spool.harness import ALLOWED, FAST, case, scene, until
from upwell.edge.spool import database_keeper, spool_drainer

ROOT = Path(__file__).parents[2]

CHILD = """
import json, resource, sys, time
from pathlib import Path
from tests.integration.spool.harness import ALLOWED, case
from upwell.edge.spool.spooled_request import SpoolLimits
from upwell.edge.spool.spool_drainer import CaseSender
from upwell.edge.spool.spool import Spool

def put(number):
    began_s = time.monotonic()
    id = spool.put(case(number, size=5000), ALLOWED, began_s + 5)
    took.append(time.monotonic() - began_s)
    spool.held()  # a full disk can be read: that does not make it well
    return bool(id)

took = []
spool = Spool(Path(sys.argv[1]) / "spool.db", limits=SpoolLimits(),
              sender=CaseSender(None, lambda: False, frozenset, lambda *_: True))
assert put(0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
full = [put(number) for number in range(1, 31)]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
again = put(31)
counts = spool.counts()
held = spool.held().waiting
spool.close()
print(json.dumps({"full": full, "again": again, "kept": counts.kept, "failed": counts.failed_writes, "held": held,
                  "longest_s": max(took)}))
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (database_keeper, spool_drainer):
        monkeypatch.setattr(module, "REOPEN_S", 0.05)


def test_a_disk_that_fills_up_costs_cases_and_no_answer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert not all(seen["full"])
    assert seen["again"]
    assert seen["failed"] == seen["full"].count(False)
    assert seen["kept"] == seen["held"] == 2 + seen["full"].count(True)
    assert seen["longest_s"] < 4.0
    assert done.stderr.count("cannot be used") == 1  # said once, not thirty times


def test_a_place_that_cannot_be_used_is_tried_again(tmp_path: Path) -> None:
    blocker = tmp_path / "state"
    blocker.write_text("a file where the folder should be")
    with scene(blocker) as it:
        began_s = time.monotonic()
        assert it.spool.put(case(1), ALLOWED, began_s + 10) == ""
        assert time.monotonic() - began_s < 5
        assert it.spool.counts().failed_writes == 1
        blocker.unlink()
        until(lambda: it.put(2) != "", "a case kept")
        until(lambda: it.spool.counts().answered == 1)


def test_a_read_only_file_system_costs_no_answer() -> None:
    with scene(Path("/sys")) as it:
        began_s = time.monotonic()
        assert [it.put(number) for number in range(20)] == [""] * 20
        assert time.monotonic() - began_s < 5
        assert it.spool.counts().failed_writes == 20


def test_the_old_go_though_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_keeper, "EXPIRE_S", 0.05)
    with scene(tmp_path, is_open=False, limits=replace(FAST, max_age_s=0.2)) as it:
        assert it.put(1)
        until(lambda: it.spool.counts().dropped_old == 1)


def test_a_link_in_the_database_s_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "spool.db").symlink_to(target)
    with scene(tmp_path / "state") as it:
        assert it.put(1) == ""
    assert target.read_bytes() == b""


DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "no database": lambda _: b"x" * 5000,
    "torn": lambda data: data[: len(data) // 2],
    "zeroed pages": lambda data: data[:4096] + bytes(4096 * 4) + data[4096 * 5 :],
    "version of nobody": lambda data: data[:60] + (77).to_bytes(4, "big") + data[64:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_database_is_moved_aside_and_begun_anew(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with scene(tmp_path, is_open=False) as it:
        for number in range(20):
            assert it.put(number, size=2000)
        path = it.path
    path.write_bytes(damage(path.read_bytes()))
    damaged = path.read_bytes()
    with scene(tmp_path) as it:
        assert it.put(100)
        until(lambda: it.spool.counts().answered == 1)
        assert it.spool.counts().damaged == 1
        assert it.cloud.numbers == [100]
    assert (tmp_path / "spool.db.damaged").read_bytes() == damaged
    assert "moved to" in caplog.text


def test_damage_while_running_costs_the_past_and_not_the_future(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        for number in range(20):
            assert it.put(number, size=2000)
        connection = sqlite3.connect(it.path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        with it.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * 4096 * 30)
        until(lambda: it.put(100) != "" and it.spool.counts().damaged >= 1, "begun anew")
        it.gate.set()
        until(lambda: it.spool.counts().answered >= 1)
        assert set(it.cloud.numbers) == {100}


def test_results_go_on_above_the_old_numbers_after_a_new_beginning(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.put(1)
        until(lambda: it.spool.counts().answered == 1)
        (old,) = it.spool.results(0, 1)
        path = it.path
    path.write_bytes(b"x" * 5000)
    with scene(tmp_path) as it:
        it.put(2)
        until(lambda: it.spool.counts().answered == 1)
        (new,) = it.spool.results(old.sequence, 1)
        assert new.sequence > old.sequence


def test_a_clock_set_back_delays_nothing_and_drops_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        ids = [it.put(number) for number in range(3)]
        path = it.path
    connection = sqlite3.connect(path)  # as if it had been kept by a clock that was ten years ahead
    connection.execute(
        "UPDATE items SET kept_s = kept_s + 3e8, next_s = next_s + 3e8, created_wall_s = created_wall_s + 3e8"
    )
    connection.commit()
    connection.close()
    with scene(tmp_path) as it:
        ids.append(it.put(3))
        until(lambda: it.spool.counts().answered == 4)
        assert it.cloud.ids == ids
        assert it.spool.counts().dropped_old == 0


def test_an_answer_that_cannot_be_written_is_not_asked_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held until the disk takes it."""
    with scene(tmp_path, is_open=False) as it:
        assert it.put(1)
        locked = sqlite3.connect(it.path, isolation_level=None)
        it.cloud.hold()
        it.gate.set()
        assert it.cloud.arrived(1, 20)
        locked.execute("BEGIN IMMEDIATE")
        it.cloud.release()
        until(lambda: it.put(2) == "", "the disk refuses")
        locked.execute("ROLLBACK")
        locked.close()
        until(lambda: it.spool.counts().answered == 1)
        assert it.cloud.numbers == [1]
