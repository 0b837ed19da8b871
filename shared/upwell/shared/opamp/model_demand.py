"""What a device reports of a model so that a budget can be shared out among the fleet; read by both sides."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from upwell.shared.opamp.remote_configuration import Share

_NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class ModelDemand(BaseModel):
    """Figures since the previous report: requests per second, the mean size in bytes of a message to the cloud (0 if
    there was none), and `wanted`, the share of requests that the device's own policy would offload. `share` is the
    limit now in force, None if no budget is shared out.

    `shares` and `risks` are operating points of the calibration in use: if the share `shares[i]` of all requests is
    offloaded, the share `risks[i]` is kept and wrong though the cloud is right. Empty if no fitting calibration has
    them.
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
    """Parse a report; None if it cannot be read, for instance from a newer version."""
    try:
        return ModelDemand.model_validate(value)
    except ValidationError:
        return None
