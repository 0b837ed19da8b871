"""Reads the metadata of exporters in a model's file or beside it: Ultralytics, Hugging Face, timm, and files of
labels.

Each reader returns the facts of its layout, or None if that is not there. None of it is trusted: texts are parsed as
JSON or as Python literals, never executed, and sizes are bounded.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from upwell.shared.errors import ConfigError, printable
from upwell.shared.files import open_plain, read_file
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.formats.onnx.graph import read_class_names, read_metadata
from upwell.shared.formats.tflite import BadTfliteFile, TensorNote, read_notes
from upwell.shared.signature.model_yaml import MAX_SIDE
from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import NOTHING_KNOWN, ExporterFacts, PictureFacts, TextFacts
from upwell.tools.model_init.model_yaml_draft import TOKENIZER_NAME, TOKENS
from upwell.tools.model_init.sidecar_files import facts_beside, read_object

MAX_MEMBER_BYTES = 1 << 20
_ULTRALYTICS = "metadata.json"
MAX_LITERAL = 1 << 20
MAX_LABELS = 100_000

_MOST_TOKENS = 1 << 17
"""Maximum number of tokens believed; tokenizers without a limit write larger ones."""

_AFTER_PADDING = (
    "camembert", "data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
_LONGEST_LINE = 500

_LARGEST = 1e30
"""Largest number accepted for pictures, and the inverse of the smallest: others would overflow FP32."""

_LABEL_FILES = ("labels.txt", "classes.txt", "class_names.txt", "labelmap.txt")
_LETTERBOX_FILL = 114

_FILTERS = MappingProxyType({0: "nearest", 2: "bilinear", 3: "bicubic"})
"""Pillow's numbers of resampling filters, as in Hugging Face's files."""

_CONVNEXT_CROPPED_BELOW = 384
Outputs = Sequence[TensorSpec]

_NO_CLASSES = MappingProxyType(
    {
        "multi_label_classification": "each label is yes or no independently, which no output kind "
        "says; its scores are a plain tensor",
        "regression": "it gives numbers instead of classes; they are a plain tensor",
    }
)
"""The values of Hugging Face's `problem_type` for scores that are not of classes."""

_WITH_NONE = ("detr", "yolos", "table-transformer")
_BY_ITSELF = ("conditional_detr", "d_fine", "dab-detr", "deformable_detr", "deta", "rt_detr", "rt_detr_v2")
"""Types of detectors: whether their last class is "no object", or each class has an independent probability."""

_FOLLOWED = (
    "Beit", "Bit", "Blip", "CLIP", "ConditionalDetr", "ConvNext", "DeformableDetr", "DeiT", "Detr", "EfficientFormer",
    "EfficientNet", "Levit", "MobileNetV1", "MobileNetV2", "MobileViT", "PoolFormer", "Pvt", "RTDetr", "Segformer",
    "Siglip", "ViT", "ViTHybrid", "Yolos",
)  # fmt: skip
"""Hugging Face's image processors whose files say all that is read here."""

_STEPS = (
    "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels",
    "do_convert_annotations",
)  # fmt: skip
"""What is followed, or done to labels and not to pictures."""

_LEVIT_SHARE = 224 / 256
_CROPPED_BY_SHARE = ("ConvNext", "PoolFormer", "Levit")


def own_metadata(model: Path) -> Mapping[str, str]:
    """The texts of the metadata, by name. Raises `ConfigError` for an ONNX file that cannot be read."""
    if model.suffix == ".tflite":
        return _strings(_member(model, _ULTRALYTICS))
    try:
        return read_metadata(model)
    except BadOnnxFile as error:
        raise ConfigError.at(model, str(error)) from None
    except OSError as error:
        raise ConfigError.at(model, f"cannot be read: {error.strerror}") from None


def tflite_facts(model: Path) -> ExporterFacts | None:
    """The metadata of tflite-support: the labels of an output, and the normalization of the input's pixels.

    The normalization is (pixel - mean) / std, for pixels 0..255. None if the file has no such metadata.
    """
    if model.suffix != ".tflite":
        return None
    try:
        with open_plain(model) as file:
            notes = read_notes(file.read())
    except (OSError, BadTfliteFile):
        return None  # the runtime reports what is wrong with it
    if notes is None:
        return None
    inputs, outputs = notes
    picture = next((_normalized(one) for one in inputs if one.mean), PictureFacts())
    return ExporterFacts("its TFLite metadata", _labels(model, outputs), picture)


