"""The routes `split` and `exit`: heads on the device, tails on a real service, and what stands in for either."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.faults.proxy import Proxy
from tests.integration.agent.harness import write
from tests.integration.agent.splits import CUTS, INPUT, MODEL, OUTPUT, Split, by_split, cut_names, picture
from tests.integration.cloud.serving import Service
from upwell.edge.request.answer import Answer
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.partition.split.split_writer import half_paths
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Plan, Reason, Route
from upwell.shared.tensors import Array


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split(tmp_path_factory.mktemp("split"))


@pytest.fixture(scope="module")
def service(split: Split) -> Iterator[Service]:
    with split.service(max_batch=8) as service:
        yield service


def near(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))


def facts(answer: Answer) -> tuple[Route, Plan, Reason, bool]:
    return answer.route, answer.plan, answer.reason, answer.degraded


def test_head_and_tail_answer_together_as_the_whole_does(split: Split, service: Service) -> None:
    with split.agent(service.address, by_split()) as agent:
        for seed in range(6):
            answer = agent.infer(MODEL, picture(seed), deadline_s=5.0)
            assert facts(answer) == (Route.SPLIT, Plan.SPLIT, Reason.RULE, False)
            assert answer.cut in cut_names(split)
            assert near(answer.outputs[OUTPUT], split.scores(picture(seed)))
            assert answer.timings.edge_s is not None
            assert answer.timings.cloud_compute_s is not None
            parameters = answer.parameters()
            assert parameters["upwell.route"] == "split"
            assert parameters["upwell.cut"] == answer.cut
            assert str(parameters["upwell.edge_digest"]).startswith("sha256:")
            assert str(parameters["upwell.cloud_digest"]).startswith("sha256:")


@pytest.mark.parametrize("nodes", CUTS)
def test_every_cut_gives_the_wholes_answer_for_several_rows(split: Split, service: Service, nodes: int) -> None:
    """Only one head fits, so that it is the one that is used."""
    folder = split.folder / f"only-{nodes}"
    if not folder.exists():
        shutil.copytree(split.folder / "split", folder)
        text = json.loads((folder / "split.json").read_text())
        text["cuts"] = [cut for cut in text["cuts"] if cut["name"] == f"c{nodes}"]
        (folder / "split.json").write_text(json.dumps(text))
    with split.agent(service.address, by_split(), split=str(folder), cloud=False) as agent:
        answer = agent.infer(MODEL, picture(3, rows=4), deadline_s=5.0)
        assert (answer.route, answer.cut) == (Route.SPLIT, f"c{nodes}")
        assert near(answer.outputs[OUTPUT], split.scores(picture(3, rows=4)))


def test_a_model_without_an_edge_side_is_split_too(split: Split, service: Service) -> None:
    policy = {"defaults": {"deadline": "5s"}}
    folder = str(split.folder / "split")
    with split.agent(service.address, policy, edge=False, cloud=False, split=folder) as agent:
        answer = agent.infer(MODEL, picture(1, rows=2), deadline_s=5.0)
        assert facts(answer) == (Route.SPLIT, Plan.SPLIT, Reason.NO_EDGE, False)
        assert near(answer.outputs[OUTPUT], split.scores(picture(1, rows=2)))


def test_the_device_stands_in_when_the_cloud_dies(split: Split) -> None:
    with split.service() as service, split.agent(service.address, by_split("300ms")) as agent:
        agent.infer(MODEL, picture(), deadline_s=5.0)
        assert agent.infer(MODEL, picture()).route is Route.SPLIT
        service.process.kill()
        service.process.wait()
        reasons = set()
        for seed in range(8):
            answer = agent.infer(MODEL, picture(seed))
            assert (answer.route, answer.plan is not Plan.CLOUD, answer.degraded) == (Route.EDGE, True, True)
            assert near(answer.outputs[OUTPUT], split.scores(picture(seed)))
            reasons.add(answer.reason)
        assert reasons <= {Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_DEADLINE, Reason.BREAKER_OPEN, Reason.CLOUD_TOO_SLOW}


def test_a_tail_that_is_not_there_leaves_the_other_cuts(split: Split, tmp_path: Path) -> None:
    """The heads of another version of the model never reach these tails: the name carries both halves' digest."""
    with split.service() as service:
        cuts = {cut.name: cut.tail for cut in split.facts.cuts}
        folder = tmp_path / "split"
        shutil.copytree(split.folder / "split", folder)
        text = json.loads((folder / "split.json").read_text())
        for cut in text["cuts"][:-1]:
            cut["tail"] = cut["tail"][:-8] + "00000000"
        (folder / "split.json").write_text(json.dumps(text))
        with split.agent(service.address, by_split(), split=str(folder)) as agent:
            for seed in range(12):
                answer = agent.infer(MODEL, picture(seed), deadline_s=5.0)
                assert near(answer.outputs[OUTPUT], split.scores(picture(seed)))
                assert answer.route is Route.SPLIT or answer.reason is Reason.CLOUD_MODEL_MISSING
            assert facts(answer)[:3] == (Route.SPLIT, Plan.SPLIT, Reason.RULE)
            assert cuts[answer.cut] == split.facts.cuts[-1].tail


