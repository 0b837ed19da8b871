"""Switching a serving agent to a release between two requests, its trial, and going back."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.models.trial_and_rollback import DURATION_S
from upwell.edge.policy.policy_file import check_policy
from upwell.edge.updates.model_versions.model_switching import ModelSwitching, ServingAgent, in_background
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.stored_release import StoredRelease, open_release
from upwell.edge.updates.version_store import GONE_BACK, VersionStore
from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.policy import Policy

_log = logging.getLogger(__name__)


class RunsBeside(Protocol):
    """Shadow models: they answer the same requests, and the answers are only recorded."""

    @property
    def release(self) -> int:
        """Their release; 0 for none."""

    def begin(self, release: int, edges: Mapping[str, EdgeModel], problem: str = "") -> None:
        """Run these models, or report why none runs."""

    def end(self) -> None:
        """Stop the shadow models."""


class ReleaseAgent(ServingAgent, Protocol):
    """The part of the agent needed for switching a release."""

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The models served now."""

    @property
    def shadow(self) -> RunsBeside:
        """The shadow release."""

    def replace_release(self, edges: Mapping[str, EdgeModel | None], policy: Policy) -> None:
        """Serve these edge sides with this policy from the next request on; for None only the cloud answers."""


class ReleaseCompanion(Protocol):
    """Runs the pipelines of a release around the agent."""

    def check(self, stored: StoredRelease) -> None:
        """Raise `ConfigError` for pipelines that cannot run here, `BundleRefused` for those that must not."""

    def take(self, stored: StoredRelease | None) -> None:
        """Run the pipelines of this release from now on; those of agent.yaml if it has none, or for None."""


@dataclass(frozen=True)
class FormerServing:
    """What was served before a release: the edge sides it replaced (None: only the cloud answered), the policy, and the
    previous release.
    """

    edges: Mapping[str, EdgeModel | None]
    policy: Policy
    stored: StoredRelease | None = None


@dataclass
class _Trial:
    """A release on trial: the models that have yet to prove themselves, and what to go back to."""

    sequence: int
    former: FormerServing
    waiting: set[str]
    began_s: float = field(default_factory=time.monotonic)
    is_over: bool = False


class LoadModel(Protocol):
    """Loads and warms up a bundle of one model; for None what agent.yaml names, None if that is nothing.

    A bundle that `is_new` may hang or crash; it is then refused.
    """

    def __call__(self, bundle: Bundle | None, *, is_new: bool = False) -> EdgeModel | None:
        """Raises `UpwellError`."""


@dataclass(frozen=True)
class ReleaseSurroundings:
    """What a device needs to open releases: trusted keys, its floor, its own policy, and a loader for each of its
    models."""

    trust: Trust
    floor: DeviceFloor
    local: Policy
    load: Mapping[str, LoadModel]


