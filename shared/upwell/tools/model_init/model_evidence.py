"""What a model shows of itself where no file says it: what its scores are, how its boxes are written, its pixel scale.

Determined from runs on random inputs and from its graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import UpwellError
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.formats.onnx.graph import OnnxGraph, OnnxNode, read_graph, read_producer
from upwell.shared.formats.tflite import BadTfliteFile, Flatbuffer, read_model
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype
from upwell.tools.model_init.exporter_facts import ScoresKind
from upwell.tools.model_init.model_yaml_draft import NAMED_AS_PROBABILITIES

_SCALES = (1.0, 1.0, 1.0, 30.0, 1000.0)
"""Factors of the random inputs: inputs of one magnitude would not reach all branches of a tree."""
_SLACK = 0.03  # rounding errors of an int8 output add up to this
_PICTURE, _OTHER = 224, 8
"""Sizes to try if a tensor does not fix one."""

_SAME_SCORES = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
_REGRESSORS = ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble")
_CONVERTERS = ("skl2onnx", "OnnxMLTools")


def scores_of(runtime: Runtime, quantization: Mapping[str, tuple[float, int]], model: Path) -> ScoresKind:
    """The kind of the scores. Empty if there are several outputs, or if neither runs nor the graph decide.

    Integer outputs beside them, which converters of scikit-learn add for the class, are ignored. Runs decide first:
    rows that are positive and sum to 1 are probabilities. Otherwise the graph decides, if it can.
    """
    outputs = [one for one in runtime.outputs if len(one.shape) != 1 or one.datatype not in ("INT64", "BYTES")]
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or outputs[0].shape[1] == 0:
        return ""
    name = outputs[0].name
    if outputs[0].shape[1] == 1:
        return "second" if _made_by(model, name) == "each" else ""
    seen, made = _seen_scores(runtime, name, quantization.get(name, (1.0, 0))), _made_by(model, name)
    if made in ("tensor", "logits") or (made in ("raw", "each") and seen != "probabilities"):
        return made
    return seen or made


def _seen_scores(runtime: Runtime, name: str, quantization: tuple[float, int]) -> ScoresKind:
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
    while node is not None and node.operator in _SAME_SCORES and node.inputs:
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
    if node.operator == "LogSoftmax":
        return "logits"  # a softmax of them gives the probabilities
    return "raw" if node.operator in _CLASSIFIERS else ""


_RUNS = 3
_FEW = 32
_FRACTIONS = 2.0

_FLOAT_ONNX, _FLOAT_TFLITE = 1, 0
_BUFFERS = 4
_MOST_BYTES = 4096
_SAME_BOXES = ("Identity", "Cast", "Transpose")
_TFLITE: Mapping[int, str] = {18: "Mul", 39: "Transpose", 41: "Sub", 42: "Div"}
_SMALL, _LARGE, _MANY_LEVELS = 0.02, 50.0, 2.0
"""Factors, divisors and means of pixels; those of numbers from 0 to 1 are nowhere near."""

_Step = tuple[str, Array | None, str]
"""The operator that reads a tensor, the constant beside it, and what it makes."""


def seen_outputs(runtime: Runtime) -> Sequence[TensorSpec]:
    """The outputs, with the sizes of a run where the file leaves them open, as tracing exporters often do.

    As declared if the inputs leave sizes open too, since those then decide, or if the model fails.
    """
    declared = runtime.outputs
    if not any(-1 in spec.shape[1:] for spec in declared) or any(-1 in spec.shape[1:] for spec in runtime.inputs):
        return declared
    chance = np.random.default_rng(0)
    try:
        made = runtime.run({spec.name: random_input(spec, chance) for spec in runtime.inputs})
    except UpwellError:
        return declared
    return [
        replace(spec, shape=(*spec.shape[:1], *made[spec.name].shape[1:])) if -1 in spec.shape[1:] else spec
        for spec in declared
    ]


def shown_boxes(runtime: Runtime, keys: Mapping[str, str], doubts: str) -> tuple[Mapping[str, str], str] | None:
    """The keys of a boxes step after runs on random inputs, and what is left to check; None where they belie it.

    Those show which way corners are written and whether in pixels, as far as the boxes tell. Where scores are not
    within 0 and 1, or sizes of boxes are negative, these are no boxes, or something is still to be done to them.
    """
    if any(size < 0 for spec in runtime.inputs for size in spec.shape[1:]):
        return keys, doubts
    chance = np.random.default_rng(0)
    try:
        runs = [runtime.run({spec.name: random_input(spec, chance) for spec in runtime.inputs}) for _ in range(_RUNS)]
    except UpwellError:
        return keys, doubts
    boxes, scores = _seen_boxes(runs, keys)
    if not np.isfinite(boxes).all() or not np.isfinite(scores).all():
        return keys, doubts
    if scores.size and not -_SLACK <= scores.min() <= scores.max() <= 1 + _SLACK:
        if "classes" not in keys:
            return None
        keys = {**keys, "classes": keys["scores"], "scores": keys["classes"]}  # the other way round
        boxes, scores = _seen_boxes(runs, keys)
        if not -_SLACK <= scores.min() <= scores.max() <= 1 + _SLACK:
            return None
    if len(boxes) < _FEW:
        return keys, doubts
    is_corners = bool((boxes[:, 2:] >= boxes[:, :2]).all())
    if not is_corners and boxes[:, 2:].min() < 0:
        return None
    found = dict(keys)
    if not (is_corners and keys["format"] == "yxyx"):
        found["format"] = "xyxy" if is_corners else "cxcywh"
    found.pop("normalized", None)
    if np.abs(boxes).max() <= _FRACTIONS:
        found["normalized"] = "true"
    if "classes" in keys:
        return found, doubts
    if "from" not in keys and scores.shape[1] > 1 and np.abs(scores.sum(axis=1) - 1).max() <= _SLACK:
        found["background"] = "0"
        return found, "background: the class that is none, where it is not 0"
    return found, "objectness: true, where the fifth number is one" if "from" in keys else "yxyx, where y comes first"


def _seen_boxes(runs: Sequence[Mapping[str, Array]], keys: Mapping[str, str]) -> tuple[Array, Array]:
    """The boxes [n, 4] and scores [n, classes] of these runs; of a model that drops overlaps those that are not 0."""
    if "from" in keys:
        raw = np.concatenate([run[keys["from"]] for run in runs]).astype(np.float64)
        boxes = raw.swapaxes(1, 2) if keys["axes"] == "NCA" else raw
        rows = boxes.reshape(-1, boxes.shape[2])
        return rows[:, :4], rows[:, 4:]
    boxes = np.concatenate([run[keys["boxes"]] for run in runs]).astype(np.float64).reshape(-1, 4)
    scores = np.concatenate([run[keys["scores"]] for run in runs]).astype(np.float64)
    scores = scores.reshape(len(boxes), -1)
    used = boxes.any(axis=1) if "classes" in keys else np.ones(len(boxes), bool)
    return boxes[used], scores


def takes_pixels(model: Path, name: str) -> bool:
    """Whether the first arithmetic on the input `name` is a product, quotient or difference that only pixels of 0 to
    255 are meant for."""
    try:
        name, steps = (name, _onnx_steps(model)) if model.suffix == ".onnx" else _tflite_steps(model)
    except (BadOnnxFile, BadTfliteFile, OSError):
        return False  # the runtime says what is wrong with it
    while len(readers := steps.pop(name, ())) == 1:
        operator, constant, name = readers[0]
        if operator not in _SAME_BOXES:
            return constant is not None and constant.size > 0 and _is_for_pixels(operator, np.abs(constant))
    return False


def _is_for_pixels(operator: str, size: Array) -> bool:
    if operator == "Mul":
        return bool(size.min() > 0 and size.max() <= _SMALL)
    return bool(size.min() >= {"Div": _LARGE, "Sub": _MANY_LEVELS}.get(operator, np.inf))


def _onnx_steps(model: Path) -> dict[str, Sequence[_Step]]:
    graph = read_graph(model)
    steps: dict[str, list[_Step]] = {}
    for node in graph.nodes:
        if node.inputs and node.outputs:
            constant = _onnx_constant(graph, node.inputs[1]) if len(node.inputs) == 2 else None
            steps.setdefault(node.inputs[0], []).append((node.operator, constant, node.outputs[0]))
    return dict(steps)


def _onnx_constant(graph: OnnxGraph, name: str) -> Array | None:
    constant = graph.constants.get(name)
    if constant is None or constant.dtype != _FLOAT_ONNX or constant.raw is None:
        return None
    begin, end = constant.raw
    if (end - begin) % 4 or end - begin > _MOST_BYTES:
        return None
    with open_plain(graph.path) as file:
        file.seek(begin)
        return np.frombuffer(file.read(end - begin), "<f4")


def _tflite_steps(model: Path) -> tuple[str, dict[str, Sequence[_Step]]]:
    """With them the first input's own name, which a signature does not keep."""
    with open_plain(model) as file:
        data = file.read()
    graph, buffers = read_model(data)[0], Flatbuffer(data).root().tables(_BUFFERS)
    steps: dict[str, list[_Step]] = {}
    for operator in graph.operators:
        if min(operator.inputs, default=-1) < 0 or not operator.outputs:
            continue
        read = [graph.tensors[at] for at in operator.inputs]
        constant = None
        if len(read) == 2 and read[1].type == _FLOAT_TFLITE and 0 < read[1].buffer < len(buffers):
            raw = buffers[read[1].buffer].raw(0)
            constant = np.frombuffer(raw, "<f4") if len(raw) % 4 == 0 and len(raw) <= _MOST_BYTES else None
        made = graph.tensors[operator.outputs[0]].name
        steps.setdefault(read[0].name, []).append((_TFLITE.get(operator.code, ""), constant, made))
    return graph.tensors[graph.inputs[0]].name if graph.inputs else "", dict(steps)
