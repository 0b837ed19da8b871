"""The agent: it answers on the device and sends hard and large cases to the cloud."""

from typing import TYPE_CHECKING

from upwell.edge.agent import Agent
from upwell.shared.errors import (
    CloudFailed,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Superseded,
    Unavailable,
    UpwellError,
)
from upwell.shared.platform.vendor_telemetry import forbid_telemetry

if TYPE_CHECKING:
    from upwell.edge.request.answer import Answer, Timings

__all__ = [
    "Agent",
    "Answer",
    "CloudFailed",
    "ConfigError",
    "DeadlineExceeded",
    "InvalidRequest",
    "ModelFailed",
    "ModelNotFound",
    "NoAllowedRoute",
    "Refused",
    "Superseded",
    "Timings",
    "Unavailable",
    "UpwellError",
]


forbid_telemetry()  # before any module of this package can load a runtime


def __getattr__(name: str) -> object:
    """Import the names of answers on first use, since importing them takes long."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from upwell.edge.request import answer

    return getattr(answer, name)
