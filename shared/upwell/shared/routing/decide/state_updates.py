"""Updates the router state from cloud outcomes: samples, breakers, and calls in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from upwell.shared.routing.decide.offload import predict
from upwell.shared.routing.decide.router_state import (
    LINK,
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudSent,
    LinkProbed,
    RouterState,
)
from upwell.shared.routing.estimators.circuit_breaker import CLOSED, Breaker
from upwell.shared.routing.estimators.link_estimate import LinkEstimate, LinkSample
from upwell.shared.routing.estimators.run_and_answer_times import AnswerTimes, RunTimes
from upwell.shared.routing.estimators.uplink_backlog import Backlog, InFlight
from upwell.shared.routing.reasons import CALLERS_FAULTS, LINK_FAILURES, Reason

LONGEST_HOLD_S = 30.0
"""Maximum time for which a cloud's request to wait is honoured, since it may be wrong (seconds)."""

_REPLY_MEMORY = 0.8


def sent(state: RouterState, outcome: CloudSent, now_s: float) -> RouterState:
    """A message begins to leave: keep its predicted time, to compare it with the outcome."""
    expected = predict(state, outcome.model, outcome.rows, outcome.sent_bytes, 0.5, now_s)
    link = state.link
    judged_s = expected.usual_s / link.fading(now_s) if link.fading(now_s) > 0.0 else math.nan
    in_flight = InFlight(outcome.call, outcome.sent_bytes, now_s, judged_s, expected.usual_s, expected.server_s)
    whole, route = (outcome.whole, outcome.model) if outcome.whole else (outcome.model, "")
    last = state.last_split_route
    if last.get(whole, "") != route:
        last = {**last, whole: route}
    backlog = state.backlog.sent(in_flight, link.inverse_bandwidth_s_per_byte)
    queue = state.queue.without(outcome.call) if state.queue.waiting else state.queue
    return replace(state, backlog=backlog, queue=queue, last_split_route=last)


def answered(state: RouterState, answer: CloudAnswered, now_s: float) -> RouterState:
    """An answer closes the breakers on its way, and is a sample of cloud and link unless it is the first on a
    connection."""
    breakers: Mapping[str, Breaker] = state.breakers
    if any(breakers.get(key, CLOSED) != CLOSED for key in (LINK, answer.model)):
        breakers = {**breakers, LINK: CLOSED, answer.model: CLOSED}
    server_s = min(answer.server_s or 0.0, answer.total_s)  # the server may report anything
    link = state.link if answer.is_first else _with_answer(state, answer, server_s, now_s)
    known_rtt_s = 0.0 if math.isnan(link.rtt_s) else link.rtt_s
    backlog = state.backlog.answered(answer.call, now_s - server_s - known_rtt_s) if answer.call else state.backlog
    if answer.is_first:
        return replace(state, breakers=breakers, backlog=backlog)
    model = answer.model
    times = state.cloud.get(model, RunTimes()).add(answer.rows, server_s, now_s)
    totals = state.answers.get(model, AnswerTimes()).add(answer.total_s)
    return replace(
        state,
        breakers=breakers,
        backlog=backlog,
        link=link,
        cloud={**state.cloud, model: times},
        answers={**state.answers, model: totals},
        replies=_with_reply(state.replies, answer),
    )


def _with_answer(state: RouterState, answer: CloudAnswered, server_s: float, now_s: float) -> LinkEstimate:
    """The link with this answer as a sample; not if two requests were sent, since either may have been answered."""
    link, in_flight = state.link, state.backlog.find(answer.call) if answer.call else None
    if answer.hedged or (answer.call and in_flight is None):
        return link
    size_bytes, network_s = answer.sent_bytes, answer.total_s - server_s
    if in_flight is not None:
        link = link.scored(answer.total_s, in_flight.expected_s)
        done_s = in_flight.sent_s + network_s
        carried = state.backlog.carried(answer.call, done_s, link.inverse_bandwidth_s_per_byte)
        if carried is None:
            return link
        size_bytes, network_s = carried
    else:
        expected = predict(state, answer.model, answer.rows, answer.sent_bytes, 0.5, now_s)
        link = link.scored(answer.total_s, expected.usual_s)
    return link.add(LinkSample(now_s, size_bytes, answer.received_bytes, network_s))


def _with_reply(replies: Mapping[str, float], answer: CloudAnswered) -> Mapping[str, float]:
    if not answer.received_bytes:
        return replies
    per_row = answer.received_bytes / max(1, answer.rows)
    known = replies.get(answer.model, per_row)
    return {**replies, answer.model: known * _REPLY_MEMORY + per_row * (1.0 - _REPLY_MEMORY)}


def probed(state: RouterState, probe: LinkProbed, now_s: float) -> RouterState:
    """An empty call succeeded: the link works, and if nothing else was on it, this is a sample of the round trip."""
    if not state.backlog.in_flight:
        state = replace(state, link=state.link.add(LinkSample(now_s, 0, 0, probe.total_s)))
    if not any(breaker.is_open for breaker in state.breakers.values()):
        return state
    return replace(
        state,
        breakers={
            key: breaker.heartened(now_s) if breaker.is_open and (key == LINK or breaker.is_of_size) else breaker
            for key, breaker in state.breakers.items()
        },
    )


