"""How long a connection may be silent before it counts as dead: TCP's retransmission timer, and gRPC's pings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from upwell.shared.value_classes import value_class


@value_class
class RoundTrips:
    """The retransmission timer of TCP (RFC 6298), applied to an HTTP/2 connection.

    Each sample R in seconds is a call's time outside the server, including the sending of its bytes: a ping waits
    behind the same bytes. `mean_s` is the first R, then 7/8·mean + 1/8·R; `deviation_s` is R/2, then 3/4·deviation +
    1/4·|mean − R|. The timer is mean + 4·deviation, one second before the first sample. For a message of x bytes it is
    at least x·min(ΣR ÷ Σbytes, 1 ÷ `SLOW_RATE`) over the calls that sent bytes, each counted 7/8 of the next: a bound,
    since R contains the round trip, and without such a call x ÷ `SLOW_RATE`. A connection gets `TIMES` the timer, but
    on account of a message's size no longer than its call waits: the call ends before the connection does. That is
    rounded up to a power of two seconds (so that a new timer seldom needs a new connection), at least twice what one
    had that was taken for dead since the last answer, and limited to `SHORTEST_S` to `LONGEST_S`.
    """

    TIMES: ClassVar[float] = 4.0
    SHORTEST_S: ClassVar[float] = 1.0
    LONGEST_S: ClassVar[float] = 64.0
    SLOW_RATE: ClassVar[float] = 64e3
    """Bytes per second: with `TIMES`, a link of 128 kbit/s is not taken for dead."""

    mean_s: float = math.nan
    deviation_s: float = 0.0
    sent_s: float = 0.0
    sent_bytes: float = 0.0
    least_s: float = 0.0

    def answered(self, network_s: float, size_bytes: int = 0) -> RoundTrips:
        """The state after another answered call with so many bytes, which spent `network_s` outside the server."""
        sent_s, sent_bytes = self.sent_s, self.sent_bytes
        if size_bytes > 0:
            sent_s, sent_bytes = 0.875 * sent_s + network_s, 0.875 * sent_bytes + size_bytes
        if math.isnan(self.mean_s):
            return RoundTrips(network_s, network_s / 2, sent_s, sent_bytes)
        deviation_s = 0.75 * self.deviation_s + 0.25 * abs(self.mean_s - network_s)
        return RoundTrips(0.875 * self.mean_s + 0.125 * network_s, deviation_s, sent_s, sent_bytes)

    def broke(self, timeout_s: float) -> RoundTrips:
        """The state after a connection with that timeout broke in silence: it may only have been slow."""
        return replace(self, least_s=min(self.LONGEST_S, max(self.least_s, 2.0 * timeout_s)))

    def timeout_s(self, size_bytes: int = 0, within_s: float = math.inf) -> float:
        """How long to wait for the reply to a ping behind a message of that size, whose call ends by itself after
        `within_s`."""
        timer_s = 1.0 if math.isnan(self.mean_s) else self.mean_s + 4 * self.deviation_s
        s_per_byte = min(self.sent_s / self.sent_bytes if self.sent_bytes else math.inf, 1.0 / self.SLOW_RATE)
        sending_s = min(within_s, self.TIMES * size_bytes * s_per_byte)
        wanted_s = max(self.SHORTEST_S, self.TIMES * timer_s, sending_s, self.least_s)
        return math.ldexp(1.0, math.ceil(math.log2(min(self.LONGEST_S, wanted_s))))


def channel_options(timeout_s: float) -> tuple[tuple[str, int], ...]:
    """gRPC options: if a call is in progress and nothing arrives, ping after `timeout_s` and wait that long again.

    gRPC applies its keepalive timeout only if the timeout of pings in general is as short; at its default of a
    minute, that one would hold. The two pings without data that gRPC allows stay within what servers tolerate by
    default.
    """
    milliseconds = round(timeout_s * 1e3)
    return (
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 0),
    )
