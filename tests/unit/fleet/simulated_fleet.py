"""A fleet in virtual time: devices that poll, serve and now and then have a bad minute, and roll-outs over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from upwell.fleet.rollout.rollout_state import (
    Action,
    Event,
    Member,
    OfferRelease,
    Reached,
    Reported,
    Rollout,
    RolloutPlan,
    TakeBack,
)
from upwell.fleet.rollout.state_machine import begin, step
from upwell.fleet.rollout.wave_gate import DEFAULT_GATE, Counts, GateSettings
from upwell.fleet.rollout.wave_plan import RolloutDevice, RolloutWindow, deal, parse_waves
from upwell.shared.routing.estimators.anytime_bets import with_odds

FORMER, NEW = 6, 7
POLL_S = 60.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does under a release: shares of its requests that are late or degraded, and of its audits that
    disagree. `start` is what happens at the start of it: ok, crashes, or silence."""

    late: float = 0.01
    degraded: float = 0.02
    disagreed: float = 0.04
    start: str = "ok"


@dataclass(slots=True)
class SimulatedDevice:
    """One device. In a burst, which a minute is with a chance of `burst`, a third more of its requests is late. `load`
    to the power of `sensitivity` multiplies the odds of being late or degraded."""

    name: str
    random: np.random.Generator
    rates: Mapping[int, Rates]
    requests_per_min: float = 30.0
    audit_share: float = 0.1
    burst: float = 0.0
    sensitivity: float = 1.0
    is_off: Callable[[float], bool] = lambda _: False
    target: int = FORMER
    running: int = FORMER
    refused: str = ""
    is_silent: bool = False

    def poll(self, now_s: float, load: float) -> Reported | None:
        """What it reports, and then what it hears; None while it is off."""
        if self.is_off(now_s) or self.is_silent:
            return None
        reported = Reported(self.name, now_s, self.running, self.serve(load), self.refused)
        if self.target != self.running and not (self.refused and self.target == NEW):
            self.change()
        return reported

    def change(self) -> None:
        start = self.rates[self.target].start
        if start == "crashes":
            self.refused = "release 7 did not start: the process ended with status 139"
        elif start == "silence":
            self.is_silent = True
        else:
            self.running = self.target

    def serve(self, load: float) -> Counts:
        rates, random, load = self.rates[self.running], self.random, load**self.sensitivity
        requests = int(random.poisson(self.requests_per_min))
        late = with_odds(rates.late, load) + (0.33 if random.random() < self.burst else 0.0)
        audits = self._drawn(requests, self.audit_share)
        return Counts(
            requests, self._drawn(requests, late), self._drawn(requests, with_odds(rates.degraded, load)),
            audits, self._drawn(audits, rates.disagreed),
        )  # fmt: skip

    def _drawn(self, n: int, share: float) -> int:
        return int(self.random.binomial(n, min(share, 1.0)))


@dataclass(slots=True)
class SimulatedFleet:
    """Devices, and what the service asked of them."""

    devices: list[SimulatedDevice]
    waves: tuple[str, ...] = ("1", "20%", "100%")
    gate: GateSettings = DEFAULT_GATE
    window: RolloutWindow | None = None
    load: Callable[[float], float] = lambda _: 1.0
    now_s: float = 1_000_000.0
    offers: list[tuple[float, Action]] = field(default_factory=list)

    def begin(self, history_polls: int = 60) -> Rollout:
        """Let every device serve for an hour under its former release, and begin the roll-out."""
        before = {one.name: sum((one.serve(1.0) for _ in range(history_polls)), Counts()) for one in self.devices}
        waves = parse_waves(self.waves)
        candidates = [RolloutDevice(one.name, is_reachable=not one.is_off(self.now_s)) for one in self.devices]
        dealt = deal("r", waves, candidates)
        members = {name: Member(dealt[name], former=FORMER, before=counts) for name, counts in before.items()}
        return begin(RolloutPlan("r", NEW, waves, self.gate, self.window), members, (), self.now_s)

    def run(self, rollout: Rollout, minutes: int) -> Rollout:
        """Poll every device once a minute until the roll-out is over, or the time is."""
        for _ in range(minutes):
            rollout = self.minute(rollout)
            if rollout.is_over:
                break
        return rollout

    def minute(self, rollout: Rollout) -> Rollout:
        for number, device in enumerate(self.devices):
            reported = device.poll(self.now_s + number * 1e-3, self.load(self.now_s))
            if reported is not None:
                rollout = self.tell(rollout, reported)
        self.now_s += POLL_S
        return self.tell(rollout, Reached())

    def tell(self, rollout: Rollout, event: Event) -> Rollout:
        rollout, actions = step(rollout, event, self.now_s)
        by_name = {one.name: one for one in self.devices}
        for action in actions:
            self.offers.append((self.now_s, action))
            if isinstance(action, OfferRelease):
                by_name[action.device].target = action.release
            elif isinstance(action, TakeBack) and action.former is not None:
                by_name[action.device].target = action.former
        return rollout

    def until_back(self, rollout: Rollout) -> Rollout:
        """Poll on until each device that was offered the release is known to run its former one."""
        for _ in range(10):
            rollout = self.minute(rollout)
        return rollout


def fleet(seed: int, new: Rates, devices: int = 40, **more: object) -> SimulatedFleet:
    """Devices of several kinds: good and bad links, more and less to do, and some with bursts."""
    random = Random(seed)
    made = []
    for number in range(devices):
        late = random.choice((0.002, 0.01, 0.01, 0.05, 0.15))
        degraded = random.choice((0.0, 0.02, 0.02, 0.1, 0.3))
        disagreed = random.choice((0.02, 0.04, 0.08))
        former = Rates(late, degraded, disagreed)
        worse = replace(
            new,
            late=late if math.isnan(new.late) else new.late,
            degraded=degraded if math.isnan(new.degraded) else new.degraded,
            disagreed=disagreed if math.isnan(new.disagreed) else new.disagreed,
        )
        made.append(
            SimulatedDevice(
                f"device-{number}", np.random.default_rng((seed, number)), {FORMER: former, NEW: worse},
                requests_per_min=random.choice((5.0, 20.0, 60.0)), burst=random.choice((0.0, 0.0, 0.03)),
            )
        )  # fmt: skip
    result = SimulatedFleet(made)
    for name, value in more.items():
        setattr(result, name, value)
    return result


HEALTHY = Rates(math.nan, math.nan, math.nan)
BAD: Mapping[str, Rates] = {
    "slower than its deadline": replace(HEALTHY, late=0.9),
    "wrong on hard cases": replace(HEALTHY, disagreed=0.5),
    "crashes at start": replace(HEALTHY, start="crashes"),
    "never reports": replace(HEALTHY, start="silence"),
}
