"""Some rows of a request on their way to the cloud and back, and what the router learns from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from upwell.edge.metrics import AgentMetrics
from upwell.edge.models.served import NotFinite, ServedModel
from upwell.edge.router_cell import RouterCell
from upwell.edge.uplink.uplink import CloudMiss, CloudReply, Uplink
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.state import CloudAnswered, CloudDropped, CloudFailure, Decision
from upwell.shared.tensors import Array

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Desk:
    """What every request is handled with."""

    router: RouterCell
    uplink: Uplink | None
    metrics: AgentMetrics


class Ascent:
    """Rows sent up by a decision. Used by one thread; what comes of it is learnt exactly once."""

    def __init__(
        self, desk: Desk, model: ServedModel, decision: Decision, inputs: Mapping[str, Array], request_id: str
    ) -> None:
        assert desk.uplink is not None  # noqa: S101  the router sends nothing up without a cloud
        self.rows = decision.up_rows
        self.decision = decision
        self.outcome: CloudReply | CloudMiss | None = None
        self._desk = desk
        self._model = model
        self._id = request_id
        request = InferRequest(model=model.cloud_model, inputs=inputs, id=request_id)
        try:
            self._call = desk.uplink.start(request, decision.verdict, decision.give_up_s)
        except BaseException:
            desk.router.observe(CloudDropped(model.name, decision.probes))  # a probe's slot must not stay taken
            raise
        desk.metrics.sent(model.name, self._call.sent_bytes)

    @property
    def elapsed_s(self) -> float:
        """Time from sending to the end of the call, or to now."""
        return self._call.elapsed_s

    def wait(self, until_s: float) -> None:
        """Take the outcome if it is there by `until_s`, an instant that may have passed."""
        if self.outcome is not None:
            return
        outcome = self._call.wait(until_s)
        if isinstance(outcome, CloudReply):
            self._take_reply(outcome)
        elif outcome is not None:
            self._take_miss(outcome)

    def give_up(self) -> None:
        """End a call that is late; without an answer by now it counts as a failure of the cloud."""
        if self.outcome is None:
            self._take_miss(self._call.give_up())

    def drop(self) -> None:
        """Cancel a call whose answer nobody needs any more; that says nothing about the cloud."""
        if self.outcome is None:
            self._call.cancel()
            self._desk.router.observe(CloudDropped(self._model.name, self.decision.probes))

    def _take_reply(self, reply: CloudReply) -> None:
        try:
            if self._model.edge is not None:
                self._model.edge.check_cloud(reply.response.outputs, len(self.rows))
        except NotFinite as error:
            # A request may deserve it (what is not a number goes in and comes out), so it speaks against nobody.
            self.outcome = self._call.reject(str(error))
            self._desk.router.observe(CloudDropped(self._model.name, self.decision.probes))
            return
        except ModelFailed as error:
            self._take_miss(self._call.reject(str(error)))
            return
        self.outcome = reply
        self._desk.router.observe(
            CloudAnswered(
                self._model.name, len(self.rows), reply.sent_bytes, reply.total_s, reply.server_s, reply.is_first
            )
        )

    def _take_miss(self, miss: CloudMiss) -> None:
        self.outcome = miss
        _log.debug("cloud: model=%s id=%s %s: %s", self._model.name, self._id, miss.reason, miss.detail)
        waited_s = self.elapsed_s if miss.reason is Reason.CLOUD_DEADLINE else math.inf
        self._desk.router.observe(CloudFailure(self._model.name, miss.reason, self.decision.probes, waited_s))
