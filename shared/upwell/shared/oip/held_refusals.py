"""Refusals of a server that drains, held until its ports are closed."""

from __future__ import annotations

import threading
import time

from upwell.shared.errors import Unavailable
from upwell.shared.platform.call_threads import yield_permit

_HELD_S = 3.0
"""The longest time to hold a refusal."""
_QUIET_S, _LONGEST_SETTLING_S = 0.2, 2.0


class HeldRefusals:
    """Refuses the requests that reach a server while it drains: `settle`, close the ports, `release`.

    A server that closes cuts off, without a reply, what it has not read yet. Callers that wait for a refusal send
    nothing that could be cut off like that.
    """

    def __init__(self, who: str) -> None:
        """`who` drains: "the service"."""
        self._who = who
        self._lock = threading.Lock()
        self._held = 0
        self._released = threading.Event()
        self._released.set()

    def refusal(self, deadline_s: float) -> Unavailable:
        """The refusal of one more request; between `settle` and `release` it waits for the latter.

        It waits for half of the time left until `deadline_s` (monotonic) at most. The other half is for the way to the
        caller, who may then ask elsewhere.
        """
        if not self._released.is_set():
            with self._lock:
                self._held += 1
            yield_permit()  # let waiting calls in, so that they are held too: what is unread then ends without a reply
            self._released.wait(min(_HELD_S, (deadline_s - time.monotonic()) / 2))
        return Unavailable(f"{self._who} is draining and accepts no more requests")

    def settle(self) -> None:
        """Hold refusals from now on. Returns once no more requests have come for a moment, or after two seconds."""
        self._released.clear()
        end_s, held = time.monotonic() + _LONGEST_SETTLING_S, -1
        while held != self._held and time.monotonic() < end_s:
            held = self._held
            time.sleep(_QUIET_S)

    def release(self) -> None:
        """Send the held refusals, and refuse at once from now on."""
        self._released.set()
