"""`Scorer`: which settings it can measure, what it measures, and real units from quantized models."""

from __future__ import annotations

import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import helper

from tests.unit import models_for_tests, tflite_for_tests
from upwell.edge.models import hardness_scorer
from upwell.edge.models.edge_model import EdgeModel, ModelSource
from upwell.edge.models.hardness_scorer import NO_SCORES, Scorer, hardness_function
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.config.yaml import load_yaml, parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.calibration.pair_calibration import Target, calibration_of
from upwell.shared.routing.hardness import UNMOVED, Measure, hardness, is_hard, uncalibrated
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.logged_requests import prepare, score
from upwell.shared.signature.detections import as_candidates
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, OutputKind, Signature
from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.demo.digit_data import ASSETS, digit_png, heldout
from upwell.tools.policy.policy_yaml_writer import PolicyText

OF_SCORES: tuple[Measure, ...] = ("max_prob", "margin", "entropy", "energy", "logit_norm")
OF_BOXES: tuple[Measure, ...] = ("mean_score", "low_share", "count", "doubtful", "near", "spread")


def output(name: str, kind: OutputKind, shape: tuple[int, ...], datatype: str = "FP32") -> LogicalOutput:
    return LogicalOutput(name, kind, TensorSpec(name, datatype, shape))


def scorer(*outputs: LogicalOutput, has_rows: bool = True) -> Scorer:
    return Scorer(Signature((LogicalInput("x", "tensor", TensorSpec("x", "FP32", (-1, 2))),), outputs, has_rows))


