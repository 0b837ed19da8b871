"""What is hidden is hidden: how little is left of it, that all of it is covered, and that nothing else is touched."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upwell.pipelines.frame import Box
from upwell.pipelines.steps.blur import blur

BOX: Box = (0.25, 0.25, 0.75, 0.75)
NOISE = np.random.default_rng(1).integers(0, 256, (80, 120, 3), np.uint8)


def test_a_copy_is_changed_and_nothing_outside_the_box() -> None:
    before = NOISE.copy()
    hidden = blur(NOISE, [BOX], margin=0.0)
    np.testing.assert_array_equal(NOISE, before)
    assert (hidden.dtype, hidden.shape) == (NOISE.dtype, NOISE.shape)
    outside = np.ones(NOISE.shape[:2], bool)
    outside[20:60, 30:90] = False
    np.testing.assert_array_equal(hidden[outside], NOISE[outside])
    assert np.ptp(hidden[20:60, 30:90].astype(int)) < 80
    untouched = blur(NOISE, [])
    assert untouched is not NOISE
    np.testing.assert_array_equal(untouched, NOISE)


def test_what_is_left_depends_on_the_means_of_16_cells_alone() -> None:
    """Any other picture with these means gives the same: nobody can tell which of them it was."""
    random = np.random.default_rng(2)
    picture = random.integers(0, 256, (80, 80, 3), np.uint8)
    other = picture.copy()
    for row in range(0, 80, 20):
        for column in range(0, 80, 20):
            cell = other[row : row + 20, column : column + 20]
            cell[:] = random.permutation(cell.reshape(-1, 3)).reshape(cell.shape)
    assert (picture != other).mean() > 0.9
    whole: Box = (0.0, 0.0, 1.0, 1.0)
    np.testing.assert_array_equal(blur(picture, [whole]), blur(other, [whole]))


def test_small_changes_from_frame_to_frame_say_nothing_more() -> None:
    """Steps of 16 levels: a cell whose mean moves a little stays as it is, so that many frames cannot be averaged."""
    dark = np.full((64, 64, 3), 100, np.uint8)
    lighter = dark.copy()
    lighter[::3] += 4
    one, other = (blur(picture, [BOX])[16:48, 16:48] for picture in (dark, lighter))
    np.testing.assert_array_equal(one, other)
    assert (one != dark[16:48, 16:48]).all()


def test_text_cannot_be_read_any_more() -> None:
    """Stripes of 4 pixels, far coarser than a face is in detail, are gone: the deviation is of a few levels."""
    stripes = np.zeros((100, 100, 3), np.uint8)
    stripes[:, (np.arange(100) // 4) % 2 == 0] = 255
    assert stripes.std() > 120
    assert blur(stripes, [(0.0, 0.0, 1.0, 1.0)]).std() < 20


def test_a_margin_is_hidden_too_and_boxes_reach_to_whole_pixels() -> None:
    hidden = blur(NOISE, [BOX], margin=0.1)
    assert (hidden[16:64, 24:96] != NOISE[16:64, 24:96]).mean() > 0.9
    tiny = blur(np.full((10, 10, 3), 77, np.uint8), [(0.449, 0.449, 0.451, 0.451)], margin=0.0)
    assert [tuple(place) for place in np.argwhere(tiny[:, :, 0] != 77)] == [(4, 4)]


@pytest.mark.parametrize("box", [(0.9, 0.9, 1.4, 1.4), (-0.5, -0.5, 0.05, 0.05), (0.75, 0.75, 0.25, 0.25)])
def test_boxes_over_the_edge_or_the_wrong_way_round_are_hidden_as_well(box: Box) -> None:
    assert (blur(NOISE, [box]) != NOISE).any()


@pytest.mark.parametrize("edge", [math.nan, math.inf, -math.inf])
def test_a_box_that_is_no_number_hides_everything(edge: float) -> None:
    hidden = blur(NOISE, [(0.1, edge, 0.2, 0.3)])
    assert (hidden != NOISE).any(axis=2).mean() > 0.99


def test_a_box_that_is_not_on_the_picture_hides_nothing_of_it() -> None:
    np.testing.assert_array_equal(blur(NOISE, [(1.5, 1.5, 1.8, 1.8), (1e300, 0, 1.7e308, 1)]), NOISE)
