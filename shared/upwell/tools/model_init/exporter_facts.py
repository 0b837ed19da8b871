"""What a model's files say of it: how pictures and texts are prepared, its classes, scores and boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from upwell.shared.signature.model_yaml import MAX_SIDE
from upwell.shared.tensors import TensorSpec

ScoresKind = Literal["", "probabilities", "logits", "raw", "each", "tensor", "shares", "unlike", "second"]
"""What scores are: `raw` ones of classes, whose softmax nobody trained; one by itself for `each` class, or for the
`second` of two alone; a `tensor` of other numbers; `shares` of 0 to 1 that do not sum to 1; something else `unlike`
probabilities. Empty: nobody knows."""

Outputs: TypeAlias = Sequence[TensorSpec]
"""The outputs of a model."""

MAX_LABELS = 100_000


@dataclass(frozen=True)
class PictureFacts:
    """The preparation of pictures in training, in the words of `pre`; None and "" mean unknown.

    `size` and `crop` are [height, width]. Pixels times `scale`, minus `mean`, are divided by `std`: one number each, or
    one per channel.
    """

    size: tuple[int, int] | None = None
    fit: Literal["", "stretch", "cover", "contain"] = ""
    crop: tuple[int, int] | None = None
    filter: Literal["", "nearest", "bilinear", "bicubic"] = ""
    fill: int | None = None
    scale: float | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class TextFacts:
    """The place of the tokenizer, and the model's maximum number of tokens, 0 if unknown."""

    tokenizer: Path
    max_tokens: int = 0
    pad_id: int | None = None


@dataclass(frozen=True)
class ExporterFacts:
    """Facts from a model's files; what they do not say is empty. `source` names where they come from.

    `classifies`: it gives scores of classes, whichever of both. `boxes` are the keys of the step `boxes` as they are
    written, None where nobody says whether there are any and empty where there are none; `activation` is the
    step before it, as it is written, and `doubts` what to check in it.
    `segments` names the output with a score of each class at each pixel. `notes` say what the files tell and no
    description can hold, or what nobody tells.
    """

    source: str = ""
    labels: tuple[str, ...] = ()
    picture: PictureFacts = PictureFacts()
    scores: ScoresKind = ""
    classifies: bool = False
    boxes: Mapping[str, str] | None = None
    activation: str = ""
    doubts: str = ""
    segments: str = ""
    text: TextFacts | None = None
    notes: tuple[str, ...] = ()


NOTHING_KNOWN = ExporterFacts()


def labels_by_number(names: Any) -> tuple[str, ...]:
    """`{0: "a", 1: "b"}` or a list -> the labels; empty if a number is missing or a label is not text."""
    if isinstance(names, Mapping):
        names = [names.get(number, names.get(str(number))) for number in range(min(len(names), MAX_LABELS))]
    if not isinstance(names, list) or not all(isinstance(one, str) and one.strip() for one in names):
        return ()
    return tuple(" ".join(one.split()) for one in names)


def is_size(value: Any) -> bool:
    """Whether a value is a pair of sides."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_side, value))


def is_side(value: Any) -> bool:
    """Whether a value is a number of pixels that a picture may have on a side."""
    return type(value) is int and 1 <= value <= MAX_SIDE
