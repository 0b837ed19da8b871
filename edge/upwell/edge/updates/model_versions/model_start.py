"""One configured model from the agent's start on: its first bundle, and its updates."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.models.edge_model import EdgeModel, Head, ServedModel
from upwell.edge.models.model_config import ModelSection, UpdatesSection
from upwell.edge.models.model_loader import Loader, Loading
from upwell.edge.updates.model_versions.model_switching import ModelSwitching, TrialVerdict
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # imported for a model that has updates, since that takes long
    from upwell.edge.updates.model_versions.rollback_by_hand import RollbackRequest
    from upwell.edge.updates.update_follower import UpdateFollower
    from upwell.edge.updates.version_store import VersionStore

_UNPACKED = "unpacked"

T = TypeVar("T")

_log = logging.getLogger(__name__)


@value_class
class Surroundings:
    """What every model's start depends on; `state_dir` is None if the agent has none.

    `bundles` are those of the installed release, by model; they take precedence over the configuration.
    """

    state_dir: Path | None
    trust: Trust
    bundles: Mapping[str, Bundle] = field(default_factory=dict)


class ModelStart:
    """Loads one model, and later its new versions.

    `served` is the model to serve at once. `final`, if not None, gives the edge side that replaces it once an
    accelerator is ready. `follower` looks for new versions; they are served once `serve` was called, before that a
    first one is only loaded. Raises `ConfigError` if the model can neither be loaded nor be left to the cloud.
    """

    def __init__(self, name: str, section: ModelSection, around: Surroundings) -> None:
        self.name = name
        self.final: Future[EdgeModel] | None = None
        self.follower: UpdateFollower | None = None
        self._around = around
        self._section = section
        self._switching: ModelSwitching | None = None
        self._first: Loading | None = None
        self._former: EdgeModel | None = None
        self._unpacked: Path | None = None
        self._is_closed = False
        cloud_model = section.cloud.model if section.cloud else ""
        if section.edge is None:
            self.served = ServedModel(name, None, cloud_model, self._heads(None))
            if not (cloud_model or self.served.heads):
                raise ConfigError.at(None, "no head can be used, and there is no other route", f"models.{name}.split")
            return
        self._side = section.edge
        try:
            loading = self._load(may_wait=bool(cloud_model))
        except BaseException:
            self.close()
            raise
        edge = loading.model if loading else None
        try:
            self.served = ServedModel(name, edge, cloud_model, self._heads(edge))
            if edge is not None and section.split == "auto":
                edge.heads = self.served.heads
        except BaseException:
            if loading is not None:
                loading.close()
            self.close()
            raise
        self.final = loading.final if loading else None

    def serve(self, switching: ModelSwitching) -> None:
        """Serve new versions in the agent from now on; trials interrupted by a restart continue."""
        self._switching = switching
        edge, former = self.served.edge, self._former
        self._former = None
        if edge is not None and former is not None:
            try:
                switching.prepare(self.name, former)
                switching.try_out(self.name, edge, former, self._judge(edge.source.version))
            except UpwellError as error:
                _log.error("model %s: no earlier version to return to: %s", self.name, error)
        if self.final is not None and edge is not None:
            switching.follow(self.name, edge, self.final)

    def carry_out_rollback(self) -> None:
        """Go back to the previous version if that was requested. Called by one thread from time to time."""
        if self.follower is not None and self._switching is not None and not self._is_closed:
            from upwell.edge.updates.model_versions.rollback_by_hand import carry_out_rollback

            self.follower.store.stay()
            carry_out_rollback(self.follower.store, self._go_back)

    def load_again(self, bundle: Bundle | None, *, is_new: bool = False) -> EdgeModel | None:
        """Load and warm up this bundle, or for None what the configuration names; None if that is nothing.

        Raises `UpwellError`. Called after `serve`.
        """
        switching, section = self._switching, self._section
        assert switching is not None  # noqa: S101  as said
        if section.edge is None or (bundle is None and not section.edge.has_source):
            return None
        return self.prepared(bundle or self._factory(), switching, is_new=is_new)

    def close(self) -> None:
        """Stop transfers, and remove what was unpacked for this run of the agent."""
        self._is_closed = True
        if self.final is not None:
            self.final.cancel()
        if self.follower is not None:
            self.follower.close()
        if self._unpacked is not None:
            import shutil

            shutil.rmtree(self._unpacked, ignore_errors=True)

    def _heads(self, edge: EdgeModel | None) -> tuple[Head, ...]:
        if self._section.split == "off":
            return ()
        from upwell.edge.models.split_heads import load_heads

        return load_heads(self.name, self._section, whole=edge, state_dir=self._around.state_dir)

    def _load(self, *, may_wait: bool) -> Loading | None:
        """The newest bundle's model; None if it is still to be fetched while the cloud answers."""
        if self._side.updates is None:
            released = self._around.bundles.get(self.name)
            if released is None and not self._side.has_source:
                if may_wait:
                    return None
                raise self._problem("the release has no bundle for it, and agent.yaml names none")
            return self._loading(released or self._factory())
        return self._load_newest(self._side.updates, may_wait=may_wait)

    def _load_newest(self, updates: UpdatesSection, *, may_wait: bool) -> Loading | None:
        """The model of the newest version; None if the first is still to be fetched while the cloud answers."""
        from upwell.edge.updates.model_versions.rollback_by_hand import carry_out_rollback
        from upwell.edge.updates.sources.source_opening import open_source
        from upwell.edge.updates.update_follower import UpdateFollower
        from upwell.edge.updates.version_store import VersionStore

        assert self._around.state_dir is not None  # noqa: S101  the configuration demands it
        factory, problem = None, None
        try:
            factory = self._factory()
        except ConfigError as error:  # not fatal if a newer version is installed
            problem = error
        try:
            store = VersionStore(self._around.state_dir, self.name, self._around.trust, factory)
        except FetchFailed as error:
            raise self._problem(str(error)) from None
        source = open_source(updates.source, digest=updates.digest, ca=updates.ca)
        self.follower = UpdateFollower(store, updates, self._activate, source)
        carry_out_rollback(store)
        store.begin()
        installed = self._newest(store, self._loading)
        if installed is None and problem is not None:
            raise problem
        if installed is None:
            return self._fetch_first(self.follower, may_wait)
        if problem is not None:
            _log.error("model %s: the configured bundle cannot serve as a fallback: %s", self.name, problem)
        self._former = self._former_of(store, installed.model)
        return installed

    def _former_of(self, store: VersionStore, edge: EdgeModel) -> EdgeModel | None:
        """The stand-in for a version on trial; None if it is not on trial, or none can be loaded."""
        if edge.source.version != store.state.current or not store.state.is_on_trial:
            return None
        try:
            former = self._newest(store, self._load_edge, store.state.current)
        except ConfigError as error:
            _log.error("model %s: no earlier version to return to: %s", self.name, error)
            former = None
        if former is None:
            store.prove(store.state.current)
        return former

    def _newest(self, store: VersionStore, load: Callable[[Bundle], T], before: int | None = None) -> T | None:
        """The newest version that loads; None if there is none at all. Raises the error of the oldest."""
        failure: ConfigError | None = None
        while (bundle := store.open(before)) is not None:
            if failure is not None:
                _log.error("model %s: version %d is not used: %s", self.name, before, failure)
            try:
                return load(bundle)
            except ConfigError as error:
                before, failure = bundle.version, error
        if failure is not None:
            raise failure
        return None

    def _fetch_first(self, follower: UpdateFollower, may_wait: bool) -> Loading | None:
        if may_wait:
            _log.warning("model %s: only the cloud answers until the first bundle is fetched", self.name)
            return None
        _log.info("model %s: fetching the first bundle from %s", self.name, follower.updates.place)
        try:
            follower.look()
            problem = follower.status.message or follower.status.failure
        except FetchFailed as error:
            problem = str(error)
        if self._first is None:
            raise self._problem(f"no bundle is installed yet, and the first cannot be fetched: {problem}")
        return self._first

    def _factory(self) -> Bundle | None:
        """The configured bundle, verified; an archive is unpacked for this run of the agent."""
        path = self._side.bundle
        if path is None:
            return None
        from upwell.edge.bundle.open_bundle import open_archive, open_bundle

        if not path.is_file():
            return open_bundle(path, self._around.trust)
        import tempfile  # only for archives, since it takes long, as does shutil

        parent = None if self._around.state_dir is None else self._around.state_dir / _UNPACKED
        try:
            if parent is not None:
                parent.mkdir(mode=0o700, exist_ok=True)
                parent = parent if os.access(parent, os.W_OK) else None
        except OSError:  # the disk cannot be written, which is already logged
            parent = None
        try:
            self._unpacked = Path(tempfile.mkdtemp(prefix="upwell-bundle-", dir=parent))
        except OSError as error:
            raise self._problem(f"the archive cannot be unpacked: {error.strerror}") from None
        return open_archive(path, self._unpacked / "bundle", self._around.trust)

    def _loading(self, bundle: Bundle | None, *, is_new: bool = False) -> Loading:
        return Loader(self.name, self._side, bundle=bundle, state_dir=self._around.state_dir, is_new=is_new).start()

    def _load_edge(self, bundle: Bundle | None, *, is_new: bool = False) -> EdgeModel:
        state_dir = self._around.state_dir
        edge = Loader(self.name, self._side, bundle=bundle, state_dir=state_dir, is_new=is_new).load()
        if self._section.split == "auto":
            edge.heads = self._heads(edge)
        return edge

    def prepared(self, bundle: Bundle | None, switching: ModelSwitching, *, is_new: bool) -> EdgeModel:
        """Load and warm up a version and its heads."""
        edge = self._load_edge(bundle, is_new=is_new)
        for one in (edge, *(head.edge for head in edge.heads or ())):
            switching.prepare(self.name, one)
        return edge

    def _activate(self, bundle: Bundle) -> Callable[[], None]:
        """Load and test a new version; returns a function that serves it. Raises `BundleRefused` if it fails its tests
        here."""
        try:
            if self._switching is None:
                self._first = self._loading(bundle, is_new=True)
                return _nothing
            edge = self.prepared(bundle, self._switching, is_new=True)
        except BundleRefused:
            raise
        except UpwellError as error:
            raise BundleRefused(Refusal.FAILED_SELF_TEST, bundle.folder, f"it does not run here: {error}") from None
        return partial(self._switching.switch, self.name, edge, self._judge(bundle.version))

    def _go_back(self, request: RollbackRequest, target: Bundle) -> None:
        """Serve `target` again. During a trial the previous version is still loaded; otherwise it is loaded as at a
        start."""
        from upwell.edge.updates.model_versions.rollback_by_hand import REASON, CannotGoBack

        switching = self._switching
        assert switching is not None  # noqa: S101  or nothing could be rolled back
        edge = switching.current(self.name)
        if edge is None or edge.source.version != request.version:
            raise CannotGoBack(f"version {request.version} is installed but not served; a restart tries it again")
        if edge.trial is not None and edge.trial.give_up(REASON):
            return
        former = self.prepared(target, switching, is_new=False)
        if not switching.go_back(self.name, edge, former):
            raise CannotGoBack("another version was installed meanwhile")

    def _judge(self, version: int) -> TrialVerdict:
        assert self.follower is not None  # noqa: S101  only what it brings has versions
        return TrialVerdict(self.follower.store, version)

    def _problem(self, text: str) -> ConfigError:
        return ConfigError.at(None, text, f"models.{self.name}.edge")


def _nothing() -> None:
    """Do nothing: the agent under construction serves the first version."""


@contextmanager
def loaded(name: str, section: ModelSection, trust: Trust) -> Iterator[ServedModel]:
    """Load one model without an agent, which may run meanwhile: from its bundle or file, without updates.

    Waits for its accelerator. Raises `ConfigError`.
    """
    side = section.edge
    if side is not None and side.updates is not None:
        if side.bundle is None:
            problem = "it comes only from `updates`; expected `bundle` as well, a folder or an archive"
            raise ConfigError.at(None, problem, f"models.{name}.edge")
        section = section.model_copy(update={"edge": side.model_copy(update={"updates": None})})
    start = ModelStart(name, section, Surroundings(None, trust))
    served = start.served
    try:
        if start.final is not None:
            served = replace(served, edge=start.final.result())
        yield served
    finally:
        start.close()
        for edge in {start.served.edge, served.edge}:
            if edge is not None:
                edge.close()


def clear_unpacked(state_dir: Path) -> None:
    """Remove archives unpacked by an agent that was killed."""
    if not (unpacked := state_dir / _UNPACKED).exists():
        return
    import shutil

    shutil.rmtree(unpacked, ignore_errors=True)
