"""Loads models from folders of the repository, or says why one cannot be loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.batching.device_scheduler import device_for
from upwell.cloud.batching.queued_request import Run
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.base import Engine, EngineType, ModelSettings
from upwell.cloud.engines.batch_checks import works_by_rows
from upwell.cloud.engines.buckets import by_rows
from upwell.cloud.engines.engine_registry import engine_type
from upwell.cloud.engines.error_text import printable, tellable
from upwell.cloud.repository.model_folders import Files, ModelFolder, scan, select
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem
from upwell.shared.oip.grpc.server.model_repository import AS_CONFIGURED, LoadSettings
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.signature.processor import Processor

log = logging.getLogger("upwell.cloud")

OnRun: TypeAlias = Callable[[str, str, Run], None]
"""Called with the model's name, its version, and the run."""

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


def find_models(config: CloudConfig, *, begins: bool = True) -> list[ModelFolder]:
    """All versions to serve, by model and number.

    Raises `ConfigError`, also for invalid names and for settings of a model or version that does not exist. These two
    are only warnings if models may still appear, or if not `begins`, since other workers already serve.
    """
    is_strict = begins and not config.serve.repository.may_change
    found: dict[str, list[ModelFolder]] = {}
    for folder in scan(config.serve.models, is_strict=is_strict):
        found.setdefault(folder.name, []).append(folder)
    missing = [*_missing_models(config, found), *_missing_versions(config, found)]
    if missing and is_strict:
        raise ConfigError(missing)
    for problem in missing:
        log.warning("%s", problem)
    return [folder for name, folders in found.items() for folder in select(folders, config.versions_of(name))]


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
            result.engine.close()
        result = BrokenModel(result.name, result.version, "its files changed while they were read")
        log.error("model %s version %s is not served: %s", result.name, result.version, result.reason)
    return LoadAttempt(files, result)


def calls_at_once(models: Sequence[CloudModel | BrokenModel], config: CloudConfig) -> int:
    """How many requests `models` admit at once: those that run, several of them in one batch, and those that wait.

    If models may change, twice that, broken ones included: the requests of a version that is replaced end beside those
    of the new one, and models that come later need room too.
    """
    may_change = config.serve.repository.may_change
    every = [config.settings(one.name) for one in models if may_change or isinstance(one, CloudModel)]
    calls = sum(settings.instances * settings.max_batch + settings.max_queue for settings in every)
    return (2 if may_change else 1) * calls


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
        configured = replace(configured, max_batch=asked.max_batch, buckets=())
    return configured if asked.instances is None else replace(configured, instances=asked.instances)


def _load(folder: ModelFolder, settings: ModelSettings, kind: EngineType, on_run: OnRun | None) -> CloudModel:
    started_s = time.monotonic()
    name, version = folder.name, str(folder.version)
    path = folder.file(kind.file_name)
    digest = folder.digest(path)  # first, since this refuses weights outside the folder
    description = folder.description
    engine = by_rows(kind.load(folder.name, path, settings), settings.buckets)
    buckets = engine.buckets or settings.buckets
    processor = Processor(
        load_description(description, within=folder.root) if description else None,
        engine.inputs,
        engine.outputs,
        settings.engine,
    )
    _warm_up(folder, engine, buckets, settings.max_batch)
    batcher = Batcher(
        engine,
        replace(settings, buckets=buckets),
        device=device_for(settings.device),
        on_run=partial(on_run, name, version) if on_run is not None else None,
    )
    load_s = time.monotonic() - started_s
    return CloudModel(name, version, kind.platform, digest, settings, engine, processor, batcher, load_s)


def _warm_up(folder: ModelFolder, engine: Engine, buckets: Sequence[int], max_batch: int) -> None:
    """Prepare the engine for every batch size that it will get. Slow steps are logged."""
    if works_by_rows(engine):
        sizes: Sequence[int] = buckets or sorted({1, max_batch})
    else:
        sizes = [1]
        if max_batch > 1 or buckets:
            log.warning("model %s has no batch dimension, so each request runs alone", folder.name)
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
