"""What comes of a call to the cloud: its answer, its cost and the times that the server reports."""

from __future__ import annotations

import math

from upwell.shared.oip.dataplane import InferResponse, Parameter
from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class


@value_class
class CloudReply:
    """An answer of the cloud and its cost. The server's times are None if it does not report them."""

    response: InferResponse
    sent_bytes: int
    received_bytes: int
    total_s: float
    queue_s: float | None
    compute_s: float | None
    is_first: bool

    @classmethod
    def of(
        cls, response: InferResponse, sent_bytes: int, received_bytes: int, total_s: float, *, is_first: bool = False
    ) -> CloudReply:
        """The reply with the times that the server reports."""
        facts = response.parameters
        queue_s, compute_s = (_seconds(facts.get(f"upwell.cloud_{part}_ms")) for part in ("queue", "compute"))
        return cls(response, sent_bytes, received_bytes, total_s, queue_s, compute_s, is_first)

    @property
    def digest(self) -> str:
        """The digest of the model that answered, in the cloud or on a gateway that is an agent; empty if not
        reported.
        """
        facts = self.response.parameters
        return str(facts.get("upwell.cloud_digest") or facts.get("upwell.edge_digest") or "")

    @property
    def is_degraded(self) -> bool:
        """Whether a gateway (an agent) answered in place of the cloud."""
        return self.response.parameters.get("upwell.degraded") is True

    @property
    def reason(self) -> Reason | None:
        """The reason that a gateway gives, if it is a known one."""
        given = self.response.parameters.get("upwell.reason")
        return next((reason for reason in Reason if reason == given), None)

    @property
    def server_s(self) -> float | None:
        """The server's part of the time."""
        if self.queue_s is None or self.compute_s is None:
            return None
        return self.queue_s + self.compute_s


def _seconds(milliseconds: Parameter | None) -> float | None:
    """A reported time, if it is plausible."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return None
    return milliseconds / 1e3 if math.isfinite(milliseconds) and milliseconds >= 0 else None
