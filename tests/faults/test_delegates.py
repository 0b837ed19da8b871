"""Delegates that crash, refuse, give up or lie: the agent answers every request, rightly, and says why."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.edge.loads import bundle, requests, side, software
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.model_loader import Loader
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.tensors import Array

REQUESTS = 400
NAME = "m"


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundle(tmp_path / "b", tflite=0)


@pytest.fixture
def expected(folder: Path) -> Array:
    return load_runtime(folder / "model.tflite").run(requests(REQUESTS))["scores"]


def _side(folder: Path, library: Path, **options: str | int) -> EdgeSide:
    return side(folder, software(library, "prefer", **options), package="ai_edge_litert")


def ask(agent: AgentCore, expected: Array, rows: Iterator[int]) -> None:
    """Send these rows one by one; every answer must be right."""
    whole = requests(REQUESTS)["x"]
    for row in rows:
        answer = agent.infer(NAME, {"x": whole[row : row + 1]})
        np.testing.assert_allclose(answer.outputs["scores"], expected[row : row + 1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crash": "load"}, "libsoftware_delegate.so crashed the probing process with SIGABRT"),
        *(
            pytest.param(
                {"crash": when},
                "libsoftware_delegate.so crashed the probing process with SIGABRT",
                marks=pytest.mark.exhaustive,
            )
            for when in ("prepare", "invoke")
        ),
        ({"fail_prepare": 1}, "software refused the model: software delegate: told to fail in prepare"),
        ({"wrong": 1}, "it answers the golden vectors wrongly: scores: relative error"),
    ],
)
def test_one_that_is_no_good_from_the_start_costs_no_answer(
    folder: Path, state_dir: Path, software_delegate: Path, expected: Array, options: dict[str, str | int], said: str
) -> None:
    edge = Loader(NAME, _side(folder, software_delegate, **options), state_dir=state_dir).load()
    with AgentCore([ServedModel(NAME, edge)], None, Policy()) as agent:
        ask(agent, expected, iter(range(REQUESTS)))
        (health,) = agent.health()
        answer = agent.infer(NAME, requests(1))
    assert (health.state, health.accelerator, health.report.checked_by) == ("fallback", "", "golden vectors")
    assert said in health.reason
    assert (answer.accelerator, answer.edge_state) == ("cpu", "fallback")


def test_one_that_fails_at_the_hundredth_run_costs_no_answer(
    folder: Path, state_dir: Path, software_delegate: Path, expected: Array, caplog: pytest.LogCaptureFixture
) -> None:
    edge = Loader(NAME, _side(folder, software_delegate, fail_after=100), state_dir=state_dir).load()
    with AgentCore([ServedModel(NAME, edge)], None, Policy()) as agent:
        (before,) = agent.health()
        assert agent.infer(NAME, requests(1)).accelerator == "software"
        workers = [threading.Thread(target=ask, args=(agent, expected, iter(range(n, REQUESTS, 4)))) for n in range(4)]
        failures: list[object] = []
        former, threading.excepthook = threading.excepthook, failures.append
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            threading.excepthook = former
        (after,) = agent.health()
        answer = agent.infer(NAME, requests(1))
    assert failures == []
    assert (before.state, before.accelerator) == ("ready", "software")
    assert (after.state, after.accelerator) == ("fallback", "")
    assert "software failed while running" in after.reason
    assert caplog.messages.count(f"{folder / 'model.tflite'}: {after.reason}") == 1
    assert (answer.accelerator, answer.edge_state) == ("cpu", "fallback")


def test_requests_are_answered_before_while_and_after_one_gets_ready(
    folder: Path, state_dir: Path, software_delegate: Path, expected: Array
) -> None:
    slow = _side(folder, software_delegate, delay_us=20_000)
    loading = Loader(NAME, slow, state_dir=state_dir).start(0.0)
    with AgentCore([ServedModel(NAME, loading.model)], None, Policy()) as agent:
        assert agent.infer(NAME, requests(1)).edge_state == "compiling"
        assert loading.final is not None
        swapped = threading.Event()

        def swap() -> None:
            assert loading.final is not None
            assert agent.replace_edge(NAME, loading.final.result(), loading.model)
            swapped.set()

        swapping = threading.Thread(target=swap)
        swapping.start()
        rows = iter(range(REQUESTS))
        while not swapped.is_set():
            ask(agent, expected, iter([next(rows, 0)]))
        swapping.join()
        ask(agent, expected, iter(range(20)))
        answer = agent.infer(NAME, requests(1))
        assert (answer.accelerator, answer.edge_state) == ("software", "ready")


def test_an_answer_says_where_it_ran_where_a_delegate_refuses_its_rows(
    folder: Path, state_dir: Path, software_delegate: Path, expected: Array
) -> None:
    golden_rows = 100
    edge = Loader(NAME, _side(folder, software_delegate, most_rows=golden_rows), state_dir=state_dir).load()
    with AgentCore([ServedModel(NAME, edge)], None, Policy()) as agent:
        for rows, accelerator, state in ((golden_rows, "software", "ready"), (REQUESTS, "cpu", "fallback")) * 2:
            answer = agent.infer(NAME, requests(rows))
            np.testing.assert_allclose(answer.outputs["scores"], expected[:rows], rtol=1e-3, atol=1e-3)
            assert (answer.accelerator, answer.edge_state) == (accelerator, state)
        (health,) = agent.health()
        document = json.loads(json.dumps(agent.health_document()))
    assert (health.state, health.accelerator) == ("fallback", "software")
    assert document["models"][NAME]["reason"].startswith(f"software refuses 'x' [{REQUESTS}, 64], which the CPU runs: ")


def test_one_that_refuses_the_golden_vectors_is_not_used(
    folder: Path, state_dir: Path, software_delegate: Path, expected: Array
) -> None:
    edge = Loader(NAME, _side(folder, software_delegate, most_rows=8), state_dir=state_dir).load()
    with AgentCore([ServedModel(NAME, edge)], None, Policy()) as agent:
        ask(agent, expected, iter(range(3)))
        (health,) = agent.health()
    assert (health.state, health.accelerator) == ("fallback", "")
    assert "its answers could not be checked: write `batch: 1`" in health.reason
