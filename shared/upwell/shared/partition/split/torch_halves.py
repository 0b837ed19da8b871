"""A program of torch.export to be split, and its halves: programs too, each with the weights that it reads.

The torch engine serves a tail directly. A head becomes ONNX or TFLite before it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from upwell.shared.errors import ConfigError
from upwell.shared.formats.torch_program.program import FILE_NAME, BadProgram, Program, packed
from upwell.shared.formats.torch_program.pt2_archive import ProgramFile
from upwell.shared.model_digest import model_digest
from upwell.shared.partition.model_graph import Graph, Tensor
from upwell.shared.partition.read_torch import open_program
from upwell.shared.partition.split.model_halves import ModelHalf, Part


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
