"""The whole way: what callers send -> a model's tensors -> what callers get, and what is found wrong at load."""

import io
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor, versions
from upwell.shared.tensors import Array, TensorSpec

CLASSIFIER = """\
version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {scores: {kind: probabilities, labels: [a, b, c]}}
pre: [{decode: image}, {resize: {to: [4, 6], fit: cover}}, {normalize: {mean: [0.1, 0.2, 0.3]}}, {layout: NCHW}]
post: [{softmax: {from: logits, to: scores}}]
"""
DETECTOR = """\
version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {detections: {kind: detections, labels: [cat, dog]}, names: {kind: tensor}}
pre: [{decode: image}, {resize: {to: [100, 100], fit: contain}}, {normalize: }, {layout: NCHW}]
post: [{boxes: {format: cxcywh, max: 3}}, {labels: {from: detections, to: names}}]
"""


def processor(
    text: str, inputs: list[tuple[Any, ...]], outputs: list[tuple[Any, ...]], runtime: str = "onnx"
) -> Processor:
    specs = [[TensorSpec(*one) for one in some] for some in (inputs, outputs)]
    return Processor(parse_yaml(text, ModelDescription), specs[0], specs[1], runtime)


def classifier(rows: int = -1) -> Processor:
    return processor(CLASSIFIER, [("input", "FP32", (rows, 3, 4, 6))], [("logits", "FP32", (rows, 3))])


def pictures(*sizes: tuple[int, int]) -> Array:
    array = np.empty(len(sizes), np.object_)
    for row, (height, width) in enumerate(sizes):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(row).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
            file, "PNG"
        )
        array[row] = file.getvalue()
    return array


def mean_of_channels(tensors: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": tensors["input"].mean(axis=(2, 3)), "unused": np.zeros(3)}


def test_a_classifier() -> None:
    p = classifier()
    assert not p.identity
    assert p.signature.has_rows
    assert p.signature.scores is not None
    assert p.signature.scores.labels == ("a", "b", "c")
    assert p.signature.scores.spec == TensorSpec("scores", "FP32", (-1, 3))
    prepared = p.pre({"image": pictures((9, 8), (4, 6), (30, 7))})
    assert prepared.rows == 3
    assert prepared.tensors["input"].shape == (3, 3, 4, 6)
    assert prepared.tensors["input"].flags.c_contiguous
    outputs = p.post(p.run_rows(mean_of_channels, prepared), prepared)
    np.testing.assert_allclose(outputs["scores"].sum(axis=1), 1, atol=1e-6)


def test_encoded_pictures_and_pixels_give_the_same_tensors() -> None:
    p = classifier()
    encoded = pictures((9, 8))
    pixels = np.asarray(Image.open(io.BytesIO(encoded[0])))[None]
    one, other = p.pre({"image": encoded}), p.pre({"image": pixels})
    assert np.array_equal(one.tensors["input"], other.tensors["input"])


@pytest.mark.parametrize("fixed", [1, 2, 3, 5])
def test_a_fixed_leading_dimension_is_run_in_chunks(fixed: int) -> None:
    free, chunked = classifier(), classifier(fixed)
    prepared = chunked.pre({"image": pictures((9, 8), (4, 6), (30, 7))})
    seen: list[tuple[int, ...]] = []

    def run(tensors: Mapping[str, Array]) -> dict[str, Array]:
        seen.append(tensors["input"].shape)
        return mean_of_channels(tensors)

    outputs = chunked.run_rows(run, prepared)
    assert seen == [(fixed, 3, 4, 6)] * -(-3 // fixed)
    assert np.array_equal(outputs["logits"], free.run_rows(mean_of_channels, prepared)["logits"])


def test_a_model_that_gives_the_wrong_rows() -> None:
    p = classifier()
    prepared = p.pre({"image": pictures((9, 8), (4, 6))})
    with pytest.raises(ModelFailed, match=re.escape("gave [1, 3] as 'logits' for 2 rows")):
        p.post({"logits": np.zeros((1, 3), np.float32)}, prepared)
    with pytest.raises(ModelFailed, match=re.escape("gave [3] as 'logits' for 1 rows")):
        classifier(1).run_rows(lambda _: {"logits": np.zeros(3, np.float32)}, prepared)
    shapes = iter([(1, 3), (1, 4)])
    with pytest.raises(ModelFailed, match=re.escape("'logits' in different shapes for different rows")):
        classifier(1).run_rows(lambda _: {"logits": np.zeros(next(shapes), np.float32)}, prepared)


def test_a_detector_finds_the_box_in_the_original() -> None:
    p = processor(DETECTOR, [("images", "FP32", (1, 3, 100, 100))], [("out", "FP32", (1, 6, -1))])
    prepared = p.pre({"image": np.zeros((2, 50, 200, 3), np.uint8)})
    out = np.zeros((2, 6, 8), np.float32)
    out[0, :, 4] = [50, 50, 20, 10, 0.1, 0.9]  # the picture is 100 x 25, from y = 37 on
    outputs = p.post({"out": out}, prepared)
    np.testing.assert_allclose(outputs["detections"][0, 0], [0.4, 0.32, 0.6, 0.72, 0.9, 1], atol=1e-6)
    assert (outputs["detections"][1] == np.array([0, 0, 0, 0, 0, -1], np.float32)).all()
    assert outputs["names"].tolist() == [[b"dog", b"", b""], [b"", b"", b""]]
    assert p.signature.scores is None


@pytest.mark.parametrize("axes", ["NCA", "NAC"])
def test_raw_boxes_with_objectness(axes: str) -> None:
    text = DETECTOR.replace("max: 3", f"max: 3, axes: {axes}, objectness: true, normalized: true")
    shape = (-1, 7, 9) if axes == "NCA" else (-1, 9, 7)
    p = processor(text, [("images", "FP32", (-1, 3, 100, 100))], [("out", "FP32", shape)])
    raw = np.zeros((1, 9, 7), np.float32)
    raw[0, 2] = [0.5, 0.5, 0.2, 0.1, 0.5, 0.8, 0.1]
    prepared = p.pre({"image": np.zeros((1, 100, 100, 3), np.uint8)})
    outputs = p.post({"out": raw.transpose(0, 2, 1) if axes == "NCA" else raw}, prepared)
    np.testing.assert_allclose(outputs["detections"][0, 0], [0.4, 0.45, 0.6, 0.55, 0.4, 0], atol=1e-6)
    with pytest.raises(ModelFailed, match="has no class scores"):
        p.post({"out": np.zeros((1, 5, 5), np.float32)}, prepared)


def test_boxes_scores_and_classes_apart() -> None:
    text = DETECTOR.replace("format: cxcywh", "boxes: b, scores: s, classes: c, format: yxyx, normalized: true")
    specs = [("b", "FP32", (1, 2, 4)), ("c", "FP32", (1, 2)), ("s", "FP32", (1, 2)), ("n", "FP32", (1,))]
    p = processor(text, [("images", "FP32", (1, 3, 100, 100))], specs)
    prepared = p.pre({"image": np.zeros((1, 100, 100, 3), np.uint8)})
    given = {
        "b": np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]]], np.float32),
        "c": np.array([[1, 0]], np.float32),
        "s": np.array([[0.9, 0.1]], np.float32),
    }
    np.testing.assert_allclose(p.post(given, prepared)["detections"][0, 0], [0.2, 0.1, 0.4, 0.3, 0.9, 1], atol=1e-6)
    with pytest.raises(ModelFailed, match="do not match"):
        p.post({**given, "s": np.zeros((1, 3), np.float32)}, prepared)


