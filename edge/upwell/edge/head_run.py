"""The device's part of a request that goes up by a cut."""

from __future__ import annotations

import time
from collections.abc import Mapping

from upwell.edge.admission import timed
from upwell.edge.ascent import Desk
from upwell.edge.models.heads import Head
from upwell.edge.timetable import Claim
from upwell.shared.routing.state import Decision, EdgeRan
from upwell.shared.tensors import Array


def run_head(
    desk: Desk, head: Head, inputs: Mapping[str, Array], decision: Decision, claim: Claim
) -> tuple[Mapping[str, Array], float]:
    """What the tail takes for the decision's rows, and the seconds that the head took.

    Raises as `EdgeModel.run` does; what the decision had taken for itself is given back then.
    """
    rows, key = len(decision.up_rows), head.way.key
    try:
        claim = timed(claim, desk.router.recent.edge.get(key), rows, time.monotonic())
        tensors, run_s = head.run(inputs, decision.deadline_s, claim)
    except BaseException:
        desk.router.give_back(decision)
        raise
    desk.router.observe(EdgeRan(key, rows, run_s))
    return tensors, run_s
