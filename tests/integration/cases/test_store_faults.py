"""The agent's database of cases on a full disk and after kill -9: no answer is lost, no whole case, none is half."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import pytest

from tests.faults.oracles import picture
from tests.faults.scene import until, write_agent
from tests.integration.agent.harness import Running, agent_process, ask, client_of, fact, scraped
from tests.integration.agent.kept import EASY, STATE
from upwell.tools.cases.case_source import CaseDatabase

MEASURED = {**STATE, "metrics": "127.0.0.1:0"}
ALL = {"defaults": {**EASY, "collect": {"random": 1.0}}}
REOPENED_S = 30.0
"""A database that could not be used is tried again after five seconds."""


def file_limit(running: Running, size_bytes: int) -> None:
    _, hard = resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE, (size_bytes if size_bytes >= 0 else hard, hard))


def figure(running: Running, name: str) -> float:
    return scraped(running.metrics_url).get(name, 0.0)


def lost(running: Running) -> float:
    found = scraped(running.metrics_url)
    return sum(value for name, value in found.items() if re.match(r"upwell_cases_lost_total", name))


@pytest.mark.slow
def test_a_full_disk_costs_cases_alone_and_a_kill_leaves_whole_ones(tmp_path: Path) -> None:
    path = write_agent(tmp_path, ALL, agent=MEASURED)
    with agent_process(path) as running, client_of(running.addresses[0]) as client:
        for number in range(5):
            ask(client, number)
        until(lambda: figure(running, "upwell_cases_held") == 5, REOPENED_S)
        file_limit(running, 0)
        for number in range(20):
            assert fact(ask(client, number), "route") == "edge"
        until(lambda: lost(running) >= 1, REOPENED_S)
        file_limit(running, -1)

        def is_kept_again() -> bool:
            ask(client, 6)
            return figure(running, "upwell_cases_held") > 5

        until(is_kept_again, REOPENED_S)
        assert running.said.count("no cases are collected") == 1
        running.program.send(signal.SIGKILL)
        running.program.wait()
    database = CaseDatabase(tmp_path / "state" / "cases.db")
    known = {picture(number) for number in range(20)}
    facts = database.facts()
    assert len(facts) > 5
    with database.reading() as read:
        assert all(read(one.id).pictures()["image"] in known for one in facts)
    with agent_process(path) as running:
        until(lambda: figure(running, "upwell_cases_held") == len(facts), REOPENED_S)
