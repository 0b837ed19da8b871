"""Budgets by the calendar: periods by brute force, clocks that jump, and files that others wrote."""

from __future__ import annotations

import calendar
import json
import random
from datetime import date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from upwell.shared.routing.estimators.budget_ledger import BudgetLedger, Draw, period_bounds
from upwell.shared.routing.policy.settings import Limit, Period

UTC: tzinfo = timezone.utc
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo"]
PERIODS: list[Period] = ["s", "min", "h", "day", "week", "month"]
HOUR = Limit("requests", "cloud_requests", 10, "h")


def taken(
    ledger: BudgetLedger, at_s: float, amount: float = 1.0, limit: Limit = HOUR, zone: tzinfo = UTC
) -> BudgetLedger:
    draw = Draw(limit, amount, at_s)
    return ledger.take([draw], zone) if ledger.has(draw, zone) else ledger


def label(period: Period, wall_time_s: float, zone: tzinfo, billing_day: int) -> object:
    """Which period an instant belongs to, told by what a wall calendar shows."""
    local = datetime.fromtimestamp(wall_time_s, zone)
    if period == "day":
        return local.date()
    if period == "week":
        return local.isocalendar()[:2]
    day = local.date()

    def begins(year: int, month: int) -> date:
        return date(year, month, min(billing_day, calendar.monthrange(year, month)[1]))

    before = day.replace(day=1) - timedelta(days=1)
    return (day.year, day.month) if day >= begins(day.year, day.month) else (before.year, before.month)


@pytest.mark.parametrize("zone_name", ZONES)
@pytest.mark.parametrize("period", ["day", "week", "month"])
@pytest.mark.parametrize("billing_day", [1, 15, 29, 31])
def test_a_period_holds_exactly_the_instants_that_the_calendar_gives_it(
    zone_name: str, period: Period, billing_day: int
) -> None:
    zone, rng = ZoneInfo(zone_name), random.Random(f"{zone_name}{period}{billing_day}")
    for _ in range(120):
        at_s = rng.uniform(1.60e9, 1.95e9)
        start_s, end_s = period_bounds(period, at_s, zone, billing_day)
        assert start_s <= at_s < end_s
        mine = label(period, at_s, zone, billing_day)
        for inside_s in (start_s, start_s + 1, (start_s + end_s) / 2, end_s - 1, end_s - 1e-3):
            assert label(period, inside_s, zone, billing_day) == mine
        for outside_s in (start_s - 1, end_s, end_s + 1):
            assert label(period, outside_s, zone, billing_day) != mine


@pytest.mark.parametrize("zone_name", ZONES)
def test_hours_minutes_and_seconds_tile_time(zone_name: str) -> None:
    zone, rng = ZoneInfo(zone_name), random.Random(zone_name)
    lengths: dict[Period, int] = {"s": 1, "min": 60, "h": 3600}
    for period, length_s in lengths.items():
        for _ in range(100):
            at_s = rng.uniform(1.60e9, 1.95e9)
            start_s, end_s = period_bounds(period, at_s, zone)
            assert start_s <= at_s < end_s == start_s + length_s
            assert (
                datetime.fromtimestamp(start_s, zone).strftime({"h": "%M%S", "min": "%S", "s": ""}[period]).strip("0")
                == ""
            )


DST = [
    ("day", datetime(2025, 3, 30, 12), 23),
    ("day", datetime(2025, 10, 26, 12), 25),
    ("day", datetime(2025, 6, 1, 12), 24),
    ("week", datetime(2025, 3, 30, 12), 7 * 24 - 1),
    ("month", datetime(2025, 10, 26, 12), 31 * 24 + 1),
]


@pytest.mark.parametrize(("period", "local", "hours"), DST)
def test_periods_are_shorter_or_longer_where_the_clocks_change(period: Period, local: datetime, hours: int) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start_s, end_s = period_bounds(period, local.replace(tzinfo=berlin).timestamp(), berlin)
    assert end_s - start_s == hours * 3600


