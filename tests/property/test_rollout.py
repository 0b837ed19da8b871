"""What holds of a roll-out whatever happens, in whatever order and whenever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.fleet.rollout.rollout_state import (
    Event,
    Finish,
    Halt,
    Joined,
    Left,
    Member,
    NextWave,
    OfferRelease,
    Paused,
    Reached,
    Reported,
    Resumed,
    Rollout,
    RolloutPhase,
    RolloutPlan,
    Stage,
    TakeBack,
    TakenBack,
)
from upwell.fleet.rollout.state_machine import AlreadyRollingOut, NotPossible, begin, since, step
from upwell.fleet.rollout.wave_gate import Counts, GateSettings
from upwell.fleet.rollout.wave_plan import RolloutDevice, RolloutWindow, deal, parse_waves

FORMER, NEW, OTHER = 6, 7, 9
DEVICES = [f"d{number}" for number in range(6)]
ORDER = list(Stage)

names = st.sampled_from([*DEVICES, "late", "stranger"])
counts = st.builds(
    lambda n, a, late, degraded, disagreed: Counts(n, min(n, late), min(n, degraded), a, min(a, disagreed)),
    st.integers(0, 60), st.integers(0, 10), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3),
)  # fmt: skip
happenings = st.one_of(
    st.tuples(
        st.just("report"), names, st.sampled_from([None, FORMER, NEW, NEW, NEW, OTHER]), counts,
        st.sampled_from(["", "", "", "", "", "it did not start"]),
    ),
    st.sampled_from([("tick",), ("pause",), ("resume",), ("back",), ("join",)]),
    st.tuples(st.just("leave"), names),
)  # fmt: skip
steps = st.lists(st.tuples(happenings, st.sampled_from([0.0, 1.0, 60.0, 4000.0])), max_size=80)


def rollout(gate: GateSettings) -> Rollout:
    waves = parse_waves(["1", "50%", "100%"])
    dealt = deal("r", waves, [RolloutDevice(name) for name in DEVICES])
    members = {name: Member(wave, former=FORMER) for name, wave in dealt.items()}
    return begin(RolloutPlan("r", NEW, waves, gate), members, (), 0.0)


def event_of(what: tuple, now_s: float) -> Event:  # type: ignore[type-arg]  # of several shapes, as drawn
    kind = what[0]
    if kind == "report":
        _, device, release, delta, refused = what
        return Reported(device, now_s, release, delta, refused)
    if kind == "leave":
        return Left(what[1])
    others: dict[str, Event] = {
        "tick": Reached(), "pause": Paused(), "resume": Resumed(), "back": TakenBack("ada"),
        "join": Joined("late", Member(2, former=FORMER)),
    }  # fmt: skip
    return others[kind]


@settings(deadline=None, max_examples=examples(300))
@given(steps, st.integers(1, 100))
def test_whatever_happens_no_device_has_two_releases_and_nothing_goes_backwards(
    told: list[tuple[tuple, float]],  # type: ignore[type-arg]  # of several shapes, as drawn
    requests: int,
) -> None:
    state = rollout(GateSettings(requests=requests, audits=2, reports=1))
    targets: dict[str, int | None] = {}
    now_s = 0.0
    for what, later_s in told:
        now_s += later_s
        before = state
        try:
            state, actions = step(state, event_of(what, now_s), now_s)
        except NotPossible:
            continue
        for action in actions:
            if isinstance(action, OfferRelease):
                assert before.phase is RolloutPhase.RUNNING
                assert action.device not in targets, "offered twice"
                assert action.release == NEW
                targets[action.device] = NEW
            elif isinstance(action, Finish):  # every device that waits has it, too
                targets |= {name: NEW for name, one in before.members.items() if one.stage is Stage.WAITING}
            elif isinstance(action, TakeBack):
                assert targets[action.device] == NEW, "taken back what was not offered"
                targets[action.device] = action.former
        assert {name: state.target(name) for name in targets if state.members[name].stage is not Stage.LEFT} == {
            name: target for name, target in targets.items() if state.members[name].stage is not Stage.LEFT
        }
        check_order(before, state, actions)


def check_order(before: Rollout, after: Rollout, actions: tuple[object, ...]) -> None:
    assert after.wave >= before.wave
    assert sum(isinstance(one, NextWave) for one in actions) == after.wave - before.wave
    if before.is_over:
        assert after.phase in (before.phase, RolloutPhase.HALTED)
        assert not any(isinstance(one, (OfferRelease, NextWave, Finish)) for one in actions)
    assert (after.phase is RolloutPhase.HALTED and before.phase is not RolloutPhase.HALTED) == any(
        isinstance(one, Halt) for one in actions
    )
    for name, member in before.members.items():
        now = after.members[name]
        assert ORDER.index(now.stage) >= ORDER.index(member.stage)
        assert now.wave == member.wave
        if now.stage in (Stage.OFFERED, Stage.STARTED, Stage.PASSED):
            assert now.wave <= after.wave or after.phase is RolloutPhase.FINISHED
            assert after.phase is not RolloutPhase.HALTED


@settings(deadline=None, max_examples=examples(100))
@given(steps)
def test_a_halted_rollout_offers_nothing_new(told: list[tuple[tuple, float]]) -> None:  # type: ignore[type-arg]
    state, _ = step(rollout(GateSettings(requests=1, reports=1)), Reported(DEVICES[0], 0.0, FORMER), 0.0)
    state, _ = step(state, TakenBack("ada"), 0.0)
    now_s = 0.0
    for what, later_s in told:
        now_s += later_s
        try:
            state, actions = step(state, event_of(what, now_s), now_s)
        except NotPossible:
            continue
        assert actions == ()
        assert all(state.target(name) in (None, FORMER, OTHER) for name in DEVICES)


def test_two_rollouts_that_touch_one_device_are_refused() -> None:
    first = rollout(GateSettings())
    members = {"d3": Member(0, former=FORMER), "other": Member(0, former=FORMER)}
    plan = RolloutPlan("second", NEW, parse_waves(["100%"]))
    with pytest.raises(AlreadyRollingOut, match="device d3 in roll-out r, which is running; finish"):
        begin(plan, members, [first], 0.0)
    halted, _ = step(first, TakenBack("ada"), 0.0)
    assert begin(plan, members, [halted], 0.0).members.keys() == members.keys()


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from(DEVICES), unique=True, min_size=1), st.integers(1, 8), st.integers(1, 99))
def test_every_device_has_one_wave_and_waves_reach_what_they_say(names: list[str], count: int, share: int) -> None:
    waves = parse_waves([str(count), f"{share}%", "site=lab", "100%"])
    candidates = [RolloutDevice(name, {"site": "lab"} if name == "d1" else {}) for name in names]
    dealt = deal("r", waves, candidates)
    assert sorted(dealt) == sorted(names)
    first = sum(wave == 0 for wave in dealt.values())
    assert first == min(count, len(names))
    assert sum(wave <= 1 for wave in dealt.values()) == max(first, -(-share * len(names) // 100))
    assert dealt.get("d1", 0) <= 2


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(0, 2**31), st.sampled_from(["UTC", "Asia/Tokyo", "America/New_York", "nowhere/else", ""]))
def test_a_span_and_the_one_that_is_left_of_the_day_are_never_both_open(unix_s: int, zone: str) -> None:
    assert RolloutWindow("22:00-06:00").is_open(unix_s, zone) != RolloutWindow("06:00-22:00").is_open(unix_s, zone)


@given(counts, counts)
def test_what_was_counted_since_is_what_is_left(earlier: Counts, delta: Counts) -> None:
    assert since(earlier, earlier + delta) == delta
    assert since(None, delta) == delta
