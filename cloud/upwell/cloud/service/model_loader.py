"""Loads models from folders of the repository, or says why one cannot be loaded; and the versions of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.batching.device_scheduler import device_for
from upwell.cloud.batching.model_queue import Run
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.base import Engine, EngineType, engine_type
from upwell.cloud.engines.batch_checks_and_buckets import by_rows, works_by_rows
from upwell.cloud.engines.error_text import printable, tellable
from upwell.cloud.engines.model_settings import AUTOMATIC, ModelSettings
from upwell.cloud.engines.named_calls import calls_of
from upwell.cloud.repository.model_folders import Files, ModelFolder, Versions, scan, select
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, LoadSettings
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.signature.processor import Processor

log = logging.getLogger("upwell.cloud")

OnRun: TypeAlias = Callable[[str, str, Run], None]
"""Called with the model's name, its version, and the run."""

FATAL = "the process ended while it was loaded or ran, more than once; the service's log says how"

_LONG_S = 1.0
"""Warm-ups that take longer are logged: engines that compile may take a minute for each size."""


@dataclass(frozen=True, eq=False)
class CloudModel:
    """One version of a model, ready to answer. Each load makes a new one."""

    name: str
    version: str
    platform: str
    digest: str
    settings: ModelSettings
    engine: Engine
    processor: Processor
    batcher: Batcher
    load_s: float = 0.0
    """Time to load and warm up."""


@dataclass(frozen=True)
class BrokenModel:
    """One version of a model that could not be loaded. `reason` may be shown to callers."""

    name: str
    version: str
    reason: str


@dataclass(frozen=True)
class LoadAttempt:
    """The result of loading one version, and the state of its files before that."""

    files: Files
    result: CloudModel | BrokenModel


def find_models(
    config: CloudConfig, *, begins: bool = True, fatal: Collection[tuple[str, str]] = ()
) -> list[ModelFolder]:
    """All versions to serve, by model and number. Where the latest is wanted and `fatal`, the latest other one too.

    Raises `ConfigError`, also for settings of a model or version that does not exist. These are only warnings if models
    may still appear, or if not `begins`, since other workers already serve.
    """
    found: dict[str, list[ModelFolder]] = {}
    for folder in scan(config.serve.models):
        found.setdefault(folder.name, []).append(folder)
    missing = [*_missing_models(config, found), *_missing_versions(config, found)]
    if missing and begins and not config.serve.repository.may_change:
        raise ConfigError(missing)
    for problem in missing:
        log.warning("%s", problem)
    return [one for name, there in found.items() for one in _selected(there, config.versions_of(name), fatal)]


def _selected(
    there: Sequence[ModelFolder], versions: Versions, fatal: Collection[tuple[str, str]]
) -> list[ModelFolder]:
    chosen = select(there, versions)
    if versions == "latest" and chosen and chosen[0].key in fatal:
        return [*select([one for one in there if one.key not in fatal], versions), *chosen]
    return chosen


def _missing_models(config: CloudConfig, found: Mapping[str, Sequence[ModelFolder]]) -> Iterator[Problem]:
    for name in config.models:
        if name not in found:
            text = f"not in {config.serve.models}; available: {', '.join(found)}"
            yield Problem(None, None, None, f"models.{name}", text)


def _missing_versions(config: CloudConfig, found: Mapping[str, Sequence[ModelFolder]]) -> Iterator[Problem]:
    for name, folders in found.items():
        there = [folder.version for folder in folders]
        wanted = config.versions_of(name)
        for version in wanted if isinstance(wanted, tuple) else ():
            if version not in there:
                text = f"there is no version {version}; available: {', '.join(map(str, there))}"
                yield Problem(None, None, None, f"models.{name}.versions", text)


def attempt(
    folder: ModelFolder, config: CloudConfig, on_run: OnRun | None = None, asked: LoadSettings = AS_CONFIGURED
) -> LoadAttempt:
    """Load one version with `load_model`; if its files changed meanwhile, the result is broken."""
    files = folder.files()
    result = load_model(folder, config, on_run, asked)
    if folder.files() != files:
        if isinstance(result, CloudModel):
            result.batcher.close()
        result = BrokenModel(result.name, result.version, "its files changed while they were read")
        log.error("model %s version %s is not served: %s", result.name, result.version, result.reason)
    return LoadAttempt(files, result)


Load: TypeAlias = Callable[[ModelFolder, LoadSettings], LoadAttempt]


