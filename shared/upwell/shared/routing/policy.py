"""The routing policy that a person writes (`policy.yaml`), and what it comes to for one model and one rule.

Precedence is defaults → model → rule, key by key: a level changes only the keys that it writes. `Policy` is the
file as written; `Settings` is the outcome, frozen and complete, computed once when the policy is compiled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from upwell.shared.located import Location, located
from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.routing.reasons import CLOUD_FAILURES
from upwell.shared.routing.settings import HardSettings, Settings
from upwell.shared.units import Bytes, Seconds


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _written(value: object) -> object:
    if value is None:
        raise ValueError("expected a number from 0 to 1, got nothing")
    return value


Threshold = Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(_written)]


class Hard(_Section):
    """When a case counts as hard, by the scores of the edge model."""

    measure: Literal["max_prob", "margin", "entropy"] = Field(
        "margin", description="How hardness is measured: max_prob, margin or entropy."
    )
    below: Threshold = Field(0.35, description="Hard when max_prob or margin is below this; max_prob has no default.")
    above: Threshold = Field(None, description="Hard when entropy is above this.")

    @model_validator(mode="after")
    def _one_direction(self) -> Hard:
        if {"below", "above"} <= self.model_fields_set:
            raise ValueError("expected below (for max_prob and margin) or above (for entropy), not both")
        return self


class Size(_Section):
    """A bound on the bytes that would be sent for one row."""

    above: Bytes = Field(description="More bytes than this, such as 256KiB.")


def _known_zone(name: str) -> str:
    try:
        if name != "UTC":  # known without a time zone database, which a small device may lack
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name!r}; expected an IANA name such as Europe/Berlin") from None
    return name


_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def _hours_span(text: str) -> str:
    if not _HOURS.fullmatch(text):
        raise ValueError(f'expected a span such as "22:00-06:00", got {text!r}')
    return text


def hours_minutes(span: str) -> tuple[int, int]:
    """The two ends of a checked `HH:MM-HH:MM` span, in minutes after midnight."""
    start_h, start_m, end_h, end_m = (int(part) for part in re.split("[:-]", span))
    return start_h * 60 + start_m, end_h * 60 + end_m


class SettingsPatch(_Section):
    """The keys that defaults, a model or a rule may set; every one may be left out."""

    deadline: Seconds = Field(
        1.0, gt=0, le=86400, description="The answer is due after this time; the caller may ask for less."
    )
    objective: Literal["accuracy", "latency"] = Field(
        "accuracy",
        description="accuracy: every candidate predicted in time goes up, and its answer wins until the deadline. "
        "latency: a candidate goes up only if that is predicted to be faster, and the first good answer wins.",
    )
    hard: Hard | Literal["off"] = Field(Hard(), description="Cases that the edge model is unsure of are candidates.")
    large: Size | Literal["off"] = Field("off", description="Cases of more bytes than this go up without an edge run.")
    on_cloud_failure: Literal["edge", "error"] = Field(
        "edge", description="What a caller gets when the cloud fails: the edge answer, marked degraded, or an error."
    )


OneOrMore = str | Annotated[list[str], Field(min_length=1)]


class Match(_Section):
    """What a rule applies to; every key that is written must hold, and `{}` matches every request."""

    tags: dict[str, OneOrMore] = Field({}, description="Tag name to the value, or the values, that it may have.")
    model: OneOrMore | None = Field(None, description="The model, or one of these models.")
    hours: Annotated[str, AfterValidator(_hours_span)] | None = Field(
        None, description='Time of day in the policy\'s time zone, such as "22:00-06:00"; the end is not included.'
    )
    size: Size | None = Field(None, description="Requests of which a row has more bytes than this.")


class Rule(_Section):
    """One rule. The first that matches and says `route` or `set` decides those; every matching `egress` counts."""

    name: str = Field(min_length=1, description="Shown in explanations and logs.")
    match: Match = Field(description="What the rule applies to.")
    egress: Literal["deny"] | None = Field(None, description="deny: nothing of a matching request leaves the device.")
    route: Literal["edge", "cloud"] | None = Field(
        None, description="edge: answer on the device. cloud: every matching request is a candidate for the cloud."
    )
    set: SettingsPatch | None = Field(None, description="Settings that hold for matching requests.")

    @model_validator(mode="after")
    def _does_something(self) -> Rule:
        if self.egress is None and self.route is None and self.set is None:
            raise ValueError("the rule does nothing; expected egress, route or set")
        return self


class Policy(_Section):
    """A routing policy as written in `policy.yaml`."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    timezone: Annotated[str, AfterValidator(_known_zone)] = Field("UTC", description="For `hours`, an IANA name.")
    defaults: SettingsPatch = Field(SettingsPatch(), description="Settings for every model.")
    rules: list[Rule] = Field([], description="Applied to each request, in this order.")
    models: dict[str, SettingsPatch] = Field({}, description="Settings by model name.")

    @model_validator(mode="after")
    def _holds_together(self) -> Policy:
        """What only the whole file shows: names used twice, and thresholds that contradict the measure they meet."""
        errors = {**self._names_used_twice(), **self._contradictions()}
        if errors:
            raise located(errors)
        return self

    def _names_used_twice(self) -> dict[Location, str]:
        seen: set[str] = set()
        found: dict[Location, str] = {}
        for index, rule in enumerate(self.rules):
            if rule.name in seen:
                found["rules", index, "name"] = "another rule has this name; expected a name of its own"
            seen.add(rule.name)
        return found

    def _contradictions(self) -> dict[Location, str]:
        found: dict[Location, str] = {}
        for model in (None, *self.models):
            for rule in (None, *self.rules):
                try:
                    self.settings(model, rule)
                except ContradictingThreshold as error:
                    found[self._who_wrote_hard(model, rule)] = error.text
        return found

    def _who_wrote_hard(self, model: str | None, rule: Rule | None) -> Location:
        """The last level that wrote `hard`: where the mistake is most likely to be mended."""
        if rule is not None and rule.set is not None and "hard" in rule.set.model_fields_set:
            return ("rules", self.rules.index(rule), "set", "hard")
        if model is not None and model in self.models and "hard" in self.models[model].model_fields_set:
            return ("models", model, "hard")
        return ("defaults", "hard")

    def settings(self, model: str | None, rule: Rule | None) -> Settings:
        """What holds for `model` under `rule` (either may be None). Raises `ContradictingThreshold`."""
        merged: dict[str, Any] = {}
        _merge(merged, self.defaults)
        if model is not None and model in self.models:
            _merge(merged, self.models[model])
        if rule is not None and rule.set is not None:
            _merge(merged, rule.set)
        return _resolve(merged)


