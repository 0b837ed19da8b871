"""The coverage of a model by an accelerator: node by node, with an estimate of the work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCover:
    """One node of the model as the runtime sees it.

    `partition` is the index of the accelerator's partition that contains it, or None on the CPU. `work` is its
    estimated number of multiplications (elements written, if it multiplies nothing), NaN if shapes are unknown.
    """

    name: str
    operator: str
    partition: int | None
    work: float = math.nan


@dataclass(frozen=True)
class Coverage:
    """Where each node of a model runs on one accelerator.

    `source` is the evidence: `graph assignment`, `profile` (ONNX Runtime), `delegate walk`, `compiled model` or
    `partition plan` (TFLite). `nodes` are in the order of the model's main graph.
    """

    accelerator: str
    runtime: str
    source: str
    nodes: Sequence[NodeCover]

    @property
    def taken(self) -> Sequence[NodeCover]:
        """The nodes on the accelerator."""
        return [node for node in self.nodes if node.partition is not None]

    @property
    def left_on_cpu(self) -> Sequence[NodeCover]:
        """The nodes on the CPU."""
        return [node for node in self.nodes if node.partition is None]

    @property
    def partitions(self) -> int:
        """The number of partitions on the accelerator, each with a transfer there and back."""
        return len({node.partition for node in self.taken})

    @property
    def node_share(self) -> float:
        """Share of the nodes on the accelerator; NaN for a model without nodes."""
        return len(self.taken) / len(self.nodes) if self.nodes else math.nan

    @property
    def work_share(self) -> float:
        """Share of the estimated work on the accelerator; NaN if the work of some node is unknown."""
        total = sum(node.work for node in self.nodes)
        return sum(node.work for node in self.taken) / total if total > 0 else math.nan
