"""All that is known of one request once it has been answered, or could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upwell.edge.models.served import ServedModel
from upwell.edge.request.request import RowParts
from upwell.edge.uplink.uplink import CloudReply
from upwell.shared.routing.decide.state import Decision, Signals
from upwell.shared.routing.flow.actions import CloudFailure
from upwell.shared.routing.flow.attempt import CloudAttempt
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import Reason
from upwell.shared.tensors import Array
from upwell.shared.values import quick


@quick
@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. `first` was decided before the device ran, `second` after it, None where nothing was asked then.

    `sent_inputs` are the inputs as they go up; `hardness` is by row, for those that the device scored;
    `edge_digest` names the version that ran on the device.
    """

    model: ServedModel
    id: str
    signals: Signals
    sent_inputs: Mapping[str, Array]
    first: Decision
    second: Decision | None
    hardness: Mapping[int, float]
    parts: RowParts
    attempts: Sequence[CloudAttempt]
    edge_s: float | None
    edge_digest: str = ""

    @property
    def settings(self) -> Settings:
        """What the policy came to."""
        return self.first.verdict.settings

    @property
    def replies(self) -> Mapping[int, CloudReply]:
        """Rows that the cloud answered, and the answer that each is in."""
        return {row: a.outcome for a in self.attempts if isinstance(a.outcome, CloudReply) for row in a.rows}

    @property
    def missed(self) -> Mapping[int, Reason]:
        """Rows that wanted the cloud and that it did not answer, and why."""
        kept = {
            row: decision.obstacle
            for decision in (self.first, self.second)
            if decision is not None and decision.obstacle is not None
            for row in decision.kept_rows
        }
        failed = {row: a.outcome.reason for a in self.attempts if isinstance(a.outcome, CloudFailure) for row in a.rows}
        return {**kept, **failed}

    def inputs_of(self, rows: tuple[int, ...]) -> Mapping[str, Array]:
        """The inputs of these rows as they go up."""
        if len(rows) == self.parts.rows or self.model.edge is None:
            return self.sent_inputs
        return self.model.edge.signature.select_rows(self.sent_inputs, rows)