class ReleaseSwitching:
    """Switches releases of an agent. `activate` is called by one thread at a time; no request waits for it."""

    def __init__(
        self, agent: ReleaseAgent, switching: ModelSwitching, store: VersionStore, parts: ReleaseSurroundings
    ) -> None:
        self._agent = agent
        self._switching = switching
        self._store = store
        self._parts = parts
        self._lock = threading.Lock()
        self._trial: _Trial | None = None
        self._companion: ReleaseCompanion | None = None
        self._stored: StoredRelease | None = None

    def attach(self, companion: ReleaseCompanion, stored: StoredRelease | None) -> None:
        """Let `companion` run the pipelines of each release, beginning with `stored`, which is served."""
        self._companion, self._stored = companion, None
        self._run_pipelines(stored)

    def activate(self, bundle: Bundle) -> Callable[[], None]:
        """Load and test a release; returns a function that serves it. Raises `BundleRefused` if it does not work
        here."""
        stored, policy = opened(bundle, self._parts)
        try:
            check_policy(policy, self._agent.models.values(), None, has_state_dir=True)
            if self._companion is not None:
                self._companion.check(stored)
            edges: dict[str, EdgeModel | None] = {}
            for name, load in self._parts.load.items():
                found = stored.bundles.get(name)
                if not self._is_served(name, found):
                    edge = edges[name] = load(found, is_new=True)
                    self._check(name, edge, policy)
        except BundleRefused:
            raise
        except UpwellError as error:
            text = f"release {stored.sequence} does not run here: {error}"
            raise BundleRefused(Refusal.FAILED_SELF_TEST, bundle.folder, text) from None
        return partial(self._switch, stored, edges, policy)

    def resume(self, sequence: int, former: FormerServing) -> None:
        """Continue the trial of the served release after a restart."""
        edges = {name: self._agent.model(name).edge for name in former.edges}
        self._try_out(sequence, edges, former, self._agent.router.policy)

    def go_back(self, target: int) -> bool:
        """Go back from the installed release to the previous one, `target`, 0 for what agent.yaml names.

        False if that is not allowed: it has proven itself, and was installed longer ago than its document allows.
        Raises `BundleRefused` if the previous one cannot be used.
        """
        trial, state = self._trial, self._store.state
        if trial is not None and self._reject(trial, GONE_BACK):
            return True
        if not self._is_recent():
            return False
        bundle = self._store.open(state.current)
        if bundle is None or bundle.version != target:
            return False
        former = self.load_former(bundle)
        with self._lock:
            self._end_trial()
            self._agent.replace_release(former.edges, former.policy)
        self._run_pipelines(former.stored)
        self._store.block(state.current, GONE_BACK, target)
        return True

    def step_aside(self) -> None:
        """Let an older release replace the first one, which the device took before it knew which was chosen: as long
        as it could go back from it. Raises `BundleRefused` if its document cannot be read.
        """
        if not self._store.state.previous and self._is_recent():
            self._store.step_aside()

    def _is_recent(self) -> bool:
        """Whether the installed release may still be given up, by its document."""
        stored, _ = opened(Bundle(self._store.folder / str(self._store.state.current)), self._parts)
        installed_unix_s = self._store.state.installed_unix_s
        return bool(installed_unix_s) and time.time() - installed_unix_s <= stored.document.back_within_s

    def load_former(self, bundle: Bundle) -> FormerServing:
        """Load an installed release, or for version 0 what agent.yaml names. Raises `BundleRefused`."""
        stored, policy = (None, self._parts.local) if bundle.version == 0 else opened(bundle, self._parts)
        bundles: Mapping[str, Bundle] = {} if stored is None else stored.bundles
        try:
            edges = {name: loader(bundles.get(name)) for name, loader in self._parts.load.items()}
        except BundleRefused:
            raise
        except UpwellError as error:
            text = f"release {bundle.version} no longer runs here: {error}"
            raise BundleRefused(Refusal.FAILED_SELF_TEST, bundle.folder, text) from None
        return FormerServing(edges, policy, stored)

    def poll(self) -> None:
        """Prove a release that changed no model, and so has nothing to compare, once it has served long enough."""
        self._store.stay()
        trial = self._trial
        if trial is not None and not trial.waiting and time.monotonic() - trial.began_s >= DURATION_S:
            self._prove(trial, "")

    def _is_served(self, name: str, bundle: Bundle | None) -> bool:
        """Whether this bundle is served already, or for None what agent.yaml names."""
        edge = self._switching.current(name)
        served = None if edge is None else edge.source.bundle
        if bundle is None:
            return served is None or not served.folder.is_relative_to(self._store.folder)
        return served is not None and served.manifest is not None and served.manifest == bundle.manifest

    def _check(self, name: str, new: EdgeModel | None, policy: Policy) -> None:
        """Raise `BundleRefused` for a model that no side would answer, if only for requests that must not leave the
        device, or that is too slow."""
        if new is not None:
            self._check_speed(name, new, policy)
            return
        if self._switching.current(name) is None:
            return  # the device never had a side of it
        problem = f"the release has no bundle of {name!r}, and agent.yaml names none"
        if not self._agent.models[name].cloud_model:
            raise BundleRefused(Refusal.OTHER_MODEL, None, problem)
        denying = [
            rule.name for rule in policy.rules if rule.egress == "deny" and name in (rule.match.models or {name})
        ]
        if denying:
            stay = f"requests that {', '.join(map(repr, denying))} keeps on the device (egress: deny)"
            raise BundleRefused(Refusal.OTHER_MODEL, None, f"{problem}; nobody would answer {stay}")

    def _check_speed(self, name: str, new: EdgeModel, policy: Policy) -> None:
        former = self._switching.current(name)
        deadline_s = policy.settings(name, None).deadline_s
        if former is None or not (new.durations_s and former.durations_s):
            return
        known_s = former.durations_s
        if statistics.median(new.durations_s) > deadline_s:  # perhaps the device is busy, so both are timed now
            with suppress(UpwellError):
                for one in (former, new):
                    self._switching.prepare(name, one)
        new_s, former_s = statistics.median(new.durations_s), statistics.median(former.durations_s)
        former.durations_s = known_s  # the trial asks whether it could be in time on an idle device
        if former_s <= deadline_s < new_s:
            text = f"{name!r} takes {new_s * 1e3:.0f} ms here, the previous version {former_s * 1e3:.0f} ms"
            raise BundleRefused(Refusal.TOO_SLOW, None, f"{text}; the deadline is {deadline_s * 1e3:.0f} ms")

    def _switch(self, stored: StoredRelease, edges: Mapping[str, EdgeModel | None], policy: Policy) -> None:
        with self._lock:  # else a trial that is just being lost could put its former models over these
            self._end_trial()
            before = {name: self._switching.current(name) for name in edges}
            self._try_out(
                stored.sequence, edges, FormerServing(before, self._agent.router.policy, self._stored), policy
            )
            self._agent.replace_release(edges, policy)
        self._run_pipelines(stored)
        _log.info("release %d is served", stored.sequence)

    def _run_pipelines(self, stored: StoredRelease | None) -> None:
        former, self._stored = self._stored, stored
        if self._companion is not None and any(one is not None and one.pipelines for one in (stored, former)):
            self._companion.take(stored)

    def _end_trial(self) -> None:
        """End the trial under way; call it under the lock."""
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.is_over = True
        for served in self._agent.models.values():
            if served.edge is not None:
                served.edge.trial = served.edge.versions = None  # its own predecessor is no longer needed

    def _try_out(
        self, sequence: int, edges: Mapping[str, EdgeModel | None], former: FormerServing, policy: Policy
    ) -> None:
        if not self._store.state.is_on_trial:
            return
        sides = ((name, edge, former.edges.get(name)) for name, edge in edges.items())
        pairs = {name: (new, before) for name, new, before in sides if new is not None and before is not None}
        trial = self._trial = _Trial(sequence, former, set(pairs))
        for name, pair in pairs.items():
            reject = partial(self._reject_for, trial, name)
            prove = partial(self._prove, trial, name)
            self._switching.watch(name, pair, reject, prove, (policy, former.policy))

    def _reject_for(self, trial: _Trial, name: str, reason: str) -> None:
        self._reject(trial, f"model {name}: {reason}")

    def _reject(self, trial: _Trial, reason: str) -> bool:
        """Serve everything from before again, at once; the disk is updated in the background."""
        with self._lock:
            if trial.is_over:
                return False
            trial.is_over, self._trial = True, None
            for name in trial.former.edges:
                edge = self._switching.current(name)
                if edge is not None and edge.trial is not None:
                    edge.trial.end()  # requests in progress keep their stand-in
            self._agent.replace_release(trial.former.edges, trial.former.policy)
        _log.error("went back from release %d to what was served before: %s", trial.sequence, reason)
        in_background("roll-back", partial(self._roll_back, trial, reason))
        return True

    def _roll_back(self, trial: _Trial, reason: str) -> None:
        self._run_pipelines(trial.former.stored)
        self._store.block(trial.sequence, reason)

    def _prove(self, trial: _Trial, name: str) -> None:
        with self._lock:
            trial.waiting.discard(name)
            if trial.is_over or trial.waiting:
                return
            trial.is_over, self._trial = True, None
        in_background("trial", partial(self._store.prove, trial.sequence))


def opened(bundle: Bundle, parts: ReleaseSurroundings) -> tuple[StoredRelease, Policy]:
    """Open a release with verified files, and combine its policy with the device's.

    Raises `BundleRefused`, also if it would loosen the device's floor.
    """
    stored = open_release(bundle.folder, parts.trust)
    policy = stored.policy_over(parts.local)
    parts.floor.check_policy(stored.sequence, policy)
    return stored, policy
