"""The versions of one model that the service offers, and how new ones replace old ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from upwell.cloud.service.model_loader import BrokenModel, CloudModel

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