BILLING = [
    (31, date(2025, 2, 15), date(2025, 1, 31), date(2025, 2, 28)),
    (31, date(2025, 2, 28), date(2025, 2, 28), date(2025, 3, 31)),
    (31, date(2024, 2, 29), date(2024, 2, 29), date(2024, 3, 31)),
    (30, date(2025, 3, 1), date(2025, 2, 28), date(2025, 3, 30)),
    (15, date(2025, 1, 14), date(2024, 12, 15), date(2025, 1, 15)),
    (1, date(2025, 12, 31), date(2025, 12, 1), date(2026, 1, 1)),
]


@pytest.mark.parametrize(("billing_day", "day", "start", "end"), BILLING)
def test_a_month_begins_on_its_billing_day(billing_day: int, day: date, start: date, end: date) -> None:
    def noon_s(of: date, hour: int = 0) -> float:
        return datetime(of.year, of.month, of.day, hour, tzinfo=timezone.utc).timestamp()

    assert period_bounds("month", noon_s(day, 12), UTC, billing_day) == (noon_s(start), noon_s(end))


@pytest.mark.parametrize("at_s", [-1e300, -6.3e10, 0.0, 2.6e11, 1e300])
@pytest.mark.parametrize("period", PERIODS)
def test_an_absurd_clock_breaks_nothing(period: Period, at_s: float) -> None:
    start_s, end_s = period_bounds(period, at_s, ZoneInfo("Europe/Berlin"), 31)
    assert start_s < end_s
    limit = Limit("k", "uplink", 5.0, period)
    assert BudgetLedger().take([Draw(limit, 1.0, at_s)], UTC).left(limit, at_s, UTC) == 4.0


def test_a_budget_is_spent_and_whole_again_in_the_next_period() -> None:
    ledger = BudgetLedger()
    for second in range(20):
        ledger = taken(ledger, 7200.0 + second)
    assert ledger.left(HOUR, 7300.0, UTC) == 0.0
    assert not ledger.has(Draw(HOUR, 1.0, 10799.9), UTC)
    assert ledger.has(Draw(HOUR, 1.0, 10800.0), UTC)


def test_all_or_nothing_of_several_budgets() -> None:
    small = Limit("small", "uplink", 1.0, "h")
    assert not BudgetLedger().has_all([Draw(HOUR, 1.0, 0.0), Draw(small, 2.0, 0.0)], UTC)


def test_what_really_went_up_is_spent_even_beyond_the_budget_and_what_did_not_comes_back() -> None:
    ledger = BudgetLedger().take([Draw(HOUR, 25.0, 0.0)], UTC)
    assert not ledger.has(Draw(HOUR, 0.1, 0.0), UTC)
    ledger = ledger.take([Draw(HOUR, -20.0, 0.0)], UTC)
    assert ledger.left(HOUR, 0.0, UTC) == 5.0
    assert ledger.take([Draw(HOUR, -100.0, 0.0)], UTC).left(HOUR, 0.0, UTC) == 10.0


