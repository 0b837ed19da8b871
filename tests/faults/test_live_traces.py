"""The promise on links of changing capacity, with the agent and the service as processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.live_traces import run
from tests.faults.trace_link import Trace

pytestmark = pytest.mark.alone

FOLDER = os.environ.get("UPWELL_TRACES", "")
"""A folder of mahimahi uplink traces (*.up); without it the recorded links are not tried."""


def on_and_off(path: Path, bits_per_s: float, on_s: float, off_s: float, rounds: int) -> Path:
    """Write a trace of a steady link that goes away again and again; it begins and ends with the link up."""
    gap_ms = 1500 * 8 / bits_per_s * 1e3
    times: list[int] = []
    for number in range(rounds + 1):
        start_ms = number * (on_s + off_s) * 1e3
        times += [int(start_ms + packet * gap_ms) for packet in range(int(on_s * 1e3 / gap_ms))]
    path.write_text("\n".join(map(str, times)) + "\n")
    return path


def test_a_trace_is_what_is_written(tmp_path: Path) -> None:
    trace = Trace.read(on_and_off(tmp_path / "t.up", 12e6, 2.0, 1.5, 2))
    assert trace.bytes_between(0.5, 1.5) == pytest.approx(1.5e6, rel=0.01)
    assert trace.bytes_between(2.1, 3.4) == 0
    assert [(round(start_s, 1), round(end_s, 1)) for start_s, end_s in trace.outages(8.0, 1.0)] == [
        (2.0, 3.5),
        (5.5, 7.0),
    ]
    assert trace.bytes_between(trace.length_s, trace.length_s + 1.0) == pytest.approx(
        trace.bytes_between(0.0, 1.0), abs=1500
    )
    assert trace.leaves_by(0.0, 100_000, 0.1)
    assert not trace.leaves_by(2.05, 1, 3.0)


@pytest.mark.parametrize("outages", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_every_request_is_answered_in_time_while_the_link_comes_and_goes(tmp_path: Path, outages: int) -> None:
    """So few requests say little about the share that is late: a busy machine may delay some."""
    trace = on_and_off(tmp_path / "t.up", 20e6, 6.0, 2.5, outages)
    report = run(trace, seconds=8.5 * outages + 6.0, rate=10.0)
    assert report.shortcomings(late_share=0.05) == [], report
    assert report.outages == len(report.recovery_s) == outages
    assert report.cloud_share > 0.3


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not FOLDER, reason="UPWELL_TRACES names no folder of recorded links")
def test_the_promise_holds_on_recorded_links() -> None:
    paths = sorted(Path(FOLDER).glob("*.up"))
    assert paths
    reports = [run(path, seconds=140.0, rate=5.0) for path in paths]
    for report in reports:
        print(report)
    assert [text for report in reports for text in report.shortcomings() if "recovery" not in text] == []
