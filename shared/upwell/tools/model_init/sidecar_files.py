"""Reads the files that trainers and converters write beside a model.

These are torchvision's transforms as text, files of Roboflow, Edge Impulse and NVIDIA, and OpenVINO's metadata.

Texts are matched with patterns and never executed. What no step of `pre` can do becomes a note, and nothing is
guessed in its place.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain, parse_json, read_file
from upwell.shared.signature.model_yaml import MAX_SIDE
from upwell.tools.model_init.exporter_facts import ExporterFacts, PictureFacts

_MOST_TEXT_BYTES = 1 << 20
_MOST_JSON_BYTES = 4 << 20
_MOST_XML_BYTES = 256 << 20
_GREY = 114


def facts_beside(model: Path, metadata: Mapping[str, str]) -> ExporterFacts | None:
    """The facts of the first of these layouts that exists; None without one. Raises `ConfigError`."""
    readers = (_model_info, _nvinfer, _roboflow, _edge_impulse, _torchvision)
    return next((facts for read in readers if (facts := read(model, metadata)) is not None), None)


def _text(path: Path, most_bytes: int = _MOST_TEXT_BYTES) -> str | None:
    """The text of a small file, None if it is missing. Raises `ConfigError`."""
    if not os.path.isfile(path):  # also False for a name from a file that is too long for the system
        return None
    try:
        return read_file(path, "a text", most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError.at(path, "expected UTF-8 text") from None


# torchvision: str(transforms), as https://pytorch.org/vision/stable/transforms.html shows it

_TRANSFORM_FILES = ("transforms.txt", "transform.txt", "preprocess.txt", "preprocessing.txt")
_CALL = re.compile(r"(\w+)\((.*)\)")
_FILTERS = ("nearest", "bilinear", "bicubic")


def _torchvision(model: Path, _: Mapping[str, str]) -> ExporterFacts | None:
    """The `str()` of a `Compose`, or of the preset that comes with torchvision's weights."""
    for name in _TRANSFORM_FILES:
        text = _text(model.parent / name)
        source = f"torchvision's transforms in {name}"
        if text is not None and re.match(r"\s*(SemanticSegmentation|ObjectDetection)\(", text):
            return ExporterFacts(source, picture=_normalized(text))
        if text is not None and re.match(r"\s*(Compose|ImageClassification)\(", text):
            is_preset = "ImageClassification(" in text
            picture, problem = _preset(text) if is_preset else _composed(text)
            notes = (f"{name}: {problem}",) if problem else ()
            return ExporterFacts(
                source, picture=PictureFacts() if problem else picture, classifies=is_preset, notes=notes
            )
    return None


def _normalized(text: str) -> PictureFacts:
    """What pixels become by a preset; its sizes are left out."""
    keys = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[\w.]+)", text))
    mean, std = _numbers(keys.get("mean")) or (0.0,), _numbers(keys.get("std")) or (1.0,)
    return PictureFacts(scale=1 / 255, mean=mean, std=std)


def _preset(text: str) -> tuple[PictureFacts, str]:
    keys = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[\w.]+)", text))
    size, crop = _numbers(keys.get("resize_size")), _numbers(keys.get("crop_size"))
    if len(size) != 1 or len(crop) != 1:
        return PictureFacts(), "expected resize_size and crop_size of one number each"
    side, inner = int(size[0]), int(crop[0])
    found = replace(_normalized(text), size=(side, side), fit="cover", crop=(inner, inner))
    return _filtered(found, keys.get("interpolation", "bilinear"))


