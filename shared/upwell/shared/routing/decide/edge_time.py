"""The predicted time on the device for one request."""

from __future__ import annotations

import math
from dataclasses import replace

from upwell.shared.routing.decide.router_state import RouterState, Signals
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S
from upwell.shared.value_classes import value_class

LONG_SILENCE_S = 10.0
LONGEST_TRY_S = 1.0


@value_class
class EdgeTime:
    """The predicted time on the device for this request, behind the runs that it already owes, which count as alike.

    `usual_s` is the recent time and decides on admission; `cautious_s`, the 99th percentile, decides how early a run
    starts that stands in for the cloud. NaN if nothing was measured, or there is no edge side. All contain
    `prepare_s`, what the request's pictures need before the run; 0 if unknown. `least_s` is NaN where so many rows were
    measured; else `usual_s` is guessed from another number, an upper bound, and `least_s` the lower one.
    """

    usual_s: float
    cautious_s: float
    fastest_s: float
    silence_s: float
    prepare_s: float = 0.0
    least_s: float = math.nan

    @classmethod
    def of(cls, state: RouterState, signals: Signals, rows: int, now_s: float) -> EdgeTime:
        """The times for `rows` rows of this request's model; unknown if nothing was measured."""
        times = state.edge.get(signals.request_facts.model)
        window = None if times is None or not signals.has_edge else times.expect(rows)
        has_pictures = signals.pictures is not None and signals.has_edge
        prepare_s = preparation_s(state, signals, rows, now_s) if has_pictures else 0.0
        run = NO_EDGE_TIME
        if window is not None:
            queue_s = signals.edge_ahead * (window.lately_s + prepare_s)
            usual_s = queue_s + window.lately_s
            least_s = usual_s / window.guess if window.guess > 1.0 else math.nan
            silence_s = window.silence_s(now_s)
            run = cls(usual_s, queue_s + window.p99_s, window.fastest_s, silence_s, least_s=least_s)
        return run.behind(prepare_s)

    def behind(self, prepare_s: float) -> EdgeTime:
        """The times of a run before which pictures are prepared; an unknown run counts as 0 beside a known time."""
        if not prepare_s > 0.0:
            return self
        run = EdgeTime(0.0, 0.0, 0.0, math.inf) if math.isnan(self.usual_s) else self
        usual_s, cautious_s, fastest_s = run.usual_s + prepare_s, run.cautious_s + prepare_s, run.fastest_s + prepare_s
        return EdgeTime(usual_s, cautious_s, fastest_s, run.silence_s, prepare_s, run.least_s + prepare_s)

    def in_time(self, deadline_s: float, now_s: float) -> bool:
        """Whether the device is predicted to answer by `deadline_s`.

        An old measurement may be one bad moment, kept for ever because nothing ran since. Then the fastest run counts,
        and after `LONG_SILENCE_S`, or if there was one run alone, only the preparation does: the device is tried.
        """
        needed_s = self.usual_s if self.silence_s <= FRESH_S else self.fastest_s
        if self.silence_s > LONG_SILENCE_S:
            needed_s = self.prepare_s
        return now_s < deadline_s and not now_s + needed_s > deadline_s  # NaN: the unknown is tried

    def is_worth_a_try(self, deadline_s: float, now_s: float) -> bool:
        """Whether only a guess says that the device would be late, it may be in time, and it is not busy for long.

        Refused, so many rows would stay unmeasured for ever beside a stream of other numbers.
        """
        return now_s + self.least_s < deadline_s and self.usual_s <= LONGEST_TRY_S


def preparation_s(state: RouterState, signals: Signals, rows: int, now_s: float) -> float:
    """What the pictures of `rows` rows of a request need on the device before a run; 0 if unknown or without."""
    pictures, times = signals.pictures, state.preparation.get(signals.request_facts.model)
    if pictures is None or times is None:
        return 0.0
    of_rows = replace(pictures, pixels=max(1, pictures.pixels * rows // len(signals.row_sizes_bytes)))
    return times.expect_s(of_rows, now_s)


NO_EDGE_TIME = EdgeTime(math.nan, math.nan, math.nan, math.inf)
