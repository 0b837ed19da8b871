"""Where a model runs: its coverage by an accelerator node by node, and whether that will do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.runtime_options import AcceleratorOptions
from upwell.shared.errors import ModelFailed
from upwell.shared.value_classes import value_class

_NAMED_NODES = 10


class AcceleratorNotUsable(Exception):
    """The accelerator cannot be used here for this model; the text says why."""


class AcceleratorFailed(ModelFailed):
    """A run on the accelerator failed, because of it or of the request; the text is the runtime's own.

    `is_of_shapes` says whether the shapes of the inputs are why; None if nobody knows.
    """

    def __init__(self, text: str, *, is_of_shapes: bool | None = False) -> None:
        super().__init__(text)
        self.is_of_shapes = is_of_shapes


def judge(wanted: AcceleratorOptions, placement: Placement) -> None:
    """Raise `AcceleratorNotUsable` unless the evidence shows a node on the accelerator, or every node for `must`.

    For `must` the text gives the number of nodes left on the CPU and names the first ten.
    """
    left = placement.left_on_cpu
    if wanted.require == "must" and left:
        raise AcceleratorNotUsable(
            f"accelerator {wanted.provider!r} is required but {left_behind(left, placement.nodes)}"
        )
    if not placement.nodes_on_accelerator:
        raise AcceleratorNotUsable(placement.reason or f"{wanted.provider} took none of the {placement.nodes} nodes")


def left_behind(left: tuple[str, ...], nodes: int) -> str:
    """`leaves 2 of 9 nodes on the CPU: a, b`; at most ten are named."""
    more = f" and {len(left) - _NAMED_NODES} more" if len(left) > _NAMED_NODES else ""
    return f"leaves {len(left)} of {nodes} nodes on the CPU: {', '.join(left[:_NAMED_NODES])}{more}"


def from_nodes(wanted: AcceleratorOptions, nodes: int, left_on_cpu: tuple[str, ...]) -> Placement:
    """The placement shown by evidence: all of `nodes` except `left_on_cpu` are on the accelerator."""
    return Placement(wanted.provider, nodes, nodes - len(left_on_cpu), left_on_cpu)


@value_class
class NodeCover:
    """One node of the model as the runtime sees it.

    `partition` is the index of the accelerator's partition that contains it, or None on the CPU. `work` is its
    estimated number of multiplications (elements written, if it multiplies nothing), NaN if shapes are unknown.
    """

    name: str
    operator: str
    partition: int | None
    work: float = math.nan


@value_class
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
