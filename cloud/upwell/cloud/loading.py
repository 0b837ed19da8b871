"""From folders of the repository to models that can answer, or the reason why one cannot."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.base import Engine, EngineType, ModelSettings
from upwell.cloud.engines.checks import works_by_rows
from upwell.cloud.engines.loading import engine_type
from upwell.cloud.repository.repository import ModelFolder, scan
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem
from upwell.shared.signature.description import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.yaml import load_yaml

log = logging.getLogger("upwell.cloud")


@dataclass(frozen=True)
class ServedModel:
    """One version of a model, ready to answer."""

    name: str
    version: str
    platform: str
    digest: str
    settings: ModelSettings
    engine: Engine
    processor: Processor
    batcher: Batcher


@dataclass(frozen=True)
class BrokenModel:
    """One version of a model that could not be loaded. `reason` may be told to callers."""

    name: str
    version: str
    reason: str


def find_models(config: CloudConfig) -> list[ModelFolder]:
    """All models that are to be served. Raises `ConfigError`, also for settings of a model that is not there."""
    folders = scan(config.serve.models)
    names = sorted({folder.name for folder in folders})
    missing = [name for name in config.models if name not in names]
    if missing:
        there = ", ".join(names)
        raise ConfigError(
            [
                Problem(None, None, None, f"models.{name}", f"not in {config.serve.models}; there is {there}")
                for name in missing
            ]
        )
    return folders


def load_model(folder: ModelFolder, config: CloudConfig) -> ServedModel | BrokenModel:
    """Load one version and warm it up. What is wrong with it is logged whole.

    Raises `ConfigError` only where the engine itself is not installed.
    """
    settings = config.settings(folder.name)
    kind = engine_type(settings.engine)
    name, version = folder.name, str(folder.version)
    try:
        return _load(folder, settings, kind)
    except ConfigError as error:
        log.error("model %s version %s is not served: its description is wrong\n%s", name, version, error)
        return BrokenModel(name, version, "its model.yaml is wrong; the service's log says where")
    except (ModelFailed, InvalidRequest) as error:  # the latter where even zeros of its own shapes do not fit
        log.error("model %s version %s is not served: %s", name, version, error)
        return BrokenModel(name, version, str(error))
    except OSError as error:
        log.error("model %s version %s is not served: %s", name, version, error)
        return BrokenModel(name, version, f"its files cannot be read: {error.strerror}")


def _load(folder: ModelFolder, settings: ModelSettings, kind: EngineType) -> ServedModel:
    path = folder.file(kind.file_name)
    digest = folder.digest(path)  # before anything else reads it: this refuses weights outside the folder
    description = folder.description
    engine = kind.load(folder.name, path, settings)
    processor = Processor(
        load_yaml(description, ModelDescription) if description else None,
        engine.inputs,
        engine.outputs,
        settings.engine,
    )
    if settings.max_batch > 1 and not works_by_rows(engine):
        log.warning("model %s has no rows to batch by; each request runs alone", folder.name)
    engine.warm_up(1)
    if settings.max_batch > 1 and works_by_rows(engine):
        engine.warm_up(settings.max_batch)
    batcher = Batcher(engine, instances=settings.instances, max_batch=settings.max_batch, max_queue=settings.max_queue)
    return ServedModel(folder.name, str(folder.version), kind.platform, digest, settings, engine, processor, batcher)
