"""One line of a request log, for simulation and calibration; recorded by agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from upwell.shared.routing.request_tags import lowered

Count = Annotated[int, Field(ge=0)]
Chance = Annotated[float, Field(ge=0, le=1)]
Support = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]

LONGEST_LINE_BYTES = 1 << 20
"""Readers refuse a log with a longer line."""


def _known(values: Any) -> Any:
    """Drop null entries."""
    if not isinstance(values, dict):
        return {} if values is None else values
    return {key: value for key, value in values.items() if value is not None}


Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]


class QualityAnswer(BaseModel):
    """The same request with its pictures at `quality`: `up_bytes` were sent, `whole_bytes` at full quality, and
    `agrees` says whether the cloud's answer is the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quality: int = Field(ge=1, le=100)
    up_bytes: Count
    whole_bytes: Count
    agrees: bool


class LogLine(BaseModel):
    """One request of one row as JSON. Unknown values are null or left out; unknown keys are errors.

    `t_s` is its arrival in seconds from any zero; `up_bytes` are its bytes on the wire if its pictures are shrunk for
    the uplink, else they are `size_bytes`; `edge_s` and `cloud_s` are the time on the device and the cloud's own (queue
    and compute); `hardness` maps measures to values; `logits` are those of the edge, one row; `chances` are those of a
    detector's possible objects, uncalibrated: it shows those from 1/2 up; `supports` has for each of these the sum of
    the scores of the candidates that overlap its best one (`box_hardness`) ÷ the best one's score, so 1 for one
    candidate. `edge_correct` and `cloud_correct` say whether that side's answer is right; `qualities` are the costs of
    lower picture qualities.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    t_s: Duration
    model: str = Field(min_length=1)
    size_bytes: Count
    up_bytes: Count | None = None
    edge_s: Duration | None = None
    hardness: Annotated[Mapping[str, float], BeforeValidator(_known)] = {}
    edge_digest: Text = ""
    edge_runtime: Text = ""
    cloud_digest: Text = ""
    logits: tuple[float, ...] | None = None
    chances: Annotated[tuple[Chance, ...], Field(max_length=4096)] | None = None
    supports: Annotated[tuple[Support, ...], Field(max_length=4096)] | None = None
    reply_bytes: Annotated[Count, BeforeValidator(lambda value: 0 if value is None else value)] = 0
    cloud_s: Duration | None = None
    edge_correct: bool | None = None
    cloud_correct: bool | None = None
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    tags: Annotated[Mapping[str, str], BeforeValidator(_known), AfterValidator(lowered)] = {}
    qualities: Annotated[tuple[QualityAnswer, ...], BeforeValidator(lambda value: () if value is None else value)] = ()

    @model_validator(mode="after")
    def _supports_chances(self) -> LogLine:
        if self.supports is not None and len(self.supports) != len(self.chances or ()):
            raise ValueError("supports needs one number for each of chances")
        return self
