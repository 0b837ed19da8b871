"""Looks for new releases as for new versions of a model, within the choice made."""

from __future__ import annotations

import time
from collections.abc import Callable

from upwell.edge.release.fleet_choice import KeptFleetChoice
from upwell.edge.release.release_source import ReleaseSource
from upwell.edge.updates.sources.base import Progress
from upwell.edge.updates.update_follower import Activate, Followed, Outcome, UpdateFollower
from upwell.edge.updates.version_store import VersionStore

GoBack = Callable[[int], bool]
"""Goes back to the previous release, by its sequence; returns False if that is not allowed."""


class ReleaseFollower(UpdateFollower):
    """An `UpdateFollower` within the choice made. `go_back` and `look_beside` are set once there is an agent."""

    def __init__(
        self, store: VersionStore, section: Followed, activate: Activate, source: ReleaseSource, choice: KeptFleetChoice
    ) -> None:
        super().__init__(store, section, activate, source)
        self._choice = choice
        self.go_back: GoBack = lambda _: False
        self.look_beside: Callable[[], None] = lambda: None

    def look(self, progress: Progress | None = None) -> Outcome:
        """Look for a release unless the choice says to wait; or go back if that was chosen."""
        self.look_beside()
        choice, current = self._choice.now, self.store.state.current
        chosen = choice.sequence
        is_early = choice.not_before_unix_s is not None and time.time() < choice.not_before_unix_s
        if is_early or (chosen == 0 and current == 0):
            return self._done("nothing_new")
        if chosen is not None and chosen < current and chosen == self.store.state.previous and self.go_back(chosen):
            return self._done("nothing_new")
        return super().look(progress)
