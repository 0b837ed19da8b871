"""Whether the parts of a policy agree: repeated names, and contradicting keys of several levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from upwell.shared.config.located_errors import Location
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.policy_keys import SettingsPatch
from upwell.shared.routing.policy.rule_keys import Rule
from upwell.shared.routing.policy.settings import ModelPair
from upwell.shared.routing.policy.settings_resolution import ON_DRIFT, Layers, Level, Resolved, resolve
from upwell.shared.value_classes import value_class

MAX_COMBINATIONS = 10_000
"""Maximum number of models times rules with `set`: the settings of each pair are computed when the policy is loaded."""

_DRIFTED = ModelPair(has_drifted=True)

M = TypeVar("M", bound=BaseModel)


@value_class
class Parts:
    """The parts of a policy by their places in the file; wrong parts are left out.

    `defaults` is None if they are wrong: then the levels above them cannot be checked.
    """

    defaults: SettingsPatch | None
    rules: Mapping[int, Rule]
    models: Mapping[str, SettingsPatch]
    calibrations: Mapping[int, Calibration] = field(default_factory=dict)

    @classmethod
    def readable(cls, value: Any) -> Parts:
        """The readable parts of a policy given as plain values."""
        value = value if isinstance(value, dict) else {}
        rules, models, calibrations = (value.get(key) for key in ("rules", "models", "calibrations"))
        return cls(
            _read_patch(value.get("defaults", {})),
            _items(Rule, enumerate(rules) if isinstance(rules, list) else ()),
            _present((key, _read_patch(patch)) for key, patch in (models if isinstance(models, dict) else {}).items()),
            _items(Calibration, enumerate(calibrations) if isinstance(calibrations, list) else ()),
        )

    def resolved(self, model: str | None, rule: int | None, model_pair: ModelPair) -> Resolved:
        """The settings of `model` under the rule at this index; `defaults` must exist."""
        levels = [] if self.defaults is None else [Level(("defaults",), "defaults", self.defaults)]
        if model is not None and model in self.models:
            levels.append(Level(("models", model), f"models.{model}", self.models[model]))
        patch = None if rule is None else self.rules[rule].set
        if rule is not None and patch is not None:
            levels.append(Level(("rules", rule, "set"), self.rules[rule].name, patch))
        layers = Layers(levels)
        on_drift, wrote = layers.get((ON_DRIFT, "hard")), layers.level((ON_DRIFT,))
        if model_pair.has_drifted and on_drift is not None and wrote is not None:
            name = f"{wrote.identifier}.{ON_DRIFT}"
            layers = Layers([*levels, Level((*wrote.location, ON_DRIFT), name, SettingsPatch(hard=on_drift))])
        return resolve(layers, model, list(self.calibrations.values()), model_pair)


def _read(kind: type[M], value: Any) -> M | None:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


def _read_patch(value: Any) -> SettingsPatch | None:
    """A level without its wrong keys; None if a section is wrong that is checked together with others."""
    if not isinstance(value, dict):
        return None
    right = {key: one for key, one in value.items() if _read(SettingsPatch, {key: one}) is not None}
    return _read(SettingsPatch, right) if right.keys() >= value.keys() & {"hard", "source"} else None


def _items(kind: type[M], values: Iterable[tuple[Any, Any]]) -> dict[Any, M]:
    return _present((key, _read(kind, value)) for key, value in values)


def _present(values: Iterable[tuple[Any, M | None]]) -> dict[Any, M]:
    return {key: value for key, value in values if value is not None}


def disagreements(parts: Parts) -> dict[Location, str]:
    """Problems between parts that are valid by themselves: place -> text."""
    return {**_names_used_twice(parts), **_calibrations_made_twice(parts), **_contradictions(parts)}


def _names_used_twice(parts: Parts) -> dict[Location, str]:
    seen: set[str] = set()
    found: dict[Location, str] = {}
    for index, rule in parts.rules.items():
        if rule.name in seen:
            found["rules", index, "name"] = "another rule has this name; expected different names"
        seen.add(rule.name)
    return found


def _calibrations_made_twice(parts: Parts) -> dict[Location, str]:
    seen: dict[tuple[object, ...], int] = {}
    found: dict[Location, str] = {}
    for index, calibration in parts.calibrations.items():
        first = seen.setdefault(calibration.key(), index)
        if first != index:
            found["calibrations", index] = f"calibrations[{first}] is for the same models, measure and target"
    return found


def _contradictions(parts: Parts) -> dict[Location, str]:
    if parts.defaults is None:
        return {}
    setting = [None, *(index for index, rule in parts.rules.items() if rule.set is not None)]
    if len(setting) * (len(parts.models) + 1) > MAX_COMBINATIONS:
        return {("rules",): f"rules with `set` times models exceed {MAX_COMBINATIONS}; expected fewer"}
    found: dict[Location, str] = {}
    for index in setting:
        models = [one for one in (None, *parts.models) if index is None or _may_meet(parts, one, parts.rules[index])]
        idle: list[Mapping[Location, str]] = []
        for model in models:
            for pair in (ModelPair(), _DRIFTED):
                resolved = parts.resolved(model, index, pair)
                found.update(resolved.problems)
                idle.append(resolved.idle)
        for one in idle:  # a rule may be meant for only some of its models
            found.update({at: text for at, text in one.items() if index is None or all(at in other for other in idle)})
    return found


def _may_meet(parts: Parts, model: str | None, rule: Rule) -> bool:
    """Whether `rule` can match a request of `model`; None stands for models that `models` does not name."""
    named = rule.match.model
    if named is None:
        return True
    names = {named} if isinstance(named, str) else set(named)
    return model in names if model is not None else not names <= parts.models.keys()


def joined(error: ValidationError, problems: Mapping[Location, str]) -> ValidationError:
    """The errors of single parts and the problems of the whole, as one error."""
    details = [_again(one) for one in error.errors(include_url=False)]
    details += [
        InitErrorDetails(type=PydanticCustomError("located", "{text}", {"text": text}), loc=location, input=None)
        for location, text in problems.items()
    ]
    return ValidationError.from_exception_data(error.title, details)


def _again(details: ErrorDetails) -> InitErrorDetails:
    """An error in the form for raising it again."""
    return InitErrorDetails(
        type=details["type"], loc=details["loc"], input=details["input"], ctx=details.get("ctx", {})
    )
