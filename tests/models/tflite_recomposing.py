"""A TFLite model against its halves one after the other, in either package, with XNNPACK or without."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.models.legal_cuts import prefix_cuts, random_downsets
from tests.models.make_mobilenet_tflite import Net, quantized
from tests.unit.tflite_for_tests import save
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Tensor, size_of
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.split_model import split_model
from upwell.shared.partition.split.tflite_halves import TfliteModelFile
from upwell.shared.tensors import Array

XNNPACK, KERNELS, REFERENCE = "AUTO", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "BUILTIN_REF"
"""XNNPACK and what it leaves to the kernels; the optimized kernels alone; the plain ones."""


def run(
    model: bytes, feed: Mapping[str, Array], package: str = "ai_edge_litert", resolver: str = XNNPACK
) -> dict[str, Array]:
    """Every output by its name in the one signature; of `feed` what the model takes."""
    runtime: Any = importlib.import_module(f"{package}.interpreter")
    interpreter = runtime.Interpreter(
        model_content=model,
        experimental_op_resolver_type=getattr(runtime.OpResolverType, resolver),
        num_threads=1,
    )
    runner = interpreter.get_signature_runner()
    given = {name: detail["index"] for name, detail in runner.get_input_details().items()}
    names = {detail["index"]: name for name, detail in runner.get_output_details().items()}
    del runner  # tflite_runtime refuses to allocate while anything else holds the interpreter
    shapes = {detail["index"]: tuple(detail["shape"]) for detail in interpreter.get_input_details()}
    for name, index in given.items():
        if feed[name].shape != shapes[index]:
            interpreter.resize_tensor_input(index, feed[name].shape, strict=True)
    interpreter.allocate_tensors()
    for name, index in given.items():
        interpreter.set_tensor(index, feed[name])
    interpreter.invoke()
    order = [detail["index"] for detail in interpreter.get_output_details()]
    return {names[index]: interpreter.get_tensor(index) for index in order}


def file_of(half: ModelHalf) -> bytes:
    """The one file that a half is."""
    ((name, data),) = half.files.items()
    assert name == "model.tflite"
    return data


def recomposed(
    halves: Halves, feed: Mapping[str, Array], package: str = "ai_edge_litert", resolver: str = XNNPACK
) -> dict[str, Array]:
    """What the halves give together: the head on `feed`, the tail on the cut tensors and what it reads of `feed`."""
    middle = run(file_of(halves.head), feed, package, resolver)
    assert tuple(middle)[: len(halves.cut)] == halves.cut
    assert not set(middle) & set(feed)
    return {
        **middle,
        **run(file_of(halves.tail), {**feed, **{name: middle[name] for name in halves.cut}}, package, resolver),
    }


@dataclass
class Outcome:
    """What came of many cuts: how many, with several tensors, and bit-equal; the largest relative error."""

    cuts: int = 0
    several: int = 0
    equal: int = 0
    worst: float = 0.0
    datatypes: set[str] = field(default_factory=set)


class CutModel:
    """A model that is cut in many ways; halves are kept for the next way of running them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.graph = contract(read_graph(path))
        self.whole = TfliteModelFile.read(path)
        self._halves: dict[frozenset[int], Halves] = {}

    def edges(self, others: int) -> list[frozenset[int]]:
        """Every legal cut along the graph's order, and so many others, seeded."""
        along = [frozenset(range(count)) for count in prefix_cuts(self.graph)]
        return along + random_downsets(self.graph, Random(0), others)

    def halves(self, edge: frozenset[int]) -> Halves:
        if edge not in self._halves:
            self._halves[edge] = split_model(self.whole, self.graph, edge)
        return self._halves[edge]

    def recompose(self, edges: Iterable[frozenset[int]], package: str, resolver: str) -> Outcome:
        """Cut at each of `edges` and compare on one seeded input."""
        random, found = np.random.default_rng(0), Outcome()
        feed = {one.name: random.random(_shape(one), np.float32) for one in self.whole.ends(self.graph)[0]}
        expected = run(self.path.read_bytes(), feed, package, resolver)
        for edge in edges:
            halves = self.halves(edge)
            made = recomposed(halves, feed, package, resolver)
            found.cuts += 1
            found.several += len(halves.cut) > 1
            found.datatypes.update(one.datatype for one in halves.head.outputs if one.name in halves.cut)
            found.equal += all(np.array_equal(made[name], array) for name, array in expected.items())
            found.worst = max(found.worst, *(_error(made[name], array) for name, array in expected.items()))
        return found


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size_of(dim, {}) for dim in tensor.shape or ())


def _error(made: Array, whole: Array) -> float:
    assert (made.dtype, made.shape) == (whole.dtype, whole.shape)
    return float(np.abs(made.astype(np.float64) - whole).max() / np.abs(whole).max())


def towers(directory: Path, depth: int = 6) -> Path:
    """`scores` [1, 10] of `x` FP32 [1, 16, 16, 4]: three rows of `depth` convolutions side by side, and a classifier.

    A cut may go through each row at a place of its own.
    """
    net = Net(seed=1)
    given = net.tensor((1, 16, 16, 4))
    rows = []
    for size in (1, 3, 5):
        x = given
        for _ in range(depth):
            x = net.conv(x, 8, size)
        rows.append(x)
    options = schema.ConcatenationOptionsT()
    options.axis = 3
    joined = net.apply(
        schema.BuiltinOperator.CONCATENATION,
        tuple(rows),
        (1, 16, 16, 24),
        schema.BuiltinOptions.ConcatenationOptions,
        options,
    )
    scores = net.classifier(joined, 10)
    signature = ({"x": given}, {"scores": scores})
    return save(directory / "towers.tflite", net.tensors, net.operators, [given], [scores], signature)


def int8_of(path: Path) -> Path:
    """An int8 model of the float one at `path`, beside it."""
    target = path.with_suffix(".int8.tflite")
    target.write_bytes(quantized(path))
    return target
