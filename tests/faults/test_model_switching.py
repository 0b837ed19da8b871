"""Models switched under load: no request is lost, no memory either, and a bad version goes back by itself."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from tests.faults.repeating import Repeating
from tests.unit.edge.agents import MODEL, SURE, edge_model, rows_of
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.model_loader import Loader
from upwell.edge.models.trial_and_rollback import MIN_FAILURES
from upwell.edge.request.answer import Answer
from upwell.edge.server.agent_assembly import warm_up
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.model_versions.model_switching import ModelSwitching
from upwell.shared.platform.memory import resident_bytes
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.tensors import Array

DIGITS = Path(__file__).resolve().parents[2] / "shared/upwell/tools/demo/assets/edge/digits"
CALLERS = 2


def picture() -> Mapping[str, Array]:
    return {"image": np.full((1, 8, 8, 1), 128, np.uint8)}


class Load(Repeating):
    """Callers that ask one after the other, each answer checked; `digests` are those of the models that answered."""

    def __init__(self, agent: AgentCore, inputs: Mapping[str, Array], model: str) -> None:
        super().__init__(lambda: nullcontext(self._ask), CALLERS)
        self._agent, self._inputs, self._model = agent, inputs, model
        self.answered = 0
        self.digests: set[str] = set()

    def _ask(self) -> None:
        answer = self._agent.infer(self._model, self._inputs, deadline_s=5.0)
        assert all(np.isfinite(array).all() for array in answer.outputs.values())
        self.answered += 1  # the answers themselves would be the memory that grows
        self.digests.add(answer.edge_digest)


@pytest.fixture
def versions() -> tuple[EdgeSide, EdgeSide]:
    """Two versions of one model: for ONNX Runtime and for LiteRT."""
    return EdgeSide(bundle=DIGITS, runtime="onnx", threads=1), EdgeSide(bundle=DIGITS, runtime="tflite", threads=1)


@pytest.fixture
def agent(versions: tuple[EdgeSide, EdgeSide]) -> Iterator[AgentCore]:
    with AgentCore([ServedModel("digits", Loader("digits", versions[0]).load())], None, Policy()) as agent:
        yield agent


class Verdicts:
    """A `Judge` that keeps what it is told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.proofs = 0

    def rejected(self, reason: str) -> None:
        self.reasons.append(reason)

    def proven(self) -> None:
        self.proofs += 1


