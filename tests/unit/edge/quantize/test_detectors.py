"""Quantizing a detector whose one tensor holds boxes in pixels and scores: what stays float, and what is told of it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import helper
from rich.console import Console

from tests.unit import models_for_tests as onnx_models
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.tensors import Array
from upwell.tools.quantize import model_quantization
from upwell.tools.quantize.data_files import read_samples
from upwell.tools.quantize.model_quantization import Quantized, _small_gain, chosen, open_float_model, quantize_model
from upwell.tools.quantize.quantization_error import SCORE_ERROR, compared
from upwell.tools.quantize.quantize_report import show
from upwell.tools.quantize.quantizer import LayerNode, QuantizeSettings, detector_parts

SIDE, CELLS, CLASSES = 32, 8, 2
MODEL_YAML = f"""\
version: 1
signature:
  inputs: {{image: {{kind: image}}}}
  outputs: {{detections: {{kind: detections}}}}
pre: [{{decode: image}}, {{resize: {{to: [{SIDE}, {SIDE}]}}}}, {{normalize: {{}}}}, {{layout: NCHW}}]
post: [{{boxes: {{format: cxcywh, min_score: 0.4}}}}]
"""

T = TypeVar("T")


@dataclass(frozen=True)
class FakeGraph:
    """The nodes of a model, as a quantizer tells them."""

    graph: Sequence[LayerNode]
    nodes: Sequence[LayerNode]


def silent(items: Sequence[T], doing: str) -> Iterator[T]:
    del doing
    return iter(items)


def conv(name: str, given: str, stride: int) -> object:
    edges: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [stride] * 2}
    return helper.make_node("Conv", [given, f"{name}_w", f"{name}_b"], [name], name=name, **edges)


def relu(name: str, made: str) -> list[object]:
    return [helper.make_node("Relu", [name], [made], name=f"relu_{made}")]


def silu(name: str, made: str) -> list[object]:
    """As in all of YOLO's newer networks."""
    return [
        helper.make_node("Sigmoid", [name], [f"{made}_gate"], name=f"gate_{made}"),
        helper.make_node("Mul", [name, f"{made}_gate"], [made], name=f"silu_{made}"),
    ]


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detector(tmp_path_factory.mktemp("detector"), relu)


def write_detector(
    folder: Path, activation: Callable[[str, str], list[object]], gain: float = 1.3, seed: int = 5
) -> Path:
    """[rows, 4 + classes, 64]: convolutions of seeded weights, boxes of 6 to 12 pixels around each cell, sigmoids."""
    rng = np.random.default_rng(seed)
    widths = {"first": (3, 8, 2), "second": (8, 16, 2), "third": (16, 16, 1), "head": (16, 2 + CLASSES, 1)}
    constants: dict[str, Array] = {
        "sizes": np.array([0, 4, CELLS * CELLS], np.int64),
        "scores": np.array([0, CLASSES, CELLS * CELLS], np.int64),
        "nine": np.float32(9),
        "three": np.float32(3),
    }
    for name, (taken, made, _) in widths.items():
        constants[f"{name}_w"] = rng.normal(0, gain / np.sqrt(9 * taken), (made, taken, 3, 3)).astype(np.float32)
        constants[f"{name}_b"] = rng.normal(0, 0.1, made).astype(np.float32)
    grid = (np.arange(CELLS, dtype=np.float32) + 0.5) * SIDE / CELLS
    constants["centers"] = np.stack(np.meshgrid(grid, grid))[None].reshape(1, 2, CELLS, CELLS)
    node = helper.make_node
    nodes = [
        conv("first", "images", widths["first"][2]),
        *activation("first", "a"),
        conv("second", "a", widths["second"][2]),
        *activation("second", "b"),
        conv("third", "b", widths["third"][2]),
        *activation("third", "c"),
        conv("head", "c", widths["head"][2]),
        node("Split", ["head"], ["raw_size", "raw_score"], name="split", axis=1),
        node("Tanh", ["raw_size"], ["tanh"], name="tanh"),
        node("Mul", ["tanh", "three"], ["scaled"], name="mul"),
        node("Add", ["scaled", "nine"], ["size"], name="add"),
        node("Sub", ["size", "size"], ["zero"], name="sub"),
        node("Add", ["zero", "centers"], ["center"], name="place"),
        node("Concat", ["center", "size"], ["box"], name="box", axis=1),
        node("Reshape", ["box", "sizes"], ["boxes"], name="flat_boxes"),
        node("Sigmoid", ["raw_score"], ["score"], name="sigmoid"),
        node("Reshape", ["score", "scores"], ["flat"], name="flat_scores"),
        node("Concat", ["boxes", "flat"], ["output0"], name="concat", axis=1),
    ]
    return _written(folder, nodes, constants, rng)


