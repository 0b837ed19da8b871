"""The record of one request, once it was answered or failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upwell.edge.models.served_model import ServedModel
from upwell.edge.request.request import RowParts
from upwell.edge.uplink.uplink import CloudReply
from upwell.shared.routing.decide.router_state import Decision, Signals
from upwell.shared.routing.flow.cloud_attempt import CloudAttempt
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import Reason
from upwell.shared.signature.uplink_pictures import NO_RESIZES, Resizes, shrink_for_uplink
from upwell.shared.tensors import Array
from upwell.shared.values import quick


@quick
@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. `first` is the decision before the device ran, `second` the one after it, None if there was none.

    `sent_inputs` are the inputs as model.yaml sends them to the cloud; `resizes` shrink their pictures before they go;
    `hardness` is by row, for the rows that the device scored;
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
    resizes: Resizes = field(default_factory=lambda: NO_RESIZES)

    @property
    def settings(self) -> Settings:
        """The policy's settings for the request."""
        return self.first.verdict.settings

    @property
    def replies(self) -> Mapping[int, CloudReply]:
        """The rows that the cloud answered, each with its reply."""
        return {row: a.outcome for a in self.attempts if isinstance(a.outcome, CloudReply) for row in a.rows}

    @property
    def missed(self) -> Mapping[int, Reason]:
        """The rows that wanted the cloud but got no answer from it, with the reason."""
        kept = {
            row: decision.obstacle
            for decision in (self.first, self.second)
            if decision is not None and decision.obstacle is not None
            for row in decision.kept_rows
        }
        failed = {row: a.outcome.reason for a in self.attempts if isinstance(a.outcome, CloudFailure) for row in a.rows}
        return {**kept, **failed}

    def inputs_of(self, rows: tuple[int, ...]) -> Mapping[str, Array]:
        """The inputs of these rows, with pictures at full size."""
        if len(rows) == self.parts.rows or self.model.edge is None:
            return self.sent_inputs
        return self.model.edge.signature.select_rows(self.sent_inputs, rows)

    def message_inputs(self, rows: tuple[int, ...]) -> Mapping[str, Array]:
        """The inputs of these rows as sent to the cloud."""
        entry_model, inputs = self.model.entry_model, self.inputs_of(rows)
        return inputs if entry_model is None else shrink_for_uplink(entry_model.signature, inputs, self.resizes)
