"""The cut of one request: the best as predicted, and when the one of the last request stays."""

from __future__ import annotations

import math

import pytest

from upwell.shared.partition.choice import ReadyCut, choose

EDGE = ReadyCut("edge", 0.4, 0.0, 0, 0)
LATE = ReadyCut("c30", 0.25, 0.01, 30_000, 4_000)
EARLY = ReadyCut("c12", 0.1, 0.03, 100_000, 4_000)
CLOUD = ReadyCut("cloud", 0.0, 0.05, 600_000, 4_000)
CUTS = (EDGE, LATE, EARLY, CLOUD)


def test_a_total_is_the_sum_of_all_that_is_waited_for() -> None:
    assert LATE.total_s(1e-6, 2e-6, 0.04) == pytest.approx(0.25 + 0.01 + 0.04 + 0.03 + 0.008)


def test_the_edge_alone_pays_no_round_trip() -> None:
    assert EDGE.total_s(math.inf, math.inf, math.inf) == 0.4


def test_a_tail_without_bytes_pays_the_round_trip() -> None:
    assert ReadyCut("c0", 0.1, 0.1, 0, 0).total_s(1.0, 1.0, 0.04) == pytest.approx(0.24)


@pytest.mark.parametrize(("mbps", "expected"), [(0.1, "edge"), (4.0, "c30"), (16.0, "c12"), (200.0, "cloud")])
def test_without_a_current_cut_the_best_is_taken(mbps: float, expected: str) -> None:
    assert choose(CUTS, 8e-6 / mbps, 0.0, 0.02).cut.name == expected


@pytest.mark.parametrize(("other_s", "expected"), [(0.089, "other"), (0.091, "current"), (0.2, "current")])
def test_the_current_cut_stays_until_another_is_better_by_the_margin(other_s: float, expected: str) -> None:
    cuts = (ReadyCut("other", other_s, 0.0, 0, 0), ReadyCut("current", 0.1, 0.0, 0, 0))
    choice = choose(cuts, 0.0, 0.0, 0.0, "current", margin=0.1)
    assert choice.cut.name == expected
    assert choice.best_s == min(other_s, 0.1)
    assert choice.total_s == (other_s if expected == "other" else 0.1)


def test_a_current_cut_that_would_be_late_is_left_for_one_that_is_not() -> None:
    cuts = (ReadyCut("other", 0.095, 0.0, 0, 0), ReadyCut("current", 0.1, 0.0, 0, 0))
    assert choose(cuts, 0.0, 0.0, 0.0, "current", within_s=0.098).cut.name == "other"
    assert choose(cuts, 0.0, 0.0, 0.0, "current", within_s=0.05).cut.name == "current"


def test_a_current_cut_that_is_no_longer_ready_is_left() -> None:
    assert choose((EDGE, LATE), 0.0, 0.0, 0.0, "c12").cut is LATE


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_over_an_unknown_link_nothing_is_sent(unknown: float) -> None:
    assert choose(CUTS, unknown, 0.0, 0.02, "c12").cut is EDGE


def test_where_no_cut_can_be_predicted_the_current_one_stays() -> None:
    choice = choose((LATE, EARLY), math.nan, 0.0, 0.02, "c12")
    assert choice.cut is EARLY
    assert math.isinf(choice.total_s)
