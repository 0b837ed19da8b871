"""Simulation against brute force: packets counted one by one, a queue stepped by hand, hindsight tried out in full."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.routing.simulation.scenes import line, rules, scene
from upwell.shared.routing.reasons import Route
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import PacketTrace, StepTrace
from upwell.shared.routing.simulation.simulated_time import Kernel
from upwell.shared.routing.simulation.simulated_uplink import CloudBehaviour, SimulatedCall, SimulatedUplink
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome, SimulationReport
from upwell.shared.routing.simulation.strategies import cloud_only, edge_only, oracle, random_share, routed

modest = settings(deadline=None, max_examples=examples(150))
traces = st.lists(st.integers(0, 60), min_size=1, max_size=12).map(sorted).filter(lambda packets: packets[-1] > 0)


def packet_times_ms(trace: Sequence[int], count: int) -> list[int]:
    """The instants of so many packets, by repeating the trace from its end."""
    times: list[int] = []
    for cycle in itertools.count():
        times += [cycle * trace[-1] + at_ms for at_ms in trace]
        if len(times) >= count:
            return times[:count]
    raise AssertionError


@modest
@given(traces, st.integers(1, 40), st.integers(0, 400))
def test_a_packet_trace_offers_what_counting_finds(trace: list[int], packets: int, at_ms: int) -> None:
    times = packet_times_ms(trace, 2000)
    capacity = PacketTrace(trace)
    assert capacity.reached_s(packets * 1500) == times[packets - 1] / 1000
    before = sum(time < at_ms for time in times)
    if before < len(times):
        assert capacity.offered_bytes(at_ms / 1000) in (before * 1500, sum(time <= at_ms for time in times) * 1500)


steps = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6)


@modest
@given(steps, st.floats(0, 50), st.floats(1e-3, 200))
def test_what_a_step_trace_has_reached_it_has_offered(
    parts: list[tuple[int, int]], at_s: float, position: float
) -> None:
    starts_s = list(itertools.accumulate((float(length_s) for length_s, _ in parts), initial=0.0))[:-1]
    trace = StepTrace(starts_s, [8.0 * rate for _, rate in parts])
    reached_s = trace.reached_s(position)
    if not any(rate for _, rate in parts):
        assert reached_s == math.inf
        return
    assert trace.offered_bytes(reached_s) == pytest.approx(position)
    assert trace.offered_bytes(max(0.0, reached_s - 1e-6)) <= position + 1e-6
    assert trace.reached_s(trace.offered_bytes(at_s)) <= at_s + 1e-6


messages = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 6000)), min_size=1, max_size=12)


@modest
@given(traces, messages)
def test_the_queue_sends_packet_by_packet(trace: list[int], sends: list[tuple[int, int]]) -> None:
    sends = sorted(sends)
    kernel = Kernel()
    uplink, calls = SimulatedUplink(kernel, PacketTrace(trace), 0.0), list[SimulatedCall]()
    for at_ms, size_bytes in sends:
        # Half a millisecond after a packet's instant, so that what leaves at the very moment of arrival is no question.
        kernel.call((at_ms + 0.5) / 1000, lambda size=size_bytes: calls.append(uplink.send(size, CloudBehaviour(0.0))))  # type: ignore[misc]
    kernel.run()
    opportunities = iter(packet_times_ms(trace, 50_000))
    for call, (at_ms, size_bytes) in zip(calls, sends, strict=True):
        left = math.ceil(size_bytes / 1500)
        while left:
            at = next(opportunities)
            left -= at > at_ms
        assert call.sent_s + call.total_s == pytest.approx(at / 1000)


@st.composite
def logs(draw: st.DrawFn, most: int = 25) -> list[LogLine]:
    """Requests close enough to be in each other's way."""
    lines = []
    for _ in range(draw(st.integers(1, most))):
        others = {
            "size_bytes": draw(st.integers(0, 300_000)),
            "edge_s": draw(st.sampled_from([None, 0.0, 0.005, 0.05, 0.4])),
            "cloud_s": draw(st.sampled_from([None, 0.0, 0.01, 0.3])),
            "hardness": draw(st.sampled_from([{}, {"margin": 0.1}, {"margin": 0.9}, {"margin": math.nan}])),
            "edge_correct": draw(st.sampled_from([None, True, False])),
            "cloud_correct": draw(st.sampled_from([None, True, False])),
            "deadline_s": draw(st.sampled_from([None, 0.02, 0.2, 5.0])),
        }
        lines.append(line(draw(st.floats(0, 4)), **others))
    return lines