SCORES = output("scores", "logits", (-1, 4))
PROBABILITIES = output("scores", "probabilities", (-1, 4))
BOXES = output("boxes", "detections", (-1, 9, 6))
DOUBT = output("doubt", "tensor", (-1,))
CODES = output("codes", "tensor", (-1, 3), "INT8")
EMBEDDING = output("vector", "embedding", (-1, 16))


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install functions as entry points of the group; each is `name=module:attribute` of this module."""

    def install(**found: str) -> None:
        entries = [importlib.metadata.EntryPoint(name, value, hardness_scorer.GROUP) for name, value in found.items()]
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: entries if group == hardness_scorer.GROUP else []
        )
        hardness_function.cache_clear()

    yield install
    hardness_function.cache_clear()


# --- What can be measured


@pytest.mark.parametrize(
    ("outputs", "can"),
    [
        ((SCORES,), OF_SCORES),
        ((PROBABILITIES,), ("max_prob", "margin", "entropy", "logit_norm")),
        ((output("scores", "logits", (-1, 2)),), ("max_prob", "margin", "entropy", "energy")),
        ((output("scores", "logits", (-1, -1)),), OF_SCORES),
        ((BOXES,), ("margin", *OF_BOXES)),
        ((EMBEDDING, BOXES, SCORES), (*OF_SCORES, *OF_BOXES)),
        ((EMBEDDING, DOUBT), ()),
    ],
)
def test_what_can_be_measured_is_what_the_outputs_allow(
    outputs: Sequence[LogicalOutput], can: Sequence[Measure]
) -> None:
    one = scorer(*outputs)
    found = {measure for measure in (*OF_SCORES, *OF_BOXES) if one.can(HardSettings(measure))}
    assert found == set(can)


def test_a_named_output_must_be_there_and_hold_floats() -> None:
    one = scorer(SCORES, DOUBT, CODES)
    assert one.can(HardSettings("output", output="doubt"))
    assert one.problem(HardSettings("output", output="codes")) == (
        "hardness must be floating point, but 'codes' is INT8; add a dequantize step"
    )
    assert "no output 'gone'" in one.problem(HardSettings("output", output="gone"))
    assert "scores, doubt, codes" in one.problem(HardSettings("output", output="gone"))
    assert not one.can(HardSettings("output"))


# --- Scores, boxes, a named output


def test_scores_are_measured_with_their_kind_and_temperature() -> None:
    values = np.array([[3.0, 1.0, 0.0, -1.0], [0.1, 0.1, 0.2, 0.1]], np.float32)
    hard = HardSettings("margin", temperature=2.5)
    expected = hardness(values, "margin", logits=True, temperature=2.5)
    assert scorer(SCORES).score({"scores": values}, hard, 2) == expected
    probabilities = np.array([[0.7, 0.1, 0.1, 0.1]])
    assert scorer(PROBABILITIES).score({"scores": probabilities}, HardSettings("max_prob"), 1) == pytest.approx([0.7])


def test_a_model_without_rows_has_one() -> None:
    one = scorer(output("scores", "logits", (5, 4)), DOUBT, has_rows=False)
    values = np.zeros((5, 4))
    values[2] = (9, 0, 0, 0)
    assert one.score({"scores": values}, HardSettings("margin"), 1) == (0.0,)  # the hardest of its positions
    assert one.score({"doubt": np.array([0.1, 0.7, 0.3])}, HardSettings("output", output="doubt"), 1) == (0.7,)


def test_boxes_are_measured_with_their_own_threshold() -> None:
    made = np.zeros((1, 9, 6), np.float32)
    made[:, :, 5] = -1
    made[0, 0] = (0, 0, 1, 1, 0.6, 3)
    made[0, 1] = (0, 0, 1, 1, 0.9, 3)
    one = scorer(BOXES)
    assert one.score({"boxes": made}, HardSettings("low_share", box_score=0.7), 1) == (0.5,)
    assert one.score({"boxes": made}, HardSettings("mean_score"), 1) == pytest.approx([0.75])
    assert one.score({"boxes": made}, HardSettings("count"), 1) == (2.0,)


def test_logged_chances_give_the_hardness_and_none_crosses_the_threshold() -> None:
    made = np.zeros((2, 9, 6), np.float32)
    made[:, :, 5] = -1
    made[1, 0] = (0, 0, 0.3, 0.3, 0.49999, 3)
    made[1, 1] = (0.5, 0, 1, 1, 0.5, 4)
    made[1, 2] = (0, 0.5, 0.3, 1, 0.87654, 5)
    one, hard = scorer(BOXES), HardSettings(temperature=0.5, bias=1.0, support=-0.4)
    assert one.logged({"boxes": made}, hard, 0, None)["chances"] == ()
    logged = one.logged({"boxes": made}, hard, 1, None)
    assert one.logged({"boxes": made}, hard, 0, None)["supports"] == ()
    assert logged["supports"] == (1.0, 1.0, 1.0), "unknown is another thing"
    assert logged["chances"] == pytest.approx((0.8765, 0.5, 0.4999), abs=1e-9)
    (_, value) = one.score({"boxes": made}, hard, 2)
    line = LogLine(t_s=0.0, model="m", size_bytes=1, **logged)
    assert measured([line], "margin", hard.fit) == pytest.approx([value], abs=1e-3)
    assert scorer(SCORES).logged({"scores": np.zeros((1, 4), np.float32)}, hard, 0, None)["chances"] is None
    made[1, 0, 4] = math.nan
    assert one.logged({"boxes": made}, hard, 1, None) == NO_SCORES


@pytest.mark.parametrize("measure", ["margin", *OF_BOXES])
def test_a_score_that_is_none_makes_a_detectors_row_hard_and_unlogged(measure: Measure) -> None:
    made = np.zeros((2, 9, 6), np.float32)
    made[:, :, 5] = -1
    whole = as_candidates(made)
    possible = {"boxes": [whole[0], replace(whole[1], has_nan=True)]}
    one = scorer(BOXES)
    first, second = one.score({"boxes": made}, HardSettings(measure), 2, possible)
    assert math.isfinite(first)
    assert math.isnan(second)
    assert one.logged({"boxes": made}, HardSettings(measure), 0, possible)["chances"] == ()
    assert one.logged({"boxes": made}, HardSettings(measure), 1, possible) == NO_SCORES


def test_of_several_values_in_a_row_the_hardest_counts() -> None:
    one = scorer(output("doubt", "tensor", (-1, 2, 2), "FP16"))
    values = np.array([[[0.5, 0.25], [0.125, 2.0]], [[0, 0], [0, math.nan]], [[-4, -3], [-2, math.inf]]], np.float16)
    first, second, third = one.score({"doubt": values}, HardSettings("output", output="doubt"), 3)
    assert first == 2.0
    assert math.isnan(second)
    assert math.isnan(third)


@pytest.mark.parametrize("values", [np.zeros((2, 0)), np.zeros((3,)), np.zeros((0, 4))])
def test_outputs_of_other_rows_than_asked_for_are_hard(values: Array) -> None:
    found = scorer(DOUBT).score({"doubt": values}, HardSettings("output", output="doubt"), 2)
    assert len(found) == 2
    assert all(math.isnan(value) for value in found)


# --- Functions


def spread(outputs: Mapping[str, Array]) -> Sequence[float]:
    return [float(row.max() - row.min()) for row in outputs["vector"]]


def breaks(outputs: Mapping[str, Array]) -> Sequence[float]:
    raise RuntimeError("no luck")


def too_few(outputs: Mapping[str, Array]) -> Sequence[float]:
    return [0.1]


def not_numbers(outputs: Mapping[str, Array]) -> Any:
    return ["a", None]


def not_finite(outputs: Mapping[str, Array]) -> Sequence[float]:
    return [0.5, -math.inf]


def meddles(outputs: Mapping[str, Array]) -> Sequence[float]:
    outputs["vector"][:] = 0
    return [0.0, 0.0]


def as_an_array(outputs: Mapping[str, Array]) -> Any:
    return np.array([1, 2], np.float32)


VECTORS = {"vector": np.array([[0.0, 3.0], [1.0, 1.5]])}


def called(name: str) -> HardSettings:
    return HardSettings("function", function=name)


def test_a_function_is_found_by_its_name_and_given_the_outputs(functions: Callable[..., None]) -> None:
    functions(spread=f"{__name__}:spread", array=f"{__name__}:as_an_array")
    one = scorer(EMBEDDING)
    assert one.can(called("spread"))
    assert one.score(VECTORS, called("spread"), 2) == (3.0, 0.5)
    assert one.score(VECTORS, called("array"), 2) == (1.0, 2.0)
    assert one.failures == 0


def test_a_function_that_is_not_there_is_named_with_those_that_are(functions: Callable[..., None]) -> None:
    functions(spread=f"{__name__}:spread", gone=f"{__name__}:gone", text=f"{__name__}:__name__")
    with pytest.raises(ConfigError, match=r"no hardness function 'sprad'; the group .* has: gone, spread, text"):
        hardness_function("sprad")
    with pytest.raises(ConfigError, match="'gone' cannot be loaded"):
        hardness_function("gone")
    with pytest.raises(ConfigError, match="is not callable"):
        hardness_function("text")
    one = scorer(EMBEDDING)
    assert not one.can(called("sprad"))
    assert "'sprad'" in one.problem(called("sprad"))


@pytest.mark.parametrize("name", ["breaks", "too_few", "not_numbers", "meddles"])
def test_a_function_that_fails_makes_its_rows_hard_is_logged_once_and_counted(
    name: str, functions: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    functions(**{name: f"{__name__}:{name}"})
    one = scorer(EMBEDDING)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = one.score(VECTORS, called(name), 2)
            assert len(found) == 2
            assert all(math.isnan(value) for value in found)
    assert one.failures == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert repr(name) in caplog.text
    np.testing.assert_array_equal(VECTORS["vector"], [[0.0, 3.0], [1.0, 1.5]])


def test_a_value_that_is_not_finite_makes_its_own_row_hard(functions: Callable[..., None]) -> None:
    functions(bad=f"{__name__}:not_finite")
    one = scorer(EMBEDDING)
    first, second = one.score(VECTORS, called("bad"), 2)
    assert first == 0.5
    assert math.isnan(second)
    assert one.failures == 1


# --- For logs


POSITIONS = output("scores", "logits", (-1, 3, 4))


def boxes_and_classes(rows: int, classes: LogicalOutput) -> dict[str, Array]:
    """Up to four boxes a row, far apart, with scores from 0.1 to 1, and any logits."""
    rng = np.random.default_rng(3)
    boxes = np.zeros((rows, 9, 6), np.float32)
    boxes[:, :, 5] = -1
    for row in boxes:
        count = int(rng.integers(0, 5))
        row[:count, 0] = row[:count, 1] = np.arange(count) * 0.2
        row[:count, 2] = row[:count, 3] = np.arange(count) * 0.2 + 0.1
        row[:count, 4] = rng.uniform(0.1, 1.0, count)
        row[:count, 5] = 3
    return {"boxes": boxes, "scores": rng.normal(0, 2, (rows, *classes.spec.shape[1:])).astype(np.float32)}


@pytest.mark.parametrize("classes", [SCORES, POSITIONS], ids=["one vector", "positions"])
@pytest.mark.parametrize("measure", ["margin", "doubtful"])
def test_a_model_with_boxes_and_classes_is_calibrated_as_it_will_be_measured(
    classes: LogicalOutput, measure: Measure
) -> None:
    one, count = scorer(BOXES, classes), 1500
    outputs = boxes_and_classes(count, classes)
    rng, plain = np.random.default_rng(5), HardSettings(measure, **uncalibrated(measure)._asdict())
    measures, before = one.score_all(outputs, plain, count), one.score(outputs, plain, count)
    logged = [
        LogLine(t_s=row, model="m", size_bytes=1, hardness=measures[row], edge_correct=bool(rng.random() < 0.7),
                cloud_correct=True, **one.logged(outputs, plain, row, None))
        for row in range(count)
    ]  # fmt: skip
    as_replayed = [score(request, plain) for request in prepare(logged)]
    assert measured(logged, measure).tolist() == pytest.approx(before, abs=2e-3)
    assert as_replayed == pytest.approx(before, abs=2e-3)
    first = {"margin": "below: 0.75", "doubtful": "above: 5"}[measure]
    written = f"{{measure: {measure}, {first}, cloud_share: 20%}}"
    text = PolicyText(f"version: 1\ndefaults: {{hard: {written}}}\n", Path("policy.yaml"))
    text.add(calibration_of(logged, CompiledPolicy(text.policy()), plain, ModelPair(), Target(cloud_share=0.2)))
    hard = text.policy().settings("m", None).hard
    assert hard is not None
    assert hard.calibrated
    assert measure == "doubtful" or hard.fit[1:] == UNMOVED[1:], "its margin is that of its classes"
    is_sent = [is_hard(value, measure, hard.threshold) for value in one.score(outputs, hard, count)]
    assert np.mean(is_sent) == pytest.approx(0.2, abs=0.02)
    assert one.score(outputs, hard, count) == pytest.approx(measured(logged, measure, hard.fit).tolist(), abs=5e-3)


def test_all_measures_that_apply_are_measured_at_temperature_one(functions: Callable[..., None]) -> None:
    functions(spread=f"{__name__}:spread")
    one = scorer(SCORES, DOUBT, EMBEDDING)
    values = np.array([[3.0, 1.0, 0.0, -1.0], [math.nan, 0, 0, 0]])
    outputs = {"scores": values, "doubt": np.array([0.25, 0.5]), **VECTORS}
    hard = HardSettings("margin", temperature=9.0, output="doubt", function="spread")
    first, second = one.score_all(outputs, hard, 2)
    expected = {measure: hardness(values[:1], measure, logits=True)[0] for measure in OF_SCORES}
    assert first == pytest.approx({**expected, "output": 0.25, "function": 3.0})
    assert second == {"output": 0.5, "function": 0.5}


def test_no_package_is_searched_for_a_function_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    hardness_function.cache_clear()
    assert "function" not in scorer(SCORES).score_all({"scores": np.ones((1, 4))}, HardSettings(), 1)[0]


def test_logits_are_those_of_one_row_or_none() -> None:
    one = scorer(SCORES)
    outputs = {"scores": np.array([[1.0, 2.0, 3.0, 4.0], [math.nan, 0, 0, 0]], np.float32)}
    assert one.logits(outputs, 0) == (1.0, 2.0, 3.0, 4.0)
    assert one.logits(outputs, 1) is None
    found = scorer(PROBABILITIES).logits({"scores": np.array([[0.5, 0.5, 0.0, 0.0]])}, 0)
    assert found is not None
    assert np.exp(found) == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert all(map(math.isfinite, found))
    assert scorer(PROBABILITIES).logits({"scores": np.array([[7.0, 0.5, 0.0, 0.0]])}, 0) is None
    assert scorer(EMBEDDING).logits(VECTORS, 0) is None
    several = scorer(output("scores", "logits", (-1, 2, 3)))
    assert several.logits({"scores": np.zeros((1, 2, 3))}, 0) is None
    single = scorer(output("scores", "logits", (-1, 1)))
    assert single.logits({"scores": np.array([[3.0]])}, 0) == (-1.5, 1.5)


# --- Quantized outputs: what reaches hardness is real units


REAL = np.array([[2.0, 0.5, -1.0], [0.25, 0.0, 0.25]])
SCALE, ZERO_POINT = 0.25, -3
QUANTIZED = (REAL / SCALE + ZERO_POINT).astype(np.int8)
SIGNATURE = """
signature:
  inputs: {{x: {{kind: tensor, dtype: INT8, shape: [-1, 3]}}}}
  outputs: {{scores: {{kind: logits}}}}