def _normalized(note: TensorNote) -> PictureFacts:
    return PictureFacts(scale=1.0, mean=note.mean, std=note.std)


def _labels(model: Path, outputs: Sequence[TensorNote]) -> tuple[str, ...]:
    for name in (name for note in outputs for name in note.label_files):
        lines = _member(model, name).splitlines()
        if lines and all(line.strip() for line in lines):
            return tuple(line.strip() for line in lines)
    return ()


def _member(model: Path, name: str) -> str:
    """A text file packed behind the model; empty if it is missing or too large."""
    damaged = (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    )
    with contextlib.suppress(*damaged), open_plain(model) as file, zipfile.ZipFile(file) as archive:
        if archive.getinfo(name).file_size <= MAX_MEMBER_BYTES:
            with archive.open(name) as packed:
                return packed.read(MAX_MEMBER_BYTES).decode()
    return ""


def _strings(text: str) -> Mapping[str, str]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text) if text else {}
        if isinstance(found, dict):
            return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}
    return {}


def facts_of(
    model: Path,
    metadata: Mapping[str, str],
    inputs: Sequence[TensorSpec],
    outputs: Outputs,
    otherwise: ExporterFacts | None = None,
) -> ExporterFacts:
    """The facts about the model at `model`, whose file has `metadata` of its own, or `otherwise` if it comes from no
    known exporter. Raises `ConfigError`.

    Where nothing else names the classes, the names in the file's own classifier count, then a file of labels beside it,
    if there are as many as the model has classes.
    """
    readers: tuple[Callable[[], ExporterFacts | None], ...] = (
        lambda: ultralytics(metadata, model, inputs, outputs),
        lambda: hugging_face(model, inputs, outputs),
        lambda: timm(model),
        lambda: facts_beside(model, metadata),
    )
    facts = next((found for read in readers if (found := read()) is not None), otherwise or NOTHING_KNOWN)
    facts = replace(facts, source=_line(facts.source), notes=tuple(map(_line, facts.notes)))
    if not facts.labels:
        facts = _with_own_classes(model, facts, outputs)
    return facts if facts.labels else _with_labels_beside(model, facts, outputs)


def _line(text: str) -> str:
    """Untrusted text as one line of bounded length, since it becomes a comment of the description."""
    return printable(" ".join(text[:_LONGEST_LINE].split()))


@dataclass(frozen=True)
class _Export:
    """The metadata of an Ultralytics export, and its tensors.

    `is_transformer`: an RT-DETR, whose boxes are fractions of a stretched picture without overlaps to suppress.
    `suppresses`: the model drops overlaps itself. `channels_last`: its picture is NHWC, as in older TFLite files.
    """

    task: str
    outputs: Outputs
    is_tflite: bool
    is_transformer: bool
    suppresses: bool
    channels_last: bool


def ultralytics(
    metadata: Mapping[str, str], model: Path, inputs: Sequence[TensorSpec], outputs: Outputs
) -> ExporterFacts | None:
    """The metadata of an Ultralytics export: `task`, `names`, `imgsz`, `head`, `end2end`, `args`.

    Pictures are letterboxed to `imgsz` on grey 114 and scaled to 0..1. A classifier's are cropped from the middle,
    and its scores are after a softmax.
    """
    task, names = metadata.get("task", ""), _literal(metadata.get("names", ""))
    if "Ultralytics" not in metadata.get("author", "") or not task:
        return None
    size = _literal(metadata.get("imgsz", ""))
    square = tuple(size) if _is_size(size) else None
    labels = _by_number(names)
    picture = PictureFacts(square, "contain", fill=_LETTERBOX_FILL, filter="bilinear", scale=1 / 255)
    source = f"its Ultralytics metadata ({task})"
    if task == "classify":
        is_square = square is None or square[0] == square[1]
        picture = replace(picture, fit="cover" if is_square else "stretch", fill=None)
        return ExporterFacts(source, labels, picture, scores="probabilities", boxes=None)
    if task not in ("detect", "segment", "pose", "obb"):
        note = f"the outputs of a model for {task} are not decoded, but passed on unchanged"
        return ExporterFacts(source, (), picture, boxes={}, notes=(note,))
    arguments = _literal(metadata.get("args", ""))
    export = _Export(
        task,
        outputs,
        model.suffix == ".tflite",
        "RTDETR" in metadata.get("head", "") or "rtdetr" in metadata.get("description", "").lower(),
        metadata.get("end2end", "").lower() == "true"
        or (isinstance(arguments, Mapping) and arguments.get("nms") is True),
        len(inputs) == 1 and inputs[0].shape[-1] == 3,
    )
    if export.is_transformer:
        picture = replace(picture, fit="stretch", fill=None)
    return _ultralytics_boxes(ExporterFacts(source, labels, picture), metadata, export)


