"""What the ONNX and the TFLite quantizer share."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array, TensorSpec

Format = Literal["onnx", "tflite"]
Weights = Literal["u8", "s8"]
Target = Literal["cpu", "npu"]
Method = Literal["minmax", "entropy", "percentile"]
Interface = Literal["float", "int8"]

Arithmetic = Literal["served", "plain", "exact"]
"""How to run an int8 model: as the agent does here; as its runtime does by default; or with floating point between
the roundings, without saturation. They differ only for ONNX on some CPUs.
"""

Feed = Mapping[str, Array]
"""The tensors of one run, by the names of the model's inputs."""

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a model once on real numbers, converting int8 inputs and outputs."""

T = TypeVar("T")

_NEAR = 3


class Track(Protocol):
    """Iterates over items and shows progress."""

    def __call__(self, items: Sequence[T], doing: str) -> Iterator[T]:
        """The items, one after the other."""
        ...


@dataclass(frozen=True)
class QuantizeSettings:
    """How to quantize.

    `weights` is None for what suits the format and target. `interface` says whether the model's inputs and outputs
    stay floating point (they do by default) or become int8 too, which only TFLite models can.
    """

    weights: Weights | None = None
    target: Target = "cpu"
    method: Method = "minmax"
    interface: Interface = "float"


@dataclass(frozen=True)
class LayerNode:
    """A node: its name and operator, the values it reads and makes, the number of its weights, and its work: the
    multiply-adds of one row, where shapes tell them.
    """

    name: str
    operator: str
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    weights: int = 0
    work: float = 0.0


@dataclass(frozen=True)
class Layer:
    """The effect of quantizing on the result of one node, over the rows it was measured on.

    `error` is ‖quantized − float‖ / ‖float‖ of its result in the whole model, including the errors of earlier nodes.
    `added` estimates this node's own part: √(error² − e²), where e is the largest error among its inputs, since
    uncorrelated noise adds up like this. Either is NaN if unknown.
    """

    node: str
    operator: str
    precision: Literal["int8", "float"]
    error: float = math.nan
    added: float = math.nan

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio, 20·log₁₀(1 / error), in decibels; infinite without an error."""
        return math.inf if self.error == 0 else -20 * math.log10(self.error)


class Quantizer(Protocol):
    """One float model on its way to int8. First `calibrate`, then `quantized` as often as wanted."""

    nodes: Sequence[LayerNode]
    """The nodes that may be kept float, in the order of the graph."""
    graph: Sequence[LayerNode]
    """All nodes, in order."""
    folded: frozenset[str]
    """Names of nodes of the file that were folded into others before quantization."""
    scheme: str
    """The numeric scheme, in words."""

    def calibrate(self, feeds: Iterable[Feed]) -> None:
        """Learn the ranges of all activations. Raises `ConfigError` if the model cannot be run on the rows."""
        ...

    def quantized(self, keep_float: Sequence[str]) -> bytes:
        """The int8 model as the bytes of a file. Raises `ConfigError` if nothing can be quantized."""
        ...

    def opened(self, model: bytes, arithmetic: Arithmetic = "served") -> Run:
        """An int8 model, ready to be run in one of the ways of `Arithmetic`."""
        ...

    def layers(self, model: bytes, feeds: Iterable[Feed]) -> Sequence[Layer]:
        """Every computing node of the int8 model, in the order of the graph."""
        ...


@dataclass(frozen=True)
class FloatModel:
    """The model to quantize: its file, its inputs and outputs, and how it runs before.

    `size_bytes` includes the files of its weights.
    """

    path: Path
    format: Format
    size_bytes: int
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    run: Run


GROUPS = 32
"""The most groups of layers that are tried."""

_FEW_WEIGHTS = 64
"""A node with fewer weights is arithmetic, such as the sum over bins that turns a distribution into a distance."""