def _written(folder: Path, nodes: Sequence[object], constants: dict[str, Array], rng: np.random.Generator) -> Path:
    onnx_models.save(
        folder / "model.onnx",
        nodes,
        [onnx_models.tensor("images", ("rows", 3, SIDE, SIDE))],
        [onnx_models.tensor("output0", ("rows", 4 + CLASSES, CELLS * CELLS))],
        constants,
    )
    (folder / "model.yaml").write_text(MODEL_YAML)
    np.savez(folder / "data.npz", image=pictures(rng, 60))
    return folder


def write_fragile(folder: Path, gain: float) -> Path:
    """Like `write_detector`, but with a branch each for scores, heights and widths. Heights and widths need precise
    values.
    """
    rng = np.random.default_rng(0)
    node = helper.make_node
    channels = {"stem": (3, 8), "seen": (8, 8), "tall": (8, 4), "wide": (8, 4), "score": (8, CLASSES)}
    constants: dict[str, Array] = {
        "spread": np.array([1000.0, *[1.0] * 7], np.float32).reshape(1, 8, 1, 1),
        "least": np.float32(2),
        "more": np.float32(10),
        "boxes_shape": np.array([0, 4, CELLS * CELLS], np.int64),
        "scores_shape": np.array([0, CLASSES, CELLS * CELLS], np.int64),
        "raw_size_w": np.zeros((2, 8, 3, 3), np.float32),
        "raw_size_b": np.full(2, -4, np.float32),
    }
    for name, (taken, made) in channels.items():
        constants[f"{name}_w"] = rng.normal(0, 1.3 / np.sqrt(9 * taken), (made, taken, 3, 3)).astype(np.float32)
        constants[f"{name}_b"] = np.zeros(made, np.float32)
    for name in ("tall", "wide"):
        constants[f"{name}_w"] = np.abs(constants[f"{name}_w"])
        constants[f"{name}_w"][:, 0] = 0
    constants["stem_b"] += 2
    constants["score_w"] *= gain
    constants["raw_size_w"][0, 4:], constants["raw_size_w"][1, :4] = 3, 3
    grid = (np.arange(CELLS, dtype=np.float32) + 0.5) * SIDE / CELLS
    constants["centers"] = np.stack(np.meshgrid(grid, grid))[None].reshape(1, 2, CELLS, CELLS)
    nodes = [
        conv("stem", "images", 4),
        *relu("stem", "a"),
        conv("seen", "a", 1),
        *relu("seen", "b"),
        conv("score", "b", 1),
        node("Mul", ["a", "spread"], ["apart"], name="apart"),
        conv("tall", "apart", 1),
        conv("wide", "apart", 1),
        node("Concat", ["tall", "wide"], ["sizes"], name="sizes", axis=1),
        conv("raw_size", "sizes", 1),
        node("Sigmoid", ["raw_size"], ["share"], name="share"),
        node("Mul", ["share", "more"], ["grown"], name="grown"),
        node("Add", ["grown", "least"], ["size"], name="size"),
        node("Sub", ["size", "size"], ["zero"], name="sub"),
        node("Add", ["zero", "centers"], ["center"], name="place"),
        node("Concat", ["center", "size"], ["box"], name="box", axis=1),
        node("Reshape", ["box", "boxes_shape"], ["boxes"], name="flat_boxes"),
        node("Sigmoid", ["score"], ["chance"], name="sigmoid"),
        node("Reshape", ["chance", "scores_shape"], ["flat"], name="flat_scores"),
        node("Concat", ["boxes", "flat"], ["output0"], name="concat", axis=1),
    ]
    return _written(folder, nodes, constants, rng)


def pictures(rng: np.random.Generator, count: int) -> Array:
    return rng.integers(0, 256, (count, CELLS, CELLS, 3)).astype(np.uint8).repeat(4, 1).repeat(4, 2)


