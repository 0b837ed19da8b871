"""Whether rows may be offloaded now: obstacles, predictions, and what it takes."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import tzinfo
from typing import NamedTuple

from upwell.shared.routing.decide.edge_time import EdgeTime, preparation_s
from upwell.shared.routing.decide.router_state import LINK, RouterState, Signals, SplitRoute
from upwell.shared.routing.estimators.budget_ledger import Draw
from upwell.shared.routing.estimators.circuit_breaker import BreakerVerdict
from upwell.shared.routing.estimators.hedging import hedge_after_s
from upwell.shared.routing.estimators.link_estimate import fade
from upwell.shared.routing.estimators.uplink_bid_price import MIDDLING, BidPrice, LinkMoment
from upwell.shared.routing.estimators.uplink_rate import Chance
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.request_facts import RowFacts
from upwell.shared.routing.policy.settings import Limit, LowerQuality, Prices
from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class

MARGIN = 0.1
"""Under `objective: latency`, the share by which the other side must be faster to be chosen, which avoids flapping."""

SURE = 0.5
"""Minimum probability of being in time for a route without a fallback, or if the objective is latency."""

ALONE = 0.25
"""Probability of being in time that is always enough on an idle link if no other candidate comes meanwhile. A flat
optimum: on recorded and made links 0.15 and 0.35 left 0.001 to 0.003 more of the oracle's gain."""

RETURN_MARGIN = 0.05
"""After a candidate was too slow, the next one must be predicted to leave this share of its time unused."""


@value_class
class OffloadCase:
    """One request at one moment: facts, policy, deadline, and in `edge` the predicted time on the device. `quality` is
    that of its pictures on the uplink, None for the one in model.yaml."""

    state: RouterState
    signals: Signals
    verdict: Verdict
    deadline_s: float
    give_up_s: float
    now_s: float
    zone: tzinfo
    edge: EdgeTime
    quality: LowerQuality | None = None

    def size_bytes(self, rows: tuple[int, ...]) -> int:
        """The bytes of these rows on the wire."""
        sizes = self.signals.wire_sizes_bytes
        size_bytes = sum(sizes) if len(rows) == len(sizes) else sum(sizes[row] for row in rows)
        return size_bytes if self.quality is None else round(size_bytes * self.quality.bytes_share)


class Prediction(NamedTuple):
    """The time from sending to answer: `usual_s` is the median, of which `server_s` is spent in the cloud; `sure_s` is
    met with the confidence asked for. `chance` is the probability of being in time, and `needed` the one from which on
    the message is worth its time on the link. NaN if unknown. `gain`: its worth, see `QueuedMessage`."""

    usual_s: float = math.nan
    sure_s: float = math.nan
    server_s: float = 0.0
    chance: float = math.nan
    needed: float = math.nan
    gain: float = MIDDLING


UNKNOWN = Prediction()


@value_class
class OffloadOption:
    """Whether a set of rows may be offloaded, by `split_route`: the obstacle, or None and what it takes.

    `retry_after_s`: seconds for which the cloud asked for a pause; None if it did not. `shrinks`: see `Decision`.
    """

    obstacle: Reason | None = None
    probes: tuple[str, ...] = ()
    predicted: Prediction = UNKNOWN
    draws: tuple[Draw, ...] = ()
    side_change: bool | None = None
    hedge_after_s: float = math.inf
    split_route: SplitRoute | None = None
    retry_after_s: float | None = None
    quality: LowerQuality | None = None
    shrinks: bool = True


def predict(state: RouterState, model: str, rows: int, size_bytes: int, confidence: float, now_s: float) -> Prediction:
    """The time of a message sent now: the wait behind others, the link, and the cloud's own time."""
    link, times = state.link, state.cloud.get(model)
    if not link.is_known:
        return UNKNOWN
    window = times.expect(rows) if times is not None else None
    fading = link.fading(now_s)
    wait_s, s_per_byte = state.backlog.wait_s(now_s, link.inverse_bandwidth_s_per_byte, link.rtt_s)
    slower_s = size_bytes * (s_per_byte - link.inverse_bandwidth_s_per_byte)
    link_s = link.expect_s(size_bytes, state.replies.get(model, 0.0) * rows) * fading
    server_s = 0.0 if window is None else window.lately_s * fade(now_s - window.last_at_s)
    usual_s = wait_s + slower_s + link_s + server_s
    return Prediction(usual_s, usual_s * link.error(confidence) ** fading, server_s)


