"""All versions of one model as the service offers them, and how new ones take the place of old ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from upwell.cloud.service.loading import BrokenModel, CloudModel

UNLOADED = "unloaded"


@dataclass(frozen=True)
class ModelVersions:
    """The versions of one model, by rising number, and the one that answers where a request names none.

    `notes` says, of a version that answers, why its newer files are not in force.
    """

    versions: Mapping[str, CloudModel | BrokenModel]
    default: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def served(self) -> tuple[CloudModel, ...]:
        """Those that answer."""
        return tuple(model for model in self.versions.values() if isinstance(model, CloudModel))

    def left(self, there: Collection[str]) -> ModelVersions:
        """What is left of it where only the versions of `there` are still to be had; all of it if none would answer."""
        versions = {version: model for version, model in self.versions.items() if version in there}
        runnable = [version for version, model in versions.items() if isinstance(model, CloudModel)]
        if not runnable:
            return self
        return ModelVersions(versions, self.default if self.default in versions else max(runnable, key=int))

    def runnable(self) -> ModelVersions:
        """The same, where the highest version that answers does so for the default if that is broken."""
        default = max((model.version for model in self.served), key=int, default=self.default)
        is_broken = isinstance(self.versions[self.default], BrokenModel)
        return replace(self, default=default) if is_broken else self

    def unloaded(self) -> ModelVersions:
        """The same versions, none of which answers."""
        versions = {version: BrokenModel(model.name, version, UNLOADED) for version, model in self.versions.items()}
        return ModelVersions(versions, self.default)


def offered(models: Sequence[CloudModel | BrokenModel], before: ModelVersions | None = None) -> ModelVersions:
    """One model's versions (at least one), where `before` is what has been offered of it until now.

    What is broken takes no place of what serves: a version whose new files are broken stays as it was, and where
    the highest version is broken, the one that has answered until now goes on, even if it is not among
    `models` any more. Otherwise the highest version answers, and what is not in `models` is given up.
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
