"""The result of a policy for one model and one rule: complete and frozen, with all defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from upwell.shared.routing.hardness import UNCALIBRATED, LogitFit, Measure
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason
from upwell.shared.value_classes import value_class

Objective: TypeAlias = Literal["accuracy", "latency", "energy", "cost"]
Action: TypeAlias = Literal["edge", "error", "spool", "retry"]
Priority: TypeAlias = Literal["low", "normal", "high"]
RANKS: Mapping[Priority, int] = MappingProxyType({"low": 0, "normal": 1, "high": 2})
"""The rank of each priority; higher ones go first."""
Quantity: TypeAlias = Literal["cloud_requests", "uplink", "money"]
Period: TypeAlias = Literal["s", "min", "h", "day", "week", "month"]


def all_edge() -> Mapping[Reason, Action]:
    """The default failure table: the edge answer for each."""
    return dict.fromkeys(CLOUD_FAILURES, "edge")


@value_class
class LowerQuality:
    """A lower picture quality than model.yaml's: its bytes relative to that one, and the share of the cloud's answers
    that stay the same."""

    quality: int
    bytes_share: float
    agreement: float


@value_class
class HardSettings:
    """When a row is hard.

    `threshold` decides (below it for falling measures, above it for rising ones). `cloud_share` and `max_risk` are the
    targets of its calibration, NaN for a plain threshold. With a `cloud_share` the threshold is only the start of the
    controller named `scope`. `misfit` says in a sentence that a target was written but no calibration fits the models.
    `temperature` divides the logits before any measure; `bias`, `support` and `hidden_slope` move those of a detector's
    objects (`LogitFit`). `output`, `function` and `box_score` are parameters of the
    measures that need them. `qualities` are those measured by the calibration, best first. `is_of_drift`: these are
    the settings of `on_drift`, in force while the model's rows have drifted.
    """

    measure: Measure = "margin"
    threshold: float = 0.75
    temperature: float = 1.0
    bias: float = UNCALIBRATED.bias
    support: float = UNCALIBRATED.support
    hidden_slope: float = UNCALIBRATED.hidden_slope
    output: str = ""
    function: str = ""
    box_score: float = 0.5
    cloud_share: float = math.nan
    max_risk: float = math.nan
    misfit: str = ""
    scope: str = ""
    is_of_drift: bool = False
    qualities: tuple[LowerQuality, ...] = ()
    has_target: bool = field(init=False, compare=False, repr=False)
    """Whether it has a `cloud_share` or a `max_risk`."""

    def __post_init__(self) -> None:
        """See whether there is a target."""
        has_target = not (math.isnan(self.cloud_share) and math.isnan(self.max_risk))
        object.__setattr__(self, "has_target", has_target)

    @property
    def fit(self) -> LogitFit:
        """How its logits are moved."""
        return LogitFit(self.temperature, self.bias, self.support, self.hidden_slope)

    @property
    def calibrated(self) -> bool:
        """Whether the threshold is plain, or calibrated for these models."""
        return not self.misfit


@value_class
class HedgeSettings:
    """A hedge after `after_s` or, if that is NaN, after the quantile `after_quantile` of the cloud's times.

    Hedges are at most the share `at_most` of the offloaded requests.
    """

    at_most: float
    after_quantile: float = 0.95
    after_s: float = math.nan


@value_class
class Limit:
    """At most `amount` of `quantity` (requests, bytes, money) in each `period`, shared by all models with the same
    `key`.

    A month begins on `billing_day`, or on its last day if it has fewer days.
    """

    key: str
    quantity: Quantity
    amount: float
    period: Period
    billing_day: int = 1


@value_class
class Prices:
    """What the cloud costs, in one currency of the user's: per 10⁹ bytes sent up, and per request.

    `interfaces` is what 10⁹ bytes cost over the network interfaces that are named there, in place of `uplink_gb`.
    """

    uplink_gb: float = 0.0
    cloud_request: float = 0.0
    interfaces: Mapping[str, float] = field(default_factory=dict)

    def over(self, interface: str) -> Prices:
        """The prices of messages over that interface."""
        return replace(self, uplink_gb=self.interfaces.get(interface, self.uplink_gb))

    def of(self, sent_bytes: float) -> float:
        """The price of one request of this size."""
        return sent_bytes * self.uplink_gb / 1e9 + self.cloud_request


@value_class
class Energy:
    """The device's energy: joules per row on its accelerator, and per byte sent."""

    inference_j: float = 0.0
    uplink_byte_j: float = 0.0


@value_class
class SourceLimits:
    """A stream: requests with the same value of the tag `tag`. `rate_per_s` is infinite if not written."""

    tag: str
    keep_latest: bool = False
    rate_per_s: float = math.inf


@value_class
class CollectSettings:
    """Which rows are kept as cases, and how many. `near` and `novel` are 0 if off.

    `source` is the tag that names a source. At most `per_day` rows per source and day are kept, besides the evaluation
    set (`audited`, and `sample`, called `random` in the file), and at most `keep_bytes` per model.
    """

    hard: float = 1.0
    audited: bool = True
    sample: float = 0.0
    classes: Mapping[str, float] = field(default_factory=dict)
    near: float = 0.0
    novel: float = 0.0
    track: float = 0.0
    one_per_track: bool = True
    source: str = "pipeline"
    per_day: int = 200
    keep_bytes: int = 256 << 20
    max_age_s: float = 30 * 86400.0


@value_class
class ModelPair:
    """The models for which a calibration was made, "" if unknown; and whether the model's rows have drifted."""

    edge_digest: str = ""
    edge_runtime: str = ""
    cloud_digest: str = ""
    has_drifted: bool = False


@value_class
class Settings:
    """The policy's settings for one request.

    `confidence` is the probability of being in time that a candidate needs. `hard` is None if hard cases are no
    candidates; `large_above_bytes` is infinite if size does not matter. `record_bytes` is 0 if nothing is recorded.
    """

    deadline_s: float = 1.0
    objective: Objective = "accuracy"
    confidence: float = 0.05
    hard: HardSettings | None = HardSettings()
    large_above_bytes: float = math.inf
    on_cloud_failure: Mapping[Reason, Action] = field(default_factory=all_edge)
    spool: bool = False
    hedge: HedgeSettings | None = None
    budget: tuple[Limit, ...] = ()
    prices: Prices = Prices()
    energy: Energy = Energy()
    priority: Priority = "normal"
    source: SourceLimits | None = None
    audit: float = 0.0
    explore: float = 0.0
    record_bytes: int = 0
    collect: CollectSettings | None = None

    def on_failure(self, reason: Reason) -> Action:
        """What to do if the cloud was wanted and did not answer because of `reason`.

        A cloud predicted too slow is treated like a late one, one with an open breaker like an unreachable one.
        """
        return self.on_cloud_failure[_STANDS_FOR.get(reason, reason)]


_STANDS_FOR: Mapping[Reason, Reason] = MappingProxyType(
    {Reason.CLOUD_TOO_SLOW: Reason.CLOUD_DEADLINE, Reason.BREAKER_OPEN: Reason.CLOUD_UNAVAILABLE}
)
