"""Calibrations in `policy.yaml`: thresholds for one model pair, one measure and one target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.routing.policy.policy_keys import Number, OpenShare, Section, Text, Written
from upwell.shared.routing.policy.settings import LowerQuality, ModelPair
from upwell.shared.units import Share

_MOST_QUALITIES = 16
_FIELDS = ("edge_digest", "edge_runtime", "cloud_digest")


class Calibration(Section):
    """What `upwell policy calibrate` found. Digests and runtime must be those of the running models, where known."""

    model: Text = Field(description="The model's name.")
    edge_digest: str = Field("", description="The device's model, `sha256:…`.")
    edge_runtime: str = Field("", description="What ran it: runtime and accelerator.")
    cloud_digest: str = Field("", description="The cloud's model.")
    measure: Measure = Field(description="The measure calibrated.")
    below: Annotated[Number | None, Written] = Field(None, description="The threshold of a falling measure.")
    above: Annotated[Number | None, Written] = Field(None, description="The threshold of a rising measure.")
    temperature: Annotated[Number, Field(gt=0)] = Field(1.0, description="Divides the logits.")
    bias: Number = Field(0.0, description="Added to the logits of a detector's objects.")
    support: Number = Field(0.0, description="Weight of ln(support), added to the logits of a detector's objects.")
    hidden_slope: Annotated[Number, Field(gt=0)] = Field(1.0, description="Multiplies the logits of objects not shown.")
    cloud_share: Annotated[Share | None, Written] = Field(None, description="The share it was made for.")
    max_risk: Annotated[OpenShare | None, Written] = Field(None, description="The risk it was made for.")
    confidence: OpenShare = Field(0.95, description="How sure that risk is.")
    evidence: dict[str, Any] = Field({}, description="What it rests on; a fleet shares budgets by its `curve`.")

    @model_validator(mode="after")
    def _whole(self) -> Calibration:
        key, other = ("above", "below") if self.measure in RISING else ("below", "above")
        if getattr(self, key) is None or getattr(self, other) is not None:
            raise ValueError(f"expected `{key}`, and no `{other}`, for measure {self.measure}")
        if (self.cloud_share is None) == (self.max_risk is None):
            raise ValueError("expected one of cloud_share and max_risk")
        return self

    @property
    def threshold(self) -> float:
        """The threshold, in the direction of the measure."""
        return next(value for value in (self.below, self.above) if value is not None)

    def matches(self, model: str | None, measure: str, target: Mapping[str, float], model_pair: ModelPair) -> bool:
        """Whether it is for this target (`cloud_share`, or `max_risk` and `confidence`) of these models."""
        return self.is_about(model, measure, target) and not self.misfits(model_pair)

    def is_about(self, model: str | None, measure: str, target: Mapping[str, float]) -> bool:
        """Whether it is for this target of a model of this name, whatever version runs."""
        return (self.model, self.measure) == (model, measure) and self._is_for(target)

    def misfits(self, model_pair: ModelPair) -> tuple[str, ...]:
        """The keys in which it differs from these models."""
        both = ((name, getattr(self, name), getattr(model_pair, name)) for name in _FIELDS)
        return tuple(name for name, mine, theirs in both if mine and theirs and mine != theirs)

    def _is_for(self, target: Mapping[str, float]) -> bool:
        values = (getattr(self, name) for name in target)
        return all(
            value is not None and math.isclose(value, wanted, rel_tol=1e-9)
            for value, wanted in zip(values, target.values(), strict=True)
        )

    @property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """(share, risk) of the evidence; empty if there is none, or it is something else."""
        found = self.evidence.get("curve")
        pairs = found if isinstance(found, list) else []
        is_right = all(
            isinstance(one, list) and len(one) == 2 and all(isinstance(x, (int, float)) and 0 <= x <= 1 for x in one)
            for one in pairs
        )
        return tuple((float(share), float(risk)) for share, risk in pairs[:32]) if is_right else ()

    @property
    def qualities(self) -> tuple[LowerQuality, ...]:
        """The qualities of the evidence below the first, which is model.yaml's and the reference; empty if there are
        none, or the evidence is something else."""
        found = self.evidence.get("qualities")
        entries = found[:_MOST_QUALITIES] if isinstance(found, list) else []
        if not entries or not all(map(_is_quality, entries)):
            return ()
        first = entries[0]
        return tuple(
            LowerQuality(
                one["quality"],
                min(1.0, one["bytes_share"] / first["bytes_share"]),
                min(1.0, one["agreement"] / first["agreement"]),
            )
            for one in entries[1:]
        )

    def key(self) -> tuple[object, ...]:
        """The key that must be unique among calibrations."""
        of = (self.model, *(getattr(self, name) for name in _FIELDS), self.measure)
        return (*of, self.cloud_share, self.max_risk, None if self.max_risk is None else self.confidence)


def _is_quality(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("quality"), int) or not 1 <= entry["quality"] <= 100:
        return False
    return all(isinstance(entry.get(key), (int, float)) and 0 < entry[key] <= 1 for key in ("bytes_share", "agreement"))


def fitting(
    calibrations: Sequence[Calibration],
    model: str | None,
    measure: str,
    target: Mapping[str, float],
    model_pair: ModelPair,
) -> int | None:
    """The index of the calibration for a target: the most specific one that fits, and of these the last."""
    fit = [index for index, one in enumerate(calibrations) if one.matches(model, measure, target, model_pair)]

    def named(index: int) -> tuple[int, int]:
        return sum(bool(getattr(calibrations[index], name)) for name in _FIELDS), index

    return max(fit, key=named, default=None)


def nearest(
    calibrations: Sequence[Calibration],
    model: str | None,
    measure: str,
    target: Mapping[str, float],
    model_pair: ModelPair,
) -> int | None:
    """The index of the fallback calibration for a target if none fits; None if there is none.

    Hardness is measured on the edge model, so a calibration for the same edge model comes first, then one for the same
    runtime; of several the last.
    """
    about = [index for index, one in enumerate(calibrations) if one.is_about(model, measure, target)]

    def agrees(index: int) -> tuple[bool, bool, int]:
        misfits = calibrations[index].misfits(model_pair)
        return "edge_digest" not in misfits, "edge_runtime" not in misfits, index

    return max(about, key=agrees, default=None)


def misfit_text(
    former: Calibration | None, target: Mapping[str, float], model_pair: ModelPair, threshold: float
) -> str:
    """The text for log and health if no calibration fits; `former` is the fallback."""
    name, value = next(iter(target.items()))
    wanted, until = f"{name} {value * 100:g}%", "until `upwell policy calibrate` finds one for these models"
    if former is None:
        holds = f"it starts from {threshold:g}" if name == "cloud_share" else f"threshold {threshold:g} holds"
        return f"no calibration for {wanted}: {holds} {until}"
    pairs = (f"{key} {getattr(former, key)}, not {getattr(model_pair, key)}" for key in former.misfits(model_pair))
    holds = "that share is kept" if name == "cloud_share" else f"threshold {threshold:g} holds"
    return f"no calibration fits: the one for {wanted} is for {', '.join(pairs)}; {holds} {until}"
