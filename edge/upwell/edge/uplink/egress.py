"""Egress: whether a policy lets something leave the device, asked at the moment of sending."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.reasons import Reason

EgressJudge: TypeAlias = Callable[[], Verdict]
"""Asks the policy in force when it is called. It is kept for a while, so it must not hold tensors."""

METADATA_BYTES = 64
"""A question to the cloud about a model is judged like a request of this size without tags."""


class EgressForbidden(UpwellError):
    """The current policy keeps on the device what was about to leave; `reason` is its code."""

    def __init__(self, verdict: Verdict) -> None:
        self.reason = verdict.denial or Reason.EGRESS_DENIED
        could = " could not be evaluated, which" if verdict.failed_rule else ""
        super().__init__(f"rule {verdict.egress_rule!r}{could} denies egress")


def check_egress(judge: EgressJudge) -> None:
    """Raise `EgressForbidden` if the current policy keeps it here."""
    verdict = judge()
    if verdict.denial is not None:
        raise EgressForbidden(verdict)
