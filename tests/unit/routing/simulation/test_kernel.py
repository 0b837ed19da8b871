"""Simulated time, and the queue of the link."""

from __future__ import annotations

import math

import pytest

from tests.unit.routing.simulation.scenes import rules
from upwell.shared.routing.simulation.link_capacity import PacketTrace, constant
from upwell.shared.routing.simulation.simulated_router import Habits, Pilot
from upwell.shared.routing.simulation.simulated_time import Event, Kernel, Process
from upwell.shared.routing.simulation.simulated_uplink import (
    CloudBehaviour,
    SimulatedCall,
    SimulatedProber,
    SimulatedUplink,
)


def test_processes_go_on_at_their_instants_and_in_order() -> None:
    kernel, seen = Kernel(), list[tuple[str, float]]()

    def process(name: str, *waits_s: float) -> Process[None]:
        for wait_s in waits_s:
            yield None, wait_s
            seen.append((name, kernel.now_s))

    kernel.start(1.0, process("a", 3.0, 2.0))  # the second instant has passed by then
    kernel.start(0.0, process("b", 3.0, math.inf))
    kernel.run()
    assert seen == [("b", 3.0), ("a", 3.0), ("a", 3.0)]


def test_an_event_wakes_those_who_wait_for_it_and_nobody_twice() -> None:
    kernel, event, seen = Kernel(), Event(), list[tuple[float, bool]]()

    def process(until_s: float) -> Process[None]:
        yield event, until_s
        seen.append((kernel.now_s, event.is_set))
        yield event, until_s + 10
        seen.append((kernel.now_s, event.is_set))

    for until_s in (1.0, 3.0):
        kernel.start(0.0, process(until_s))
    kernel.call(2.0, lambda: kernel.fire(event))
    kernel.run()
    assert seen == [(1.0, False), (2.0, True), (2.0, True), (2.0, True)]


class TestUplink:
    def sent(
        self, *sends: tuple[float, int], rtt_s: float = 0.0, give_up: tuple[int, float] | None = None
    ) -> list[SimulatedCall]:
        """Calls sent at these instants over 1,000 bytes a second, one of them given up at an instant."""
        kernel = Kernel()
        uplink, calls = SimulatedUplink(kernel, constant(8000), rtt_s), list[SimulatedCall]()
        for at_s, size_bytes in sends:
            kernel.call(at_s, lambda size=size_bytes: calls.append(uplink.send(size, CloudBehaviour(0.5))))  # type: ignore[misc]
        if give_up is not None:
            kernel.call(give_up[1], lambda: uplink.give_up(calls[give_up[0]]))
        kernel.run()
        return calls

    def test_messages_leave_one_after_the_other(self) -> None:
        first, second, third = self.sent((0, 1000), (0.5, 1000), (9, 1000), rtt_s=0.25)
        assert first.total_s == pytest.approx(1 + 0.25 + 0.5)
        assert second.total_s == pytest.approx(1.5 + 0.25 + 0.5)
        assert third.total_s == pytest.approx(1 + 0.25 + 0.5)

    def test_a_message_given_up_before_it_began_leaves_the_queue(self) -> None:
        _, second, third = self.sent((0, 1000), (0, 1000), (0, 1000), give_up=(1, 0.9))
        assert not second.began
        assert math.isnan(second.total_s)
        assert third.total_s == pytest.approx(2.5)

    def test_a_message_given_up_after_it_began_is_sent_to_its_end(self) -> None:
        _, second, third = self.sent((0, 1000), (0, 1000), (0, 1000), give_up=(1, 1.1))
        assert second.began
        assert third.total_s == pytest.approx(3.5)

    def test_what_waits_through_an_outage_has_not_begun(self) -> None:
        kernel = Kernel()
        uplink, calls = SimulatedUplink(kernel, PacketTrace([5000, 5001]), 0.0), list[SimulatedCall]()
        for _ in range(2):
            kernel.call(1.0, lambda: calls.append(uplink.send(1000, CloudBehaviour(0.0))))
        kernel.call(2.0, lambda: uplink.give_up(calls[0]))
        kernel.run()
        assert [call.began for call in calls] == [False, True]
        assert calls[1].total_s == pytest.approx(4.0)

    def test_over_a_dead_link_nothing_is_heard(self) -> None:
        kernel = Kernel()
        uplink, calls = SimulatedUplink(kernel, constant(0), 0.0), list[SimulatedCall]()
        kernel.call(0.0, lambda: calls.append(uplink.send(1, CloudBehaviour(0.0))))
        kernel.run()
        assert not calls[0].began


class TestProber:
    def probes(self, *news: tuple[float, str]) -> int:
        """How many empty calls came back, where these things happened and each answer was heard at its instant."""
        kernel = Kernel()
        uplink = SimulatedUplink(kernel, constant(8e6), 0.06)
        pilot = Pilot(rules(), {}, kernel, Habits())
        prober = SimulatedProber(kernel, uplink, pilot)
        for at_s, what in news:
            kernel.call(at_s, getattr(prober, f"note_{what}"))
        kernel.run()
        return len(pilot.state.link.samples)

    def test_a_silent_link_is_probed_while_requests_come(self) -> None:
        assert self.probes((0, "candidate"), (0.1, "answer")) == 6  # every 1.5 s and a round trip, up to 10 s
        assert self.probes((0, "candidate"), (0.1, "answer"), (8, "candidate")) > 6

    def test_an_answer_within_that_time_makes_it_needless(self) -> None:
        answers = [(0.1 + index, "answer") for index in range(10)]
        assert self.probes((0, "candidate"), *answers) == 0

    def test_a_link_that_failed_is_left_to_the_breaker(self) -> None:
        assert self.probes((0, "candidate"), (0.1, "answer"), (0.2, "failure")) == 0
