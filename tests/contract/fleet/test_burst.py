"""More connections and polls at once than the service takes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_service import service
from upwell.fleet.opamp import opamp_endpoint
from upwell.fleet.registry.device_presence import Presence
from upwell.fleet.service import server

DEVICES = 12


def test_a_burst_is_bounded_refused_early_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(opamp_endpoint, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(server, "WRITE_S", 3600.0)  # the service's own housekeeping, which writes too
    may_go_on, heard = threading.Event(), Presence.heard

    def hear_later(*words: Any) -> Any:
        assert may_go_on.wait(10)
        return heard(*words)

    with service(tmp_path) as fleet:
        devices = [fleet.enrolled(f"d{number}") for number in range(DEVICES)]
        monkeypatch.setattr(Presence, "heard", hear_later)
        host, _, port = fleet.server.addresses[0].rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(4)]
        before = fleet.fleet.state.database.writes
        with ThreadPoolExecutor(DEVICES) as threads:
            polls = [threads.submit(one.send, one.message().SerializeToString()) for one in devices]
            assert not wait(polls, 0.2, FIRST_COMPLETED).done  # they wait in the kernel
            for one in silent:
                one.close()
            answers = [poll.result() for poll in islice(as_completed(polls), DEVICES - 1)]
            may_go_on.set()
        assert {one.status for one in answers} == {HTTPStatus.SERVICE_UNAVAILABLE}
        assert all(one.retry_after_s for one in answers)
        assert min(poll.result().status for poll in polls) == HTTPStatus.OK
        assert fleet.fleet.state.database.writes - before < 0.1 * DEVICES