def test_a_head_that_fails_leaves_the_whole(split: Split, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with split.agent(service.address, by_split()) as agent:
        for head in agent.model(MODEL).heads:
            monkeypatch.setattr(head.edge.runtime, "run", _broken)
        answer = agent.infer(MODEL, picture(), deadline_s=5.0)
        assert (answer.route, answer.reason) == (Route.EDGE, Reason.NO_SPLIT)
        assert near(answer.outputs[OUTPUT], split.scores(picture()))
    with split.agent(service.address, by_split(), edge=False, split=str(split.folder / "split")) as agent:
        for head in agent.model(MODEL).heads:
            monkeypatch.setattr(head.edge.runtime, "run", _broken)
        answer = agent.infer(MODEL, picture(), deadline_s=5.0)
        assert (answer.route, near(answer.outputs[OUTPUT], split.scores(picture()))) == (Route.CLOUD, True)


@pytest.mark.parametrize("denies", [False, True])
def test_what_a_head_gives_stays_where_a_deny_comes_while_it_runs(
    split: Split, service: Service, monkeypatch: pytest.MonkeyPatch, denies: bool
) -> None:
    deny = Policy.model_validate({"version": 1, "rules": [{"name": "private", "match": {}, "egress": "deny"}]})
    # The rule for others keeps the agent from asking for the model's metadata at start.
    policy = by_split()
    policy["rules"].insert(0, {"name": "others", "match": {"tags": {"of": "others"}}, "egress": "deny"})
    with Proxy(service.address) as proxy, split.agent(proxy.address, policy) as agent:

        def running(run: Any) -> Any:
            def wrapped(inputs: Any) -> Any:
                if denies:
                    agent.router.replace_policy(deny)
                return run(inputs)

            return wrapped

        for head in agent.model(MODEL).heads:
            monkeypatch.setattr(head.edge.runtime, "run", running(head.edge.runtime.run))
        answer = agent.infer(MODEL, picture(), deadline_s=5.0)
        assert near(answer.outputs[OUTPUT], split.scores(picture()))
        if denies:
            assert facts(answer) == (Route.EDGE, Plan.SPLIT, Reason.EGRESS_DENIED, False)
            assert proxy.accepted == 0
        else:
            assert facts(answer) == (Route.SPLIT, Plan.SPLIT, Reason.RULE, False)


def _broken(_: Any) -> Any:
    raise ModelFailed("the head is broken")


def test_the_same_cut_is_batched_in_the_cloud(split: Split, service: Service) -> None:
    with split.agent(service.address, by_split(), edge=False, cloud=False, split=str(split.folder / "split")) as agent:
        agent.infer(MODEL, picture(), deadline_s=5.0)
        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda seed: agent.infer(MODEL, picture(seed), deadline_s=5.0), range(32)))
        for seed, answer in enumerate(answers):
            assert answer.route is Route.SPLIT
            assert near(answer.outputs[OUTPUT], split.scores(picture(seed)))