class ContradictingThreshold(ValueError):
    """A measure without the threshold that it needs."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


def _merge(merged: dict[str, Any], patch: BaseModel) -> None:
    """Lay the keys that `patch` writes over `merged`, sections key by key."""
    for key in patch.model_fields_set:
        value = getattr(patch, key)
        if isinstance(value, BaseModel):
            section = merged.get(key)
            merged[key] = dict(section) if isinstance(section, dict) else {}
            _merge(merged[key], value)
        else:
            merged[key] = value


def _resolve(merged: Mapping[str, Any]) -> Settings:
    patch = SettingsPatch()
    large = merged.get("large", patch.large)
    action = merged.get("on_cloud_failure", patch.on_cloud_failure)
    return Settings(
        deadline_s=merged.get("deadline", patch.deadline),
        objective=merged.get("objective", patch.objective),
        hard=_hard(merged.get("hard", {})),
        large_above_bytes=large["above"] if isinstance(large, dict) else math.inf,
        on_cloud_failure=dict.fromkeys(CLOUD_FAILURES, action),
    )


def _hard(hard: Mapping[str, Any] | Literal["off"]) -> HardSettings | None:
    if isinstance(hard, str):
        return None
    measure: Measure = hard.get("measure", "margin")
    key, other = ("above", "below") if measure in RISING else ("below", "above")
    threshold = hard.get(key)
    if threshold is not None:
        return HardSettings(measure, threshold)
    if measure == "margin" and other not in hard:
        return HardSettings(measure, 0.35)
    if measure in RISING:
        raise ContradictingThreshold("measure entropy needs `above`, such as {measure: entropy, above: 0.5}")
    raise ContradictingThreshold("measures max_prob and margin need `below`, such as {measure: max_prob, below: 0.7}")
