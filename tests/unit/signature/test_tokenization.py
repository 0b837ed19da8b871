"""Texts become token ids, and whatever is no text or no tokenizer is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.signature import tokenization
from upwell.shared.signature.model_yaml import MAX_TOKENIZER_BYTES, ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "quick", "fox")
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = [TensorSpec("logits", "FP32", (-1, 3))]


def tokenizer(pads_left: bool = False) -> str:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    if pads_left:
        made.enable_padding(direction="left", pad_id=3)
    return str(made.to_str())


def processor(
    folder: Path, keys: str = "max_tokens: 5", length: int = -1, text: str | None = None, dtype: str = "INT64"
) -> Processor:
    (folder / "tokenizer.json").write_text(tokenizer() if text is None else text)
    step = f"- tokenize: {{tokenizer: tokenizer.json, {keys}}}"
    signature = "signature:\n  inputs: {text: {kind: text}}\n  outputs: {logits: {kind: logits}}\n"
    yaml = f"version: 1\n{signature}pre:\n{step}\n"
    wanted = [TensorSpec(name, dtype, (-1, length)) for name in TOKENS]
    return Processor(parse_yaml(yaml, ModelDescription, folder / "model.yaml"), wanted, LOGITS, "onnx")


def made(prepared: Processor, *texts: bytes) -> dict[str, list[list[int]]]:
    tensors = prepared.pre({"text": np.array(texts, object)}).tensors
    return {name: array.tolist() for name, array in tensors.items()}


def test_texts_are_cut_and_filled_up_to_the_longest(tmp_path: Path) -> None:
    found = made(processor(tmp_path), b"The fox", b"the quick quick fox fox", b"")
    assert found["input_ids"] == [[1, 4, 6, 2, 0], [1, 4, 5, 5, 2], [1, 2, 0, 0, 0]]
    assert found["attention_mask"] == [[1, 1, 1, 1, 0], [1] * 5, [1, 1, 0, 0, 0]]
    assert found["token_type_ids"] == [[0] * 5] * 3
    assert made(processor(tmp_path), b"fox")["input_ids"] == [[1, 6, 2]]


def test_texts_are_filled_up_to_what_the_model_fixes(tmp_path: Path) -> None:
    prepared = processor(tmp_path, "max_tokens: 6, pad: max, pad_id: 5, dtype: INT32", 6, dtype="INT32")
    tensors = prepared.pre({"text": np.array([b"fox"], object)}).tensors
    assert tensors["input_ids"].tolist() == [[1, 6, 2, 5, 5, 5]]
    assert tensors["attention_mask"].dtype == np.int32


def test_a_tokenizer_that_fills_up_on_the_left_does_so(tmp_path: Path) -> None:
    found = made(processor(tmp_path, text=tokenizer(pads_left=True)), b"fox", b"the quick fox")
    assert found["input_ids"] == [[3, 3, 1, 6, 2], [1, 4, 5, 6, 2]]
    assert found["attention_mask"] == [[0, 0, 1, 1, 1], [1] * 5]


SPLITTERS = {
    "bert": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "bytes": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "spaces": (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.WhitespaceSplit()),
    "marks": (normalizers.NFD(), pre_tokenizers.Metaspace()),
    "none": (None, None),
    "turned": (normalizers.Replace("e q", "q"), pre_tokenizers.Whitespace()),
}
BY_WORD = ("bert", "bytes", "spaces", "marks")
PIECES = (
    "the",
    "quick",
    "fox",
    "ΟΔΟΣ",
    "é",
    "e\u0301",
    "\u3000",
    "ﬁ",
    "a_b",
    "?!",
    "[CLS]",
    "1",
    " ",
    "  ",
    "\n",
    "'s",
)
LONG = ("workshop", "thinking", "overflow", "boundary")
"""Words as long as a token is taken to be: a part of a text ends in the last one that counts."""


def splitting(name: str) -> str:
    """A tokenizer of words and their parts, trained on nothing else than the pieces."""
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    normalizer, splitter = SPLITTERS[name]
    if normalizer is not None:
        made.normalizer = normalizer
    if splitter is not None:
        made.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    made.train_from_iterator([" ".join(PIECES), *LONG * 9, *(f" {word}" for word in LONG * 9)], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return str(made.to_str())


@pytest.mark.parametrize("name", SPLITTERS)
def test_a_long_text_has_the_tokens_that_it_has_when_all_of_it_is_read(tmp_path: Path, name: str) -> None:
    written = splitting(name)
    plain = Tokenizer.from_str(written)
    plain.enable_truncation(24)
    prepared = processor(tmp_path, "max_tokens: 24", text=written)
    random = np.random.default_rng(0)
    for _ in range(60):
        pieces = random.choice([*PIECES, *LONG], 600, p=[0.08 / len(PIECES)] * len(PIECES) + [0.23] * len(LONG))
        text = str(random.choice(["", " "])).join(pieces if random.random() < 0.5 else random.choice(PIECES, 600))
        assert made(prepared, text.encode())["input_ids"] == [plain.encode(text).ids]


@pytest.mark.parametrize("name", SPLITTERS)
def test_of_a_long_text_no_more_is_read_than_fills_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read: list[int] = []

    def encoded(call: Callable[[], Any]) -> Any:
        found = call()
        if hasattr(found, "offsets"):
            read.append(max(end for one in (found, *found.overflowing) for _, end in one.offsets))
        return found

    prepared = processor(tmp_path, "max_tokens: 24", text=splitting(name))
    monkeypatch.setattr(tokenization, "_guarded", encoded)
    prepared.pre({"text": np.array([b"the quick fox " * 1000], object)})
    assert (max(read) < 1000) is (name in BY_WORD)


def test_a_row_becomes_the_same_whatever_comes_with_it(tmp_path: Path) -> None:
    prepared = processor(tmp_path, "max_tokens: 5, pad: max")
    alone = made(prepared, b"quick fox")["input_ids"]
    assert made(prepared, b"the the the the", b"quick fox", b"")["input_ids"][1:2] == alone


@pytest.mark.parametrize(
    ("texts", "said"),
    [([b"the", b"\xff\xfe"], "not UTF-8"), ([b"x" * 30, b"y" * 30], "have 60 bytes; at most 50 are allowed")],
)
def test_what_is_no_text_is_refused(tmp_path: Path, texts: list[bytes], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        made(processor(tmp_path, "max_tokens: 5, max_bytes: 50"), *texts)


def test_a_model_without_texts_is_asked_with_texts_and_says_so(tmp_path: Path) -> None:
    array: Array = np.zeros((1, 4), np.int64)
    with pytest.raises(InvalidRequest, match="'text': expected BYTES"):
        processor(tmp_path).pre({"text": array})


@pytest.mark.parametrize(
    ("keys", "length", "dtype", "said"),
    [
        ("max_tokens: 5", 8, "INT64", "{pad: max, max_tokens: 8}"),
        ("max_tokens: 5", -1, "INT32", "{dtype: INT32}"),
        ("max_tokens: 2", -1, "INT64", "the tokenizer adds 2 special tokens"),
        ("mask: input_ids", -1, "INT64", "three names"),
    ],
)
def test_a_step_that_does_not_fit_says_what_would(
    tmp_path: Path, keys: str, length: int, dtype: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        processor(tmp_path, keys, length, dtype=dtype)
    assert said in str(caught.value)
    assert "model.yaml:" in str(caught.value)


CUT = tokenizer()[:200]
MERGES = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}


@pytest.mark.parametrize("text", ["{", CUT, "[]", '{"version": 3}', '{"a":' * 5000, json.dumps(MERGES), "\0", ""])
def test_a_file_that_is_no_tokenizer_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        processor(tmp_path, text=text)
    assert "model.yaml:6:" in str(caught.value)
    assert "not a tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("size_bytes", [MAX_TOKENIZER_BYTES + 1, 1 << 30])
def test_a_tokenizer_that_is_too_large_is_not_read(tmp_path: Path, size_bytes: int) -> None:
    prepared = processor(tmp_path)
    assert prepared
    os.truncate(tmp_path / "tokenizer.json", size_bytes)
    yaml = "version: 1\nsignature: {inputs: {text: {kind: text}}, outputs: {logits: {kind: logits}}}\n"
    with pytest.raises(ConfigError, match="larger than"):
        parse_yaml(yaml + "pre: [tokenize: tokenizer.json]\n", ModelDescription, tmp_path / "model.yaml")


def test_a_tokenizer_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    inner = tmp_path / "model"
    inner.mkdir()
    yaml = "version: 1\nsignature: {inputs: {text: {kind: text}}, outputs: {logits: {kind: logits}}}\n"
    with pytest.raises(ConfigError, match="is outside"):
        parse_yaml(yaml + "pre: [tokenize: ../tokenizer.json]\n", ModelDescription, inner / "model.yaml")
