"""The keys that a level of `policy.yaml` may set: `defaults`, a model of `models`, or the `set` of a rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from upwell.shared.routing.hardness import Measure
from upwell.shared.routing.policy.settings import Action, Objective, Period, Priority
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason
from upwell.shared.units import (
    PERCENT_PATTERN,
    SIZE_UNIT_PATTERN,
    Bytes,
    Joules,
    Seconds,
    Share,
    parse_bytes,
    parse_count,
    parse_number,
    parse_rate,
    parse_seconds,
    parse_share,
    rate_schema,
)
from upwell.shared.value_classes import value_class


class Section(BaseModel):
    """Keys of a policy file; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def _written(value: object) -> object:
    if value is None:
        raise ValueError("expected a value, got nothing; leave out keys without a value")
    return value


Written = BeforeValidator(_written)
"""For a key that may be left out but must not be empty."""


def _from_percent(value: object) -> object:
    return parse_share(value) if isinstance(value, str) and value.endswith("%") else value


Number: TypeAlias = Annotated[float, Field(strict=True)]
Amount: TypeAlias = Annotated[float, Field(strict=True, ge=0)]
Threshold: TypeAlias = Annotated[
    Number,
    BeforeValidator(_from_percent),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": PERCENT_PATTERN}]}),
]
"""A number, or `20%` for 0.2."""
OpenShare: TypeAlias = Annotated[Share, Field(gt=0, lt=1)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]

FAILURE_REASONS: Mapping[str, Reason] = MappingProxyType(
    {str(reason).removeprefix("cloud_"): reason for reason in Reason if reason in CLOUD_FAILURES}
)
"""The reason for each key of `on_cloud_failure`."""


class Hard(Section):
    """Which cases the edge model is unsure of: by a threshold, a share or a risk. They are candidates."""

    measure: Measure = Field("margin", description="How hardness is measured.")
    below: Annotated[Threshold | None, Written] = Field(
        None,
        description="Hard below this: max_prob, logit_norm, mean_score, margin (by default 0.75).",
    )
    above: Annotated[Threshold | None, Written] = Field(None, description="Hard above this: the other measures.")
    temperature: Annotated[Number, Field(gt=0)] = Field(
        1.0, description="Divides the logits; a calibration brings its own."
    )
    output: Annotated[Text | None, Written] = Field(None, description="What measure output reads.")
    function: Annotated[Text | None, Written] = Field(None, description="What measure function calls.")
    score: Share = Field(
        0.5, description="Detections: the least score of a box that counts, and the most doubtful one."
    )
    cloud_share: Annotated[Share | None, Written] = Field(
        None, description="Share of all rows that goes up, such as 20%."
    )
    max_risk: Annotated[OpenShare | None, Written] = Field(
        None, description="Largest share of answers that are wrong where the cloud would be right."
    )
    confidence: OpenShare = Field(0.95, description="How sure max_risk is.")

    @model_validator(mode="after")
    def _one_way(self) -> Hard:
        if {"below", "above"} <= self.model_fields_set:
            raise ValueError("expected below (for falling measures) or above (for rising ones), not both")
        if {"cloud_share", "max_risk"} <= self.model_fields_set:
            raise ValueError("expected cloud_share or max_risk, not both")
        return self


class Size(Section):
    """A bound on the bytes to send for one row."""

    above: Bytes = Field(description="More bytes than this, such as 256KiB.")


