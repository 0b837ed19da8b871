"""What a request needs of the device, with its predicted run time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType

from upwell.shared.routing.decide.edge_time import LONG_SILENCE_S
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S, RunTimes
from upwell.shared.routing.policy.settings import RANKS, Priority
from upwell.shared.value_classes import value_class

MOST_SPREAD = 0.5
"""Maximum share by which a slow run counts as longer than a usual one: one outlier in 64 runs must not halve the
capacity."""

LEAST_SPREAD = 0.1
"""Minimum share by which it counts as longer, since a few equal runs prove little."""


@value_class
class RunRequest:
    """What one request needs of the device.

    `run_s` is the usual time of its run, `spread_s` how much longer it may take; a `run_s` of NaN is unknown, and the
    unknown is tried. Requests of one `stream` (None: no stream) replace each other while they wait, by `arrived_s`.
    `is_owed` marks a run that was promised before (it stands in for the cloud): it is never refused, and neither
    replaces nor is replaced.
    """

    run_s: float = math.nan
    spread_s: float = 0.0
    priority: Priority = "normal"
    stream: Hashable | None = None
    arrived_s: float = 0.0
    is_owed: bool = False

    @property
    def rank(self) -> int:
        """The rank of its priority."""
        return RANKS[self.priority]

    @property
    def known_run_s(self) -> float:
        """`run_s`, or 0 if unknown."""
        return 0.0 if math.isnan(self.run_s) else self.run_s


RUN_REQUESTS: Mapping[Priority, RunRequest] = MappingProxyType(
    {priority: RunRequest(priority=priority) for priority in RANKS}
)
"""The run request of requests without a source."""


def timed(
    run_request: RunRequest, times: RunTimes | None, rows: int, arrived_s: float, now_s: float, deadline_s: float
) -> RunRequest:
    """The run request of a request that came at `arrived_s`, with the predicted time of a run of `rows` rows.

    The prediction is the router's: an old measurement counts with its fastest run, and after a long silence not at all.
    A guess that would be late counts with its lower bound, since the router lets it try.
    """
    window = None if times is None else times.windows.get(rows) or times.expect(rows)
    if window is None or window.silence_s(now_s) > LONG_SILENCE_S:
        return RunRequest(math.nan, 0.0, run_request.priority, run_request.stream, arrived_s, run_request.is_owed)
    run_s = window.lately_s if now_s - window.last_at_s <= FRESH_S else window.fastest_s
    if now_s + run_s > deadline_s:
        run_s /= window.guess
    spread_s = min(max(window.p99_s - run_s, LEAST_SPREAD * run_s), MOST_SPREAD * run_s)
    return RunRequest(run_s, spread_s, run_request.priority, run_request.stream, arrived_s, run_request.is_owed)


def with_preparation(run_request: RunRequest, prepare_s: float) -> RunRequest:
    """The run request of a run before which pictures are prepared, on the device too; 0 if that time is unknown."""
    if not prepare_s > 0.0:
        return run_request
    return replace(
        run_request,
        run_s=run_request.known_run_s + prepare_s,
        spread_s=run_request.spread_s + LEAST_SPREAD * prepare_s,
    )