def held(state: RouterState, outcome: CloudHeld, now_s: float) -> RouterState:
    """The cloud said when to come back. A later answer does not cancel that: its request was sent before."""
    until_s = now_s + min(outcome.retry_after_s, LONGEST_HOLD_S)
    return replace(
        state,
        backoff_until={
            **state.backoff_until,
            outcome.model: max(until_s, state.backoff_until.get(outcome.model, until_s)),
        },
    )


def ended(state: RouterState, outcome: CloudCallFailed | CloudDropped, now_s: float) -> RouterState:
    """A call ended without a usable answer, or was never sent."""
    if state.queue.has(outcome.call):
        state = replace(state, queue=state.queue.without(outcome.call))
    in_flight = state.backlog.find(outcome.call) if outcome.call else None
    if in_flight is not None:
        state = _without(state, outcome, in_flight, now_s)
    if not isinstance(outcome, CloudCallFailed) and not outcome.probes:
        return state
    breakers = dict(state.breakers)
    for key in outcome.probes:
        breakers[key] = breakers[key].release_probe()
    if isinstance(outcome, CloudCallFailed):
        # A request that was sent before the cloud said when to come back, and is refused too, tells nothing new.
        is_known = outcome.reason is Reason.CLOUD_EXHAUSTED and state.is_held(outcome.model, now_s)
        if outcome.probes or not is_known:
            _count(breakers, outcome, in_flight, now_s)
    return replace(state, breakers=breakers)


def _count(breakers: dict[str, Breaker], failure: CloudCallFailed, in_flight: InFlight | None, now_s: float) -> None:
    """Count a failure for the link or for the model."""
    weight = failure.chance if failure.waited_s < math.inf else 1.0
    size_bytes = 0 if in_flight is None else in_flight.size_bytes
    if LINK in failure.probes and failure.reason not in LINK_FAILURES:
        is_late = failure.reason is Reason.CLOUD_DEADLINE
        breakers[LINK] = (
            breakers[LINK].failed(now_s, failure.waited_s, size_bytes) if is_late else CLOSED  # it answered
        )
    if failure.reason in CALLERS_FAULTS:
        return
    if failure.reason in LINK_FAILURES and failure.model in failure.probes:  # it tells nothing about the model
        breakers[failure.model] = breakers[failure.model].failed(now_s, failure.waited_s, size_bytes)
    key = LINK if failure.reason in LINK_FAILURES else failure.model
    breaker = breakers.get(key, CLOSED)
    # A request sent before the breaker opened tells nothing new: only a probe may keep it open.
    if not breaker.is_open or key in failure.probes:
        breakers[key] = breaker.failed(now_s, failure.waited_s, size_bytes, weight=weight)
    else:
        breakers[key] = breaker.outlasted(failure.waited_s, size_bytes)


def _without(
    state: RouterState, outcome: CloudCallFailed | CloudDropped, in_flight: InFlight, now_s: float
) -> RouterState:
    """The state without the call; a timeout is a lower bound on the times of link and answer."""
    s_per_byte = state.link.inverse_bandwidth_s_per_byte
    if isinstance(outcome, CloudDropped):
        return replace(state, backlog=_given_up(state, outcome, now_s, s_per_byte))
    if outcome.reason is not Reason.CLOUD_DEADLINE:
        return replace(state, backlog=_cleared(state, outcome, now_s))
    breakers = [state.breakers.get(key, CLOSED) for key in (LINK, outcome.model)]
    # While a breaker is open, a timeout says that the cloud is still away, and nothing about the link's rate. But if
    # only large messages were late, the link may work slowly, and the next message should be one that it can carry.
    is_away = any(breaker.is_open and not breaker.is_of_size for breaker in breakers)
    if is_away or not outcome.waited_s < math.inf:
        return replace(state, backlog=_given_up(state, outcome, now_s, s_per_byte))
    link, waited_s = state.link.scored(outcome.waited_s, in_flight.expected_s, is_bound=True), outcome.waited_s
    carried = state.backlog.carried(outcome.call, in_flight.sent_s + waited_s - in_flight.server_s, s_per_byte)
    if carried is not None:
        link = link.add(LinkSample(now_s, carried.size_bytes, 0, carried.network_s, is_bound=True))
    if not waited_s <= in_flight.hoped_s:
        link = link.refuted(now_s)
    backlog = _given_up(state, outcome, now_s, link.inverse_bandwidth_s_per_byte)
    answers = state.answers
    if outcome.model in answers:
        answers = {**answers, outcome.model: answers[outcome.model].outlasted(waited_s)}
    return replace(state, link=link, backlog=backlog, answers=answers)


def _given_up(state: RouterState, outcome: CloudCallFailed | CloudDropped, now_s: float, s_per_byte: float) -> Backlog:
    return state.backlog.cancelled(outcome.call, now_s, s_per_byte, frees_link=outcome.frees_link)


def _cleared(state: RouterState, failure: CloudCallFailed, now_s: float) -> Backlog:
    """The calls in flight after a call was refused: by the service, which it reached, or for lack of a connection."""
    if failure.reason in LINK_FAILURES:
        return state.backlog.without(failure.call)
    return state.backlog.answered(failure.call, now_s - (0.0 if math.isnan(state.link.rtt_s) else state.link.rtt_s))
