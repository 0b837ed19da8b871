"""How long a connection may be silent before it counts as dead: TCP's retransmission timer, and gRPC's pings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """The retransmission timer of TCP (RFC 6298), applied to an HTTP/2 connection.

    Each sample R in seconds is a call's time outside the server, including the sending of its bytes: a ping waits
    behind the same bytes. `mean_s` is the first R, then 7/8·mean + 1/8·R; `deviation_s` is R/2, then 3/4·deviation +
    1/4·|mean − R|. The timer is mean + 4·deviation, one second before the first sample. A connection gets `TIMES`
    that, rounded up to a power of two seconds (so that a new timer seldom needs a new connection), doubled each time
    it was taken for dead since the last answer, and limited to `SHORTEST_S` to `LONGEST_S`.
    """

    TIMES: ClassVar[float] = 4.0
    SHORTEST_S: ClassVar[float] = 1.0
    LONGEST_S: ClassVar[float] = 64.0

    mean_s: float = math.nan
    deviation_s: float = 0.0
    doublings: int = 0

    def answered(self, network_s: float) -> RoundTrips:
        """The state after another answered call, which spent `network_s` outside the server."""
        if math.isnan(self.mean_s):
            return RoundTrips(network_s, network_s / 2)
        deviation_s = 0.75 * self.deviation_s + 0.25 * abs(self.mean_s - network_s)
        return RoundTrips(0.875 * self.mean_s + 0.125 * network_s, deviation_s)

    def broke(self) -> RoundTrips:
        """The state after a connection broke in silence: it may only have been slow."""
        return self if self.timeout_s >= self.LONGEST_S else replace(self, doublings=self.doublings + 1)

    @property
    def timeout_s(self) -> float:
        """How long to wait for the reply to a ping."""
        timer_s = 1.0 if math.isnan(self.mean_s) else self.mean_s + 4 * self.deviation_s
        wanted_s = min(self.LONGEST_S, max(self.SHORTEST_S, self.TIMES * timer_s))
        return min(self.LONGEST_S, math.ldexp(1.0, math.ceil(math.log2(wanted_s)) + self.doublings))


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