def test_a_clock_that_goes_back_and_forth_over_an_edge_frees_nothing() -> None:
    ledger, took = BudgetLedger(), {0: 0, 1: 0}
    for step in range(400):
        at_s = 3599.0 if step % 2 else 3601.0
        after = taken(ledger, at_s)
        took[int(at_s // 3600)] += after != ledger
        ledger = after
    assert took == {0: 10, 1: 10}


def test_a_clock_that_was_far_ahead_for_a_while_blocks_nothing_afterwards() -> None:
    ledger = BudgetLedger()
    for _ in range(10):
        ledger = taken(ledger, 4e9)
    assert ledger.left(HOUR, 1.8e9, UTC) == 10.0


def test_a_device_that_boots_in_1970_finds_the_month_as_it_left_it() -> None:
    month = Limit("gb", "uplink", 100.0, "month")
    ledger = BudgetLedger().take([Draw(month, 90.0, 1.8e9)], UTC)
    for boot in range(3):
        ledger = ledger.take([Draw(month, 1.0, 10.0 + boot)], UTC)
    assert ledger.left(month, 1.8e9 + 100, UTC) == 10.0


@pytest.mark.parametrize("seed", range(10))
def test_no_period_ever_gives_more_than_its_amount(seed: int) -> None:
    rng, ledger, took = random.Random(seed), BudgetLedger(), dict[float, float]()
    at_s = 1.7e9
    for _ in range(600):
        at_s += rng.choice([0.0, 1.0, 200.0, 900.0, -300.0, -5.0])
        amount = rng.choice([0.5, 1.0, 3.0])
        after = taken(ledger, at_s, amount)
        if after != ledger:
            start_s, _ = period_bounds("h", at_s, UTC)
            took[start_s] = took.get(start_s, 0.0) + amount
        ledger = after
    assert took
    assert max(took.values()) <= HOUR.amount


def test_it_survives_a_file() -> None:
    ledger = taken(taken(BudgetLedger(), 0.0), 7200.0)
    assert BudgetLedger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


BAD: list[object] = [
    None, [], 1, "x", {"a": 1}, {"a": [1]}, {"a": [[1, 2]]}, {"a": [[1, 2, "3"]]}, {"a": [[2, 1, 0]]},
    {"a": [[1, 2, -1]]}, {"a": [[1, 2, float("nan")]]}, {"a": [[1, float("inf"), 0]]}, {"a": [[1, 2, 3, 4]]},
    {"a": [[True, 2, 3]]}, {"a": {"b": 1}},
]  # fmt: skip


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_file_that_is_no_ledger_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        BudgetLedger.from_json(value)


DAY = Limit("defaults", "cloud_requests", 1000, "day")
DAY_S = 86_400
MIDNIGHT_S = 1_700_006_400
"""In UTC."""


def a_day(limit: Limit, live: int) -> tuple[int, int]:
    """How many live requests, evenly spread, and how many kept cases go up in a day that begins with a full spool."""
    ledger, sent, kept = BudgetLedger(), 0, 0
    times_s = {round((number + 0.5) * DAY_S / live) for number in range(live)} if live else set()
    assert len(times_s) == live
    for second in sorted({*times_s, *range(0, DAY_S, 10)}):
        draw = Draw(limit, 1.0, MIDNIGHT_S + second)
        if second in times_s and ledger.has(draw, UTC):
            ledger, sent = ledger.take([draw], UTC), sent + 1
        if ledger.spares(draw, UTC):  # far more often than a drainer asks
            ledger, kept = ledger.take([draw], UTC), kept + 1
    return sent, kept


@pytest.mark.parametrize("live", [0, 1, 100, 500, 990, 1000])
def test_kept_cases_take_what_live_requests_leave_and_nothing_else(live: int) -> None:
    sent, kept = a_day(DAY, live)
    assert sent == live
    assert 0.98 * 1000 <= sent + kept <= 1000


@pytest.mark.parametrize(
    ("amount", "live"),
    [(1, 0), *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((1, 1), (4, 4))), (2, 1)],
)
def test_a_small_budget_is_for_live_requests_first_and_for_kept_cases_in_the_end(amount: int, live: int) -> None:
    sent, kept = a_day(Limit("defaults", "cloud_requests", amount, "day"), live)
    assert sent == live
    assert sent + kept >= min(amount, max(1, amount - 1))


def test_a_live_request_finds_the_part_of_a_budget_that_is_left_of_its_period() -> None:
    ledger = BudgetLedger()
    for second in range(DAY_S):
        draw = Draw(DAY, 1.0, MIDNIGHT_S + second)
        while ledger.spares(draw, UTC):
            ledger = ledger.take([draw], UTC)
        assert ledger.left(DAY, MIDNIGHT_S + second, UTC) >= 1000 * (1 - second / DAY_S) - 1e-6


def test_periods_that_are_over_are_forgotten() -> None:
    ledger = BudgetLedger()
    for hour in range(100):
        ledger = taken(ledger, 3600.0 * hour)
    (windows,) = ledger.windows.values()
    assert len(windows) == BudgetLedger.WINDOWS
