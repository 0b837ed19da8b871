"""The descriptions of halves load for the halves' own tensors, and each step of `post` is where it can be done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from upwell.shared.config.yaml import load_yaml, parse_yaml
from upwell.shared.partition.model_graph import Tensor
from upwell.shared.partition.split.halves_model_yaml import Descriptions, describe, spec_of
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor

PICTURE = Tensor("x", "FP32", ("batch", 3, 8, 8))
CUT = Tensor("cut", "UINT8", ("batch", 4, 4, 16))
SCORES = Tensor("logits", "FP32", ("batch", 10))
EARLY = Tensor("early_logits", "FP32", ("batch", 10))

PRE = "pre: [{decode: image}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: NCHW}]\n"


def halves(head: tuple[tuple[Tensor, ...], tuple[Tensor, ...]], tail: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
           *cut: Tensor) -> Halves:  # fmt: skip
    return Halves(ModelHalf({}, *head), ModelHalf({}, *tail), tuple(one.name for one in cut))


def described(text: str, made: Halves) -> Descriptions:
    """The descriptions, for the whole that the halves make."""
    ends = {one.name: one for one in (*made.head.inputs, *made.tail.inputs) if one.name not in made.cut}
    outputs = [one for one in made.head.outputs if one.name not in made.cut] + list(made.tail.outputs)
    inputs, outputs_of_whole = ([spec_of(one) for one in side] for side in (ends.values(), outputs))
    return describe(parse_yaml(text, ModelDescription), inputs, outputs_of_whole, made, "onnx")


def loaded(files: Mapping[str, bytes], half: ModelHalf, folder: Path) -> Processor:
    """The description as whoever serves the half loads it."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    inputs, outputs = ([spec_of(one) for one in side] for side in (half.inputs, half.outputs))
    return Processor(load_yaml(folder / "model.yaml", ModelDescription), inputs, outputs, "onnx")


def facts(processor: Processor) -> tuple[dict[str, str], dict[str, str]]:
    """The kinds of inputs and outputs by name."""
    signature = processor.signature
    return {one.name: one.kind for one in signature.inputs}, {one.name: one.kind for one in signature.outputs}


def test_the_head_prepares_and_the_tail_finishes(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT,)), ((CUT,), (SCORES,)), CUT)
    text = (
        "signature: {inputs: {image: {kind: image, uplink: {encode: jpeg}}}, outputs: {odds: {kind: probabilities}}}\n"
        f"{PRE}post: [{{softmax: {{}}}}]\n"
    )
    both = described(text, made)
    assert both.left_out == ""
    head = loaded(both.head, made.head, tmp_path)
    assert facts(head) == ({"image": "image"}, {"cut": "tensor"})
    assert head.pre({"image": np.zeros((2, 20, 20, 3), np.uint8)}).tensors["x"].shape == (2, 3, 8, 8)
    assert head.signature.inputs[0].uplink is not None
    tail = loaded(both.tail, made.tail, tmp_path)
    assert facts(tail) == ({"cut": "tensor"}, {"odds": "probabilities"})
    prepared = tail.pre({"cut": np.zeros((2, 4, 4, 16), np.uint8)})
    logits = np.random.default_rng(0).random((2, 10), np.float32)
    np.testing.assert_allclose(tail.post({"logits": logits}, prepared)["odds"].sum(axis=1), 1, rtol=1e-5)


def test_labels_go_with_what_they_name_in_a_file_where_they_are_many(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT, EARLY)), ((CUT,), (SCORES,)), CUT)
    names = [f"class {number}" for number in range(10)]
    text = (
        "signature:\n  inputs: {image: {kind: image}}\n"
        f"  outputs: {{logits: {{kind: logits, labels: {names}}}, early_logits: {{kind: logits, labels: {names}}},\n"
        "    best: {kind: tensor}, names: {kind: tensor}}\n"
        f"{PRE}post: [{{top_k: {{from: logits, k: 3, to: best}}}}, "
        f"{{labels: {{from: classes, labels: {names}, to: names}}}}]\n"
    )
    both = described(text, made)
    assert (set(both.head), set(both.tail)) == ({"model.yaml", "labels.txt"}, {"model.yaml", "labels.txt"})
    tail = loaded(both.tail, made.tail, tmp_path)
    assert facts(tail)[1] == {"logits": "logits", "best": "tensor", "names": "tensor"}
    assert tail.signature.outputs[0].labels == tuple(names)
    assert facts(loaded(both.head, made.head, tmp_path))[1] == {"cut": "tensor", "early_logits": "logits"}


