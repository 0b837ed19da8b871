"""What a policy comes to for one model and one rule: complete, frozen, every default filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from upwell.shared.routing.hardness import Measure
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason

Objective: TypeAlias = Literal["accuracy", "latency", "energy", "cost"]
Action: TypeAlias = Literal["edge", "error", "spool", "retry"]
Priority: TypeAlias = Literal["low", "normal", "high"]
RANKS: Mapping[Priority, int] = MappingProxyType({"low": 0, "normal": 1, "high": 2})
"""The rank of each priority; higher ones go first."""
Quantity: TypeAlias = Literal["cloud_requests", "uplink", "money"]
Period: TypeAlias = Literal["s", "min", "h", "day", "week", "month"]


def all_edge() -> Mapping[Reason, Action]:
    """The failure table that is not written: the edge answer for each."""
    return dict.fromkeys(CLOUD_FAILURES, "edge")


@dataclass(frozen=True, slots=True)
class LowerQuality:
    """Pictures at a lower quality than model.yaml names: their bytes as a share of those at that one, and the share of
    the cloud's answers that stays the same."""

    quality: int
    bytes_share: float
    agreement: float


@dataclass(frozen=True, slots=True)
class HardSettings:
    """When a row is hard.

    `threshold` decides (below it for falling measures, above it for rising ones). `cloud_share` and `max_risk` are the
    targets that it was calibrated for, NaN where the policy names a plain threshold. With a `cloud_share` the
    threshold is only where the controller called `scope` starts. `misfit` is set where a target was written and no
    calibration fits the models, and says so in a sentence. `temperature` divides the logits before any measure is
    taken. `output`, `function` and `box_score` are parameters of the measures that need them.
    `qualities` are those that the calibration measured, the best first.
    `is_of_drift`: these are the settings of `on_drift`, in force while the model's rows have drifted.
    """

    measure: Measure = "margin"
    threshold: float = 0.75
    temperature: float = 1.0
    output: str = ""
    function: str = ""
    box_score: float = 0.5
    cloud_share: float = math.nan
    max_risk: float = math.nan
    misfit: str = ""
    scope: str = ""
    is_of_drift: bool = False
    qualities: tuple[LowerQuality, ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether the threshold is plain, or was found for these models."""
        return not self.misfit


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    """A second request after `after_s`, or where that is NaN after the `after_quantile` of the cloud's times.

    Hedges are at most the share `at_most` of the requests that went up.
    """

    at_most: float
    after_quantile: float = 0.95
    after_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `amount` of `quantity` (requests, bytes, money) in each `period`; all who share `key` share it.

    A month begins on `billing_day`, or on its last day where it has fewer.
    """

    key: str
    quantity: Quantity
    amount: float
    period: Period
    billing_day: int = 1


@dataclass(frozen=True, slots=True)
class Prices:
    """What the cloud costs, in one currency of the user's: per 10⁹ bytes sent up, and per request.

    `interfaces` is what 10⁹ bytes cost over the network interfaces that are named there, in place of `uplink_gb`.
    """

    uplink_gb: float = 0.0
    cloud_request: float = 0.0
    interfaces: Mapping[str, float] = field(default_factory=dict)

    def over(self, interface: str) -> Prices:
        """The prices of messages over that interface."""
        return Prices(self.interfaces.get(interface, self.uplink_gb), self.cloud_request)

    def of(self, sent_bytes: float) -> float:
        """The price of one request of so many bytes."""
        return sent_bytes * self.uplink_gb / 1e9 + self.cloud_request


@dataclass(frozen=True, slots=True)
class Energy:
    """The device's energy: joules for one row on its accelerator, and for each byte sent up."""

    inference_j: float = 0.0
    uplink_byte_j: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """A stream: requests with the same value of the tag `tag`. `rate_per_s` is infinite where none is written."""

    tag: str
    keep_latest: bool = False
    rate_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """Which rows are kept as cases, and how many. `near` and `novel` are 0 where they keep none.

    `source` is the tag that names a source. At most `per_day` rows of one source and day are kept, those of the
    evaluation set (`audited`, and `sample`, called `random` in the file) apart, and at most `keep_bytes` of one model.
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


@dataclass(frozen=True, slots=True)
class ModelPair:
    """What a calibration was made for, empty where it is not known; and whether the model's rows have drifted."""

    edge_digest: str = ""
    edge_runtime: str = ""
    cloud_digest: str = ""
    has_drifted: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the policy comes to for one request.

    `confidence` is the probability with which a candidate must be predicted in time to go up. `hard` is None where hard
    cases are no candidates; `large_above_bytes` is infinite where size is none. `record_bytes` is 0 where nothing is
    recorded.
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
        """What to do where the cloud was wanted and `reason` is why it did not answer.

        A cloud that was predicted too slow is treated like one that was late, one left alone like one that is away.
        """
        return self.on_cloud_failure[_STANDS_FOR.get(reason, reason)]


_STANDS_FOR: Mapping[Reason, Reason] = MappingProxyType(
    {Reason.CLOUD_TOO_SLOW: Reason.CLOUD_DEADLINE, Reason.BREAKER_OPEN: Reason.CLOUD_UNAVAILABLE}
)
