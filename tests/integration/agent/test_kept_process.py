"""`upwell agent` as a process that keeps things: restarts, a disk that fails, a changed policy, and wrong set-ups."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud, status
from tests.faults.oracles import CLOUD_MODEL, pictures
from tests.faults.programs import Program
from tests.faults.scene import HARD_ALWAYS, until, write_agent
from tests.integration.agent.harness import Running, agent_process, ask, client_of, fact, scraped
from tests.integration.agent.kept import EASY, SPOOLED, STATE, kept_ids, put, spooling_agent
from tests.unit.models_for_tests import linear
from upwell.edge.policy import periodic_jobs
from upwell.edge.server import agent_assembly
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.spool.spooled_request import SPOOL_ID
from upwell.shared.errors import CloudFailed, ConfigError
from upwell.shared.routing.reasons import Reason

MEASURED = {**STATE, "metrics": "127.0.0.1:0"}
REOPENED_S = 15.0
"""A database that could not be used is tried again after five seconds."""


def file_limit(running: Running, size_bytes: int) -> None:
    """From now on no file of the process may grow beyond this: what a full disk is to it."""
    _, hard = resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE, (size_bytes if size_bytes >= 0 else hard, hard))


def log_lines(running: Running, became: str) -> float:
    return scraped(running.metrics_url)[f"upwell_log_lines_total{{became={became}}}"]


@pytest.mark.slow
def test_a_full_disk_costs_no_answer_and_is_counted(folder: Path, cloud: ScriptedCloud) -> None:
    cloud.behaviour = status(grpc.StatusCode.INVALID_ARGUMENT)
    policy = {"defaults": {**SPOOLED, "record": {"keep": "1MiB"}, "budget": {"cloud_requests": "1000/day"}}}
    with agent_process(write_agent(folder, policy, cloud.address, agent=MEASURED)) as running:
        with client_of(running.addresses[0]) as client:
            assert fact(ask(client, 0), "spool_id")
            until(lambda: log_lines(running, "written") == 1)
            file_limit(running, 0)
            for number in range(30):
                answer = ask(client, number)
                assert fact(answer, "route") == "edge"
                assert SPOOL_ID not in answer.parameters
            found = scraped(running.metrics_url)
            assert found["upwell_spool_failed_writes_total"] == 30
            until(lambda: log_lines(running, "failed") == 30)
            file_limit(running, -1)
            until(lambda: SPOOL_ID in ask(client, 1).parameters, REOPENED_S)
            until(lambda: log_lines(running, "written") >= 2)
        assert running.said.count("cannot be used") == 1
        assert running.said.count("request log cannot be written") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_what_is_spent_of_a_budget_survives_a_restart(
    folder: Path, cloud: ScriptedCloud, number: signal.Signals
) -> None:
    policy = {"defaults": {**SPOOLED, "budget": {"cloud_requests": "4/month"}}}
    path = write_agent(folder, policy, cloud.address, agent=STATE)
    with agent_process(path) as running, client_of(running.addresses[0]) as client:
        assert [fact(ask(client, one), "reason") for one in range(6)] == ["hard"] * 4 + ["budget_spent"] * 2
        if number is signal.SIGKILL:  # what was spent within the last second may be forgotten by it
            until(lambda: '"4' in saved(folder) or " 4" in saved(folder))
        running.program.send(number)
        running.program.wait()
    with agent_process(path) as running, client_of(running.addresses[0]) as client:
        for one in range(3):
            answer = ask(client, one)
            assert (fact(answer, "reason"), bool(fact(answer, "spool_id"))) == ("budget_spent", True)
    assert len(cloud.requests) == 4  # nor was anything that waited sent when it started
    assert kept_ids(cloud.requests) == []


def saved(folder: Path) -> str:
    path = folder / "state" / "budgets.json"
    return path.read_text() if path.exists() else ""


def logged(folder: Path) -> list[str]:
    """The lines of the request log, which is made with its first one."""
    path = folder / "state" / "requests.jsonl"
    return path.read_text().splitlines() if path.exists() else []


DEEP = "[" * 200_000
STATE_FILES = (
    "budgets.json",
    "requests.jsonl",
    "results.jsonl",
    "spool.db",
    "probes.json",
    "bundles/digits/state.json",
)
STATES: Mapping[str, bytes] = {
    "nested": DEEP.encode(),
    "nested objects": b'{"a":' * 200_000,
    "nested and closed": b"[" * 200_000 + b"]" * 200_000,
    "a number beyond any": b'{"defaults bytes/day 1": [[0, 1' + b"0" * 400 + b", 0]]}",
    "infinite": b'{"sequence": Infinity, "tries": 1e999}',
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("what", STATES)
def test_whatever_the_files_of_its_state_hold_an_agent_starts_and_answers(
    folder: Path, cloud: ScriptedCloud, what: str
) -> None:
    policy = {"defaults": {**SPOOLED, "record": {"keep": "1MiB"}, "budget": {"uplink": "1GB/day"}}}
    path = write_agent(folder, policy, cloud.address, agent=STATE)
    for name in STATE_FILES:
        file = folder / ("" if name == "results.jsonl" else "state") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(STATES[what] + b"\n")
    with embedded_agent(path) as agent:
        assert agent.infer("digits", {"image": pictures([0])}).reason is Reason.HARD


def test_a_pipe_in_the_place_of_the_budgets_does_not_stop_an_agent(folder: Path, cloud: ScriptedCloud) -> None:
    path = write_agent(folder, {"defaults": EASY}, cloud.address, agent=STATE)
    (folder / "state").mkdir()
    os.mkfifo(folder / "state" / "budgets.json")
    with embedded_agent(path) as agent:
        assert agent.infer("digits", {"image": pictures([0])}).reason is Reason.EASY


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(one, marks=pytest.mark.exhaustive)
        for one in (DEEP, *(200_000 * one for one in ("{a: ", "- ", "? ")))
    ],
)
def test_a_policy_nested_however_deeply_leaves_the_former_one_in_force(
    folder: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    with spooling_agent(folder, EASY, cloud) as it:
        put(folder / "policy.yaml", text)
        until(lambda: "kept the previous policy" in caplog.text)
        assert it.ask(0).reason is Reason.EASY
    assert "a periodic job failed" not in caplog.text


def test_a_changed_policy_takes_over_and_a_wrong_one_does_not(
    folder: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_jobs, "PERIOD_S", 0.1)
    with spooling_agent(folder, EASY, cloud) as it:
        assert it.ask(0).reason is Reason.EASY
        it.write_policy(HARD_ALWAYS)
        until(lambda: it.ask(0).reason is Reason.HARD)
        for wrong in (
            "defaults: {deadlin: 5s}",
            "rules: [{name: a, if: 'request.(', route: cloud}]",
            "version: 1\n\t- x",
        ):
            before = caplog.text.count("kept the previous policy")
            put(folder / "policy.yaml", wrong)
            until(partial(refused_again, caplog, before))
            assert it.ask(0).reason is Reason.HARD
        it.write_policy(EASY)
        until(lambda: it.ask(0).reason is Reason.EASY)
        (folder / "policy.yaml").unlink()
        until(lambda: "no such file" in caplog.text)
        assert it.ask(0).reason is Reason.EASY
    assert "a periodic job failed" not in caplog.text


def refused_again(caplog: pytest.LogCaptureFixture, before: int) -> bool:
    return caplog.text.count("kept the previous policy") == before + 1


@pytest.mark.slow
def test_a_changed_policy_that_needs_a_folder_is_refused_where_there_is_none(
    folder: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture
) -> None:
    with spooling_agent(folder, EASY, cloud, {"listen": ["127.0.0.1:0"]}) as it:
        it.write_policy({**HARD_ALWAYS, "audit": 0.1})
        until(lambda: "audit need" in caplog.text)
        assert "agent.state_dir" in caplog.text
        assert it.ask(0).reason is Reason.EASY
        it.write_policy(HARD_ALWAYS)
        until(lambda: it.ask(0).reason is Reason.HARD)


def test_a_policy_written_while_the_models_were_loaded_is_not_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = agent_assembly.load_models

    def load_and_write(*how: Any) -> Any:
        put(folder / "policy.yaml", json.dumps({"version": 1, "defaults": {"deadline": "3s"}}))
        return load(*how)

    monkeypatch.setattr(agent_assembly, "load_models", load_and_write)
    with embedded_agent(write_agent(folder, {"defaults": EASY})) as agent:
        assert agent.router.settings("digits").deadline_s == 3.0


KEEPERS: Mapping[str, Mapping[str, Any]] = {
    "spool": {"defaults": {"spool": True}},
    "spool for one error": {"defaults": {"on_cloud_failure": {"deadline": "spool"}}},
    "audit": {"models": {"digits": {"audit": "0.1%"}}},
    "explore, record": {"defaults": {"explore": "1%", "record": {"keep": "1MiB"}}},
    "record": {"rules": [{"name": "some", "match": {"tags": {"a": "b"}}, "set": {"record": {"keep": "1MiB"}}}]},
}


@pytest.mark.parametrize("what", KEEPERS)
def test_a_policy_that_keeps_needs_a_folder(folder: Path, what: str) -> None:
    path = write_agent(folder, KEEPERS[what], "127.0.0.1:9")
    with pytest.raises(ConfigError) as caught:
        embedded_agent(path)
    (problem,) = caught.value.problems
    assert problem.path == folder / "policy.yaml"
    assert problem.message.startswith(what.partition(" for")[0])
    assert "agent.state_dir in agent.yaml" in problem.message


def test_the_command_says_so_in_one_line(folder: Path) -> None:
    path = write_agent(folder, KEEPERS["spool"], "127.0.0.1:9")
    with Program(["agent", "-c", str(path)]) as program:
        assert program.wait() == 2
        (said,) = (line for line in program.lines if line.startswith("error: "))
        assert "expected agent.state_dir" in said


EVERYTHING: Mapping[str, Any] = {
    **SPOOLED,
    "audit": 1.0,
    "explore": 1.0,
    "record": {"keep": "1MiB"},
    "hard": {"measure": "margin", "cloud_share": "20%"},
}
DESCRIBED = """
version: 1
signature:
  rows: {rows}
  inputs: {{x: {{kind: tensor, dtype: FP32, shape: [{lead}8]}}}}
  outputs: {{scores: {{kind: {kind}}}}}
