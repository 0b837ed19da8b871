"""What rules may know besides the request, from what the router has learnt."""

from __future__ import annotations

import math

from upwell.shared.routing.ascending import predict
from upwell.shared.routing.edge_time import EdgeTime
from upwell.shared.routing.state import LINK, RouterState, Signals
from upwell.shared.routing.subject import Facts


def facts_of(state: RouterState, signals: Signals, now_s: float) -> Facts:
    """The facts about this request, with all its rows; times are as likely sooner as later."""
    model, link, rows = signals.subject.model, state.link, len(signals.row_sizes_bytes)
    cloud = predict(state, model, rows, sum(signals.row_sizes_bytes), 0.5, now_s)
    breakers = (state.breakers.get(key) for key in (LINK, model))
    return Facts(
        rtt_s=link.rtt_s,
        up_bytes_per_s=_speed(link.inverse_bandwidth_s_per_byte, link.is_known),
        down_bytes_per_s=_speed(link.down_s_per_byte, link.is_known),
        edge_s=EdgeTime.of(state, signals, rows, now_s).usual_s,
        cloud_s=cloud.usual_s,
        breaker_open=any(breaker is not None and breaker.is_open for breaker in breakers),
    )


def _speed(s_per_byte: float, is_known: bool) -> float:
    return 1.0 / s_per_byte if is_known and s_per_byte > 0.0 else math.nan