def _composed(text: str) -> tuple[PictureFacts, str]:
    """The facts from the steps, one per line; the first unsupported step is the problem."""
    facts, resized, done = PictureFacts(scale=1.0), False, set[str]()
    for line in text.strip().splitlines()[1:-1]:
        call = _CALL.fullmatch(line.strip())
        name, written = call.groups() if call else (line.strip(), "")
        keys = dict(re.findall(r"(\w+)=(\[[^\]]*\]|\([^)]*\)|[\w.+-]+)", written))
        if name in ("Resize", "CenterCrop", "Normalize"):
            # A description holds at most one resize, one crop after it, and one normalization.
            before = {"Resize": "CenterCrop" not in done, "CenterCrop": "Resize" in done}
            if name in done or not before.get(name, True):
                return facts, f"this order of steps is not supported: {line.strip()}"
            done.add(name)
        if name == "Resize":
            size = _numbers(keys.get("size"))
            if len(size) not in (1, 2) or keys.get("max_size", "None") != "None":
                return facts, f"this size is not supported: {line.strip()}"
            facts, problem = _filtered(facts, keys.get("interpolation", "bilinear"))
            if problem:
                return facts, problem
            sides = (int(size[0]), int(size[-1]))
            facts, resized = replace(facts, size=sides, fit="cover" if len(size) == 1 else "stretch"), len(size) == 1
        elif name == "CenterCrop":
            crop = _numbers(keys.get("size"))
            facts, resized = replace(facts, crop=(int(crop[0]), int(crop[-1]))) if crop else facts, False
        elif name == "ToTensor" or (name in ("ToDtype", "ConvertImageDtype") and keys.get("scale", "True") == "True"):
            facts = replace(facts, scale=1 / 255)
        elif name == "Normalize":
            facts = replace(facts, mean=_numbers(keys.get("mean")) or (0.0,), std=_numbers(keys.get("std")) or (1.0,))
        elif name not in ("ToImage", "PILToTensor"):
            return facts, f"this step is not supported: {line.strip()}"
    return (
        facts,
        "resizing the shorter side without a crop leaves a size that depends on the picture" if resized else "",
    )


def _filtered(facts: PictureFacts, written: str) -> tuple[PictureFacts, str]:
    name = written.rpartition(".")[2].lower()
    if name not in _FILTERS:
        return facts, f"filter {written!r} is not supported"
    return replace(facts, filter=name), ""  # type: ignore[arg-type]  # one of `_FILTERS`