def test_pixels_in_a_plain_tensor_may_be_resized_too() -> None:
    text = (
        "version: 1\n"
        "signature: {inputs: {x: {kind: tensor, dtype: UINT8, shape: [-1, -1, -1, 3]}}, outputs: {y: {kind: tensor}}}\n"
        "pre: [{resize: {to: [4, 4], fit: contain}}, {crop: {to: [2, 4]}}, {normalize: }]\n"
    )
    p = processor(text, [("x", "FP32", (-1, 2, 4, 3))], [("y", "FP32", (-1, 3))])
    prepared = p.pre({"x": np.full((1, 4, 8, 3), 255, np.uint8)})
    assert (prepared.tensors["x"] == 1).all()
    with pytest.raises(InvalidRequest, match="expected pictures with pixels"):
        p.pre({"x": np.zeros((1, 0, 8, 3), np.uint8)})


def test_top_k_beside_the_scores_it_was_made_of() -> None:
    text = (
        "version: 1\nsignature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 2]}}, outputs: {scores: {kind: "
        "probabilities, labels: [a, b, c]}, best: {kind: tensor}, classes: {kind: tensor}, names: {kind: tensor}}}\n"
        "post: [{softmax: {to: scores}}, {top_k: {k: 2, to: best}}, {labels: {from: classes, to: names}}]\n"
    )
    p = processor(text, [("x", "FP32", (-1, 2))], [("logits", "FP32", (-1, 3))])
    prepared = p.pre({"x": np.zeros((1, 2), np.float32)})
    outputs = p.post({"logits": np.array([[0, 2, 1]], np.float32)}, prepared)
    assert outputs["scores"].shape == (1, 3)
    assert outputs["best"][0].tolist() == sorted(outputs["scores"][0].tolist(), reverse=True)[:2]
    assert outputs["classes"].tolist() == [[1, 2]]
    assert outputs["names"].tolist() == [[b"b", b"c"]]


