"""The predicted time on the device for one request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from upwell.shared.routing.decide.router_state import RouterState, Signals
from upwell.shared.routing.estimators.latency import FRESH_S
from upwell.shared.values import quick

LONG_SILENCE_S = 10.0


@quick
@dataclass(frozen=True, slots=True)
class EdgeTime:
    """The predicted time on the device for this request, behind the runs that it already owes.

    `usual_s` is the recent time and decides on admission; `cautious_s`, the 99th percentile, decides how early a run
    starts that stands in for the cloud. NaN if nothing was measured, or there is no edge side.
    """

    usual_s: float
    cautious_s: float
    fastest_s: float
    silence_s: float

    @classmethod
    def of(cls, state: RouterState, signals: Signals, rows: int, now_s: float) -> EdgeTime:
        """The times for `rows` rows of this request's model; unknown if nothing was measured."""
        times = state.edge.get(signals.request_facts.model)
        window = None if times is None or not signals.has_edge else times.expect(rows)
        if window is None:
            return NO_EDGE_TIME
        queue_s = signals.edge_ahead * window.lately_s
        return cls(queue_s + window.lately_s, queue_s + window.p99_s, window.fastest_s, now_s - window.last_at_s)

    def in_time(self, deadline_s: float, now_s: float) -> bool:
        """Whether the device is predicted to answer by `deadline_s`.

        An old measurement may be one bad moment, kept for ever because nothing ran since. Then the fastest run counts,
        and after `LONG_SILENCE_S` nothing does: the device is tried.
        """
        needed_s = self.usual_s if self.silence_s <= FRESH_S else self.fastest_s
        if self.silence_s > LONG_SILENCE_S:
            needed_s = math.nan
        return now_s < deadline_s and not now_s + needed_s > deadline_s  # NaN: the unknown is tried


NO_EDGE_TIME = EdgeTime(math.nan, math.nan, math.nan, math.inf)
