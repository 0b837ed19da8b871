"""`model.yaml`: the signature of a model, and the operations that map it to the model's own tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from upwell.shared.config.yaml import ConfinedPath, FilePart, confined_path, load_yaml
from upwell.shared.config.yaml_tree import dotted
from upwell.shared.errors import Problem
from upwell.shared.files import open_plain
from upwell.shared.signature.pixel_budget import DEFAULT_MAX_PIXELS
from upwell.shared.signature.signature import OutputKind
from upwell.shared.tensors import numpy_dtype
from upwell.shared.units import Share

MAX_LABELS_BYTES = 1 << 20
"""Maximum size of a labels file (bytes)."""
MAX_SIDE = 16384
"""Maximum height or width to which a picture may be resized or cropped."""
MAX_TOKENIZER_BYTES = 64 << 20
"""Maximum size of a tokenizer file (bytes); those of many languages have 20 MiB."""
MAX_MASKS = 255
"""Maximum number of boxes with a mask: each pixel has a box number in one byte."""

Datatype: TypeAlias = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip


def _dimension(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError(f"expected a positive size, or -1 for a dynamic one, got {value}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _scale(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"expected a positive finite number, got {value}")
    return value


def _file_text(name: str, info: ValidationInfo, what: str, max_bytes: int, expected: str) -> str:
    """The text of a file beside this one; `what` is its role. Raises `ValueError`."""
    path = confined_path(name, info)
    try:
        with open_plain(path) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ValueError(f"the {what} {path} is larger than {max_bytes} bytes")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no {what} {path}; expected {expected}") from None
    except OSError as error:
        raise ValueError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the {what} {path} is not UTF-8 text") from None


def _labels(value: object, info: ValidationInfo) -> object:
    """Labels: a list unchanged, or the lines of the file with this name."""
    if not isinstance(value, str):
        return value
    text = _file_text(value, info, "labels file", MAX_LABELS_BYTES, "a text file with one label per line")
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n")


def _full_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    stripped = tuple(label.strip() for label in labels)
    if "" in stripped:
        raise ValueError(f"label {stripped.index('') + 1} is empty; expected one label per class")
    return stripped


def _tokenizer(value: object, info: ValidationInfo) -> object:
    """The JSON of a tokenizer: given directly, or in the file with this name."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return value
    return _file_text(value, info, "tokenizer", MAX_TOKENIZER_BYTES, "the tokenizer.json of the model")


Finite: TypeAlias = Annotated[float, AfterValidator(_finite)]
Scale: TypeAlias = Annotated[float, AfterValidator(_scale)]
Dimension: TypeAlias = Annotated[int, AfterValidator(_dimension)]
Side: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Labels: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(_labels),
    AfterValidator(_full_labels),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Op(FilePart):
    """What every step has: the value it reads, where the one last written is not meant."""

    source: Name | None = Field(default=None, alias="from")

    @property
    def named(self) -> tuple[str, ...]:
        """The values that it reads by name; empty for the value last written."""
        return () if self.source is None else (self.source,)


class NamedOp(Op):
    """A step whose result may get a name of its own."""

    target: Name | None = Field(default=None, alias="to")


class Decode(NamedOp):
    """Encoded pictures (or pixels) -> pixels."""

    color: Literal["rgb", "gray"] = "rgb"
    max_pixels: int = Field(default=DEFAULT_MAX_PIXELS, ge=1)
    exact: bool = False


class Tokenize(Op):
    """Texts -> token IDs, attention mask, and token types, each [rows, tokens].

    `tokenizer` is the JSON itself. `max_bytes` limits the texts of one request.
    """

    tokenizer: Annotated[str, BeforeValidator(_tokenizer), Field(repr=False)]
    max_tokens: int = Field(default=512, ge=1, le=1 << 17)
    pad: Literal["longest", "max"] = "longest"
    pad_id: int | None = Field(default=None, ge=0)
    dtype: Literal["INT32", "INT64"] = "INT64"
    ids: Name = "input_ids"
    mask: Name = "attention_mask"
    types: Name = "token_type_ids"
    max_bytes: int = Field(default=1 << 20, ge=1)


