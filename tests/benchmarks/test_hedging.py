"""What hedging buys: a server that stalls now and then, with and without a second request after the p95."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

import pytest

from tests.faults.stalling import StallingCloud, asking

REQUESTS = 2000
WARM_UP = 50
STALL_SHARE, STALL_S = 0.03, 0.5
HEDGE = "{after: p95, at_most: 5%}"

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Run:
    """Latencies of the requests, and how many came to the server."""

    took_s: list[float]
    messages: int

    def quantile_s(self, rank: int) -> float:
        """The percentile of that rank."""
        return statistics.quantiles(self.took_s, n=100)[rank - 1]


def run(hedge: str) -> Run:
    """Every request in turn; which messages stall is the same in each run, by their number at the server."""
    chance = random.Random(7)
    stalls = [chance.random() < STALL_SHARE for _ in range(3 * REQUESTS)]
    cloud = StallingCloud(lambda number: number >= WARM_UP and stalls[number], STALL_S)
    with asking(cloud, hedge) as it:
        for _ in range(WARM_UP):
            it.ask()
        before = len(cloud.requests)
        took_s = [it.ask() for _ in range(REQUESTS)]
        return Run(took_s, len(cloud.requests) - before)


def test_hedging_at_five_percent_halves_the_p99_of_a_server_that_stalls(capsys: pytest.CaptureFixture[str]) -> None:
    plain = run("off")
    hedged = run(HEDGE)
    with capsys.disabled():
        print(f"\n{REQUESTS} requests, {STALL_SHARE:.0%} stalls of {STALL_S * 1e3:.0f} ms, hedge: {HEDGE}")
        for name, one in {"without hedges": plain, "with hedges": hedged}.items():
            ranks = ", ".join(f"p{rank} {one.quantile_s(rank) * 1e3:.1f} ms" for rank in (50, 95, 99))
            print(
                f"{name}: {ranks}, max {max(one.took_s) * 1e3:.0f} ms, messages {one.messages / REQUESTS:.3f} a request"
            )
    assert plain.messages == REQUESTS
    assert hedged.quantile_s(99) <= plain.quantile_s(99) / 2
    assert hedged.messages <= 1.06 * REQUESTS
