"""Roll-outs over simulated fleets in virtual time: good releases go through, each kind of bad one stops at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.unit.fleet.simulated_fleet import BAD, FORMER, HEALTHY, NEW, Rates, SimulatedFleet, fleet
from upwell.fleet.rollout.rollout_state import (
    Halt,
    Joined,
    Member,
    NextWave,
    OfferRelease,
    Reached,
    Reported,
    Rollout,
    RolloutPhase,
    RolloutPlan,
    Stage,
    TakeBack,
    TakenBack,
)
from upwell.fleet.rollout.state_machine import begin, step
from upwell.fleet.rollout.wave_gate import (
    DEFAULT_GATE,
    FALSE_HALT_LEVEL,
    NO_COUNTS,
    NO_TALLY,
    SHARES,
    Bound,
    Counts,
    Tallies,
    add_control,
    add_treated,
    past_share,
    raised,
    threshold,
)
from upwell.fleet.rollout.wave_plan import RolloutWindow, parse_waves

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
    assert rollout.members["device-4"].stage is Stage.OFFERED
    assert rollout.members["device-3"].stage in (Stage.OFFERED, Stage.PASSED)
    _, actions = step(rollout, TakenBack("ann"), simulated.now_s)
    assert TakeBack("device-4", FORMER) in actions


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


def test_hours_without_the_service_are_not_the_silence_of_its_devices() -> None:
    simulated, patience_s = fleet(1, HEALTHY, devices=8), DEFAULT_GATE.patience_s
    rollout = simulated.run(simulated.begin(), 4)
    assert [one.stage for one in rollout.members.values() if one.wave == 0] == [Stage.STARTED]
    simulated.now_s += 2 * patience_s
    again_s = simulated.now_s
    rollout = simulated.tell(rollout, Reached(again_s))
    assert rollout.phase is RolloutPhase.RUNNING
    simulated.now_s += patience_s + 1.0
    assert simulated.tell(rollout, Reached(again_s)).phase is RolloutPhase.HALTED


def test_devices_wait_for_their_hours_over_a_break_of_the_service() -> None:
    rollout = within_hours("UTC", "Asia/Tokyo")
    passed = replace(rollout.members["0"], stage=Stage.PASSED, taken_unix_s=NIGHT_S, reported_unix_s=NIGHT_S)
    waiting = replace(rollout.members["1"], reported_unix_s=NIGHT_S)
    rollout, now_s = replace(rollout, members={"0": passed, "1": waiting}), NIGHT_S + 2 * DEFAULT_GATE.patience_s
    after, actions = step(rollout, Reached(now_s), now_s)
    assert (after.phase, actions) == (RolloutPhase.RUNNING, ())
    assert step(rollout, Reached(NIGHT_S), now_s)[0].phase is RolloutPhase.FINISHED


def test_a_device_that_polled_long_ago_is_offered_nothing_within_its_hours() -> None:
    rollout = within_hours("UTC")
    rollout, actions = step(rollout, Reported("0", NIGHT_S - 8 * 3600.0, FORMER), NIGHT_S)
    assert actions == ()
    assert step(rollout, Reported("0", NIGHT_S - 5.0, FORMER), NIGHT_S)[1] == (OfferRelease("0", NEW),)


NIGHT_S = 11 * 86400.0 + 23 * 3600.0
"""23:00 UTC, 8:00 in Tokyo."""


def within_hours(*zones: str) -> Rollout:
    """A roll-out by night to devices in these time zones."""
    plan = RolloutPlan("r", NEW, parse_waves(["100%"]), window=RolloutWindow("22:00-06:00"))
    members = {str(number): Member(0, zone, FORMER) for number, zone in enumerate(zones)}
    return begin(plan, members, (), NIGHT_S - 60.0)


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


def test_why_a_device_could_not_fetch_the_release_is_told_with_its_failure() -> None:
    rollout = begin(RolloutPlan("r", NEW, parse_waves(["100%"])), {"d": Member(0, former=FORMER)}, (), 0.0)
    for at_s in (1.0, 2.0):
        rollout, _ = step(rollout, Reported("d", at_s, FORMER), at_s)
    rollout, _ = step(rollout, Reached(0.0, {"d": "no space left"}), 4000.0)
    assert rollout.members["d"].problem.endswith("of hearing of it: no space left")


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


@pytest.mark.parametrize("waves", [("1", "20%", "100%"), ("6", "100%")])
def test_a_device_is_offered_a_release_within_its_hours_alone(waves: tuple[str, ...]) -> None:
    simulated = fleet(4, HEALTHY, devices=6)
    simulated.waves = waves
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
    assert {one.device for _, one in simulated.offers if isinstance(one, OfferRelease)} == set(members), (
        "none is forced"
    )


@pytest.mark.parametrize("refused", ["", "release 5 is older than release 7, which is installed"])
def test_a_device_that_took_the_release_before_it_heard_of_its_assignment_goes_back_and_has_its_turn(
    refused: str,
) -> None:
    good = Counts(1000, 10)
    members = {name: Member(wave, former=FORMER, before=good) for wave, name in enumerate("ab")}
    rollout = begin(RolloutPlan("r", NEW, parse_waves(["1", "100%"])), members, (), 0.0)
    rollout, actions = step(rollout, Reported("a", 1.0, NEW, Counts(50, 50), refused), 1.0)
    assert rollout.members["a"].before == good, "what it served under it is not its past"
    if not refused:  # else it cannot go back
        assert actions == ()
        rollout, actions = step(rollout, Reported("a", 2.0, FORMER, Counts(5)), 2.0)
    assert actions == (OfferRelease("a", NEW),)
    rollout, _ = step(rollout, Reported("a", 3.0, NEW, Counts(5)), 3.0)
    assert rollout.members["a"].stage is Stage.STARTED


@pytest.mark.parametrize("refused", ["", "release 5 is older than release 6, which is installed"])
def test_a_release_that_was_taken_back_is_nobodys_way_back_and_no_past_to_compare_with(refused: str) -> None:
    good = Counts(1000, 10)
    members = {"d": Member(0, former=FORMER - 1, before=good, leaving=FORMER)}
    rollout = begin(RolloutPlan("r", NEW, parse_waves(["100%"])), members, (), 0.0)
    rollout, actions = step(rollout, Reported("d", 1.0, FORMER, Counts(50, 50), refused), 1.0)
    assert rollout.pooled == rollout.members["d"].before == good
    if not refused:  # else it cannot go back
        assert actions == ()
        rollout, actions = step(rollout, Reported("d", 2.0, FORMER - 1, Counts(5)), 2.0)
    assert actions == (OfferRelease("d", NEW),)
    _, (_, back) = step(rollout, TakenBack("ann"), 3.0)
    assert back == TakeBack("d", FORMER - 1)


def test_a_halt_says_which_bound_with_which_figures() -> None:
    simulated = fleet(0, BAD["slower than its deadline"], devices=6)
    simulated.run(simulated.begin(), DAY_MIN)
    (halt,) = [action for _, action in simulated.offers if isinstance(action, Halt)]
    for word in ("requests answered late", "the previous release has", "is allowed", "to 1"):
        assert word in halt.reason


@pytest.mark.parametrize(
    ("own", "control", "is_about"),
    [
        (Counts(1000, 20), [], 0.02),
        (Counts(0), [], 0.01),
        (Counts(1000, 20), [Counts(30, 0)] * 40, 0.02),
        (Counts(1000, 20), [Counts(30, 9)] * 40, 0.50),  # about forty times the odds
        (Counts(100_000, 0), [Counts(30, 9)] * 40, 0.29),  # 29 points
    ],
)
def test_the_reference_is_the_devices_own_past_and_what_others_show_at_the_same_time(
    own: Counts, control: list[Counts], is_about: float
) -> None:
    pooled = Counts(40_000, 400)
    treated = add_treated(DEFAULT_GATE, {}, Counts(5), own, pooled)["late"]
    assert treated.allowed == treated.expected + DEFAULT_GATE.late.worse_by
    tallies: Tallies = {}
    for delta in control:
        tallies = add_control(tallies, delta, Counts(10_000, 100), pooled)
    assert is_about <= raised(treated.expected, 1, tallies.get("late", NO_TALLY), by_load=True) < is_about + 0.1


def test_the_fewer_reports_there_are_to_compare_with_the_more_is_allowed() -> None:
    one = add_control({}, Counts(20), Counts(1000, 10), Counts(40_000, 400))["late"]
    many = NO_TALLY
    for _ in range(100):
        many = many.add((0, 20), 0.01, 0.0)
    assert raised(0.01, 1, many, by_load=True) == 0.01
    assert 0.03 < raised(0.01, 1, one, by_load=True) < 0.07
    assert raised(0.01, 1, one, by_load=False) == 0.01


def test_without_a_past_a_device_is_held_to_what_may_be_at_most() -> None:
    assert past_share("late", Counts(), Counts(19, 1)) is None
    assert past_share("late", Counts(), Counts(20, 1)) is not None
    tally = add_treated(DEFAULT_GATE, {}, Counts(5), Counts(), Counts())["late"]
    assert (tally.expected, tally.allowed) == (0.10, 0.10)
    assert add_control({}, Counts(5), Counts(), Counts()) == {}


def test_no_device_decides_what_is_usual_however_much_it_says_it_has_served() -> None:
    lies = Counts(10**15, 10**15, audits=10**15, disagreed=10**15)
    honest = Counts(2000, 15, audits=200, disagreed=8)
    members = {f"d{number}": Member(1, former=FORMER, before=honest) for number in range(18)}
    members |= {"liar": Member(1, former=FORMER, before=lies), "new": Member(0, former=FORMER)}
    rollout = begin(RolloutPlan("r", NEW, parse_waves(["1", "100%"])), members, (), 0.0)
    pooled = Counts(19_000, 18 * 8 + 1000, audits=18 * 200 + 1000, disagreed=18 * 8 + 1000)
    assert rollout.pooled == pooled
    rollout, _ = step(rollout, Reported("liar", 1.0, FORMER, lies), 1.0)
    assert rollout.pooled == pooled, "it has had its share"
    for release in (4, 5, 4):
        for delta in (NO_COUNTS, lies):
            rollout, _ = step(rollout, Reported("liar", 1.0, release, delta), 1.0)
    assert rollout.pooled == pooled, "it gets no other by changing its release"
    rollout, _ = step(rollout, Reported("d0", 1.0, FORMER, Counts(50, 5, audits=900, disagreed=9)), 1.0)
    assert rollout.pooled == pooled + Counts(audits=800, disagreed=8)
    rollout, _ = step(rollout, Joined("late", Member(1, former=FORMER, before=lies)), 2.0)
    assert rollout.pooled == pooled + Counts(1000, 1000, audits=1800, disagreed=1008)
    found = past_share("late", NO_COUNTS, pooled)
    assert found is not None
    assert sum(found) < 0.15


def test_a_past_in_which_everything_was_bad_is_a_share_of_one() -> None:
    for total in range(20, 200):
        for own in range(21):
            found = past_share("degraded", Counts(own, 0, own), Counts(total, 0, total))
            assert found == pytest.approx((1.0, 0.0), abs=1e-6)


def test_polls_without_counts_end_no_block() -> None:
    """A device polls more often than it reports: else every block would hold one report alone."""
    simulated = fleet(1, HEALTHY, devices=8)
    simulated.waves = ("4", "100%")
    rollout = simulated.begin()
    while sum(one.stage is Stage.STARTED for one in rollout.members.values()) < 4:
        rollout = simulated.minute(rollout)
    runs = [name for name, one in rollout.members.items() if one.stage is Stage.STARTED]
    number = rollout.waves[0].block.number
    for name in (runs[0], runs[0], runs[1], runs[1]):
        counted = Counts(5) if rollout.members[name].block != number else NO_COUNTS
        rollout, _ = step(rollout, Reported(name, simulated.now_s, NEW, counted), simulated.now_s)
        rollout, _ = step(rollout, Reached(), simulated.now_s)
    assert rollout.waves[0].block.number == number
    assert rollout.waves[0].block.treated["late"].reports == 2


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_crowded_hour_in_any_wave_halts_nothing(stage: int) -> None:
    """It begins with that wave and lasts: where two of a hundred answers were late, seventy are, on every device."""
    crowd_s = [math.inf]
    simulated = fleet(9, HEALTHY, devices=20, load=lambda now_s: 200.0 if now_s >= crowd_s[0] else 1.0)
    rollout = simulated.begin()
    for _ in range(DAY_MIN):
        rollout = simulated.minute(rollout)
        if rollout.wave == stage and crowd_s[0] == math.inf:
            crowd_s[0] = simulated.now_s + 120
        if rollout.is_over:
            break
    assert rollout.phase is RolloutPhase.FINISHED, rollout.halted_by


def crowded(seed: int, new: Rates) -> Rollout:
    """A roll-out over devices that are crowded now and then, at the same time and each by its own measure."""
    spells, crowd = Random(f"spells {seed}"), dict[int, float]()

    def load(now_s: float) -> float:
        minute = int(now_s // 60)
        if minute not in crowd:
            length = spells.randrange(5, 40) if spells.random() < 0.02 else 0
            crowd.update((minute + later, 200.0) for later in range(length))
            crowd.setdefault(minute, 1.0)
        return crowd[minute]

    simulated = fleet(seed, new, devices=25, load=load)
    for device in simulated.devices:
        device.sensitivity = spells.uniform(0.6, 1.4)
    return simulated.run(simulated.begin(), DAY_MIN)


@pytest.mark.parametrize("seed", [1, 41, 81])
def test_crowded_devices_halt_no_good_release(seed: int) -> None:
    assert crowded(seed, HEALTHY).phase is RolloutPhase.FINISHED


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crowded_devices_hardly_ever_halt_a_good_release_and_hide_no_bad_one() -> None:
    halted = [seed for seed in range(30_000, 30_200) if crowded(seed, HEALTHY).phase is RolloutPhase.HALTED]
    assert len(halted) <= 5, halted
    for seed in range(40_000, 40_050):
        rollout = crowded(seed, BAD["slower than its deadline"])
        assert rollout.phase is RolloutPhase.HALTED
        assert rollout.wave <= 1


@pytest.mark.parametrize(("late", "within_min"), [(0.9, 12), (0.5, 25), (0.3, 45)])
def test_a_late_release_is_halted_within_minutes(late: float, within_min: int) -> None:
    """Minutes from the offer to the halt, by one canary that polls each minute, in 18 of 20 fleets."""
    took_min = []
    for seed in range(20):
        simulated = fleet(seed, replace(HEALTHY, late=late), devices=12)
        simulated.run(simulated.begin(), DAY_MIN)
        times = {type(action): at_s for at_s, action in reversed(simulated.offers)}
        took_min.append((times.get(Halt, math.inf) - times[OfferRelease]) / 60)
    assert sorted(took_min)[17] <= within_min, sorted(took_min)


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