class Failures(Section):
    """What a caller gets when the cloud fails; may differ by kind of failure."""

    default: Annotated[Action | None, Written] = Field(None, description="For kinds not written here.")
    unavailable: Annotated[Action | None, Written] = Field(None, description="No connection, or left alone.")
    deadline: Annotated[Action | None, Written] = Field(None, description="Late, or predicted to be.")
    exhausted: Annotated[Action | None, Written] = Field(None, description="Refused for lack of room.")
    invalid_argument: Annotated[Action | None, Written] = Field(None, description="The request does not fit.")
    model_missing: Annotated[Action | None, Written] = Field(None, description="It does not know the model.")
    unauthenticated: Annotated[Action | None, Written] = Field(None, description="Token or certificate refused.")
    certificate: Annotated[Action | None, Written] = Field(None, description="Its certificate is not valid.")
    error: Annotated[Action | None, Written] = Field(None, description="An error of its own.")
    garbage: Annotated[Action | None, Written] = Field(None, description="An unusable answer.")


def _after(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"p[0-9]{1,2}(\.[0-9]{1,3})?", value, re.ASCII):
        if not 50 <= float(value[1:]) < 100:
            raise ValueError(f"expected a quantile from p50 to p99.999, got {value!r}")
        return value
    try:
        seconds = parse_seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a quantile such as p95") from None
    if seconds <= 0:
        raise ValueError(f"expected more than 0, got {value!r}")
    return value


After: TypeAlias = Annotated[
    str,
    BeforeValidator(_after),
    WithJsonSchema({"type": "string", "pattern": r"^(p[5-9]\d(\.\d{1,3})?|\d+(\.\d+)?(ms|s|m|h))$"}),
]


class Hedge(Section):
    """A second request if the first is slow; the first answer counts."""

    after: After = Field("p95", description="A quantile of the cloud's times, or a duration such as 80ms.")
    at_most: Share = Field(0.05, description="The share of requests sent twice.")


@value_class
class Rate:
    """So much in each period."""

    amount: float
    period: Period


def _rate(amount: Callable[[str], float], example: str) -> BeforeValidator:
    def parse(value: object) -> Rate:
        number, period = parse_rate(value, amount, example)
        return Rate(number, cast(Period, period))

    return BeforeValidator(parse)


class Budget(Section):
    """What may be spent on the cloud; models that inherit a limit share it."""

    cloud_requests: Annotated[Rate | None, _rate(parse_count, "100/min"), rate_schema()] = Field(
        None, description="Requests sent up, such as 100/min."
    )
    uplink: Annotated[Rate | None, _rate(parse_bytes, "5GB/month"), rate_schema(SIZE_UNIT_PATTERN)] = Field(
        None, description="Bytes sent up, such as 5GB/month."
    )
    money: Annotated[Rate | None, _rate(parse_number, "20/month"), rate_schema()] = Field(
        None, description="By `prices`, in their currency, such as 20/month."
    )
    billing_day: Annotated[int, Field(strict=True, ge=1, le=31)] = Field(
        1, description="The day on which a month begins, or the month's last."
    )


def _with_finite_sums(price: float) -> float:
    if price > 1e12:
        raise ValueError(f"expected a price of at most 1e12, got {price:g}")
    return price


Price: TypeAlias = Annotated[Amount, AfterValidator(_with_finite_sums)]


class PricesSection(Section):
    """What the cloud costs, in one currency."""

    uplink_gb: Price = Field(0.0, description="For 10⁹ bytes sent up.")
    interfaces: dict[Text, Price] = Field(
        {}, description="In place of `uplink_gb` over a network interface, such as {wlan0: 0}."
    )
    cloud_request: Price = Field(0.0, description="For each request.")


class EnergySection(Section):
    """What the device's work costs."""

    inference: Joules = Field(0.0, description="For one row on the device, such as 20mJ.")
    uplink_byte: Joules = Field(0.0, description="For one byte sent up, such as 2uJ.")


def _rate_of_source(value: object) -> Rate:
    amount, period = parse_rate(value, parse_number, "10/s")
    if period not in PERIOD_S or amount <= 0:
        raise ValueError(f"expected a rate of more than 0 per s, min or h, such as 10/s, got {value!r}")
    return Rate(amount, cast(Period, period))


PERIOD_S: Mapping[str, float] = MappingProxyType({"s": 1.0, "min": 60.0, "h": 3600.0})
"""The periods of a source's rate, in seconds."""