def loader(
    config: CloudConfig,
    on_run: OnRun | None = None,
    trying: Callable[[ModelFolder], AbstractContextManager[object]] = nullcontext,
) -> Load:
    """`attempt` with this configuration, each time within `trying`."""

    def load(folder: ModelFolder, asked: LoadSettings) -> LoadAttempt:
        with trying(folder):
            return calls_of(*folder.key)(attempt, folder, config, on_run, asked)

    return load


def calls_at_once(models: Sequence[CloudModel | BrokenModel], config: CloudConfig) -> int:
    """How many requests `models` admit at once: those that run, several of them in one batch, and those that wait.

    If models may change, twice that, broken ones included: the requests of a version that is replaced end beside those
    of the new one, and models that come later need room too.
    """
    may_change = config.serve.repository.may_change
    loaded = [one.settings for one in models if isinstance(one, CloudModel)]
    broken = [config.settings(one.name) for one in models if isinstance(one, BrokenModel) and may_change]
    calls = sum(settings.instances * settings.max_batch + settings.max_queue for settings in (*loaded, *broken))
    return (2 if may_change else 1) * calls


def check_any(models: Iterable[CloudModel | BrokenModel]) -> None:
    """Raise `ModelFailed` with the reasons unless some model can be served."""
    reasons = []
    for model in models:
        if isinstance(model, CloudModel):
            return
        reasons.append(f"{model.name} version {model.version}: {model.reason}")
    raise ModelFailed(f"no model can be served: {'; '.join(reasons) or 'none of the versions to serve exists'}")


def load_model(
    folder: ModelFolder, config: CloudConfig, on_run: OnRun | None = None, asked: LoadSettings = AS_CONFIGURED
) -> CloudModel | BrokenModel:
    """Load one version and warm it up, with `asked` over the configuration. What is wrong with it is logged in full.
    `on_run` is called with its runs.

    Raises `ConfigError` only if the engine itself is not installed.
    """
    settings = _settings(config.settings(folder.name), asked)
    kind = engine_type(settings.engine)
    name, version = folder.name, str(folder.version)
    try:
        return _load(folder, settings, kind, on_run)
    except ConfigError as error:
        problems = "\n".join(printable(str(problem)) for problem in error.problems)
        log.error("model %s version %s is not served: its description is wrong\n%s", name, version, problems)
        return BrokenModel(name, version, "its model.yaml is wrong; the service's log says where")
    except (ModelFailed, InvalidRequest) as error:  # InvalidRequest: even zeros of its own shapes do not fit
        log.error("model %s version %s is not served: %s", name, version, printable(str(error)))
        return BrokenModel(name, version, tellable(str(error)))
    except OSError as error:
        log.error("model %s version %s is not served: %s", name, version, printable(str(error)))
        return BrokenModel(name, version, f"its files cannot be read: {error.strerror}")
    except Exception:  # whatever a framework raises for a strange file, the other models are served
        log.exception("model %s version %s is not served", name, version)
        return BrokenModel(name, version, "it cannot be loaded; the service's log says why")


def _settings(configured: ModelSettings, asked: LoadSettings) -> ModelSettings:
    if asked.max_batch is not None:
        smaller = [rows for rows in configured.buckets if rows < asked.max_batch]
        buckets = (*smaller, asked.max_batch) if configured.buckets else ()
        configured = replace(configured, max_batch=asked.max_batch, buckets=buckets)
    return configured if asked.instances is None else replace(configured, instances=asked.instances, cpu_instances=0)


def _load(folder: ModelFolder, settings: ModelSettings, kind: EngineType, on_run: OnRun | None) -> CloudModel:
    started_s = time.monotonic()
    name, version = folder.name, str(folder.version)
    path = folder.file(kind.file_name)
    digest = folder.digest(path)  # first, since this refuses weights outside the folder
    written = folder.description
    description = load_description(written, within=folder.root) if written else None
    engine = kind.load(folder.name, path, settings)
    if description is None or description.signature.rows:
        engine = by_rows(engine, settings.buckets)
    is_chosen = AUTOMATIC in (settings.device, *settings.providers)
    if is_chosen and engine.device == "cpu" and settings.cpu_instances:
        settings = replace(settings, instances=settings.cpu_instances)
    processor = Processor(description, engine.inputs, engine.outputs, settings.engine)
    settings = run_settings(engine, settings, processor.signature.has_rows, name)
    _warm_up(folder, engine, settings)
    batcher = Batcher(
        engine,
        settings,
        name=folder.key,
        device=device_for(engine.device),
        on_run=partial(on_run, name, version) if on_run is not None else None,
    )
    load_s = time.monotonic() - started_s
    return CloudModel(name, version, kind.platform, digest, settings, engine, processor, batcher, load_s)


