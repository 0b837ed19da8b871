"""Roll-outs over simulated fleets in virtual time: good releases go through, each kind of bad one stops at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.fleet.simulated_fleet import BAD, FORMER, HEALTHY, NEW, Rates, SimulatedFleet, fleet
from upwell.fleet.rollout.rollout_state import Halt, NextWave, OfferRelease, RolloutPhase, Stage, TakeBack
from upwell.fleet.rollout.wave_gate import FALSE_HALT_LEVEL, SHARES, Before, Bound, Counts, reference, threshold
from upwell.fleet.rollout.wave_plan import RolloutWindow

DAY_MIN = 1440


def test_the_levels_of_all_bounds_add_up_to_the_documented_one() -> None:
    waves = 3
    spent = 1 / threshold("failed", waves) + sum(waves / threshold(signal, waves) for signal in SHARES)
    assert spent == pytest.approx(FALSE_HALT_LEVEL)


def test_a_good_release_reaches_every_device_wave_by_wave() -> None:
    simulated = fleet(1, HEALTHY, devices=20)
    rollout = simulated.run(simulated.begin(), DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED
    assert {one.running for one in simulated.devices} == {NEW}
    offered = [action for _, action in simulated.offers if isinstance(action, (OfferRelease, NextWave))]
    second = offered.index(NextWave(1))
    third = offered.index(NextWave(2))
    assert (second, third) == (1, 5)
    assert len(offered) == 22


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_release_stops_in_its_first_wave_and_every_device_is_back(kind: str) -> None:
    for seed in range(3):
        simulated = fleet(seed, BAD[kind], devices=12)
        rollout = simulated.run(simulated.begin(), DAY_MIN)
        assert (rollout.phase, rollout.wave) == (RolloutPhase.HALTED, 0), (seed, rollout.halted_by)
        offered = {action.device for _, action in simulated.offers if isinstance(action, OfferRelease)}
        assert len(offered) == 1
        assert rollout.breach is not None
        assert f"{rollout.breach.bad} of {rollout.breach.total}" in rollout.halted_by
        rollout = simulated.until_back(rollout)
        assert {one.target for one in simulated.devices} == {FORMER}
        if kind != "never reports":
            assert {one.running for one in simulated.devices} == {FORMER}
            assert all(rollout.members[name].is_back for name in offered)
        else:
            (silent,) = offered
            assert "within 3600 s" in rollout.members[silent].problem


def is_halted(seed: int) -> bool:
    """Whether a healthy release was."""
    simulated = fleet(seed, HEALTHY, devices=25)
    rollout = simulated.run(simulated.begin(history_polls=15 if seed % 2 else 60), DAY_MIN)
    return rollout.phase is RolloutPhase.HALTED


@pytest.mark.parametrize("seed", [0, 40, 80, 120, 160, 199])
def test_a_healthy_release_is_not_halted(seed: int) -> None:
    assert not is_halted(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_fleets_that_the_gate_was_not_made_with_a_healthy_release_is_hardly_ever_halted() -> None:
    """At most 5 of 200, which is what the documented level of 2 % may come to, by seeds of no other test."""
    halted = [seed for seed in range(10_000, 10_200) if is_halted(seed)]
    assert len(halted) <= 5, halted


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", BAD)
def test_on_fleets_that_the_gate_was_not_made_with_a_bad_release_is_halted_in_its_first_wave(kind: str) -> None:
    for seed in range(20_000, 20_050):
        simulated = fleet(seed, BAD[kind], devices=25)
        rollout = simulated.run(simulated.begin(), DAY_MIN)
        assert (rollout.phase, rollout.wave) == (RolloutPhase.HALTED, 0), seed


def test_a_bad_hour_of_the_whole_site_is_not_laid_at_the_releases_door() -> None:
    def load(now_s: float) -> float:
        return 4.0 if now_s > 1_000_000.0 + 120 else 1.0

    simulated = fleet(5, HEALTHY, devices=20, load=load)
    rollout = simulated.run(simulated.begin(), 30)
    assert rollout.phase is not RolloutPhase.HALTED, rollout.halted_by


def test_a_device_that_is_off_blocks_nobody_and_joins_when_it_comes_back() -> None:
    simulated = fleet(2, HEALTHY, devices=10)
    begin_s = simulated.now_s
    simulated.devices[3].is_off = lambda now_s: now_s < begin_s + 400 * 60
    simulated.devices[4].is_off = lambda _: True
    simulated.waves = ("1", "50%", "100%")
    rollout = simulated.run(simulated.begin(), DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED
    assert rollout.members["device-4"].stage is Stage.WAITING
    assert rollout.members["device-3"].stage in (Stage.WAITING, Stage.PASSED)


def test_a_late_device_joins_while_the_rollout_runs() -> None:
    simulated = fleet(2, HEALTHY, devices=10)
    begin_s = simulated.now_s
    for device in simulated.devices[:5]:
        device.is_off = lambda now_s: now_s > begin_s - 1 and now_s < begin_s + 20 * 60
    rollout = simulated.run(simulated.begin(), DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED
    assert {one.running for one in simulated.devices} == {NEW}


def test_a_canary_that_is_off_from_the_start_is_none() -> None:
    simulated = fleet(2, HEALTHY, devices=10)
    for device in simulated.devices[:9]:
        device.is_off = lambda now_s: now_s < 1_000_000.0 + 60
    rollout = simulated.run(simulated.begin(), 5)
    (canary,) = [name for name, one in rollout.members.items() if one.wave == 0]
    assert canary == "device-9"


def test_one_wedged_device_of_many_is_shown_and_the_rollout_goes_on() -> None:
    simulated = fleet(3, HEALTHY, devices=40)
    simulated.waves = ("10", "100%")
    rollout = simulated.begin()
    wedged = min(name for name, one in rollout.members.items() if one.wave == 1)
    device = next(one for one in simulated.devices if one.name == wedged)
    device.rates = {**device.rates, NEW: Rates(start="silence")}
    rollout = simulated.run(rollout, DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED, rollout.halted_by
    assert rollout.members[wedged].stage is Stage.FAILED
    assert "did not start the release" in rollout.members[wedged].problem
    assert TakeBack(wedged, FORMER) in [action for _, action in simulated.offers]


def test_a_canary_that_starts_and_then_goes_back_by_itself_halts_it() -> None:
    simulated = fleet(3, HEALTHY, devices=5)
    rollout = simulated.begin()
    while not any(one.stage is Stage.STARTED for one in rollout.members.values()):
        rollout = simulated.minute(rollout)
    (canary,) = [one for one in simulated.devices if one.running == NEW]
    canary.refused, canary.running = "rolled_back: 3 of its first 3 runs failed", FORMER
    rollout = simulated.minute(rollout)
    assert (rollout.phase, rollout.wave) == (RolloutPhase.HALTED, 0)
    assert "starts that failed: 1 of 1" in rollout.halted_by


def test_a_wave_that_cannot_pass_any_more_halts_instead_of_standing_still() -> None:
    simulated = fleet(3, HEALTHY, devices=20)
    simulated.waves = ("15", "16", "100%")
    rollout = simulated.begin()
    (last,) = [name for name, one in rollout.members.items() if one.wave == 1]
    device = next(one for one in simulated.devices if one.name == last)
    device.rates = {**device.rates, NEW: Rates(start="crashes")}
    rollout = simulated.run(rollout, DAY_MIN)
    assert (rollout.phase, rollout.wave) == (RolloutPhase.HALTED, 1)
    assert rollout.halted_by == "1 of 1 devices of wave 2 failed, but half must pass"


def test_a_device_is_offered_a_release_within_its_hours_alone() -> None:
    simulated = fleet(4, HEALTHY, devices=6)
    simulated.window = RolloutWindow("22:00-06:00")
    rollout = simulated.begin()
    members = {
        name: replace(one, zone="Asia/Tokyo" if number % 2 else "Europe/Berlin")
        for number, (name, one) in enumerate(sorted(rollout.members.items()))
    }
    rollout = simulated.run(replace(rollout, members=members), 3 * DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED
    for at_s, action in simulated.offers:
        if isinstance(action, OfferRelease):
            assert RolloutWindow("22:00-06:00").is_open(at_s, members[action.device].zone)


def test_a_halt_says_which_bound_with_which_figures() -> None:
    simulated = fleet(0, BAD["slower than its deadline"], devices=6)
    simulated.run(simulated.begin(), DAY_MIN)
    (halt,) = [action for _, action in simulated.offers if isinstance(action, Halt)]
    for word in ("requests answered late", "the previous release has", "is allowed", "to 1"):
        assert word in halt.reason


@pytest.mark.parametrize(
    ("before", "is_about"),
    [
        (Before(Counts(1000, 20), Counts(40_000, 400), Counts()), 0.02),
        (Before(Counts(0), Counts(40_000, 400), Counts()), 0.01),
        (Before(Counts(1000, 20), Counts(40_000, 400), Counts(1000, 300)), 0.49),
    ],
)
def test_the_reference_is_the_devices_own_past_or_the_control_groups_present(before: Before, is_about: float) -> None:
    found = reference("late", before)
    assert found is not None
    assert is_about <= found < is_about + 0.03


def test_without_a_past_there_is_no_reference() -> None:
    assert reference("late", Before()) is None
    assert reference("late", Before(pooled=Counts(19, 1))) is None
    assert reference("late", Before(pooled=Counts(20, 1))) is not None


def test_the_control_group_is_judged_by_its_present() -> None:
    delta = Counts(100, 90)
    assert Counts(999, 9).then(delta) == Counts(1099, 99)
    assert Counts(1000, 10).then(delta) == Counts(600, 95)


def test_the_evidence_is_the_average_of_all_bets() -> None:
    assert Bound((1.0, 2.0, 3.0, 6.0)).evidence == 3.0


def test_a_first_release_is_held_to_what_may_be_at_most(fleet_of: Callable[..., SimulatedFleet]) -> None:
    good = fleet_of(replace(HEALTHY, late=0.02, degraded=0.05, disagreed=0.05))
    rollout = good.run(good.begin(history_polls=0), DAY_MIN)
    assert rollout.phase is RolloutPhase.FINISHED
    bad = fleet_of(replace(HEALTHY, late=0.5, degraded=0.05, disagreed=0.05))
    assert bad.run(bad.begin(history_polls=0), DAY_MIN).phase is RolloutPhase.HALTED


@pytest.fixture
def fleet_of() -> Callable[..., SimulatedFleet]:
    return lambda rates: fleet(6, rates, devices=5)
