"""Layers the levels of a policy (defaults → model → rule, key by key, also within sections) and resolves them to
complete settings with their origins; finds contradictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel

from upwell.shared.config.located_errors import Location
from upwell.shared.routing.hardness import RISING, LogitFit, Measure, uncalibrated
from upwell.shared.routing.policy.calibrations import Calibration, fitting, misfit_text, nearest
from upwell.shared.routing.policy.policy_keys import FAILURE_REASONS, PERIOD_S, SettingsPatch
from upwell.shared.routing.policy.settings import (
    Action,
    CollectSettings,
    Energy,
    HardSettings,
    HedgeSettings,
    Limit,
    ModelPair,
    Prices,
    Quantity,
    Settings,
    SourceLimits,
)
from upwell.shared.routing.reasons import Reason
from upwell.shared.units import parse_seconds
from upwell.shared.value_classes import value_class

Key: TypeAlias = tuple[str, ...]
"""The path of a setting: ("deadline",), or ("hard", "below") in a section."""

ON, OFF = "on", "off"
ON_DRIFT = "on_drift"
_ORDER = ("defaults", "models", "rules")
BUILT_IN = "built-in"
_DEFAULTS = Settings()
_HARD = HardSettings()

_IN_UNIT = frozenset({"max_prob", "margin", "entropy", "logit_norm", "mean_score", "low_share"})
"""Measures between 0 and 1."""

_UNTIL_CALIBRATED: Mapping[str, float] = {
    "margin": 0.75, "max_prob": 0.7, "logit_norm": 0.8, "entropy": 0.5, "mean_score": 0.5, "low_share": 0.5
}  # fmt: skip
"""The default thresholds for a target without a calibration or threshold; other measures have no natural scale."""


@value_class
class Level:
    """A level that writes settings: its place in the file, its name, and its keys."""

    location: Location
    name: str
    patch: SettingsPatch

    @property
    def identifier(self) -> str:
        """A name that survives reordering, under which budgets and controllers are kept."""
        return f"rules.{self.name}" if self.location[0] == "rules" else self.name

    @property
    def rank(self) -> int:
        """Levels with a higher rank override others."""
        return len(_ORDER) if self.location[-1] == ON_DRIFT else _ORDER.index(str(self.location[0]))

    @property
    def label(self) -> str:
        """Its name in explanations: `defaults`, `models.digits`, `rules[1] night`."""
        return f"rules[{self.location[1]}] {self.name}" if self.location[0] == "rules" else self.name


class Layers:
    """The levels as one flat table: key -> value and the level that wrote it.

    A written section has a key of its own, with `on` or `off`; `off` removes what lower levels wrote in it. In `hard`,
    a level that says how the threshold is found (a plain one, `cloud_share` or `max_risk`) removes another way named by
    a lower level; a plain threshold stays under a target while no calibration fits.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        self._table: dict[Key, tuple[Any, Level]] = {}
        for level in levels:
            for key in level.patch.model_fields_set:
                self._write((key,), getattr(level.patch, key), level)

    def __contains__(self, key: Key) -> bool:
        return key in self._table

    def get(self, key: Key, default: Any = None) -> Any:
        """The value written for `key`, or `default`."""
        return self._table[key][0] if key in self._table else default

    def is_off(self, section: str, default: str = OFF) -> bool:
        """Whether a section is off; `default` if it is not written."""
        return bool(self.get((section,), default) == OFF)

    def level(self, key: Key) -> Level | None:
        """The level that wrote `key`."""
        return self._table[key][1] if key in self._table else None

    def origin(self, *keys: Key) -> str:
        """The label of the level that wrote the first written key of `keys`; `built-in` if none is."""
        return next((self._table[key][1].label for key in keys if key in self._table), BUILT_IN)

    def written(self, section: str) -> Iterator[tuple[str, Level]]:
        """The written keys of a section, and their levels."""
        for key, (_, level) in self._table.items():
            if key[0] == section:
                yield ".".join(key[1:]), level

    def _write(self, key: Key, value: Any, level: Level) -> None:
        section = key[0]
        if section == "on_cloud_failure" and isinstance(value, str):
            self._clear(section)
            self._table[section, "default"] = (value, level)
        elif isinstance(value, BaseModel):
            self._enter(section, value, level)
        elif value == OFF:
            self._clear(section)
            self._table[key] = (OFF, level)
        else:
            self._table[key] = (value, level)

    def _enter(self, section: str, value: BaseModel, level: Level) -> None:
        self._table[section,] = (ON, level)
        keys = value.model_fields_set
        if section == "hard" and keys & {"below", "above", "cloud_share", "max_risk"}:
            self._table.pop((section, "cloud_share"), None)
            self._table.pop((section, "max_risk"), None)
        for key in keys:
            self._table[section, key] = (getattr(value, key), level)

    def _clear(self, section: str) -> None:
        for key in [key for key in self._table if key[0] == section]:
            del self._table[key]


