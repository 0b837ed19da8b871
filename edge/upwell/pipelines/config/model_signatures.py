"""What a pipeline must know of a model: its inputs and outputs, read from its description alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from upwell.edge.bundle.archive import unpacked
from upwell.edge.bundle.bundle import DESCRIPTION_NAME
from upwell.edge.config import AgentConfig
from upwell.edge.models.model_config import EdgeSide
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.signature.model_yaml import ImageInput, ModelDescription, Output, TensorInput, load_description
from upwell.shared.signature.signature import OutputKind

_BOXES, _CLASSES, _NUMBERS = _PREFERRED = ("objects",), ("label", "score"), ("value", "values")
"""What `AnswerReader` writes of an output, in order of preference: boxes, classes, numbers."""
_FIELDS: Mapping[OutputKind, Collection[str]] = {
    "detections": _BOXES, "probabilities": _CLASSES, "logits": _CLASSES, "segments": _NUMBERS, "masks": _NUMBERS,
    "embedding": _NUMBERS, "tensor": _NUMBERS,
}  # fmt: skip
_ALWAYS = ("route", "reason", "id", "case")
"""What an answer says besides its outputs; `case` only if the cloud is still to answer."""
USUAL_FIELDS = (*_BOXES, *_CLASSES, *_NUMBERS, *_ALWAYS)
"""What answers say; those of a model with several outputs also have fields named after these."""


@dataclass(frozen=True)
class SignatureFacts:
    """What a pipeline must know of a model.

    `output_kind` and `takes_picture` are None if only the model itself can tell, because it is in the cloud alone or
    not yet downloaded. `labels` are None if it names none. `has_cloud`: its input may leave the device. `tensor` is
    the shape of its one input without the batch dimension if that is a tensor; None if unknown. `fields` are those of
    an answer as events write it, each with its own fields if it has any; None if unknown.
    """

    output_kind: OutputKind | None
    labels: tuple[str, ...] | None = None
    takes_picture: bool | None = True
    has_cloud: bool = False
    tensor: tuple[int, ...] | None = None
    fields: Mapping[str, Collection[str]] | None = None


def signatures_of(config: AgentConfig) -> Mapping[str, SignatureFacts]:
    """The facts of every model of an `agent.yaml`, from bundles and descriptions; no runtime is loaded.

    Raises `ConfigError` with every description that cannot be read.
    """
    facts: dict[str, SignatureFacts] = {}
    problems: list[Problem] = []
    for name, section in config.models.items():
        has_cloud = section.cloud is not None or section.split != "off"
        try:
            facts[name] = _of_side(section.edge, has_cloud)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return facts


def _of_side(side: EdgeSide | None, has_cloud: bool) -> SignatureFacts:
    if side is None or (side.bundle is None and side.file is None):
        return SignatureFacts(None, takes_picture=None, has_cloud=has_cloud)
    if side.file is not None:
        return _of_folder(side.file.parent, side.file.with_suffix(".yaml"), has_cloud)
    assert side.bundle is not None  # noqa: S101  one of the two, as seen above
    if not side.bundle.is_file():
        if not side.bundle.is_dir():
            raise ConfigError.at(side.bundle, "no such folder; expected a bundle")
        return _of_folder(side.bundle, side.bundle / DESCRIPTION_NAME, has_cloud)
    return _of_archive(side.bundle, has_cloud)


def _of_archive(archive: Path, has_cloud: bool) -> SignatureFacts:
    """The facts from the description in an archive, which is unpacked for the duration of the call."""
    with tempfile.TemporaryDirectory() as temporary, unpacked(archive, Path(temporary) / "bundle") as folder:
        try:
            return _of_folder(folder, folder / DESCRIPTION_NAME, has_cloud)
        except ConfigError as error:
            # The folder it was unpacked to no longer exists when this is read.
            told = [replace(one, path=archive, line=None, column=None) for one in error.problems]
            raise ConfigError(told) from None


def _of_folder(folder: Path, path: Path, has_cloud: bool) -> SignatureFacts:
    """The facts from a description. Without one, callers see the model's own tensors."""
    if not os.path.lexists(path):
        return SignatureFacts("tensor", takes_picture=False, has_cloud=has_cloud)
    return _facts(load_description(path, folder), has_cloud)


def _facts(description: ModelDescription, has_cloud: bool) -> SignatureFacts:
    signature = description.signature
    output = min(signature.outputs.values(), key=lambda one: _PREFERRED.index(_FIELDS[one.kind]))
    inputs = list(signature.inputs.values())
    takes_picture = len(inputs) == 1 and isinstance(inputs[0], ImageInput)
    tensor: tuple[int, ...] | None = None
    if len(inputs) == 1 and isinstance(inputs[0], TensorInput):
        tensor = inputs[0].shape[1:] if signature.rows else inputs[0].shape
    fields = _fields(signature.outputs)
    return SignatureFacts(output.kind, output.labels or None, takes_picture, has_cloud, tensor, fields)


def _fields(outputs: Mapping[str, Output]) -> Mapping[str, Collection[str]]:
    """The fields of an answer with these outputs: those of the only one, or of the first of classes, are its own."""
    first = next((name for name, one in outputs.items() if _FIELDS[one.kind] is _CLASSES), "")
    fields: dict[str, Collection[str]] = {}
    for name, one in outputs.items():
        if len(outputs) == 1 or name == first:
            fields |= dict.fromkeys(_FIELDS[one.kind], ())
        else:
            fields[name] = _FIELDS[one.kind]
    return fields | dict.fromkeys(_ALWAYS, ())