@pytest.mark.parametrize("switches", [120, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.slow
def test_switching_under_load_loses_no_request_and_no_memory(
    agent: AgentCore, versions: tuple[EdgeSide, EdgeSide], switches: int
) -> None:
    switching, judge = ModelSwitching(agent, warm_up), Verdicts()
    sizes_bytes: list[int] = []
    with Load(agent, picture(), "digits") as load:
        for index in range(switches):
            edge = Loader("digits", versions[(index + 1) % 2]).load()
            switching.prepare("digits", edge)
            switching.switch("digits", edge, judge)
            del edge
            sizes_bytes.append(resident_bytes())
    assert load.errors == []
    assert judge.reasons == []
    assert len(load.digests) == 2
    settled_bytes = np.median(sizes_bytes[90:110])
    settled_mib, most_mib = settled_bytes / 2**20, max(sizes_bytes[100:]) / 2**20
    print(f"{switches} switches, {load.answered} answers, {settled_mib:.1f} MiB, at most {most_mib:.1f} MiB after that")
    assert max(sizes_bytes[100:]) <= settled_bytes * 1.1


def test_a_version_that_is_switched_away_goes_once_its_last_request_has_ended() -> None:
    gate = threading.Event()
    former, new = edge_model(gate=gate), edge_model()
    new.digest = "sha256:of-the-new-model"
    gate.set()
    answers: list[Answer] = []
    with AgentCore([ServedModel(MODEL, former)], None, Policy()) as agent:
        gate.clear()
        under_way = threading.Thread(target=lambda: answers.append(agent.infer(MODEL, rows_of(SURE))))
        under_way.start()
        while not former.scheduler.queue.ahead:  # until it runs
            pass
        assert agent.replace_edge(MODEL, new)
        gate.set()
        under_way.join()
        after = agent.infer(MODEL, rows_of(SURE))
    assert answers[0].edge_digest == former.digest
    assert after.edge_digest == new.digest


def test_nothing_refers_to_a_former_version_once_the_new_one_has_proven_itself() -> None:
    with AgentCore([ServedModel(MODEL, edge_model())], None, Policy()) as agent:
        switching = ModelSwitching(agent, warm_up_nothing)
        made: list[weakref.ref[EdgeModel]] = []
        for _ in range(5):
            edge = edge_model()
            made.append(weakref.ref(edge))
            switching.switch(MODEL, edge, Verdicts())
        del edge
        gc.collect()
        alive = [one() is not None for one in made]
        assert alive == [False, False, False, True, True]  # the one that stands in, and the one that is served


def warm_up_nothing(name: str, edge: EdgeModel) -> None:
    edge.durations_s = [0.001]


def test_a_version_that_fails_goes_back_and_every_request_is_answered() -> None:
    judge, former, bad = Verdicts(), edge_model(), edge_model(failure="bad kernel")
    bad.digest = "sha256:of-the-bad-model"
    with AgentCore([ServedModel(MODEL, former)], None, Policy()) as agent:
        ModelSwitching(agent, warm_up_nothing).switch(MODEL, bad, judge)
        assert agent.model(MODEL).edge is bad
        answers = [agent.infer(MODEL, rows_of(SURE)) for _ in range(20)]
        assert {answer.edge_digest for answer in answers} == {former.digest}
        assert agent.model(MODEL).edge is former
    assert judge.proofs == 0
    (reason,) = judge.reasons
    assert reason.startswith(f"{MIN_FAILURES} of its first {MIN_FAILURES} runs failed")


def test_a_version_on_trial_stays_so_when_it_moves_to_its_accelerator() -> None:
    judge, former, first, late = Verdicts(), edge_model(), edge_model(), edge_model(failure="bad kernel")
    final: Future[EdgeModel] = Future()
    with AgentCore([ServedModel(MODEL, first)], None, Policy()) as agent:
        switching = ModelSwitching(agent, warm_up_nothing)
        switching.try_out(MODEL, first, former, judge)
        switching.follow(MODEL, first, final)
        final.set_result(late)
        assert agent.model(MODEL).edge is late
        for _ in range(MIN_FAILURES):
            agent.infer(MODEL, rows_of(SURE))
        assert agent.model(MODEL).edge is former
    assert len(judge.reasons) == 1


def test_the_verdict_on_a_version_that_was_replaced_is_too_late() -> None:
    judge, former, new, newer = Verdicts(), edge_model(), edge_model(failure="bad kernel"), edge_model()
    with AgentCore([ServedModel(MODEL, former)], None, Policy()) as agent:
        switching = ModelSwitching(agent, warm_up_nothing)
        switching.switch(MODEL, new, judge)
        trial = new.trial
        assert trial is not None
        switching.switch(MODEL, newer, judge)
        for _ in range(MIN_FAILURES):  # requests that began on it
            trial.run(new.run_now, rows_of(SURE))
        assert agent.model(MODEL).edge is newer
    assert judge.reasons == []


def test_an_accelerator_that_is_ready_late_does_not_replace_a_newer_version() -> None:
    first, late, newer = edge_model(), edge_model(), edge_model()
    final: Future[EdgeModel] = Future()
    with AgentCore([ServedModel(MODEL, first)], None, Policy()) as agent:
        switching = ModelSwitching(agent, warm_up_nothing)
        switching.follow(MODEL, first, final)
        agent.replace_edge(MODEL, newer)
        final.set_result(late)
        assert agent.model(MODEL).edge is newer
        again: Future[EdgeModel] = Future()
        switching.follow(MODEL, newer, again)
        again.set_result(late)
        assert agent.model(MODEL).edge is late
