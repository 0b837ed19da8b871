"""Keeps the models that the service offers in step with their folders: on request, and by a watch at intervals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from upwell.cloud.config import CloudConfig
from upwell.cloud.repository.model_folders import (
    NAME,
    Files,
    ModelFolder,
    model_names,
    select,
    versions_of,
    warn_of_name,
)
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import BrokenModel, Load, LoadAttempt, ModelVersions, loader, offered
from upwell.shared.errors import ConfigError, ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, IndexEntry, LoadSettings, ModelState

MAX_CHANGES = 4
"""Loads and unloads by request that may run or wait at a time: each holds a thread of the server."""

_NOTHING = ("", "")

log = logging.getLogger("upwell.cloud")


class ModelRepository:
    """The protocol's `Repository` over the folders of `config` and the models of `service`.

    A thread of its own loads models while the service goes on with the old ones; the new ones then replace them in one
    step (`CloudService.put`). Changes are made one at a time.

    `attempts` are the loads made at the start; `unloaded` names the models that were unloaded by request before it, and
    `settings` the settings of earlier loads by request. `on_change` is called with the name of each model that changed
    and whether it is ready; `load` loads a version.
    """

    def __init__(
        self,
        config: CloudConfig,
        service: CloudService,
        attempts: Sequence[LoadAttempt],
        on_change: Callable[[str, bool], None],
        unloaded: Collection[str] = (),
        load: Load | None = None,
        settings: Mapping[str, LoadSettings] | None = None,
    ) -> None:
        self._config = config
        self._root = config.serve.models
        self._service = service
        self._on_change = on_change
        self._load = load or loader(config)
        self._attempts: dict[str, dict[str, LoadAttempt]] = {}
        for one in attempts:
            self._attempts.setdefault(one.result.name, {})[one.result.version] = one
        self._unloaded = set(unloaded)
        self._settings = dict(settings or {})
        self._loading = _NOTHING
        self._odd: set[str] = set()
        self._changing = threading.Lock()
        # Always the same thread, since malloc keeps a pool of memory for each thread that ever loaded a model.
        self._loader = ThreadPoolExecutor(1, "loading models")
        self._places = threading.Semaphore(MAX_CHANGES)

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded now, which cannot be broken off."""
        return self._loading != _NOTHING

    def index(self) -> list[IndexEntry]:
        """See `Repository.index`. A version on disk that is not loaded is listed as such."""
        versions_by_model = self._service.versions_by_model
        entries = [
            entry for name, model_versions in versions_by_model.items() for entry in _entries(name, model_versions)
        ]
        known = {(entry.model, entry.version) for entry in entries}
        for folder in self._folders_there():
            name, version = folder.name, str(folder.version)
            if (name, version) not in known:
                loading = self._loading == (name, version)
                state = ModelState.LOADING if loading else ModelState.UNAVAILABLE
                entries.append(IndexEntry(name, version, state, "" if loading else "not loaded"))
        return sorted(entries, key=lambda entry: (entry.model, int(entry.version)))

    def load(self, model: str, settings: LoadSettings = AS_CONFIGURED) -> None:
        """See `Repository.load`. A version that is ready is loaded again only if its files or settings differ."""
        with self.place():
            self.make_load(model, settings)

    def unload(self, model: str) -> None:
        """See `Repository.unload`. The model stays unloaded until it is loaded by request, whatever happens to its
        files."""
        with self.place():
            self.make_unload(model)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the `MAX_CHANGES` places of callers that wait for a change. Raises `NotAllowed`, `Refused`."""
        if not self._config.serve.repository.control:
            raise NotAllowed(
                "callers may not load or unload models here; `serve: {repository: {control: true}}` in the "
                "service's configuration allows it"
            )
        if not self._places.acquire(blocking=False):
            raise Refused(f"{MAX_CHANGES} loads and unloads are under way or waiting; try again later")
        try:
            yield
        finally:
            self._places.release()

    def versions(self, model: str) -> tuple[str, ...]:
        """The versions of a model that are offered, ready or not."""
        model_versions = self._service.versions_by_model.get(model)
        return () if model_versions is None else tuple(model_versions.versions)

    def settings_of(self, model: str) -> LoadSettings:
        """The settings of a model's last load by request that brought a version into force."""
        return self._settings.get(model, AS_CONFIGURED)

    def make_load(self, model: str, settings: LoadSettings = AS_CONFIGURED) -> None:
        """`load` for a caller that has a place."""
        with self._turn():
            folders = self._folders(model)
            there = ", ".join(str(folder.version) for folder in folders)
            if not folders:
                raise ModelNotFound(f"no model {model!r} in the repository")
            wanted = select(folders, self._config.versions_of(model))
            if not wanted:
                raise NotLoaded(f"model {model!r} has none of the versions to serve; available: {there}")
            self._unloaded.discard(model)
            self._renew(model, wanted, settings, again=True)
            broken = [one.result for one in self._attempts[model].values() if isinstance(one.result, BrokenModel)]
        if broken:
            reasons = "; ".join(f"version {one.version}: {one.reason}" for one in broken)
            served = ", ".join(one.version for one in self._service.versions_by_model[model].served)
            in_force = f"; in force: version {served}" if served else ""
            raise NotLoaded(f"model {model!r} is not loaded: {reasons}{in_force}")

    def make_unload(self, model: str) -> None:
        """`unload` for a caller that has a place."""
        with self._turn():
            model_versions = self._service.versions_by_model.get(model)
            if model_versions is None:
                raise ModelNotFound.unknown(model, self._service.versions_by_model)
            self._unloaded.add(model)
            self._attempts.pop(model, None)
            self._settings.pop(model, None)
            self._put(model, model_versions.unloaded())
        log.info("model %s was unloaded", model)

    def look(self) -> dict[str, Mapping[str, Files] | None]:
        """The files of every model that exists or was loaded: model -> version to serve -> files.

        Empty for a model that is gone, None for one whose folder cannot be read now. Raises `OSError` if the repository
        itself cannot be read.
        """
        names = set(model_names(self._root))
        odd = {name for name in names if not NAME.fullmatch(name)}
        for name in sorted(odd - self._odd):
            warn_of_name(name)
        self._odd = odd
        return {name: self._look_at(name) for name in {*names - odd, *self._attempts, *self._unloaded}}

    def is_new(self, model: str, files: Mapping[str, Files]) -> bool:
        """Whether these files of a model differ from those last loaded or tried."""
        tried = {version: one.files for version, one in self._attempts.get(model, {}).items()}
        return tried != files if model not in self._unloaded else not files

    def take_over(self, model: str, files: Mapping[str, Files]) -> None:
        """Load the new versions of a model if its files are still `files`; drop the model if there are none."""
        with self._changing:
            folders = select(self._folders(model), self._config.versions_of(model))
            is_still_there = {str(folder.version): folder.files() for folder in folders} == files
            # Others may have unloaded or loaded it while this waited for its turn.
            if not is_still_there or not self.is_new(model, files) or not self._service.ready():
                return
            if folders:
                self._renew(model, folders, self.settings_of(model), again=False)
                return
            self._unloaded.discard(model)
            self._attempts.pop(model, None)
            self._put(model, None)
        log.info("model %s is gone from the repository and is no longer served", model)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the previous change to end."""
        with self._changing:
            if not self._service.ready():
                raise Unavailable("the service is draining and no longer loads or unloads models")
            yield

    def _renew(self, model: str, folders: Sequence[ModelFolder], settings: LoadSettings, *, again: bool) -> None:
        """Load the `folders` whose files are new, with `again` also the broken ones, and with new settings all of them;
        then offer the result."""
        former = self._attempts.get(model, {}) if settings == self.settings_of(model) else {}
        attempts: dict[str, LoadAttempt] = {}
        try:
            for folder in folders:
                version = str(folder.version)
                before = former.get(version)
                as_before = before is not None and before.files == folder.files()
                if before is None or not as_before or (again and isinstance(before.result, BrokenModel)):
                    self._loading = (model, version)
                    before = self._loader.submit(_tried, folder, self._load, settings).result()
                attempts[version] = before
        finally:
            self._loading = _NOTHING
        former_offer = self._service.versions_by_model.get(model)
        there = {str(folder.version) for folder in self._folders(model)}
        left = None if former_offer is None else former_offer.left(there)
        model_versions = offered([one.result for one in attempts.values()], left)
        self._attempts[model] = attempts
        if any(not isinstance(one.result, BrokenModel) for one in attempts.values()):
            self._settings[model] = settings  # else those of the model in force stay for its next load
        self._put(model, model_versions)
        _tell(model, model_versions, former_offer)

    def _put(self, model: str, model_versions: ModelVersions | None) -> None:
        self._service.put(model, model_versions)
        self._on_change(model, self._service.ready(model))

    def _look_at(self, model: str) -> dict[str, Files] | None:
        try:
            folders = select(versions_of(self._root, model), self._config.versions_of(model))
        except OSError:
            return None
        return {str(folder.version): folder.files() for folder in folders}

    def _folders(self, model: str) -> list[ModelFolder]:
        """All versions of a model on disk; none for a name that is not valid for a model."""
        try:
            return versions_of(self._root, model) if NAME.fullmatch(model) else []
        except OSError:
            return []

    def _folders_there(self) -> Iterator[ModelFolder]:
        try:
            names = model_names(self._root)
        except OSError:
            return
        for name in names:
            yield from self._folders(name)


def _entries(name: str, model_versions: ModelVersions) -> Iterator[IndexEntry]:
    for version, model in model_versions.versions.items():
        if isinstance(model, BrokenModel):
            yield IndexEntry(name, version, ModelState.UNAVAILABLE, model.reason)
        else:
            note = model_versions.notes.get(version)
            reason = f"its former files; the new ones are not in force: {note}" if note else ""
            yield IndexEntry(name, version, ModelState.READY, reason)


def _tried(folder: ModelFolder, load: Load, settings: LoadSettings) -> LoadAttempt:
    """`load`, where any error concerns this version alone and the others are still served."""
    try:
        return load(folder, settings)
    except Exception as error:  # one model must not stop the others
        what = error if isinstance(error, ConfigError) else "an internal error"
        log.error(
            "model %s version %s is not served: %s", folder.name, folder.version, what, exc_info=what is not error
        )
        reason = "it cannot be loaded; the service's log says why"
        return LoadAttempt(folder.files(), BrokenModel(folder.name, str(folder.version), reason))


def _tell(model: str, model_versions: ModelVersions, former: ModelVersions | None) -> None:
    for version, note in model_versions.notes.items():
        log.error("model %s version %s: its new files fail, so the former ones stay in force: %s", model, version, note)
    if (
        isinstance(model_versions.versions[max(model_versions.versions, key=int)], BrokenModel)
        and model_versions.served
    ):
        log.warning("model %s: version %s is the default, since the highest is broken", model, model_versions.default)
    as_before = () if former is None else former.served
    for one in model_versions.served:
        if one in as_before:
            continue
        log.info("model %s version %s is served: %s", model, one.version, one.digest)


_ENDING_S = 5.0


class RepositoryWatch:
    """A thread that checks every `interval_s` seconds and loads models itself.

    A model is loaded once two checks in a row have found the same files, so that a copy in progress is left alone. A
    copy has no other sign of its end, so one that pauses for longer may be tried too early: that load fails, the old
    version stays in force, and the next change is tried again. A check costs a few system calls per file.
    """

    def __init__(self, repository: ModelRepository, interval_s: float) -> None:
        self._repository = repository
        self._interval_s = interval_s
        self._seen: Mapping[str, Mapping[str, Files] | None] = {}
        self._readable = True
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repository watch", daemon=True)

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking. Waits for a load in progress, for a limited time."""
        self._ending.set()
        self._thread.join(_ENDING_S)

    def look(self) -> None:
        """Check once, and load what has changed since the last load but not since the last check."""
        try:
            seen = self._repository.look()
        except OSError as error:
            if self._readable:
                log.error("the model repository cannot be read; what is served stays: %s", error.strerror)
            self._readable = False
            return
        self._readable = True
        before, self._seen = self._seen, seen
        for name, files in seen.items():
            if files is not None and files == before.get(name) and self._repository.is_new(name, files):
                self._repository.take_over(name, files)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                self.look()
            except Exception:  # the watch goes on, whatever one model did
                log.exception("checking the model repository failed")
