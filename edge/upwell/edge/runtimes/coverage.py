"""What of a model an accelerator takes: node by node, with an estimate of the work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCover:
    """One node of the model as the runtime sees it.

    `partition` is the index of the accelerator's partition that took it, or None on the CPU. `work` is its estimated
    number of multiplications (elements written where it multiplies nothing), NaN where shapes are not known.
    """

    name: str
    operator: str
    partition: int | None
    work: float = math.nan


@dataclass(frozen=True)
class Coverage:
    """Where each node of a model runs on one accelerator.

    `source` says how that is known: `graph assignment`, `profile` (ONNX Runtime), `delegate walk`, `compiled model` or
    `partition plan` (TFLite). `nodes` are in the order of the model's main graph.
    """

    accelerator: str
    runtime: str
    source: str
    nodes: Sequence[NodeCover]

    @property
    def taken(self) -> Sequence[NodeCover]:
        """Those on the accelerator."""
        return [node for node in self.nodes if node.partition is not None]

    @property
    def left_on_cpu(self) -> Sequence[NodeCover]:
        """The others."""
        return [node for node in self.nodes if node.partition is None]

    @property
    def partitions(self) -> int:
        """How many parts of the graph the accelerator runs, each with a hop there and back."""
        return len({node.partition for node in self.taken})

    @property
    def node_share(self) -> float:
        """Share of the nodes on the accelerator; NaN for a model without nodes."""
        return len(self.taken) / len(self.nodes) if self.nodes else math.nan

    @property
    def work_share(self) -> float:
        """Share of the estimated work on the accelerator; NaN where the work of some node is not known."""
        total = sum(node.work for node in self.nodes)
        return sum(node.work for node in self.taken) / total if total > 0 else math.nan
