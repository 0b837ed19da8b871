"""What the boxes of a detector are whose files say nothing, by runs on random inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import UpwellError
from upwell.shared.tensors import Array
from upwell.tools.describe.scores import random_input

_RUNS = 3
_FEW = 32
_FRACTIONS = 2.0
_SLACK = 0.03  # the steps of an int8 output add up to so much


def shown_boxes(runtime: Runtime, keys: Mapping[str, str], doubts: str) -> tuple[Mapping[str, str], str] | None:
    """The keys of a boxes step after runs on random inputs, and what is left to check; None where they belie it.

    Those show which way corners are written and whether in pixels, as far as the boxes tell. Where scores are not
    within 0 and 1, or sizes of boxes are negative, these are no boxes, or something is still to be done to them.
    """
    if any(size < 0 for spec in runtime.inputs for size in spec.shape[1:]):
        return keys, doubts
    chance = np.random.default_rng(0)
    try:
        runs = [runtime.run({spec.name: random_input(spec, chance) for spec in runtime.inputs}) for _ in range(_RUNS)]
    except UpwellError:
        return keys, doubts
    boxes, scores = _seen(runs, keys)
    if not np.isfinite(boxes).all() or not np.isfinite(scores).all():
        return keys, doubts
    if scores.size and not -_SLACK <= scores.min() <= scores.max() <= 1 + _SLACK:
        if "classes" not in keys:
            return None
        keys = {**keys, "classes": keys["scores"], "scores": keys["classes"]}  # the other way round
        boxes, scores = _seen(runs, keys)
        if not -_SLACK <= scores.min() <= scores.max() <= 1 + _SLACK:
            return None
    if len(boxes) < _FEW:
        return keys, doubts
    is_corners = bool((boxes[:, 2:] >= boxes[:, :2]).all())
    if not is_corners and boxes[:, 2:].min() < 0:
        return None
    found = dict(keys)
    if not (is_corners and keys["format"] == "yxyx"):
        found["format"] = "xyxy" if is_corners else "cxcywh"
    found.pop("normalized", None)
    if np.abs(boxes).max() <= _FRACTIONS:
        found["normalized"] = "true"
    if "classes" in keys:
        return found, doubts
    if "from" not in keys and scores.shape[1] > 1 and np.abs(scores.sum(axis=1) - 1).max() <= _SLACK:
        found["background"] = "0"
        return found, "background: the class that is none, where it is not 0"
    return found, "objectness: true, where the fifth number is one" if "from" in keys else "yxyx, where y comes first"


def _seen(runs: Sequence[Mapping[str, Array]], keys: Mapping[str, str]) -> tuple[Array, Array]:
    """The boxes [n, 4] and scores [n, classes] of these runs; of a model that drops overlaps those that are not 0."""
    if "from" in keys:
        raw = np.concatenate([run[_plain(keys["from"])] for run in runs]).astype(np.float64)
        rows = (raw.swapaxes(1, 2) if keys["axes"] == "NCA" else raw).reshape(
            -1, raw.shape[1 if keys["axes"] == "NCA" else 2]
        )
        return rows[:, :4], rows[:, 4:]
    boxes = np.concatenate([run[_plain(keys["boxes"])] for run in runs]).astype(np.float64).reshape(-1, 4)
    scores = np.concatenate([run[_plain(keys["scores"])] for run in runs]).astype(np.float64)
    scores = scores.reshape(len(boxes), -1)
    used = boxes.any(axis=1) if "classes" in keys else np.ones(len(boxes), bool)
    return boxes[used], scores


def _plain(written: str) -> str:
    """The name of a tensor, which is quoted in YAML where it must be."""
    return str(json.loads(written)) if written.startswith('"') else written
