"""More than the device can do: who is admitted is in time, the rest is told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.examples import grid
from tests.faults.overload import Load, Tally, overload

pytestmark = pytest.mark.alone

CAMERAS: Sequence[Mapping[str, str]] = [{"camera": str(number)} for number in range(5)]
AT_ONCE_MS = 50.0
"""Long enough for a machine that is busy with other things; the figure itself is for the slow test."""


def in_time_share(tally: Tally) -> float:
    share: float = tally.report()["admitted_in_time_share"]
    return share


@pytest.mark.parametrize(
    ("deadlines_s", "together"),
    grid({"tight": (0.103,), "mixed": (0.31, 0.15)}, {"one after the other": False, "all at once": True}),
)
def test_under_overload_who_is_admitted_is_in_time(deadlines_s: tuple[float, ...], together: bool) -> None:
    tally = overload(Load(seconds=1.5, run_s=0.05, deadlines_s=deadlines_s, together=together))
    report = tally.report()
    assert in_time_share(tally) >= 0.8, report
    assert len(tally.in_time) >= 15, report  # the device is kept busy
    assert report["refusal_ms"]["p99"] <= AT_ONCE_MS


def test_of_a_stream_the_latest_frame_is_answered_and_the_others_are_told() -> None:
    policy = {"defaults": {"deadline": "1s", "hard": "off", "source": {"tag": "camera", "keep": "latest"}}}
    tally = overload(Load(5, seconds=1.0, run_s=0.05, deadlines_s=(1.0,), policy=policy, tags=CAMERAS))
    assert tally.superseded
    assert not tally.refused
    assert not tally.broken
    served = Counter(caller for caller, _ in tally.in_time)
    assert sorted(served) == list(range(5))
    # Each camera waits for at most one frame of each of the others.
    assert max(took_s for _, took_s in tally.in_time) <= 0.05 * 6 + 0.2


def test_the_higher_priority_is_served_and_the_lower_ones_are_told() -> None:
    rules = [{"name": "alarm", "match": {"tags": {"camera": "0"}}, "set": {"priority": "high"}}]
    load = Load(5, 10.0, 2.0, run_s=0.05, deadlines_s=(0.3,), policy={"rules": rules}, tags=CAMERAS)
    tally = overload(load)
    assert in_time_share(tally) >= 0.8
    served = Counter(caller for caller, _ in tally.in_time)
    assert served[0] >= 16  # of 20 frames; the device does half of what all five send
    assert sum(1 for caller, _ in tally.refused if caller == 0) <= 4


def test_a_source_over_its_rate_is_told_and_leaves_room_for_the_others() -> None:
    policy = {"defaults": {"deadline": "500ms", "hard": "off", "source": {"tag": "camera", "rate": "2/s"}}}
    tally = overload(Load(2, 30.0, 1.0, run_s=0.02, policy=policy, tags=CAMERAS))
    served = Counter(caller for caller, _ in tally.in_time)
    assert set(served.values()) <= {3, 4}  # a second's worth, and what comes in a second
    assert len(tally.refused) == 60 - served.total()


@pytest.mark.slow
@pytest.mark.parametrize("callers", [10, 40])
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "all at once"])
def test_ten_callers_at_thirty_frames_on_a_model_that_does_ten_a_second(callers: int, together: bool) -> None:
    report: dict[str, Any] = overload(Load(callers, seconds=30.0, together=together)).report()
    assert report["admitted_in_time_share"] >= 0.99, report
    assert report["answered_in_time"] >= 280, report
    assert report["admitted_without_answer"] == 0, report
    assert report["refusal_ms"]["p99"] <= 5.0, report