def _besides(metadata: Mapping[str, str], export: _Export) -> tuple[int, Mapping[str, str]] | None:
    """The number of values of a box beyond a detector's, and the keys that describe them; None if unknown."""
    if export.task == "obb":
        return 1, {"angle": "true"}
    if export.task == "pose":
        points = _literal(metadata.get("kpt_shape", ""))
        known = _is_size(points) and points[1] in (2, 3)
        return (points[0] * points[1], {"keypoints": f"[{points[0]}, {points[1]}]"}) if known else None
    if export.task == "segment":
        prototypes = next((one for one in export.outputs if len(one.shape) == 4 and one.shape[1] > 0), None)
        known = prototypes is not None and not export.channels_last
        return (prototypes.shape[1], {"prototypes": prototypes.name}) if known and prototypes else None
    return 0, {}


def _ultralytics_boxes(facts: ExporterFacts, metadata: Mapping[str, str], export: _Export) -> ExporterFacts:
    """The keys of the step `boxes`, by the shape of the raw tensor."""
    raw = next((one for one in export.outputs if len(one.shape) == 3), None)
    besides = _besides(metadata, export)
    if raw is None or besides is None or not facts.labels:
        note = (
            "its outputs do not have the layout of a known export; they are passed on unchanged, and no request is hard"
        )
        return replace(facts, boxes={}, notes=(note,))
    numbers, more = besides
    layout = _layout(raw.shape, 4 + len(facts.labels) + numbers, 6 + numbers, export)
    if not layout:
        found = f"{raw.name} {list(raw.shape)}"
        note = (
            f"{found} does not hold the {len(facts.labels)} classes; it is passed on unchanged, and no request is hard"
        )
        return replace(facts, boxes={}, notes=(note,))
    suppressed, is_turned = layout == "suppressed", "angle" in more
    keys = {"from": raw.name, "axes": "NCA" if layout == "NCA" else "NAC"}
    keys["format"] = "xyxy" if suppressed and not is_turned and not export.is_transformer else "cxcywh"
    keys |= {"suppressed": "true"} if suppressed else {}
    keys |= {"iou": "1.0"} if suppressed or export.is_transformer else {}
    # In TFLite files boxes are fractions, or an int8 output would lose the scores; with suppression only in older
    # ones.
    is_fraction = export.is_transformer or (export.is_tflite and (not suppressed or export.channels_last))
    return replace(facts, boxes={**keys, **({"normalized": "true"} if is_fraction else {}), **more})


def _layout(
    shape: Sequence[int], wide: int, suppressed: int, export: _Export
) -> Literal["", "NCA", "NAC", "suppressed"]:
    """The layout of the raw tensor: [rows, `wide`, boxes], [rows, boxes, `wide`] or [rows, boxes, `suppressed`];
    empty if unknown.

    An RT-DETR's box has the scores of all classes, or since 8.4 the best score and its class: with two classes both
    have the same width.
    """
    first, last = shape[1:]
    if export.is_transformer:
        return "" if wide == suppressed else "suppressed" if last == suppressed else "NAC" if last == wide else ""
    if first == last == -1:  # a model of any size
        return "suppressed" if export.suppresses else "NCA"
    if last == suppressed and (first != wide or export.suppresses):
        return "suppressed"
    return "NCA" if first == wide else "NAC" if last == wide else ""


