"""What a placement means for the model: good enough, a reason not to start, or lost while running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions
from upwell.shared.errors import ConfigError, Problem

Opened = TypeVar("Opened")

_NAMED_NODES = 10


class AcceleratorNotUsable(Exception):
    """The accelerator cannot be used here; the text says why."""


def judge(path: Path, wanted: AcceleratorOptions, placement: Placement) -> None:
    """Raise `ConfigError` where `must` was asked for and the evidence does not show every node there.

    The error names the first ten nodes that were left on the CPU and says how many there are.
    """
    if wanted.require != "must" or (placement.nodes and placement.nodes_on_accelerator == placement.nodes):
        return
    must = f"accelerator {wanted.provider!r} is a must"
    left = placement.left_on_cpu
    if not left:
        raise ConfigError.at(path, f"{must} and cannot be used: {placement.reason}")
    more = f" and {len(left) - _NAMED_NODES} more" if len(left) > _NAMED_NODES else ""
    names = ", ".join(left[:_NAMED_NODES])
    raise ConfigError.at(path, f"{must} and leaves {len(left)} of {placement.nodes} nodes on the CPU: {names}{more}")


def unused(wanted: AcceleratorOptions, reason: str, nodes: int = 0) -> Placement:
    """The placement of a model of `nodes` nodes that runs on the CPU although an accelerator was asked for."""
    return Placement(accelerator=wanted.provider, nodes=nodes, reason=reason)


def from_nodes(wanted: AcceleratorOptions, nodes: int, left_on_cpu: tuple[str, ...]) -> Placement:
    """The placement that evidence shows: all of `nodes` but `left_on_cpu` are on the accelerator."""
    taken = nodes - len(left_on_cpu)
    reason = "" if taken else f"{wanted.provider} took none of the {nodes} nodes"
    return Placement(wanted.provider, nodes, taken, left_on_cpu, reason)


def open_without(path: Path, placement: Placement, open_on_cpu: Callable[[], Opened]) -> Opened:
    """Open the model on the CPU after its accelerator turned out not to be usable.

    Where the CPU cannot run it either (a model compiled for the accelerator), the `ConfigError` says both.
    """
    try:
        return open_on_cpu()
    except ConfigError as error:
        why = Problem(
            path, None, None, "", f"and accelerator {placement.accelerator!r} is not used: {placement.reason}"
        )
        raise ConfigError([*error.problems, why]) from None


def lost(placement: Placement, failure: str) -> Placement:
    """The placement after the accelerator failed in a run and the model went on on the CPU."""
    reason = f"{placement.accelerator} failed while running, the model goes on on the CPU: {failure}"
    return replace(placement, nodes_on_accelerator=0, left_on_cpu=(), reason=reason)
