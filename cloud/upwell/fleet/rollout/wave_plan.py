"""The order of devices: the waves of a roll-out, and the hours in which a device may change."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from upwell.shared.routing.policy.rule_keys import hours_minutes
from upwell.shared.units import parse_share

MOST_WAVES = 20
_COUNT = re.compile(r"[1-9][0-9]{0,6}")
_LABEL = re.compile(r"([A-Za-z0-9_.-]{1,100})=([^\s,=]{1,200})")
_HOURS = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Wave:
    """A wave as written: `3` devices, `5%` of all of them, or those with the label `site=lab`.

    A number or a share includes earlier waves, so `1, 5%, 100%` reaches 5 % after the second.
    """

    text: str
    count: int = 0
    share: float = 0.0
    label: tuple[str, str] | None = None

    @classmethod
    def parse(cls, text: str) -> Wave:
        """Parse a wave. Raises `ValueError`, which says what is expected."""
        text = text.strip()
        if _COUNT.fullmatch(text):
            return cls(text, count=int(text))
        if text.endswith("%"):
            share = parse_share(text)
            if share > 0:
                return cls(text, share=share)
        elif found := _LABEL.fullmatch(text):
            return cls(text, label=(found[1], found[2]))
        raise ValueError(f"expected a wave such as 1, 5% or site=lab, got {text!r}")

    def size(self, devices: int) -> int:
        """How many of all the devices are reached after it; a share is at least one device."""
        return min(devices, self.count or math.ceil(self.share * devices - 1e-9))


def parse_waves(texts: Sequence[str]) -> tuple[Wave, ...]:
    """The waves in order; the last must be `100%`. Raises `ValueError`."""
    waves = tuple(Wave.parse(text) for text in texts)
    if not waves or waves[-1].share < 1.0:
        raise ValueError("the last wave must be 100%, or some devices would never be updated")
    if len(waves) > MOST_WAVES:
        raise ValueError(f"expected at most {MOST_WAVES} waves, got {len(waves)}")
    for kind in ("count", "share"):
        sizes = [getattr(wave, kind) for wave in waves if getattr(wave, kind)]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"each wave must reach more devices than the one before: {', '.join(texts)}")
    return waves


@dataclass(frozen=True, slots=True)
class RolloutDevice:
    """A device as the plan sees it. `is_reachable` says whether it polled recently."""

    id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    is_reachable: bool = True


def deal(rollout_id: str, waves: Sequence[Wave], candidates: Sequence[RolloutDevice]) -> Mapping[str, int]:
    """Device -> the index of its wave. Reachable devices come first, then a hash decides, so that the canaries are
    not the same devices in every roll-out.
    """
    order = sorted(candidates, key=lambda one: (not one.is_reachable, _hashed(rollout_id, one.id)))
    dealt: dict[str, int] = {}
    for index, wave in enumerate(waves):
        if wave.label is not None:
            name, value = wave.label
            chosen = [one for one in order if one.labels.get(name) == value and one.id not in dealt]
        else:
            missing = max(0, wave.size(len(order)) - len(dealt))
            chosen = [one for one in order if one.id not in dealt][:missing]
        dealt |= {one.id: index for one in chosen}
    return dealt


def wave_of_late(waves: Sequence[Wave], labels: Mapping[str, str]) -> int:
    """The wave of a device that joins an active roll-out: the first whose label it has, otherwise the last."""
    for index, wave in enumerate(waves):
        if wave.label is not None and labels.get(wave.label[0]) == wave.label[1]:
            return index
    return len(waves) - 1


def _hashed(rollout_id: str, device: str) -> bytes:
    return hashlib.sha256(f"{rollout_id}/{device}".encode()).digest()


@dataclass(frozen=True, slots=True)
class RolloutWindow:
    """The hours in which a device may be offered a release, in the device's own time zone: `22:00-06:00`, and the
    days on which they begin (none given: every day). A span may cross midnight; its end is excluded.
    """

    hours: str
    days: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ValueError` for invalid text."""
        if not _HOURS.fullmatch(self.hours):
            raise ValueError(f'expected a span such as "22:00-06:00", got {self.hours!r}')
        for day in self.days:
            if day not in _DAYS:
                raise ValueError(f"expected a day such as mon or sat, got {day!r}")

    def is_open(self, unix_s: float, zone: str) -> bool:
        """Whether it is open for a device in that time zone (an IANA name; UTC if it is not one)."""
        local = datetime.fromtimestamp(unix_s, _zone(zone))
        start, end = hours_minutes(self.hours)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if start < end:
            is_within = start <= minute < end
        else:
            is_within = minute >= start or minute < end
            day = day if minute >= start else (day - 1) % 7
        return is_within and (not self.days or _DAYS[day] in self.days)


def is_zone(name: str) -> bool:
    """Whether it is the IANA name of a time zone."""
    try:
        return bool(ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        return False


def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name if is_zone(name) else "UTC")
