"""What a placement means for the model: on the accelerator, not usable there, or lost while running."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions

_NAMED_NODES = 10

_log = logging.getLogger(__name__)


class AcceleratorNotUsable(Exception):
    """The accelerator cannot be used here for this model; the text says why."""


def judge(wanted: AcceleratorOptions, placement: Placement) -> None:
    """Raise `AcceleratorNotUsable` unless the evidence shows a node on the accelerator, or every node for `must`.

    For `must` the text names the first ten nodes that were left on the CPU and says how many there are.
    """
    left = placement.left_on_cpu
    if wanted.require == "must" and left:
        raise AcceleratorNotUsable(
            f"accelerator {wanted.provider!r} is a must and {left_behind(left, placement.nodes)}"
        )
    if not placement.nodes_on_accelerator:
        raise AcceleratorNotUsable(placement.reason or f"{wanted.provider} took none of the {placement.nodes} nodes")


def left_behind(left: tuple[str, ...], nodes: int) -> str:
    """`leaves 2 of 9 nodes on the CPU: a, b`; ten are named at most."""
    more = f" and {len(left) - _NAMED_NODES} more" if len(left) > _NAMED_NODES else ""
    return f"leaves {len(left)} of {nodes} nodes on the CPU: {', '.join(left[:_NAMED_NODES])}{more}"


def from_nodes(wanted: AcceleratorOptions, nodes: int, left_on_cpu: tuple[str, ...]) -> Placement:
    """The placement that evidence shows: all of `nodes` but `left_on_cpu` are on the accelerator."""
    return Placement(wanted.provider, nodes, nodes - len(left_on_cpu), left_on_cpu)


def lost(path: Path, placement: Placement, failure: str) -> Placement:
    """The placement after the accelerator failed in a run of the model at `path`, which goes on on the CPU.

    It is logged here, since it happens while nobody looks.
    """
    reason = f"{placement.accelerator} failed while running, the model goes on on the CPU: {failure}"
    _log.warning("%s: %s", path, reason)
    return replace(placement, nodes_on_accelerator=0, left_on_cpu=(), reason=reason)