def facts(state: RouterState, signals: Signals, now_s: float) -> RowFacts:
    """What expressions in rules may refer to besides the request."""
    model, rows, size_bytes = signals.request_facts.model, len(signals.row_sizes_bytes), sum(signals.wire_sizes_bytes)
    link, breakers = state.link, state.breakers
    return RowFacts(
        rtt_s=link.rtt_s,
        up_bytes_per_s=_inverse(link.inverse_bandwidth_s_per_byte),
        down_bytes_per_s=_inverse(link.down_s_per_byte),
        edge_s=EdgeTime.of(state, signals, rows, now_s).usual_s,
        cloud_s=predict(state, model, rows, size_bytes, 0.5, now_s).usual_s,
        breaker_open=any(key in breakers and breakers[key].is_open for key in (LINK, model))
        or state.is_held(model, now_s),
    )


def _inverse(s_per_byte: float) -> float:
    return 1.0 / s_per_byte if s_per_byte > 0.0 else math.nan


def attempt(case: OffloadCase, rows: tuple[int, ...], *, must: bool = False) -> OffloadOption:
    """Whether `rows` may be offloaded now, and how. `must`: nothing else can answer them, so the cloud need not be
    better, only in time.

    If costs of picture qualities were measured, the quality with the largest chance · agreement is taken: it most
    likely brings the same answer in time. A lower one must exceed the best above it by `MARGIN`. Pictures that take too
    long to decode go up as they came.
    """
    if case.signals.pictures is not None and not _may_shrink(case, rows, must=must):
        as_they_came = replace(case, signals=replace(case.signals, up_sizes_bytes=()))
        return replace(_attempt(as_they_came, rows, must=must), shrinks=False)
    best = _attempt(case, rows, must=must)
    hard, signals = case.verdict.settings.hard, case.signals
    is_whole = not signals.split_routes and not signals.exits
    if hard is None or not hard.qualities or not is_whole or math.isnan(best.predicted.usual_s):
        return best
    worth = _worth(best, 1.0)
    for quality in hard.qualities:
        found = replace(_attempt(replace(case, quality=quality), rows, must=must), quality=quality)
        if _worth(found, quality.agreement) > worth * (1.0 + MARGIN):
            best, worth = found, _worth(found, quality.agreement)
    return best


def _may_shrink(case: OffloadCase, rows: tuple[int, ...], *, must: bool) -> bool:
    """Whether pictures may be made smaller for the uplink, which is to decode them: the link and the cloud need time
    too, at least as much, and so does a run that stands in for them."""
    prepare_s = preparation_s(case.state, case.signals, len(rows), case.now_s)
    run_s = 0.0 if must or math.isnan(case.edge.cautious_s) else case.edge.cautious_s - case.edge.prepare_s
    return case.now_s + 2.0 * prepare_s <= case.give_up_s - run_s or prepare_s <= 0.0


def _worth(found: OffloadOption, agreement: float) -> float:
    """The probability of the answer that the best quality would bring, in time; 0 if it may not be offloaded."""
    chance = 1.0 if math.isnan(found.predicted.chance) else found.predicted.chance
    return 0.0 if found.obstacle is not None else chance * agreement


def _attempt(case: OffloadCase, rows: tuple[int, ...], *, must: bool) -> OffloadOption:
    """`attempt` at one quality.

    A split model has several routes: the one predicted to be fastest is taken, and the last one taken is left only if
    another is faster by `MARGIN`.
    """
    obstacle = _forbidden(case)
    if obstacle is not None:
        return OffloadOption(obstacle)
    signals = case.signals
    if not signals.split_routes:
        return _by(case, rows, None, must=must)
    takes_whole = signals.has_cloud and case.verdict.route != "split"
    routes = sorted(signals.split_routes, key=lambda route: route.row_bytes)
    found = [_by(case, rows, route, must=must) for route in ((None, *routes) if takes_whole else routes)]
    best = min(found, key=_order)
    last = case.state.last_split_route.get(signals.request_facts.model)
    for one in found:
        stays = (one.split_route.key if one.split_route else "") == last and one.obstacle is best.obstacle is None
        if stays and not best.predicted.usual_s < one.predicted.usual_s * (1.0 - MARGIN):
            return one
    return best


