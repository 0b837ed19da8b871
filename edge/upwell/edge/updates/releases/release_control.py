"""The interface to a device's releases for the fleet code, health and metrics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.open_bundle import NO_TRUST
from upwell.edge.updates.releases.fleet_choice import FleetChoice, KeptFleetChoice
from upwell.edge.updates.releases.release_follower import ReleaseFollower
from upwell.edge.updates.releases.release_source import ReleaseSource
from upwell.edge.updates.releases.release_switching import ReleaseCompanion, ReleaseSwitching
from upwell.edge.updates.releases.stored_release import StoredRelease, open_release
from upwell.edge.updates.update_follower import UpdatePoller

Phase = Literal["serving", "fetching", "trial", "refused", "rolled_back"]


@dataclass(frozen=True)
class ReleaseStatus:
    """The state of this device's releases.

    `sequence` and `digest` (`sha256:…` of the signed document) are those of the release served, 0 and empty for what
    agent.yaml names; `former` is the release to go back to. `refused`: the last offer is not served, for the `reason`
    given; `rolled_back`: it was served and rolled back. In any phase an unreachable repository can be the `reason`.
    """

    sequence: int
    digest: str
    former: int
    phase: Phase
    reason: str
    since_unix_s: float


class ReleaseControl:
    """Restricts the releases that the device installs, and reports its state. Thread-safe.

    It can never make the device run unsigned content, loosen its floor, or go back further than to the previous
    release, and that only within the time that the signed release allows.
    """

    def __init__(
        self, follower: ReleaseFollower, source: ReleaseSource, choice: KeptFleetChoice, switching: ReleaseSwitching
    ) -> None:
        self._follower = follower
        self._switching = switching
        self._store = follower.store
        self._source = source
        self._choice = choice
        self._lock = threading.Lock()
        self._last: tuple[object, ...] = ()
        self._since_unix_s = time.time()
        self._known: tuple[int, StoredRelease | None] = (0, None)
        self._updater = UpdatePoller([follower])
        chosen = choice.now
        if self._store.state.trying or chosen.shadow or chosen.sequence not in (None, self._store.state.current):
            self._updater.look_now()  # reports at once on a choice made before the restart

    def choose(self, sequence: int | None, not_before_unix_s: float | None = None, shadow: int | None = None) -> None:
        """Install only this release (None: the newest), and not before that time. `shadow` runs in shadow.

        The choice survives restarts and takes effect soon; `status` reports the result. An older release is refused,
        except the previous one (0 for what agent.yaml names): the device goes back to that while the installed one is
        on trial, or as long after its installation as its signed document allows.
        """
        if self._choice.keep(FleetChoice(sequence=sequence, not_before_unix_s=not_before_unix_s, shadow=shadow)):
            self._updater.look_now()

    def status(self) -> ReleaseStatus:
        """The present state."""
        state, about = self._store.state, self._follower.status
        phase: Phase = "serving"
        reason = about.message or about.failure
        if self._source.is_fetching:
            phase = "fetching"
        elif state.current and self._store.served != state.current:
            phase, reason = "refused", f"release {state.current} does not load here; the log of the agent says why"
        elif state.is_on_trial:
            phase = "trial"
        elif about.refusal is Refusal.BLOCKLISTED:
            phase = "rolled_back"
        elif about.refusal is not None:
            phase = "refused"
        with self._lock:
            now = (self._store.served, phase, reason)
            if now != self._last:
                self._last, self._since_unix_s = now, time.time()
            since_unix_s = self._since_unix_s
        stored = self.installed
        digest = "" if stored is None else stored.digest
        return ReleaseStatus(self._store.served, digest, state.previous, phase, reason, since_unix_s)

    @property
    def notice(self) -> str:
        """What this device cannot check or has lost; empty if nothing."""
        return "; ".join(filter(None, (self._source.notice, self._store.notice)))

    @property
    def installed(self) -> StoredRelease | None:
        """The installed release, as served; None if there is none or it is damaged, which the next start reports."""
        sequence = self._store.served
        if sequence != self._known[0]:
            try:
                self._known = sequence, open_release(self._store.folder / str(sequence), NO_TRUST) if sequence else None
            except (BundleRefused, OSError):
                return None
        return self._known[1]

    def run_pipelines(self, companion: ReleaseCompanion) -> None:
        """Let `companion` run the pipelines of each release, beginning with the installed one."""
        self._switching.attach(companion, self.installed)

    def close(self) -> None:
        """Stop looking for releases."""
        self._updater.close()