def hugging_face(model: Path, inputs: Sequence[TensorSpec], outputs: Outputs) -> ExporterFacts | None:
    """The facts in `config.json`, `preprocessor_config.json` and `tokenizer.json` of a Hugging Face folder, the
    model's own or its parent.

    The outputs are those of Optimum's ONNX export: `logits`, and for a detector (DETR and its relatives)
    `pred_boxes`, with "no object" as last class.
    """
    folder, config = _json_beside(model, "config.json")
    if config is None or not isinstance(config.get("model_type"), str):
        return None
    labels = _by_number(config.get("id2label"))
    if set(labels) == {f"LABEL_{number}" for number in range(len(labels))}:
        labels = ()
    source = f"Hugging Face's config.json ({config['model_type']})"
    processor = read_object(folder / "preprocessor_config.json")
    if any(len(spec.shape) == 4 for spec in inputs):
        picture, notes = _image_processor(processor)
    else:
        picture, notes = PictureFacts(), _sound(processor)
    named = config.get("architectures")
    kinds = " ".join(one for one in named if isinstance(one, str)) if isinstance(named, list) else ""
    names = {spec.name for spec in outputs}
    if {"logits", "pred_boxes"} <= names:
        return _transformer(config["model_type"], ExporterFacts(source, labels, picture, notes=notes))
    text, said = _tokens(folder, config, inputs)
    notes += said
    other = _NO_CLASSES.get(str(config.get("problem_type")))
    if other:
        notes += (other,)
        return ExporterFacts(source, (), picture, boxes={}, text=text, notes=notes)
    if "ForTokenClassification" in kinds:
        notes += ("it labels each token, whose number varies; its scores are a plain tensor",)
        return ExporterFacts(source, (), picture, boxes={}, text=text, notes=notes)
    if "Classification" in kinds and "logits" in names:
        return ExporterFacts(source, labels, picture, scores="logits", text=text, notes=notes)
    if "ForSemanticSegmentation" in kinds and "logits" in names:
        return ExporterFacts(source, labels, picture, segments="logits", notes=notes)
    notes += (f"what {kinds or 'it'} gives is not known here",)
    return ExporterFacts(source, (), picture, boxes={}, text=text, notes=notes)


