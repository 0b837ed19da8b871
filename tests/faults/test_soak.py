"""The soak: short here, at its full length where `slow` tests are asked for."""

from __future__ import annotations

import pytest

from tests.faults.soak import FAULTS, soak

pytestmark = pytest.mark.alone


@pytest.mark.slow
def test_every_fault_in_turn() -> None:
    """So few requests say little about the share that is late: a busy machine may delay some."""
    report = soak(requests=35 * len(FAULTS), rate=20.0, deadline_ms=1000.0)
    assert report.shortcomings(deadline_ms=1000.0, late_share=0.05) == [], report


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["cascade", "direct"])
@pytest.mark.parametrize("deadline_ms", [1000.0, 100.0])
def test_a_thousand_requests(plan: str, deadline_ms: float) -> None:
    report = soak(requests=1000, rate=20.0, deadline_ms=deadline_ms, plan=plan)
    assert report.shortcomings(deadline_ms) == [], report
