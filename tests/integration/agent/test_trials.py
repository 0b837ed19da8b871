"""A signed version that is worse than the one before, with golden vectors of its own making: it goes back by itself."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.faults.bundles_for_tests import Signer, archive_of
from tests.faults.repeating import Repeating
from tests.faults.scene import until
from tests.integration.agent.harness import LIMIT_S, Running, agent_process, client_of
from tests.integration.agent.versions import MODEL, health, serves, state, updates
from tests.unit.models_for_tests import save, tensor
from upwell.edge.bundle.bundle import DESCRIPTION_NAME, GOLDEN_NAME, MANIFEST_NAME, Bundle, entry_of, sizes_in
from upwell.edge.bundle.bundle_signature import sign_bundle
from upwell.edge.bundle.golden import answer_function, record_golden
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array

CLASSES = 10
VERDICT_S = 120.0
DESCRIPTION = """
version: 1
signature:
  inputs: {fp32: {kind: tensor, dtype: FP32, shape: [-1, 10]}}
  outputs: {fp32: {kind: probabilities}}
post: [{softmax: {from: scores, to: fp32}}]
"""
"""The cloud of these tests says what it is sent: so that is the truth."""


def requests(seed: int) -> Iterator[Mapping[str, Array]]:
    """The right class has a logit of 8; the first column, which is no class, says how difficult the request is."""
    draw = np.random.default_rng(seed)
    while True:
        row = np.zeros((1, CLASSES), np.float32)
        row[0, draw.integers(1, CLASSES)] = 8.0
        row[0, 0] = draw.random()
        yield {"fp32": row}


def write_model(folder: Path, *, right: float, scale: float = 1.0, one_class: bool = False, nan: bool = False) -> None:
    """Right on this share of the requests; on the others it names the next class, with logits of this scale, or NaN."""
    rolled = [0, CLASSES - 1, *range(1, CLASSES - 1)]
    constants: dict[str, Array] = {
        "first": np.array([0], np.int64),
        "rolled": np.array(rolled, np.int64),
        "right": np.array([[right]], np.float32),
        "half": np.full((1, 1), 0.5, np.float32),
        "one": np.ones((1, 1), np.float32),
        "scale": np.full((1, 1), scale, np.float32),
        "fixed": np.eye(1, CLASSES, 1, dtype=np.float32) * 20.0,
    }
    nodes = [
        helper.make_node("Gather", ["fp32", "first"], ["how"], name="how", axis=1),
        helper.make_node("Less", ["how", "right"], ["is_right"], name="is_right"),
        helper.make_node("Cast", ["is_right"], ["mask"], name="mask", to=1),
        helper.make_node("Sub", ["one", "mask"], ["rest"], name="rest"),
        helper.make_node("Gather", ["fp32", "rolled"], ["next"], name="next", axis=1),
        helper.make_node("Mul", ["fp32", "mask"], ["good"], name="good"),
        helper.make_node("Mul", ["next", "rest"], ["bad"], name="bad"),
        helper.make_node("Mul", ["bad", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Add", ["good", "scaled"], ["answer"], name="answer"),
        helper.make_node("Add", ["answer", "fixed"], ["scores"], name="collapsed")
        if one_class
        else helper.make_node("Identity", ["answer"], ["scores"], name="copy"),
    ]
    if nan:
        nodes[-1:] = [
            helper.make_node("Sub", ["mask", "half"], ["signed"], name="signed"),
            helper.make_node("Sqrt", ["signed"], ["root"], name="root"),
            helper.make_node("Add", ["answer", "root"], ["scores"], name="lost"),
        ]
    ends = [tensor("fp32", ["rows", CLASSES])], [tensor("scores", ["rows", CLASSES])]
    save(folder / "model.onnx", nodes, *ends, constants)


class Fleet:
    """Makes signed versions whose golden vectors are their own answers, and offers them to an agent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.signer = folder, Signer(folder)
        self.offered = folder / "offered"
        self.offered.mkdir()

    def bundle(self, version: int, **about: Any) -> Path:
        """An archive."""
        folder = self.folder / f"made-{version}"
        folder.mkdir()
        write_model(folder, **about)
        (folder / DESCRIPTION_NAME).write_text(DESCRIPTION)
        runtime = load_runtime(folder / "model.onnx")
        described = parse_yaml(DESCRIPTION, ModelDescription)
        processor = Processor(described, runtime.inputs, runtime.outputs, runtime.name)
        rows = [one["fp32"] for one in itertools.islice(requests(0), 80) if one["fp32"][0, 0] < 0.5]
        golden = record_golden(answer_function(processor, runtime), {"fp32": np.concatenate(rows)})
        (folder / GOLDEN_NAME).write_bytes(golden)
        manifest = new_manifest(MODEL, version, {path: entry_of(folder / path) for path in sizes_in(folder)})
        (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
        sign_bundle(Bundle(folder, manifest), self.signer.key)
        return archive_of(folder, self.folder / f"{version}.bundle.tar")

    def offer(self, version: int, **about: Any) -> None:
        """From now on this is the newest."""
        self.bundle(version, **about).rename(self.offered / f"{version}.bundle.tar")

    def config(self, cloud: str = "", policy: Mapping[str, Any] | None = None) -> Path:
        """Of an agent that came with version 1, right on 92 % of the requests."""
        edge = {"bundle": str(self.bundle(1, right=0.92)), "updates": {"source": "offered", "every": "1s"}}
        config: dict[str, Any] = {
            "version": 1,
            "agent": {
                "listen": ["127.0.0.1:0"], "metrics": "127.0.0.1:0", "state_dir": "state",
                "trust": {"keys": [str(self.signer.public)]},
            },
            "models": {MODEL: {"edge": edge}},
        }  # fmt: skip
        if cloud:
            config["cloud"] = {"endpoint": cloud}
            config["models"][MODEL]["cloud"] = {"model": "echo"}
        if policy is not None:
            (self.folder / "policy.yaml").write_text(json.dumps({"version": 1, **policy}))
            config["policy"] = "policy.yaml"
        path = self.folder / "agent.yaml"
        path.write_text(json.dumps(config))
        return path


class Callers(Repeating):
    """Threads that ask one request after the other, each another one."""

    def __init__(self, agent: Running) -> None:
        super().__init__(self._asking, 2)
        self._address = agent.addresses[0]
        self._seeds = itertools.count(1)
        self.count = 0
        self._pace = threading.Event()

    @contextmanager
    def _asking(self) -> Iterator[Callable[[], None]]:
        asked = requests(next(self._seeds))
        with client_of(self._address) as client:
            yield lambda: self._ask(client, next(asked))

    def _ask(self, client: OipClient, inputs: Mapping[str, Array]) -> None:
        client.infer(InferRequest(MODEL, inputs), LIMIT_S)
        self.count += 1
        self._pace.wait(0.005)


@pytest.fixture
def fleet(folder: Path) -> Fleet:
    return Fleet(folder)


@pytest.fixture
def cloud() -> FakeDataplane:
    return FakeDataplane()


@pytest.fixture
def cloud_address(cloud: FakeDataplane) -> Iterator[str]:
    server = start_server(cloud, ["127.0.0.1:0"], max_workers=8)
    yield server.addresses[0]
    server.stop(0.0)


HARD = {"hard": {"measure": "margin", "below": 0.5}}


def goes_back(agent: Running, fleet: Fleet, said: str) -> None:
    """Version 2 is installed, is on trial, and is given up for this reason."""
    until(lambda: updates(agent)["refusal"] == "condemned", VERDICT_S)
    assert updates(agent)["looks"]["installed"] == 1  # told by a count, since a trial may be over before anybody looks
    assert said in updates(agent)["message"]
    assert serves(agent) == 1
    until(lambda: "2" in state(fleet.folder)["condemned"], VERDICT_S)
    assert health(agent)["updates"][MODEL]["installed"] == 0
    assert not updates(agent)["on_trial"]


@pytest.mark.slow
def test_one_that_is_right_on_51_percent_and_sure_of_it_is_found_out_by_audits(
    fleet: Fleet, cloud_address: str
) -> None:
    config = fleet.config(cloud_address, {"defaults": {**HARD, "audit": 0.01}})
    with agent_process(config) as agent, Callers(agent) as callers:
        fleet.offer(2, right=0.51)
        goes_back(agent, fleet, "in audits the cloud agreed")
    assert callers.errors == []


@pytest.mark.slow
def test_one_that_is_right_as_often_stays_with_audits(fleet: Fleet, cloud: FakeDataplane, cloud_address: str) -> None:
    config = fleet.config(cloud_address, {"defaults": {**HARD, "audit": 0.01}})
    with agent_process(config) as agent, Callers(agent) as callers:
        fleet.offer(2, right=0.93)
        until(lambda: serves(agent) == 2, VERDICT_S)
        until(lambda: not updates(agent)["on_trial"], VERDICT_S)
        assert updates(agent)["refusal"] is None
        assert serves(agent) == 2
    assert callers.errors == []
    assert len(cloud.requests) >= 100


@pytest.mark.slow
def test_where_the_policy_audits_nothing_no_trial_sends_anything_up(
    fleet: Fleet, cloud: FakeDataplane, cloud_address: str
) -> None:
    config = fleet.config(cloud_address, {"defaults": HARD})
    with agent_process(config) as agent, Callers(agent):
        fleet.offer(2, right=0.92)
        until(lambda: serves(agent) == 2, VERDICT_S)
        until(lambda: not updates(agent)["on_trial"], VERDICT_S)
    assert cloud.requests == []


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"right": 0.51, "scale": 0.05}, "requests are hard only for it"),
        ({"right": 0.92, "one_class": True}, "it gave the same answer to all"),
        ({"right": 0.51, "nan": True}, "not finite"),
    ],
    ids=["unsure", "one class", "not finite"],
)
def test_without_a_cloud_what_can_be_seen_on_the_device_is(fleet: Fleet, about: dict[str, Any], said: str) -> None:
    config = fleet.config(policy={"defaults": HARD})
    with agent_process(config) as agent, Callers(agent) as callers:
        fleet.offer(2, **about)
        goes_back(agent, fleet, said)
    assert callers.errors == []