def _sound(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What no step does of what a feature extractor does to sound."""
    kind = (config or {}).get("feature_extractor_type")
    if not isinstance(kind, str):
        return ()
    return (f"what {kind} makes of sound, which no step does: its inputs are tensors here",)


def _transformer(kind: str, facts: ExporterFacts) -> ExporterFacts:
    """A detector related to DETR."""
    keys = {"boxes": "pred_boxes", "scores": "logits", "format": "cxcywh", "normalized": "true", "iou": "1.0"}
    if kind in _BY_ITSELF:
        return replace(facts, boxes=keys, activation="sigmoid: {from: logits}")
    if kind not in _WITH_NONE:
        note = f"the logits of a {kind} are not known here, so its outputs are passed on unchanged"
        return replace(facts, boxes={}, notes=(*facts.notes, note))
    keys |= {"background": str(len(facts.labels))} if facts.labels else {}
    every = (*facts.labels, "none") if facts.labels else ()
    return replace(facts, labels=every, boxes=keys, activation="softmax: {from: logits}")


def _tokens(
    folder: Path, config: Mapping[str, Any], inputs: Sequence[TensorSpec]
) -> tuple[TextFacts | None, tuple[str, ...]]:
    """How texts become the inputs, and notes on what is unknown."""
    names = [spec.name for spec in inputs]
    if TOKENS[0] not in names:
        return None, ()
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return None, (f"there is no {TOKENIZER_NAME} to turn texts into token ids; its inputs are plain tensors",)
    if set(names) - set(TOKENS):
        others = ", ".join(sorted(set(names) - set(TOKENS)))
        return None, (f"it takes {others} beside tokens, which no step produces; its inputs are plain tensors",)
    own = read_object(folder / "tokenizer_config.json") or {}
    pad_id = config.get("pad_token_id")
    known = pad_id if type(pad_id) is int and pad_id >= 0 else None
    # A model with learned positions states their number; RoBERTa's relatives count from after the padding index.
    skipped = 1 + (1 if known is None else known) if config["model_type"] in _AFTER_PADDING else 0
    positions = _number(config.get("max_position_embeddings"), 0) - skipped
    said = (own.get("model_max_length"), own.get("max_len"), positions)
    lengths = [one for one in said if isinstance(one, (int, float)) and 1 < one <= _MOST_TOKENS]
    return TextFacts(path, int(min(lengths, default=0)), known), ()


def _image_processor(config: Mapping[str, Any] | None) -> tuple[PictureFacts, tuple[str, ...]]:
    """How Hugging Face's image processors prepare pictures, and notes on what cannot be expressed."""
    if config is None:
        return PictureFacts(), ()
    notes = []
    family = _family(config)
    if family and family not in _FOLLOWED:
        notes.append(f"the image processor of {family} is not known here; it is assumed to work like ViT's")
    if config.get("do_flip_channel_order"):
        notes.append("it takes pictures as blue, green, red, which no step produces")
    others = [key for key, value in config.items() if key.startswith("do_") and value is True and key not in _STEPS]
    notes += [f"no step does what `{key}` does" for key in others if key != "do_flip_channel_order"]
    size, fit, crop = _resized(config, family)
    number = config.get("resample", 2)
    resample = _FILTERS.get(number) if isinstance(number, int) else None
    if resample is None:
        notes.append(f"it resizes with filter {number!r}, which is not supported; bilinear is close")
    if size is None and config.get("do_resize", True):
        notes.append("pictures are resized to a size that depends on the picture; choose one that the model takes")
    scale = _number(config.get("rescale_factor"), 1 / 255) if config.get("do_rescale", True) is not False else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if config.get("do_normalize", True) is not False and "image_mean" in config:
        mean, std = _channels(config.get("image_mean"), 0.0), _channels(config.get("image_std"), 1.0)
    if family == "EfficientNet":
        if config.get("rescale_offset") is True:
            mean = tuple(one + 1 for one in mean)
        if config.get("include_top", True) is True:  # divided by the same value again
            again = _channels(config.get("image_std"), 1.0)
            std = tuple(one * again[at % len(again)] for at, one in enumerate(std * (len(again) // len(std) or 1)))
    picture = PictureFacts(size, fit, crop, resample or "bilinear", None, scale, mean, std)  # type: ignore[arg-type]  # of `_FILTERS`
    return picture, tuple(notes)


def _family(config: Mapping[str, Any]) -> str:
    """`ViT` for `ViTImageProcessorFast` or `ViTFeatureExtractor`; empty if it is missing."""
    kind = config.get("image_processor_type") or config.get("feature_extractor_type")
    return re.split("ImageProcessor|FeatureExtractor", kind)[0] if isinstance(kind, str) else ""


def _resized(config: Mapping[str, Any], family: str) -> tuple[tuple[int, int] | None, Any, tuple[int, int] | None]:
    """Size, fit and crop. Resizing the shorter side to n and cropping equals covering n x n and cropping."""
    size, crop = config.get("size"), config.get("crop_size")
    cropped = _side_pair(crop) if config.get("do_center_crop") is True else None
    if isinstance(size, Mapping) and "shortest_edge" in size and "longest_edge" not in size:
        side = size["shortest_edge"]
        if not _is_side(side):
            return None, "", None
        share = _LEVIT_SHARE if family == "Levit" else _number(config.get("crop_pct"), 224 / 256)
        if family not in _CROPPED_BY_SHARE or not 0 < share <= 1:
            return (side, side), "cover", cropped
        if family == "ConvNext":
            if side >= _CONVNEXT_CROPPED_BELOW:
                return (side, side), "stretch", None
            cropped = (side, side)
        return (int(side / share), int(side / share)), "cover", cropped
    found = _side_pair(size)
    return found, "stretch" if found else "", cropped


def timm(model: Path) -> ExporterFacts | None:
    """The facts in timm's `config.json` (`pretrained_cfg`): input size, mean, std, interpolation, share of the crop."""
    _, config = _json_beside(model, "config.json")
    if config is None or not isinstance(config.get("pretrained_cfg", config.get("architecture")), (Mapping, str)):
        return None
    own = config["pretrained_cfg"] if isinstance(config.get("pretrained_cfg"), Mapping) else config
    shape = own.get("input_size")
    if not (isinstance(shape, list) and len(shape) == 3 and all(map(_is_side, shape[1:]))):
        return None
    size: tuple[int, int] = (shape[1], shape[2])
    share = _number(own.get("crop_pct"), 0.875)
    mode = str(own.get("crop_mode", "center"))
    whole = (int(size[0] / share), int(size[1] / share)) if 0 < share <= 1 else size
    mean = _channels(own.get("mean"), 0.0)
    named, notes = own.get("interpolation", "bicubic"), []
    if named not in (*_FILTERS.values(), "random"):
        notes.append(f"it resizes with filter {named!r}, which is not supported; bicubic is close")
    fill = round(255 * mean[0]) if mode == "border" and len(set(mean)) == 1 and 0 <= mean[0] <= 1 else None
    if mode == "border" and fill is None:
        notes.append("it pads with the mean of each channel, but `fill` is one number")
    picture = PictureFacts(
        whole,
        {"squash": "stretch", "border": "contain"}.get(mode, "cover"),  # type: ignore[arg-type]  # words of PictureFacts
        None if whole == size else size,
        named if named in _FILTERS.values() else "bicubic",
        fill,
        1 / 255,
        mean,
        _channels(own.get("std"), 1.0),
    )
    labels = _by_number(config.get("label_names", own.get("label_names")))
    source = f"timm's config.json ({config.get('architecture', 'no name')})"
    return ExporterFacts(source, labels, picture, scores="logits", notes=tuple(notes))


def _with_own_classes(model: Path, facts: ExporterFacts, outputs: Outputs) -> ExporterFacts:
    """As scikit-learn's converters and its kin write them into the operators of classifiers."""
    if model.suffix != ".onnx":
        return facts
    with contextlib.suppress(BadOnnxFile, OSError):
        labels = tuple(map(_line, read_class_names(model)))
        if all(labels) and any(spec.shape[1:] == (len(labels),) for spec in outputs):
            return replace(facts, source=facts.source or "the model's classifier", labels=labels)
    return facts


def _with_labels_beside(model: Path, facts: ExporterFacts, outputs: Outputs) -> ExporterFacts:
    classes = {size for spec in outputs for size in spec.shape[1:] if size > 1}
    for name in _LABEL_FILES:
        with contextlib.suppress(UnicodeDecodeError):
            path = model.parent / name
            lines = read_file(path, "a file of labels").decode("utf-8-sig").splitlines() if path.is_file() else []
            labels = tuple(line.strip() for line in lines if line.strip())
            if labels and {len(labels), len(labels) + 4, len(labels) + 5} & classes:
                return replace(facts, source=facts.source or f"{name} beside it", labels=labels)
    return facts


def _json_beside(model: Path, name: str) -> tuple[Path, Mapping[str, Any] | None]:
    """The object in that file of the model's folder, or of its parent if the folder is Optimum's `onnx`."""
    for folder in (model.parent, model.parent.parent) if model.parent.name == "onnx" else (model.parent,):
        found = read_object(folder / name)
        if found is not None:
            return folder, found
    return model.parent, None


def _literal(text: str) -> Any:
    """A Python literal or JSON, None if it is neither or too long."""
    if len(text) > MAX_LITERAL:
        return None
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def _by_number(names: Any) -> tuple[str, ...]:
    """`{0: "a", 1: "b"}` or a list -> the labels; empty if a number is missing or a label is not text."""
    if isinstance(names, Mapping):
        names = [names.get(number, names.get(str(number))) for number in range(min(len(names), MAX_LABELS))]
    if not isinstance(names, list) or not all(isinstance(one, str) and one.strip() for one in names):
        return ()
    return tuple(" ".join(one.split()) for one in names)


def _is_size(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_side, value))


def _is_side(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def _side_pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    elif _is_side(value):
        value = [value, value]
    return (value[0], value[1]) if _is_size(value) else None


def _number(value: Any, otherwise: float) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and (value == 0 or 1 / _LARGEST <= abs(value) <= _LARGEST) else otherwise


def _channels(value: Any, otherwise: float) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(_number(one, otherwise) for one in values) or (otherwise,)