@pytest.fixture(scope="module")
def quantized(detector: Path) -> Quantized:
    return quantize_model(
        detector / "model.onnx", detector / "data.npz", detector / "q.onnx", QuantizeSettings(), (), silent
    )


def test_scores_keep_their_values_beside_boxes_in_pixels(quantized: Quantized, detector: Path) -> None:
    (detector / "q.onnx").write_bytes(quantized.model)
    feed = {"images": np.random.default_rng(1).random((4, 3, SIDE, SIDE), np.float32)}
    (output,) = load_runtime(detector / "q.onnx", RuntimeOptions()).run(feed).values()
    scores = output[:, 4:]
    assert len(np.unique(scores)) > scores.size // 2
    assert scores.max() <= 1
    assert "concat" in quantized.report.kept_float


def test_the_report_tells_what_becomes_of_boxes_after_post(quantized: Quantized) -> None:
    found = quantized.report.comparison.detections
    assert found is not None
    assert found.boxes > 50
    assert found.matched >= 0.98
    assert found.scores_within >= 0.99
    assert found.score_error_p99 <= SCORE_ERROR
    assert all(one.agreement is None for one in quantized.report.comparison.outputs)
    assert quantized.report.document()["detections"]["boxes"] == found.boxes


def test_the_models_own_tensors_are_compared_after_post_too(detector: Path) -> None:
    tensors = np.load(detector / "data.npz")["image"].astype(np.float32).transpose(0, 3, 1, 2) / 255
    np.savez(detector / "tensors.npz", images=tensors)
    made = quantize_model(
        detector / "model.onnx", detector / "tensors.npz", detector / "q.onnx", QuantizeSettings(), (), silent
    )
    found = made.report.comparison.detections
    assert found is not None
    assert found.boxes > 50
    assert found.scores_within >= 0.99


def test_a_detector_that_nothing_describes_is_told_so(quantized: Quantized, detector: Path, tmp_path: Path) -> None:
    shutil.copy(detector / "model.onnx", tmp_path)
    tensors = np.random.default_rng(2).random((30, 3, SIDE, SIDE), np.float32)
    np.savez(tmp_path / "data.npz", images=tensors)
    made = quantize_model(
        tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "q.onnx", QuantizeSettings(), (), silent
    )
    said = "the outputs look like the boxes of a detector"
    assert [one.startswith(said) for one in made.report.warnings].count(True) == 1
    assert made.report.comparison.detections is None
    assert not any(one.startswith(said) for one in quantized.report.warnings)


def test_what_a_person_keeps_float_is_kept_beside_the_tail_alone(detector: Path) -> None:
    made = quantize_model(
        detector / "model.onnx", detector / "data.npz", detector / "q.onnx", QuantizeSettings(), ["second"], silent
    )
    assert {"second", "head", "concat"} <= set(made.report.kept_float)
    assert not {"first", "third"} & set(made.report.kept_float)
    data = made.report.data
    assert (data.calibrated_on, data.chosen_on, data.measured_on) == (30, 0, 30), "no row is used for nothing"


@pytest.mark.parametrize(("min_score", "found"), [("0.9999", "no boxes"), ("0.4", None)])
def test_a_choice_on_too_few_boxes_is_said(detector: Path, min_score: str, found: str | None) -> None:
    description = detector / "model.yaml"
    description.write_text(MODEL_YAML.replace("min_score: 0.4", f"min_score: {min_score}"))
    try:
        made = quantize_model(
            detector / "model.onnx", detector / "data.npz", detector / "q.onnx", QuantizeSettings(), (), silent
        )
    finally:
        description.write_text(MODEL_YAML)
    said = [one for one in made.report.warnings if "too few to choose well" in one]
    assert [one.split(" on the ")[0] for one in said] == ([f"the float model finds {found}"] if found else [])


@pytest.mark.parametrize(("kept", "share"), [(["second", "third", "head"], 95), (["first"], None)])
def test_it_is_said_if_int8_gains_little(detector: Path, kept: list[str], share: int | None) -> None:
    made = quantize_model(
        detector / "model.onnx", detector / "data.npz", detector / "q.onnx", QuantizeSettings(), kept, silent
    )
    said = [one.split(" and ")[1] for one in made.report.warnings if one.startswith("int8 gains little here")]
    assert said == ([] if share is None else [f"{share}% of the weights stay float"])


