"""The assignment beside every assignment there is, the filter over any division of time, and ids that stay one's."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.examples import examples
from upwell.pipelines.frame import FoundObject
from upwell.pipelines.steps.tracker import Tracker, as_boxes, as_measured, assign, begin, correct, predict
from upwell.shared.signature.detections import overlap
from upwell.shared.tensors import Array

SIMILARITIES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5),
    elements=st.sampled_from([0.0, 0.1, 0.19, 0.2, 0.3, 0.5, 0.7, 1.0]) | st.floats(0, 1),
)


def best_sum(similarity: Array, least: float) -> float:
    """The largest sum over all partial assignments of pairs that are similar enough, each of them tried."""
    if similarity.shape[0] > similarity.shape[1]:
        similarity = similarity.T
    rows, columns = similarity.shape
    return max(
        sum(value for row, column in enumerate(chosen) if (value := float(similarity[row, column])) >= least)
        for chosen in permutations(range(columns), rows)
    )


@settings(max_examples=examples(300), deadline=None)
@given(SIMILARITIES, st.sampled_from([0.05, 0.2, 0.5]))
def test_an_assignment_is_as_good_as_the_best_of_all(similarity: Array, least: float) -> None:
    pairs = assign(similarity, least)
    assert len({row for row, _ in pairs}) == len({column for _, column in pairs}) == len(pairs)
    assert all(similarity[pair] >= least for pair in pairs)
    assert abs(sum(similarity[pair] for pair in pairs) - best_sum(similarity, least)) < 1e-9


@st.composite
def box_lists(draw: st.DrawFn) -> Array:
    count = draw(st.integers(1, 4))
    corners = [
        (x, y, x + draw(st.floats(0.01, 0.5)), y + draw(st.floats(0.01, 0.5)))
        for x, y in draw(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=count, max_size=count))
    ]
    return np.array(corners)


@settings(max_examples=examples(100), deadline=None)
@given(box_lists(), box_lists())
def test_overlap_is_a_share_the_same_both_ways_and_1_of_oneself(boxes: Array, others: Array) -> None:
    shares = overlap(boxes[:, None], others)
    assert ((shares >= 0) & (shares <= 1 + 1e-12)).all()
    np.testing.assert_allclose(shares, overlap(others[:, None], boxes).T)
    np.testing.assert_allclose(np.diag(overlap(boxes[:, None], boxes)), 1.0)
    for (row, column), share in np.ndenumerate(shares):
        (a1, b1, a2, b2), (c1, d1, c2, d2) = boxes[row], others[column]
        shared = max(0.0, min(a2, c2) - max(a1, c1)) * max(0.0, min(b2, d2) - max(b1, d1))
        expected = shared / ((a2 - a1) * (b2 - b1) + (c2 - c1) * (d2 - d1) - shared)
        assert abs(share - expected) < 1e-9


@settings(max_examples=examples(100), deadline=None)
@given(box_lists(), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_two_steps_in_time_are_one_where_the_height_stays(boxes: Array, first_s: float, second_s: float) -> None:
    states = predict(begin(as_measured(boxes)), 0.1)  # no rate is known yet, so that the height stays as it is
    np.testing.assert_allclose(
        predict(predict(states, first_s), second_s), predict(states, first_s + second_s), rtol=1e-9, atol=1e-12
    )


@settings(max_examples=examples(60), deadline=None)
@given(box_lists(), st.lists(st.tuples(st.floats(0.001, 3), st.floats(-0.2, 0.2)), min_size=1, max_size=8))
def test_a_state_stays_one_that_can_be(boxes: Array, steps: list[tuple[float, float]]) -> None:
    """Boxes have an area and covariances are positive semidefinite, whatever is measured at whatever times."""
    np.testing.assert_allclose(as_boxes(begin(as_measured(boxes))), boxes, atol=1e-9)
    states = begin(as_measured(boxes))
    for dt_s, shift in steps:
        states = predict(states, dt_s)
        before = states
        states = correct(states, as_measured(boxes + shift))
        assert (states[:, :, 2] <= before[:, :, 2] + 1e-12).all(), "measuring makes nothing less sure"
        assert (states[:, :, 2] >= 0).all()
        assert (states[:, :, 2] * states[:, :, 4] - states[:, :, 3] ** 2 >= -1e-12).all()
        predicted = as_boxes(states)
        assert (predicted[:, 2:] > predicted[:, :2]).all()


LOOKS = st.lists(
    st.lists(
        st.builds(
            lambda label, score, x, y, size: FoundObject(label, score, (x, y, x + size, y + size)),
            st.sampled_from("ab"), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5),
        ) | st.just(FoundObject("a", 0.9, (float("nan"), 0, 1, 1))),
        max_size=4,
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(LOOKS, st.floats(0, 5))
def test_a_track_has_one_label_and_is_on_a_frame_once(looks: list[list[FoundObject]], step_s: float) -> None:
    tracker, last = Tracker(), 0
    labels: dict[int | None, str] = {}
    for number, objects in enumerate(looks):
        found = tracker.update(objects, number * step_s)
        ids = [one.track for one in found if one.track is not None]
        assert len(set(ids)) == len(found)
        known = set(labels)
        for one in found:
            assert labels.setdefault(one.track, one.label) == one.label
            assert FoundObject(one.label, one.score, one.box) in objects
        new = sorted(set(ids) - known)
        assert new == list(range(last + 1, last + 1 + len(new)))
        last += len(new)
