"""What the queues do with load, priorities, clients and models: on a simulated device, in virtual time."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.examples import grid, sampled
from tests.unit.cloud.simulated_time import CAPACITY, LARGEST, Arrival, Outcome, Simulation, pace_s
from upwell.cloud.batching.batch_choice import RunSizes
from upwell.cloud.batching.model_queue import PATIENCE_S, ModelQueue
from upwell.shared.errors import Refused

ALONE = RunSizes(1)
ALONE_CAPACITY = 1 / pace_s(1)
BUCKETS = (1, 2, 4, 8, 16, 32)


def poisson(
    rate: float,
    seconds: float,
    *,
    seed: int,
    limits_s: Sequence[float] = (float("inf"),),
    client: str = "one",
    priority: int = 10,
    rows: int = 1,
    model: str = "m",
) -> Iterator[Arrival]:
    """Requests at random instants, `rate` in a second."""
    dice = random.Random(seed)
    at_s = dice.expovariate(rate)
    while at_s < seconds:
        yield Arrival(at_s, dice.choice(limits_s), client, priority, rows, model)
        at_s += dice.expovariate(rate)


def share_in_time(outcomes: Sequence[Outcome], client: str | None = None) -> float:
    own = [one for one in outcomes if client in (None, one.arrival.client)]
    return sum(one.in_time for one in own) / len(own)


def fifo_in_time(arrivals: Sequence[Arrival]) -> float:
    """The baseline: batches in the order of arrival, as large as may be, and nothing is ever dropped."""
    waiting, now_s, in_time = list(arrivals), 0.0, 0
    while waiting:
        now_s = max(now_s, waiting[0].at_s)
        batch = [one for one in waiting[:LARGEST] if one.at_s <= now_s]
        waiting = waiting[len(batch) :]
        now_s += pace_s(len(batch))
        in_time += sum(now_s - one.at_s <= one.limit_s for one in batch)
    return in_time / len(arrivals)


@pytest.mark.parametrize("sizes", [RunSizes(LARGEST), RunSizes(LARGEST, BUCKETS), RunSizes(LARGEST, (1, 8, 32))])
def test_at_120_percent_of_capacity_four_of_five_are_in_time(sizes: RunSizes) -> None:
    arrivals = list(poisson(1.2 * CAPACITY, 1.5, seed=1, limits_s=[0.05]))
    outcomes = Simulation.of_one(sizes).run(arrivals)
    assert share_in_time(outcomes) >= 0.8
    assert fifo_in_time(arrivals) < 0.3
    late = [one for one in outcomes if one.error is None and not one.in_time]
    assert len(late) < 0.01 * len(outcomes)  # only as long as no run times are known


@pytest.mark.parametrize("largest", [LARGEST, 1])
@pytest.mark.parametrize("seed", sampled(range(3), 3))
def test_runs_that_take_a_little_longer_than_was_thought_make_few_late(seed: int, largest: int) -> None:
    dice, longest_s = random.Random(seed), 0.1 * pace_s(largest)
    simulation = Simulation.of_one(RunSizes(largest))
    simulation.paces = {"m": lambda rows: pace_s(rows) + dice.uniform(0.0, longest_s)}
    load = 1.2 * largest / pace_s(largest)
    outcomes = simulation.run(poisson(load, 3000 / load, seed=seed, limits_s=[0.05]))
    late = [one for one in outcomes if one.error is None and not one.in_time]
    assert len(late) < 0.01 * len(
        outcomes
    )  # 1 to 2 % where the earliest deadlines are taken as long as they can be met
    possible = largest / (pace_s(largest) + longest_s / 2) / load
    assert share_in_time(outcomes) > 0.98 * possible


def test_deadlines_of_all_lengths_are_met_for_which_there_seemed_to_be_time() -> None:
    arrivals = poisson(CAPACITY, 4, seed=0, limits_s=[0.02, 0.05, 0.2])
    outcomes = Simulation.of_one(max_queue=128).run(arrivals)
    late = [one for one in outcomes if one.error is None and not one.in_time]
    assert len(late) < 0.015 * len(outcomes)  # 2.5 % where sizes from 17 to 32 count as one
    assert share_in_time(outcomes) > 0.845


@pytest.mark.parametrize("seed", sampled(range(4), 4))
def test_disturbed_runs_cost_what_they_cost_and_no_more(seed: int) -> None:
    """Three of ten runs take longer by more than anybody waits for; what is possible then is half of the rest."""
    dice = random.Random(seed)

    def disturbed_s(rows: int) -> float:
        return pace_s(rows) + (dice.uniform(0.02, 0.06) if dice.random() < 0.3 else 0.0)

    simulation = Simulation.of_one()
    simulation.paces = {"m": disturbed_s}
    outcomes = simulation.run(poisson(1.2 * CAPACITY, 1.5, seed=seed, limits_s=[0.05]))
    possible = LARGEST / statistics.mean(disturbed_s(LARGEST) for _ in range(1000)) / (1.2 * CAPACITY)
    assert share_in_time(outcomes) > 0.5 * possible


def test_at_10_percent_of_capacity_the_median_waits_less_than_2_ms() -> None:
    simulation = Simulation.of_one()
    simulation.run(poisson(0.1 * CAPACITY, 5, seed=2, limits_s=[0.05]))
    waits_s = [began_s - one.at_s for began_s, _, batch in simulation.batches for one in batch]
    assert statistics.median(waits_s) < 0.002


def test_buckets_filled_up_cost_less_latency_than_always_taking_all_that_wait() -> None:
    outcomes = Simulation.of_one(RunSizes(LARGEST, BUCKETS)).run(poisson(0.6 * CAPACITY, 3, seed=3))
    latencies_s = [one.latency_s for one in outcomes]
    assert statistics.median(latencies_s) < 0.0155  # 18 ms where each batch holds all that wait
    assert statistics.quantiles(latencies_s, n=100)[98] < 0.027  # 36 ms


def test_the_more_urgent_are_served_first() -> None:
    urgent = poisson(0.3 * CAPACITY, 1.5, seed=4, limits_s=[0.05], priority=1)
    others = poisson(1.0 * CAPACITY, 1.5, seed=5, limits_s=[0.05], priority=2)
    outcomes = Simulation.of_one().run([*urgent, *others])
    served = Counter(one.arrival.priority for one in outcomes if one.in_time)
    came = Counter(one.arrival.priority for one in outcomes)
    assert served[1] / came[1] > 0.99
    assert (served[1] + served[2]) / (came[1] + came[2]) > 0.7  # and the device is not wasted on it


def test_what_has_waited_long_enough_goes_before_every_priority() -> None:
    simulation = Simulation.of_one(ALONE, max_queue=1000)
    patient = Arrival(0.5, priority=1_000_000)
    stream = poisson(1.3 * ALONE_CAPACITY, PATIENCE_S + 2, seed=6, priority=1)
    outcomes = simulation.run([patient, *stream])
    took_s = next(one.latency_s for one in outcomes if one.arrival is patient)
    assert PATIENCE_S < took_s < PATIENCE_S + 2 * pace_s(1)


@pytest.mark.parametrize(("sizes", "limit_s"), grid([RunSizes(LARGEST), ALONE], [0.03, 0.05, float("inf")]))
def test_a_client_that_floods_does_not_keep_another_from_its_share(sizes: RunSizes, limit_s: float) -> None:
    capacity = sizes.largest / pace_s(sizes.largest)
    seconds = 2 if sizes is ALONE else 0.7
    flood = poisson(3 * capacity, seconds, seed=7, limits_s=[limit_s], client="flood")
    other = list(poisson(0.2 * capacity, seconds, seed=8, limits_s=[0.06], client="other"))
    simulation = Simulation.of_one(sizes)
    outcomes = simulation.run([*flood, *other])
    assert share_in_time(outcomes, "other") > 0.98
    assert sum(len(batch) for _, _, batch in simulation.batches) / capacity > 0.85 * seconds  # the device was kept busy


def test_two_that_flood_get_equal_device_time_however_large_their_requests() -> None:
    small = poisson(2 * CAPACITY, 1, seed=9, client="small")
    large = poisson(0.5 * CAPACITY, 1, seed=10, client="large", rows=5)
    simulation = Simulation.of_one()
    simulation.run([*small, *large])
    rows = Counter[str]()
    for began_s, _, batch in simulation.batches:
        for one in batch if began_s < 1 else ():
            rows[one.client] += one.rows
    assert rows["small"] / rows["large"] == pytest.approx(1, rel=0.15)


def test_no_stream_of_new_clients_keeps_out_one_that_has_had_much() -> None:
    had_much = [Arrival(0.001 * place, client="old") for place in range(40)]
    newcomers = [Arrival(0.02 + place / ALONE_CAPACITY, client=f"new {place}") for place in range(300)]
    outcomes = Simulation.of_one(ALONE).run([*had_much, *newcomers])
    while_they_come = [one for one in outcomes if one.arrival.client == "old" and one.ended_s < newcomers[-1].at_s]
    assert len(while_they_come) > 20


def test_equal_clients_lose_nothing_to_fairness() -> None:
    limits_s = (0.025, 0.05, 0.2, 0.5)
    arrivals = [
        one
        for client in range(40)
        for one in poisson(1.2 * CAPACITY / 40, 1.5, seed=client, limits_s=limits_s, client=str(client))
    ]
    as_one = [Arrival(one.at_s, one.limit_s) for one in arrivals]
    apart, together = (Simulation.of_one().run(each) for each in (arrivals, as_one))
    assert share_in_time(apart) > share_in_time(together) - 0.02


def two_models(simulation_seconds: float, rates: Sequence[float], limits_s: Sequence[float]) -> Simulation:
    """Models `quick` and `slow` on one device; a run of `slow` takes five times as long."""
    queues = {"quick": ModelQueue(ALONE), "slow": ModelQueue(ALONE)}
    simulation = Simulation(queues, ALONE, {"quick": lambda _: 0.004, "slow": lambda _: 0.02})
    arrivals = [
        one
        for seed, (model, rate, limit_s) in enumerate(zip(queues, rates, limits_s, strict=True))
        for one in poisson(rate, simulation_seconds, seed=20 + seed, limits_s=[limit_s], model=model)
    ]
    simulation.run(arrivals)
    return simulation


def test_models_that_share_a_device_run_one_at_a_time_and_get_equal_time() -> None:
    simulation = two_models(2, rates=(500, 100), limits_s=(0.2, 0.2))
    assert simulation.busy_s["quick"] / simulation.busy_s["slow"] == pytest.approx(1, rel=0.1)
    took_s = {"quick": 0.004, "slow": 0.02}
    ends_s = [began_s + took_s[model] for began_s, model, _ in simulation.batches]
    begins_s = [began_s for began_s, _, _ in simulation.batches]
    assert all(end_s <= begin_s + 1e-9 for end_s, begin_s in zip(ends_s[:-1], begins_s[1:], strict=True))


def test_a_model_that_asks_for_little_gets_it_beside_one_that_asks_for_all() -> None:
    simulation = two_models(3, rates=(50, 600), limits_s=(0.05, 0.2))
    quick = sum(len(batch) for _, model, batch in simulation.batches if model == "quick")
    assert quick > 0.95 * 50 * 3 * 0.9
    assert sum(simulation.busy_s.values()) > 0.95 * 3


def test_instances_are_kept_to_and_all_used() -> None:
    simulation = Simulation.of_one(ALONE, instances=3)
    outcomes = simulation.run(poisson(2.5 * ALONE_CAPACITY, 2, seed=30, limits_s=[0.1]))
    assert share_in_time(outcomes) > 0.99
    began_s = [began_s for began_s, _, _ in simulation.batches]
    assert max(sum(0 <= now_s - one < pace_s(1) - 1e-9 for one in began_s) for now_s in began_s) == 3


def test_who_is_refused_is_told_when_what_waits_will_have_run() -> None:
    simulation = Simulation.of_one(ALONE, max_queue=4)
    first = simulation.run([Arrival(0.0), Arrival(0.1), Arrival(0.2)])
    refused = [one for one in simulation.run(Arrival(1.0, client="one") for _ in range(8)) if one.error is not None]
    assert first[0].error is None
    assert len(refused) == 3
    for one in refused:
        assert isinstance(one.error, Refused)
        assert one.error.retry_after_s == pytest.approx(5 * pace_s(1))


@pytest.mark.parametrize("begins_s", [0.0, PATIENCE_S + 1])
def test_a_long_request_takes_turns_so_that_the_deadlines_of_others_hold(begins_s: float) -> None:
    pieces = math.ceil((begins_s + 2.0) / pace_s(LARGEST))
    long = Arrival(0.0, rows=pieces * LARGEST)
    short = poisson(0.3 * CAPACITY, 1.5, seed=31, limits_s=[0.05])
    outcomes = Simulation.of_one().run([long, *(replace(one, at_s=begins_s + one.at_s) for one in short)])
    others = [one for one in outcomes if one.arrival is not long]
    assert share_in_time(others) > 0.99
    (found,) = [one for one in outcomes if one.arrival is long]
    assert found.error is None
    assert found.latency_s < pieces * pace_s(LARGEST) + 1.5  # nothing is run twice, and it is not put off


def test_a_long_request_takes_turns_with_other_models_of_its_device() -> None:
    queues = {name: ModelQueue(RunSizes(LARGEST)) for name in ("m", "other")}
    simulation = Simulation(queues, RunSizes(LARGEST))
    others = poisson(0.3 * CAPACITY, 1.5, seed=32, limits_s=[0.1], model="other")
    outcomes = simulation.run([Arrival(0.0, rows=100 * LARGEST), *others])
    assert share_in_time(outcomes[1:]) > 0.99


@pytest.mark.parametrize("limit_s", [2.0, 9.0])
def test_a_long_request_gives_no_turn_to_less_urgent_ones_while_its_deadline_is_near(limit_s: float) -> None:
    long = Arrival(0.0, limit_s=limit_s, rows=100 * LARGEST)
    outcomes = Simulation.of_one(max_queue=10_000).run([long, *poisson(0.9 * CAPACITY, 3, seed=33)])
    (found,) = [one for one in outcomes if one.arrival is long]
    assert found.in_time
    assert found.latency_s < 100 * pace_s(LARGEST) + 2 * pace_s(LARGEST)


def test_two_long_requests_share_the_device_and_neither_waits_for_the_end_of_the_other() -> None:
    outcomes = Simulation.of_one().run([Arrival(0.0, rows=50 * LARGEST), Arrival(0.001, rows=50 * LARGEST)])
    ends_s = [one.ended_s for one in outcomes]
    assert ends_s[1] == pytest.approx(100 * pace_s(LARGEST))
    assert ends_s[1] - ends_s[0] == pytest.approx(pace_s(LARGEST))