def test_it_is_said_if_the_file_stays_as_large() -> None:
    graph = [LayerNode("a", "Conv", weights=100), LayerNode("b", "LSTM", weights=900)]
    (said,) = _small_gain(1_000_000, 960_000, graph, ["a"])
    assert said.endswith("the file has 96% of the float one's bytes, and 10% of the weights stay float")
    assert not _small_gain(1_000_000, 940_000, graph, ["a"])
    assert not _small_gain(10_000, 12_000, graph, ["a"]), "a file of this size is mostly names"


def test_layers_are_put_in_order_on_few_rows_and_chosen_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_quantization, "_RANKED_ROWS", 5)
    folder = write_detector(tmp_path, silu, gain=3.0)
    tried: list[int] = []

    def counted(items: Sequence[T], doing: str) -> Iterator[T]:
        if doing.endswith("nodes as float"):
            tried.append(len(items))
        return iter(items)

    made = quantize_model(
        folder / "model.onnx", folder / "data.npz", folder / "q.onnx", QuantizeSettings(), (), counted
    )
    assert made.report.data.chosen_on == 20
    assert tried[:4] == [20, 5, 5, 5], "the tail, then each of three groups alone"
    assert set(tried[4:]) == {20}, "then several groups together; one that is left needs no order"


def independent(alone: Sequence[float]) -> Callable[[Sequence[int]], float]:
    return lambda groups: float(np.sqrt(sum(alone[at] ** 2 for at in groups)))


def test_layers_become_int8_while_their_scores_stay_close_cheapest_for_their_work_first() -> None:
    alone = independent([0.004, 0.02, 0.001, 0.008])
    tried: list[list[int]] = []

    def error_of(groups: Sequence[int]) -> float:
        tried.append(list(groups))
        return alone(groups)

    work = [100, 100, 10, 1000]
    assert chosen(work, alone, error_of) == [3, 2, 0], "0.064, 0.1 and 0.16 millionths a multiply-add; 1 is too far"
    assert [3, 2, 0] in tried
    assert chosen(work, alone, lambda groups: 0.005 * len(groups)) == [3, 2]


def test_what_is_cheap_beside_int8_layers_is_found_in_a_second_round_without_the_layer_that_was_too_much() -> None:
    alone = {0: 0.001, 1: 0.002, 2: 0.003, 3: 0.004}

    def error_of(groups: Sequence[int]) -> float:
        """Layer 1 is too much beside 0; 2 and 3 share a value with 0."""
        if 1 in groups:
            return 0.1 if 0 in groups else alone[1]
        return 0.001 if 0 in groups else sum(alone[at] for at in groups)

    assert chosen([1, 1, 1, 1], error_of, error_of) == [0, 2, 3]


@pytest.mark.parametrize("together", [[0.01, 0.02, 0.01], [0.02, 0.01, 0.02], [0.02, 0.02, 0.01], [0.01, 0.01, 0.02]])
def test_what_becomes_int8_was_tried_together_even_if_errors_do_not_grow(together: list[float]) -> None:
    groups = chosen([1, 1, 1], independent([0.005, 0.004, 0.003]), lambda some: together[len(some) - 1])
    assert together[len(groups) - 1] <= 0.01 or groups == [2]


def test_groups_that_are_too_much_alone_keep_no_other_from_becoming_int8() -> None:
    alone = independent([0.02] * 3 + [0.001] * 30)
    asked: list[tuple[int, ...]] = []

    def deviation_of(groups: Sequence[int]) -> float:
        asked.append(tuple(groups))
        return alone(groups)

    result = chosen([1000] * 3 + [1] * 30, deviation_of, lambda groups: 0.0025 * len(groups) if min(groups) > 2 else 1)
    assert sorted(result) == [3, 4, 5, 6]
    assert len(asked) == len(set(asked)), "what was measured is not measured again"


@dataclass(frozen=True)
class Groups:
    """Groups of layers whose squared deviations add up, in units of which `LIMIT` are just close enough."""

    work: Sequence[int]
    squares: Sequence[int]
    LIMIT = 20

    def square(self, some: Collection[int]) -> int:
        return sum(self.squares[at] for at in some)

    def done(self, some: Collection[int]) -> int:
        return sum(self.work[at] for at in some)

    def subsets(self) -> list[frozenset[int]]:
        everything = range(len(self.work))
        return [frozenset(some) for count in range(1, len(self.work) + 1) for some in combinations(everything, count)]


