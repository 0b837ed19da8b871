"""The state machine of a roll-out: takes an event and a time, returns the next state and the actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from upwell.fleet.rollout.rollout_state import (
    ON_NEW,
    Action,
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
    WaveState,
)
from upwell.fleet.rollout.wave_gate import (
    DOUBT,
    NO_COUNTS,
    Block,
    Bound,
    Bounds,
    Breach,
    Counts,
    Signal,
    add_control,
    add_treated,
    breach,
    judge_block,
    weighed,
)

Step = tuple[Rollout, tuple[Action, ...]]

_JUST_NOW_S = 60.0
"""At most so long after a poll a device with hours is offered the release; a step follows each poll within seconds."""


class NotPossible(ValueError):
    """The roll-out cannot do that in its current state; the text says why."""


class AlreadyRollingOut(ValueError):
    """A device is in another active roll-out; the text names both."""


def begin(plan: RolloutPlan, members: Mapping[str, Member], others: Iterable[Rollout], now_unix_s: float) -> Rollout:
    """A roll-out in its first wave, of those `members` that do not run its release already.

    Raises `AlreadyRollingOut` if an active roll-out among `others` has one of its devices, `ValueError` without any
    device.
    """
    if not members:
        raise ValueError("no device matches")
    for other in others:
        both = sorted(members.keys() & {name for name, one in other.members.items() if one.stage is not Stage.LEFT})
        if both and not other.is_over:
            more = f" and {len(both) - 1} others" if len(both) > 1 else ""
            raise AlreadyRollingOut(
                f"device {both[0]}{more} in roll-out {other.plan.id}, which is {other.phase.value}; "
                "finish or take it back first"
            )
    lacking = {name: one for name, one in members.items() if (one.leaving or one.former) != plan.release}
    if not lacking:
        raise ValueError(f"every device already runs release {plan.release}")
    lacking = {name: _with_past(one) for name, one in lacking.items()}
    pooled = sum((one.pooled for one in lacking.values()), NO_COUNTS)
    return Rollout(plan, lacking, (WaveState(now_unix_s),), pooled)


def _with_past(member: Member) -> Member:
    """A device that becomes a member, by what it has served before."""
    return replace(member, baseline=member.before, pooled=weighed(member.before))


def step(rollout: Rollout, event: Event, now_unix_s: float) -> Step:
    """The roll-out after `event`, and the actions. Raises `NotPossible` if an operator's request is not allowed now."""
    if isinstance(event, (Paused, Resumed, TakenBack)):
        return _operate(rollout, event)
    if isinstance(event, Joined):
        if event.device in rollout.members or rollout.is_over:
            return rollout, ()
        joined = _with_past(event.member)
        return _with(replace(rollout, pooled=rollout.pooled + joined.pooled), event.device, joined), ()
    if isinstance(event, Left):
        member = rollout.members.get(event.device)
        return (rollout if member is None else _with(rollout, event.device, replace(member, stage=Stage.LEFT))), ()
    if isinstance(event, Reported):
        return _report(rollout, event, now_unix_s)
    assert isinstance(event, Reached)  # noqa: S101  no other is left
    return _pass_time(rollout, event, now_unix_s)


def _operate(rollout: Rollout, event: Paused | Resumed | TakenBack) -> Step:
    if isinstance(event, TakenBack):
        if rollout.phase is RolloutPhase.HALTED:
            raise NotPossible("it is already halted")
        return _halt(rollout, f"taken back by {event.by}", None)
    wanted, needed = (
        (RolloutPhase.PAUSED, RolloutPhase.RUNNING)
        if isinstance(event, Paused)
        else (RolloutPhase.RUNNING, RolloutPhase.PAUSED)
    )
    if rollout.phase is not needed:
        raise NotPossible(f"it is {rollout.phase.value}, not {needed.value}")
    return replace(rollout, phase=wanted), ()