def test_heads_that_do_not_fit_the_memory_are_left(split: Split, service: Service) -> None:
    folder = split.folder / "split"
    first = half_paths(folder, split.facts, split.facts.cuts[0])[0].stat().st_size
    with split.agent(service.address, by_split(), split={"plan": str(folder), "memory": f"{first - 1}B"}) as agent:
        assert agent.model(MODEL).heads == ()
        assert agent.infer(MODEL, picture(), deadline_s=5.0).reason is Reason.NO_SPLIT
    with split.agent(service.address, by_split(), split={"plan": str(folder)}) as agent:
        assert [head.cut.name for head in agent.model(MODEL).heads] == cut_names(split)
        assert {one.model for one in agent.health()} == {MODEL, *(f"{MODEL}/{name}" for name in cut_names(split))}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text["cuts"][0].update(head="../../model.onnx"), "expected a file in"),
        (lambda text: text["cuts"][0].update(head="heads/none/model.onnx"), "expected a file in"),
        (lambda text: text.update(cuts=[]), "cuts"),
        (lambda text: text.update(version=2), "version"),
    ],
    ids=["outside", "missing", "empty", "version"],
)
def test_a_folder_that_is_wrong_is_refused_with_its_place(split: Split, tmp_path: Path, damage: Any, says: str) -> None:
    folder = tmp_path / "split"
    shutil.copytree(split.folder / "split", folder)
    text = json.loads((folder / "split.json").read_text())
    damage(text)
    (folder / "split.json").write_text(json.dumps(text))
    with pytest.raises(ConfigError, match=says), split.agent("127.0.0.1:1", by_split(), split=str(folder)):
        pass


def test_a_cut_whose_head_does_not_fit_its_tensors_is_left(split: Split, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    shutil.copytree(split.folder / "split", folder)
    text = json.loads((folder / "split.json").read_text())
    text["cuts"][0]["tensors"][0]["name"] = "elsewhere"
    (folder / text["cuts"][1]["head"]).write_bytes(b"no model")
    (folder / "split.json").write_text(json.dumps(text))
    with split.agent("127.0.0.1:1", by_split(), split=str(folder)) as agent:
        assert [head.cut.name for head in agent.model(MODEL).heads] == cut_names(split)[2:]


def early_exit(split: Split, folder: Path) -> tuple[Path, str, list[str]]:
    """A head with an early answer of its own: a random layer stands for a learned exit."""
    cut = split.facts.cuts[1]
    model = onnx.load(half_paths(split.folder / "split", split.facts, cut)[0])
    names = [tensor.name for tensor in cut.tensors]
    graph = model.graph
    graph.node.append(helper.make_node("ReduceMean", [names[0]], ["early"], axes=[2, 3], keepdims=0, name="early"))
    weights = np.random.default_rng(0).normal(0, 0.01, (cut.tensors[0].shape[1], 10)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weights, "exit.weights"))
    graph.node.append(helper.make_node("MatMul", ["early", "exit.weights"], ["exit"], name="exit"))
    graph.node.append(helper.make_node("Softmax", ["exit"], [OUTPUT], name="early_scores"))
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["rows", 10]))
    path = folder / "early.onnx"
    onnx.save(model, path)
    return path, cut.tail, names


@pytest.mark.parametrize("below", [0.0, 1.0], ids=["sure", "unsure"])
def test_an_early_exit_answers_and_the_tail_is_asked_where_it_is_unsure(
    split: Split, service: Service, tmp_path: Path, below: float
) -> None:
    path, tail, names = early_exit(split, tmp_path)
    given = {INPUT: {"kind": "tensor", "dtype": "FP32", "shape": [-1, 1, 8, 8]}}
    gives = {OUTPUT: {"kind": "probabilities"}, **{name: {"kind": "tensor"} for name in names}}
    (tmp_path / "early.yaml").write_text(json.dumps({"version": 1, "signature": {"inputs": given, "outputs": gives}}))
    policy = {"defaults": {"deadline": "5s", "hard": {"measure": "max_prob", "below": below}}}
    config = write(tmp_path, "agent.yaml", {
        "cloud": {"endpoint": service.address},
        "policy": str(write(tmp_path, "policy.yaml", policy)),
        "models": {MODEL: {"edge": {"file": str(path), "exits": names}, "cloud": {"model": tail}}},
    })  # fmt: skip
    with embedded_agent(config) as agent:
        answer = agent.infer(MODEL, picture(2), deadline_s=5.0)
        assert set(answer.outputs) == {OUTPUT}
        if below == 0.0:
            assert facts(answer) == (Route.EXIT, Plan.EXIT, Reason.EASY, False)
        else:
            assert facts(answer)[:2] == (Route.SPLIT, Plan.EXIT)
            assert near(answer.outputs[OUTPUT], split.scores(picture(2)))
