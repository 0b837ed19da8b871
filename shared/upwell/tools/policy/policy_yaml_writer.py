"""Writes a target and calibrations into a policy file, keeping its comments, order and quoting."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.calibration.pair_calibration import CalibrationResult, Target
from upwell.shared.routing.calibration.threshold_choice import Found, operating_points
from upwell.shared.routing.hardness import RISING, UNMOVED
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.policy import Policy

_INDENTS = ((2, 4, 2), (2, 2, 0), (4, 6, 4), (4, 4, 2), (4, 4, 0))
"""The indentation of mappings, of list items, and of their dashes."""


class PolicyText:
    """The text of a policy file being edited. `path` names it in errors."""

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        self._before = parse_yaml(text, Policy, path)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        self._yaml = YAML()
        self._yaml.preserve_quotes = True
        self._yaml.width = 1 << 20
        self._document: CommentedMap = self._yaml.load(text)
        self._indent(min(_INDENTS, key=lambda indents: self._changed_lines(text, indents)))

    def policy(self) -> Policy:
        """The policy as edited. Raises `ConfigError` if an edit changed more than it should."""
        policy = parse_yaml(self.text(), Policy, self._path)
        if _without_targets(policy) != _without_targets(self._before):
            raise ConfigError.at(
                self._path, "an alias shares `hard` with another section; write it out", "hard"
            )  # the edit would affect both
        return policy

    def text(self) -> str:
        """The text as edited."""
        if "replaces" in self._document:
            self._document.move_to_end("replaces")
        return self._dumped().replace("\n", self._newline)

    def set_target(self, model: str, target: Target) -> None:
        """Write the target into the `hard` that applies to `model`: in `models`, or else in `defaults`.

        Raises `ConfigError` if `hard` is off. A target of `defaults` that other models are calibrated for stays, and
        `model` gets a `hard` of its own.
        """
        policy = self.policy()
        patch = policy.models.get(model)
        has_own = patch is not None and "hard" in patch.model_fields_set
        in_defaults = not has_own and self._may_change_defaults(policy, model, target)
        place = ("defaults",) if in_defaults else ("models", model)
        level: Any = self._document
        for key in place:
            if not isinstance(level.get(key), Mapping):
                level[key] = CommentedMap()
            level = level[key]
        hard = level.setdefault("hard", CommentedMap())
        if not isinstance(hard, CommentedMap):
            raise ConfigError.at(
                self._path, f"hard is off for {model!r}, so there is nothing to calibrate", ".".join((*place, "hard"))
            )
        values = _target_values(target)
        _put_first(hard, next(iter(values)), values)

    def add(self, calibration: CalibrationResult) -> None:
        """Add the calibration, replacing one for the same models, measure and target."""
        entry = _entry(calibration)
        listed = self._document.setdefault("calibrations", CommentedSeq())
        key = Calibration.model_validate(entry).key()
        for old in listed:
            if Calibration.model_validate(old).key() == key:
                for stale in [key for key in old if key not in entry]:
                    del old[stale]
                old.update(entry)
                return
        listed.fa.set_block_style()
        listed.append(entry)

    def _may_change_defaults(self, policy: Policy, model: str, target: Target) -> bool:
        shared = policy.defaults.hard
        if "hard" not in policy.defaults.model_fields_set or isinstance(shared, str):
            return True
        written = (shared.cloud_share, shared.max_risk, shared.confidence if shared.max_risk is not None else None)
        wanted = (target.cloud_share, None, None) if target.is_share else (None, target.max_risk, target.confidence)
        others = any(one.model != model for one in policy.calibrations)
        return not others or written in (wanted, (None, None, None))

    def _indent(self, indents: tuple[int, int, int]) -> None:
        self._yaml.map_indent, self._yaml.sequence_indent, self._yaml.sequence_dash_offset = indents

    def _changed_lines(self, text: str, indents: tuple[int, int, int]) -> int:
        self._indent(indents)
        pairs = zip_longest(text.split("\n"), self._dumped().split("\n"))
        return sum(before != after for before, after in pairs)

    def _dumped(self) -> str:
        buffer = io.StringIO()
        self._yaml.dump(self._document, buffer)
        return buffer.getvalue()


def as_percent(share: float) -> str:
    """The share as people write it, exactly: 0.2 -> `20%`."""
    return f"{(Decimal(repr(share)) * 100).normalize():f}%"


def _target_values(target: Target) -> dict[str, str]:
    if target.is_share:
        return {"cloud_share": as_percent(target.cloud_share)}
    return {"max_risk": as_percent(target.max_risk), "confidence": as_percent(target.confidence)}


def _put_first(hard: CommentedMap, name: str, values: Mapping[str, str]) -> None:
    """Set the target: in place of another one if there is one, with the comment beside it, otherwise near the top."""
    other = "max_risk" if name == "cloud_share" else "cloud_share"
    keys = list(hard)
    if other in hard:
        comment = hard.ca.items.pop(other, None)
        del hard[other]
        hard.insert(keys.index(other), name, values[name])
        if comment is not None:
            hard.ca.items[name] = comment
    elif name not in hard:
        # Not as the last one: what follows a section's last line in the file belongs to that line's key.
        hard.insert(keys.index("measure") + 1 if "measure" in hard and len(keys) > 1 else 0, name, values[name])
    for key, value in values.items():
        if key in hard:
            hard[key] = value
        else:
            hard.insert(list(hard).index(name) + 1, key, value)


def _entry(calibration: CalibrationResult) -> CommentedMap:
    hard, model_pair = calibration.hard, calibration.model_pair
    entry = CommentedMap(model=calibration.model)
    for name in ("edge_digest", "edge_runtime", "cloud_digest"):
        if value := getattr(model_pair, name):
            entry[name] = value
    entry["measure"] = hard.measure
    entry["above" if hard.measure in RISING else "below"] = calibration.threshold
    entry.update((key, value) for key, value in hard.fit._asdict().items() if value != getattr(UNMOVED, key))
    entry.update(_target_values(calibration.target))
    entry["evidence"] = CommentedMap(evidence(calibration))
    entry["evidence"].fa.set_flow_style()
    return entry


def evidence(calibration: CalibrationResult) -> dict[str, Any]:
    """The evidence of the calibration: counts, shares and risks; unknown values are left out. `curve` has pairs of a
    share and its risk, by which a fleet shares a budget; `qualities` what lower picture qualities cost.
    """
    chosen, held_out = calibration.chosen, calibration.held_out
    numbers = {
        "requests": calibration.requests,
        "unknown": calibration.unknown,
        **_numbers("chosen", chosen),
        "nothing_hard_risk": calibration.nothing_hard.risk,
        **_numbers("held_out", held_out),
    }
    found = {name: round(value, 6) for name, value in numbers.items() if not math.isnan(value)}
    points = operating_points(calibration.sample)
    curve = [[round(share, 4), round(risk, 4)] for share, risk in points]
    qualities = [
        {
            "quality": one.quality,
            "requests": one.requests,
            "bytes_share": round(one.bytes_share, 4),
            "agreement": round(one.agreement, 4),
            "agreement_bound": round(one.agreement_bound, 4),
        }
        for one in calibration.qualities
    ]
    return {**found, **({"curve": curve} if curve else {}), **({"qualities": qualities} if qualities else {})}


def _numbers(part: str, found: Found) -> dict[str, float]:
    return {
        f"{part}_requests": found.requests,
        f"{part}_known": found.known,
        f"{part}_share": found.share,
        f"{part}_risk": found.risk,
        f"{part}_risk_bound": found.risk_bound,
    }


def _without_targets(policy: Policy) -> Any:
    """The policy without what an edit changes: calibrations, and the targets of `defaults` and `models`."""
    plain = policy.model_dump(exclude_unset=True)
    plain.pop("calibrations", None)
    levels = {"": plain.pop("defaults", {}), **plain.pop("models", {})}
    for name, level in levels.items():
        hard = level.get("hard", {})
        if isinstance(hard, dict):
            for key in ("cloud_share", "max_risk", "confidence"):
                hard.pop(key, None)
            if not hard:
                level.pop("hard", None)
        levels[name] = level
    return plain, {name: level for name, level in levels.items() if level}