def test_two_texts_keep_a_tokenizer_each(tmp_path: Path) -> None:
    ids, others = (Tensor(name, "INT64", ("batch", 2)) for name in ("ids", "others"))
    made = halves(((ids, others), (CUT,)), ((CUT,), (SCORES,)), CUT)
    text = "signature: {inputs: {a: {kind: text}, b: {kind: text}}, outputs: {logits: {kind: logits}}}\npre:\n"
    for number, (name, one) in enumerate({"a": ids, "b": others}.items(), 1):
        words = json.dumps(Tokenizer(models.WordLevel({"[UNK]": 0, "fox": number}, unk_token="[UNK]")).to_str())
        names = f"ids: {one.name}, mask: mask_{name}, types: types_{name}"
        text += f"- tokenize: {{from: {name}, tokenizer: {words}, max_tokens: 2, pad: max, {names}}}\n"
    head = loaded(described(text, made).head, made.head, tmp_path)
    tensors = head.pre({name: np.array([b"fox"], object) for name in "ab"}).tensors
    assert {name: array.tolist() for name, array in tensors.items()} == {"ids": [[1, 0]], "others": [[2, 0]]}


def test_each_output_is_finished_where_it_is_made(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT, EARLY)), ((CUT,), (SCORES,)), CUT)
    text = (
        "signature:\n  inputs: {image: {kind: image}}\n"
        "  outputs: {late: {kind: probabilities}, early: {kind: probabilities}}\n"
        f"{PRE}post: [{{softmax: {{from: early_logits, to: early}}}}, {{softmax: {{from: logits}}}}, "
        "{rename: {from: logits, to: late}}]\n"
    )
    both = described(text, made)
    assert both.left_out == ""
    assert facts(loaded(both.head, made.head, tmp_path))[1] == {"cut": "tensor", "early": "probabilities"}
    assert facts(loaded(both.tail, made.tail, tmp_path))[1] == {"late": "probabilities"}
    assert both.outputs == ("early",)


def test_an_output_that_is_a_cut_tensor_too_is_told_of_by_the_head(tmp_path: Path) -> None:
    mid = Tensor("mid", "FP32", ("batch", 16))
    made = halves(((PICTURE,), (mid,)), ((mid,), (SCORES,)), mid)
    text = (
        "signature:\n  inputs: {image: {kind: image}}\n"
        f"  outputs: {{logits: {{kind: logits}}, mid: {{kind: embedding}}}}\n{PRE}"
    )
    ends = [spec_of(PICTURE)], [spec_of(SCORES), spec_of(mid)]
    both = describe(parse_yaml(text, ModelDescription), *ends, made, "onnx")
    assert (both.left_out, both.outputs) == ("", ("mid",))
    assert facts(loaded(both.head, made.head, tmp_path))[1] == {"mid": "embedding"}
    assert facts(loaded(both.tail, made.tail, tmp_path))[1] == {"logits": "logits"}


def test_a_name_of_the_signature_must_not_hide_a_cut_tensor(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT, EARLY)), ((CUT,), (SCORES,)), CUT)
    text = (
        "signature:\n  inputs: {image: {kind: image}}\n"
        "  outputs: {logits: {kind: logits}, cut: {kind: probabilities}}\n"
        f"{PRE}post: [{{softmax: {{from: early_logits, to: cut}}}}]\n"
    )
    both = described(text, made)
    assert "'cut' need both halves" in both.left_out
    assert both.outputs == ("early_logits",)
    assert facts(loaded(both.head, made.head, tmp_path))[1] == {"cut": "tensor", "early_logits": "tensor"}


@pytest.mark.parametrize("sizes", [(14, 84), ("", "")])
def test_what_needs_the_picture_is_left_to_who_has_it(tmp_path: Path, sizes: tuple[int | str, ...]) -> None:
    raw = Tensor("raw", "FP32", ("batch", *sizes))
    made = halves(((PICTURE,), (CUT,)), ((CUT,), (raw,)), CUT)
    text = (
        "signature: {inputs: {image: {kind: image}}, outputs: {detections: {kind: detections}}}\n"
        f"{PRE}post: [{{boxes: {{from: raw, format: cxcywh}}}}]\n"
    )
    both = described(text, made)
    assert "'detections' need both halves" in both.left_out
    assert facts(loaded(both.tail, made.tail, tmp_path)) == ({"cut": "tensor"}, {"raw": "tensor"})


