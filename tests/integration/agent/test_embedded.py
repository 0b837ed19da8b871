"""An agent inside a program: arguments of the wrong type, forks, and callers at work while it is closed."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.oracles import EDGE_BUNDLE, pictures
from tests.faults.scene import write_agent
from upwell.edge import Agent
from upwell.shared.errors import ConfigError, DeadlineExceeded, InvalidRequest, Unavailable

MODELS = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}
CHILD_LIMIT_S = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_agent(tmp_path, {"defaults": {"deadline": "5s"}}, models=MODELS, agent={"state_dir": "state"})


def test_arguments_of_the_wrong_type_are_named(path: Path) -> None:
    inputs = {"image": pictures([0])}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"deadline_s": "1"}, "deadline_s: expected a number of seconds, got str"),
        ({"deadline_s": None}, "deadline_s: expected a number of seconds, got NoneType"),
        ({"deadline_s": True}, "deadline_s: expected a number of seconds, got bool"),
        ({"deadline_s": 1j}, "deadline_s: expected a number of seconds, got complex"),
        ({"deadline_s": 10**400}, "deadline_s: expected a number of seconds that a float can hold"),
        ({"id": 5}, "id: expected a string, got int"),
        ({"id": "half \ud83d"}, "id: expected Unicode text, got 'half \\ud83d'"),
        ({"id": "x" * 1001}, "the id has 1001 characters; at most 1000 are allowed"),
        ({"tags": {"file": "\udcff.jpg"}}, "tag 'file': expected Unicode text, got '\\udcff.jpg'"),
        ({"traceparent": b"00"}, "traceparent: expected a string, got bytes"),
        ({"model": ["digits"]}, "model: expected a string, got list"),
        ({"inputs": None}, "inputs: expected arrays by name, got NoneType"),
        ({"inputs": {**inputs, 1: pictures([0]), "x": pictures([0])}}, "inputs: expected Unicode text as names, got 1"),
        ({"inputs": {"\udcff": pictures([0])}}, "inputs: expected Unicode text as names, got '\\udcff'"),
    ]
    with Agent.from_config(path) as agent:
        for changed, message in wrong:
            asked: dict[str, Any] = {"model": "digits", "inputs": inputs, **changed}
            with pytest.raises(InvalidRequest) as caught:
                agent.infer(**asked)
            assert str(caught.value) == message


def test_a_deadline_of_numpy_s_types_is_recorded_like_any_other(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Agent.from_config(path) as agent:
        for deadline_s in (np.float32(5), np.int64(5), 5):
            agent.infer("digits", {"image": pictures([0])}, deadline_s=deadline_s)
    (recorded,) = (path.parent / "state").glob("flight*/*")
    assert recorded.read_bytes().count(b"\n") == 3
    assert "cannot be recorded" not in caplog.text


def test_a_refusal_is_freed_at_once(path: Path) -> None:
    """In a cycle with its frames it would keep the inputs until the garbage collector runs, which delays others."""
    refusals: list[weakref.ref[DeadlineExceeded]] = []
    with Agent.from_config(path) as agent:
        gc.disable()
        try:
            for _ in range(2):
                try:
                    agent.infer("digits", {"image": pictures([0])}, deadline_s=0)
                except DeadlineExceeded as error:
                    refusals.append(weakref.ref(error))
            assert [refusal() for refusal in refusals] == [None, None]
        finally:
            gc.enable()


def in_a_fork(agent: Agent) -> str:
    """What a fork of this process is told by the agent. It ends in any case, and never goes on as a second pytest."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_LIMIT_S)  # in case `close` waits for threads that only the parent has
            with pytest.raises(Unavailable) as caught:
                agent.infer("digits", {"image": pictures([0])})
            agent.close()
            os.write(writing, str(caught.value).encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 (the parent reports it)
            os.write(writing, repr(error).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as told:
        said = told.read().decode()
    assert os.waitpid(child, 0)[1] == 0, said
    return said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_told_to_make_its_own_and_the_agent_goes_on(path: Path) -> None:
    with Agent.from_config(path) as agent:
        assert in_a_fork(agent).startswith("the agent belongs to the process that made it")
        assert agent.infer("digits", {"image": pictures([0])}).route == "edge"
        with pytest.raises(ConfigError, match="another agent uses it"):
            Agent.from_config(path)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(writing)
                os.read(reading, 1)  # lives on until the parent has closed its end
            finally:
                os._exit(0)
    with Agent.from_config(path) as second:
        assert second.infer("digits", {"image": pictures([0])}).route == "edge"
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)


def test_callers_at_work_while_it_is_closed_get_an_answer_or_are_told(path: Path) -> None:
    agent = Agent.from_config(path)

    def ask() -> str:
        for _ in range(100_000):
            try:
                agent.infer("digits", {"image": pictures([0])})
            except Unavailable as error:
                return str(error)
        return "it is never closed"

    with ThreadPoolExecutor(8) as callers:
        asking = [callers.submit(ask) for _ in range(8)]
        agent.infer("digits", {"image": pictures([0])})
        agent.close()
        agent.close()
        assert {one.result() for one in asking} == {"the agent is closed"}
