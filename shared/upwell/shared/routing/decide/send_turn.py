"""Whether a message may leave now, or waits for the link behind others."""

from __future__ import annotations

import math
from typing import NamedTuple

from upwell.shared.routing.decide.offload import chance_of, predict, probes_of
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage

_NOW_S = -math.inf
_LEAST_S = 1e-4
"""A wait longer than a round trip by less than this counts as over (seconds): behind overdue messages it grows with
time, and rounding may keep it where it is."""


class Turn(NamedTuple):
    """When to check a message again; −infinity: it goes now, or stays on the device because of `obstacle`."""

    at_s: float
    obstacle: Reason | None = None


def turn(state: RouterState, message: QueuedMessage, now_s: float) -> Turn:
    """When the message may go.

    The data in flight is limited to twice the bandwidth-delay product, as in BBR (Cardwell et al. 2016, doi
    10.1145/3012426.3022184): one fills the link and one is its headroom. So the next message goes once the unsent data,
    at the estimated rate, takes at most a round trip. More would wait in the kernel, where nothing can overtake it and
    cancelling it frees nothing.

    A message that has waited is judged again when its turn comes, and stays if there is an obstacle by then. A message
    that is not first leaves the queue as soon as it would be late even on an idle link.
    """
    state = state.over(message.interface)
    link, is_waiting = state.link, state.queue.has(message.call)
    if not link.is_known:
        return Turn(_NOW_S)
    before = state.queue.before(message, now_s)
    wait_s, _ = state.backlog.wait_s(now_s, link.inverse_bandwidth_s_per_byte, link.rtt_s)
    if not before and wait_s <= link.rtt_s + _LEAST_S:
        return Turn(_NOW_S, _obstacle(state, message, now_s) if is_waiting else None)
    usual_s = predict(state, message.model, message.rows, message.size_bytes, 0.5, now_s).usual_s - wait_s
    leaves_s = message.give_up_s - usual_s
    if is_waiting and now_s >= leaves_s:
        return Turn(_NOW_S, Reason.CLOUD_TOO_SLOW)
    return Turn(min(leaves_s, math.inf if before else now_s + wait_s - link.rtt_s))


def _obstacle(state: RouterState, message: QueuedMessage, now_s: float) -> Reason | None:
    """What has come between a message and the cloud while it waited."""
    if state.is_held(message.model, now_s):
        return Reason.CLOUD_EXHAUSTED
    left_s = message.give_up_s - now_s
    if probes_of(state, message.model, message.size_bytes, left_s, now_s) != ():  # a message that waited is not a probe
        return Reason.BREAKER_OPEN
    predicted = predict(state, message.model, message.rows, message.size_bytes, 0.5, now_s)
    if math.isnan(message.needed):
        return Reason.CLOUD_TOO_SLOW if predicted.usual_s > left_s else None
    within_s = left_s - predicted.server_s
    is_likely = within_s > 0.0 and chance_of(state, message.size_bytes, within_s, now_s).in_time >= message.needed
    return None if is_likely else Reason.CLOUD_TOO_SLOW
