"""Heads that come with a bundle go with it: a new version is never answered by the halves of the one before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.faults.bundles_for_tests import Signer, archive_of
from tests.faults.scene import until
from tests.integration.agent.harness import write
from tests.integration.cloud.serving import Service, serving
from upwell.edge.bundle.bundle import GOLDEN_NAME, MANIFEST_NAME, Bundle, entry_of, sizes_in
from upwell.edge.bundle.bundle_signature import sign_bundle
from upwell.edge.bundle.golden import record_golden
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import cut_at
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import write_split
from upwell.shared.routing.reasons import Route

MODEL = "shift"
VERSIONS = (1, 2, 3)
UNSPLIT = 3
"""A version whose bundle holds no halves."""
APPEARS_S = 30.0
X = np.ones((2, 4), np.float32)


def save(path: Path, version: int) -> None:
    """`y = x + 3 * version`, in two products so that there is a place to cut."""
    eye = numpy_helper.from_array(np.eye(4, dtype=np.float32), "eye")
    shift = numpy_helper.from_array(np.full(4, 3 * version, np.float32), "shift")
    nodes = [
        helper.make_node("MatMul", ["x", "eye"], ["a"], name="first"),
        helper.make_node("Add", ["a", "shift"], ["b"], name="shifted"),
        helper.make_node("MatMul", ["b", "eye"], ["y"], name="second"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [eye, shift])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Makes:
    """Signed bundles of all versions, their tails in `served`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.served, self.offered = folder, folder / "served", folder / "offered"
        self.signer = Signer(folder)
        self.served.mkdir()
        self.offered.mkdir()
        self.archives = {version: self._bundle(version) for version in VERSIONS}

    def _bundle(self, version: int) -> Path:
        folder = self.folder / f"v{version}"
        folder.mkdir()
        save(folder / "model.onnx", version)
        if version != UNSPLIT:
            graph = contract(read_graph(folder / "model.onnx"))
            whole = UnsplitModel.open(folder / "model.onnx", graph, MODEL)
            cut = cut_at("1", graph)
            write_split(folder / "split", whole, [(cut, whole.divide(cut.edge))])
            for tail in (folder / "split" / "tails").iterdir():
                tail.rename(self.served / tail.name)  # a device has no use for it
        shift = np.float32(3 * version)
        golden = record_golden(lambda inputs: {"y": inputs["x"] + shift}, {"x": np.ones((4, 4), np.float32)})
        (folder / GOLDEN_NAME).write_bytes(golden)
        manifest = new_manifest(MODEL, version, {path: entry_of(folder / path) for path in sizes_in(folder)})
        (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
        sign_bundle(Bundle(folder, manifest), self.signer.key)
        return archive_of(folder, self.folder / f"v{version}.bundle.tar")

    def offer(self, version: int) -> None:
        for path in self.offered.iterdir():
            path.unlink()
        os.link(self.archives[version], self.offered / self.archives[version].name)

    def config(self, address: str, **edge: Any) -> Path:
        policy = {"defaults": {"deadline": "5s"}, "rules": [{"name": "all", "match": {}, "route": "split"}]}
        (self.folder / "state").mkdir(exist_ok=True)
        about = {"bundle": str(self.archives[1]), "updates": {"source": str(self.offered), "every": "1s"}, **edge}
        return write(self.folder, "agent.yaml", {
            "agent": {"state_dir": str(self.folder / "state"), "trust": {"keys": [str(self.signer.public)]}},
            "cloud": {"endpoint": address},
            "policy": str(write(self.folder, "policy.yaml", policy)),
            "models": {MODEL: {"edge": about, "split": "auto"}},
        })  # fmt: skip


@pytest.fixture(scope="module")
def makes(tmp_path_factory: pytest.TempPathFactory) -> Makes:
    return Makes(tmp_path_factory.mktemp("updates"))


@pytest.fixture(scope="module")
def service(makes: Makes) -> Iterator[Service]:
    with serving("--models", makes.served) as service:
        yield service


def serves(agent: AgentCore) -> int:
    edge = agent.model(MODEL).edge
    assert edge is not None
    assert edge.source.bundle is not None
    return edge.source.bundle.version


def answered(agent: AgentCore) -> tuple[Route, int]:
    """Who answers, and with which version's weights."""
    answer = agent.infer(MODEL, {"x": X}, deadline_s=10.0)
    return answer.route, round(float(answer.outputs["y"][0, 0] - 1.0)) // 3


def test_a_new_version_brings_its_own_heads_or_none(makes: Makes, service: Service) -> None:
    with embedded_agent(makes.config(service.address)) as agent:
        assert answered(agent) == (Route.SPLIT, 1)
        for version in (2, UNSPLIT):
            makes.offer(version)
            until(lambda: serves(agent) == version, APPEARS_S)  # noqa: B023  (called in this round alone)
            assert answered(agent) == (Route.EDGE if version == UNSPLIT else Route.SPLIT, version)
            served = agent.model(MODEL)
            assert served.edge is not None
            assert all(head.edge.scheduler is served.edge.scheduler for head in served.heads)
    with embedded_agent(makes.config(service.address)) as agent:
        assert answered(agent) == (Route.EDGE, UNSPLIT)