GROUPS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=7).map(
    lambda groups: Groups(*zip(*groups, strict=True))
)


@given(GROUPS)
@example(Groups((1, 1, 1, 1, 2, 2), (7, 7, 7, 7, 7, 14)))
def test_no_group_fits_beside_what_becomes_int8_and_another_choice_does_little_more_work(groups: Groups) -> None:
    """Against all subsets. Whatever goes by the cost of work loses at most one group's work (Dantzig 1957)."""
    measured: list[frozenset[int]] = []

    def deviation_of(some: Sequence[int]) -> float:
        measured.append(frozenset(some))
        return math.sqrt(groups.square(some))

    result = frozenset(chosen(groups.work, deviation_of, lambda some: 0.01 * groups.square(some) / groups.LIMIT))
    close = [some for some in groups.subsets() if groups.square(some) <= groups.LIMIT]
    assert len(measured) == len(set(measured))
    if not close:
        assert groups.squares[min(result)] == min(groups.squares)
        assert len(result) == 1
        return
    assert result in close
    assert not any(result < some for some in close), "it is one of the largest"
    best = max(map(groups.done, close))
    assert best <= groups.done(result) + max(groups.done(some) for some in close if len(some) == 1)


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_whatever_errors_do_only_what_was_tried_together_and_is_close_becomes_int8(count: int, random: Random) -> None:
    errors: dict[frozenset[int], float] = {}
    alone = [random.random() for _ in range(count)]

    def error_of(some: Sequence[int]) -> float:
        assert frozenset(some) not in errors, "it is known"
        return errors.setdefault(frozenset(some), random.choice([0.005, 0.02]))

    result = chosen([1] * count, lambda some: alone[some[0]] if len(some) == 1 else random.random(), error_of)
    is_close = errors.get(frozenset(result), 1.0) <= 0.01
    assert is_close or (list(result) == [alone.index(min(alone))] and min(errors.values()) > 0.01)


@pytest.mark.parametrize("gain", [1, 20])
def test_layers_that_lose_boxes_stay_float_and_keep_no_other_from_becoming_int8(tmp_path: Path, gain: float) -> None:
    """`tall` and `wide` read values of which one channel, that they do not use, is a thousand times as large: in int8
    the others are 0, and the boxes a sixth as tall or wide. No score moves.
    """
    folder = write_fragile(tmp_path, gain)
    made = quantize_model(folder / "model.onnx", folder / "data.npz", folder / "q.onnx", QuantizeSettings(), (), silent)
    precision = {layer.node: layer.precision for layer in made.report.layers if layer.operator == "Conv"}
    assert (precision["tall"], precision["wide"]) == ("float", "float")
    assert "int8" in precision.values()
    found = made.report.comparison.detections
    assert found is not None
    assert found.boxes > 50
    assert found.matched >= 0.98


def test_the_best_layers_become_int8_where_none_are_close() -> None:
    assert chosen([1, 1, 1000], independent([0.5, 0.02, 0.03]), lambda _: 0.5) == [1]


def test_float_layers_beside_int8_ones_read_values_that_are_not_rounded(tmp_path: Path) -> None:
    """Two convolutions read one value; the scores come from the float one, so rounding for the other moves nothing."""
    node, rng = helper.make_node, np.random.default_rng(0)
    weights = {f"{name}_w": rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32) for name in ("boxes", "scores")}
    nodes = [
        node("Abs", ["images"], ["stem"], name="stem"),
        *(
            node("Conv", ["stem", f"{name}_w"], [f"{name}_out"], name=name, kernel_shape=[3, 3], pads=[1] * 4)
            for name in ("boxes", "scores")
        ),
    ]
    shape = ("rows", 8, 6, 6)
    onnx_models.save(
        tmp_path / "model.onnx",
        nodes,
        [onnx_models.tensor("images", shape)],
        [onnx_models.tensor("boxes_out", shape), onnx_models.tensor("scores_out", shape)],
        weights,
    )
    np.savez(tmp_path / "data.npz", images=rng.normal(0, 1, (30, 8, 6, 6)).astype(np.float32))
    made = quantize_model(
        tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "q.onnx", QuantizeSettings(), ["scores"], silent
    )
    errors = {one.name: one.relative_error for one in made.report.comparison.outputs}
    assert errors["scores_out"] == 0
    assert errors["boxes_out"] not in (None, 0), "it is int8"
    assert made.report.int8_work == 0.5, "one of two equal convolutions"
    shown = Console(record=True, width=200, file=StringIO())
    show(made.report, shown)
    assert "50% in int8" in shown.export_text()


