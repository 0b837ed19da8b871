"""A description against a model's tensors: every mistake that can be seen at load is told at load, with its place."""

import re
from typing import Any

import numpy as np
import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec

CLASSIFIER = """\
version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {scores: {kind: probabilities, labels: [a, b, c]}}
pre: [{decode: image}, {resize: {to: [4, 6], fit: cover}}, {normalize: {mean: [0.1, 0.2, 0.3]}}, {layout: NCHW}]
post: [{softmax: {from: logits, to: scores}}]
"""


def processor(
    text: str, inputs: list[tuple[Any, ...]], outputs: list[tuple[Any, ...]], runtime: str = "onnx"
) -> Processor:
    specs = [[TensorSpec(*one) for one in some] for some in (inputs, outputs)]
    return Processor(parse_yaml(text, ModelDescription), specs[0], specs[1], runtime)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "{layout: NCHW}",
            "{layout: NHWC}",
            "5:6: pre: the model takes 'input' FP32 [-1, 3, 4, 6], but 'image' is FP32 "
            "[-1, 4, 6, 3] after `pre`; {layout: NCHW} changes the order",
        ),
        (
            "{normalize: {mean: [0.1, 0.2, 0.3]}}, ",
            "",
            "5:6: pre: the model takes 'input' FP32 [-1, 3, 4, 6], but 'image' is UINT8 "
            "[-1, 3, 4, 6] after `pre`; a normalize step gives FP32",
        ),
        ("[0.1, 0.2, 0.3]", "[0.1, 0.2]", "5:72: pre[2].normalize: mean has 2 numbers for 3 channels"),
        (
            "[4, 6]",
            "[6, 4]",
            "5:6: pre: the model takes 'input' FP32 [-1, 3, 4, 6], but 'image' is FP32 [-1, 3, 6, 4] after `pre`",
        ),
        (
            "{decode: image}, ",
            "",
            "5:16: pre[0].resize: the pictures in 'image' are encoded; write {decode: image} before this step",
        ),
        (
            "{decode: image}",
            "{decode: picture}",
            "5:16: pre[0].decode: no value 'picture' here; available: image",
        ),
        ("{decode: image}", "{decode: image}, {decode: image}", None),
        (
            "{decode: image}",
            "{decode: {color: gray}}",
            "5:80: pre[2].normalize: mean has 3 numbers for 1 channels",
        ),
        (
            "{layout: NCHW}",
            "{layout: NCHW}, {crop: {to: [1, 1]}}",
            "5:121: pre[4].crop: expected pictures, UINT8 [rows, height, width, 1 or 3], in 'image', "
            "got FP32 [-1, 3, 4, 6]",
        ),
        (
            "fit: cover}}",
            "fit: cover}}, {crop: {to: [5, 6]}}",
            "5:67: pre[2].crop: cannot crop [4, 6] to the larger size [5, 6]",
        ),
        (
            "from: logits",
            "from: logit",
            "6:18: post[0].softmax: no value 'logit' here; available: logits",
        ),
        ("to: scores", "to: score", None),
        ("[a, b, c]", "[a, b]", "4:51: signature.outputs.scores.labels: 2 labels for 3 classes"),
        (
            "probabilities",
            "detections",
            "4:28: signature.outputs.scores.kind: detections must be FP32 [rows, boxes, 6 or more], got FP32 [-1, "
            "3]; add a boxes step",
        ),
        ("softmax: {", "top_k: {k: 4, ", "6:16: post[0].top_k: cannot take the best 4 of 3 classes"),
        (
            "softmax: {",
            "top_k: {k: 1, classes: scores, ",
            "6:16: post[0].top_k: scores and classes cannot both be named 'scores'; change `to` or `classes`",
        ),
        (
            "softmax: {",
            "labels: {",
            "6:17: post[0].labels: expected class numbers (integers) or detections in 'logits', got FP32 [-1, 3]",
        ),
        (
            "softmax: {",
            "boxes: {format: xyxy, ",
            "6:16: post[0].boxes: expected [rows, 4 + classes, boxes] with axes NCA in 'logits', got FP32 [-1, 3]",
        ),
        (
            "image: {kind: image}",
            "a: {kind: image}, b: {kind: image}",
            "5:16: pre[0].decode: no value 'image' here; available: a, b",
        ),
        ("image: {kind: image}", "image: {kind: image}, n: {kind: tensor, dtype: FP32, shape: [3]}", None),
    ],
)
def test_mistakes_that_the_models_tensors_reveal(old: str, new: str, expected: str | None) -> None:
    assert old in CLASSIFIER
    text = CLASSIFIER.replace(old, new)
    if expected is None:
        processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))])
        return
    with pytest.raises(ConfigError) as caught:
        processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))])
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (
            [("input", "FP32", (-1, 3, 4, 6))],
            [("logits", "INT8", (-1, 3))],
            "post[0].softmax: expected floating point numbers in 'logits', got INT8 [-1, 3]; write a "
            "dequantize step before this",
        ),
        ([("input", "UINT8", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))], "a quantize step gives UINT8"),
        (
            [("input", "FP32", (-1, 3, 4, 6))],
            [("logits", "FP32", (7, 3))],
            "the model's output 'logits' FP32 [7, 3] has no rows; write `rows: false` in the signature",
        ),
        (
            [("input", "FP32", (3, 4, 6))],
            [("logits", "FP32", (-1, 3))],
            "the model takes 'input' FP32 [3, 4, 6], but",
        ),
        (
            [("a", "FP32", (-1, 3, 4, 6)), ("b", "FP32", (-1, 2))],
            [("logits", "FP32", (-1, 3))],
            "no value for model input 'a'; available: image",
        ),
        (
            [("input", "FP32", (-1, 3, 4, 6))],
            [("a", "FP32", (-1, 3)), ("b", "FP32", (-1, 3))],
            "no value 'logits' here; available: a, b",
        ),
    ],
)
def test_models_that_the_description_does_not_fit(
    inputs: list[tuple[Any, ...]], outputs: list[tuple[Any, ...]], expected: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        processor(CLASSIFIER, inputs, outputs)


BOXES = [("b", "FP32", (-1, 9, 4)), ("s", "FP32", (-1, 9, 2)), ("c", "INT64", (-1, 9))]


@pytest.mark.parametrize(
    ("step", "outputs", "expected"),
    [
        ("boxes: {format: xyxy, boxes: b, scores: s}", BOXES, None),
        (
            "boxes: {format: xyxy, boxes: b, scores: s, classes: c}",
            BOXES,
            "expected scores and classes [rows, boxes], ",
        ),
        (
            "boxes: {format: xyxy, boxes: s, scores: s}",
            BOXES,
            "expected boxes [rows, boxes, 4] in 's', got FP32 [-1, 9, 2]",
        ),
        (
            "boxes: {format: xyxy, boxes: b, scores: c}",
            BOXES,
            "expected floating point numbers in 'c', got INT64 [-1, 9]",
        ),
        ("boxes: {format: xyxy, boxes: b, scores: x}", BOXES, "no value 'x' here; available: b, s, c"),
        (
            "boxes: {format: xyxy, boxes: b, scores: s, background: 2}",
            BOXES,
            "the background class 2 is not among 2 classes",
        ),
        ("boxes: {format: xyxy}", BOXES, "there are several values; choose one with `from`: b, s, c"),
        (
            "softmax: {to: detections}",
            [("y", "FP32", (-1, 9, 5))],
            "detections must be FP32 [rows, boxes, 6 or more], got FP32",
        ),
        (
            "boxes: {format: xyxy}",
            [("y", "FP32", (-1, 4, 9))],
            "expected [rows, 4 + classes, boxes] with axes NCA in 'y'",
        ),
        ("boxes: {format: xyxy}", [("y", "FP32", (-1, 8, 9))], "2 labels for 4 classes"),
        ("rename: {from: y, to: detections}", [("y", "FP32", (-1, 5, 6))], None),
        (
            "rename: {from: y, to: detections}",
            [("y", "FP32", (-1, 5, 7))],
            "detections must be FP32 [rows, boxes, 6 or more]",
        ),
        ("sigmoid: y", [("y", "FP32", (-1, 5, 6))], None),
        ("sigmoid: y", [("y", "BYTES", (-1, 5, 6))], "expected floating point numbers in 'y', got BYTES"),
        (
            "dequantize: {scale: 1}",
            [("y", "BYTES", (-1, 5, 6))],
            "expected numbers in 'y', got BYTES [-1, 5, 6]; write",
        ),
    ],
)
def test_detectors_that_do_not_fit(step: str, outputs: list[tuple[Any, ...]], expected: str | None) -> None:
    text = (
        "version: 1\n"
        "signature: {inputs: {image: {kind: image}}, outputs: {detections: {kind: detections, labels: [a, b]}}}\n"
        f"pre: [{{decode: image}}]\npost: [{{{step}}}]\n"
    )
    if expected is None:
        assert processor(text, [("x", "UINT8", (-1, -1, -1, 3))], outputs).signature.outputs[0].kind == "detections"
        return
    with pytest.raises(ConfigError, match=re.escape(expected)):
        processor(text, [("x", "UINT8", (-1, -1, -1, 3))], outputs)


TENSOR = """\
version: 1
signature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 3, 4, 4]}}, outputs: {y: {kind: probabilities}}}
"""


@pytest.mark.parametrize(
    ("rest", "takes", "gives", "expected"),
    [
        ("pre: [layout: NHWC]", (-1, 4, 4, 3), ("FP32", (-1, 2)), None),
        ("pre: [{rename: {from: x, to: z}}]", (-1, 3, 4, 4), ("FP32", (-1, 2)), None),
        (
            "pre: [decode: x]",
            (-1, 3, 4, 4),
            ("FP32", (-1, 2)),
            "expected encoded pictures, BYTES [rows], or pixels in 'x'",
        ),
        (
            "",
            (-1, 3, 4, 4),
            ("INT8", (-1, 2)),
            "probabilities must be floating point, got INT8 [-1, 2]; add a dequantize",
        ),
        (
            "pre: [layout: NHWC]\npost: [boxes: {format: xyxy}]",
            (-1, 4, 4, 3),
            ("FP32", (-1, 6, 9)),
            "boxes in pixels need a picture resized by `pre`",
        ),
        ("", (-1, 3, 4, 4), ("FP32", (-1,)), "probabilities must be [rows, classes], got FP32 [-1]"),
        (
            "post: [top_k: {k: 1}, labels: classes]",
            (-1, 3, 4, 4),
            ("FP32", (-1, 2)),
            "there are no labels; give them here or at",
        ),
        (
            "post: [top_k: {k: 1}, labels: {from: classes, labels: [a]}]",
            (-1, 3, 4, 4),
            ("FP32", (-1, 2)),
            "1 labels for 2 classes",
        ),
        (
            "post: [boxes: {format: xyxy}]",
            (-1, 3, 4, 4),
            ("FP32", (-1, 6, 9)),
            "boxes in pixels need a picture resized by `pre`",
        ),
        (
            "",
            (1, 3, 4, 5),
            ("FP32", (-1, 2)),
            "the model takes 'x' FP32 [1, 3, 4, 5], but 'x' is FP32",
        ),
    ],
)
def test_plain_tensors(rest: str, takes: tuple[int, ...], gives: tuple[Any, ...], expected: str | None) -> None:
    if expected is None:
        p = processor(TENSOR + rest, [("x", "FP32", takes)], [("y", *gives)])
        x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
        sent = p.pre({"x": x}).tensors["x"]
        assert np.array_equal(sent if sent.shape[1] == 3 else sent.transpose(0, 3, 1, 2), x)
        return
    with pytest.raises(ConfigError, match=re.escape(expected)):
        processor(TENSOR + rest, [("x", "FP32", takes)], [("y", *gives)])


def test_inputs_that_do_not_share_their_rows() -> None:
    more = "[-1, 3, 4, 4]}, n: {kind: tensor, dtype: FP32, shape: [1]}}"
    text = TENSOR.replace("[-1, 3, 4, 4]}}", more)
    inputs = [("x", "FP32", (-1, 3, 4, 4)), ("n", "FP32", (1,))]
    with pytest.raises(ConfigError, match="the model's inputs do not share their rows: 'x' FP32"):
        processor(text, inputs, [("y", "FP32", (-1, 2))])
    whole = processor(text.replace("{inputs", "{rows: false, inputs"), inputs, [("y", "FP32", (-1, 2))])
    assert whole.pre({"x": np.zeros((2, 3, 4, 4), np.float32), "n": np.zeros(1, np.float32)}).rows == 1
    assert [one.spec.shape for one in whole.signature.inputs] == [(-1, 3, 4, 4), (1,)]


def test_steps_that_need_rank_4() -> None:
    text = TENSOR.replace("[-1, 3, 4, 4]", "[-1, 3]") + "pre: [layout: NCHW]\n"
    with pytest.raises(ConfigError, match=re.escape("expected rank 4 in 'x', got FP32 [-1, 3]")):
        processor(text, [("x", "FP32", (-1, 3))], [("y", "FP32", (-1, 2))])


def test_mistakes_before_and_after_the_model_are_told_together() -> None:
    text = CLASSIFIER.replace("NCHW", "NHWC").replace("from: logits", "from: logit")
    with pytest.raises(ConfigError) as caught:
        processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))])
    assert [problem.key for problem in caught.value.problems] == ["pre", "post[0].softmax"]
