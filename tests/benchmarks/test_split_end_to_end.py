"""What a plan promises against what requests take: see `split_end_to_end`, here with one small network."""

from __future__ import annotations

import pytest

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.split_end_to_end import QUICK, run, table

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]


def test_a_plan_and_requests_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Quiet(60.0)
    rows = run(QUICK, quiet)
    with capsys.disabled():
        print(f"\n{table(rows)}\n{quiet.told()}")
    assert [row.uplink_bps for row in rows] == list(QUICK.uplinks_bps)
    for row in rows:
        assert {"edge", "cloud", row.chosen.name} <= {way.name for way in row.ways}
        assert row.chosen.predicted_s == min(way.predicted_s for way in row.ways)
        assert row.fixed_s > 0.02
