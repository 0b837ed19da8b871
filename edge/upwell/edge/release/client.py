"""What others may ask of a device's releases, and hear of them: the fleet's agent, health and metrics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from upwell.edge.bundle.base import BundleRefused, Refusal
from upwell.edge.bundle.verify import NO_TRUST
from upwell.edge.release.choice import KeptChoice, ReleaseChoice
from upwell.edge.release.follower import ReleaseFollower
from upwell.edge.release.source import ReleaseSource
from upwell.edge.release.switching import ReleaseCompanion, UnitSwitching
from upwell.edge.release.unit import ReleaseUnit, open_unit
from upwell.edge.updates.updater import Updater

Phase = Literal["serving", "fetching", "trial", "refused", "rolled_back"]


@dataclass(frozen=True)
class ReleaseStatus:
    """How this device's releases fare.

    `sequence` and `digest` (`sha256:…` of the signed document) are of what is installed, 0 and empty for what
    agent.yaml names; `former` is what it would go back to. `refused`: the last offer is not served, and `reason` says
    why; `rolled_back`: it was served and left. A repository that cannot be reached is a `reason` in any phase.
    """

    sequence: int
    digest: str
    former: int
    phase: Phase
    reason: str
    since_unix_s: float


class ReleaseClient:
    """Restricts what the device takes, and says how that fares. Safe to use from many threads.

    Nothing here can make it run what is not signed, go below its floor, or go further back than to the release before,
    and that only within the time that the signed release itself allows.
    """

    def __init__(
        self, follower: ReleaseFollower, source: ReleaseSource, choice: KeptChoice, units: UnitSwitching
    ) -> None:
        self._follower = follower
        self._units = units
        self._store = follower.store
        self._source = source
        self._choice = choice
        self._lock = threading.Lock()
        self._last: tuple[object, ...] = ()
        self._since_unix_s = time.time()
        self._known: tuple[int, ReleaseUnit | None] = (0, None)
        self._updater = Updater([follower])
        chosen = choice.now
        if self._store.state.trying or chosen.shadow or chosen.sequence not in (None, self._store.state.current):
            self._updater.look_now()  # what the last process was told, or died of: whoever chose waits for word of it

    def choose(self, sequence: int | None, not_before_unix_s: float | None = None, shadow: int | None = None) -> None:
        """Take this release and no other, None for the newest; what comes new, not before then. `shadow` runs beside.

        It is kept over restarts, takes effect soon, and `status` says what came of it. An older release is refused,
        but for the one before the installed one (0 for what agent.yaml names): the device goes back to that while the
        installed one is on trial, or for so long after it was installed as its signed document allows.
        """
        if self._choice.keep(ReleaseChoice(sequence=sequence, not_before_unix_s=not_before_unix_s, shadow=shadow)):
            self._updater.look_now()

    def status(self) -> ReleaseStatus:
        """How it fares now."""
        state, about = self._store.state, self._follower.status
        phase: Phase = "serving"
        reason = about.message or about.failure
        if self._source.is_fetching:
            phase = "fetching"
        elif state.is_on_trial:
            phase = "trial"
        elif about.refusal is Refusal.BLOCKLISTED:
            phase = "rolled_back"
        elif about.refusal is not None:
            phase = "refused"
        with self._lock:
            now = (state.current, phase, reason)
            if now != self._last:
                self._last, self._since_unix_s = now, time.time()
            since_unix_s = self._since_unix_s
        unit = self.installed
        digest = "" if unit is None else unit.digest
        return ReleaseStatus(state.current, digest, state.previous, phase, reason, since_unix_s)

    @property
    def notice(self) -> str:
        """What this device cannot tell, or lost; empty if nothing."""
        return "; ".join(filter(None, (self._source.notice, self._store.notice)))

    @property
    def installed(self) -> ReleaseUnit | None:
        """The installed release; None where there is none, or where it is damaged, which the next start will say."""
        sequence = self._store.state.current
        if sequence != self._known[0]:
            try:
                self._known = sequence, open_unit(self._store.folder / str(sequence), NO_TRUST) if sequence else None
            except (BundleRefused, OSError):
                return None
        return self._known[1]

    def run_pipelines(self, companion: ReleaseCompanion) -> None:
        """Have this run the pipelines of each release, beginning with those of the installed one, if it has any."""
        self._units.attach(companion, self.installed)

    def close(self) -> None:
        """Look for nothing more."""
        self._updater.close()