def _numbers(written: Any) -> tuple[float, ...]:
    """The values of a number, or of a list or tuple of numbers in Python's syntax; empty for anything else."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(written) if isinstance(written, str) else written
        values = value if isinstance(value, (list, tuple)) else (value,)
        if values and all(type(one) in (int, float) and abs(one) <= MAX_SIDE for one in values):
            return tuple(values)
    return ()


# Roboflow: the files of a trained version, as github.com/roboflow/inference reads them (core/models/roboflow.py)

_EDGES = {
    "Stretch to": ("stretch", None), "Fit (black edges) in": ("contain", 0), "Fit (white edges) in": ("contain", 255),
    "Fit (grey edges) in": ("contain", _GREY),
}  # fmt: skip


def _roboflow(model: Path, _: Mapping[str, str]) -> ExporterFacts | None:
    """`environment.json` with the processing of pictures, `class_names.txt` or `CLASS_MAP`, `model_type.json`."""
    environment = read_object(model.parent / "environment.json")
    if environment is None or "PREPROCESSING" not in environment:
        return None
    steps = environment["PREPROCESSING"]
    with contextlib.suppress(ValueError):
        steps = parse_json(steps) if isinstance(steps, str) else steps
    steps = steps if isinstance(steps, Mapping) else {}
    resize = steps.get("resize")
    asked = resize.get("format", "Stretch to") if isinstance(resize, Mapping) else "Stretch to"
    fit, fill = _EDGES.get(asked if isinstance(asked, str) else "", _EDGES["Stretch to"])
    kind = read_object(model.parent / "model_type.json") or {}
    task, architecture = (str(kind.get(key, "")) for key in ("project_task_type", "model_type"))
    is_yolo = architecture.startswith("yolo") and "nas" not in architecture
    picture = PictureFacts(fit=fit, fill=fill, filter="bilinear", scale=1 / 255 if is_yolo else None)  # type: ignore[arg-type]
    notes: tuple[str, ...] = () if is_yolo else ("Roboflow's files do not say how pixel values are scaled",)
    others = (key for key, one in steps.items() if key not in ("auto-orient", "resize") and isinstance(one, Mapping))
    notes += tuple(f"no step of model.yaml does its step {key!r}" for key in others if steps[key].get("enabled"))
    labels = _lines(_text(model.parent / "class_names.txt")) or _class_map(environment.get("CLASS_MAP"))
    if task in ("", "classification"):
        classifies = task == "classification"
        return ExporterFacts("Roboflow's environment.json", labels, picture, classifies=classifies, notes=notes)
    notes += (f"the layout of boxes in an export for {task} is unknown, so its outputs are passed on unchanged",)
    return ExporterFacts("Roboflow's environment.json", labels, picture, boxes={}, notes=notes)


def _class_map(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Mapping):
        return ()
    labels = [value.get(str(number)) for number in range(len(value))]
    if not all(isinstance(one, str) and one.strip() for one in labels):
        return ()
    return tuple(" ".join(one.split()) for one in map(str, labels))


# Edge Impulse: model-parameters/ of the C++ library, as github.com/edgeimpulse/inferencing-sdk-cpp takes it

_EI_FITS = {"SQUASH": ("stretch", None), "FIT_SHORTEST": ("cover", None), "FIT_LONGEST": ("contain", 0)}
_EI_SCALES = {
    "NONE": (1 / 255, (0.0,), (1.0,)), "0_255": (1.0, (0.0,), (1.0,)), "MIN1_1": (1 / 255, (0.5,), (0.5,)),
    "MIN128_127": (1.0, (128.0,), (1.0,)), "TORCH": (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}  # fmt: skip


def _edge_impulse(model: Path, _: Mapping[str, str]) -> ExporterFacts | None:
    """`model_metadata.h` and `model_variables.h`: size, resize mode, scaling and categories."""
    for folder in (model.parent / "model-parameters", model.parent.parent / "model-parameters", model.parent):
        metadata, variables = (_text(folder / f"model_{name}.h") for name in ("metadata", "variables"))
        if metadata is not None and variables is not None:
            break
    else:
        return None
    defined = dict(re.findall(r"^#define\s+EI_CLASSIFIER_(\w+)\s+(\S+)", metadata, re.MULTILINE))
    listed = re.search(r"inferencing_categories\w*\[\]\s*=\s*\{([^}]*)\}", variables)
    labels = tuple(re.findall(r'"((?:[^"\\]|\\.)*)"', listed[1])) if listed else ()
    source = "Edge Impulse's model-parameters"
    if defined.get("OBJECT_DETECTION", "0") != "0":
        note = "the layout of its boxes is unknown, so its outputs are passed on unchanged"
        return ExporterFacts(source, labels, boxes={}, notes=(note,))
    sides = [int(one) for key in ("INPUT_HEIGHT", "INPUT_WIDTH") if (one := defined.get(key, "")).isdecimal()]
    if len(sides) != 2 or not all(0 < one <= MAX_SIDE for one in sides):
        return ExporterFacts(source, labels, scores="probabilities")
    fit, fill = _EI_FITS.get(defined.get("RESIZE_MODE", "").removeprefix("EI_CLASSIFIER_RESIZE_"), ("", None))
    scaling = re.search(r"\.image_scaling\s*=\s*EI_CLASSIFIER_IMAGE_SCALING_(\w+)", variables)
    known = _EI_SCALES.get(scaling[1] if scaling else "NONE")
    notes = () if known else ("its pixel scaling is not supported",)
    scale, mean, std = known or (None, (0.0,), (1.0,))
    picture = PictureFacts((sides[0], sides[1]), fit, None, "", fill, scale, mean, std)  # type: ignore[arg-type]
    return ExporterFacts(source, labels, picture, scores="probabilities", notes=notes)


# NVIDIA TAO: nvinfer_config.txt beside the ONNX file, with the keys of DeepStream's Gst-nvinfer

_NVINFER = ("nvinfer_config.txt", "config_infer_primary.txt", "config_infer.txt")
_CLASSIFIER = "1"


def _nvinfer(model: Path, _: Mapping[str, str]) -> ExporterFacts | None:
    """Scale, offsets, colour format and labels: a pixel x becomes net-scale-factor * (x - offset)."""
    found = ((name, _text(model.parent / name)) for name in _NVINFER)
    name, text = next(((name, text) for name, text in found if text is not None), ("", None))
    if text is None:
        return None
    keys = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in text.splitlines())}
    scale = (_numbers(keys.get("net-scale-factor", "1")) or (None,))[0]
    offsets = _numbers("[" + keys.get("offsets", "0").strip(";").replace(";", ",") + "]")
    notes: list[str] = []
    if keys.get("model-color-format", "0") == "1":
        notes.append("it takes pictures as blue, green, red, which no step produces; its normalization is left to you")
        scale = None
    fit, fill = "stretch", None
    if keys.get("maintain-aspect-ratio", "0") == "1":
        fit, fill = ("contain", 0) if keys.get("symmetric-padding", "0") == "1" else ("", None)
        notes += [] if fit else ["it pads on the right and at the bottom, which no `fit` does"]
    mean = tuple(scale * one for one in offsets) or (0.0,) if scale is not None else (0.0,)
    picture = PictureFacts(None, fit, None, "bilinear", fill, scale, mean)  # type: ignore[arg-type]  # one of its words
    labels = _tao_labels(model.parent / Path(keys.get("labelfile-path", "labels.txt")).name)
    if keys.get("network-type", "0") == _CLASSIFIER:
        return ExporterFacts(f"NVIDIA's {name}", labels, picture, classifies=True, notes=tuple(notes))
    parser = keys.get("parse-bbox-func-name", "its own parser")
    notes.append(f"its outputs need {parser}, so they are passed on unchanged")
    return ExporterFacts(f"NVIDIA's {name}", labels, picture, boxes={}, notes=tuple(notes))


def _tao_labels(path: Path) -> tuple[str, ...]:
    """One label per line; those of a classifier are all in one line, separated by semicolons."""
    lines = _lines(_text(path))
    return tuple(one.strip() for one in lines[0].split(";") if one.strip()) if len(lines) == 1 else lines


# OpenVINO: rt_info/model_info of the .xml (as in its Model API), or the same in the metadata of an ONNX file of OTX

_RESIZES = {"standard": "stretch", "fit_to_window_letterbox": "contain", "crop": "cover"}


def _model_info(model: Path, metadata: Mapping[str, str]) -> ExporterFacts | None:
    """`labels`, `mean_values`, `scale_values`, `resize_type`, `pad_value`, `reverse_input_channels`, `model_type`."""
    start = "model_info "
    info = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    beside = model.with_suffix(".xml")
    source = "its own model_info"
    if not info and beside.is_file():
        info, source = _rt_info(beside), f"OpenVINO's {beside.name}"
    if not info:
        return None
    means, scales = (_numbers(f"[{info.get(key, '').replace(' ', ',')}]") for key in ("mean_values", "scale_values"))
    notes: list[str] = []
    if info.get("reverse_input_channels", "").lower() not in ("true", "yes", "1"):
        notes.append("it is not said whether it takes red, green, blue or the reverse; red first is assumed")
    fit = _RESIZES.get(info.get("resize_type", ""), "")
    if not fit and "resize_type" in info:
        notes.append(f"resize_type {info['resize_type']!r} is not supported")
    pad = info.get("pad_value", "0")
    fill = int(pad) if fit == "contain" and pad.isdecimal() and int(pad) <= 255 else None
    # Without numbers it may take pixels unchanged, or the numbers were not recorded.
    scale = 1.0 if means or scales else None
    picture = PictureFacts(None, fit, None, "bilinear", fill, scale, means or (0.0,), scales or (1.0,))  # type: ignore[arg-type]
    labels = tuple(info.get("labels", "").split())
    kind = info.get("model_type", "")
    if "true" in (info.get(key, "").lower() for key in ("multilabel", "hierarchical")):
        notes.append(
            "several of its labels may be right at once, which no output kind says; its scores are a plain tensor"
        )
        return ExporterFacts(source, (), picture, boxes={}, notes=tuple(notes))
    if kind.lower() == "classification":
        return ExporterFacts(source, labels, picture, classifies=True, notes=tuple(notes))
    notes.append(f"the outputs of type {kind or 'unknown'!r} are not known here, so they are passed on unchanged")
    return ExporterFacts(source, labels, picture, boxes={}, notes=tuple(notes))


def _rt_info(path: Path) -> dict[str, str]:
    """The values of rt_info/model_info. Raises `ConfigError`."""
    info: dict[str, str] = {}
    try:
        with open_plain(path) as file:
            if path.stat().st_size > _MOST_XML_BYTES:
                raise ConfigError.at(path, f"it is larger than {_MOST_XML_BYTES} bytes")
            names: list[str] = []
            for event, element in ElementTree.iterparse(file, ("start", "end")):  # noqa: S314  expat bounds entities
                if event == "start":
                    names.append(element.tag)
                    if names[:3] == ["net", "rt_info", "model_info"] and len(names) == 4:
                        info[element.tag] = element.get("value", "")
                else:
                    names.pop()
                    element.clear()
    except ElementTree.ParseError as error:
        raise ConfigError.at(path, f"not XML: {error}") from None
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}") from None
    return info


def read_object(path: Path) -> Mapping[str, Any] | None:
    """The JSON object in a file, None if it is missing. Raises `ConfigError`."""
    text = _text(path, _MOST_JSON_BYTES)
    if text is None:
        return None
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ConfigError.at(path, f"not JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise ConfigError.at(path, "expected a JSON object")
    return found


def _lines(text: str | None) -> tuple[str, ...]:
    return tuple(line.strip() for line in (text or "").splitlines() if line.strip())