def _order(found: OffloadOption) -> tuple[bool, float]:
    """Routes without an obstacle first, then the fastest; unknown times last, in their given order."""
    usual_s = found.predicted.usual_s
    return found.obstacle is not None, math.inf if math.isnan(usual_s) else usual_s


def _by(case: OffloadCase, rows: tuple[int, ...], route: SplitRoute | None, *, must: bool) -> OffloadOption:
    """Whether `rows` may be offloaded now by this route, None for the whole model."""
    state, settings = case.state, case.verdict.settings
    model = case.signals.request_facts.model
    available_s = case.give_up_s - case.now_s
    size_bytes = case.size_bytes(rows) if route is None else route.row_bytes * len(rows)
    times_key = model if route is None else route.key
    if state.is_held(times_key, case.now_s):
        return OffloadOption(Reason.CLOUD_EXHAUSTED, retry_after_s=state.backoff_until[times_key] - case.now_s)
    tries_link = _tries_link(case, rows)
    probes = probes_of(state, times_key, size_bytes, available_s, case.now_s, tries_link=tries_link)
    if probes is None:
        return OffloadOption(Reason.BREAKER_OPEN)
    predicted = predict(state, times_key, len(rows), size_bytes, max(SURE, settings.confidence), case.now_s)
    if route is not None:
        predicted = _with_head(case, route, len(rows), predicted)
    elif case.signals.pictures is not None and (case.signals.up_sizes_bytes or case.quality is not None):
        # They are decoded first.
        predicted = _delayed(predicted, preparation_s(state, case.signals, len(rows), case.now_s))
    if must:  # it waits behind others of its kind, and nothing overtakes those
        owed_s = state.queue.owed_bytes * state.link.inverse_bandwidth_s_per_byte
        usual_s, sure_s = predicted.usual_s + owed_s, predicted.sure_s + owed_s
        predicted = predicted._replace(usual_s=usual_s, sure_s=sure_s, gain=math.inf)
    side = state.last_side.get(model)
    predicted, obstacle = _in_time(case, rows, size_bytes, predicted, must=must, tries_link=tries_link)
    if obstacle is None and not must and not _is_better(case, predicted, len(rows), size_bytes, route):
        obstacle = Reason.CLOUD_NOT_BETTER
    has_changed = side is False if obstacle is None else side is not False
    if settings.objective == "latency":
        has_changed = side is not (obstacle is None)
    side_change = (obstacle is None) if has_changed else None
    if obstacle is not None:
        # A request for which the link seems too slow would find out nothing about the cloud.
        is_poor_probe = bool(probes) and obstacle is Reason.CLOUD_TOO_SLOW
        return OffloadOption(
            Reason.BREAKER_OPEN if is_poor_probe else obstacle,
            predicted=predicted,
            side_change=side_change,
            split_route=route,
        )
    allowance = state.allowances.get(model)
    if allowance is not None and not must and not allowance.has_room:
        return OffloadOption(Reason.FLEET_SHARE, predicted=predicted, split_route=route)
    draws = tuple(
        draw_of(limit, settings.prices, size_bytes, case.signals.request_facts.wall_time_s) for limit in settings.budget
    )
    if draws and not state.budgets.has_all(draws, case.zone):
        return OffloadOption(Reason.BUDGET_SPENT, predicted=predicted, split_route=route)
    after_s = math.inf
    if settings.hedge is not None and not probes:
        after_s = hedge_after_s(settings.hedge, state.answers.get(times_key), available_s)
    return OffloadOption(None, probes, predicted, draws, side_change, after_s, route)


def probes_of(
    state: RouterState, times_key: str, size_bytes: int, within_s: float, now_s: float, *, tries_link: bool = False
) -> tuple[str, ...] | None:
    """The open breakers, of the link and of the model, that a message would probe; None if one refuses it."""
    probes: tuple[str, ...] = ()
    for key in (LINK, times_key):
        breaker = state.breakers.get(key)
        if breaker is None or not breaker.is_open:
            continue
        admission = breaker.admit(now_s, within_s, size_bytes, tries_link=tries_link)
        if admission is BreakerVerdict.REFUSE:
            return None
        if admission is BreakerVerdict.PROBE:
            probes = (*probes, key)
    return probes


