"""How parts are timed: warm, in turns, all alike, within memory and time. The clock is the test's."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest

from upwell.shared.errors import ModelFailed
from upwell.tools.partition.part_bench import BURST, FEWEST_RUNS, Bench, MeasuredPart, Opened, spread_of

HEADS = [MeasuredPart("head", nodes) for nodes in range(1, 6)]


class Machine:
    """Its clock moves only while a part runs. A part takes as many seconds as it has nodes, more at first."""

    def __init__(self, cold_runs: int = 0, size_bytes: int = 10, drift: Callable[[float], float] = lambda _: 1) -> None:
        self.now_s = 0.0
        self.runs: list[MeasuredPart] = []
        self.open: set[MeasuredPart] = set()
        self.opened: list[MeasuredPart] = []
        self.most_open = 0
        self.collecting: list[bool] = []
        self._cold_runs = cold_runs
        self._size_bytes = size_bytes
        self._drift = drift

    def clock(self) -> float:
        return self.now_s

    def opener(self, part: MeasuredPart) -> Opened:
        self.open.add(part)
        self.opened.append(part)
        self.most_open = max(self.most_open, len(self.open))
        left = [self._cold_runs]

        def run() -> None:
            assert part in self.open
            self.runs.append(part)
            self.collecting.append(gc.isenabled())
            left[0] -= 1
            cold = 1 + max(0, left[0] + 1)
            self.now_s += part.nodes * cold * self._drift(self.now_s)

        return Opened(run, lambda: self.open.discard(part), self._size_bytes)

    def bench(self, memory_bytes: int = 1000, tick: Callable[[], None] = lambda: None) -> Bench:
        return Bench(self.opener, self.clock, random.Random(3), memory_bytes, tick)


def test_cold_runs_do_not_count() -> None:
    machine = Machine(cold_runs=5)
    bench = machine.bench()
    bench.measure(HEADS, 6, 1e9)
    assert bench.samples == {part: [float(part.nodes)] * 6 for part in HEADS}


def test_what_drifts_hits_all_parts_alike() -> None:
    """A machine that slows down to a half while it is measured: the ratios of the times stay what they are."""
    machine = Machine(drift=lambda now_s: 1 + now_s / 2000)
    bench = machine.bench()
    bench.measure(HEADS, 60, 1e9)
    assert machine.now_s > 1000
    medians = {part.nodes: spread_of(times).median_s for part, times in bench.samples.items()}
    for nodes, median_s in medians.items():
        assert median_s / medians[1] == pytest.approx(nodes, rel=0.05)


def test_every_round_has_an_order_of_its_own_which_the_seed_decides() -> None:
    def order() -> list[MeasuredPart]:
        machine = Machine()
        machine.bench().measure(HEADS, 12, 1e9)
        return machine.runs

    runs = order()
    visits = 1 + BURST
    measured = runs[-4 * visits * len(HEADS) :]
    rounds = [measured[start::visits][:5] for start in range(0, len(measured), visits * len(HEADS))]
    assert all(sorted(one, key=lambda part: part.nodes) == HEADS for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert order() == runs


def test_no_garbage_is_collected_while_it_is_timed() -> None:
    machine = Machine()
    machine.bench().measure([HEADS[0]], BURST, 1e9)
    assert machine.collecting[-BURST - 1 :] == [True] + [False] * BURST  # the run before them is not timed
    assert gc.isenabled()


def test_more_than_the_memory_holds_is_measured_in_turns() -> None:
    machine = Machine(size_bytes=10)
    bench = machine.bench(memory_bytes=25)
    bench.measure(HEADS, 9, 1e9)
    assert {part: len(times) for part, times in bench.samples.items()} == dict.fromkeys(HEADS, 9)
    assert machine.most_open == 3  # two, and the one that turned out not to fit
    assert len(machine.opened) > 2 * len(HEADS)
    bench.close()
    assert machine.open == set()


def test_a_part_that_is_larger_than_the_memory_is_measured_alone() -> None:
    machine = Machine(size_bytes=10)
    bench = machine.bench(memory_bytes=5)
    bench.measure(HEADS[:2], 3, 1e9)
    assert {part: len(times) for part, times in bench.samples.items()} == dict.fromkeys(HEADS[:2], 3)


def test_what_is_open_stays_open_for_the_next_measurement() -> None:
    machine = Machine()
    bench = machine.bench()
    bench.measure(HEADS[:2], 3, 1e9)
    bench.measure(HEADS, 3, 1e9)
    assert sorted(machine.opened, key=lambda part: part.nodes) == HEADS
    assert [len(bench.samples[part]) for part in HEADS] == [6, 6, 3, 3, 3]


def test_past_the_time_each_part_still_gets_the_fewest_runs() -> None:
    machine = Machine()
    bench = machine.bench()
    bench.measure(HEADS, 1000, 0.0)
    assert {len(times) for times in bench.samples.values()} == {FEWEST_RUNS}


def test_a_part_that_cannot_run_is_left_out_with_its_reason() -> None:
    machine = Machine()

    def opener(part: MeasuredPart) -> Opened:
        if part.nodes == 2:
            raise ModelFailed("no such kernel")
        opened = machine.opener(part)

        def fail() -> None:
            raise ModelFailed("out of memory")

        return Opened(fail, opened.close, opened.size_bytes) if part.nodes == 4 else opened

    bench = Bench(opener, machine.clock, random.Random(3), 1000, lambda: None)
    bench.measure(HEADS, 6, 1e9)
    bench.measure(HEADS, 6, 1e9)
    assert bench.failed == {HEADS[1]: "no such kernel", HEADS[3]: "out of memory"}
    assert {part.nodes: len(times) for part, times in bench.samples.items()} == {1: 12, 3: 12, 5: 12}
    assert HEADS[3] not in machine.open
    assert machine.opened.count(HEADS[3]) == 1


def test_every_opening_and_visit_is_a_step() -> None:
    steps: list[None] = []
    Machine().bench(tick=lambda: steps.append(None)).measure(HEADS, 6, 1e9)
    assert len(steps) == len(HEADS) * (1 + 6 // BURST)


def test_a_spread_has_median_and_tenths() -> None:
    spread = spread_of([float(number) for number in range(11)], stretch=8)
    assert (spread.median_s, spread.p10_s, spread.p90_s, spread.runs) == (40.0, 8.0, 72.0, 11)
    assert spread_of([2.0]).p90_s == 2.0