post:
  - {step}
"""


def tflite_int8(folder: Path) -> Path:
    """An identity on quantized INT8, as converters write it: scale and zero point beside the tensor."""
    options = schema.ReshapeOptionsT()
    options.newShape = [1, 3]
    operator = tflite_for_tests.Op(
        schema.BuiltinOperator.RESHAPE, (0, 1), (2,), schema.BuiltinOptions.ReshapeOptions, options
    )
    quantization = (SCALE, ZERO_POINT)
    tensors = [
        tflite_for_tests.T("x", (1, 3), "INT8", quantization=quantization),
        tflite_for_tests.T("shape", (2,), "INT32", np.array([1, 3], np.int32)),
        tflite_for_tests.T("y", (1, 3), "INT8", quantization=quantization),
    ]
    return tflite_for_tests.save(folder / "model.tflite", tensors, [operator], [0], [2])


def onnx_int8(folder: Path) -> Path:
    """The same in ONNX, where the quantized output is a plain INT8 tensor."""
    node = helper.make_node("Identity", ["x"], ["y"])
    tensor = models_for_tests.tensor
    shape: list[int | str | None] = ["rows", 3]
    return models_for_tests.save(
        folder / "model.onnx", [node], [tensor("x", shape, "INT8")], [tensor("y", shape, "INT8")]
    )


def edge_model(path: Path, step: str) -> EdgeModel:
    runtime = load_runtime(path, RuntimeOptions(threads=1))
    described = parse_yaml(SIGNATURE.format(step=step), ModelDescription)
    return EdgeModel(runtime, Processor(described, runtime.inputs, runtime.outputs, runtime.name), ModelSource(""))


@pytest.mark.parametrize("make", [tflite_int8, onnx_int8])
@pytest.mark.parametrize("measure", OF_SCORES)
def test_a_quantized_output_is_measured_in_real_units(
    make: Callable[[Path], Path], measure: Measure, tmp_path: Path
) -> None:
    step = f"dequantize: {{from: y, to: scores, scale: {SCALE}, zero_point: {ZERO_POINT}}}"
    edge = edge_model(make(tmp_path), step)
    try:
        assert {spec.datatype for spec in edge.runtime.outputs} == {"INT8"}
        outputs = edge.run({"x": QUANTIZED}, math.inf).outputs
    finally:
        edge.close()
    found = Scorer(edge.signature).score(outputs, HardSettings(measure), 2)
    assert found == pytest.approx(hardness(REAL, measure, logits=True))
    if measure != "logit_norm":  # which knows neither scale nor shift
        assert found != pytest.approx(hardness(QUANTIZED, measure, logits=True))
    assert Scorer(edge.signature).logits(outputs, 0) == tuple(REAL[0])


@pytest.mark.parametrize("make", [tflite_int8, onnx_int8])
def test_raw_steps_are_never_taken_for_scores(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logits must be floating point, got INT8.*a dequantize step"):
        edge_model(make(tmp_path), "rename: {from: y, to: scores}")


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_the_demo_models_which_compute_in_int8_give_the_scores_of_their_fp32_arithmetic(suffix: str) -> None:
    """Both quantize inside and give FP32 logits: what is measured must be that of one picture on either runtime."""
    bundle = ASSETS / "edge" / "digits"
    runtime = load_runtime(bundle / f"model.{suffix}", RuntimeOptions(threads=1))
    edge = EdgeModel(
        runtime,
        Processor(load_yaml(bundle / "model.yaml", ModelDescription), runtime.inputs, runtime.outputs, runtime.name),
        ModelSource(""),
    )
    pictures = np.empty(20, np.object_)
    pictures[:] = [digit_png(image) for image in heldout().images[:20]]
    try:
        outputs = edge.run({"image": pictures}, math.inf).outputs
    finally:
        edge.close()
    found = Scorer(edge.signature).score(outputs, HardSettings("max_prob"), 20)
    assert found == pytest.approx(outputs["scores"].max(axis=1).tolist(), abs=1e-6)
    assert all(0.1 <= value <= 1 for value in found)
    if suffix == "onnx":
        types = {node.op_type for node in onnx.load(str(bundle / "model.onnx")).graph.node}
        assert "QuantizeLinear" in types


def test_keypoints_are_as_hard_as_those_that_are_hardly_seen() -> None:
    made = np.zeros((1, 2, 12), np.float32)
    made[0, 0] = (0, 0, 1, 1, 0.9, 0, 0.5, 0.5, 0.9, 0.5, 0.5, 0.2)
    made[0, 1, 5] = -1
    one = scorer(output("boxes", "detections", (-1, 2, 12)))
    assert one.score({"boxes": made}, HardSettings("low_share", box_score=0.5), 1) == (0.5,)
    made[0, 0, 11] = math.nan
    assert math.isnan(one.score({"boxes": made}, HardSettings("low_share", box_score=0.5), 1)[0])


def test_a_turned_box_is_as_hard_as_its_score_and_not_its_corners() -> None:
    made = np.full((1, 1, 14), 0.1, np.float32)
    made[0, 0, 2:6] = (1, 1, 0.9, 0)
    one = scorer(output("boxes", "detections", (-1, 1, 14)))
    assert one.score({"boxes": made}, HardSettings("low_share", box_score=0.5), 1) == (0.0,)
    assert one.score({"boxes": made}, HardSettings("mean_score"), 1) == pytest.approx([0.9])


def test_segments_are_as_sure_as_their_pixels_that_were_seen() -> None:
    one = scorer(output("segments", "segments", (-1, 2, 2, 2), "UINT8"))
    made = np.zeros((2, 2, 2, 2), np.uint8)
    made[0, :, :, 1] = [[255, 0], [51, 204]]
    made[1, :, :, 0] = [[255, 255], [255, 3]]
    made[1, :, :, 1] = [[9, 9], [9, 51]]
    hard = HardSettings("margin")
    assert one.can(hard)
    assert one.score({"segments": made}, hard, 2) == pytest.approx([0.5, 0.2])
    made[1, :, :, 0] = 255
    assert math.isnan(one.score({"segments": made}, hard, 2)[1])
    assert not one.can(HardSettings("entropy"))