def test_scores_behind_activations_of_several_nodes_keep_their_values(tmp_path: Path) -> None:
    folder = write_detector(tmp_path, silu, gain=3.0)
    made = quantize_model(folder / "model.onnx", folder / "data.npz", folder / "q.onnx", QuantizeSettings(), (), silent)
    found = made.report.comparison.detections
    assert found is not None
    assert found.boxes > 50
    assert found.scores_within >= 0.99


@pytest.mark.parametrize("seed", [6, 8, 9])
def test_scores_of_rows_seen_by_nothing_keep_their_values_beside_objectness(tmp_path: Path, seed: int) -> None:
    folder = write_detector(tmp_path, silu, gain=2.0, seed=seed)
    description = MODEL_YAML.replace("min_score: 0.4", "min_score: 0.2, objectness: true")
    (folder / "model.yaml").write_text(description)
    made = quantize_model(folder / "model.onnx", folder / "data.npz", folder / "q.onnx", QuantizeSettings(), (), silent)
    (folder / "q.onnx").write_bytes(made.model)
    np.savez(folder / "new.npz", image=pictures(np.random.default_rng(100 + seed), 200))
    model = open_float_model(folder / "model.onnx")
    samples = read_samples(folder / "new.npz", model)
    after = load_runtime(folder / "q.onnx", RuntimeOptions(threads=1)).run
    found = compared(model.run, after, samples, map(samples.case, samples.runs(range(200)))).detections
    assert found is not None
    assert found.boxes > 5000
    assert found.scores_within >= 0.99
    assert found.score_error_p99 <= 0.015, "room for pictures of other kinds"
    assert made.report.data.chosen_on == 20
    assert made.report.int8_work > 0
    layers = [layer for layer in made.report.layers if layer.operator == "Conv"]
    assert any(layer.precision == "int8" for layer in layers)


def test_activations_stay_float_with_the_layers_around_them() -> None:
    graph = [
        LayerNode("in", "Mul", ("x",), ("in",)),
        *(
            node
            for at in range(9)
            for node in (
                LayerNode(f"conv{at}", "Conv", (f"mul{at - 1}" if at else "in",), (f"conv{at}",), 100 + at),
                LayerNode(f"gate{at}", "Sigmoid", (f"conv{at}",), (f"gate{at}",)),
                LayerNode(f"mul{at}", "Mul", (f"conv{at}", f"gate{at}"), (f"mul{at}",)),
            )
        ),
    ]
    parts = detector_parts(FakeGraph(graph, graph))  # type: ignore[arg-type]  # the part of a quantizer that is read
    assert set(parts.tail) == {"conv8", "gate8", "mul8"}
    everything = set(range(8))
    assert set(parts.beside(everything - {0})) == {"in", "conv0", "gate0", "mul0", "gate7", "mul7"}
    assert set(parts.beside(everything - {7})) == {"conv7", "gate7", "mul7", "gate6", "mul6"}
    others = {node.name for node in graph[:-3]} - {"conv3"}
    assert set(parts.beside([3])) == others, "what only quantized layers surround is quantized"
    assert [parts.work(at) for at in everything] == list(range(100, 108)), "each weight once, without shapes"


def test_the_tail_goes_up_to_the_last_layers_with_weights() -> None:
    graph = [
        LayerNode("a", "Conv", ("x",), ("a",), 500),
        LayerNode("r", "Relu", ("a",), ("r",)),
        LayerNode("b", "Conv", ("r",), ("b",), 500),
        LayerNode("bins", "Conv", ("b",), ("bins",), 16),
        LayerNode("c", "Conv", ("r",), ("c",), 500),
        LayerNode("out", "Concat", ("bins", "c"), ("out",)),
    ]
    parts = detector_parts(FakeGraph(graph, graph))  # type: ignore[arg-type]  # the part of a quantizer that is read
    assert set(parts.tail) == {"b", "bins", "c", "out"}
    assert [layer.name for layer in parts.layers] == ["a"]
    alone = detector_parts(FakeGraph(graph[:2], graph[:2]))  # type: ignore[arg-type]  # as above
    assert alone.tail == ("r",)