def _tries_link(case: OffloadCase, rows: tuple[int, ...]) -> bool:
    """Whether these rows may find out what the link carries: among the last candidates they are the smallest, so that
    it costs little, and the link is idle."""
    prices = _prices(case)
    if prices is None or case.verdict.settings.objective != "accuracy":
        return False
    size_bytes = replace(case, quality=None).size_bytes(rows) if case.quality else case.size_bytes(rows)
    return _is_idle(case) and prices.is_among_smallest(size_bytes / len(rows))


def _in_time(
    case: OffloadCase,
    rows: tuple[int, ...],
    size_bytes: int,
    predicted: Prediction,
    *,
    must: bool,
    tries_link: bool,
) -> tuple[Prediction, Reason | None]:
    """The prediction with its chance, if that decides, and the obstacle if the message would be late."""
    settings = case.verdict.settings
    if must or settings.objective != "accuracy" or math.isnan(predicted.usual_s):
        was_kept = case.state.last_side.get(case.signals.request_facts.model) is False
        return predicted, _too_slow(predicted, case.give_up_s - case.now_s, was_kept=was_kept)
    prices = _prices(case)
    gain = _gain(case, rows, prices)
    chance, needed = _chance(case, prices, gain, size_bytes, predicted, tries_link=tries_link)
    predicted = predicted._replace(chance=chance, needed=needed, gain=gain)
    return predicted, None if chance >= needed else Reason.CLOUD_TOO_SLOW


def _with_head(case: OffloadCase, route: SplitRoute, rows: int, predicted: Prediction) -> Prediction:
    """The prediction including the head's run behind the runs that the device owes, and the plan's time for an unused
    tail."""
    state, model = case.state, case.signals.request_facts.model
    prepare_s = preparation_s(state, case.signals, rows, case.now_s)
    window = state.edge[model].expect(rows) if case.signals.edge_ahead and model in state.edge else None
    queue_s = case.signals.edge_ahead * (window.lately_s + prepare_s) if window is not None else 0.0
    more_s = queue_s + _head_s(state, route, rows) + prepare_s
    if route.key not in state.cloud and not math.isnan(route.tail_s):
        more_s += route.tail_s * rows
    return _delayed(predicted, more_s)


def _delayed(predicted: Prediction, more_s: float) -> Prediction:
    """The prediction for a message that leaves so much later."""
    return Prediction(predicted.usual_s + more_s, predicted.sure_s + more_s, predicted.server_s + more_s)


def _head_s(state: RouterState, route: SplitRoute, rows: int) -> float:
    """Predicted seconds of a head's run; 0 if neither a run nor a plan tells, so that it is tried."""
    times = state.edge.get(route.key)
    window = times.expect(rows) if times is not None else None
    if window is not None:
        return window.lately_s
    return 0.0 if math.isnan(route.head_s) else route.head_s * rows


def _forbidden(case: OffloadCase) -> Reason | None:
    """What forbids offloading, whatever the cloud and the link are like."""
    verdict = case.verdict
    if verdict.denial is not None:
        return verdict.denial
    if verdict.route == "edge":
        return Reason.RULE
    return None if case.signals.may_offload else Reason.NO_CLOUD


def chance_of(state: RouterState, size_bytes: float, within_s: float, now_s: float) -> Chance:
    """The chance of a message sent now, behind those sent before it, with `within_s` on the link."""
    link = state.link
    wait_s, s_per_byte = state.backlog.wait_s(now_s, link.inverse_bandwidth_s_per_byte, link.rtt_s)
    ahead_bytes = wait_s / s_per_byte if s_per_byte > 0.0 else 0.0
    return link.rates.chance(now_s, size_bytes, ahead_bytes, within_s, link.rtt_s * link.fading(now_s))


