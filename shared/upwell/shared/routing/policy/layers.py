"""Layers the levels of a policy: defaults → model → rule, key by key, also within sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel

from upwell.shared.config.located_errors import Location
from upwell.shared.routing.policy.sections import SettingsPatch

Key: TypeAlias = tuple[str, ...]
"""The path of a setting: ("deadline",), or ("hard", "below") in a section."""

ON, OFF = "on", "off"
ON_DRIFT = "on_drift"
_ORDER = ("defaults", "models", "rules")
BUILT_IN = "built-in"


@dataclass(frozen=True)
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
