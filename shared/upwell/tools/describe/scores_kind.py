"""Determines what a model's only scores are, from runs on random inputs and from the end of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import UpwellError
from upwell.shared.formats.onnx.graph import OnnxNode, read_graph, read_producer
from upwell.shared.formats.onnx.protobuf_reader import BadOnnxFile
from upwell.shared.signature.model_yaml_draft import NAMED_AS_PROBABILITIES, ScoresKind
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_SCALES = (1.0, 1.0, 1.0, 30.0, 1000.0)
"""Factors of the random inputs: inputs of one magnitude would not reach all branches of a tree."""
_SLACK = 0.03  # rounding errors of an int8 output add up to this
_PICTURE, _OTHER = 224, 8
"""Sizes to try if a tensor does not fix one."""

_SAME = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
_REGRESSORS = ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble")
_CONVERTERS = ("skl2onnx", "OnnxMLTools")


def scores_of(runtime: Runtime, quantization: Mapping[str, tuple[float, int]], model: Path) -> ScoresKind:
    """The kind of the scores. Empty if there are several outputs, or if neither runs nor the graph decide.

    Integer outputs beside them, which converters of scikit-learn add for the class, are ignored. Runs decide first:
    rows that are positive and sum to 1 are probabilities. Otherwise the graph decides, if it can.
    """
    outputs = [one for one in runtime.outputs if len(one.shape) != 1 or one.datatype not in ("INT64", "BYTES")]
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or 0 <= outputs[0].shape[1] < 2:
        return ""
    name = outputs[0].name
    seen, made = _seen(runtime, name, quantization.get(name, (1.0, 0))), _made_by(model, name)
    if made == "tensor" or (made in ("raw", "each") and seen != "probabilities"):
        return made
    return seen or made


def _seen(runtime: Runtime, name: str, quantization: tuple[float, int]) -> ScoresKind:
    """What every finite row from random inputs is: probabilities, shares or unlike them; empty if there is none."""
    chance = np.random.default_rng(0)
    scale, zero_point = quantization
    found = []
    flat = all(len(spec.shape) <= 2 for spec in runtime.inputs)
    for factor in _SCALES if flat else _SCALES[:3]:
        inputs = {spec.name: random_input(spec, chance, factor) for spec in runtime.inputs}
        try:
            rows = (runtime.run(inputs)[name].astype(np.float64) - zero_point) * scale
        except UpwellError:
            return ""
        if np.isfinite(rows).all():
            found.append(rows)
    if not found:
        return ""
    if min(rows.min() for rows in found) < -_SLACK:
        return "unlike"
    if all(np.abs(rows.sum(axis=1) - 1).max() <= _SLACK for rows in found):
        return "probabilities"
    return "shares" if max(rows.max() for rows in found) <= 1 + _SLACK else "unlike"


def random_input(spec: TensorSpec, chance: np.random.Generator, factor: float = 1.0) -> Array:
    """One row for an input; numbers from -1 to 1, times `factor`, and ones in a mask."""
    unsaid = _PICTURE if len(spec.shape) == 4 else _OTHER
    shape = [size if size > 0 else unsaid if place else 1 for place, size in enumerate(spec.shape)]
    dtype = numpy_dtype(spec.datatype)
    if "mask" in spec.name:
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        return (factor * chance.uniform(-1, 1, shape)).astype(dtype)
    if dtype.kind in "iu" and spec.name != "token_type_ids":
        limits = np.iinfo(dtype)
        return chance.integers(max(limits.min, 0), min(limits.max, 127), shape, endpoint=True).astype(dtype)
    return np.full(shape, b"", object) if dtype == np.object_ else np.zeros(shape, dtype)


def _made_by(model: Path, name: str) -> ScoresKind:
    """The operation that makes the output in an ONNX graph, behind operations that keep its numbers."""
    if model.suffix != ".onnx":
        return ""
    try:
        nodes, converter = read_graph(model).nodes, read_producer(model) in _CONVERTERS
    except (BadOnnxFile, OSError):
        return ""  # the runtime has read it, so this is no error here
    if converter and not NAMED_AS_PROBABILITIES.search(name):
        return "tensor"  # their scores always have such names; others are distances, regressions, components
    return _of_node(_maker(nodes, name)) or ("raw" if converter else "")


def _maker(nodes: Sequence[OnnxNode], name: str) -> OnnxNode | None:
    makers = {output: node for node in nodes for output in node.outputs}
    node = makers.get(name)
    while node is not None and node.operator in _SAME and node.inputs:
        node = makers.pop(node.inputs[0], None)  # terminates even on a cycle
    return node


def _of_node(node: OnnxNode | None) -> ScoresKind:
    if node is None:
        return ""
    ends = node.settings.get("post_transform", b"NONE")
    if node.operator == "Softmax" or ends.startswith(b"SOFTMAX"):
        return "probabilities"
    if node.operator == "Sigmoid" or ends == b"LOGISTIC":
        return "each"
    if node.operator in _REGRESSORS:
        return "tensor"
    return "raw" if node.operator in _CLASSIFIERS or node.operator == "LogSoftmax" else ""
