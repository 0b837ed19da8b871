"""Whether something may leave the device, asked of the policy when it is about to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.rules import Verdict
from upwell.shared.routing.reasons import Reason

Judge: TypeAlias = Callable[[], Verdict]
"""Asks the policy that is in force when it is called. It is kept for a while, so it must not hold tensors."""


METADATA_BYTES = 64
"""What the cloud is asked about a model is judged like a request for it of this size without tags."""


class EgressForbidden(UpwellError):
    """The policy, as it is now, keeps on the device what was about to leave; `reason` is the code for it."""

    def __init__(self, verdict: Verdict) -> None:
        self.reason = verdict.denial or Reason.EGRESS_DENIED
        could = " could not be evaluated, which" if verdict.failed_rule else ""
        super().__init__(f"rule {verdict.egress_rule!r}{could} denies egress")


def check_egress(judge: Judge) -> None:
    """Raise `EgressForbidden` where the policy keeps it here now."""
    verdict = judge()
    if verdict.denial is not None:
        raise EgressForbidden(verdict)
