"""The device's part of a request that goes up by a cut."""

from __future__ import annotations

import time
from collections.abc import Mapping

from upwell.edge.admission import timed
from upwell.edge.desk import Desk
from upwell.edge.models.heads import Half
from upwell.edge.models.served import ServedModel
from upwell.edge.timetable import Claim
from upwell.edge.tracing import HEAD, add_run
from upwell.shared.routing.state import Decision, Way
from upwell.shared.tensors import Array


def run_head(
    desk: Desk,
    model: ServedModel,
    way: Way,
    inputs: Mapping[str, Array],
    decision: Decision,
    claim: Claim,
    arrived_s: float,
) -> tuple[ServedModel, Half]:
    """The tail, as a model in the cloud, and what the head gives for the decision's rows.

    Raises as `EdgeModel.run` does; what the decision had taken for itself is given back then.
    """
    rows, head = len(decision.up_rows), model.head(way.key)
    try:
        claim = timed(claim, desk.router.recent.edge.get(way.key), rows, arrived_s, time.monotonic())
        half = head.run(inputs, decision.deadline_s, claim)
    except BaseException:
        desk.router.give_back(decision)
        raise
    desk.router.ran(way.key, rows, half.duration_s)
    if desk.trace is not None:
        add_run(desk.trace, HEAD, rows, half.duration_s)
    return head.tail(model), half