def _chance(
    case: OffloadCase, prices: BidPrice | None, gain: float, size_bytes: int, predicted: Prediction, *, tries_link: bool
) -> tuple[float, float]:
    """The probability that a message sent now is answered in time, and the one from which on it is worth its link time.

    The price of a second follows from the recent candidates (`BidPrice`), but is at least such that a row of median
    rank that takes all the remaining link time needs the policy's confidence. On an idle link `ALONE` is enough, plus
    what those could gain that come while the message is expected to hold the link, each worth as much and in time with
    probability `SURE`: chance ≥ `ALONE` + `SURE`·followers. `ALONE` is not 0 because that time is uncertain.

    Where messages compete, that may be more than 1: what is sure to be in time then stays, for those worth more.
    """
    within_s = case.give_up_s - case.now_s - predicted.server_s
    if within_s <= 0.0:
        return 0.0, 1.0
    link, confidence = case.state.link, case.verdict.settings.confidence
    if confidence >= SURE:
        # No chance over an unknown link is so high: unless what is known of it fades, it would never be tried again.
        faded_bytes = size_bytes * link.fading(case.now_s)
        return chance_of(case.state, faded_bytes, within_s, case.now_s).in_time, confidence
    found = chance_of(case.state, size_bytes, within_s, case.now_s)
    if tries_link:
        return found.in_time, 0.0
    moment = LinkMoment(link.rates, case.now_s, within_s, link.rtt_s * link.fading(case.now_s))
    per_s = 0.0 if prices is None else prices.per_s(moment)
    price = max(per_s, confidence * MIDDLING / max(1e-3, within_s - moment.rtt_s))
    needed = price * found.occupied_s / max(1e-3, gain)
    if prices is not None and needed > ALONE and _is_idle(case):
        needed = min(needed, max(ALONE, confidence) + SURE * prices.followers(found.occupied_s))
    return found.in_time, needed


def _is_idle(case: OffloadCase) -> bool:
    """Whether a message sent now waits for no other."""
    link = case.state.link
    return case.state.backlog.wait_s(case.now_s, link.inverse_bandwidth_s_per_byte, link.rtt_s)[0] <= 0.0


def _prices(case: OffloadCase) -> BidPrice | None:
    """The prices of the link from the recent candidates; None without any."""
    hard = case.verdict.settings.hard
    return None if hard is None else case.state.bid_prices.get((case.signals.request_facts.model, hard.measure))


def _gain(case: OffloadCase, rows: tuple[int, ...], prices: BidPrice | None) -> float:
    """The expected worth of the cloud's answer to these rows; that of a median row if unknown."""
    signals = case.signals
    if prices is None or not signals.hardness:
        return MIDDLING
    hardness = dict(zip(signals.scored_rows, signals.hardness, strict=True))
    return sum(prices.gain(hardness[row]) for row in rows)


def _too_slow(predicted: Prediction, available_s: float, *, was_kept: bool) -> Reason | None:
    needed_s = predicted.sure_s / (1.0 - RETURN_MARGIN) if was_kept else predicted.sure_s
    # A NaN prediction makes the second comparison false: the unknown is tried.
    return Reason.CLOUD_TOO_SLOW if available_s <= 0.0 or needed_s > available_s else None


def _is_better(case: OffloadCase, predicted: Prediction, rows: int, size_bytes: int, route: SplitRoute | None) -> bool:
    """Whether offloading lowers the quantity of the objective. Energy and money need no margin: they are known
    beforehand, so nothing flaps. A head takes the same share of the model's energy as of its time."""
    settings, edge = case.verdict.settings, case.edge
    if case.signals.exits:  # the head runs first in any case: its answer is faster and costs nothing more
        return settings.objective == "accuracy"
    if settings.objective == "latency":
        side = case.state.last_side.get(case.signals.request_facts.model)
        factor = 1.0 if side is None else 1.0 + MARGIN if side else 1.0 - MARGIN
        return not predicted.usual_s >= edge.usual_s * factor  # NaN: the unknown is tried
    if settings.objective == "energy":
        share = 0.0 if route is None else _head_s(case.state, route, rows) / edge.usual_s if edge.usual_s > 0.0 else 1.0
        return settings.energy.uplink_byte_j * size_bytes < settings.energy.inference_j * rows * (1.0 - share)
    # The edge answer costs nothing, so the cloud never lowers the cost.
    return settings.objective == "accuracy"


def draw_of(limit: Limit, prices: Prices, size_bytes: float, wall_time_s: float) -> Draw:
    """What one message of this size takes from a budget."""
    if limit.quantity == "uplink":
        amount = float(size_bytes)
    elif limit.quantity == "money":
        amount = prices.of(size_bytes)
    else:
        amount = 1.0
    return Draw(limit, amount, wall_time_s)