"""


def test_an_agent_without_a_cloud_keeps_nothing_for_it(folder: Path) -> None:
    with spooling_agent(folder, EVERYTHING, None, {"state_dir": "state"}) as it:
        for index in range(5):
            answer = it.ask(index, index + 1)
            assert (str(answer.route), answer.spool_id) == ("edge", "")
        assert it.agent.spool is None
        until(lambda: len(logged(folder)) == 10)


def test_a_model_of_the_cloud_alone_has_nothing_to_be_kept(folder: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(folder, EVERYTHING, cloud, models={"digits": {"cloud": {"model": CLOUD_MODEL}}}) as it:
        assert str(it.ask(0).route) == "cloud"
        cloud.behaviour = status(grpc.StatusCode.INTERNAL)
        with pytest.raises(CloudFailed):
            it.ask(0)
        assert (it.spool.held().waiting, it.spool.counts().kept) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "lead", "kind"), [("false", "1, ", "logits"), ("true", "-1, ", "tensor"), ("false", "1, ", "tensor")]
)
def test_models_without_rows_or_scores_are_kept_and_recorded_too(
    folder: Path, cloud: ScriptedCloud, rows: str, lead: str, kind: str
) -> None:
    file = linear(folder, rows=1 if rows == "false" else None)
    file.with_suffix(".yaml").write_text(DESCRIBED.format(rows=rows, lead=lead, kind=kind))
    models = {"linear": {"edge": {"file": str(file)}, "cloud": {"model": "there"}}}
    x = {"x": np.ones((1, 8), np.float32)}
    up = [{"name": "up", "match": {"tags": {"where": "up"}}, "route": "cloud"}]
    with spooling_agent(folder, EVERYTHING, cloud, models=models, rules=up) as it:
        for _ in range(3):
            assert str(it.agent.infer("linear", x).route) == "edge"
        it.proxy.refuse()
        answer = it.agent.infer("linear", x, tags={"where": "up"})
        assert answer.degraded
        assert answer.spool_id
        cloud.behaviour = status(grpc.StatusCode.INVALID_ARGUMENT)
        it.proxy.restore()
        until(lambda: it.spool.counts().poisoned >= 1, REOPENED_S)
        assert any(request.id == answer.id for request in cloud.requests)
        until(lambda: len(logged(folder)) >= 1)
