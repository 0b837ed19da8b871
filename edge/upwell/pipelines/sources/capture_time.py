"""When a frame was captured, computed from its arrival and the time in its stream. Reads no clock."""

from __future__ import annotations

import math
from collections import deque

DEFAULT_WINDOW_S = 10.0
JUMP_S = 2.0

_OLDEST_S = 86_400.0
"""Maximum age claimed by a publisher; older claims are ignored."""

_AHEAD = 0.5
"""Fraction of a period by which a frame may come early, since cameras are not exact."""


class CaptureClock:
    """Maps the time of a stream (RTP, or its container) to the monotonic clock. Times are in seconds.

    With a_i the arrival of frame i by the monotonic clock and s_i its time in the stream,

        offset_i   = min over frames k ≤ i with a_k > a_i - window_s of (a_k - s_k)
        captured_i = max(captured_(i-1), s_i + offset_i)

    as in the first step of NTP's clock filter (RFC 5905, section 10) and in RTP jitter buffers: the smallest delay
    has the least queueing in it. So captured_i never lies after a_i and never runs backwards.

    **Error.** Let d_k be the delay from capture to arrival of frame k, and ρ the rate by which the stream's clock
    runs faster than this one. Then captured_i - (true capture) is at least -|ρ|·window_s, and at most (the least d_k
    of the window) + |ρ|·window_s. Right after a delay smaller than all before it may be larger, but never more than
    d_i. The least delay itself cannot be observed here: it is that of the encoder and the decoder, 50 to 300 ms for
    most cameras, and frames are older than reported by that much.

    **Jumps.** If the stream's time goes backwards, or advances by over `JUMP_S` more than the arrivals did, its clock
    was set: the history is dropped, and that frame counts as captured on arrival. A stall of the network is no jump,
    since the stream's own step stays small: frames that come late in a burst are reported as old.

    A frame without a time (`stream_s` None) counts as captured on arrival.
    """

    def __init__(self, window_s: float = DEFAULT_WINDOW_S) -> None:
        self._window_s = window_s
        # (arrival, offset), offsets rising: each is the least of all that came after the entry before it.
        self._least: deque[tuple[float, float]] = deque()
        self._last: tuple[float, float] | None = None
        self._captured_s = -math.inf
        self.jumps = 0

    def captured_s(self, arrival_s: float, stream_s: float | None) -> float:
        """When the frame that came at `arrival_s` was captured. `arrival_s` never decreases from call to call."""
        if stream_s is None:
            self._last = None
            self._least.clear()
            self._captured_s = max(self._captured_s, arrival_s)
            return self._captured_s
        if self._last is not None and self._has_jumped(arrival_s, stream_s):
            self._least.clear()
            self.jumps += 1
        self._last = (arrival_s, stream_s)
        offset_s = arrival_s - stream_s
        while self._least and self._least[-1][1] >= offset_s:
            self._least.pop()
        self._least.append((arrival_s, offset_s))
        while self._least[0][0] <= arrival_s - self._window_s:
            self._least.popleft()
        # `min`: the sum is rounded, and a frame cannot be captured after its arrival.
        self._captured_s = max(self._captured_s, min(arrival_s, stream_s + self._least[0][1]))
        return self._captured_s

    def _has_jumped(self, arrival_s: float, stream_s: float) -> bool:
        last_arrival_s, last_stream_s = self._last or (arrival_s, stream_s)
        step_s = stream_s - last_stream_s
        return step_s < 0 or (step_s > JUMP_S and step_s - (arrival_s - last_arrival_s) > JUMP_S)


def published_capture_time(said: str | None, arrival_s: float, arrival_unix_s: float) -> tuple[float, float]:
    """When a picture was captured, by the monotonic clock and in seconds since 1970, from what its publisher says.

        age = arrival_unix - said,  captured = arrival - age    where 0 ≤ age ≤ one day

    Both arrivals are this device's clocks at one instant, so a step of its clock affects only pictures in flight. A
    publisher's clock that is slow by x makes pictures x older than they are, and so late for their deadline; one that
    is fast by x makes them x younger, but never younger than their arrival. A time more than a day old, in the
    future, or not a number is ignored, and the arrival counts.
    """
    try:
        age_s = arrival_unix_s - float(said) if said is not None else 0.0
    except ValueError:
        age_s = 0.0
    if not 0 <= age_s <= _OLDEST_S:  # also not a number
        age_s = 0.0
    return arrival_s - age_s, arrival_unix_s - age_s


class PublisherClock:
    """The capture times of one publisher's pictures, which never run backwards, since trackers need that.

    A claim up to `JUMP_S` before the last capture counts as that capture. One further back shows that a clock was set,
    the publisher's or this device's: the arrival counts, and so it does until the claims lie after it. Otherwise time
    would stand still, for as long as the clock was set back.
    """

    def __init__(self) -> None:
        self._captured_s = -math.inf

    def captured(self, said: str | None, arrival_s: float, arrival_unix_s: float) -> tuple[float, float]:
        """The capture time by the monotonic clock and in seconds since 1970. `arrival_s` never decreases."""
        captured_s, unix_s = published_capture_time(said, arrival_s, arrival_unix_s)
        back_s = max(0.0, self._captured_s - captured_s)
        if back_s > JUMP_S:
            captured_s, unix_s, back_s = arrival_s, arrival_unix_s, 0.0
        self._captured_s = captured_s + back_s
        return self._captured_s, unix_s + back_s


class MediaClock:
    """Maps the times that a file states, in seconds, to one that never runs backwards.

    Where recordings were joined or the clock was set back, time goes on from the frame before; a frame that is up to
    `JUMP_S` early, or states no time, has the time of that frame. If the first frame states none, no frame has one.
    """

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._shift_s = 0.0
        self._has_time = True

    def at_s(self, stated_s: float | None) -> float | None:
        """The time of the next frame."""
        self._has_time = self._has_time and (stated_s is not None or self._last_s is not None)
        if stated_s is not None and self._has_time:
            last_s = stated_s if self._last_s is None else self._last_s
            if stated_s + self._shift_s < last_s - JUMP_S:
                self._shift_s = last_s - stated_s
            self._last_s = max(last_s, stated_s + self._shift_s)
        return self._last_s


class FrameRate:
    """Drops frames so that at most about `fps` per second remain; 0 keeps all.

    Frame i at time t_i is kept if t_i ≥ due - 1/(2·fps); then due grows by 1/fps. The due times lie on a fixed grid,
    so 25 frames a second become 10 on average and not 8, and a camera whose frames come a little early or late keeps
    its rate. If time runs backwards, or a frame comes more than a period after its due time, the grid restarts.
    """

    def __init__(self, fps: float) -> None:
        self._period_s = 1 / fps if fps > 0 else 0.0
        self._due_s: float | None = None

    def keeps(self, time_s: float) -> bool:
        """Whether to keep the frame of this time."""
        period_s = self._period_s
        if not period_s:
            return True
        if self._due_s is None or not -2 * period_s < time_s - self._due_s <= period_s:
            self._due_s = time_s + period_s
            return True
        if time_s < self._due_s - _AHEAD * period_s:
            return False
        self._due_s += period_s
        return True
