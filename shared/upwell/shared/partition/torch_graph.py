"""A program of torch.export: as a planner graph of ATen operators with ONNX's names, and its halves, programs too.

Weights are constants, as are results of operators on constants alone; a half has only the weights that it reads. The
torch engine serves a tail directly. A head becomes ONNX or TFLite before it is written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from upwell.shared.errors import ConfigError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.operator_work import work_of
from upwell.shared.formats.pt2_archive import ProgramFile
from upwell.shared.formats.torch_program import (
    FILE_NAME,
    OPERATORS,
    BadProgram,
    Program,
    ProgramNode,
    ProgramTensor,
    packed,
)
from upwell.shared.partition.model_graph import Graph, Node, Tensor, size_of
from upwell.shared.partition.split.model_halves import ModelHalf, Part


def open_program(path: Path) -> ProgramFile:
    """The program in the `.pt2` file at `path`. Raises `ConfigError`."""
    try:
        return ProgramFile.read(path)
    except BadProgram as error:
        raise ConfigError.at(path, f"not a program that can be split: {error}") from None
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None


def read_torch(path: Path) -> Graph:
    """Read the `.pt2` file at `path` as a graph; its weights are not read. Raises `ConfigError`."""
    file = open_program(path)
    weights = set(file.program.weights)
    nodes = []
    for at, node in enumerate(file.program.nodes):
        inputs = tuple(name for name in node.reads if name not in weights)
        outputs = tuple(filter(None, node.outputs))
        is_free = not inputs and not {one.name for one in file.program.outputs}.intersection(outputs)
        if is_free:
            weights.update(outputs)
        name = outputs[0] if outputs else f"{node.operator}_{at}"
        nodes.append(
            Node(name, OPERATORS[node.operator], inputs, outputs, (at,), 0.0 if is_free else _work(node, file), is_free)
        )
    tensors = {name: Tensor(one.name, one.datatype, one.shape) for name, one in file.tensors.items()}
    ends = ((one.name for one in side) for side in (file.program.inputs, file.program.outputs))
    return Graph("torch", tuple(nodes), tensors, *map(tuple, ends))


_FIRST_OF_LINEAR = {"Linear": "Conv", "AddMM": "MatMul"}
"""Treats each output element of a linear layer as using a row of its weights, like a filter of a convolution."""


def _work(node: ProgramNode, file: ProgramFile) -> float:
    word = OPERATORS[node.operator]
    reads = node.reads[1:] if word == "AddMM" else node.reads
    inputs, outputs = _shapes(reads, file), _shapes([name for name in node.outputs if name], file)
    found = work_of(_FIRST_OF_LINEAR.get(word, word), inputs, outputs, inputs[:1])
    return 0.0 if math.isnan(found) else found


def _shapes(names: Sequence[str], file: ProgramFile) -> list[Sequence[int] | None]:
    stored: Mapping[str, Sequence[int]] = {name: one.shape for name, one in file.stored.items()}
    return [_one_row(file.tensors[name]) if name in file.tensors else stored.get(name) for name in names]


def _one_row(tensor: ProgramTensor) -> tuple[int, ...]:
    return tuple(size_of(dim, {}) for dim in tensor.shape)


@dataclass(frozen=True)
class TorchModelFile:
    """A `ModelFile` without its weights, which are read per half."""

    path: Path
    file: ProgramFile
    digest: str

    @classmethod
    def read(cls, path: Path) -> TorchModelFile:
        """Read a file. Raises `ConfigError`."""
        file = open_program(path)
        return cls(path, file, model_digest(path).partition(":")[2])

    @cached_property
    def reads(self) -> Sequence[Collection[str]]:
        """See `ModelFile`."""
        return [node.reads for node in self.file.program.nodes]

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """See `ModelFile`."""
        return {name: at for at, node in enumerate(self.file.program.nodes) for name in node.outputs if name}

    def ends(self, graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See `ModelFile.ends`."""
        inputs, outputs = (tuple(graph.tensors[name] for name in side) for side in (graph.inputs, graph.outputs))
        return inputs, outputs

    def half(self, part: Part, graph: Graph) -> ModelHalf:
        """See `ModelFile.half`."""
        program = self.file.program
        nodes = tuple(program.nodes[at] for at in part.operators)
        read = {name for node in nodes for name in node.reads}
        weights = tuple(name for name in program.weights if name in read)
        try:
            half = Program(
                inputs=tuple(self.file.tensors[name] for name in part.inputs),
                outputs=tuple(self.file.tensors[name] for name in part.outputs),
                nodes=nodes,
                weights=weights,
            )
            data = packed(half, self.file.numbers(weights))
        except ValidationError as error:
            raise ConfigError.at(self.path, f"cannot be cut here: {error.errors()[0]['msg']}") from None
        except BadProgram as error:
            raise ConfigError.at(self.path, str(error)) from None
        except OSError as error:
            raise ConfigError.at(self.path, f"cannot read its weights: {error.strerror or error}") from None
        sides = (tuple(graph.tensors[name] for name in names) for names in (part.inputs, part.outputs))
        return ModelHalf({FILE_NAME: data}, *sides)

    def whole(self, graph: Graph) -> ModelHalf:
        """The whole model in the form of a half."""
        every = range(len(self.file.program.nodes))
        return self.half(Part("whole", every, graph.inputs, graph.outputs, ()), graph)
