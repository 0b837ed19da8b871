"""What lies in the state folder and is no longer what the agent wrote: said, and never the end of the agent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.edge.agents import policy
from upwell.edge.observe.flight_recorder import UnknownRequest, find
from upwell.edge.observe.shadow_release import ShadowRelease
from upwell.edge.policy.periodic_jobs import BudgetFile
from upwell.edge.policy.router_service import RouterService
from upwell.edge.server.state_dir import LOCK_NAME, StateDir
from upwell.edge.spool.result_sinks import JsonlSink

DEEP = b"[" * 200_000 + b"]" * 200_000
BROKEN = [
    DEEP,
    b'{"a":' * 200_000,
    b"\xff\xfe",
    b"null",
    b"[]",
    b'{"x": 1}',
    b'{"x": [[1, 0, 5]]}',
    b'{"x": [[0, 1e400, 5]]}',
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_budgets_that_cannot_be_read_begin_anew(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "budgets.json").write_bytes(data)
    cell = RouterService(policy("defaults: {budget: {cloud_requests: 1/day}}"))
    with caplog.at_level(logging.WARNING):
        BudgetFile(tmp_path / "budgets.json", cell)
    assert cell.state.budgets.windows == {}
    assert "start from zero" in caplog.text


@pytest.mark.parametrize("data", [*BROKEN, b'{"release": 1e999, "digests": [], "audits": 0, "lines": []}'])
def test_records_of_a_shadow_release_that_cannot_be_read_begin_anew(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shadow.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        shadow = ShadowRelease(RouterService(policy("defaults: {audit: 1%}")), tmp_path)
    assert shadow.news() is None
    assert "are lost" in caplog.text


def test_results_that_cannot_be_read_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(DEEP + b"\n")
    assert JsonlSink(path).start() == 0


def test_a_record_that_cannot_be_read_is_passed_over() -> None:
    with pytest.raises(UnknownRequest):
        find([DEEP, b"{"], "x")


def test_what_a_power_cut_left_of_a_file_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".budgets.json.0123abcd.new").write_bytes(b"half")
    StateDir(tmp_path).close()
    assert [one.name for one in tmp_path.iterdir()] == [LOCK_NAME]
