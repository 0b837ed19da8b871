"""Tokenizes texts: token IDs, attention mask, and token types.

The tokenizer is a `tokenizer.json` of Hugging Face's package tokenizers (extra `text`). Each text is truncated to
`max_tokens`, special tokens included. Short ones are padded on the tokenizer's side (default: right), to the longest of
the request or to `max_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Tokenize
from upwell.shared.signature.signature import LogicalInput
from upwell.shared.signature.step_values import Geometry, Step, Value, ValueType, array_of
from upwell.shared.tensors import Array, numpy_dtype

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_PADS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>")
"""Tokenizers' names of the padding token, if their file does not give its ID."""

_BY_CHARACTER = frozenset({"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"})
"""Normalizers that change no space, and no letter or digit of ASCII because of what is on the other side of a space."""
_BY_WORD = frozenset({"BertPreTokenizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit"})
"""Pre-tokenizers that split at every space."""
_LIKELY_CHARACTERS = 8
"""Characters per token to read first: more than most tokens have, so that one part of a long text usually fills all."""

_T = TypeVar("_T")


def tokenize_step(op: Tokenize, source: str, value: ValueType) -> Step:
    """The step for texts, BYTES [rows] -> ids, mask and types [rows, tokens]. Raises `ValueError`."""
    if value.datatype != "BYTES" or len(value.shape) != 1:
        raise ValueError(f"expected texts, BYTES [rows], in {source!r}, got {value}")
    names = (op.ids, op.mask, op.types)
    if len(set(names)) < len(names):
        raise ValueError(f"ids, mask and types need three names, got {', '.join(names)}")
    tokenizer = _Tokenizer(op)
    is_fixed = op.pad == "max"
    kind = ValueType(op.dtype, (value.shape[0], op.max_tokens if is_fixed else -1), is_by_request=not is_fixed)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value, ...]:
        return tokenizer(array_of(values[0]))

    return Step((source,), dict.fromkeys(names, kind), run)


def synthetic_bytes(one: LogicalInput, count: int, random: np.random.Generator) -> Array:
    """Texts of a few invented words each, or records, BYTES [count], for trials without real data."""
    texts = np.empty(count, np.object_)
    for row in range(count if one.columns else 0):
        values = {
            column.name: str(random.choice(column.categories)) if column.categories else round(random.random(), 3)
            for column in one.columns
        }
        texts[row] = json.dumps(values).encode()
    if one.columns:
        return texts
    for row in range(count):
        words = (random.integers(ord("a"), ord("z") + 1, length, np.uint8) for length in random.integers(2, 9, 4 + row))
        texts[row] = b" ".join(word.tobytes() for word in words)
    return texts


class _Tokenizer:
    """The tokenizer of one step. Thread-safe. Raises `ValueError` for an invalid file."""

    def __init__(self, op: Tokenize) -> None:
        self._op = op
        self._dtype = numpy_dtype(op.dtype)
        self._tokenizer = _loaded(op)
        self._is_by_word = _is_by_word(op.tokenizer)
        padding: dict[str, Any] = self._tokenizer.padding or {}
        self._pads_left = padding.get("direction") == "left"
        self._pad_id, self._pad_type = _pad_id(op, self._tokenizer, padding), int(padding.get("pad_type_id", 0))
        self._tokenizer.no_padding()  # padding is per batch there, and rows must not depend on each other

    def __call__(self, texts: Array) -> tuple[Array, Array, Array]:
        """Ids, mask and types [rows, tokens]. Raises `InvalidRequest`."""
        rows = [self._encoded(text, row) for row, text in enumerate(self._decoded(texts))]
        longest = max((len(row.ids) for row in rows), default=0)
        length = self._op.max_tokens if self._op.pad == "max" else max(longest, 1)
        filled = (len(rows), length)
        ids, types = np.full(filled, self._pad_id, self._dtype), np.full(filled, self._pad_type, self._dtype)
        mask = np.zeros(filled, self._dtype)
        for row, encoding in enumerate(rows):
            count = len(encoding.ids)
            place = slice(length - count, length) if self._pads_left else slice(count)
            ids[row, place], types[row, place], mask[row, place] = encoding.ids, encoding.type_ids, 1
        return ids, mask, types

    def _decoded(self, texts: Array) -> list[str]:
        size_bytes = sum(map(len, texts))
        if size_bytes > self._op.max_bytes:
            raise InvalidRequest(
                f"the texts of one request have {size_bytes} bytes; at most {self._op.max_bytes} are allowed"
            )
        try:
            return [bytes(text).decode() for text in texts]
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the text is not UTF-8: {error.reason} at byte {error.start}") from None

    def _encoded(self, text: str, row: int) -> Encoding:
        """The tokens of a text. Of a long one only so much is read as fills them, where that is the same."""
        size = _LIKELY_CHARACTERS * self._op.max_tokens
        try:
            while self._is_by_word and (end := _end_of_word(text, size)):
                part = _guarded(lambda end=end: self._tokenizer.encode(text[:end]))  # type: ignore[misc]  # of mypy's
                if part.overflowing:
                    return part
                size *= 4
            return _guarded(lambda: self._tokenizer.encode(text))
        except ValueError as error:
            raise InvalidRequest(f"text {row} cannot be tokenized: {error}") from None


def _is_by_word(tokenizer: str) -> bool:
    """Whether a text's tokens up to a space between two words are the same, whatever follows it."""
    parts = json.loads(tokenizer)
    normalizer, splitter = parts.get("normalizer"), parts.get("pre_tokenizer") or {}
    normalizers = normalizer.get("normalizers", [normalizer]) if normalizer else []
    return (
        splitter.get("type") in _BY_WORD
        and splitter.get("use_regex", True) is True
        and splitter.get("split", splitter["type"] != "Metaspace") is True
        and all(one.get("type") in _BY_CHARACTER for one in normalizers)
        and not any(" " in token["content"] for token in parts.get("added_tokens") or ())
    )


def _end_of_word(text: str, most: int) -> int:
    """The last place up to `most` of a space between letters or digits of ASCII; 0 for none, or a shorter text."""
    place = most if most < len(text) else 0
    while place > 0 and not (
        text[place] == " " and _is_plain(text[place - 1]) and _is_plain(text[place + 1 : place + 2])
    ):
        place -= 1
    return place


def _is_plain(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _loaded(op: Tokenize) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("texts need an extra: pip install 'upwell[text]'") from None
    try:
        tokenizer: Tokenizer = _guarded(lambda: Tokenizer.from_str(op.tokenizer))
    except ValueError as error:
        raise ValueError(f"this is not a tokenizer.json: {error}") from None
    specials = tokenizer.num_special_tokens_to_add(is_pair=False)
    if op.max_tokens <= specials:
        raise ValueError(
            f"max_tokens is {op.max_tokens}, but the tokenizer adds {specials} special tokens to each text"
        )
    _guarded(lambda: tokenizer.enable_truncation(op.max_tokens))
    return tokenizer


def _pad_id(op: Tokenize, tokenizer: Tokenizer, padding: dict[str, Any]) -> int:
    if op.pad_id is not None:
        return op.pad_id
    if "pad_id" in padding:
        return int(padding["pad_id"])
    known = (tokenizer.token_to_id(token) for token in _PADS)
    return next((number for number in known if number is not None), 0)


def _guarded(call: Callable[[], _T]) -> _T:
    """The result of `call`; anything that an untrusted tokenizer makes the library raise, even a panic, is a
    `ValueError`."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in the library is not an Exception
        raise ValueError(str(error)[:200] or type(error).__name__) from None
