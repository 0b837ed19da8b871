"""What splitting gives: two models of the format of the whole, and the tensors between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Graph, Tensor

DIGEST_LENGTH = 8


@dataclass(frozen=True)
class ModelHalf:
    """One half as the files it consists of, by name: `model.onnx` or `model.tflite` first, external weights after it.

    `inputs` and `outputs` are the tensors of the model's own graph, in its order.
    """

    files: Mapping[str, bytes]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over its files, in hex."""
        whole = hashlib.sha256()
        for name, data in self.files.items():
            whole.update(f"{name} {len(data)}\n".encode())
            whole.update(data)
        return whole.hexdigest()

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(map(len, self.files.values()))


@dataclass(frozen=True)
class Halves:
    """Head and tail of one cut. `cut` are the tensors that the head gives and the tail takes, by name, in order.

    The head's outputs are the cut tensors and then those outputs of the whole that it makes by itself; inputs of the
    model that the tail reads are taken by the tail under their own names and are no outputs of the head.
    """

    head: ModelHalf
    tail: ModelHalf
    cut: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of both halves: it changes where either does, so that a head only ever meets its own tail."""
        return hashlib.sha256(f"{self.head.digest}{self.tail.digest}".encode()).hexdigest()[:DIGEST_LENGTH]


def check_cut(path: Path, graph: Graph, edge: frozenset[int]) -> None:
    """Raise `ConfigError`, naming the model at `path`, where the nodes in `edge` are no head of a legal cut."""
    if not edge:
        raise ConfigError.at(path, "the head would be empty: nothing is on the edge side")
    if edge.issuperset(range(len(graph.nodes))):
        raise ConfigError.at(path, "the tail would be empty: everything is on the edge side")
    if not graph.is_downset(edge):
        raise ConfigError.at(path, "not a cut: the edge side reads what the other side makes")
    unsized = [repr(name) for name in graph.crossing(edge) if not graph.tensors[name].is_sized]
    if unsized:
        raise ConfigError.at(path, f"cannot be cut here: the size of {', '.join(unsized)} is not known")


def tail_name(model: str, cut_name: str, digest: str) -> str:
    """The name under which the tail is served, such as `resnet--c17--1a2b3c4d`."""
    return f"{model}--{cut_name}--{digest}"