@value_class
class Resolved:
    """The settings; the level that wrote each key; and by place in the file the keys that are wrong or have no
    effect."""

    settings: Settings
    origins: Mapping[str, str]
    problems: Mapping[Location, str]
    idle: Mapping[Location, str]


def resolve(layers: Layers, model: str | None, calibrations: Sequence[Calibration], model_pair: ModelPair) -> Resolved:
    """The settings of `model` (None: one that the policy does not name)."""
    resolver = _Resolver(layers, model, calibrations, model_pair)
    get = layers.get
    settings = Settings(
        deadline_s=get(("deadline",), _DEFAULTS.deadline_s),
        objective=get(("objective",), _DEFAULTS.objective),
        confidence=get(("confidence",), _DEFAULTS.confidence),
        hard=resolver.hard(),
        large_above_bytes=math.inf if layers.is_off("large") else get(("large", "above")),
        on_cloud_failure=_failures(layers),
        spool=get(("spool",), False),
        hedge=_hedge(layers),
        budget=_budget(layers),
        prices=Prices(
            get(("prices", "uplink_gb"), 0.0), get(("prices", "cloud_request"), 0.0), get(("prices", "interfaces"), {})
        ),
        energy=Energy(get(("energy", "inference"), 0.0), get(("energy", "uplink_byte"), 0.0)),
        priority=get(("priority",), _DEFAULTS.priority),
        source=resolver.source(),
        audit=get(("audit",), 0.0),
        explore=get(("explore",), 0.0),
        record_bytes=0 if layers.is_off("record") else get(("record", "keep"), 64 << 20),
        collect=_collect(layers),
    )
    return Resolved(settings, _origins(layers) | resolver.calibrated, resolver.problems, resolver.idle)


def _failures(layers: Layers) -> Mapping[Reason, Action]:
    default: Action = layers.get(("on_cloud_failure", "default"), "edge")
    return {reason: layers.get(("on_cloud_failure", key), default) for key, reason in FAILURE_REASONS.items()}


def _hedge(layers: Layers) -> HedgeSettings | None:
    if layers.is_off("hedge"):
        return None
    hedge = HedgeSettings(layers.get(("hedge", "at_most"), 0.05))
    after: str | int = layers.get(("hedge", "after"), "p95")
    if isinstance(after, str) and after.startswith("p"):
        return replace(hedge, after_quantile=float(after[1:]) / 100)
    return replace(hedge, after_s=parse_seconds(after))


def _budget(layers: Layers) -> tuple[Limit, ...]:
    limits = []
    billing_day = layers.get(("budget", "billing_day"), 1)
    quantities: tuple[Quantity, ...] = get_args(Quantity)
    for quantity in quantities:
        rate, level = layers.get(("budget", quantity)), layers.level(("budget", quantity))
        if rate is not None and level is not None:
            key = f"{level.identifier}.budget.{quantity}"
            limits.append(Limit(key, quantity, float(rate.amount), rate.period, billing_day))
    return tuple(limits)


