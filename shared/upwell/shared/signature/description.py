"""`model.yaml`: the signature of a model, and its mapping to the model's own tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from upwell.shared.config.yaml import ConfinedPath, FilePart, load_yaml
from upwell.shared.config.yaml_tree import dotted
from upwell.shared.errors import Problem
from upwell.shared.signature.keys import Datatype, Dimension, Labels, Name, PostOp, PreOp, Side
from upwell.shared.signature.signature import OutputKind
from upwell.shared.units import Share

RuntimeName: TypeAlias = Literal["onnx", "tflite", "torch"]


class UplinkSection(FilePart):
    """How pictures go up: given as pixels, encoded like this; larger ones shrunk first; `recode`: encoded ones, too."""

    encode: Literal["jpeg", "webp", "png"] | None = None
    quality: int = Field(default=85, ge=1, le=100)
    max_side: Side | None = None
    recode: bool = False

    @model_validator(mode="after")
    def _does_something(self) -> UplinkSection:
        if self.encode is None and (self.max_side is None or self.recode):
            raise ValueError("expected encode (jpeg, webp or png), max_side (in pixels), or both")
        return self


class ImageInput(FilePart):
    """One picture per row: encoded (JPEG, PNG, WebP), or pixels, whose channels callers give in this order."""

    kind: Literal["image"]
    channels: Literal["rgb", "bgr"] = "rgb"
    uplink: UplinkSection | None = None


class TextInput(FilePart):
    """One text per row, as UTF-8."""

    kind: Literal["text"]


class ColumnPart(FilePart):
    """A number, or one of these categories."""

    categories: Labels = ()


class RecordInput(FilePart):
    """One JSON object per row, with these columns."""

    kind: Literal["record"]
    columns: dict[Name, ColumnPart | None] = Field(min_length=1)


class TensorInput(FilePart):
    """A plain tensor."""

    kind: Literal["tensor"]
    dtype: Datatype
    shape: tuple[Dimension, ...]


Input: TypeAlias = Annotated[ImageInput | TextInput | RecordInput | TensorInput, Field(discriminator="kind")]


class Output(FilePart):
    """One output: what its numbers mean, and what its classes are called."""

    kind: OutputKind
    labels: Labels = ()


class SignaturePart(FilePart):
    """What callers see. `rows: false` says that a request is one whole, whatever its leading dimensions."""

    rows: bool = True

    inputs: dict[Name, Input] = Field(min_length=1)
    outputs: dict[Name, Output] = Field(min_length=1)


class Golden(FilePart):
    """Golden vectors, run when the model loads on the device, and how far its answers may differ from them.

    A share of at least `agree` of the classes must agree, and other numbers up to a relative error of `tolerance`.
    Without `file` they are in `golden.npz` in the bundle's folder, if it exists.
    """

    file: ConfinedPath | None = None
    tolerance: Share = 0.05
    agree: Share = 0.95


class RuntimeOverride(FilePart):
    """Steps that replace those of the file for one runtime, whose model file has other tensors."""

    pre: tuple[PreOp, ...] | None = None
    post: tuple[PostOp, ...] | None = None


class ModelDescription(FilePart):
    """A whole `model.yaml`. Load it with `load_description`."""

    version: Literal[1] = 1
    signature: SignaturePart
    pre: tuple[PreOp, ...] = ()
    post: tuple[PostOp, ...] = ()
    runtimes: dict[RuntimeName, RuntimeOverride] = Field(default_factory=dict)
    golden: Golden = Golden()

    _context: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the positions of values in the file, for errors that only the model's tensors reveal."""
        self._context.update(context or {})

    def exactly(self) -> ModelDescription:
        """The same description with every picture decoded at full size; see `exact` of `decode`."""

        def exact(steps: tuple[PreOp, ...]) -> tuple[PreOp, ...]:
            return tuple(
                step if step.decode is None else PreOp(decode=step.decode.model_copy(update={"exact": True}))
                for step in steps
            )

        runtimes = {
            name: one if one.pre is None else one.model_copy(update={"pre": exact(one.pre)})
            for name, one in self.runtimes.items()
        }
        return self.model_copy(update={"pre": exact(self.pre), "runtimes": runtimes})

    def problem(self, keys: Sequence[str | int], message: str) -> Problem:
        """A problem with the value under `keys`, with its position if it came from a file."""
        tree = self._context.get("tree")
        place = tree.find(keys)[0] if tree is not None else None
        line, column = (place.line, place.column) if place else (None, None)
        return Problem(self._context.get("path"), line, column, dotted(keys), message)


def load_description(path: Path, within: Path | None = None) -> ModelDescription:
    """Load the `model.yaml` at `path`. Raises `ConfigError`.

    It and every file that it names must lie in the folder `within`, by default its own, since it may be untrusted.
    """
    return load_yaml(path, ModelDescription, within=within or path.parent)
