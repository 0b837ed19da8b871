"""What counts as a change of the picture: movement, not noise; and that now and then one is let through anyway."""

from __future__ import annotations

import numpy as np

from upwell.pipelines.frame import Frame
from upwell.pipelines.steps.change import ChangeDetector
from upwell.shared.tensors import Array


def frame(luma: Array, at_s: float = 0.0) -> Frame:
    return Frame(0, at_s, 0.0, np.zeros((*luma.shape, 3), np.uint8), luma)


def scenery(seed: int, noise: float = 10.0, shape: tuple[int, int] = (240, 320)) -> Array:
    """The same picture with other noise; what is drawn on it afterwards has none."""
    still: Array = 60 + 40 * np.sin(np.arange(shape[1]) / 9)[None, :] + np.zeros(shape)
    noisy: Array = np.clip(still + np.random.default_rng(seed).normal(0, noise, shape), 0, 255).astype(np.uint8)
    return noisy


def with_object(luma: Array, x: int, y: int = 100, size: int = 40, level: int = 200) -> Array:
    drawn: Array = luma.copy()
    drawn[y : y + size, x : x + size] = level
    return drawn


def test_noise_of_a_bad_sensor_is_no_change() -> None:
    detector = ChangeDetector(0.0, None)
    assert detector.is_changed(frame(scenery(0)))
    assert [detector.is_changed(frame(scenery(seed))) for seed in range(1, 40)] == [False] * 39


def test_an_object_that_comes_moves_and_goes_is_one() -> None:
    detector = ChangeDetector(0.01, None)
    plain = scenery(0)
    shown = [plain, with_object(plain, 20), with_object(plain, 20), with_object(plain, 60), plain, plain]
    assert [detector.is_changed(frame(one)) for one in shown] == [True, True, False, True, True, False]


def test_above_is_a_share_of_the_picture() -> None:
    plain = np.full((240, 320), 50, np.uint8)
    once = with_object(plain, 80, 80, 40)  # 5 × 5 of 30 × 40 cells, which is 2.08 %
    for above, changed in ((0.020, True), (0.021, False)):
        detector = ChangeDetector(above, None)
        assert detector.is_changed(frame(plain))
        assert detector.is_changed(frame(once)) is changed


def test_slow_changes_add_up_as_the_last_one_let_through_is_compared() -> None:
    detector = ChangeDetector(0.5, None)
    through = [detector.is_changed(frame(np.full((80, 80), 50 + number, np.uint8))) for number in range(25)]
    assert [number for number, changed in enumerate(through) if changed] == [0, 10, 20]


def test_a_frame_is_due_after_a_while_whatever_it_shows() -> None:
    detector = ChangeDetector(0.01, 10.0)
    plain = scenery(0)
    assert [detector.is_changed(frame(plain, at_s)) for at_s in (0, 5, 9.9, 10, 15, 20)] == [
        True, False, False, True, False, True,
    ]  # fmt: skip
    moved = ChangeDetector(0.01, 10.0)
    shown = [(plain, 0), (with_object(plain, 20), 5), (with_object(plain, 20), 14), (with_object(plain, 20), 15)]
    assert [moved.is_changed(frame(*one)) for one in shown] == [True, True, False, True]


def test_what_is_to_be_ignored_neither_differs_nor_counts() -> None:
    left_half = ((0, 0), (0.5, 0), (0.5, 1), (0, 1))
    detector = ChangeDetector(0.03, None, [left_half])
    plain = np.full((240, 320), 50, np.uint8)
    assert detector.is_changed(frame(plain))
    assert not detector.is_changed(frame(with_object(plain, 20)))
    assert detector.is_changed(frame(with_object(plain, 200)))  # 25 of 600 cells, which would be 25 of 1200
    everything = ChangeDetector(0.0, None, [((-1, -1), (2, -1), (2, 2), (-1, 2))])
    assert everything.is_changed(frame(plain))
    assert not everything.is_changed(frame(plain + 100))


def test_another_resolution_is_a_change_and_any_size_will_do() -> None:
    detector = ChangeDetector(0.01, None)
    for shape in ((240, 320), (480, 640), (1, 1), (3, 500), (7, 7), (1080, 1920)):
        grey = np.full(shape, 50, np.uint8)
        assert detector.is_changed(frame(grey)), shape
        assert not detector.is_changed(frame(grey)), shape
        assert detector.is_changed(frame(grey + 100)), shape
