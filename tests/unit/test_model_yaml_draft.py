"""A starting `model.yaml` guesses well for common models and loads for every model."""

import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.model_yaml_draft import starting_description

Spec = tuple[str, str, tuple[int, ...]]


def started(inputs: list[Spec], outputs: list[Spec]) -> tuple[str, Processor]:
    takes, gives = ([TensorSpec(*one) for one in some] for some in (inputs, outputs))
    text = starting_description(takes, gives)
    return text, Processor(parse_yaml(text, ModelDescription), takes, gives, "onnx")


@pytest.mark.parametrize(
    ("inputs", "outputs", "kinds", "lines"),
    [
        (
            [("input", "FP32", (-1, 3, 224, 224))],
            [("logits", "FP32", (-1, 10))],
            ["image", "logits"],
            ["to: [224, 224], fit: cover", "normalize:", "order: NCHW", "probabilities, where a row sums to 1"],
        ),
        (
            [("x", "FP32", (1, 28, 28, 1))],
            [("softmax_out", "FP32", (1, 10))],
            ["image", "tensor"],
            ["color: gray"],
        ),
        (
            [("x:0", "UINT8", (1, 8, 8, 3))],
            [("y:0", "UINT8", (1, 10))],
            ["image", "tensor"],
            ['dequantize: {from: "y:0"'],
        ),
        ([("x", "INT8", (1, 8, 8, 1))], [("y", "INT8", (1, 10))], ["image", "tensor"], ["zero_point: -128"]),
        (
            [("images", "FP32", (1, 3, 640, 640))],
            [("output0", "FP32", (1, 84, 8400))],
            ["image", "detections"],
            ["axes: NCA, format: cxcywh}", "fit: contain"],
        ),
        (
            [("images", "FP32", (-1, 3, -1, -1))],
            [("output0", "FP32", (-1, 25200, 85))],
            ["image", "detections"],
            ["axes: NAC, format: cxcywh, objectness: true"],
        ),
        (
            [("x", "FP32", (-1, 3, 300, 300))],
            [("boxes", "FP32", (-1, 8732, 4)), ("scores", "FP32", (-1, 8732, 21))],
            ["image", "detections"],
            ["boxes: boxes, scores: scores, format: xyxy", "background: 0"],
        ),
        (
            [("x", "UINT8", (1, 300, 300, 3))],
            [("a", "FP32", (1, 10, 4)), ("b", "FP32", (1, 10)), ("c", "FP32", (1, 10)), ("d", "FP32", (1,))],
            ["image", "detections"],
            ["boxes: a, classes: b, scores: c, format: yxyx"],
        ),
        ([("ids", "INT64", (-1, -1))], [("out", "FP32", (-1, 2))], ["tensor", "logits"], ["dtype: INT64"]),
        ([("x", "FP32", (4, 3))], [("y", "INT64", (4,))], ["tensor", "tensor"], ["rows: false"]),
        ([("x", "FP32", ())], [("y", "FP32", ())], ["tensor", "tensor"], ["rows: false", "shape: []"]),
        (
            [("x", "FP32", (8, 3, 32, 32)), ("size", "INT64", (8, 2))],
            [("y", "FP32", (8, 5))],
            ["image", "tensor", "logits"],
            ["x: {kind: image}"],
        ),
    ],
)
def test_guesses(inputs: list[Spec], outputs: list[Spec], kinds: list[str], lines: list[str]) -> None:
    text, processor = started(inputs, outputs)
    signature = processor.signature
    assert [one.kind for one in signature.inputs] + [one.kind for one in signature.outputs] == kinds
    for line in lines:
        assert line in text


def test_every_line_fits_a_page() -> None:
    text, _ = started([("x", "INT8", (1, 3, 8, 8))], [("y", "INT8", (1, 10))])
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.parametrize(
    "name", ["null", "true", "1", "a: b", "a#b", "{x}", 'q"\\', "-", "tab\tx", "é", "\x85", "*a", " "]
)
def test_names_that_yaml_would_read_otherwise(name: str) -> None:
    _, processor = started([(name, "FP32", (-1, 2))], [(name, "FP32", (-1, 2))])
    assert processor.signature.inputs[0].name == name
    assert processor.signature.outputs[0].name == name
