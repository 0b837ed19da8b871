"""`model.yaml` by itself: what may be written, how short, and what is told about mistakes."""

from pathlib import Path
from typing import get_args

import pytest

from upwell.shared.config.yaml import load_yaml, parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.signature.model_yaml import MAX_LABELS_BYTES, Datatype, ModelDescription, load_description
from upwell.shared.tensors import DTYPES

HEAD = "version: 1\nsignature: {inputs: {image: {kind: image}}, outputs: {scores: {kind: logits}}}\n"


def read(rest: str) -> ModelDescription:
    return parse_yaml(HEAD + rest, ModelDescription)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, ModelDescription)
    return [str(problem) for problem in caught.value.problems]


def test_every_datatype_may_be_written() -> None:
    assert set(get_args(Datatype)) == set(DTYPES)


def test_short_forms_mean_the_long_ones() -> None:
    short = read("pre: [decode: image, {layout: NCHW}, {normalize: }]\npost: [{softmax: x}, {labels: y}]\n")
    long = read(
        "pre: [{decode: {from: image}}, {layout: {order: NCHW}}, {normalize: {}}]\n"
        "post: [{softmax: {from: x}}, {labels: {from: y}}]\n"
    )
    assert (short.pre, short.post) == (long.pre, long.post)


def test_a_list_of_labels_or_a_file_of_them(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfcat\r\n d\xc3\xb6g \r\n\r\n")
    for labels in ("names.txt", "[cat, dög]"):
        text = HEAD.replace("kind: logits", f"kind: logits, labels: {labels}")
        (tmp_path / "model.yaml").write_text(text, encoding="utf-8")
        assert load_yaml(tmp_path / "model.yaml", ModelDescription).signature.outputs["scores"].labels == ("cat", "dög")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no labels file"),
        (b"caf\xe9", "is not UTF-8 text"),
        (b"a\n\nb\n", "label 2 is empty; expected one label per class"),
        (b"", "label 1 is empty"),
        (b"a\n" * MAX_LABELS_BYTES, "is larger than 1048576 bytes"),
    ],
)
def test_labels_files_that_are_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "names.txt").write_bytes(content)
    (tmp_path / "model.yaml").write_text(HEAD.replace("kind: logits", "kind: logits, labels: names.txt"))
    with pytest.raises(ConfigError) as caught:
        load_description(tmp_path / "model.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.key) == (2, 86, "signature.outputs.scores.labels")
    assert words in problem.message


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("pre: [{resise: {to: [1, 1]}}]", "3:8: pre[0].resise: unknown key; did you mean 'resize'?"),
        (
            "pre: [{}]",
            "3:7: pre[0]: expected exactly one operation, such as one of decode, tokenize, columns, mel, resize, crop, "
            "normalize, layout, quantize, rename",
        ),
        (
            "pre: [{decode: a, layout: NCHW}]",
            "3:7: pre[0]: expected exactly one operation, such as one of decode, tokenize, columns, mel, resize, crop, "
            "normalize, layout, quantize, rename",
        ),
        ("pre: [decode]", "3:7: pre[0]: expected keys and values, got 'decode'"),
        ("pre: {decode: image}", "3:6: pre: expected a list, got keys and values"),
        ("pre: [resize: {to: 224}]", "3:20: pre[0].resize.to: expected a list, got 224"),
        ("pre: [resize: {to: [224]}]", "3:20: pre[0].resize.to[1]: this item is missing"),
        ("pre: [resize: {to: [0, 1]}]", "3:21: pre[0].resize.to[0]: expected 1 or more, got 0"),
        ("pre: [resize: {to: [1, 99999]}]", "3:24: pre[0].resize.to[1]: expected 16384 or less, got 99999"),
        ("pre: [resize: {}]", "3:15: pre[0].resize.to: this key is missing"),
        (
            "pre: [resize: {to: [1, 1], fit: fill}]",
            "3:33: pre[0].resize.fit: expected 'stretch', 'cover' or 'contain', got 'fill'",
        ),
        ("pre: [layout: nchw]", "3:15: pre[0].layout.order: expected 'NCHW' or 'NHWC', got 'nchw'"),
        (
            "pre: [normalize: {std: [1, 0]}]",
            "3:28: pre[0].normalize.std[1]: expected a positive finite number, got 0.0",
        ),
        (
            "pre: [normalize: {mean: .nan}]",
            "3:25: pre[0].normalize.mean: expected a finite number; or expected a list",
        ),
        (
            "pre: [quantize: {scale: -1, dtype: FP32}]",
            "3:25: pre[0].quantize.scale: expected a positive finite number, got -1.0",
        ),
        (
            "pre: [quantize: {scale: 1, dtype: INT8, zero_point: 300}]",
            "3:17: pre[0].quantize: expected a zero_point from -128 to 127 for INT8, got 300",
        ),
        ("pre: [rename: {from: a}]", "3:15: pre[0].rename.to: this key is missing"),
        ("pre: [rename: {to: a}]", None),
        ("post: [top_k: {k: 0}]", "3:19: post[0].top_k.k: expected 1 or more, got 0"),
        ("post: [boxes: {}]", "3:15: post[0].boxes.format: this key is missing"),
        (
            "post: [boxes: {format: xyxy, boxes: a}]",
            "3:15: post[0].boxes: boxes and scores go together: name both, or `from` for one raw tensor",
        ),
        (
            "post: [boxes: {format: xyxy, boxes: a, scores: b, objectness: true}]",
            "3:15: post[0].boxes: `from` and `objectness` are for one raw tensor, but boxes and scores are named here",
        ),
        (
            "post: [boxes: {format: xyxy, classes: b}]",
            "3:15: post[0].boxes: classes need boxes and scores; name all three",
        ),
        ("runtimes: {onx: {}}", "3:12: runtimes.onx: expected 'onnx', 'tflite' or 'torch', got 'onx'"),
        (
            "runtimes: {tflite: {pre: [{x: 1}]}}",
            "3:28: runtimes.tflite.pre[0].x: unknown key; expected one of: columns, crop, decode, layout, mel, "
            "normalize, "
            "quantize, rename, resize, tokenize",
        ),
    ],
)
def test_mistakes_in_steps(rest: str, expected: str | None) -> None:
    if expected is None:
        read(rest)
        return
    assert problems(HEAD + rest)[0] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version: 2\n", "1:10: version: expected 1, got 2"),
        (
            "signature: {inputs: {}, outputs: {}}",
            "1:21: signature.inputs: expected 1 or more items, got keys and values",
        ),
        ("signature: {inputs: {x: {}}}", "1:25: signature.inputs.x.kind: this key is missing"),
        (
            "signature: {inputs: {x: {kind: picture}}}",
            "1:32: signature.inputs.x.kind: expected one of 'image', 'text', 'record', 'tensor', got 'picture'",
        ),
        (
            "signature: {inputs: {x: {kind: tensor, dtype: float32, shape: [0]}}}",
            "1:47: signature.inputs.x.dtype: expected 'BOOL', 'UINT8', 'UINT16', 'UINT32', 'UINT64', "
            "'INT8', 'INT16', 'INT32', 'INT64', 'FP16', 'BF16', 'FP32', 'FP64' or 'BYTES', got "
            "'float32'",
        ),
        (
            "signature: {inputs: {x: {kind: image, dtype: FP32}}}",
            "1:39: signature.inputs.x.dtype: unknown key; expected one of: channels, kind, uplink",
        ),
        (
            "signature: {inputs: {x: {kind: image, uplink: {encode: gif, quality: 0}}}}",
            "1:56: signature.inputs.x.uplink.encode: expected 'jpeg', 'webp' or 'png', got 'gif'",
        ),
        (
            "signature: {outputs: {y: {kind: scores}}}",
            "1:33: signature.outputs.y.kind: expected 'probabilities', 'logits', 'detections', 'masks', "
            "'segments', 'embedding' or 'tensor', got 'scores'",
        ),
    ],
)
def test_mistakes_in_the_signature(text: str, expected: str) -> None:
    assert expected in problems(text)


def test_the_json_schema_knows_the_short_forms() -> None:
    steps = ModelDescription.model_json_schema()["$defs"]
    assert {"type": "string"} in steps["PreOp"]["properties"]["decode"]["anyOf"]
    assert steps["PreOp"]["maxProperties"] == 1
    assert "from" in steps["Rename"]["properties"]