@dataclass(frozen=True)
class DetectorParts:
    """Which nodes of a detector may stay float: its `tail`, from the last layers to the results, and the `layers`
    before it, front to back, with their weights.

    `arithmetic` has the nodes without weights that are between layers, such as activations, each with the layers just
    before it and just behind it.
    """

    tail: tuple[str, ...]
    layers: tuple[LayerNode, ...]
    arithmetic: Mapping[str, tuple[frozenset[str], frozenset[str]]]

    @property
    def groups(self) -> Sequence[Sequence[LayerNode]]:
        """The layers in at most `GROUPS` groups, front to back."""
        parts = np.array_split(np.arange(len(self.layers)), min(GROUPS, len(self.layers)))
        return [[self.layers[at] for at in part.tolist()] for part in parts]

    def work(self, group: int) -> float:
        """The work of a group; a weight whose shapes are unknown is used once."""
        return sum(layer.work or layer.weights for layer in self.groups[group])

    def beside(self, quantized: Collection[int]) -> list[str]:
        """The names of the layers of all other groups than these.

        With them what lies only before or only behind such layers: float ones between quantized activations gain
        nothing.
        """
        names = [layer.name for at, group in enumerate(self.groups) if at not in quantized for layer in group]
        kept = {*names, *self.tail}
        return names + [name for name, sides in self.arithmetic.items() if any(one and one <= kept for one in sides)]


def detector_parts(quantizer: Quantizer) -> DetectorParts:
    """Boxes in pixels and scores meet in a last concatenation, where one common scale leaves a score only five
    values.

    The tail is every node from the last layers with weights to the results, including those layers, unless nothing
    would be left to quantize.
    """
    makers = {name: node for node in quantizer.graph for name in node.makes}
    read = {name for node in quantizer.graph for name in node.reads}
    waiting = [name for name in makers if name not in read]
    arithmetic: dict[str, None] = {}
    last: dict[str, None] = {}
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.name in arithmetic or node.name in last:
            continue
        if _is_layer(node):
            last[node.name] = None
        else:
            arithmetic[node.name] = None
            waiting.extend(node.reads)
    layers = [node for node in quantizer.nodes if _is_layer(node)]
    before = tuple(node for node in layers if node.name not in last)
    tail = {*arithmetic, *last} if before else {*arithmetic}
    others = {node.name for node in quantizer.nodes if not _is_layer(node)} - tail
    sides = {name: one for name, one in _sides(quantizer.graph).items() if name in others}
    kept = tuple(node.name for node in quantizer.nodes if node.name in tail)
    return DetectorParts(kept, before or tuple(layers), sides)


def _is_layer(node: LayerNode) -> bool:
    return node.weights >= _FEW_WEIGHTS


def _sides(graph: Sequence[LayerNode]) -> Mapping[str, tuple[frozenset[str], frozenset[str]]]:
    """For each node the names of the layers just before it and just behind it."""
    behind = _nearest(graph, lambda node: node.reads, lambda node: node.makes)
    ahead = _nearest(graph[::-1], lambda node: node.makes, lambda node: node.reads)
    return {node.name: (behind[node.name], ahead[node.name]) for node in graph}


def _nearest(
    graph: Sequence[LayerNode],
    comes_from: Callable[[LayerNode], Sequence[str]],
    goes_to: Callable[[LayerNode], Sequence[str]],
) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    at: dict[str, frozenset[str]] = {}
    for node in graph:
        found[node.name] = frozenset[str]().union(*(at.get(name, frozenset()) for name in comes_from(node)))
        passed = frozenset({node.name}) if _is_layer(node) else found[node.name]
        for name in goes_to(node):
            at[name] = at.get(name, frozenset()) | passed
    return found


def own_names(names: Sequence[str], instead: Sequence[str]) -> list[str]:
    """The names, with a number appended to repeated ones; `instead` for empty ones."""
    found: dict[str, None] = {}
    given = set(names)
    for name, other in zip(names, instead, strict=True):
        own = base = name or other
        count = 0
        while own in found or (own != name and own in given):
            count += 1
            own = f"{base}_{count}"
        found[own] = None
    return list(found)


def check_kept(path: Path, quantizer: Quantizer, kept: Sequence[str]) -> None:
    """Raise `ConfigError` for names in `kept` that no quantizable node has."""
    names = [node.name for node in quantizer.nodes]
    for name in kept:
        if name in names:
            continue
        if name in quantizer.folded:
            raise ConfigError.at(
                path,
                f"node {name!r} is folded into others before quantization, so it cannot be kept float",
                "--keep-float",
            )
        near = difflib.get_close_matches(name, names, _NEAR, 0.5) or names[:_NEAR]
        raise ConfigError.at(
            path, f"there is no node {name!r}; did you mean {', '.join(map(repr, near))}?", "--keep-float"
        )


def added_error(error: float, before: Iterable[float]) -> float:
    """The part of a relative error that this node adds; see `Layer.added`."""
    largest = max((one for one in before if not math.isnan(one)), default=0.0)
    return math.sqrt(max(0.0, error**2 - largest**2))
