"""A small network split at several cuts, a service with its tails and the whole, and agents over it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tests.integration.agent.harness import write
from tests.integration.cloud.serving import Service, serving
from tests.models.residual_digits import build_residual_digits
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import ChosenCut
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import write_split
from upwell.shared.tensors import Array

MODEL = "residual"
INPUT, OUTPUT = "picture", "scores"
CUTS = (2, 5, 7)
"""Nodes on the device: a cut where two tensors cross, one where two do, and one where few bytes do."""


def picture(seed: int = 0, rows: int = 1) -> Mapping[str, Array]:
    """A request."""
    return {INPUT: np.random.default_rng(seed).random((rows, 1, 8, 8), np.float32)}


class Split:
    """`model.onnx`, `split/` with its halves, and `served/` with the tails and the whole, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model.onnx"
        onnx.save(build_residual_digits(dynamic_batch=True), self.model)
        whole = UnsplitModel.open(self.model, contract(read_graph(self.model)), MODEL)
        cuts = (ChosenCut(f"c{nodes}", frozenset(range(nodes)), 0.001 * nodes, 0.001) for nodes in CUTS)
        self.facts = write_split(folder / "split", whole, ((cut, whole.divide(cut.edge)) for cut in cuts)).facts
        self.served = folder / "served"
        shutil.copytree(folder / "split" / "tails", self.served)
        place = self.served / MODEL / "1"
        place.mkdir(parents=True)
        shutil.copy(self.model, place / "model.onnx")
        self._session = onnxruntime.InferenceSession(self.model, providers=["CPUExecutionProvider"])

    def scores(self, inputs: Mapping[str, Array]) -> Array:
        """What the whole model says."""
        found: Array = self._session.run(None, dict(inputs))[0]
        return found

    @contextmanager
    def service(self, **settings: Any) -> Iterator[Service]:
        """The tails and the whole, served."""
        config = write(self.folder, "cloud.yaml", {
            "serve": {"listen": ["127.0.0.1:0"], "models": str(self.served)}, "defaults": settings})  # fmt: skip
        with serving("-c", config, "--listen", "127.0.0.1:0") as service:
            yield service

    @contextmanager
    def agent(
        self,
        address: str,
        policy: Mapping[str, Any],
        *,
        edge: bool = True,
        cloud: bool = True,
        split: Any = "auto",
    ) -> Iterator[AgentCore]:
        """An agent with heads; its cloud is at `address`."""
        model: dict[str, Any] = {"split": split}
        if edge:
            model["edge"] = {"file": str(self.model), "threads": 1, "instances": 1}
        if cloud:
            model["cloud"] = {"model": MODEL}
        config = write(self.folder, "agent.yaml", {
            "agent": {"name": "device"},
            "cloud": {"endpoint": address},
            "policy": str(write(self.folder, "policy.yaml", policy)),
            "models": {MODEL: model},
        })  # fmt: skip
        with embedded_agent(config) as agent:
            yield agent


def by_split(deadline: str = "5s") -> dict[str, Any]:
    """A policy in which every request is split."""
    return {"defaults": {"deadline": deadline}, "rules": [{"name": "all", "match": {}, "route": "split"}]}


def cut_names(split: Split) -> Sequence[str]:
    """In the order of the folder."""
    names: list[str] = [cut["name"] for cut in json.loads((split.folder / "split" / "split.json").read_text())["cuts"]]
    return names
