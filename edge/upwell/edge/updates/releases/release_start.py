"""Releases on a device: the one at the start, and the follower of new ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Trust
from upwell.edge.bundle.open_bundle import NO_TRUST
from upwell.edge.updates.model_versions.model_start import ModelStart
from upwell.edge.updates.model_versions.model_switching import ModelSwitching, Prepare
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.fleet_choice import KeptFleetChoice
from upwell.edge.updates.releases.release_config import ReleaseSection
from upwell.edge.updates.releases.release_control import ReleaseControl
from upwell.edge.updates.releases.release_follower import ReleaseFollower
from upwell.edge.updates.releases.release_source import ReleaseSource, home_of
from upwell.edge.updates.releases.release_switching import (
    ReleaseAgent,
    ReleaseSurroundings,
    ReleaseSwitching,
    opened,
)
from upwell.edge.updates.releases.shadow_follower import ShadowFollower
from upwell.edge.updates.releases.stored_release import StoredRelease
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.update_follower import circumstances_of
from upwell.edge.updates.version_store import VersionStore
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.routing.policy.policy import Policy

FOLDER_NAME = "release"
UNITS_NAME = "units"
CHOICE_NAME = "choice.json"

_log = logging.getLogger(__name__)


class ReleaseStart:
    """The installed release, and the follower of new ones.

    `local` is the policy of agent.yaml, `has_factory` whether agent.yaml names something to serve for every model, and
    `configured` all that it says: a refused release is tried again once that has changed.
    Raises `ConfigError`, also if nothing is installed and the first release cannot be fetched.
    """

    def __init__(
        self,
        section: ReleaseSection,
        state_dir: Path,
        trust: Trust,
        local: Policy,
        *,
        has_factory: bool,
        configured: str,
    ) -> None:
        folder = state_dir / FOLDER_NAME
        keeps = local if section.floor.policy is None else load_yaml(section.floor.policy, Policy)
        floor = DeviceFloor(keeps, section.floor.endpoints, section.floor.folders, home_of(section.source))
        self._parts = ReleaseSurroundings(trust, floor, local, {})
        self._section = section
        factory = Bundle(folder) if has_factory else None
        try:
            self.store = VersionStore(state_dir, "the release", NO_TRUST, factory, folder / UNITS_NAME)
        except FetchFailed as error:
            raise ConfigError.at(None, str(error), "release") from None
        self._choice = KeptFleetChoice(folder / CHOICE_NAME)
        with ExtraMissing.on_import("release", "releases need the package PACKAGE", "release"):
            self._source = ReleaseSource(section, folder, self.store, self._choice, floor)
        self._activate: Callable[[Bundle], Callable[[], None]] = self._take_first
        circumstances = json.dumps([circumstances_of(trust), keeps.digest, local.digest, configured])
        self.follower = ReleaseFollower(self.store, section, self._take, self._source, self._choice, circumstances)
        self._serves = 0
        self.store.begin()
        if self.store.open() is None:
            self._fetch_first()

    def candidates(self) -> Iterator[tuple[int, StoredRelease | None, Policy]]:
        """The candidates for serving, newest first: sequence, release, policy; 0 and None for what agent.yaml names."""
        before: int | None = None
        while (bundle := self.store.open(before)) is not None:
            before = self._serves = bundle.version
            if bundle.version == 0:
                yield 0, None, self._parts.local
                return
            try:
                stored, policy = opened(bundle, self._parts)
            except BundleRefused as error:
                _log.error("release %d is not used: %s", bundle.version, error)
                continue
            yield bundle.version, stored, policy

    def follow(
        self, agent: ReleaseAgent, starts: Mapping[str, ModelStart], prepare: Prepare
    ) -> tuple[ReleaseControl, ReleaseSwitching]:
        """Let releases replace what the agent serves; `prepare` times their models. A trial interrupted by a restart
        continues.
        """
        parts = replace(self._parts, load={name: start.load_again for name, start in starts.items()})
        switching = ReleaseSwitching(agent, ModelSwitching(agent, prepare), self.store, parts)
        self._activate = switching.activate
        self.follower.go_back, self.follower.step_aside = switching.go_back, switching.step_aside
        state = self.store.state
        if self._serves != state.current:
            self.store.stands_in = self._serves  # the next start tries the current one again
        elif state.is_on_trial:
            bundle = self.store.open(state.current)
            try:
                former = None if bundle is None else switching.load_former(bundle)
            except BundleRefused as error:
                _log.error("no earlier release to return to: %s", error)
                former = None
            if former is None:
                self.store.prove(state.current)
            else:
                switching.resume(state.current, former)
        beside = ShadowFollower(agent.shadow, self._source, self.store, parts, self._choice)
        self.follower.look_beside = beside.look
        return ReleaseControl(self.follower, self._source, self._choice, switching), switching

    def _take(self, bundle: Bundle) -> Callable[[], None]:
        return self._activate(bundle)

    def _take_first(self, bundle: Bundle) -> Callable[[], None]:
        """Do nothing: the agent under construction loads the first release itself."""
        opened(bundle, self._parts)
        return lambda: None

    def _fetch_first(self) -> None:
        _log.info("fetching the first release from %s", self._section.place)
        try:
            self.follower.look()
            problem = self.follower.status.message or self.follower.status.failure
        except FetchFailed as error:
            problem = str(error)
        if self.store.open() is None:
            text = f"nothing is installed yet, and the first release cannot be fetched: {problem}"
            raise ConfigError.at(None, text, "release")
