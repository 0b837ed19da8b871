"""Work on a database in groups: all of a group in one transaction, and yet none for another's sake."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.faults.scene import until
from upwell.edge.case_collection.case_database import CaseStore
from upwell.edge.spool import database_keeper, open_database
from upwell.edge.spool.database_keeper import Keeper, KeptDatabase
from upwell.edge.spool.spooled_request import SpoolUnavailable


def test_work_that_fails_does_not_take_with_it_what_is_done_in_the_same_group(tmp_path: Path) -> None:
    keeper = Keeper(KeptDatabase("cases", tmp_path / "cases.db", CaseStore.open, lambda _: None, "nothing is kept"))
    may_go_on = threading.Event()

    def bad(store: CaseStore) -> None:
        raise ZeroDivisionError(f"not this one, at {store.latest_s()}")

    try:
        first = keeper.submit(lambda _: may_go_on.wait(60))  # what comes meanwhile is one group
        good = [keeper.submit(CaseStore.latest_s) for _ in range(3)]
        broken = keeper.submit(bad)
        last = keeper.submit(CaseStore.latest_s)
        may_go_on.set()
        assert first.result(60)
        assert [one.result(60) for one in (*good, last)] == [0.0] * 4
        with pytest.raises(ZeroDivisionError):
            broken.result(60)
    finally:
        may_go_on.set()
        keeper.close()


def test_who_reads_waits_no_longer_than_it_can_for_a_disk_that_hangs(tmp_path: Path) -> None:
    keeper = Keeper(KeptDatabase("cases", tmp_path / "cases.db", CaseStore.open, lambda _: None, "nothing is kept"))
    may_go_on = threading.Event()
    try:
        hanging = keeper.submit(lambda _: may_go_on.wait(60))
        with pytest.raises(SpoolUnavailable, match="does not answer in time"):
            keeper.ask(CaseStore.held, 0.01)
        may_go_on.set()
        assert hanging.result(60)
        assert keeper.ask(CaseStore.held, 60) == (0, 0)
    finally:
        may_go_on.set()
        keeper.close()


def test_a_database_that_can_be_written_again_is_well_although_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else health would say for days, until there is a case, that none can be kept."""
    for name in ("EXPIRE_S", "REOPEN_S"):
        monkeypatch.setattr(database_keeper, name, 0.01)
    monkeypatch.setattr(open_database, "WELL_AFTER_S", 0.0)
    path = tmp_path / "cases.db"
    path.mkdir()
    keeper = Keeper(KeptDatabase("cases", path, CaseStore.open, lambda _: None, "nothing is kept"))
    try:
        until(lambda: "cases.db cannot be written; nothing is kept" in keeper.problem)
        path.rmdir()
        until(lambda: not keeper.problem)
        assert keeper.ask(CaseStore.held, 60) == (0, 0)
    finally:
        keeper.close()
