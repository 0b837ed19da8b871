"""What a model's files say of it: how pictures and texts are prepared, its classes, scores and boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ScoresKind = Literal["", "probabilities", "logits", "raw", "each", "tensor", "shares", "unlike"]
"""What scores are: `raw` ones of classes, whose softmax nobody trained; one by itself for `each` class; a `tensor` of
other numbers; `shares` of 0 to 1 that do not sum to 1; something else `unlike` probabilities. Empty: nobody knows."""


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
