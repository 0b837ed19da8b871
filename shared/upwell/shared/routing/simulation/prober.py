"""Simulates the empty calls with which the agent keeps its link estimate fresh."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from upwell.shared.routing.decide.state import LinkProbed
from upwell.shared.routing.simulation.kernel import Kernel, Process
from upwell.shared.routing.simulation.pilot import Pilot
from upwell.shared.routing.simulation.uplink import CloudBehaviour, SimulatedUplink


class SimulatedProber:
    """Times an empty call after `STALE_S` without news, or after a late call for `RETRY_S`.

    Only while requests come that may be offloaded: none for `SEEN_S`, no probe. The bytes of probes are not counted.
    """

    STALE_S: ClassVar[float] = 1.5
    RETRY_S: ClassVar[float] = 0.5
    SEEN_S: ClassVar[float] = 10.0
    TIMEOUT_S: ClassVar[float] = 2.0
    SIZE_BYTES: ClassVar[int] = 100

    def __init__(self, kernel: Kernel, uplink: SimulatedUplink, pilot: Pilot) -> None:
        self._kernel, self._uplink, self._pilot = kernel, uplink, pilot
        self._heard_at_s = -math.inf
        self._seen_at_s = -math.inf

    def note_candidate(self) -> None:
        """A request came that may be offloaded."""
        self._seen_at_s = self._kernel.now_s

    def note_answer(self) -> None:
        """The cloud answered."""
        self._heard(self.STALE_S)

    def note_late(self) -> None:
        """The cloud was late: it, or the link, may be back soon."""
        self._heard(self.RETRY_S)

    def note_failure(self) -> None:
        """The cloud failed: the breaker finds out whether it is back."""
        self._heard_at_s = -math.inf

    def _heard(self, quiet_s: float) -> None:
        self._heard_at_s = now_s = self._kernel.now_s
        self._kernel.call(now_s + quiet_s, partial(self._look, now_s))

    def _look(self, heard_at_s: float) -> None:
        now_s = self._kernel.now_s
        if self._heard_at_s == heard_at_s and now_s - self._seen_at_s < self.SEEN_S:
            self._kernel.start(now_s, self._probe())

    def _probe(self) -> Process[None]:
        call = self._uplink.send(self.SIZE_BYTES, CloudBehaviour(0.0))
        yield call.answered, self._kernel.now_s + self.TIMEOUT_S
        if call.answered.is_set:
            self._pilot.observe(LinkProbed(call.total_s))
            self.note_answer()
        else:
            self._uplink.give_up(call)
            self.note_late()
