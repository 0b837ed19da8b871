"""What is drawn into a picture, whatever a model says."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from upwell.pipelines.frame import Box, FoundObject, Frame, Scene
from upwell.pipelines.run.annotated_picture import annotated, jpeg


@pytest.mark.parametrize("size", [(1, 1), (1, 90), (90, 1), (48, 64)])
@pytest.mark.parametrize(
    "box", [(0, 0, 1, 1), (0.9, 0.9, 0.1, 0.1), (-5, -5, 9, 9), (0, 1e30, 1, 2e30), (-3e38, -3e38, 3e38, 3e38)]
)
@pytest.mark.parametrize("label", ["", "a\nb\x1b[31m", "x" * 500, "\ud800"])
def test_any_box_and_label_can_be_drawn(size: tuple[int, int], box: Box, label: str) -> None:
    pixels = np.zeros((*size, 3), np.uint8)
    found = FoundObject(label, 0.5, box, track=7, answers={"digits": {"label": label}})
    drawn = annotated(Scene(Frame(1, 1.0, 1.0, pixels, pixels[:, :, 0]), pixels, (found,)))
    assert drawn.shape == pixels.shape
    assert not pixels.any()
    with Image.open(io.BytesIO(jpeg(drawn))) as picture:
        assert picture.size == size[::-1]
