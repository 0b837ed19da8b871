"""An ONNX model against its halves one after the other, both in ONNX Runtime on one thread of the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tests.models.legal_cuts import prefix_cuts, random_downsets
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves
from upwell.shared.partition.split.onnx_halves import OnnxModelFile
from upwell.shared.partition.split.split_model import split_model
from upwell.shared.tensors import Array

DEFAULT = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
BASIC = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC

_LOG_FATAL = 4


def session_of(model: bytes | Path, level: Any = DEFAULT) -> Any:
    """A session for the bytes or the file of a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_FATAL
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Every output by name; of `feed` what the model takes."""
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {one.name: feed[one.name] for one in session.get_inputs()}), strict=True))


def recomposed(halves: Halves, feed: Mapping[str, Array], level: Any = DEFAULT) -> dict[str, Array]:
    """What the halves give together: the head on `feed`, the tail on the cut tensors and what it reads of `feed`."""
    head, tail = (session_of(half.files["model.onnx"], level) for half in (halves.head, halves.tail))
    first = run(head, feed)
    assert tuple(first)[: len(halves.cut)] == halves.cut
    return {**first, **run(tail, {**feed, **{name: first[name] for name in halves.cut}})}


def random_feed(session: Any, rows: int = 1, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every input; `rows` where a dimension is open."""
    random = np.random.default_rng(seed)
    shapes = {one.name: [size if isinstance(size, int) else rows for size in one.shape] for one in session.get_inputs()}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def relative_error(got: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference in an output over the largest magnitude in it; the worst output counts. 0 is bit-equal."""
    return max(
        0.0
        if np.array_equal(got[name], array)
        else float(np.abs(got[name].astype(np.float64) - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


@dataclass
class Outcome:
    """What came of cutting a model: cuts, those with several tensors, those that are bit-equal, and the worst error."""

    cuts: int = 0
    several: int = 0
    equal: int = 0
    worst: float = 0.0
    worst_cut: tuple[str, ...] = ()
    datatypes: set[str] = field(default_factory=set)


@dataclass
class CutModel:
    """A model that is written to a folder and cut again and again."""

    model: onnx.ModelProto
    folder: Path

    @cached_property
    def path(self) -> Path:
        """Its file."""
        path = self.folder / "whole.onnx"
        path.write_bytes(self.model.SerializeToString())
        return path

    @cached_property
    def graph(self) -> Graph:
        """Contracted."""
        return contract(read_graph(self.path))

    @cached_property
    def _whole(self) -> OnnxModelFile:
        return OnnxModelFile.read(self.path)

    def edges(self, others: int) -> list[frozenset[int]]:
        """Every legal cut along the graph's own order, and up to so many others."""
        along = [frozenset(range(count)) for count in prefix_cuts(self.graph)]
        return along + random_downsets(self.graph, Random(0), others)

    def split(self, edge: frozenset[int]) -> Halves:
        """One cut."""
        return split_model(self._whole, self.graph, edge)

    def recompose(self, edges: Iterable[frozenset[int]], level: Any = DEFAULT, rows: int = 1) -> Outcome:
        """Cut at all of these, and compare."""
        session = session_of(self.path, level)
        feed = random_feed(session, rows)
        expected = run(session, feed)
        assert all(np.isfinite(array).all() and array.std() > 0 for array in expected.values())
        outcome = Outcome()
        for edge in edges:
            halves = self.split(edge)
            error = relative_error(recomposed(halves, feed, level), expected)
            outcome.cuts += 1
            outcome.several += len(halves.cut) > 1
            outcome.equal += error == 0
            outcome.datatypes |= {self.graph.tensors[name].datatype for name in halves.cut}
            if error > outcome.worst:
                outcome.worst, outcome.worst_cut = error, halves.cut
        return outcome