def _report(rollout: Rollout, event: Reported, now_unix_s: float) -> Step:
    member = rollout.members.get(event.device)
    if member is None or member.stage is Stage.LEFT:
        return rollout, ()
    heard = replace(member, reported_unix_s=event.at_unix_s)
    if member.stage is Stage.WAITING:
        heard = replace(heard, told_before=event.refused)
        if event.release == rollout.plan.release != member.former:
            heard = replace(heard, leaving=event.release)  # taken by itself, before it heard of its assignment
        noted = _note_former(rollout, event, heard)
        if _is_leaving(heard, event) and not event.refused:
            return noted, ()  # it goes back first: a device can return to the release before its current one alone
        return _offered(noted, event.device, event.at_unix_s, now_unix_s)
    if member.stage in (Stage.FAILED, Stage.RETURNED):
        is_back = heard.is_back or event.release == member.former
        if member.stage is Stage.RETURNED:  # a failed one has its own problem
            is_stuck = not is_back and event.refused != heard.told_before
            heard = replace(heard, problem=event.refused if is_stuck else "")
        return _with(rollout, event.device, replace(heard, is_back=is_back)), ()
    if member.taken_unix_s is None and event.at_unix_s > (member.offered_unix_s or 0.0):
        heard = replace(heard, taken_unix_s=event.at_unix_s)
    rollout = _with(rollout, event.device, heard)
    if rollout.phase is RolloutPhase.FINISHED:
        return rollout, ()
    has_gone_back = heard.stage is not Stage.OFFERED and event.release not in (None, rollout.plan.release)
    is_refused = event.refused not in ("", heard.told_before)
    if is_refused or has_gone_back:
        return _fail(rollout, event.device, event.refused if is_refused else "the device went back by itself")
    if event.release != rollout.plan.release:
        return rollout, ()
    return _serve(rollout, event)


def _note_former(rollout: Rollout, event: Reported, member: Member) -> Rollout:
    """Record the counts of a device without an offer: its own past, and the present of a control group."""
    if event.release == rollout.plan.release == member.former:
        member = replace(member, stage=Stage.LEFT, problem="the device has the release from elsewhere")
    elif _is_leaving(member, event):
        pass  # that release is taken back from it: it is neither what to go back to nor what to compare with
    elif event.release not in (None, member.former):
        member = replace(member, former=event.release, before=event.delta, baseline=event.delta)
    else:
        rollout = _note_control(rollout, event.delta, member.baseline)
        more = weighed(event.delta, member.pooled)  # not `before`, which begins anew with each release
        rollout = replace(rollout, pooled=rollout.pooled + more)
        member = replace(member, before=member.before + event.delta, pooled=member.pooled + more)
    return _with(rollout, event.device, member)


def _is_leaving(member: Member, event: Reported) -> bool:
    """Whether the device still runs a release that its assignment takes back from it."""
    return event.release is not None and event.release == member.leaving


def _note_control(rollout: Rollout, delta: Counts, own: Counts) -> Rollout:
    """Count a report of a device on the previous release in the blocks of all waves."""
    waves = tuple(
        replace(wave, block=replace(wave.block, control=add_control(wave.block.control, delta, own, rollout.pooled)))
        for wave in rollout.waves
    )
    return replace(rollout, waves=waves)


def _offered(rollout: Rollout, device: str, polled_unix_s: float, now_unix_s: float) -> Step:
    """Offer the release to a device that is due. It polled at `polled_unix_s` and receives the offer by its next poll;
    with hours it must have polled just now, since one that is off now could come back outside them.
    """
    member = rollout.members[device]
    window = rollout.plan.window
    is_turn = rollout.phase is RolloutPhase.RUNNING and member.stage is Stage.WAITING and member.wave <= rollout.wave
    if not is_turn:
        return rollout, ()
    if window is not None and (now_unix_s - polled_unix_s > _JUST_NOW_S or not window.is_open(now_unix_s, member.zone)):
        return rollout, ()
    offered = replace(member, stage=Stage.OFFERED, offered_unix_s=now_unix_s)
    return _with(rollout, device, offered), (OfferRelease(device, rollout.plan.release),)


def _serve(rollout: Rollout, event: Reported) -> Step:
    """A device runs the new release: count its start and what it has served, as part of its wave's block.

    A second report of the device in a block ends it, so that a block covers about the time between two polls.
    """
    plan, member, delta = rollout.plan, rollout.members[event.device], event.delta
    if member.wave < rollout.wave and member.stage is Stage.PASSED:
        rollout = _note_passed(rollout, delta, member.baseline)
    if member.block == rollout.waves[member.wave].block.number and delta != NO_COUNTS:
        rollout = _end_block(rollout, member.wave)
    wave = rollout.waves[member.wave]
    if member.stage is Stage.OFFERED:
        member = replace(member, stage=Stage.STARTED)
    if delta != NO_COUNTS:  # else it has only polled
        member = replace(member, block=wave.block.number)
    member = replace(member, served=member.served + delta, reports=member.reports + (delta.requests > 0))
    if member.stage is Stage.STARTED and _has_shown_enough(plan, member):
        member = replace(member, stage=Stage.PASSED, baseline=member.served)
    treated = add_treated(plan.gate, wave.block.treated, delta, member.before, rollout.pooled)
    wave = replace(wave, block=replace(wave.block, treated=treated))
    after = _with_wave(_with(rollout, event.device, member), member.wave, wave)
    return _judge(after, wave.bounds.items())


