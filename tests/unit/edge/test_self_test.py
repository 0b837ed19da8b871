"""Made-up requests: of every kind of input, the same each time, and enough to tell garbage from an answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from upwell.edge.bundle.output_tolerances import Tolerances
from upwell.edge.models.self_test import ROWS, check_with_cpu, synthetic_inputs
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import DTYPES, Array, TensorSpec

DETECTOR = """
signature:
  inputs: {image: {kind: image}}
  outputs: {found: {kind: detections}}
pre: [{decode: image}, {resize: {to: [16, 16]}}, {normalize: {}}]
post: [{boxes: {from: raw, format: cxcywh, min_score: 0.9}}]
"""


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_every_datatype_can_be_made_up_the_same_each_time(datatype: str) -> None:
    spec = TensorSpec("x", datatype, (-1, 3, -1))
    processor = Processor(None, [spec], [spec], "onnx")
    first, second = synthetic_inputs(processor.signature, 5), synthetic_inputs(processor.signature, 5)
    assert (first["x"].shape, first["x"].dtype) == ((ROWS, 3, 5), DTYPES[datatype])
    assert first["x"].tolist() == second["x"].tolist()
    assert processor.signature.check_inputs(first) == ROWS
    if datatype != "BYTES":
        assert len(np.unique(first["x"].astype(float))) > 1


def test_a_request_that_is_one_whole_keeps_its_sizes() -> None:
    specs = [TensorSpec("x", "FP32", (7, 3)), TensorSpec("y", "FP32", (2,))]
    processor = Processor(None, specs[:1], specs[1:], "onnx")
    assert synthetic_inputs(processor.signature)["x"].shape == (7, 3)


def runtime(change: float = 1.0, *, fails_over: int = 1 << 30) -> FakeRuntime:
    specs = [TensorSpec("x", "FP32", (-1, -1)), TensorSpec("y", "FP32", (-1, -1))]

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if inputs["x"].shape[1] > fails_over:
            raise InvalidRequest("too long")
        return {"y": inputs["x"] * np.float32(change)}

    return FakeRuntime(run, specs[:1], specs[1:])


def judged(change: float, **cpu: int) -> tuple[bool, str]:
    witness = runtime(**cpu)
    processor = Processor(None, witness.inputs, witness.outputs, "onnx")
    verdict = check_with_cpu(processor, runtime(change), witness, Tolerances())
    return verdict.passed, verdict.text


def test_the_cpu_is_the_measure() -> None:
    assert judged(1.04)[0]
    assert judged(1.06) == (False, "y: relative error 6 %, at most 5 % allowed")


def test_a_size_is_found_that_the_cpu_takes() -> None:
    assert judged(1.0, fails_over=1)[0]
    passed, text = judged(1.0, fails_over=0)
    assert not passed
    assert text.startswith("it cannot be checked: there are no golden vectors, and the CPU fails too: ")
    assert text.endswith("too long")


def test_an_accelerator_that_fails_where_the_cpu_answers_has_not_passed() -> None:
    witness, other = runtime(), runtime(fails_over=1)
    verdict = check_with_cpu(Processor(None, witness.inputs, witness.outputs, "onnx"), other, witness, Tolerances())
    assert not verdict.passed
    assert verdict.text.startswith("it fails where the CPU succeeds: ")


@pytest.mark.parametrize(("noise", "passed"), [(0.0, True), (0.5, False)])
def test_a_detector_is_compared_by_what_it_says_before_anything_is_found(noise: float, passed: bool) -> None:
    specs = [TensorSpec("image", "FP32", (1, 16, 16, 3)), TensorSpec("raw", "FP32", (1, 6, 20))]

    def detector(noise: float) -> FakeRuntime:
        def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            return {"raw": inputs["image"].reshape(1, -1)[:, :120].reshape(1, 6, 20) * np.float32(0.5) + noise}

        return FakeRuntime(lambda inputs: {"raw": run(inputs)["raw"].astype(np.float32)}, specs[:1], specs[1:])

    processor = Processor(parse_yaml(DETECTOR, ModelDescription), specs[:1], specs[1:], "onnx")
    assert check_with_cpu(processor, detector(noise), detector(0.0), Tolerances()).passed is passed
