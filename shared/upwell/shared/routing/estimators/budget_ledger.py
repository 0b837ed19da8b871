"""Budgets: limits per second, minute, hour, day, week or month in the policy's time zone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import ClassVar, NamedTuple

from upwell.shared.routing.policy.settings import Limit, Period
from upwell.shared.value_classes import value_class


@value_class
class Draw:
    """An amount drawn from a budget; `wall_time_s` (Unix time) decides the period."""

    limit: Limit
    amount: float
    wall_time_s: float


class Window(NamedTuple):
    """One period of a budget, [start_s, end_s) in Unix time, and the amount spent in it."""

    start_s: float
    end_s: float
    spent: float


@value_class
class BudgetLedger:
    """The amounts spent of each budget, by calendar period. Immutable; the wall clock is an argument.

    The clock alone decides the period: a day is from midnight to midnight in the time zone (23 or 25 hours when the
    clocks change), a week begins on Monday, a month on the billing day, or on its last day if it is shorter. The last
    `WINDOWS` periods are kept for each budget. So a clock that is set back finds what was spent then, and one that was
    wrong for a while neither frees a budget nor blocks it for ever.
    """

    WINDOWS: ClassVar[int] = 4
    LAST_PART: ClassVar[float] = 0.1

    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)

    def has(self, draw: Draw, zone: tzinfo) -> bool:
        """Whether the budget still has that amount."""
        return self._window(draw, zone).spent + draw.amount <= draw.limit.amount

    def has_all(self, draws: Iterable[Draw], zone: tzinfo) -> bool:
        """Whether each budget has its amount."""
        return all(self.has(draw, zone) for draw in draws)

    def spares(self, draw: Draw, zone: tzinfo) -> bool:
        """Whether that amount may be spent on work that can wait.

        With it no more than e·A is spent, A being the limit and e the part of the period that has passed. So urgent
        requests find at least (1 − e)·A, or what other urgent ones have left of it; requests that come evenly and fit
        into the budget lack nothing, and what they leave is used up by the end of the period. An amount that is too
        large for that may be spent in the last tenth of a period in which nothing was spent: otherwise it never could
        be.
        """
        window = self._window(draw, zone)
        passed = (_possible(draw.wall_time_s) - window.start_s) / (window.end_s - window.start_s)
        if window.spent == 0.0 and passed >= 1.0 - self.LAST_PART:
            return draw.amount <= draw.limit.amount
        return window.spent + draw.amount <= passed * draw.limit.amount

    def spares_all(self, draws: Iterable[Draw], zone: tzinfo) -> bool:
        """Whether each budget can spare its amount."""
        return all(self.spares(draw, zone) for draw in draws)

    def take(self, draws: Iterable[Draw], zone: tzinfo) -> BudgetLedger:
        """With these amounts spent, even if the budgets did not have them: what was sent is spent.

        A negative amount gives back; the spent amount never falls below zero.
        """
        windows = dict(self.windows)
        for draw in draws:
            name = _name(draw.limit)
            window = BudgetLedger(windows)._window(draw, zone)
            others = [known for known in windows.get(name, ()) if known.start_s != window.start_s]
            spent = max(0.0, window.spent + draw.amount)
            windows[name] = (window._replace(spent=spent), *others[: self.WINDOWS - 1])
        return BudgetLedger(windows)

    def left(self, limit: Limit, wall_time_s: float, zone: tzinfo) -> float:
        """What is left of a budget now."""
        return max(0.0, limit.amount - self._window(Draw(limit, 0.0, wall_time_s), zone).spent)

    def to_json(self) -> dict[str, list[list[float]]]:
        """The ledger as plain JSON values."""
        return {name: [list(window) for window in windows] for name, windows in self.windows.items()}

    @classmethod
    def from_json(cls, value: object) -> BudgetLedger:
        """The ledger from `to_json`. Raises `ValueError` for anything else."""
        if not isinstance(value, dict):
            raise ValueError("expected an object of budgets")
        return cls(
            {str(name): tuple(map(_read_window, _list(windows)))[: cls.WINDOWS] for name, windows in value.items()}
        )

    def _window(self, draw: Draw, zone: tzinfo) -> Window:
        wall_time_s = _possible(draw.wall_time_s)
        for window in self.windows.get(_name(draw.limit), ()):
            if window.start_s <= wall_time_s < window.end_s:
                return window
        start_s, end_s = period_bounds(draw.limit.period, wall_time_s, zone, draw.limit.billing_day)
        return Window(start_s, end_s, 0.0)


def _name(limit: Limit) -> str:
    """The key of a budget; a changed period or billing day makes another budget."""
    return f"{limit.key} {limit.quantity}/{limit.period} {limit.billing_day}"


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError("expected a list of periods for each budget")
    return value


def _number(value: object) -> float:
    """NaN for what is not a number, or is beyond the calendar's range."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _read_window(value: object) -> Window:
    numbers = [_number(one) for one in _list(value)]
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise ValueError("expected start, end and amount of a period, three finite numbers")
    start_s, end_s, spent = numbers
    if not start_s < end_s or spent < 0:
        raise ValueError("expected a period that ends after its start and a non-negative amount")
    return Window(start_s, end_s, spent)


_EARLIEST_S, _LATEST_S = -62_000_000_000.0, 253_000_000_000.0


def _possible(wall_time_s: float) -> float:
    """The nearest time that a calendar of four-digit years can represent."""
    return min(_LATEST_S, max(_EARLIEST_S, wall_time_s))


def period_bounds(period: Period, wall_time_s: float, zone: tzinfo, billing_day: int = 1) -> tuple[float, float]:
    """The calendar period that contains `wall_time_s`: [start, end) in Unix time.

    Seconds and minutes are the same in every zone. Hours begin when the zone's clocks show a full hour.
    """
    wall_time_s = _possible(wall_time_s)
    if period in ("s", "min"):
        length_s = 1 if period == "s" else 60
        start_s = math.floor(wall_time_s / length_s) * length_s
        return float(start_s), float(start_s + length_s)
    local = datetime.fromtimestamp(wall_time_s, timezone.utc).astimezone(zone)
    if period == "h":
        into_s = local.minute * 60 + local.second + local.microsecond / 1e6
        start_s = round(wall_time_s - into_s)
        return float(start_s), float(start_s + 3600)
    start, end = _days(period, local.replace(tzinfo=None), billing_day)
    return start.replace(tzinfo=zone).timestamp(), end.replace(tzinfo=zone).timestamp()


def _days(period: Period, local: datetime, billing_day: int) -> tuple[datetime, datetime]:
    """The midnights that bound the period."""
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return midnight, midnight + timedelta(days=1)
    if period == "week":
        monday = midnight - timedelta(days=midnight.weekday())
        return monday, monday + timedelta(days=7)
    this = _billing(midnight.year, midnight.month, billing_day)
    if this > midnight:
        return _billing(*_month(midnight, -1), billing_day), this
    return this, _billing(*_month(midnight, 1), billing_day)


def _month(day: datetime, step: int) -> tuple[int, int]:
    months = day.year * 12 + day.month - 1 + step
    return months // 12, months % 12 + 1


def _billing(year: int, month: int, billing_day: int) -> datetime:
    first = datetime(year, month, 1)
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    return first.replace(day=min(billing_day, last.day))
