"""The time that large pictures take to decode, and what the router makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, known, learnt, router, signals
from upwell.shared.routing.decide.edge_time import EdgeTime
from upwell.shared.routing.decide.router_state import CloudAnswered, EdgeRan, PicturesPrepared, RouterState, SplitRoute
from upwell.shared.routing.estimators.preparation_times import BELIEVED_S, EncodedPictures, PreparationTimes
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S
from upwell.shared.routing.reasons import Plan, Reason
from upwell.shared.routing.scheduling.run_request import RunRequest, with_preparation

MEGA = 1 << 20
PNG = EncodedPictures("png", 12 * MEGA)
DECODE_S, RUN_S = 1.5, 0.004


def of(pixels: int, form: str = "png") -> EncodedPictures:
    return EncodedPictures(form, pixels)


def times(*durations_s: float, pictures: EncodedPictures = PNG, step_s: float = 0.1) -> PreparationTimes:
    made = PreparationTimes()
    for index, duration_s in enumerate(durations_s):
        made = made.add(pictures, duration_s, index * step_s)
    return made


def with_past(decode_s: float = DECODE_S, at_s: float = NOW_S, cloud_s: float | None = None) -> RouterState:
    """A state that has seen quick runs, and one large PNG decoded."""
    by = router()
    state = known(by, edge_s=RUN_S, cloud_s=cloud_s, at_s=at_s)
    return learnt(by, [PicturesPrepared(MODEL, PNG, decode_s)], at_s, state)


def test_the_time_is_linear_in_the_pixels_of_a_size_class() -> None:
    assert times(1.2).expect_s(PNG, 0.0) == pytest.approx(1.2)
    assert times(1.2).expect_s(of(16 * MEGA), 0.0) == pytest.approx(1.6)
    assert times(1.2).expect_s(of(9 * MEGA), 0.0) == pytest.approx(0.9)


def test_other_size_classes_get_a_lower_bound() -> None:
    assert times(1.2).expect_s(of(MEGA), 0.0) == pytest.approx(0.1)
    assert times(1.2).expect_s(of(60 * MEGA), 0.0) == pytest.approx(1.6)  # a class full of pixels, as is
    both = times(1.2).add(of(MEGA), 0.3, 0.0)
    assert both.expect_s(of(2 * MEGA), 0.0) == pytest.approx(0.3)


def test_each_format_has_its_own_times() -> None:
    assert times(1.2).expect_s(of(12 * MEGA, "jpeg"), 0.0) == 0.0
    assert times(1.2).expect_s(of(12 * MEGA, "jpeg+png"), 0.0) == 0.0


def test_the_median_counts_while_it_is_recent_and_then_the_fastest() -> None:
    seen = times(1.4, 2.3, 1.9)
    assert seen.expect_s(PNG, 0.2) == pytest.approx(1.9)
    assert seen.expect_s(PNG, 0.2 + FRESH_S + 0.1) == pytest.approx(1.4)


@pytest.mark.parametrize("count", [1, 3])
def test_each_sample_is_believed_for_a_while(count: int) -> None:
    seen = times(*[1.4] * count, step_s=0.0)
    assert seen.expect_s(PNG, BELIEVED_S * count) == pytest.approx(1.4)
    assert seen.expect_s(PNG, BELIEVED_S * count + 0.1) == 0.0


def test_a_picture_that_cannot_be_decoded_in_time_is_refused_at_once_however_quick_the_runs_are() -> None:
    by, state = router("version: 1\ndefaults: {deadline: 5s}"), with_past()
    asked = signals(pictures=PNG, caller_deadline_s=NOW_S + 1.0, has_cloud=False)
    decision = by.decide(state, asked, NOW_S)
    assert decision.reason is Reason.EDGE_BUSY
    assert "the device needs 1504.0 ms" in decision.refusal
    assert not by.decide(state, replace(asked, caller_deadline_s=NOW_S + 1.6), NOW_S).refusal
    assert not by.decide(state, replace(asked, pictures=None), NOW_S).refusal
    assert not by.decide(state, replace(asked, pictures=of(MEGA)), NOW_S).refusal
    assert not by.decide(state, replace(asked, pictures=of(12 * MEGA, "jpeg")), NOW_S).refusal


@pytest.mark.parametrize("silence_s", [FRESH_S + 1.0, BELIEVED_S - 0.1])
def test_it_is_refused_after_a_silence_too(silence_s: float) -> None:
    now_s = NOW_S + silence_s
    asked = signals(at_s=now_s, pictures=PNG, caller_deadline_s=now_s + 1.0, has_cloud=False)
    assert router().decide(with_past(), asked, now_s).refusal


def test_it_is_refused_where_no_run_was_ever_seen() -> None:
    state = learnt(router(), [PicturesPrepared(MODEL, PNG, DECODE_S)])
    asked = signals(pictures=PNG, caller_deadline_s=NOW_S + 1.0, has_cloud=False)
    assert "needs 1500.0 ms" in router().decide(state, asked, NOW_S).refusal


def test_it_goes_up_undecoded_where_the_cloud_is_in_time() -> None:
    by, state = router(), with_past(cloud_s=0.1)
    state = learnt(by, [CloudAnswered(MODEL, 1, 5_000_000, 0.4, 0.05)] * 5, state=state)
    shrunk = signals((5_000_000,), pictures=PNG, caller_deadline_s=NOW_S + 1.0, up_sizes_bytes=(1000,))
    decision = by.decide(state, shrunk, NOW_S)
    assert (decision.plan, decision.reason) == (Plan.CLOUD, Reason.EDGE_BUSY)
    whole = by.decide(state, replace(shrunk, up_sizes_bytes=()), NOW_S)
    assert decision.predicted_cloud_s == whole.predicted_cloud_s > 0.2


def test_to_shrink_a_picture_for_the_cloud_takes_the_time_of_decoding_it() -> None:
    by, state = router("version: 1\ndefaults: {large: {above: 100B}, deadline: 5s}"), with_past(cloud_s=0.1)
    asked = signals(up_sizes_bytes=(900,))
    plain, found = (by.decide(state, one, NOW_S) for one in (asked, replace(asked, pictures=PNG)))
    assert plain.up_rows
    assert found.predicted_cloud_s == pytest.approx(plain.predicted_cloud_s + DECODE_S)


def test_what_takes_too_long_to_shrink_is_counted_whole_and_goes_up_whole() -> None:
    by, state = router("version: 1\ndefaults: {large: {above: 100B}, deadline: 5s}"), with_past(cloud_s=0.1)
    asked = signals((2000,), up_sizes_bytes=(900,), pictures=PNG)
    least_s = 2 * DECODE_S + RUN_S  # the link has as long as the decoding, and a run that stands in begins in time
    long, short = (
        by.decide(state, replace(asked, caller_deadline_s=NOW_S + left_s), NOW_S)
        for left_s in (least_s + 0.1, least_s - 0.1)
    )
    assert long.up_rows
    assert long.shrinks
    whole = by.decide(state, replace(asked, up_sizes_bytes=(), caller_deadline_s=NOW_S + least_s), NOW_S)
    assert short.up_rows
    assert not short.shrinks
    assert short.predicted_cloud_s == pytest.approx(whole.predicted_cloud_s)
    assert short.predicted_cloud_s < DECODE_S < long.predicted_cloud_s


def test_the_requests_ahead_are_prepared_too() -> None:
    asked = signals(pictures=PNG)
    alone, behind = (EdgeTime.of(with_past(), replace(asked, edge_ahead=ahead), 1, NOW_S).usual_s for ahead in (0, 3))
    assert behind == pytest.approx(4 * alone)


def test_a_run_that_stands_in_for_the_cloud_begins_earlier_by_the_preparation() -> None:
    by, state = router("version: 1\ndefaults: {large: {above: 100B}, deadline: 5s}"), with_past(cloud_s=0.1)
    plain = by.decide(state, signals(), NOW_S)
    assert plain.up_rows
    found = by.decide(state, signals(pictures=PNG), NOW_S)
    assert found.up_rows
    assert found.fallback_start_s == pytest.approx(plain.fallback_start_s - DECODE_S)


def test_some_of_the_rows_need_their_share() -> None:
    asked = signals((1000,) * 4, pictures=PNG)
    assert EdgeTime.of(with_past(), asked, 2, NOW_S).prepare_s == pytest.approx(DECODE_S / 2)


def test_a_head_is_prepared_for_as_the_whole_is() -> None:
    by, state = router("version: 1\ndefaults: {large: {above: 100B}, deadline: 5s}"), with_past()
    state = learnt(by, [], state=known(by, cloud_s=0.1, model="digits@c1"))
    state = replace(state, preparation=with_past().preparation)
    asked = signals(split_routes=(SplitRoute("digits@c1", 100, head_s=0.01),), has_cloud=False, has_edge=False)
    plain, found = (by.decide(state, one, NOW_S) for one in (asked, replace(asked, pictures=PNG)))
    assert found.predicted_cloud_s == pytest.approx(plain.predicted_cloud_s + DECODE_S)


def test_another_model_forgets_what_the_former_took() -> None:
    forgotten = router().of_another_model(with_past(), MODEL, scores_alike=True)
    assert forgotten.preparation == {}
    assert forgotten.edge == {}


def test_runs_do_not_count_as_preparation() -> None:
    by = router()
    state = learnt(by, [EdgeRan(MODEL, 1, 0.5)] * 3, state=with_past())
    assert state.preparation == with_past().preparation


def test_the_device_is_busy_with_the_preparation_too() -> None:
    run_request = RunRequest(run_s=0.01, spread_s=0.001)
    assert with_preparation(run_request, 0.0) is run_request
    assert with_preparation(run_request, 1.0).run_s == pytest.approx(1.01)
    assert with_preparation(RunRequest(run_s=math.nan), 1.0).run_s == 1.0
