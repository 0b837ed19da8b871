"""Capacities, told by what they have offered, and the two kinds of trace file."""

from __future__ import annotations

import math

import pytest

from upwell.shared.routing.simulation.link_capacity import PacketTrace, StepTrace, constant, parse_trace


def test_a_packet_leaves_in_its_millisecond() -> None:
    trace = PacketTrace([5, 5, 8, 10])
    assert [trace.reached_s(packets * 1500) for packets in (1, 2, 3, 4)] == [0.005, 0.005, 0.008, 0.01]
    assert trace.reached_s(1) == 0.005
    assert trace.reached_s(1501) == 0.005
    assert [trace.offered_bytes(at_s) for at_s in (0, 0.005, 0.006, 0.01)] == [0, 0, 3000, 4500]


def test_a_packet_trace_repeats_from_its_last_packet() -> None:
    trace = PacketTrace([5, 10])
    assert [trace.reached_s(packets * 1500) for packets in (3, 4, 5)] == [0.015, 0.02, 0.025]
    assert trace.offered_bytes(0.0175) == 3 * 1500
    assert trace.offered_bytes(1000.0001) == 2 * 100_000 * 1500


@pytest.mark.parametrize("packets", [[], [0], [0, 0]])
def test_a_packet_trace_has_a_length(packets: list[int]) -> None:
    with pytest.raises(ValueError, match="no packet after 0 ms"):
        PacketTrace(packets)


def test_a_step_holds_until_the_next_and_the_last_as_long_as_the_one_before() -> None:
    trace = StepTrace([0, 2, 3], [8, 0, 16])  # 1, 0, 2 bytes a second; the last from 3 to 4
    assert [trace.offered_bytes(at_s) for at_s in (0, 1, 2, 2.5, 3, 3.5, 4, 5)] == [0, 1, 2, 2, 2, 3, 4, 5]
    assert [trace.reached_s(position) for position in (0.5, 2, 2.5, 4, 4.5, 6)] == [0.5, 2, 3.25, 4, 4.5, 6]


def test_steps_count_from_the_first() -> None:
    assert StepTrace([100, 101], [8, 16]).offered_bytes(1.5) == 2


def test_a_rate_of_zero_never_gets_there() -> None:
    assert constant(0).reached_s(1) == math.inf
    assert constant(0).offered_bytes(1e9) == 0


def test_a_constant_is_the_same_for_ever() -> None:
    link = constant(8e6)
    assert link.reached_s(1e6) == pytest.approx(1.0)
    assert link.offered_bytes(12345.678) == pytest.approx(12345.678e6)


def test_a_file_with_commas_is_csv_and_may_have_a_header() -> None:
    trace = parse_trace("second,Mbps\n0,8\n\n 1 , 0\n2,16\n")
    assert trace.offered_bytes(3) == pytest.approx(3e6)
    assert parse_trace("0,8e0\n").offered_bytes(1) == pytest.approx(1e6)


def test_a_file_without_commas_is_a_mahimahi_trace() -> None:
    assert parse_trace("0\n1\n1\n\n2\n").offered_bytes(0.0015) == 3 * 1500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no packet after 0 ms"),
        ("1\n2\n1\n", "line 3: 1 ms is before"),
        ("1\nx\n", "line 2: expected the millisecond of a packet"),
        ("1\n-2\n", "line 2: expected the millisecond of a packet"),
        ("1\n2.5\n", "line 2: expected the millisecond of a packet"),
        ("9" * 5000, "line 1: expected the millisecond of a packet"),
        ("0,1\n0,2\n", "line 2: second 0 is not after"),
        ("0,1\n1,-2\n", "line 2: expected second and Mbps"),
        ("0,1\n1,nan\n", "line 2: expected second and Mbps"),
        ("0,1\n1,inf\n", "line 2: expected second and Mbps"),
        ("0,1\n1\n", "line 2: expected second and Mbps"),
        ("0,1\n1,2,3\n", "line 2: expected second and Mbps"),
        ("second,Mbps\n", "no rows"),
    ],
)
def test_a_wrong_trace_is_named_by_its_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_trace(text)