def run_settings(engine: Engine, settings: ModelSettings, has_rows: bool, name: str) -> ModelSettings:
    """`settings` with the numbers of rows in a run. If outputs do not follow the rows of the inputs, requests are not
    merged or cut: one caller would get what belongs to another."""
    if works_by_rows(engine) and has_rows:
        return replace(settings, buckets=engine.buckets or settings.buckets)
    if engine.buckets:
        listed = ", ".join(map(str, engine.buckets))
        raise ModelFailed(f"model.yaml says `rows: false`, but the engine is prepared for {listed} rows alone")
    if settings.max_batch > 1:
        log.warning("model %s has no batch dimension, so each request runs alone", name)
    return replace(settings, max_batch=1, buckets=())


def _warm_up(folder: ModelFolder, engine: Engine, settings: ModelSettings) -> None:
    """Prepare the engine for every batch size that it will get. Slow steps are logged."""
    sizes = settings.buckets or sorted({1, settings.max_batch})
    if engine.buckets:
        listed = ", ".join(map(str, engine.buckets))
        log.info("model %s version %d: preparing batches of %s rows", folder.name, folder.version, listed)
    for place, rows in enumerate(sizes, 1):
        started_s = time.monotonic()
        engine.warm_up(rows)
        took_s = time.monotonic() - started_s
        if took_s >= _LONG_S:
            text = "model %s version %d: %d of %d sizes prepared, the latest (%d rows) in %.1f s"
            log.info(text, folder.name, folder.version, place, len(sizes), rows, took_s)


UNLOADED = "unloaded"


@dataclass(frozen=True)
class ModelVersions:
    """The versions of one model, ascending, and the default, which answers requests that name no version.

    `notes` says, for versions that are ready, why their newer files are not in force.
    """

    versions: Mapping[str, CloudModel | BrokenModel]
    default: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def served(self) -> tuple[CloudModel, ...]:
        """The versions that are ready."""
        return tuple(model for model in self.versions.values() if isinstance(model, CloudModel))

    def left(self, there: Collection[str]) -> ModelVersions:
        """Only the versions in `there`, which still exist; all of them if none of those would be ready."""
        versions = {version: model for version, model in self.versions.items() if version in there}
        runnable = [version for version, model in versions.items() if isinstance(model, CloudModel)]
        if not runnable:
            return self
        return ModelVersions(versions, self.default if self.default in versions else max(runnable, key=int))

    def runnable(self) -> ModelVersions:
        """The same, with the highest ready version as default if the default is broken."""
        default = max((model.version for model in self.served), key=int, default=self.default)
        is_broken = isinstance(self.versions[self.default], BrokenModel)
        return replace(self, default=default) if is_broken else self

    def unloaded(self) -> ModelVersions:
        """The same versions, none of them ready."""
        versions = {version: BrokenModel(model.name, version, UNLOADED) for version, model in self.versions.items()}
        return ModelVersions(versions, self.default)


def offered(models: Sequence[CloudModel | BrokenModel], before: ModelVersions | None = None) -> ModelVersions:
    """One model's versions (at least one) after a load, where `before` is what was offered until now.

    A broken version never replaces one that is ready: if the new files of a version are broken, the old version stays,
    and if the highest version is broken, the former default goes on, even if it is not among `models`. Otherwise the
    highest version becomes the default, and versions that are not in `models` are dropped.
    """
    versions: dict[str, CloudModel | BrokenModel] = {}
    notes: dict[str, str] = {}
    former = {} if before is None else {model.version: model for model in before.served}
    for model in models:
        if isinstance(model, BrokenModel) and model.version in former:
            versions[model.version] = former[model.version]
            notes[model.version] = model.reason
        else:
            versions[model.version] = model
    default = max(versions, key=int)
    if before is not None and isinstance(versions[default], BrokenModel) and before.default in former:
        default = before.default
        versions.setdefault(default, former[default])
    return ModelVersions({version: versions[version] for version in sorted(versions, key=int)}, default, notes)
