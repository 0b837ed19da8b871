"""What a device says of a model so that a budget of the whole fleet can be shared out: both sides read it here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from upwell.shared.opamp.wish import Share

_NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class ModelDemand(BaseModel):
    """Of the time since the device last said it: requests per second, the mean bytes of a message that went up (0 where
    none did), and `wanted`, the share of the requests that its own policy wanted up. `share` is what it holds to, None
    where nobody shares a budget out to it.

    `shares` and `risks` are operating points of the calibration in use: where so much of all goes up, that much of all
    is kept and wrong though the cloud is right. Empty where no calibration that knows them fits.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    requests_per_s: _NotNegative = 0.0
    request_bytes: _NotNegative = 0.0
    wanted: Share = 1.0
    share: Share | None = None
    shares: Annotated[tuple[Share, ...], Field(max_length=32)] = ()
    risks: Annotated[tuple[Share, ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _pairs(self) -> ModelDemand:
        if len(self.shares) != len(self.risks):
            raise ValueError("expected as many risks as shares")
        return self


def read_demand(value: Any) -> ModelDemand | None:
    """What a device said; None where it cannot be read, as of a newer version."""
    try:
        return ModelDemand.model_validate(value)
    except ValidationError:
        return None