def _collect(layers: Layers) -> CollectSettings | None:
    if layers.is_off("collect"):
        return None
    names = {"random": "sample", "keep": "keep_bytes", "max_age": "max_age_s"}
    written = {names.get(key, key): layers.get(("collect", key)) for key, _ in layers.written("collect") if key}
    tag = layers.get(("source", "tag"))
    return CollectSettings(**({"source": tag} if tag else {}) | written)


def _origins(layers: Layers) -> dict[str, str]:
    """Key of the file -> level, for written keys; `hard.threshold` stands for both directions."""
    found: dict[str, str] = {}
    for section in SettingsPatch.model_fields:
        for key, level in layers.written(section):
            found[f"{section}.{key}" if key else section] = level.label
    key, _ = _directions(layers.get(("hard", "measure"), "margin"))
    return found | {"hard.threshold": layers.origin(("hard", key))}


def _directions(measure: Measure) -> tuple[str, str]:
    """The key for the threshold of `measure`, and the one for the other direction."""
    return ("above", "below") if measure in RISING else ("below", "above")


class _Resolver:
    """Resolves sections that can only be checked as a whole; collects `problems`, and `idle` keys without effect."""

    def __init__(
        self, layers: Layers, model: str | None, calibrations: Sequence[Calibration], model_pair: ModelPair
    ) -> None:
        self._layers, self._model = layers, model
        self._calibrations, self._model_pair = calibrations, model_pair
        self.problems: dict[Location, str] = {}
        self.idle: dict[Location, str] = {}
        self.calibrated: dict[str, str] = {}

    def hard(self) -> HardSettings | None:
        """The settings of `hard`, with the threshold of the calibration that fits its target."""
        if self._layers.is_off("hard", "on"):
            return None
        measure: Measure = self._get("measure", "margin")
        hard = HardSettings(
            measure=measure,
            threshold=self._threshold(measure),
            output=self._get("output", ""),
            function=self._get("function", ""),
            box_score=self._get("score", _HARD.box_score),
            is_of_drift=any(level.location[-1] == ON_DRIFT for _, level in self._layers.written("hard")),
            **uncalibrated(measure)._replace(temperature=self._get("temperature", 1.0))._asdict(),
        )
        if measure in ("output", "function") and ("hard", measure) not in self._layers:
            self._blame(f"measure {measure} needs `{measure}`")
        return self._with_target(hard)

    def source(self) -> SourceLimits | None:
        """The settings of `source`."""
        if self._layers.is_off("source"):
            return None
        get = self._layers.get
        tag = get(("source", "tag"))
        if tag is None:
            level = self._layers.level(("source",))
            location = (*level.location, "source") if level else ("defaults", "source")
            self.problems[location] = (
                "`source` needs `tag`, the tag whose value names the stream, such as {tag: camera}"
            )
        rate = get(("source", "rate"))
        rate_per_s = math.inf if rate is None else rate.amount / PERIOD_S[rate.period]
        return SourceLimits(tag or "", get(("source", "keep"), "all") == "latest", rate_per_s)

    def _get(self, key: str, default: Any) -> Any:
        return self._layers.get(("hard", key), default)

    def _target(self) -> dict[str, float]:
        if ("hard", "cloud_share") in self._layers:
            return {"cloud_share": self._layers.get(("hard", "cloud_share"))}
        if ("hard", "max_risk") in self._layers:
            confidence = self._layers.get(("hard", "confidence"), 0.95)
            return {"max_risk": self._layers.get(("hard", "max_risk")), "confidence": confidence}
        return {}

    def _threshold(self, measure: Measure) -> float:
        """The written threshold in the measure's direction, or its default."""
        key, other = _directions(measure)
        threshold: float | None = self._layers.get(("hard", key))
        if threshold is not None:
            self._note_idle(measure, key, other)
            return self._in_range(threshold, measure, key)
        is_target = bool(self._target())
        if ("hard", other) in self._layers or (measure not in _UNTIL_CALIBRATED if is_target else measure != "margin"):
            until = ", which holds until a calibration fits" if is_target else ""
            example = f"{{measure: {measure}, {key}: {_UNTIL_CALIBRATED.get(measure, 5)}}}"
            self._blame(f"measure {measure} needs `{key}`{until}, such as {example}")
            return math.nan
        return _UNTIL_CALIBRATED[measure]

    def _note_idle(self, measure: Measure, key: str, other: str) -> None:
        """Record a threshold in the wrong direction by a level that wrote the measure."""
        wrote = {name: self._layers.level(("hard", name)) for name in (key, other, "measure")}
        ranks = {name: -1 if level is None else level.rank for name, level in wrote.items()}
        level = wrote[other]
        if level is not None and ranks[other] > ranks[key] and ranks[other] >= ranks["measure"]:
            place: Location = (*level.location, "hard", other)
            self.idle[place] = f"measure {measure} needs `{key}`; `{other}` does not apply"

    def _in_range(self, threshold: float, measure: Measure, key: str) -> float:
        if measure in _IN_UNIT and not 0 <= threshold <= 1:
            self._blame(f"measure {measure} is from 0 to 1; expected a threshold in this range, got {threshold:g}", key)
        return threshold

    def _with_target(self, hard: HardSettings) -> HardSettings:
        """With the target, and threshold and fit of the calibration that suits it.

        If none fits, a share starts from the fallback: the share offloaded by a threshold depends on the edge scores
        alone, so it is the same with another cloud model. A risk depends on both.
        """
        target = self._target()
        if target or self._layers.get(("audit",), 0.0) > 0:
            hard = replace(hard, scope=self._scope())
        if not target:
            return hard
        share, risk = target.get("cloud_share", math.nan), target.get("max_risk", math.nan)
        hard = replace(hard, cloud_share=share, max_risk=risk)
        if share in (0.0, 1.0):
            return hard  # none or all need no threshold
        asked = (self._calibrations, self._model, hard.measure, target, self._model_pair)
        index, misfit = fitting(*asked), ""
        if index is None:
            index = nearest(*asked)
            former = None if index is None else self._calibrations[index]
            misfit = misfit_text(former, target, self._model_pair, hard.threshold)
            if index is None or math.isnan(share):
                return replace(hard, misfit=misfit)
        found = self._calibrations[index]
        names = ("hard.threshold", *(f"hard.{name}" for name in LogitFit._fields))
        self.calibrated = dict.fromkeys(names, f"calibrations[{index}]")
        qualities = () if misfit else found.qualities  # those of other models say nothing
        return replace(
            hard,
            threshold=found.threshold,
            temperature=found.temperature,
            bias=found.bias,
            support=found.support,
            hidden_slope=found.hidden_slope,
            misfit=misfit,
            qualities=qualities,
        )

    def _scope(self) -> str:
        """The key under which learning about hard cases is kept: the model, and the last level that wrote in `hard`."""
        last = self._last_of_hard()
        return f"{last.identifier if last else BUILT_IN}/{self._model or '*'}"

    def _last_of_hard(self) -> Level | None:
        levels = [level for _, level in self._layers.written("hard")]
        return max(levels, key=lambda level: level.rank, default=None)

    def _blame(self, text: str, key: str = "") -> None:
        """Record a problem where `key` of `hard` is written, or where `hard` was written last."""
        if key:
            level = self._layers.level(("hard", key))
            parts: Location = ("hard", key)
        else:
            level = self._last_of_hard()
            parts = ("hard",)
        location = level.location if level else ("defaults",)
        self.problems[location + parts] = text