def _note_passed(rollout: Rollout, delta: Counts, own: Counts) -> Rollout:
    """Count a report of a device that has passed in the block of the current wave."""
    wave = rollout.waves[-1]
    block = replace(wave.block, passed=add_control(wave.block.passed, delta, own, rollout.pooled))
    return _with_wave(rollout, rollout.wave, replace(wave, block=block))


def _end_block(rollout: Rollout, index: int) -> Rollout:
    """Judge a wave's block, and begin its next one."""
    wave = rollout.waves[index]
    ended = replace(wave, bounds=_bounds_with_block(rollout, index), block=Block(wave.block.number + 1))
    return _with_wave(rollout, index, ended)


def _bounds_with_block(rollout: Rollout, index: int) -> Bounds:
    wave = rollout.waves[index]
    return judge_block(wave.bounds, wave.block, is_current=index == rollout.wave)


def _end_full_blocks(rollout: Rollout) -> Step:
    """Judge the blocks in which every device of their wave that runs the release has reported."""
    missing, running = set[int](), set[int]()
    for one in rollout.members.values():
        if one.stage in (Stage.STARTED, Stage.PASSED):
            running.add(one.wave)
            if one.block != rollout.waves[one.wave].block.number:
                missing.add(one.wave)
    actions: tuple[Action, ...] = ()
    for index in sorted(running - missing):
        rollout = _end_block(rollout, index)
        rollout, more = _judge(rollout, rollout.waves[index].bounds.items())
        actions += more
    return rollout, actions


def _has_shown_enough(plan: RolloutPlan, member: Member) -> bool:
    gate, served = plan.gate, member.served
    needs_audits = gate.audits if member.before.audits > 0 else 0
    return served.requests >= gate.requests and served.audits >= needs_audits and member.reports >= gate.reports


def _fail(rollout: Rollout, device: str, problem: str) -> Step:
    """A device does not run the release as it should: count it, and give the device its former release back."""
    member = replace(rollout.members[device], stage=Stage.FAILED, problem=problem)
    failed = _with(rollout, device, member)
    after, actions = _judge(failed, [("failed", failed.failed)])
    return after, (TakeBack(device, member.former), *actions)


def _pass_time(rollout: Rollout, event: Reached, now_unix_s: float) -> Step:
    """Fail the devices that took the offer and did not start in time, or that started and were then silent for as
    long.
    """
    actions: tuple[Action, ...] = ()
    listened_from_unix_s = event.listened_from_unix_s
    for device, member in rollout.members.items():
        problem = _overdue(rollout.plan, member, listened_from_unix_s, now_unix_s)
        if problem and not rollout.is_over:
            if member.stage is Stage.OFFERED and device in event.said:
                problem += f": {event.said[device]}"
            rollout, more = _fail(rollout, device, problem)
            actions += more
    if not rollout.is_over:
        rollout, more = _end_full_blocks(rollout)
        actions += more
    after, more = _advance(rollout, listened_from_unix_s, now_unix_s)
    return after, actions + more


def _overdue(plan: RolloutPlan, member: Member, listened_from_unix_s: float, now_unix_s: float) -> str:
    patience_s = plan.gate.patience_s
    last_unix_s = {Stage.OFFERED: member.taken_unix_s, Stage.STARTED: member.reported_unix_s}.get(member.stage)
    if last_unix_s is None or now_unix_s - max(last_unix_s, listened_from_unix_s) <= patience_s:
        return ""
    if member.stage is Stage.OFFERED:
        return f"it did not start the release within {patience_s:.0f} s of hearing of it"
    return f"it started the release and has not reported for {patience_s:.0f} s"


def _judge(rollout: Rollout, bounds: Iterable[tuple[Signal, Bound]]) -> Step:
    """Halt the roll-out if one of these bounds is broken."""
    if rollout.is_over:
        return rollout, ()
    for signal, bound in bounds:
        if found := breach(signal, bound, len(rollout.plan.waves)):
            return _halt(rollout, str(found), found)
    return rollout, ()


def _halt(rollout: Rollout, reason: str, found: Breach | None) -> Step:
    back = [
        name for name, member in rollout.members.items() if member.stage in ON_NEW and member.offered_unix_s is not None
    ]
    members = dict(rollout.members) | {name: replace(rollout.members[name], stage=Stage.RETURNED) for name in back}
    halted = replace(rollout, members=members, phase=RolloutPhase.HALTED, breach=found, halted_by=reason)
    return halted, (Halt(reason), *(TakeBack(name, members[name].former) for name in back))


