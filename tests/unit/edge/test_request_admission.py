"""Admission: the rate of each source, and what a request claims of the device."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upwell.edge.admission.request_admission import Admission
from upwell.shared.errors import Refused
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S, RunTimes
from upwell.shared.routing.policy.settings import Settings, SourceLimits
from upwell.shared.routing.request_tags import LONGEST_KEY
from upwell.shared.routing.scheduling.run_request import MOST_SPREAD, RunRequest, timed

TEN = Settings(source=SourceLimits("camera", rate_per_s=10.0))
DOCK = {"camera": "dock"}


def passes(admission: Admission, now_s: float, tags: dict[str, str] = DOCK, asked: Settings = TEN) -> bool:
    try:
        admission.admit("digits", asked, tags, now_s)
    except Refused:
        return False
    return True


def test_without_a_source_everyone_passes_with_the_policy_s_priority() -> None:
    run_request = Admission().admit("digits", Settings(priority="high"), {}, 5.0)
    assert run_request == RunRequest(priority="high")


def test_a_second_s_worth_passes_at_once_and_then_the_rate() -> None:
    admission = Admission()
    assert [passes(admission, 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert [passes(admission, 100.05), passes(admission, 100.11), passes(admission, 100.12)] == [False, True, False]


def test_the_refusal_names_the_source_its_rate_and_when_to_come_back() -> None:
    admission, asked = Admission(), Settings(source=SourceLimits("camera", rate_per_s=0.5))
    admission.admit("digits", asked, DOCK, 0.0)
    with pytest.raises(Refused) as caught:
        admission.admit("digits", asked, DOCK, 0.5)
    assert str(caught.value) == (
        "source camera='dock' exceeds its rate of 0.5 requests per second; try again in 1500 ms"
    )
    with pytest.raises(Refused, match="try again in 1 ms"):
        admission.admit("digits", asked, DOCK, 1.9998)


def test_what_is_given_back_may_be_had_again_and_no_more_than_that() -> None:
    admission, asked = Admission(), Settings(source=SourceLimits("camera", rate_per_s=1.0))
    assert passes(admission, 0.0, DOCK, asked)
    admission.give_back("digits", asked, DOCK)
    assert passes(admission, 0.0, DOCK, asked)
    assert not passes(admission, 0.0, DOCK, asked)
    for _ in range(5):
        admission.give_back("digits", asked, DOCK)
    assert [passes(admission, 9.0, DOCK, asked) for _ in range(2)] == [True, False]
    admission.give_back("digits", asked, {"camera": "never seen"})
    admission.give_back("digits", Settings(), DOCK)


def test_sources_models_and_tags_have_a_rate_each() -> None:
    admission, asked = Admission(), Settings(source=SourceLimits("camera", rate_per_s=1.0))
    assert passes(admission, 0.0, asked=asked)
    assert not passes(admission, 0.0, asked=asked)
    assert passes(admission, 0.0, {"camera": "gate"}, asked)
    assert passes(admission, 0.0, DOCK, Settings(source=SourceLimits("line", rate_per_s=1.0)))
    admission.admit("pages", asked, DOCK, 0.0)


def test_requests_without_the_tag_share_a_rate_and_replace_nobody() -> None:
    admission = Admission()
    asked = Settings(source=SourceLimits("camera", keep_latest=True, rate_per_s=1.0))
    assert admission.admit("digits", asked, {"other": "x"}, 0.0).stream is None
    assert not passes(admission, 0.0, {}, asked)


def test_keep_latest_makes_streams_of_equal_tag_values() -> None:
    admission, asked = Admission(), Settings(source=SourceLimits("camera", keep_latest=True))
    streams = [admission.admit("digits", asked, {"camera": value}, 0.0).stream for value in ("dock", "gate", "dock")]
    assert streams[0] == streams[2] != streams[1]
    assert admission.admit("digits", TEN, DOCK, 0.0).stream is None


def test_invented_sources_are_forgotten_the_idlest_first() -> None:
    admission, asked = Admission(max_sources=100), Settings(source=SourceLimits("camera", rate_per_s=1.0))
    assert passes(admission, 0.0, asked=asked)
    for index in range(1000):
        assert passes(admission, 0.0, {"camera": f"invented {index}"}, asked)
        if index % 50 == 0:
            assert not passes(admission, 0.0, asked=asked)  # it goes on sending, so it is not forgotten
    assert len(admission._buckets) == 100


@pytest.mark.parametrize("value", ["é" * 10_000_000, "\ud800" * LONGEST_KEY * 2, "\0", "a\nb" * 100])
def test_a_monstrous_tag_value_is_not_kept(value: str) -> None:
    admission, asked = Admission(), Settings(source=SourceLimits("camera", keep_latest=True, rate_per_s=1.0))
    admission.admit("digits", asked, {"camera": value}, 0.0)
    assert all(len(part) <= LONGEST_KEY for key in admission._buckets for part in key)
    with pytest.raises(Refused) as caught:
        admission.admit("digits", asked, {"camera": value}, 0.0)
    assert len(str(caught.value)) < 1000


@settings(max_examples=200, deadline=None)
@given(st.floats(0.01, 1000), st.lists(st.floats(0, 1), max_size=60))
def test_no_window_sees_more_than_its_rate_and_a_second_s_worth(rate_per_s: float, pauses: list[float]) -> None:
    asked = Settings(source=SourceLimits("camera", rate_per_s=rate_per_s))
    admission, now_s, passed_at = Admission(), 1e6, list[float]()
    for pause_s in pauses:
        now_s += pause_s
        if passes(admission, now_s, asked=asked):
            passed_at.append(now_s)
    for first in range(len(passed_at)):
        for last in range(first, len(passed_at)):
            window_s = passed_at[last] - passed_at[first]
            assert last - first + 1 <= max(1.0, rate_per_s) + rate_per_s * window_s + 1e-3


def test_from_many_threads_no_more_pass_than_may() -> None:
    admission, passed = Admission(), list[bool]()

    def ask() -> None:
        passed.extend(passes(admission, 7.0) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(passed), sum(passed)) == (160, 10)


def test_a_run_request_takes_its_times_from_what_the_router_has_learnt() -> None:
    times = RunTimes()
    for index in range(10):
        times = times.add(1, 0.1, index * 0.1)
    run_request = timed(RunRequest(priority="high", stream="s"), times, 1, 0.5, 1.0, math.inf)
    assert (run_request.priority, run_request.stream, run_request.arrived_s) == ("high", "s", 0.5)
    assert run_request.run_s == pytest.approx(0.1)
    assert run_request.spread_s == pytest.approx(0.01)
    assert timed(run_request, times, 4, 0.5, 1.0, 1.5).run_s == pytest.approx(0.4)
    assert timed(run_request, times, 4, 0.5, 1.0, 1.3).run_s == pytest.approx(0.1), "a guess that is let try"


def test_one_hiccup_does_not_halve_the_device_and_silence_is_forgotten() -> None:
    times = RunTimes()
    for index in range(10):
        times = times.add(1, 5.0 if index == 4 else 0.1, index * 0.1)
    run_request = timed(RunRequest(), times, 1, 0.5, 1.0, math.inf)
    assert [run_request.run_s, run_request.spread_s] == pytest.approx([0.1, 0.1 * MOST_SPREAD])
    assert timed(RunRequest(), times, 1, 0.5, 5.0, math.inf).run_s == pytest.approx(0.1)
    assert math.isnan(timed(RunRequest(), times, 1, 0.5, 60.0, math.inf).run_s)


@pytest.mark.parametrize("times", [None, RunTimes(), RunTimes().add(1, 5.0, -FRESH_S - 0.01)])
def test_what_never_ran_and_an_only_run_of_some_time_ago_claim_no_time(times: RunTimes | None) -> None:
    run_request = timed(RunRequest(), times, 1, 0.0, 0.0, math.inf)
    assert (math.isnan(run_request.run_s), run_request.spread_s) == (True, 0.0)
