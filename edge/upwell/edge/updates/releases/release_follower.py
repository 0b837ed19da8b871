"""Follows new releases within the fleet's choice: when to look, wait, or go back."""

from __future__ import annotations

import time
from collections.abc import Callable

from upwell.edge.bundle.bundle import Bundle, BundleRefused
from upwell.edge.updates.releases.fleet_choice import KeptFleetChoice
from upwell.edge.updates.releases.release_source import ReleaseSource
from upwell.edge.updates.sources.base import Progress
from upwell.edge.updates.update_follower import Activate, Followed, Outcome, UpdateFollower
from upwell.edge.updates.version_state import Look
from upwell.edge.updates.version_store import VersionStore

GoBack = Callable[[int], bool]
"""Goes back to the previous release, by its sequence; returns False if that is not allowed. Raises
`BundleRefused` if one of the two releases cannot be used."""


class ReleaseFollower(UpdateFollower):
    """An `UpdateFollower` within the choice made. `go_back`, `step_aside` and `look_beside` are set once there is an
    agent.
    """

    def __init__(
        self,
        store: VersionStore,
        section: Followed,
        activate: Activate,
        source: ReleaseSource,
        choice: KeptFleetChoice,
        circumstances: str,
    ) -> None:
        def activate_chosen(bundle: Bundle) -> Callable[[], None]:
            serve = activate(bundle)  # that may take minutes
            source.check_choice(bundle.version)
            return serve

        super().__init__(store, section, activate_chosen, source, circumstances)
        self._choice = choice
        self.go_back: GoBack = lambda _: False
        self.step_aside: Callable[[], None] = lambda: None
        self.look_beside: Callable[[], None] = lambda: None

    def look(self, progress: Progress | None = None) -> Outcome:
        """Look for a release unless the choice says to wait; or go back if that was chosen."""
        self.look_beside()
        choice, current = self._choice.now, self.store.state.current
        chosen = choice.sequence
        is_early = choice.not_before_unix_s is not None and time.time() < choice.not_before_unix_s
        if is_early or (chosen == 0 and current == 0):
            return self._done("nothing_new")
        if chosen is not None and chosen < current:
            self._unnamed = Look()
            try:
                if chosen == self.store.state.previous and self.go_back(chosen):
                    return self._done("nothing_new")
                if chosen and self._choice.is_first:
                    self.step_aside()
            except BundleRefused as error:
                return self._refused("", error)
        return super().look(progress)
