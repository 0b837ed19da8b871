"""Reads the files of Hugging Face's hub beside a model: config.json, also timm's, preprocessor_config.json and the
tokenizer's. None of it is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import (
    ExporterFacts,
    Outputs,
    PictureFacts,
    TextFacts,
    is_side,
    is_size,
    labels_by_number,
)
from upwell.tools.model_init.model_yaml_draft import TOKENIZER_NAME, TOKENS
from upwell.tools.model_init.sidecar_files import read_object

_MOST_TOKENS = 1 << 17
"""Maximum number of tokens believed; tokenizers without a limit write larger ones."""

_AFTER_PADDING = (
    "camembert", "data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip

_LARGEST = 1e30
"""Largest number accepted for pictures, and the inverse of the smallest: others would overflow FP32."""

_FILTERS = MappingProxyType({0: "nearest", 2: "bilinear", 3: "bicubic"})
"""Pillow's numbers of resampling filters, as in Hugging Face's files."""

_CONVNEXT_CROPPED_BELOW = 384
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


def hugging_face(model: Path, inputs: Sequence[TensorSpec], outputs: Outputs) -> ExporterFacts | None:
    """The facts in `config.json`, `preprocessor_config.json` and `tokenizer.json` of a Hugging Face folder, the
    model's own or its parent.

    The outputs are those of Optimum's ONNX export: `logits`, and for a detector (DETR and its relatives)
    `pred_boxes`, with "no object" as last class.
    """
    folder, config = _json_beside(model, "config.json")
    if config is None or not isinstance(config.get("model_type"), str):
        return None
    labels = labels_by_number(config.get("id2label"))
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
        if not is_side(side):
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
    if not (isinstance(shape, list) and len(shape) == 3 and all(map(is_side, shape[1:]))):
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
    labels = labels_by_number(config.get("label_names", own.get("label_names")))
    source = f"timm's config.json ({config.get('architecture', 'no name')})"
    return ExporterFacts(source, labels, picture, scores="logits", notes=tuple(notes))


def _json_beside(model: Path, name: str) -> tuple[Path, Mapping[str, Any] | None]:
    """The object in that file of the model's folder, or of its parent if the folder is Optimum's `onnx`."""
    for folder in (model.parent, model.parent.parent) if model.parent.name == "onnx" else (model.parent,):
        found = read_object(folder / name)
        if found is not None:
            return folder, found
    return model.parent, None


def _side_pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    elif is_side(value):
        value = [value, value]
    return (value[0], value[1]) if is_size(value) else None


def _number(value: Any, otherwise: float) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and (value == 0 or 1 / _LARGEST <= abs(value) <= _LARGEST) else otherwise


def _channels(value: Any, otherwise: float) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(_number(one, otherwise) for one in values) or (otherwise,)
