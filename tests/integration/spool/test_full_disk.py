"""A disk that takes nothing for a while: said once, and no case waits longer for it than the disk makes it wait."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.integration.spool.harness import Scene, scene, until
from upwell.edge.spool import open_database, spool_drainer
from upwell.edge.spool.spool import FILE_NAME
from upwell.edge.spool.spool_drainer import Drainer
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

BLOCKED_S = 3.0
LARGE = 50_000


def set_most_pages(it: Scene, pages: int) -> None:
    """SQLite's own "database or disk is full" from now on, where the database would grow beyond what it has."""
    it.spool._keeper.ask(lambda store: store._connection.execute(f"PRAGMA max_page_count = {pages}"))


def test_a_full_disk_that_is_read_in_between_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene(tmp_path, is_open=False) as it:
        assert it.put(0)
        set_most_pages(it, 1)
        for number in range(1, 10):
            assert it.put(number, size=LARGE) == ""
            assert it.spool.held().waiting == 1
        set_most_pages(it, 1 << 30)
        assert it.put(10, size=LARGE)
        assert caplog.text.count("cannot be used") == 1
        assert "can be written again" not in caplog.text  # a disk that is nearly full takes the small, now and then
        monkeypatch.setattr(open_database, "WELL_AFTER_S", 0.0)
        assert it.put(11)
        until(lambda: "can be written again" in caplog.text)
        assert it.put(12)
        assert caplog.text.count("can be written again") == 1


@pytest.mark.slow
def test_cases_go_up_as_soon_as_the_disk_takes_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    pause = Drainer._pause

    def noted(self: Drainer, pause_s: float) -> None:
        pauses_s.append(pause_s)
        pause(self, pause_s)

    monkeypatch.setattr(Drainer, "_pause", noted)
    monkeypatch.setattr(spool_drainer, "REOPEN_S", 0.05)
    tries: list[str] = []
    with sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, check_same_thread=False) as blocker:

        def send(request: InferRequest, _: float) -> InferResponse:
            tries.append(request.id)
            if len(tries) == 1:
                blocker.execute("BEGIN IMMEDIATE")  # from now on nobody else can write
                threading.Timer(BLOCKED_S, lambda: blocker.execute("ROLLBACK")).start()
                raise RemoteError(RemoteErrorKind.UNAVAILABLE, "no link")
            return InferResponse("echo", {"fp32": np.zeros((1, 1), np.float32)}, id=request.id)

        with scene(tmp_path, is_open=False, send=send) as it:
            assert all(it.put(number) for number in range(5))
            it.gate.set()
            until(lambda: it.spool.counts().answered == 5)
    blocker.close()
    assert len(tries) == 6
    assert max(pauses_s) < 1.0  # and not as long again as the disk took
