"""Refusals of a server that drains: held until its ports are closed, but not beyond the caller's deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from upwell.shared.errors import Unavailable
from upwell.shared.oip import held_refusals
from upwell.shared.oip.held_refusals import HeldRefusals

SAID = "the service is draining and accepts no more requests"
FOREVER_S = 1e6
NOT_YET_S = 0.1


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldRefusals]:
    """They are held without end, and settle at once."""
    monkeypatch.setattr(held_refusals, "_HELD_S", FOREVER_S)
    monkeypatch.setattr(held_refusals, "_QUIET_S", 0.001)
    made = HeldRefusals("the service")
    yield made
    made.release()


@pytest.fixture
def callers(refusals: HeldRefusals) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
        refusals.release()


def assert_told(*asked: Future[Unavailable]) -> None:
    assert [str(one.result(60)) for one in asked] == [SAID] * len(asked)


def test_before_and_after_they_are_not_held(refusals: HeldRefusals) -> None:
    assert str(refusals.refusal(math.inf)) == SAID
    refusals.settle()
    refusals.release()
    assert str(refusals.refusal(math.inf)) == SAID


def test_they_are_held_until_they_are_released(refusals: HeldRefusals, callers: ThreadPoolExecutor) -> None:
    refusals.settle()
    asked = [callers.submit(refusals.refusal, deadline_s) for deadline_s in (math.inf, time.monotonic() + FOREVER_S)]
    assert not wait(asked, NOT_YET_S).done
    refusals.release()
    assert_told(*asked)


def test_nobody_is_held_until_the_deadline(refusals: HeldRefusals, callers: ThreadPoolExecutor) -> None:
    refusals.settle()
    now_s = time.monotonic()
    assert_told(*(callers.submit(refusals.refusal, now_s + left_s) for left_s in (0.05, 0.0, -1.0, -math.inf)))


def test_without_a_deadline_they_are_not_held_for_ever(
    refusals: HeldRefusals, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_refusals, "_HELD_S", 0.01)
    refusals.settle()
    assert_told(callers.submit(refusals.refusal, math.inf))


def test_it_settles_while_requests_still_come(
    refusals: HeldRefusals, callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_refusals, "_LONGEST_SETTLING_S", 0.05)
    monkeypatch.setattr(held_refusals, "_QUIET_S", 0.01)
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            refusals.refusal(-math.inf)

    asking = callers.submit(ask)
    settling = callers.submit(refusals.settle)
    try:
        settling.result(60)
    finally:
        is_over.set()
    asking.result(60)