def test_quantized_on_one_runtime_only() -> None:
    text = CLASSIFIER + (
        "runtimes:\n  tflite:\n    pre: [{decode: image}, {resize: {to: [4, 6]}}, {normalize: }, "
        "{quantize: {scale: 0.00392157, zero_point: -128, dtype: INT8}}]\n"
        "    post: [{dequantize: {from: out, to: scores, scale: 0.00390625, zero_point: -128}}]\n"
    )
    tflite = processor(text, [("x:0", "INT8", (1, 4, 6, 3))], [("out", "INT8", (1, 3))], "tflite")
    onnx = processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))], "onnx")
    assert tflite.signature == onnx.signature
    pixels = (
        np.array([0, 1, 128, 255], np.uint8).reshape(1, 2, 2, 1).repeat(3, axis=3).repeat(2, axis=1).repeat(3, axis=2)
    )
    prepared = tflite.pre({"image": pixels})
    assert prepared.tensors["x:0"].dtype == np.int8
    assert sorted(np.unique(prepared.tensors["x:0"])) == [-128, -127, 0, 127]
    scores = tflite.post({"out": np.array([[-128, 0, 127]], np.int8)}, prepared)["scores"]
    assert scores.tolist() == [[0, 0.5, 0.99609375]]


def test_without_a_description_tensors_pass_as_they_are() -> None:
    p = Processor(None, [TensorSpec("x", "FP32", (1, 2))], [TensorSpec("y", "FP32", (1, 2))], "onnx")
    assert p.identity
    inputs = {"x": np.ones((3, 2), np.float32)}
    prepared = p.pre(inputs)
    assert prepared.tensors is inputs
    outputs = p.post(p.run_rows(lambda tensors: {"y": tensors["x"] * 2}, prepared), prepared)
    assert outputs["y"].tolist() == [[2, 2]] * 3


def test_a_description_that_only_says_what_is_there_is_the_identity() -> None:
    text = (
        "version: 1\nsignature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [1, 2]}}, outputs: {y: {kind: logits}}}"
    )
    assert processor(text, [("x", "FP32", (-1, 2))], [("y", "FP32", (-1, 2))]).identity
    renamed = processor(text, [("input", "FP32", (-1, 2))], [("output", "FP32", (-1, 2))])
    assert not renamed.identity
    prepared = renamed.pre({"x": np.ones((1, 2), np.float32)})
    assert renamed.post({"output": prepared.tensors["input"]}, prepared)["y"].tolist() == [[1, 1]]


def test_a_request_without_rows_is_one_whole() -> None:
    text = (
        "version: 1\nsignature: {rows: false, inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 2]}}, "
        "outputs: {kept: {kind: tensor}}}"
    )
    p = processor(text, [("x", "FP32", (-1, 2))], [("kept", "INT64", (-1, 3))])
    prepared = p.pre({"x": np.ones((4, 2), np.float32)})
    assert prepared.rows == 1
    assert p.post({"kept": np.zeros((17, 3), np.int64)}, prepared)["kept"].shape == (17, 3)


def test_pictures_of_a_size_that_the_model_does_not_take() -> None:
    text = CLASSIFIER.replace("{resize: {to: [4, 6], fit: cover}}, ", "")
    p = processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))])
    assert p.pre({"image": pictures((4, 6), (4, 6))}).rows == 2
    with pytest.raises(
        InvalidRequest, match=re.escape("'input' as [-1, 3, 4, 6], but this request gives [1, 3, 5, 6]")
    ):
        p.pre({"image": pictures((5, 6))})
    with pytest.raises(InvalidRequest, match="must have the same size"):
        p.pre({"image": pictures((4, 6), (5, 6))})
    broken = pictures((4, 6), (4, 6))
    broken[1] = broken[1][:50]
    with pytest.raises(InvalidRequest, match="row 1: the picture is damaged"):
        p.pre({"image": broken})


def test_versions_name_what_decides_bit_equality() -> None:
    assert versions()[0] == f"upwell.pre:numpy={np.__version__}"
    assert versions()[1].startswith("upwell.pre:pillow=")


@pytest.mark.parametrize(
    ("pre", "size"),
    [
        ("[{decode: image}, {resize: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", (6, 4, "stretch")),
        ("[{decode: image}, {resize: {to: [4, 6], fit: contain}}, {normalize: }, {layout: NCHW}]", (6, 4, "contain")),
        ("[{decode: image}, {resize: {to: [4, 6], fit: cover}}, {normalize: }, {layout: NCHW}]", None),
        ("[{decode: image}, {resize: {to: [4, 6], filter: bicubic}}, {normalize: }, {layout: NCHW}]", None),
        ("[{decode: image}, {crop: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", None),
        ("[{decode: {from: image, to: a}}, {resize: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", (6, 4, "stretch")),
    ],
)
def test_the_size_that_a_picture_is_given_is_known_where_nothing_else_sees_it(
    pre: str, size: tuple[int, int, str] | None
) -> None:
    text = re.sub(r"pre: .*", f"pre: {pre}", CLASSIFIER)
    made = processor(text, [("input", "FP32", (-1, 3, 4, 6))], [("logits", "FP32", (-1, 3))])
    op = made.picture_resize
    assert (None if op is None else (*op.to[::-1], op.fit)) == size
