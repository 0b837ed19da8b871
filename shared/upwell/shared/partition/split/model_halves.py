"""The results of splitting: two models in the format of the whole, and the tensors between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from upwell.shared.partition.model_graph import Tensor

DIGEST_LENGTH = 8


@dataclass(frozen=True)
class Part:
    """The contents of a half: operators by position in the file, in topological order, inputs and outputs by name.

    `cut` are the tensors from head to tail; they come first among the head's outputs and the tail's inputs.
    """

    side: str
    operators: Sequence[int]
    inputs: Sequence[str]
    outputs: Sequence[str]
    cut: Sequence[str]


@dataclass(frozen=True)
class ModelHalf:
    """One half as files by name: `model.onnx` or `model.tflite` first, external weights after it.

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

    def write(self, folder: Path) -> Path:
        """Write its files into a folder; returns the model's path."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        return folder / next(iter(self.files))

    @property
    def size_bytes(self) -> int:
        """The size of all its files."""
        return sum(map(len, self.files.values()))


@dataclass(frozen=True)
class Halves:
    """Head and tail of one cut. `cut` are the tensors that the head gives and the tail takes, by name, in order.

    The head's outputs are the cut tensors and then the outputs of the whole that it makes by itself; the tail takes
    inputs of the model under their own names, and the head does not give them.
    """

    head: ModelHalf
    tail: ModelHalf
    cut: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest of both halves: it changes when either does, so that a head only ever meets its own tail."""
        return hashlib.sha256(f"{self.head.digest}{self.tail.digest}".encode()).hexdigest()[:DIGEST_LENGTH]


def tail_name(model: str, cut_name: str, digest: str) -> str:
    """The model name of the tail, such as `resnet--c17--1a2b3c4d`."""
    return f"{model}--{cut_name}--{digest}"
