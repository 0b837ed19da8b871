"""How unsure a detector is of what it found in a picture, from the boxes that it gives.

A row of detections is [boxes, 6]: x1, y1, x2, y2, score sᵢ, class; a slot with a negative class holds no box. k is the
number of boxes.

- `mean_score`: Σ sᵢ / k, 0 without any box (as in KubeEdge Sedna; the average of Brust et al. 2019, arXiv 1809.09875).
  Hard when below.
- `low_share`: the share of boxes with sᵢ below `box_score`, 0 without any box (Sedna's IBT). Hard when above.
- `count`: k. Hard when above: the more objects, the harder the picture (Ionescu et al. 2016, arXiv 1705.08280).

So a picture without any box is hard by `mean_score`, since nothing vouches for it, and easy by the other two: which
of them is right is for the user to say, who knows whether empty pictures are the rule. A box with a number that is not
finite makes its row NaN, which counts as hard whatever the threshold.
"""

from __future__ import annotations

import numpy as np

from upwell.shared.routing.hardness import Measure
from upwell.shared.tensors import Array

_SCORE, _CLASS = 4, 5


def box_hardness(detections: Array, measure: Measure, *, box_score: float) -> tuple[float, ...]:
    """The measure for each row of `detections`, shape [rows, boxes, 6].

    Returns one float per row: in 0..1 (a number of boxes for `count`), or NaN. Raises `ValueError` for a measure that
    is not one of boxes.
    """
    is_box = ~(detections[:, :, _CLASS] < 0)  # so that a class that is not a number is not overlooked
    scores = detections[:, :, _SCORE]
    count = is_box.sum(axis=1).astype(np.float64)
    if measure == "count":
        measured = count
    elif measure == "mean_score":
        measured = np.where(is_box, scores, 0.0).sum(axis=1, dtype=np.float64) / np.maximum(count, 1.0)
    elif measure == "low_share":
        measured = (is_box & (scores < box_score)).sum(axis=1) / np.maximum(count, 1.0)
    else:
        raise ValueError(f"{measure} is not a measure of boxes; expected mean_score, low_share or count")
    measured[(is_box & ~np.isfinite(detections).all(axis=2)).any(axis=1)] = np.nan
    return tuple(measured.tolist())