class Mel(NamedOp):
    """Sound -> its mel spectrogram; frequencies in Hz, lengths in samples."""

    sample_rate: int = Field(ge=1, le=1_000_000)
    n_fft: int = Field(default=1024, ge=2, le=1 << 16)
    hop: int = Field(default=256, ge=1, le=1 << 16)
    mels: int = Field(default=64, ge=1, le=1024)
    low: float = Field(default=0.0, ge=0)
    high: float | None = Field(default=None, gt=0)
    scale: Literal["slaney", "htk"] = "slaney"
    pad: Literal["zeros", "reflect", "none"] = "zeros"
    log: Literal["db", "ln", "none"] = "db"
    floor: Scale = 1e-10
    axes: Literal["MT", "TM"] = "MT"
    channel: bool = False


class Columns(NamedOp):
    """Records -> the numbers of these columns, [rows, width]; `missing` stands for values that are not there."""

    columns: tuple[Name, ...] = ()
    missing: dict[Name, float] = Field(default_factory=dict)
    one_hot: tuple[Name, ...] = ()
    dtype: Literal["FP32", "FP64", "INT64"] = "FP32"
    max_bytes: int = Field(default=1 << 20, ge=1)

    @model_validator(mode="after")
    def _numbers(self) -> Columns:
        if self.dtype == "INT64" and not all(math.isfinite(one) and one == int(one) for one in self.missing.values()):
            raise ValueError("with dtype INT64 the replacement of missing values must be a whole number")
        return self


class Resize(Op):
    """Pictures -> pictures of one size, [height, width]."""

    to: tuple[Side, Side]
    fit: Literal["stretch", "cover", "contain"] = "stretch"
    filter: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    fill: int = Field(default=0, ge=0, le=255)


class Crop(Op):
    """The middle of pictures, [height, width]."""

    to: tuple[Side, Side]


class Normalize(NamedOp):
    """(x * scale - mean) / std in FP32, given as `dtype`; mean and std one number, or one per channel."""

    scale: Scale = 1 / 255
    mean: Finite | tuple[Finite, ...] = 0.0
    std: Scale | tuple[Scale, ...] = 1.0
    dtype: Literal["FP32", "FP16"] = "FP32"


class Layout(NamedOp):
    """The order of a picture's dimensions."""

    order: Literal["NCHW", "NHWC"]


class Quantize(NamedOp):
    """round(x / scale) + zero_point, clipped to the range of `dtype`."""

    scale: Scale
    zero_point: int = 0
    dtype: Literal["UINT8", "INT8", "UINT16", "INT16"]

    @model_validator(mode="after")
    def _zero_point_fits(self) -> Quantize:
        limits = np.iinfo(numpy_dtype(self.dtype))
        if not limits.min <= self.zero_point <= limits.max:
            expected = f"a zero_point from {limits.min} to {limits.max} for {self.dtype}"
            raise ValueError(f"expected {expected}, got {self.zero_point}")
        return self


class Rename(Op):
    """Another name for a value."""

    target: Name = Field(alias="to")


class Activation(NamedOp):
    """Softmax or sigmoid."""


class TopK(NamedOp):
    """The k highest scores, and their classes as another value."""

    k: int = Field(ge=1)
    classes: Name = "classes"


class Dequantize(NamedOp):
    """(x - zero_point) * scale as FP32."""

    scale: Scale
    zero_point: int = 0


