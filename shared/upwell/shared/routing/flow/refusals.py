"""The error that a caller gets where there is no answer: one that fits the decision, or the cloud's failure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from upwell.shared.errors import (
    CloudFailed,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Unavailable,
    UpwellError,
)
from upwell.shared.routing.decide.state import Decision
from upwell.shared.routing.flow.actions import CloudFailure
from upwell.shared.routing.reasons import Reason

_POLICYS_OWN = frozenset({Reason.EGRESS_DENIED, Reason.RULE, Reason.RULE_ERROR, Reason.NO_CLOUD})


def refusal(decision: Decision) -> UpwellError:
    """The error for a decision that leaves no route; when the cloud may be asked again is passed on."""
    if decision.obstacle in _POLICYS_OWN:
        return NoAllowedRoute(decision.refusal)
    if decision.obstacle is Reason.BREAKER_OPEN:
        return Unavailable(decision.refusal)
    return Refused(decision.refusal, retry_after_s=decision.retry_after_s)


def failure(miss: CloudFailure) -> UpwellError:
    """The error for a cloud that failed where nothing stands in for its answer; when to come back is passed on."""
    text = f"{miss.reason}: {miss.detail}"
    if miss.reason in _POLICYS_OWN:
        return NoAllowedRoute(f"{miss.detail} and the model has no edge side")
    if miss.reason is Reason.CLOUD_EXHAUSTED:
        return Refused(text, retry_after_s=miss.retry_after_s)
    return _ERRORS.get(miss.reason, CloudFailed)(text)


_ERRORS: Mapping[Reason, type[UpwellError]] = MappingProxyType(
    {
        Reason.CLOUD_DEADLINE: DeadlineExceeded,
        Reason.CLOUD_UNAVAILABLE: Unavailable,
        Reason.CLOUD_INVALID_ARGUMENT: InvalidRequest,
        Reason.CLOUD_MODEL_MISSING: ModelNotFound,
    }
)
