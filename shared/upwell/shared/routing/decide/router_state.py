"""The router's state (`RouterState`), input (`Signals`), output (`Decision`) and feedback (`Outcome`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields, replace
from operator import attrgetter
from typing import Any, TypeAlias

from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.estimators.budget_ledger import BudgetLedger, Draw
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.deadline_reserve import Overruns
from upwell.shared.routing.estimators.fleet_allowance import Allowance
from upwell.shared.routing.estimators.link_estimate import LinkEstimate
from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.estimators.preparation_times import EncodedPictures, PreparationTimes
from upwell.shared.routing.estimators.run_and_answer_times import AnswerTimes, RunTimes
from upwell.shared.routing.estimators.token_bucket import TokenBucket
from upwell.shared.routing.estimators.uplink_backlog import Backlog
from upwell.shared.routing.estimators.uplink_bid_price import MIDDLING, BidPrice
from upwell.shared.routing.hardness import Measure
from upwell.shared.routing.policy.compiled_policy import RequestFacts, Verdict
from upwell.shared.routing.policy.settings import LowerQuality
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason
from upwell.shared.routing.scheduling.send_queue import SendQueue
from upwell.shared.value_classes import value_class

LINK = ""
"""Key of the breaker for the link as a whole; the others are keyed by model name."""


@value_class
class LinkState:
    """What is learnt of the way to the cloud over one network interface; the fields are those of `RouterState`."""

    link: LinkEstimate = LinkEstimate()
    backlog: Backlog = Backlog()
    queue: SendQueue = SendQueue()
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    answers: Mapping[str, AnswerTimes] = field(default_factory=dict)
    last_side: Mapping[str, bool] = field(default_factory=dict)


@value_class
class RouterState:
    """Everything learnt so far; immutable, so that a decision sees one consistent state.

    By model: `edge` and `cloud` are the times of runs on either side, `preparation` those of preparing the pictures of
    a run, which `edge` does not contain, `answers` those from sending to answer, `replies`
    the bytes of an answer for one row, `hedges` what may be spent on second requests, `last_side` whether the last
    candidate went up (True) or was kept for its predicted time (False), `last_split_route` the `SplitRoute.key`
    by which it went up last, empty for the whole model, `backoff_until` the instants before which the cloud said not to
    come back, `allowances` what a fleet leaves of its budget. By scope of `HardSettings`: `shares` and `audits`. By
    model and measure: `bid_prices`, of the last candidates. `budgets` is what a restart must not forget.

    With several network interfaces, `link`, `backlog`, `queue`, `breakers`, `answers` and `last_side` are of the one
    called `interface`, and `others` are those of the rest, in order of preference.
    """

    link: LinkEstimate = LinkEstimate()
    backlog: Backlog = Backlog()
    queue: SendQueue = SendQueue()
    edge: Mapping[str, RunTimes] = field(default_factory=dict)
    cloud: Mapping[str, RunTimes] = field(default_factory=dict)
    answers: Mapping[str, AnswerTimes] = field(default_factory=dict)
    replies: Mapping[str, float] = field(default_factory=dict)
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    last_side: Mapping[str, bool] = field(default_factory=dict)
    hedges: Mapping[str, TokenBucket] = field(default_factory=dict)
    budgets: BudgetLedger = BudgetLedger()
    shares: Mapping[str, ShareController] = field(default_factory=dict)
    audits: Mapping[str, AuditAlarm] = field(default_factory=dict)
    last_split_route: Mapping[str, str] = field(default_factory=dict)
    backoff_until: Mapping[str, float] = field(default_factory=dict)
    allowances: Mapping[str, Allowance] = field(default_factory=dict)
    bid_prices: Mapping[tuple[str, Measure], BidPrice] = field(default_factory=dict)
    overruns: Overruns = Overruns()
    preparation: Mapping[str, PreparationTimes] = field(default_factory=dict)
    interface: str = ""
    others: Mapping[str, LinkState] = field(default_factory=dict)

    def over(self, interface: str) -> RouterState:
        """The state for messages over that interface; unchanged if it is the first, or unknown."""
        other = self.others.get(interface)
        return self if other is None else replace(self, interface=interface, **_link_fields(other))

    def merged(self, changed: RouterState) -> RouterState:
        """The state with the changes made to what `over` returned."""
        if changed.interface == self.interface:
            return changed
        others = {**self.others, changed.interface: LinkState(**_link_fields(changed))}
        return replace(changed, interface=self.interface, others=others, **_link_fields(self))

    def with_runs(self, edge: Mapping[str, RunTimes], allowances: Mapping[str, Allowance]) -> RouterState:
        """The state with other times of runs on the device and other allowances.

        Requests on the device change nothing else. `replace` reads its fields one by one, which takes 35 us where a run
        has just filled the caches.
        """
        values = dict(zip(_STATE_FIELDS, _state_values(self), strict=True))
        values.update(edge=edge, allowances=allowances)
        return RouterState(**values)

    def is_held(self, model: str, now_s: float) -> bool:
        """Whether the cloud asked not to get requests of this model before some later time."""
        return now_s < self.backoff_until.get(model, -math.inf)


_STATE_FIELDS = tuple(one.name for one in fields(RouterState))
_state_values = attrgetter(*_STATE_FIELDS)


def _link_fields(state: LinkState | RouterState) -> dict[str, Any]:
    return {one.name: getattr(state, one.name) for one in fields(LinkState)}


@value_class
class SplitRoute:
    """A route for a split model: a cut whose head is ready on the device.

    `key` is the key of its times in `RouterState` (the head's in `edge`, the tail's in `cloud`), `row_bytes` the bytes
    sent per row. Before its first use, head and tail are expected to take `head_s` and `tail_s`; NaN without a plan.
    """

    key: str
    row_bytes: int
    head_s: float = math.nan
    tail_s: float = math.nan


@value_class
class Signals:
    """One request as the router sees it.

    `row_sizes_bytes` are the bytes of each row, and `up_sizes_bytes` the expected bytes of each on the wire if pictures
    are shrunk for the uplink; else empty. `arrived_s` and `caller_deadline_s` are monotonic times. `edge_ahead` counts
    the runs on the device before this one. After the edge run the router is asked again: then `scored_rows` are the
    rows that ran and `hardness` their scores. `has_cloud` concerns the whole model, `split_routes` are cuts by which it
    may be offloaded too. `exits`: the device's model is a head with an early answer, so offloaded rows go to its tail.
    `pictures`: large encoded pictures that the device would have to decode; None without.
    """

    request_facts: RequestFacts
    row_sizes_bytes: tuple[int, ...]
    arrived_s: float
    caller_deadline_s: float = math.inf
    has_edge: bool = True
    has_cloud: bool = True
    has_scores: bool = True
    edge_ahead: int = 0
    scored_rows: tuple[int, ...] = ()
    hardness: tuple[float, ...] | None = None
    split_routes: tuple[SplitRoute, ...] = ()
    exits: bool = False
    up_sizes_bytes: tuple[int, ...] = ()
    pictures: EncodedPictures | None = None

    @property
    def wire_sizes_bytes(self) -> tuple[int, ...]:
        """The bytes of each row on the wire."""
        return self.up_sizes_bytes or self.row_sizes_bytes

    @property
    def may_offload(self) -> bool:
        """Whether anything in the cloud could answer the request."""
        return self.has_cloud or bool(self.split_routes)


@value_class
class Decision:
    """What to do now. Immutable; `Router.acquire` takes what it needs exclusively if `needs_acquire`.

    `up_rows` go to the cloud now, for `reason`. Rows that wanted to go and may not are in `kept_rows`, with `obstacle`
    saying why. `escalate`: ask again with hardness once the edge has run the remaining rows. A decision with `refusal`
    has no route that is allowed and predicted in time. The instants: the answer is due at `deadline_s`; the cloud is
    waited for until `give_up_s`; an edge run that stands in for it starts at `fallback_start_s` at the latest.
    A second, hedging request may be sent where `hedge_after_s` seconds have passed since the first, if
    `Router.acquire_hedge` grants it. `draws` are taken from budgets by `Router.acquire`. `predicted_cloud_s` is
    the most likely time from sending to answer, `predicted_sure_s` the one that is met with the policy's confidence.
    `side_change` is whether candidates of `model` go up now, where that has changed. `split_route` is the cut by which
    `up_rows` go, None for the whole model. `retry_after_s`: the cloud wants to be left alone for so long, None where it
    did not say. `chance` is the predicted probability of an answer in time, and `needed_chance` the one from which on
    rows go up, NaN where neither was asked for or nothing is known; `gain` is what that is worth where messages compete
    for the link (see `QueuedMessage`). `candidates` are the scores of the rows that turned out hard, and
    `candidate_bytes` what they cost on the wire. `interface` is the network interface that they go up by, empty where
    the agent names none. `shrinks`: whether pictures that go up are decoded and made smaller first. `threshold` is the
    one that scored rows were held against, NaN before.
    """

    plan: Plan
    reason: Reason
    verdict: Verdict
    deadline_s: float
    give_up_s: float
    fallback_start_s: float
    up_rows: tuple[int, ...] = ()
    kept_rows: tuple[int, ...] = ()
    obstacle: Reason | None = None
    escalate: bool = False
    refusal: str = ""
    probes: tuple[str, ...] = ()
    predicted_edge_s: float = math.nan
    predicted_cloud_s: float = math.nan
    predicted_sure_s: float = math.nan
    hedge_after_s: float = math.inf
    draws: tuple[Draw, ...] = ()
    side_change: bool | None = None
    model: str = ""
    split_route: SplitRoute | None = None
    retry_after_s: float | None = None
    chance: float = math.nan
    needed_chance: float = math.nan
    gain: float = MIDDLING
    candidates: tuple[float, ...] = ()
    quality: LowerQuality | None = None
    candidate_bytes: int = 0
    interface: str = ""
    shrinks: bool = True
    threshold: float = math.nan

    @property
    def needs_acquire(self) -> bool:
        """Whether `Router.acquire` must be called before acting on this."""
        if self.probes or self.draws or self.candidates or self.side_change is not None:
            return True
        return bool(self.up_rows) and self.verdict.settings.hedge is not None

    @property
    def degraded(self) -> bool:
        """Whether the policy wanted the cloud and something other than the policy keeps a row on the edge."""
        return bool(self.kept_rows) and self.obstacle in DEGRADED


@value_class
class EdgeRan:
    """The device ran a model on `rows` rows in `duration_s` seconds."""

    model: str
    rows: int
    duration_s: float


@value_class
class PicturesPrepared:
    """The device decoded and resized the pictures of a request to this model in `duration_s` seconds."""

    model: str
    pictures: EncodedPictures
    duration_s: float


@value_class
class Scored:
    """The edge scored rows: their `hardness` under the settings `scope`, and how many of `rows` were candidates before
    that (large ones). The controller of `cloud_share` learns from this."""

    model: str
    scope: str
    rows: int
    large: int
    hardness: tuple[float, ...]


@value_class
class Audited:
    """The cloud was asked about a case that the edge had kept under the settings `scope`."""

    model: str
    scope: str
    disagreed: bool


@value_class
class CloudSent:
    """A message of `sent_bytes` bytes began to leave for the cloud. Every call ends with exactly one of
    `CloudAnswered`, `CloudCallFailed` and `CloudDropped` with the same `call` (any name not in use); a message that
    waited in the queue and never left ends with `CloudDropped` alone.

    `whole` is the name of the model where `model` is the key of one of its split routes. `interface`, here and in the
    outcomes below: see `Decision`.
    """

    model: str
    call: str
    rows: int
    sent_bytes: int
    whole: str = ""
    interface: str = ""


@value_class
class CloudAnswered:
    """The cloud answered. `server_s` is its own queue and compute time, None if not reported.

    `is_first` marks the first answer on a new connection: its time includes handshakes and is not a sample. Any answer
    closes the breakers, so probes are not marked. `hedged` marks an answer for which two requests were sent.
    """

    model: str
    rows: int
    sent_bytes: int
    total_s: float
    server_s: float | None
    is_first: bool = False
    received_bytes: int = 0
    call: str = ""
    hedged: bool = False
    interface: str = ""


@value_class
class CloudCallFailed:
    """The cloud was asked and gave no usable answer in time. `probes` are those of the decision.

    `waited_s` is the time waited if the failure is a timeout, and `chance` the predicted probability of an answer in
    time, 1 if unknown. `frees_link`: unsent data was dropped. `detail`: why nothing could be sent, else "",
    since the words of a cloud may quote the request.
    """

    model: str
    reason: Reason
    probes: tuple[str, ...] = ()
    waited_s: float = math.inf
    call: str = ""
    chance: float = 1.0
    frees_link: bool = False
    interface: str = ""
    detail: str = ""


@value_class
class GaveUp:
    """A request with an edge answer at hand waited for the cloud until the end; `overrun_s` later its answer was
    complete."""

    overrun_s: float


@value_class
class CloudHeld:
    """The cloud refused a request of the model and said when to come back: `retry_after_s` from now at the earliest.

    It comes in addition to the outcome of the call, after it.
    """

    model: str
    retry_after_s: float


@value_class
class CloudDropped:
    """The call was cancelled before anything could be learnt from it. `probes` are those of the decision.

    `frees_link`: unsent data was dropped.
    """

    model: str
    probes: tuple[str, ...] = ()
    call: str = ""
    frees_link: bool = False
    interface: str = ""


@value_class
class CloudMoved:
    """Calls go to another endpoint, or over another network, from now on: what was learnt of the link is void, and so
    is the former endpoint's pause."""

    model: str = ""
    interface: str = ""


@value_class
class LinkProbed:
    """An empty call to the service took `total_s`: a sample of the round trip."""

    total_s: float
    model: str = ""
    interface: str = ""


Outcome: TypeAlias = (
    EdgeRan
    | PicturesPrepared
    | Scored
    | Audited
    | CloudSent
    | CloudAnswered
    | CloudCallFailed
    | GaveUp
    | CloudHeld
    | CloudDropped
    | CloudMoved
    | LinkProbed
)