class Boxes(Op):
    """Raw boxes and scores -> detections."""

    target: Name = Field(default="detections", alias="to")
    boxes: Name | None = None
    scores: Name | None = None
    classes: Name | None = None
    axes: Literal["NCA", "NAC"] = "NCA"
    objectness: bool = False
    format: Literal["cxcywh", "xyxy", "yxyx"]
    normalized: bool = False
    background: int | None = Field(default=None, ge=0)
    min_score: Fraction = 0.25
    iou: Fraction = 0.45
    max: int = Field(default=100, ge=1, le=10_000)
    suppressed: bool = False
    angle: bool = False
    keypoints: tuple[Annotated[int, Field(ge=1, le=1000)], Literal[2, 3]] | None = None
    prototypes: Name | None = None
    masks: Name = "masks"

    @property
    def named(self) -> tuple[str, ...]:
        """The named values: boxes, scores and perhaps classes, or the raw tensor; with masks also the prototypes."""
        apart = tuple(name for name in (self.boxes, self.scores, self.classes) if name is not None)
        return apart or (*super().named, *([self.prototypes] if self.prototypes is not None else []))

    @model_validator(mode="after")
    def _one_form(self) -> Boxes:
        if (self.boxes is None) != (self.scores is None):
            raise ValueError("boxes and scores go together: name both, or `from` for one raw tensor")
        if self.boxes is not None and (self.source is not None or self.objectness):
            raise ValueError("`from` and `objectness` are for one raw tensor, but boxes and scores are named here")
        further = [name for name in ("suppressed", "angle", "keypoints", "prototypes") if getattr(self, name)]
        if self.boxes is not None and further:
            raise ValueError(f"`{further[0]}` is for one raw tensor, but boxes and scores are named here")
        if len(set(further) - {"suppressed"}) > 1:
            raise ValueError(f"`{further[-2]}` and `{further[-1]}` cannot be combined")
        if self.suppressed and self.objectness:
            raise ValueError("`objectness` needs class scores; a suppressed box has one score")
        if self.angle and self.format != "cxcywh":
            raise ValueError("boxes with an angle need the format cxcywh")
        if self.prototypes is not None and (self.source is None or self.max > MAX_MASKS or self.masks == self.target):
            raise ValueError(f"masks need `from`, a separate name, and at most {MAX_MASKS} boxes (`max`)")
        if self.classes is not None and self.boxes is None:
            raise ValueError("classes need boxes and scores; name all three")
        return self


class Segmentation(NamedOp):
    """Scores of classes at each pixel -> the class of each, and how sure it is."""

    scores: Literal["logits", "probabilities"] = "logits"
    axes: Literal["NCHW", "NHWC"] = "NCHW"


class LabelsOp(Op):
    """Class numbers, or the classes of detections, -> label texts."""

    target: Name = Field(default="labels", alias="to")
    labels: Labels = ()


def _short(key: str, op: Any) -> BeforeValidator:
    """Allows short forms of an op: a string for its main key, and null for no keys."""

    def expand(value: Any) -> Any:
        return {key: value} if isinstance(value, str) else _no_keys(value)

    return BeforeValidator(expand, json_schema_input_type=op | str | None)


def _no_keys(value: Any) -> Any:
    return {} if value is None else value


class _OneOp(FilePart):
    """A mapping with exactly one key, the op's name."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _exactly_one(self) -> _OneOp:
        if len(self.model_fields_set) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"expected exactly one operation, such as one of {known}")
        return self

    @property
    def name(self) -> str:
        """The op's name."""
        return next(iter(self.model_fields_set))

    @property
    def op(self) -> Any:
        """The op's keys."""
        return getattr(self, self.name)


_KEYS = BeforeValidator(_no_keys)


class PreOp(_OneOp):
    """One step before the model."""

    decode: Annotated[Decode | None, _short("from", Decode)] = None
    tokenize: Annotated[Tokenize | None, _short("tokenizer", Tokenize)] = None
    columns: Annotated[Columns | None, _KEYS] = None
    mel: Annotated[Mel | None, _KEYS] = None
    resize: Annotated[Resize | None, _KEYS] = None
    crop: Annotated[Crop | None, _KEYS] = None
    normalize: Annotated[Normalize | None, _KEYS] = None
    layout: Annotated[Layout | None, _short("order", Layout)] = None
    quantize: Annotated[Quantize | None, _KEYS] = None
    rename: Annotated[Rename | None, _KEYS] = None


class PostOp(_OneOp):
    """One step after the model."""

    softmax: Annotated[Activation | None, _short("from", Activation)] = None
    sigmoid: Annotated[Activation | None, _short("from", Activation)] = None
    top_k: Annotated[TopK | None, _KEYS] = None
    dequantize: Annotated[Dequantize | None, _KEYS] = None
    boxes: Annotated[Boxes | None, _KEYS] = None
    segments: Annotated[Segmentation | None, _short("from", Segmentation)] = None
    labels: Annotated[LabelsOp | None, _short("from", LabelsOp)] = None
    rename: Annotated[Rename | None, _KEYS] = None


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
    golden: Golden = Golden.model_construct()

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
