"""Warnings of `upwell policy check`: what is allowed in a policy but probably not intended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from upwell.shared.config.located_errors import Location
from upwell.shared.routing.hardness import RISING
from upwell.shared.routing.policy.policy import Policy, Rule
from upwell.shared.routing.policy.policy_keys import SettingsPatch
from upwell.shared.routing.policy.settings import HardSettings, Settings


def warnings(policy: Policy) -> Mapping[Location, str]:
    """Place in the file -> warning; only the first one per place."""
    found: dict[Location, str] = {}
    for location, text in (*_rules(policy), *_levels(policy)):
        found.setdefault(location, text)
    return found


def _rules(policy: Policy) -> Iterator[tuple[Location, str]]:
    covering: Rule | None = None
    for index, rule in enumerate(policy.rules):
        decides = rule.route is not None or rule.set is not None
        if decides and covering is not None:
            does = "only the egress of this one applies" if rule.egress else "this one never decides anything"
            yield ("rules", index), f"the earlier rule {covering.name!r} decides every request, so {does}"
        if rule.egress is not None and rule.route in ("cloud", "split"):
            yield (
                ("rules", index, "route"),
                f"route: {rule.route} has no effect with egress: deny; nothing leaves the device",
            )
        if rule.egress is not None and rule.match.tags and not any(one.match.unless_tags for one in policy.rules):
            name = next(iter(rule.match.tags))
            yield (
                ("rules", index, "match", "tags"),
                f"a request whose tag {name!r} is missing or misspelt may leave the device; "
                f"`unless_tags: {{{name}: [...]}}` with the values that may leave keeps all others",
            )
        if decides and covering is None and rule.condition is None and not rule.match.model_dump(exclude_defaults=True):
            covering = rule
        if rule.condition is not None:
            yield from _condition(index, rule.condition)


def _condition(index: int, source: str) -> Iterator[tuple[Location, str]]:
    from upwell.shared.routing.policy.cel_conditions import trial_error

    error = trial_error(source)
    if error:
        text = f"it cannot be evaluated for a request without tags: {error}; then nothing leaves the device"
        yield ("rules", index, "if"), text


def _levels(policy: Policy) -> Iterator[tuple[Location, str]]:
    """Warnings about the result of each level, placed at the section that the level wrote; for targets, per model."""
    others_fit = _fit_others(policy, None)
    yield from _settings(("defaults",), policy.settings(None, None), others_fit)
    yield from _target_that_is_not_held(("defaults",), policy.settings(None, None), policy.defaults)
    for model, patch in policy.models.items():
        for location, text in _settings(("models", model), policy.settings(model, None), False):
            if location[2] in patch.model_fields_set or location[2:] == ("hard",):
                yield location, text
        yield from _target_that_is_not_held(("models", model), policy.settings(model, None), patch)
    for index, rule in enumerate(policy.rules):
        if rule.set is not None:
            level: Location = ("rules", index, "set")
            for location, text in _settings(level, policy.settings(None, rule), _fit_others(policy, rule)):
                if location[3] in rule.set.model_fields_set:
                    yield location, text
            yield from _target_that_is_not_held(("rules", index, "set"), policy.settings(None, rule), rule.set)


def _fit_others(policy: Policy, rule: Rule | None) -> bool:
    """Whether a target for all models is overridden in `models` everywhere, or has a calibration, which may be for a
    model that `models` does not name."""
    hards = (policy.settings(one.model, rule).hard for one in policy.calibrations)
    return bool(policy.models) or any(hard is not None and hard.calibrated for hard in hards)


def _settings(level: Location, settings: Settings, others_fit: bool) -> Iterator[tuple[Location, str]]:
    if settings.hard is not None:
        yield from ((level + key, text) for key, text in _hard(settings.hard, others_fit))
    energy, prices = settings.energy, settings.prices
    if settings.objective == "energy" and not (energy.inference_j and energy.uplink_byte_j):
        yield (*level, "objective"), "objective energy compares by `energy`: both inference and uplink_byte are needed"
    if settings.objective == "cost":
        yield (*level, "objective"), "the device's answer costs nothing: under objective cost no candidate is offloaded"
    if any(limit.quantity == "money" for limit in settings.budget) and not (
        prices.uplink_gb or prices.cloud_request or any(prices.interfaces.values())
    ):
        yield (*level, "budget", "money"), "without `prices` nothing costs money, so this limit is never reached"
    if settings.explore and not settings.record_bytes:
        yield (*level, "explore"), "only recorded requests are explored, but `record` is off"


def _target_that_is_not_held(
    level: Location, settings: Settings, patch: SettingsPatch
) -> Iterator[tuple[Location, str]]:
    """A share or risk with an objective under which no hard case is offloaded, reported at the level where they
    meet."""
    hard, written = settings.hard, patch.model_fields_set
    if hard is None or settings.objective not in ("latency", "energy") or not written & {"objective", "hard"}:
        return
    target = "cloud_share" if not math.isnan(hard.cloud_share) else "max_risk" if not math.isnan(hard.max_risk) else ""
    if target:
        yield (
            (*level, "objective") if "objective" in written else (*level, "hard", target),
            f"under objective {settings.objective} a case that turns out hard never goes up, since the device's answer "
            f"is there already, so {target} is not held; expected objective: accuracy, or no {target}",
        )


def _hard(hard: HardSettings, others_fit: bool) -> Iterator[tuple[Location, str]]:
    share = hard.cloud_share
    if share in (0.0, 1.0):
        yield ("hard", "cloud_share"), f"{'no' if share == 0 else 'every'} case is offloaded"
    elif not hard.calibrated and not others_fit:
        text = f"no calibration fits: threshold {hard.threshold:g} holds until `upwell policy calibrate` finds one"
        yield ("hard",), text
    if math.isnan(share) and math.isnan(hard.max_risk):
        key, nothing, everything = ("above", 1.0, 0.0) if hard.measure in RISING else ("below", 0.0, 1.0)
        if hard.measure in ("margin", "max_prob", "entropy") and hard.threshold in (nothing, everything):
            none = "no case is hard with this threshold; `hard: off` means the same"
            yield ("hard", key), none if hard.threshold == nothing else "nearly every case is hard with this threshold"