POLICIES = (
    "defaults: {deadline: 300ms}",
    "defaults: {deadline: 300ms, objective: latency, large: {above: 50kB}}",
    "defaults: {deadline: 300ms, large: {above: 50kB}, on_cloud_failure: error}",
    "defaults: {deadline: 300ms, large: {above: 100kB}, hard: {measure: entropy, above: 0.5}}",
)
links = st.sampled_from([0.0, 0.2, 2.0, 50.0])


@settings(deadline=None, max_examples=examples(60))
@given(logs(), st.sampled_from(POLICIES), links)
def test_whatever_happens_the_accounts_are_right(lines: list[LogLine], text: str, mbps: float) -> None:
    policy, what = rules(text), scene(lines, mbps)
    draws = [index / len(lines) for index in range(len(lines))]
    ways = {
        "policy": routed(policy, what),
        "edge": edge_only(policy, what),
        "cloud": cloud_only(policy, what),
        "random": random_share(policy, what, 0.5, draws),
        "oracle": oracle(policy, what),
    }
    for name, served in ways.items():
        assert [one.request for one in served] == list(what.requests), name
        for one in served:
            check(one)
        report = SimulationReport.of(served)
        assert report.requests == len(lines)
        assert sum(report.reasons.values()) == len(lines)
        assert report.bytes_up == sum(one.left_bytes for one in served)
        assert all(math.isfinite(value) for value in (report.cost, report.energy_j))
    assert not any(one.left_bytes for one in ways["edge"])
    assert all(one.in_time for one in ways["oracle"] if one.route is Route.CLOUD)


def check(one: SimulatedOutcome) -> None:
    assert (one.route is None) == math.isnan(one.answered_s)
    if one.route is Route.CLOUD:
        assert one.left_bytes in (one.request.size_bytes, 0)
        assert one.latency_s >= 0.06
    if one.route is Route.EDGE:
        assert one.edge_runs == 1
        assert one.latency_s >= one.request.edge_s - 1e-12
    assert one.left_bytes in (0, one.request.size_bytes)


STANDING_BY = (
    "defaults: {deadline: 300ms, large: {above: 50kB}}",
    "defaults: {deadline: 300ms, objective: latency, large: {above: 50kB}}",
    "defaults: {deadline: 300ms, confidence: 90%, on_cloud_failure: retry}",
    "defaults: {deadline: 300ms, hedge: {after: 20ms, at_most: 100%}, budget: {cloud_requests: 3/min}}",
    "{defaults: {deadline: 300ms}, rules: [{name: up, match: {}, route: cloud}]}",
)


@settings(deadline=None, max_examples=examples(1000))
@given(
    st.lists(st.tuples(st.floats(0.3, 4.0), st.integers(0, 300_000), st.floats(0.0, 1.0)), min_size=1, max_size=20),
    st.sampled_from(STANDING_BY),
    links,
    st.floats(0.0, 0.25),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_every_answer_is_in_time_where_the_device_has_the_time_for_each(
    asked: list[tuple[float, int, float]], text: str, mbps: float, edge_s: float, cloud_s: float
) -> None:
    lines, at_s = [], 0.0
    for gap_s, size_bytes, margin in asked:
        at_s += gap_s
        others = {"size_bytes": size_bytes, "hardness": {"margin": margin}, "edge_s": edge_s, "cloud_s": cloud_s}
        lines.append(line(at_s, **others))
    for one in routed(rules(text), scene(lines, mbps)):
        assert one.in_time, (one.reason, one.request.t_s)


@settings(deadline=None, max_examples=examples(100))
@given(logs(most=8), st.sampled_from([1.0, 4.0]))
def test_the_oracle_sends_in_order_whatever_would_be_back_in_time(lines: list[LogLine], mbps: float) -> None:
    served = oracle(rules(), scene(lines, mbps))
    free_s = 0.0
    for one in served:
        request = one.request
        begins_s = max(free_s, request.t_s)
        ends_s = begins_s + max(1, request.size_bytes) / (mbps * 1e6 / 8)
        pays = request.line.edge_correct is False and request.line.cloud_correct is True
        slack_s = one.deadline_s - (ends_s + 0.06 + request.cloud_s)
        if abs(slack_s) < 1e-9:
            return  # a matter of rounding
        assert (one.route is Route.CLOUD) == (pays and slack_s > 0)
        free_s = ends_s if one.route is Route.CLOUD else free_s