@pytest.mark.parametrize(
    ("resize", "is_in_tail"),
    [
        ("{resize: {to: [8, 8]}}", True),
        ("{resize: {to: [8, 8], fit: contain}}", False),
        ("{resize: {to: [8, 8], fit: cover}}", False),
        ("{resize: {to: [9, 9]}}, {crop: {to: [8, 8]}}", False),
    ],
)
def test_segments_of_a_picture_with_a_border_or_cut_off_are_placed_by_who_has_it(
    tmp_path: Path, resize: str, is_in_tail: bool
) -> None:
    raw = Tensor("raw", "FP32", ("batch", 5, 8, 8))
    made = halves(((PICTURE,), (CUT,)), ((CUT,), (raw,)), CUT)
    text = (
        "signature: {inputs: {image: {kind: image}}, outputs: {segments: {kind: segments}}}\n"
        f"pre: [{{decode: image}}, {resize}, {{normalize: {{}}}}, {{layout: NCHW}}]\n"
        "post: [{segments: {from: raw, to: segments}}]\n"
    )
    both = described(text, made)
    assert ("'segments' need both halves" in both.left_out) == (not is_in_tail)
    outputs = {"segments": "segments"} if is_in_tail else {"raw": "tensor"}
    assert facts(loaded(both.tail, made.tail, tmp_path)) == ({"cut": "tensor"}, outputs)


def test_the_tail_takes_a_raw_input_as_it_is_after_pre(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT,)), ((CUT, Tensor("mask", "FP32", ("batch", 4))), (SCORES,)), CUT)
    text = (
        "signature:\n  inputs: {image: {kind: image}, mask: {kind: tensor, dtype: FP32, shape: [-1, 4]}}\n"
        "  outputs: {logits: {kind: logits}}\n"
        "pre: [{decode: {from: image}}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: {order: NCHW, to: x}}]\n"
    )
    both = described(text, made)
    assert facts(loaded(both.head, made.head, tmp_path))[0] == {"image": "image", "mask": "tensor"}
    assert facts(loaded(both.tail, made.tail, tmp_path))[0] == {"cut": "tensor", "mask": "tensor"}


def test_the_steps_of_the_runtime_count(tmp_path: Path) -> None:
    made = halves(((PICTURE,), (CUT,)), ((CUT,), (SCORES,)), CUT)
    text = (
        "signature: {inputs: {image: {kind: image}}, outputs: {odds: {kind: probabilities}}}\n"
        "pre: [{decode: image}]\npost: [{sigmoid: {}}]\n"
        "runtimes: {onnx: {pre: [{decode: image}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: NCHW}],\n"
        "  post: [{softmax: {}}]}}\n"
    )
    both = described(text, made)
    assert b"softmax" in both.tail["model.yaml"]
    assert b"sigmoid" not in both.tail["model.yaml"]
    assert b"runtimes" not in both.head["model.yaml"]
    loaded(both.head, made.head, tmp_path)


@pytest.mark.parametrize("shape", [(49, 16), ()])
def test_a_cut_tensor_without_rows_makes_a_request_one_whole(tmp_path: Path, shape: tuple[int, ...]) -> None:
    flat = Tensor("flat", "FP32", shape)
    one_row = Tensor("x", "FP32", (1, 3, 8, 8)), Tensor("logits", "FP32", (1, 10))
    made = halves(((one_row[0],), (flat,)), ((flat,), (one_row[1],)), flat)
    text = (
        "signature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 3, 8, 8]}}, outputs: {logits: {kind: logits}}}"
    )
    both = described(text, made)
    head, tail = (loaded(files, half, tmp_path) for files, half in ((both.head, made.head), (both.tail, made.tail)))
    assert (head.signature.has_rows, tail.signature.has_rows) == (False, False)


@pytest.mark.parametrize("name", ["a: b", "#1", "null", "1.5", "é", "it's", "x/y:0", " "])
def test_names_as_models_have_them(tmp_path: Path, name: str) -> None:
    cut: Any = Tensor(name, "FP32", ("batch", 4))
    made = halves(((PICTURE,), (cut,)), ((cut,), (SCORES,)), cut)
    text = f"signature: {{inputs: {{image: {{kind: image}}}}, outputs: {{logits: {{kind: logits}}}}}}\n{PRE}"
    both = described(text, made)
    assert facts(loaded(both.head, made.head, tmp_path))[1] == {name: "tensor"}
    assert facts(loaded(both.tail, made.tail, tmp_path))[0] == {name: "tensor"}