class SourceSection(Section):
    """A stream of requests, such as the frames of one camera."""

    tag: Annotated[Annotated[Text, AfterValidator(str.lower)] | None, Written] = Field(
        None, description="The tag whose value names the stream."
    )
    keep: Literal["latest", "all"] = Field("all", description="latest: a newer request replaces one that waits.")
    rate: Annotated[Rate | None, BeforeValidator(_rate_of_source), rate_schema()] = Field(
        None, description="Requests admitted of one stream, such as 10/s."
    )


class RecordSection(Section):
    """Records requests, to simulate and calibrate."""

    keep: Annotated[Bytes, Field(gt=0)] = Field(64 << 20, description="Beyond this the oldest are dropped.")


class CollectSection(Section):
    """Keeps rows as cases, with their pictures."""

    hard: Share = Field(1.0, description="Share of the hard rows.")
    audited: bool = Field(True, description="Rows that `audit` sends up.")
    random: Share = Field(0.0, description="Any row, with this probability, for evaluation.")
    classes: dict[Text, Share] = Field({}, description="Share of the rows of a class, such as {helmet: 5%}.")
    near: Amount = Field(0.0, description="Rows with a hardness this close to the threshold; 0: none.")
    novel: Amount = Field(
        0.0,
        description="Rows this many standard deviations from the bundle's reference, else the model's first 256; "
        "0: none.",
    )
    track: Share = Field(0.0, description="Share of a pipeline's tracks that give a row.")
    one_per_track: bool = Field(True, description="At most one row per track, except random and audited.")
    source: Annotated[Annotated[Text, AfterValidator(str.lower)] | None, Written] = Field(
        None, description="The tag that names a source. Default: that of `source`, else `pipeline`."
    )
    per_day: Annotated[int, Field(strict=True, ge=0)] = Field(
        200, description="Most per source and UTC day, besides random and audited."
    )
    keep: Annotated[Bytes, Field(gt=0)] = Field(
        256 << 20, description="Most bytes per model; the oldest go first, random and audited last."
    )
    max_age: Annotated[Seconds, Field(gt=0)] = Field(30 * 86400.0, description="Older cases are dropped.")


class OnDrift(Section):
    """What holds while the model's rows have drifted."""

    hard: Hard = Field(description="Laid over `hard`, key by key: a stricter threshold, a smaller risk.")


class SettingsPatch(Section):
    """What defaults, a model or a rule may set."""

    deadline: Seconds = Field(1.0, gt=0, le=86400, description="When the answer is due; callers may ask for less.")
    objective: Objective = Field(
        "accuracy",
        description="A candidate goes up if predicted in time (accuracy), or to lower latency, energy or cost.",
    )
    confidence: OpenShare = Field(
        0.05,
        description="Least chance of being in time for a candidate of middling rank.",
    )
    hard: Hard | Literal["off"] = Hard.model_construct()
    large: Size | Literal["off"] = Field("off", description="Larger cases go up without an edge run.")
    on_cloud_failure: Action | Failures = "edge"
    spool: bool = Field(False, description="Keep hard cases that could not be sent, and send them later.")
    hedge: Hedge | Literal["off"] = "off"
    budget: Budget | Literal["off"] = "off"
    prices: PricesSection = PricesSection.model_construct()
    energy: EnergySection = EnergySection.model_construct()
    priority: Priority = Field("normal", description="Whom a busy device serves first.")
    source: SourceSection | Literal["off"] = "off"
    audit: Share = Field(0.0, description="Share of the easy cases sent up later, as a check.")
    explore: Share = Field(0.0, description="Share of the recorded requests that both sides answer.")
    record: RecordSection | Literal["off"] = "off"
    collect: CollectSection | Literal["off"] = "off"
    on_drift: OnDrift | Literal["off"] = "off"