def _advance(rollout: Rollout, listened_from_unix_s: float, now_unix_s: float) -> Step:
    """Open the gate if the wave has shown enough: the next wave begins, or the roll-out is finished."""
    actions: tuple[Action, ...] = ()
    while rollout.phase is RolloutPhase.RUNNING and _is_gate_open(rollout, listened_from_unix_s, now_unix_s):
        if rollout.wave + 1 == len(rollout.plan.waves):
            return _finish(rollout, now_unix_s), (*actions, Finish(rollout.plan.release))
        rollout = replace(rollout, waves=(*rollout.waves, WaveState(now_unix_s)))
        actions += (NextWave(rollout.wave),)
    if not rollout.is_over and (reason := _stuck(rollout)):
        rollout, more = _halt(rollout, reason, None)
        actions += more
    return rollout, actions


def _finish(rollout: Rollout, now_unix_s: float) -> Rollout:
    """Finish it. Devices that were off all the time have the release offered from now on, and can be taken back."""
    off = {name: one for name, one in rollout.members.items() if one.stage is Stage.WAITING}
    offered = {name: replace(one, stage=Stage.OFFERED, offered_unix_s=now_unix_s) for name, one in off.items()}
    return replace(rollout, members={**rollout.members, **offered}, phase=RolloutPhase.FINISHED)


def _stuck(rollout: Rollout) -> str:
    """Why the gate can never open: more than half of the wave's devices that heard of the offer have failed."""
    heard = _heard_of_offer(rollout)
    failed = sum(one.stage is Stage.FAILED for one in heard)
    if 2 * failed <= len(heard):
        return ""
    return f"{failed} of {len(heard)} devices of wave {rollout.wave + 1} failed, but half must pass"


def _is_gate_open(rollout: Rollout, listened_from_unix_s: float, now_unix_s: float) -> bool:
    """Whether at least half of the wave's devices that heard of the offer have passed, and at least one, and no other
    device is worth waiting for. Devices that are off are not waited for, nor those that had their time and have too
    little to do. In doubt the gate stays shut.
    """
    wave, patience_s = rollout.wave, rollout.plan.gate.patience_s
    if wave + 1 == len(rollout.plan.waves) and _wait_for_hours(rollout, listened_from_unix_s, now_unix_s):
        return False  # also if the last wave has no device
    if not any(one.wave == wave and one.stage is not Stage.LEFT for one in rollout.members.values()):
        return True
    if any(bound.evidence >= DOUBT for bound in _bounds_with_block(rollout, wave).values()):
        return False
    heard = _heard_of_offer(rollout)
    passed = sum(one.stage is Stage.PASSED for one in heard)
    is_waiting = any(
        one.stage in (Stage.OFFERED, Stage.STARTED)
        and now_unix_s - max(one.taken_unix_s or now_unix_s, listened_from_unix_s) <= patience_s
        for one in heard
    )
    return passed > 0 and 2 * passed >= len(heard) and not is_waiting


def _wait_for_hours(rollout: Rollout, listened_from_unix_s: float, now_unix_s: float) -> bool:
    """Whether devices that are not silent wait for their hours: once the roll-out is finished, all are offered the
    release at once.
    """
    polled = [one.reported_unix_s for one in rollout.members.values() if one.stage is Stage.WAITING]
    since_unix_s = now_unix_s - rollout.plan.gate.patience_s
    return rollout.plan.window is not None and any(
        one is not None and max(one, listened_from_unix_s) >= since_unix_s for one in polled
    )


def _heard_of_offer(rollout: Rollout) -> list[Member]:
    """The devices of the current wave whose reports show that they know of the release."""
    shown = (Stage.PASSED, Stage.FAILED)
    of_wave = (one for one in rollout.members.values() if one.wave == rollout.wave and one.stage is not Stage.LEFT)
    return [one for one in of_wave if one.taken_unix_s is not None or one.stage in shown]


def _with(rollout: Rollout, device: str, member: Member) -> Rollout:
    return replace(rollout, members={**rollout.members, device: member})


def _with_wave(rollout: Rollout, index: int, wave: WaveState) -> Rollout:
    return replace(rollout, waves=(*rollout.waves[:index], wave, *rollout.waves[index + 1 :]))


def since(earlier: Counts | None, later: Counts) -> Counts:
    """The counts between two reports of one process under one release; all of them if there is none before."""
    if earlier is None:
        return later
    requests, audits = max(0, later.requests - earlier.requests), max(0, later.audits - earlier.audits)
    return Counts(
        requests,
        min(requests, max(0, later.late - earlier.late)),
        min(requests, max(0, later.degraded - earlier.degraded)),
        audits,
        min(audits, max(0, later.disagreed - earlier.disagreed)),
    )
